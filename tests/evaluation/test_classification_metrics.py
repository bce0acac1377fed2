"""Metrics of classes and numbers: metrics by hand, wrong input, and the ways `evaluate` feeds them."""

import math

import numpy as np
import pytest
import torch

from hf_encoders import (
    F1,
    Accuracy,
    MatthewsCorrelation,
    PairAccuracy,
    PearsonCorrelation,
    SpearmanCorrelation,
)


# Class 0: 2 of 3 found, 1 wrong (F1 2/3); class 1: 1 of 2 found, 0 wrong (2/3); class 2: 1 of 1 found, 1 wrong (2/3).
BALANCED = ([0, 0, 2, 1, 0, 2], [0, 0, 0, 1, 1, 2])
# Class 0: 3 right of 4 predicted and 3 true (6/7); class 1: 1 right of 1 predicted and 2 true (2/3).
TWO_CLASSES = ([0, 0, 0, 1, 0], [0, 0, 0, 1, 1])


@pytest.fixture
def cache(tmp_path):
    return {"cache_dir": str(tmp_path)}


def test_accuracy_is_the_share_of_right_items(cache):
    assert Accuracy(**cache).compute(predictions=[0, 2, 1], references=[0, 2, 2]) == {"accuracy": 2 / 3}
    weighted = Accuracy(**cache).compute(predictions=[0, 2, 1], references=[0, 2, 2], sample_weight=[1, 1, 2])
    assert weighted == {"accuracy": 0.5}


def test_accuracy_of_several_labels_an_item_counts_whole_items(cache):
    metric = Accuracy("multilabel", **cache)
    assert metric.compute(predictions=[[1, 0], [1, 1]], references=[[1, 0], [0, 1]]) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        ("binary", 2 / 3),
        ("macro", (6 / 7 + 2 / 3) / 2),
        ("micro", 4 / 5),
        ("weighted", (3 * 6 / 7 + 2 * 2 / 3) / 5),
    ],
)
def test_f1_averages(cache, average, expected):
    predictions, references = TWO_CLASSES
    found = F1(**cache).compute(predictions=predictions, references=references, average=average)
    assert found == {"f1": pytest.approx(expected, abs=1e-12)}


def test_f1_of_the_other_class_is_positive_if_asked(cache):
    predictions, references = TWO_CLASSES
    found = F1(**cache).compute(predictions=predictions, references=references, pos_label=0)
    assert found == {"f1": pytest.approx(6 / 7, abs=1e-12)}


def test_f1_per_class_has_ids(cache):
    predictions, references = BALANCED
    by_id = F1(**cache).compute(predictions=predictions, references=references, average="per_class")
    # class 0: precision 2/3, recall 2/3; class 1: 1, 1/2; class 2: 1/2, 1
    assert by_id == {f"f1_{label}": pytest.approx(2 / 3, abs=1e-12) for label in (0, 1, 2)}
    chosen = F1(**cache).compute(predictions=[0, 0], references=[0, 1], average="per_class", labels=[2, 0])
    assert list(chosen) == ["f1_2", "f1_0"]
    assert chosen == {"f1_2": 0.0, "f1_0": pytest.approx(2 / 3, abs=1e-12)}


def test_f1_of_several_labels_an_item(cache):
    metric = F1("multilabel", **cache)
    found = metric.compute(predictions=[[1, 0], [1, 1]], references=[[1, 0], [0, 1]], average="per_class")
    assert found == {"f1_0": pytest.approx(2 / 3, abs=1e-12), "f1_1": 1.0}


def test_matthews_correlation_by_its_formula(cache):
    # 3 true positives, 1 true negative, 2 false positives, 1 false negative
    predictions, references = [1, 1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0, 1]
    expected = (3 * 1 - 2 * 1) / math.sqrt((3 + 2) * (3 + 1) * (1 + 2) * (1 + 1))
    found = MatthewsCorrelation(**cache).compute(predictions=predictions, references=references)
    assert found == {"matthews_correlation": pytest.approx(expected, abs=1e-12)}


def test_correlations_by_their_formulas(cache):
    predictions, references = [1.0, 2.0, 4.0, 3.0], [0.1, 0.2, 0.9, 0.3]
    linear = PearsonCorrelation(**cache).compute(predictions=predictions, references=references)
    assert linear == {"pearsonr": pytest.approx(np.corrcoef(predictions, references)[0, 1], abs=1e-12)}
    ranked = SpearmanCorrelation(**cache).compute(predictions=predictions, references=[0.1, 0.9, 0.3, 0.2])
    # ranks 1 2 4 3 and 1 4 3 2: 1 - 6 * (0 + 4 + 1 + 1) / (4 * 15)
    assert ranked == {"spearmanr": pytest.approx(0.4, abs=1e-12)}


@pytest.mark.parametrize("metric", [PearsonCorrelation, SpearmanCorrelation])
@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_correlation_with_a_constant_is_not_a_number(cache, metric):
    (value,) = metric(**cache).compute(predictions=[1.0, 1.0, 1.0], references=[1.0, 2.0, 3.0]).values()
    assert math.isnan(value)


def test_pair_accuracy_leaves_pairs_without_label_out(cache):
    found = PairAccuracy("next_sentence", **cache).compute(
        predictions=[0, 1, 1, 0, 1], references=[0, 0, 1, -100, -100]
    )
    assert found == {
        "pair_accuracy": 2 / 3, "pair_accuracy_follows": 0.5, "pair_accuracy_random": 1.0, "pairs": 3,
    }  # fmt: skip
    only_swapped = PairAccuracy("sentence_order", **cache).compute(predictions=[0, 1], references=[1, 1])
    assert only_swapped == {"pair_accuracy": 0.5, "pair_accuracy_swapped": 0.5, "pairs": 2}


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
        (PairAccuracy, {"references": [0, 2, 1]}, "label 2"),
        (PairAccuracy, {"references": [-100] * 3}, "no label"),
        (Accuracy, {"references": [0, 1]}, "Mismatch"),
        (Accuracy, {"predictions": [], "references": []}, "empty|0 sample"),
        (PearsonCorrelation, {"predictions": [0.5], "references": [1.0]}, "length at least 2"),
    ],
)
def test_wrong_input_is_a_value_error(cache, metric, inputs, message):
    arguments = {"predictions": [0, 1, 1], "references": [0, 1, 1], **inputs}
    with pytest.raises(ValueError, match=message):
        metric(**cache).compute(**arguments)


@pytest.mark.parametrize("metric", [Accuracy, F1, PairAccuracy])
def test_another_configuration_is_a_value_error(cache, metric):
    with pytest.raises(ValueError, match="config_name='other'"):
        metric("other", **cache)
