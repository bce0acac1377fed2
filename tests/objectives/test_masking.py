"""Masking of one example: shares and lengths of the papers' rules, over many examples."""

import pickle
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hf_encoders import DataCollatorForMaskedLM, Masking, SimilarWords, presets, token_counts
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.objectives import masking as masking_file
from hf_encoders.objectives.batch import IGNORED
from hf_encoders.objectives.masking import Masker, choose_in_window, describe_masking
from hf_encoders.objectives.randomness import Key
from hf_encoders.objectives.units import WordUnits
from tests.corpus.corpora import equal_documents
from tests.objectives.masked import CLS, MASK, SEP, UNKNOWN, EveryThird, mask, texts


@pytest.fixture
def tokenizer(make_tokenizer):
    return make_tokenizer(1000)


def rows(lengths):
    """Rows [CLS] ... [SEP] of random tokens, concatenated, and their lengths."""
    ids = np.random.default_rng(0).integers(5, 1000, sum(lengths))
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1] = CLS, SEP
    return ids, np.array(lengths)


def predicted_sets(masker, ids, number=50, word_starts=None, rate=None):
    """Positions that are predicted in a text, in so many examples of it."""
    return [
        tuple(np.flatnonzero(masker(np.array(ids), Key(0, 0, i), word_starts, rate)[1] != IGNORED).tolist())
        for i in range(number)
    ]


# --- plain tokens ---


def test_labels_are_the_original_ids_and_the_rest_stays(tokenizer):
    ids, lengths = rows([9, 30, 4, 128])
    masked = mask(Masker(tokenizer), ids, lengths)
    predicted = masked.predicted
    assert np.array_equal(masked.labels[predicted], ids[predicted])
    assert np.array_equal(masked.ids[~predicted], ids[~predicted])
    assert not np.isin(ids[predicted], [0, CLS, SEP, MASK]).any()


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "span"])
def test_every_example_predicts_its_share_rounded_up_or_down_and_at_least_one_token(tokenizer, unit):
    ids, lengths = rows([3, 4, 9, 42, 102, 128] * 50)
    masked = mask(Masker(tokenizer, unit=unit), ids, lengths)  # a word is a token here
    for row in np.split(masked.predicted, np.cumsum(lengths)[:-1]):
        share = (len(row) - 2) * 0.15
        assert max(1, np.floor(share)) <= row.sum() <= max(1, np.ceil(share))


def test_shares_of_masked_random_and_kept_tokens(tokenizer):
    """About 60,000 predictions; each share within five standard errors."""
    masked = mask(Masker(tokenizer), *rows([402] * 1000))
    n = masked.predicted.sum()
    assert abs(n / (400 * 1000) - 0.15) < 5 * np.sqrt(0.25 / 1000) / 400
    for share, expected in zip(masked.kinds, (0.8, 0.1 - 0.1 / 996, 0.1 + 0.1 / 996), strict=True):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n)
    # Every position is as likely as any other, and so is every pair of neighbours.
    grid = masked.predicted.reshape(1000, 402)[:, 1:-1]
    assert abs(grid.sum(axis=0) - 150).max() < 5 * np.sqrt(1000 * 0.15 * 0.85)
    both = (grid[:, 1:] & grid[:, :-1]).mean()
    assert abs(both - 60 / 400 * 59 / 399) < 5 * np.sqrt(0.0222 / (399 * 1000))


@pytest.mark.parametrize(("length", "number"), [(3, 1), (12, 12), (40, 6)])
def test_positions_are_sampled_uniformly_without_replacement(tokenizer, length, number):
    """Within five standard errors of 3,000 examples, of which every fourth token is special."""
    ids = np.where(np.arange(length) % 4 == 3, CLS, 9)
    available, examples = int((ids == 9).sum()), 3000
    number = min(number, available)
    masker = Masker(tokenizer, num_masked="nearest", mask_probability=number / available)
    predicted = mask(masker, np.tile(ids, examples), [length] * examples).predicted.reshape(examples, length)
    assert (predicted.sum(axis=1) == number).all() and not predicted[:, ids == CLS].any()
    share = number / available
    deviation = abs(predicted.sum(axis=0)[ids == 9] - examples * share).max()
    assert deviation <= 5 * np.sqrt(examples * share * (1 - share))


def test_one_token_of_each_window_of_six_is_predicted(tokenizer):
    """DeBERTa v3, `presets.DEBERTA_MASKING`: each of the six as likely, all masked, at most 80."""
    masker = Masker(tokenizer, **presets.DEBERTA_MASKING)
    ids = [CLS, *range(5, 505), SEP]  # 500 tokens that may be predicted, 84 windows
    found = np.array(predicted_sets(masker, ids, 600)) - 1
    assert found.shape == (600, 80)
    assert np.array_equal(found // 6, np.tile(np.arange(80), (600, 1)))
    shares = np.bincount((found % 6).ravel(), minlength=6) / found.size
    assert np.abs(shares - 1 / 6).max() < 6 * (5 / 36 / found.size) ** 0.5
    masked, labels = masker(np.array(ids), Key(0, 0, 1))
    assert set(masked[labels != IGNORED].tolist()) == {MASK}
    short = predicted_sets(masker, [CLS, *range(5, 13), SEP], 300)  # a window of six and one of two
    assert {len(each) for each in short} == {2} and {each[1] for each in short} == {7, 8}
    assert predicted_sets(masker, ids, 2, rate=0.5)[0][:2] in {(i, j) for i in (1, 2) for j in (3, 4)}
    for options, message in (
        ({"unit": "word"}, "num_masked='windows' chooses tokens.*leave unit"),
        ({"at_least_one": False}, "leave at_least_one out"),
        ({"mask_probability": 0.6}, "mask_probability=0.6 has windows of one token.*at most 0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            Masking(num_masked="windows", **options)


def test_bernoulli_counts_vary_as_coins_do(tokenizer):
    ids, lengths = rows([42] * 4000)
    counts = mask(Masker(tokenizer, num_masked="bernoulli", at_least_one=False), ids, lengths).predicted
    counts = counts.reshape(4000, 42).sum(axis=1)
    assert abs(counts.mean() - 6) < 5 * np.sqrt(40 * 0.15 * 0.85 / 4000)
    assert abs(counts.var() - 40 * 0.15 * 0.85) < 0.6
    least = mask(Masker(tokenizer, num_masked="bernoulli", mask_probability=1e-6), ids, lengths).predicted
    assert (least.reshape(4000, 42).sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"num_masked": "nearest"}, [1, 4, 19]),  # 0.3, 4.2 and 18.9 of 2, 28 and 126 tokens
        ({"num_masked": "nearest", "count_special_tokens": True}, [1, 4, 19]),  # 0.6, 4.5 (half to even) and 19.2
        ({"num_masked": "nearest", "max_predictions": 3}, [1, 3, 3]),
        ({"num_masked": "nearest", "at_least_one": False}, [0, 4, 19]),
        ({"num_masked": "nearest", "mask_probability": 0.5, "mask_special_tokens": True}, [2, 15, 64]),
    ],
)
def test_number_to_mask(tokenizer, options, counts):
    masked = mask(Masker(tokenizer, **options), *rows([4, 30, 128]))
    assert [row.sum() for row in np.split(masked.predicted, [4, 34])] == counts


@pytest.mark.parametrize(
    ("random_tokens", "never", "sometimes"),
    [
        ("ordinary", [0, CLS, SEP, UNKNOWN, MASK], [5]),
        ("ordinary_and_mask", [0, CLS, SEP, UNKNOWN], [MASK]),
        ("any", [], [0, CLS, UNKNOWN]),
    ],
)
def test_random_tokens(make_tokenizer, random_tokens, never, sometimes):
    ids, lengths = rows([402] * 500)
    options = {"random_tokens": random_tokens, "mask_replace_probability": 0.0, "random_replace_probability": 1.0}
    masked = mask(Masker(make_tokenizer(100), **options), np.minimum(ids, 99), lengths)
    replaced = masked.ids[masked.predicted]
    assert not np.isin(replaced, never).any() and np.isin(sometimes, replaced).all()
    assert len(np.unique(replaced)) == 100 - len(never)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unit": "word"},
        {"unit": "ngram"},
        {"frequency_power": 0.7},
        {"units": {"token": 0.5, "word": 0.5}, "num_masked": "bernoulli"},
    ],
    ids=str,
)
def test_masks_depend_on_the_key_alone_and_a_lower_rate_takes_the_first(tokenizer, options):
    counts = np.arange(1000) if "frequency_power" in options else None
    masker = Masker(tokenizer, counts, word_starts=EveryThird, **options)
    ids, lengths = rows([50, 60, 70])
    together = mask(masker, ids, lengths)
    alone = mask(pickle.loads(pickle.dumps(masker)), ids[50:110], lengths[1:2], first=1)
    assert np.array_equal(together.labels[50:110], alone.labels) and np.array_equal(together.ids[50:110], alone.ids)
    assert not np.array_equal(together.labels, mask(masker, ids, lengths, epoch=1).labels)
    if options.get("unit") != "ngram":
        more, fewer = (mask(masker, ids, lengths, rate=rate) for rate in (0.5, 0.2))
        assert not (fewer.predicted & ~more.predicted).any() and fewer.predicted.sum() < more.predicted.sum()
        assert np.array_equal(fewer.ids[fewer.predicted], more.ids[fewer.predicted])


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "entity"])
def test_an_example_of_special_tokens_alone_predicts_nothing(tokenizer, unit):
    masked = mask(Masker(tokenizer, unit=unit), np.array([CLS, SEP]), [2])
    assert masked.ids.tolist() == [CLS, SEP] and not masked.predicted.any()


def test_ids_of_another_tokenizer_are_refused(tokenizer):
    with pytest.raises(ValueError, match="input_ids: ids from 1 to 1000, .* 0 to 999: give"):
        Masker(tokenizer)(np.array([1, 1000]), Key(0, 0, 0))


def test_vocabularies_may_have_gaps():
    vocabulary = {name: i for i, name in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])}
    vocabulary |= {f"w{i}": i for i in range(100, 150)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")), pad_token="[PAD]",
        cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]",
    )  # fmt: skip
    masker = Masker(tokenizer, mask_replace_probability=0.0, random_replace_probability=1.0, mask_probability=1.0)
    masked = mask(masker, np.array([1, *range(100, 150), 2]), [52])
    assert masked.predicted.sum() == 50 and masked.ids[1:-1].min() >= 100


# --- words ---


@pytest.mark.parametrize("unit", ["word", "ngram", "span"])
def test_words_are_masked_whole_up_to_the_number_to_mask(tokenizer, unit):
    random = np.random.default_rng(0)
    found = [texts(random.integers(4, 300, 60), random.integers(1, 4, 60)) for _ in range(200)]
    ids, lengths = np.concatenate(found), np.array([len(row) for row in found])
    predicted = mask(Masker(tokenizer, unit=unit, word_starts=EveryThird), ids, lengths).predicted
    words = np.cumsum((ids % 3 == 0) | np.isin(ids, [CLS, SEP]))
    assert set(np.bincount(words, predicted) / np.bincount(words).clip(1)) == {0.0, 1.0}
    counts = np.add.reduceat(predicted.astype(int), np.cumsum(lengths) - lengths)
    assert (counts <= np.ceil((lengths - 2) * 0.15) + (2 if unit == "word" else 0)).all()
    assert counts.sum() == pytest.approx(((lengths - 2) * 0.15).sum(), rel=0.02)


@pytest.mark.parametrize(("unit", "length", "number"), [("word", 28, 6000), ("phrase", 126, 1500)])
def test_words_of_all_lengths_are_masked_equally_often(tokenizer, unit, length, number):
    """Words of 1 to 8 tokens, within 4.5 standard errors; the original code passes over those that do not fit."""
    random = np.random.default_rng(0)
    ends = np.cumsum(random.integers(1, 9, (number, length)), axis=1)
    starts = np.zeros((number, length + 2), dtype=np.uint8)
    starts[:, [0, 1, -1]] = UnitStart[unit.upper()]
    row, column = np.nonzero(ends < length)
    starts[row, 1 + ends[row, column]] = UnitStart[unit.upper()]
    ids = random.integers(5, 300, starts.shape)
    ids[:, 0], ids[:, -1] = CLS, SEP
    first = np.flatnonzero(starts)
    sizes = np.diff(np.append(first, starts.size))[ids.ravel()[first] > SEP]
    first = first[ids.ravel()[first] > SEP]
    arguments = ids.ravel(), np.full(number, length + 2), starts.ravel()
    is_chosen = mask(Masker(tokenizer, unit=unit), *arguments).predicted
    counts = np.bincount(sizes)[1:]
    shares = np.bincount(sizes, is_chosen[first])[1:] / counts
    assert np.all(abs(shares - 0.15) < 4.5 * np.sqrt(0.15 * 0.85 / counts))
    assert is_chosen.sum() / (number * length) == pytest.approx(0.15, abs=0.003)
    is_chosen = mask(Masker(tokenizer, unit=unit, pass_over_long_words=True), *arguments).predicted
    assert is_chosen[first[sizes == 1]].mean() > 0.16 and is_chosen[first[sizes == 8]].mean() < 0.13


@pytest.mark.parametrize("sizes", [(1, 9), (1, 2, 3, 8), (4, 4, 4), (1, 5, 2, 2, 6)])
def test_every_unit_is_as_likely_whatever_its_length(sizes):
    """All orders and all beginnings of the window, counted: exactly limit / tokens, so the mean total is the limit."""
    lengths, orders = np.array(sizes), [np.array(order) for order in permutations(range(len(sizes)))]
    for limit in range(sum(sizes) + 1):
        chosen = [choose_in_window(order, lengths, limit, start) for order in orders for start in range(sum(sizes))]
        times = np.bincount(np.concatenate(chosen), minlength=len(sizes))
        assert times.tolist() == [limit * len(orders)] * len(sizes)


def test_units_end_at_separators_unless_asked(tokenizer):
    """Two words, [SEP] between them, the second one beginning like the rest of a word."""

    def together(ids=(CLS, 9, 10, SEP, 11, 13, SEP), **options):
        options = {"unit": "word", "word_starts": EveryThird} | options
        return set(predicted_sets(Masker(tokenizer, mask_probability=0.5, **options), ids))

    assert together() == {(1, 2), (4, 5)}
    # One word of four tokens, and two to mask: passed over, or chosen with probability 1/2.
    assert together(units_cross_separators=True, pass_over_long_words=True) == {()}
    assert together(units_cross_separators=True) == {(), (1, 2, 4, 5)}
    bigrams = {"unit": "ngram", "max_ngram": 2, "num_masked": "nearest", "units_cross_separators": True}
    assert together((CLS, 9, SEP, 12, SEP), **bigrams) == {(1,), (3,)}


# --- n-grams and spans ---


@pytest.mark.parametrize(
    ("options", "mean"),
    [
        ({"unit": "ngram"}, 18 / 11),
        ({"unit": "span"}, 3.8),
        ({"unit": "ngram", "ngram_probabilities": presets.MACBERT_MASKING["ngram_probabilities"]}, 2.0),
    ],
    ids=["ngram", "span", "macbert"],
)
def test_lengths_of_runs(tokenizer, options, mean):
    """Rarely masked, so that runs do not touch: their lengths are those drawn."""
    masker = Masker(tokenizer, mask_probability=0.01, **options)
    edges = np.diff(np.concatenate([[0], mask(masker, *rows([20002] * 100)).predicted.astype(int), [0]]))
    sizes = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
    expected = masker.masking.run_size_probabilities()
    shares = np.bincount(sizes, minlength=len(expected) + 1)[1 : len(expected) + 1] / len(sizes)
    assert abs(shares - expected).max() < (0.02 if "ngram_probabilities" in options else 0.03)
    assert abs(sizes.mean() - mean) < 0.05 * mean


def test_replacement_is_decided_once_a_unit_where_asked(tokenizer):
    random = np.random.default_rng(0)
    ids = np.concatenate([texts(random.integers(4, 300, 60), np.full(60, 3)) for _ in range(300)])

    def kinds(**options):
        masker = Masker(tokenizer, unit="word", word_starts=EveryThird, num_masked="nearest", **options)
        masked = mask(masker, ids, [182] * 300)
        new, old = (values[masked.predicted].reshape(-1, 3) for values in (masked.ids, ids))
        return np.where(new == MASK, 0, np.where(new == old, 1, 2))

    by_word, by_token = kinds(replacement_per="unit"), kinds()
    assert (by_word == by_word[:, :1]).mean() > 0.99  # a random token may be the original one
    assert abs((by_token == 0).all(axis=1).mean() - 0.8**3) < 5 * np.sqrt(0.25 / len(by_token))
    for kinds_of_words in (by_word, by_token):
        assert abs((kinds_of_words == 0).mean() - 0.8) < 5 * np.sqrt(0.16 / len(kinds_of_words))


# --- phrases, entities, and mixtures of units ---

WORD, PHRASE, ENTITY = UnitStart.WORD, UnitStart.PHRASE, UnitStart.ENTITY
ALL = WORD | PHRASE | ENTITY
# Three words, of which the last two are a phrase; a name of two words; a word.
BITS = np.array([1, ALL, 0, ALL, WORD | ENTITY, ALL, WORD | PHRASE, ALL, 1], dtype=np.uint8)
TEXT = [CLS, *range(10, 17), SEP]
UNITS = {
    "token": [(1,), (2,), (3,), (4,), (5,), (6,), (7,)],
    "word": [(1, 2), (3,), (4,), (5,), (6,), (7,)],
    "phrase": [(1, 2), (3, 4), (5,), (6,), (7,)],
    "entity": [(1, 2), (3,), (4,), (5, 6), (7,)],
}


@pytest.mark.parametrize("unit", UNITS)
def test_units_of_each_level(tokenizer, unit):
    """With a number below every unit's length, each example has at most one unit; every unit comes."""
    masker = Masker(tokenizer, unit=unit, num_masked="nearest", mask_probability=1e-6)
    assert set(predicted_sets(masker, TEXT, 400, BITS)) - {()} == set(UNITS[unit])


def test_the_unit_is_drawn_for_each_example(tokenizer):
    """Tokens 1, 3 and 5 tell the units apart; the shares within five standard errors of 4,000 draws."""
    units = {"token": 0.5, "phrase": 0.2, "entity": 0.3}
    draws = predicted_sets(
        Masker(tokenizer, units=units, num_masked="bernoulli", mask_probability=0.5), TEXT, 4000, BITS
    )
    # Two tokens of one unit are apart in half of the examples whose unit divides them.
    for first, expected in ((1, 0.5 / 2), (3, (0.5 + 0.3) / 2), (5, (0.5 + 0.2) / 2)):
        is_divided = [(first in chosen) != (first + 1 in chosen) for chosen in draws]
        assert abs(np.mean(is_divided) - expected) < 5 * np.sqrt(0.25 / 4000)


def test_a_corpus_without_the_unit_is_refused(tokenizer):
    mixed = Masker(tokenizer, units={"entity": 0.5, "word": 0.5})
    for masker, unit, option in (
        (Masker(tokenizer, unit="phrase"), "phrase", "--phrases"),
        (mixed, "entity", "--lexicon"),
    ):
        for column in (None, np.full(35, WORD, dtype=np.uint8)):
            with pytest.raises(ValueError, match=f"unit='{unit}': .* `hf-encoders corpus {option}"):
                predicted_sets(masker, [CLS, *[10] * 33, SEP], 20, column)


def test_an_example_may_be_a_part_of_one_unit(tokenizer):
    """The end of a long sentence of Chinese characters, of which the last five are an entity."""
    within = np.array([1, WORD | PHRASE, WORD | PHRASE, WORD | PHRASE, 1], dtype=np.uint8)
    masker = Masker(tokenizer, unit="entity", mask_probability=1.0)
    assert predicted_sets(masker, [CLS, 10, 11, 12, SEP], 3, within) == [(1, 2, 3)] * 3


# Units of 1, 2, 3, 4 tokens in the samples of the original's demonstration, of 95.33 tokens on average; what `mask` of
# its `batching.py` made of 10,000 of them: share predicted of all tokens, and its standard deviation over the samples.
UNIT_LENGTHS = (0.5915, 0.3986, 0.0087, 0.0012)
ERNIE = {"entity": (0.1449, 0.0492), "token": (0.1450, 0.0392)}


def ernie_samples(number):
    random = np.random.default_rng(0)
    lengths = np.clip(random.normal(95.3, 26, number).round().astype(int), 10, 131)
    ids, starts = random.integers(5, 1000, lengths.sum()), []
    for length in lengths.tolist():
        units = random.choice([1, 2, 3, 4], length, p=UNIT_LENGTHS)
        row = np.zeros(length + 4, dtype=np.uint8)
        row[1 + np.cumsum([0, *units])[: np.searchsorted(np.cumsum(units), length - 1)]] = ALL
        starts.append(row[:length])
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1], ids[(2 * ends - lengths) // 2] = CLS, SEP, SEP
    return ids, lengths, np.concatenate(starts)


@pytest.mark.parametrize("unit", ERNIE)
def test_ernie_law(tokenizer, unit):
    """4,000 samples, 380,000 tokens: the share within .002, its deviation within .003, kinds within .01."""
    share, deviation = ERNIE[unit]
    ids, lengths, starts = ernie_samples(4000)
    masked = mask(Masker(tokenizer, unit=unit, **presets.ERNIE_MASKING), ids, lengths, starts)
    predicted = masked.predicted
    assert not predicted[ids < 5].any()
    assert predicted.mean() == pytest.approx(share, abs=0.002)
    per_sample = np.add.reduceat(predicted, np.cumsum(lengths) - lengths, dtype=int) / lengths
    assert per_sample.std() == pytest.approx(deviation, abs=0.003)
    # Kinds of the first and of later tokens of a unit, in samples of the corpus's units: each on its own.
    positions = np.flatnonzero(predicted)
    is_later, new = starts[positions] == 0, masked.ids[positions]
    for which in [~is_later, is_later]:
        kinds = (new[which] == MASK).mean(), (new[which] == ids[positions[which]]).mean()
        assert kinds == pytest.approx((0.8, 0.1), abs=0.01)
    if unit == "entity":
        is_bound = (starts > 0) | (ids < 5) | (np.roll(ids, 1) < 5)
        parts = np.split(predicted, np.flatnonzero(is_bound)[1:])
        assert all(part.all() == part.any() for part in parts)
        # What becomes of a unit's later token does not depend on its first: the mask token in 80 % after it too.
        second = np.flatnonzero(is_later & (np.roll(positions, 1) == positions - 1))
        after_mask = second[new[second - 1] == MASK]
        assert (new[after_mask] == MASK).mean() == pytest.approx(0.8, abs=0.02)


# --- tokens by their frequency: `prepare_batch_mlm` of DistilBERT and `mask_out` of XLM ---

FIRST = 5  # of the ordinary ids
# Share of the tokens predicted, by rank of their frequency: 1-10, 11-30, 31-100, 101-300, 301-1000 (of 1,000 types,
# Zipf's law, rows of 12-128 tokens, and of 256 with a separator behind every sentence of 22.5), measured on the
# original functions, which sample over a batch; here each example has its own number.
RANKS = (10, 30, 100, 300, 1000)
DISTILBERT = {
    0.5: (0.0378, 0.0922, 0.1548, 0.2569, 0.4080),
    0.7: (0.0185, 0.0627, 0.1319, 0.2662, 0.4958),
    1.0: (0.0059, 0.0311, 0.0945, 0.2595, 0.5984),
}
XLM = {0.5: (0.0388, 0.0926, 0.1586, 0.2618, 0.4178), 0.7: (0.0190, 0.0634, 0.1359, 0.2733, 0.5044)}


def zipf_rows(lengths, sentence_ends=0.0):
    """Rows of [CLS] ... [SEP] of 1,000 types by Zipf's law, id 5 the most frequent, and counts of the ids.

    `sentence_ends` is the share of further [SEP] in them.
    """
    lengths, random = np.asarray(lengths), np.random.default_rng(0)
    weights = 1 / np.arange(1, 1001)
    ids = FIRST + random.choice(1000, lengths.sum(), p=weights / weights.sum())
    ids[random.random(len(ids)) < sentence_ends] = SEP
    counts = np.bincount(ids, minlength=FIRST + 1000)
    counts[:FIRST] = 0
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1] = CLS, SEP
    return ids, lengths, counts


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


@pytest.mark.parametrize("number", [1, 3])
def test_tokens_are_drawn_by_the_weights_of_those_left(make_tokenizer, number):
    """20,000 examples of five tokens; each share within five standard errors of the exact one."""
    counts, n = np.array([1] * 5 + [1, 1, 2, 5, 20]), 20000
    options = {"frequency_power": 1.0, "num_masked": "nearest", "mask_probability": number / 5}
    masker = Masker(make_tokenizer(10), counts, **options)
    predicted = mask(masker, np.tile(np.arange(5, 10), n), [5] * n).predicted.reshape(n, 5)
    assert (predicted.sum(axis=1) == number).all()
    assert abs(predicted.mean(axis=0) - exact_probabilities(1 / counts[5:], number)).max() < 5 * np.sqrt(0.25 / n)


@pytest.mark.parametrize(
    ("measured", "lengths", "sentence_ends"),
    [(DISTILBERT, np.random.default_rng(0).integers(12, 129, 9000), 0), (XLM, np.full(1000, 256), 1 / 23.5)],
    ids=["distilbert", "xlm"],
)
def test_rare_tokens_are_predicted_as_often_as_by_the_original_code(make_tokenizer, measured, lengths, sentence_ends):
    """Within 5 % of the tables: a number for each example flattens the rates a little in short ones."""
    ids, lengths, counts = zipf_rows(lengths, sentence_ends)
    rank, is_text = np.searchsorted(RANKS, ids - FIRST, "right"), ids >= FIRST
    for power, expected in measured.items():
        options = {**presets.DISTILBERT_MASKING, "frequency_power": power}
        masked = mask(Masker(make_tokenizer(1005), counts, **options), ids, lengths)
        shares = [masked.predicted[is_text & (rank == i)].mean() for i in range(len(RANKS))]
        assert shares == pytest.approx(expected, rel=0.05)
        assert masked.predicted.mean() == pytest.approx(0.15, abs=0.002)
        assert not masked.predicted[~is_text].any()
        per_row = np.add.reduceat(masked.predicted, np.cumsum(lengths) - lengths, dtype=int)
        assert (abs(per_row - 0.15 * lengths) < 1).all()  # of each example, specials counted
        n = masked.predicted.sum()
        for share, usual in zip(masked.kinds[[0, 2]], (0.8, 0.1), strict=True):
            assert abs(share - usual) < 5 * np.sqrt(usual * (1 - usual) / n) + 0.1 / 1005


def test_counts_of_a_corpus_reach_the_collator(make_tokenizer):
    documents = equal_documents(7)
    counts = token_counts(documents, 60)
    flat = np.concatenate([sentence for document in documents["input_ids"] for sentence in document])
    assert counts.tolist() == np.bincount(flat, minlength=60).tolist()
    collator = DataCollatorForMaskedLM(make_tokenizer(60), token_counts=counts, **presets.XLM_MASKING)
    assert "frequency_power=0.5" in repr(collator)


# --- similar words: MacBERT ---

SIMILAR_ONLY = {"similar_replace_probability": 1.0, "random_replace_probability": 0.0}


class OneOrTwo:
    """Words of one token below id 500, and of two tokens above: an even id, and the odd one that follows it."""

    def __init__(self, tokenizer):
        pass

    def __call__(self, ids, begins_text):
        return (ids < 500) | (ids % 2 == 0) | begins_text


@pytest.fixture
def table(tokenizer):
    """Words 6-399 and 500-899 stand for those that are 100 further (modulo), words 400-499 and 900-999 for none."""
    singles = {(i,): [(6 + (i + 94) % 394,), (6 + (i + 194) % 394,)] for i in range(6, 400)}
    pairs = {(i, i + 1): [(500 + (i - 400) % 400, 501 + (i - 400) % 400)] for i in range(500, 900, 2)}
    return SimilarWords.of({**singles, **pairs}, tokenizer)


def rows_of_words(number, words=100):
    """Rows of words of one and two tokens, half each, most with similar ones."""
    random, found = np.random.default_rng(0), []
    for _ in range(number):
        singles, pairs = random.integers(6, 500, words), 2 * random.integers(250, 500, words)
        is_single = random.random(words) < 0.5
        row = [[singles[i]] if is_single[i] else [pairs[i], pairs[i] + 1] for i in range(words)]
        found.append(np.array([CLS, *(token for word in row for token in word), SEP]))
    return np.concatenate(found), np.array([len(row) for row in found])


def words_of(ids):
    """First token of each word, and its number of tokens."""
    starts = np.flatnonzero((ids > 4) & ((ids < 500) | (ids % 2 == 0)))
    return starts, np.where(ids[starts] < 500, 1, 2)


def macbert(tokenizer, table, **options):
    return Masker(tokenizer, similar_words=table, word_starts=OneOrTwo, **{**presets.MACBERT_MASKING, **options})


def test_a_word_becomes_one_of_its_similar_words(tokenizer, table):
    ids, lengths = rows_of_words(300)
    masked = mask(macbert(tokenizer, table, **SIMILAR_ONLY), ids, lengths)
    starts, sizes = words_of(ids)
    is_chosen, seen, known = masked.predicted[starts], {}, set(table.words)
    for start, size in zip(starts[is_chosen].tolist(), sizes[is_chosen].tolist(), strict=True):
        assert masked.predicted[start : start + size].all()
        word, new = (tuple(values[start : start + size].tolist()) for values in (ids, masked.ids))
        similar = {tuple(other.tolist()) for other in table.similar(word)}
        assert new in (similar or known)  # a random word of as many tokens, where there is none
        seen.setdefault(word, set()).add(new)
    assert max(len(new) for word, new in seen.items() if len(word) == 1 and word[0] < 400) == 2
    assert np.array_equal(masked.ids[~masked.predicted], ids[~masked.predicted])


def test_macbert_law(tokenizer, table):
    """No [MASK]; 15 % of the tokens; kinds per word .80/.10/.10, within five standard errors of 9,000 words."""
    ids, lengths = rows_of_words(600)
    masked = mask(macbert(tokenizer, table), ids, lengths)
    assert not (masked.ids == MASK).any()
    assert masked.predicted.sum() / (ids > 4).sum() == pytest.approx(0.15, abs=0.001)
    starts, sizes = words_of(ids)
    chosen, sizes = starts[masked.predicted[starts]], sizes[masked.predicted[starts]]
    assert masked.predicted[chosen + sizes - 1].all()
    same = masked.ids[chosen] == ids[chosen]
    first_tokens = {word: {int(other[0]) for other in table.similar(word)} for word in table.words}
    is_similar = [
        masked.ids[start] in similar
        for start, size in zip(chosen.tolist(), sizes.tolist(), strict=True)
        if (similar := first_tokens.get(tuple(ids[start : start + size].tolist())))
    ]
    n = len(chosen)
    assert n > 8000
    # A random word of a few hundred is similar, or the same, now and then.
    for share, expected in ((same.mean(), 0.1), (np.mean(is_similar), 0.8)):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n) + 0.1 / 100


def test_each_word_of_an_ngram_draws_its_own_kind(tokenizer):
    """Of two words in a bigram, both are masked in .64 of the runs, and one in .32."""
    options = {"unit": "ngram", "ngram_probabilities": [0.0, 1.0], "replacement_per": "word", "word_starts": OneOrTwo}
    random, number = np.random.default_rng(0), 3000
    pairs = 2 * random.integers(250, 500, (number, 2))
    ids = np.stack([np.full(number, CLS), pairs[:, 0], pairs[:, 0] + 1, pairs[:, 1], pairs[:, 1] + 1], axis=1)
    masker = Masker(tokenizer, mask_probability=1.0, random_replace_probability=0.2, **options)
    masked = mask(masker, ids.ravel(), [5] * number).ids.reshape(number, 5)
    is_mask = masked[:, 1:].reshape(number, 2, 2) == MASK
    assert (is_mask[..., 0] == is_mask[..., 1]).all()  # decided for the word
    both = np.bincount(is_mask[..., 0].sum(axis=1), minlength=3) / number
    assert abs(both - [0.04, 0.32, 0.64]).max() < 5 * np.sqrt(0.25 / number)


def test_each_word_of_a_phrase_draws_its_own_kind_in_a_mixture_of_units(tokenizer):
    """Also where words are a unit of the mixture."""
    options = {"units": {"word": 0.5, "phrase": 0.5}, "replacement_per": "word", "mask_replace_probability": 0.5}
    starts = np.array([0, ALL, WORD], dtype=np.uint8)
    masker = Masker(tokenizer, mask_probability=1.0, random_replace_probability=0.0, **options)
    ids = mask(masker, np.tile([CLS, 9, 10], 1000), [3] * 1000, np.tile(starts, 1000)).ids.reshape(-1, 3)
    is_mask = ids[:, 1:] == MASK
    assert abs((is_mask[:, 0] != is_mask[:, 1]).mean() - 0.5) < 5 * np.sqrt(0.25 / 1000)


def test_words_as_long_as_none_of_the_table_become_random_tokens(tokenizer):
    ids, lengths = rows_of_words(300)
    masker = macbert(tokenizer, SimilarWords.of({(10,): [(11,)]}, tokenizer), **SIMILAR_ONLY)
    masked = mask(masker, ids, lengths)
    starts, sizes = words_of(ids)
    singles, pairs = (starts[(sizes == size) & masked.predicted[starts]] for size in (1, 2))
    assert set(masked.ids[singles].tolist()) == {10, 11}
    assert len(set(masked.ids[pairs].tolist())) > 800  # of 995 ordinary ones, in 2,162 draws
    assert masked.ids[pairs].min() > 4


def test_a_missing_or_another_tokenizers_table_is_refused(tokenizer, make_tokenizer, table):
    for similar_words, options, message in (
        (None, presets.MACBERT_MASKING, "similar_words is missing: .* `hf-encoders corpus --similar-words build`"),
        ("table", presets.MACBERT_MASKING, "similar_words is 'table': similar_replace_probability needs the table"),
        (SimilarWords.of({}, tokenizer), presets.MACBERT_MASKING, "similar_words is .*: .* needs the table"),
        (table, {}, "similar_words is for similar_replace_probability: set it"),
    ):
        with pytest.raises(ValueError, match=message):
            DataCollatorForMaskedLM(tokenizer, similar_words=similar_words, **options)
    with pytest.raises(ValueError, match="similar_words was made with another tokenizer"):
        DataCollatorForMaskedLM(make_tokenizer(1001), similar_words=table, **presets.MACBERT_MASKING)


# --- options ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_probability": 0.0}, "mask_probability=0.0"),
        ({"span_end_probability": "0.2", "unit": "span"}, "span_end_probability='0.2'"),
        ({"frequency_power": 3}, "frequency_power=3 must be above 0 and at most 2"),
        ({"mask_replace_probability": 0.95}, "sum of at most 1"),
        ({"similar_replace_probability": None}, "similar_replace_probability=None"),
        ({"similar_replace_probability": 0.8, "mask_replace_probability": 0.0}, "set replacement_per"),
        ({"replacement_per": "word", "units": {"token": 0.5, "word": 0.5}}, "units without 'token'"),
        ({"unit": "sentence"}, "unit='sentence' .*: use one of token, word, phrase, entity, ngram, span"),
        ({"units": {"token": 0.5, "phrases": 0.5}}, "probabilities of token, word, phrase, entity"),
        ({"units": {"token": 0.5, "word": 0.4}}, "with a sum of 1"),
        ({"units": ["token"]}, "must be probabilities"),
        ({"units": {"word": 1.0}, "unit": "word"}, "leave one of them out"),
        ({"units": {"word": 1.0}, "num_masked": "bernoulli", "max_predictions": 5}, "count words: leave one"),
        ({"num_masked": "bernoulli", "unit": "span"}, "samples tokens or words"),
        ({"max_predictions": 2.5}, "max_predictions=2.5"),
        ({"share_of_words": True}, "needs unit='word'"),
        ({"max_ngram": 2}, "max_ngram=2 needs unit='ngram'"),
        ({"ngram_probabilities": [0.5, 0.5]}, "ngram_probabilities=.* needs unit='ngram'"),
        ({"unit": "ngram", "ngram_probabilities": 0.5}, "with a sum of 1"),
        ({"unit": "ngram", "ngram_probabilities": [0.5, 0.5], "max_ngram": 2}, "leave max_ngram out"),
        ({"max_span": 5, "unit": "ngram"}, "need unit='span'"),
        ({"frequency_power": 0.5, "unit": "word"}, "needs unit='token'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Masking(**options)


def test_wrong_counts_are_refused(tokenizer):
    for counts, options, message in (
        (None, {"frequency_power": 0.7}, "token_counts is missing: .* needs a count .* of the 1000 ids"),
        (np.ones(59), {"frequency_power": 0.7}, r"token_counts is float64 of shape \(59,\)"),
        (np.full(1000, np.nan), {"frequency_power": 0.7}, "count of at least 0"),
        (np.ones(1000), {}, "token_counts is for frequency_power: set it"),
    ):
        with pytest.raises(ValueError, match=message):
            DataCollatorForMaskedLM(tokenizer, token_counts=counts, **options)


def every_second(ids, candidates, random):
    return candidates[random.permutation(len(candidates))[: len(candidates) // 2]]


def test_a_function_of_the_user_chooses_the_tokens(tokenizer):
    masker = Masker(tokenizer, choose=every_second, mask_replace_probability=1.0, random_replace_probability=0.0)
    ids = np.array([CLS, 10, 11, 12, 13, SEP])
    masked, labels = masker(ids, Key(seed=0, epoch=0, example=3))
    chosen = labels != -100
    assert chosen.sum() == 2 and not chosen[[0, -1]].any()  # never a special token
    assert (masked[chosen] == MASK).all() and (masked[~chosen] == ids[~chosen]).all()
    assert (masker(ids, Key(0, 0, 3))[1] == labels).all()  # a function of seed, epoch and example
    assert any((masker(ids, Key(0, epoch, 3))[1] != labels).any() for epoch in range(1, 9))


def test_a_choice_of_the_user_is_checked(tokenizer):
    for options, message in (
        ({"unit": "word"}, "unit has no effect"),
        ({"mask_probability": 0.3}, "mask_probability"),
    ):
        with pytest.raises(ValueError, match=message):
            Masking(choose=every_second, **options)
    masker = Masker(tokenizer, choose=lambda ids, candidates, random: [0])
    with pytest.raises(ValueError, match="choose returned .*candidates"):
        masker(np.array([CLS, 10, SEP]), Key(0, 0, 0))


def test_a_unit_of_your_own_is_a_row(monkeypatch):
    monkeypatch.setitem(masking_file.UNITS, "mine", WordUnits)
    assert Masking(unit="mine").levels == Masking(units={"mine": 1}).levels == {"mine": 1.0}


def test_the_card_has_no_path_of_an_option():
    """P6: of a file in another folder its name alone."""

    @dataclass(frozen=True)
    class WithFile(Masking):
        file: str | None = None

    words = describe_masking(WithFile(file="/home/me/client/words.txt"), (), None)
    assert words.endswith("; file=words.txt")
