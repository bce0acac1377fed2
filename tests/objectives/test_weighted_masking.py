"""Tokens sampled by their frequency in the corpus: the law within an example, and the tables of the original code.

`prepare_batch_mlm` of DistilBERT and `mask_out` of XLM sample over a batch; here each example has its own number.
"""

from itertools import permutations

import numpy as np
import pytest

from hf_encoders import DataCollatorForMaskedLM
from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.randomness import example_keys
from hf_encoders.corpus.report import token_counts
from hf_encoders.objectives import presets
from hf_encoders.objectives.batches import IGNORED
from hf_encoders.objectives.mask_units import choose_by_weight
from hf_encoders.objectives.masker import TokenMasker
from tests.corpus.corpora import equal_documents


CLS, SEP, MASK = 1, 2, 4
FIRST = 5  # of the ordinary ids
# Share of the tokens predicted, by rank of their frequency: 1-10, 11-30, 31-100, 101-300, 301-1000 (of 1,000 types,
# Zipf's law, rows of 12-128 tokens, and of 256 with a separator behind every sentence of 22.5), measured on the
# original functions.
RANKS = (10, 30, 100, 300, 1000)
DISTILBERT = {
    0.5: (0.0378, 0.0922, 0.1548, 0.2569, 0.4080),
    0.7: (0.0185, 0.0627, 0.1319, 0.2662, 0.4958),
    1.0: (0.0059, 0.0311, 0.0945, 0.2595, 0.5984),
}
XLM = {0.5: (0.0388, 0.0926, 0.1586, 0.2618, 0.4178), 0.7: (0.0190, 0.0634, 0.1359, 0.2733, 0.5044)}


def zipf_batch(lengths, sentence_ends=0.0, seed=0):
    """Rows of [CLS] ... [SEP] of 1,000 types by Zipf's law, id 5 the most frequent, and counts of the ids.

    `sentence_ends` is the share of further [SEP] in them.
    """
    lengths, random = np.asarray(lengths), np.random.default_rng(seed)
    weights = 1 / np.arange(1, 1001)
    ids = FIRST + random.choice(1000, lengths.sum(), p=weights / weights.sum())
    ids[random.random(len(ids)) < sentence_ends] = SEP
    ends = np.cumsum(lengths)
    counts = np.bincount(ids, minlength=FIRST + 1000)
    counts[:FIRST] = 0
    ids[ends - lengths], ids[ends - 1] = CLS, SEP
    return ids, lengths, example_keys(seed, 0, np.arange(len(lengths))), counts


def exact_probabilities(weights, number):
    """Probability that each item is among `number` drawn one after the other in proportion to the weights left."""
    found = np.zeros(len(weights))
    for order in permutations(range(len(weights)), number):
        left, probability = sum(weights), 1.0
        for item in order:
            probability *= weights[item] / left
            left -= weights[item]
        found[list(order)] += probability
    return found


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_law_within_an_example(number):
    """40,000 examples of five tokens; each share within five standard errors of the exact one."""
    rarities, n = np.array([1.0, 1.0, 2.0, 5.0, 20.0]), 40000
    draws = np.random.default_rng(0).integers(0, 2**32, 5 * n, dtype=np.uint32)
    lengths, limits = np.full(n, 5), np.full(n, number)
    runs = choose_by_weight(draws, np.tile(rarities, n), lengths, limits, np.ones(5 * n, dtype=bool))
    assert np.bincount(runs.rows, minlength=n).tolist() == limits.tolist()
    shares = np.bincount(runs.first % 5, minlength=5) / n
    expected = exact_probabilities(1 / rarities, number)
    assert abs(shares - expected).max() < 5 * np.sqrt(0.25 / n)


def shares_by_rank(masker, batch):
    ids, lengths, keys, _ = batch
    predicted = masker(ids, lengths, keys).labels != IGNORED
    place = np.searchsorted(RANKS, ids - FIRST, "right")
    is_text = ids >= FIRST
    return [predicted[is_text & (place == i)].mean() for i in range(len(RANKS))], predicted


@pytest.mark.parametrize(
    ("measured", "lengths", "sentence_ends"),
    [(DISTILBERT, np.random.default_rng(0).integers(12, 129, 3000), 0), (XLM, np.full(1000, 256), 1 / 23.5)],
    ids=["distilbert", "xlm"],
)
def test_rare_tokens_are_predicted_as_often_as_by_the_original_code(make_tokenizer, measured, lengths, sentence_ends):
    """Within 5 % of the tables: a number for each example flattens the rates a little in short ones."""
    batch = zipf_batch(lengths, sentence_ends)
    for power, expected in measured.items():
        options = {**presets.DISTILBERT_MASKING, "frequency_power": power}
        masker = TokenMasker(make_tokenizer(1005), token_counts=batch[3], **options)
        found, predicted = shares_by_rank(masker, batch)
        assert found == pytest.approx(expected, rel=0.05)
        assert predicted.mean() == pytest.approx(0.15, abs=0.002)
        assert not predicted[batch[0] < FIRST].any()
        counts = np.diff(offsets_of(predicted)[offsets_of(batch[1])])
        assert (abs(counts - 0.15 * batch[1]) < 1).all()  # of each example, specials counted


def test_kinds_of_replacement_are_those_of_other_masking(make_tokenizer):
    ids, lengths, keys, counts = zipf_batch(np.full(1000, 256))
    masked = TokenMasker(make_tokenizer(1005), token_counts=counts, **presets.XLM_MASKING)(ids, lengths, keys)
    n, new = len(masked.positions), masked.ids[masked.positions]
    for share, expected in (((new == MASK).mean(), 0.8), ((new == masked.originals).mean(), 0.1)):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n) + 0.1 / 1005


def test_a_lower_rate_predicts_the_first_of_the_same_order_and_the_batch_does_not_matter(make_tokenizer):
    ids, lengths, keys, counts = zipf_batch([40, 128, 64])
    masker = TokenMasker(make_tokenizer(1005), token_counts=counts, frequency_power=0.7, num_masked="nearest")
    more, fewer = (set(masker(ids, lengths, keys, None, rate).positions.tolist()) for rate in (0.3, 0.15))
    assert fewer < more
    alone = masker(ids[40:168], lengths[1:2], keys[1:2])
    together = masker(ids, lengths, keys)
    assert np.array_equal(together.ids[40:168], alone.ids) and np.array_equal(together.labels[40:168], alone.labels)


def test_an_example_of_special_tokens_alone_predicts_nothing(tokenizer):
    masker = TokenMasker(tokenizer, token_counts=np.ones(60, int), frequency_power=0.5)
    assert masker(np.array([CLS, SEP, CLS, 9, SEP]), np.array([2, 3]), example_keys(0, 0, [0, 1])).positions == [3]


def test_counts_of_a_corpus_reach_the_collator(tokenizer):
    documents = equal_documents(7)
    counts = token_counts(documents, 60)
    flat = np.concatenate([sentence for document in documents["input_ids"] for sentence in document])
    assert counts.tolist() == np.bincount(flat, minlength=60).tolist()
    collator = DataCollatorForMaskedLM(tokenizer, token_counts=counts, **presets.XLM_MASKING)
    assert "frequency_power=0.5" in repr(collator)


@pytest.mark.parametrize(
    ("counts", "options", "said"),
    [
        (
            None,
            {"frequency_power": 0.7},
            "token_counts is missing: .* needs a count .* of the 60 ids",
        ),
        (np.ones(59), {"frequency_power": 0.7}, r"token_counts is float64 of shape \(59,\)"),
        (np.full(60, -1), {"frequency_power": 0.7}, r"token_counts is int64 of shape \(60,\)"),
        (np.full(60, np.nan), {"frequency_power": 0.7}, "count of at least 0"),
        (["1"] * 60, {"frequency_power": 0.7}, "token_counts is <U1"),
        (np.ones(60), {}, "token_counts is for frequency_power: set it"),
        (None, {"frequency_power": 0.0}, "frequency_power=0.0 must be above 0 and at most 2"),
        (None, {"frequency_power": "0.5"}, "frequency_power='0.5' must be above 0"),
        (None, {"frequency_power": 0.5, "unit": "word"}, "needs unit='token'"),
        (None, {"frequency_power": 0.5, "units": {"word": 1.0}}, "needs unit='token'"),
        (None, {"frequency_power": 0.5, "num_masked": "bernoulli"}, "num_masked='rounded' or 'nearest'"),
        (None, {"frequency_power": 0.5, "mask_special_tokens": True}, "no mask_special_tokens"),
    ],
)
def test_what_is_missing_or_excludes_it_is_refused(tokenizer, counts, options, said):
    with pytest.raises(ValueError, match=said):
        DataCollatorForMaskedLM(tokenizer, token_counts=counts, **options)
