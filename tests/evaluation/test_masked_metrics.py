"""The metrics that run a model: metrics of the functions they call, and their form."""

import math

import pytest

from hf_encoders import MinimalPairAccuracy, PseudoPerplexity
from hf_encoders.evaluation.pseudo_likelihood import pseudo_log_likelihoods, token_log_probabilities
from tests.hub.tiny_checkpoints import BERT, make_model, make_tokenizer


# The second pair is one sentence to the tokenizer.
GOOD = ["The cat sat on a mat.", "A dog slept.", "mat", "the dog", "all day"]
BAD = [
    "The cat on a mat sat.",
    "A dog slept .",
    "dog",
    "dog the",
    "day all",
]  # the second is the same to the tokenizer
PARADIGMS = ["order", "blank", "word", "order", "order"]


@pytest.fixture
def encoder():
    return {"model": make_model(BERT, "AutoModelForMaskedLM"), "tokenizer": make_tokenizer(BERT)}


@pytest.mark.parametrize("mask_rest_of_word", [False, True])
def test_pseudo_perplexity_is_exp_of_the_mean(encoder, tmp_path, mask_rest_of_word):
    metric = PseudoPerplexity(cache_dir=str(tmp_path))
    metric.add_batch(predictions=GOOD[:2])
    metric.add_batch(predictions=GOOD[2:])
    found = metric.compute(**encoder, mask_rest_of_word=mask_rest_of_word)
    scores = token_log_probabilities(*encoder.values(), GOOD, mask_rest_of_word)
    assert found["tokens"] == sum(map(len, scores)) == 16
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(-sum(text.sum() for text in scores) / 16), rel=1e-6)


def test_minimal_pairs_overall_and_by_paradigm(encoder, tmp_path):
    good, bad = (pseudo_log_likelihoods(*encoder.values(), sentences) for sentences in (GOOD, BAD))
    is_right = (good > bad).tolist()
    rows = {"sentence_good": GOOD, "sentence_bad": BAD, "UID": PARADIGMS}
    found = MinimalPairAccuracy("blimp", cache_dir=str(tmp_path)).compute(**rows, **encoder)
    assert 0 < sum(is_right) < len(is_right) - 1 and good[1] == bad[1]
    assert found == {
        "minimal_pair_accuracy": sum(is_right) / 5,
        "minimal_pairs": 5,
        "minimal_pair_ties": 1,
        "minimal_pair_accuracy_blank": 0.0,
        "minimal_pair_accuracy_order": (is_right[0] + is_right[3] + is_right[4]) / 3,
        "minimal_pair_accuracy_word": float(is_right[2]),
    }
    plain = MinimalPairAccuracy(cache_dir=str(tmp_path)).compute(sentence_good=GOOD, sentence_bad=BAD, **encoder)
    assert plain == {name: found[name] for name in list(found)[:3]}


def test_another_configuration_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="config_name='BLiMP'"):
        MinimalPairAccuracy("BLiMP", cache_dir=str(tmp_path))
