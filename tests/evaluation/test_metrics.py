"""Metrics of classes, numbers and models: by hand, wrong input, and the ways `evaluate` feeds them."""

import math

import numpy as np
import pytest
import torch

from hf_encoders import (
    F1,
    Accuracy,
    Correlation,
    MinimalPairAccuracy,
    PseudoPerplexity,
    pseudo_log_likelihoods,
    token_log_probabilities,
)
from tests.hub.tiny_checkpoints import BERT, make_model, make_tokenizer


# Class 0: 3 right of 4 predicted and 3 true (6/7); class 1: 1 right of 1 predicted and 2 true (2/3).
TWO_CLASSES = {"predictions": [0, 0, 0, 1, 0], "references": [0, 0, 0, 1, 1]}
# The second pair is one sentence to the tokenizer.
GOOD = ["The cat sat on a mat.", "A dog slept.", "mat", "the dog", "all day"]
BAD = ["The cat on a mat sat.", "A dog slept .", "dog", "dog the", "day all"]


@pytest.fixture
def cache(tmp_path):
    return {"cache_dir": str(tmp_path)}


@pytest.fixture
def encoder():
    return {"model": make_model(BERT, "AutoModelForMaskedLM"), "tokenizer": make_tokenizer(BERT)}


def test_accuracy_is_the_share_of_right_items_with_a_label_also_of_each_class(cache):
    names = ["follows", "random", "never"]
    rows = {"predictions": [0, 1, 1, 0, 1], "references": [0, 0, 1, -100, -100]}
    assert Accuracy(**cache).compute(**rows) == {"accuracy": 2 / 3}
    by_class = {"accuracy": 2 / 3, "accuracy_follows": 0.5, "accuracy_random": 1.0}
    assert Accuracy(**cache).compute(**rows, class_names=names) == by_class
    whole_items = Accuracy("multilabel", **cache)
    assert whole_items.compute(predictions=[[1, 0], [1, 1]], references=[[1, 0], [0, 1]]) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"f1": 2 / 3}),
        ({"pos_label": 0}, {"f1": 6 / 7}),
        ({"average": "macro"}, {"f1": (6 / 7 + 2 / 3) / 2}),
        ({"average": "micro"}, {"f1": 4 / 5}),
        ({"average": "weighted"}, {"f1": (3 * 6 / 7 + 2 * 2 / 3) / 5}),
        ({"average": "per_class"}, {"f1_0": 6 / 7, "f1_1": 2 / 3}),
    ],
)
def test_f1_averages(cache, options, expected):
    found = F1(**cache).compute(**TWO_CLASSES, **options)
    assert found == pytest.approx(expected, abs=1e-12) and list(found) == list(expected)


def test_f1_of_several_labels_an_item(cache):
    metric = F1("multilabel", **cache)
    found = metric.compute(predictions=[[1, 0], [1, 1]], references=[[1, 0], [0, 1]], average="per_class")
    assert found == {"f1_0": pytest.approx(2 / 3, abs=1e-12), "f1_1": 1.0}


def test_correlations_by_their_formulas(cache):
    # 3 true positives, 1 true negative, 2 false positives, 1 false negative
    classes = {"predictions": [1, 1, 1, 0, 1, 1, 0], "references": [1, 1, 1, 0, 0, 0, 1]}
    expected = (3 * 1 - 2 * 1) / math.sqrt((3 + 2) * (3 + 1) * (1 + 2) * (1 + 1))
    found = Correlation("classes", **cache).compute(**classes)
    assert found == {"matthews_correlation": pytest.approx(expected, abs=1e-12)}
    predictions, references = [1.0, 2.0, 4.0, 3.0], [0.1, 0.9, 0.3, 0.2]
    linear = np.corrcoef(predictions, references)[0, 1]
    # ranks 1 2 4 3 and 1 4 3 2: 1 - 6 * (0 + 4 + 1 + 1) / (4 * 15)
    assert Correlation(**cache).compute(predictions=predictions, references=references) == {
        "pearsonr": pytest.approx(linear, abs=1e-12), "spearmanr": pytest.approx(0.4, abs=1e-12),
    }  # fmt: skip
    for constant in ({"predictions": [1.0] * 4}, {"references": [1.0] * 4}):
        numbers = {"predictions": predictions, "references": references} | constant
        assert Correlation(**cache).compute(**numbers) == {"pearsonr": 0.0, "spearmanr": 0.0}


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_batches_of_any_kind_add_up(cache, convert):
    metric = Accuracy(**cache)
    for predictions, references in (([0, 1, 1], [0, 1, 0]), ([1], [1])):
        metric.add_batch(predictions=convert(predictions), references=convert(references))
    metric.add(prediction=0, reference=1)
    assert metric.compute() == {"accuracy": 0.6}


@pytest.mark.parametrize(
    ("metric", "inputs", "message"),
    [
        (F1, {"average": "samples"}, "average='samples'"),
        (F1, {"predictions": [0, 1, 2]}, "binary"),
        (Accuracy, {"references": [-100] * 3}, "no label"),
        (Accuracy, {"references": [0, 1]}, "Mismatch"),
        (Accuracy, {"predictions": [], "references": []}, "no label"),
        (Correlation, {"predictions": [0.5], "references": [1.0]}, "2 or more"),
    ],
)
def test_wrong_input_is_a_value_error(cache, metric, inputs, message):
    with pytest.raises(ValueError, match=message):
        metric(**cache).compute(**{"predictions": [0, 1, 1], "references": [0, 1, 1], **inputs})


@pytest.mark.parametrize("metric", [Accuracy, F1, Correlation, MinimalPairAccuracy])
def test_another_configuration_is_a_value_error(cache, metric):
    with pytest.raises(ValueError, match="config_name='other'"):
        metric("other", **cache)


@pytest.mark.parametrize("mask_rest_of_word", [False, True])
def test_pseudo_perplexity_is_exp_of_the_mean(encoder, cache, mask_rest_of_word):
    metric = PseudoPerplexity(**cache)
    metric.add_batch(predictions=GOOD[:2])
    metric.add_batch(predictions=GOOD[2:])
    found = metric.compute(**encoder, mask_rest_of_word=mask_rest_of_word)
    scores = token_log_probabilities(*encoder.values(), GOOD, mask_rest_of_word)
    assert found["tokens"] == sum(map(len, scores)) == 16
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(-sum(text.sum() for text in scores) / 16), rel=1e-6)


def test_minimal_pairs_overall_and_by_paradigm(encoder, cache):
    good, bad = (pseudo_log_likelihoods(*encoder.values(), sentences) for sentences in (GOOD, BAD))
    is_right = (good > bad).tolist()
    rows = {"sentence_good": GOOD, "sentence_bad": BAD, "UID": ["order", "blank", "word", "order", "order"]}
    found = MinimalPairAccuracy("blimp", **cache).compute(**rows, **encoder)
    assert 0 < sum(is_right) < len(is_right) - 1 and good[1] == bad[1]
    assert found == {
        "minimal_pair_accuracy": sum(is_right) / 5,
        "minimal_pairs": 5,
        "minimal_pair_ties": 1,
        "minimal_pair_accuracy_blank": 0.0,
        "minimal_pair_accuracy_order": (is_right[0] + is_right[3] + is_right[4]) / 3,
        "minimal_pair_accuracy_word": float(is_right[2]),
    }
    plain = MinimalPairAccuracy(**cache).compute(sentence_good=GOOD, sentence_bad=BAD, **encoder)
    assert plain == {name: found[name] for name in list(found)[:3]}
