import pickle

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hf_encoders.corpus.randomness import example_keys
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.objectives.batches import IGNORED
from hf_encoders.objectives.masker import TokenMasker
from hf_encoders.objectives.masking import Masking


MASK, CLS, SEP, UNKNOWN = 4, 1, 2, 3


class EveryThird:
    """Words of three tokens: what stands where in the text does not matter, the id does."""

    def __init__(self, tokenizer):
        pass

    def __call__(self, ids, begins_text):
        return (ids % 3 == 0) | begins_text


@pytest.fixture
def tokenizer(make_tokenizer):
    return make_tokenizer(1000)


def batch(lengths, epoch=0, seed=0):
    ids = np.random.default_rng(0).integers(5, 1000, sum(lengths))
    for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
        ids[start], ids[start + length - 1] = CLS, SEP
    return ids, np.array(lengths), example_keys(seed, epoch, np.arange(len(lengths)))


def texts(words, lengths):
    """Rows of [CLS] ... [SEP], in which word w has tokens 3w, 3w + 1 and so on, as many as `lengths` says."""
    tokens = [3 * w + i for w, length in zip(words, lengths, strict=True) for i in range(length)]
    return np.array([CLS, *tokens, SEP])


def test_labels_are_the_original_ids_and_the_rest_stays(tokenizer):
    ids, lengths, keys = batch([9, 30, 4, 128])
    masked = TokenMasker(tokenizer)(ids, lengths, keys)
    predicted = masked.labels != IGNORED
    assert np.array_equal(masked.labels[predicted], ids[predicted])
    assert np.array_equal(masked.ids[~predicted], ids[~predicted])
    assert not np.isin(ids[predicted], [0, CLS, SEP, MASK]).any()


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "span"])
def test_every_example_predicts_its_share_rounded_up_or_down_and_at_least_one_token(tokenizer, unit):
    lengths = [3, 4, 9, 42, 102, 128] * 50
    ids, lengths, keys = batch(lengths)
    labels = TokenMasker(tokenizer, unit=unit)(ids, lengths, keys).labels  # a word is a token here
    for row, length in zip(np.split(labels, np.cumsum(lengths)[:-1]), lengths, strict=True):
        share = (length - 2) * 0.15
        assert max(1, np.floor(share)) <= (row != IGNORED).sum() <= max(1, np.ceil(share))


def test_shares_of_masked_random_and_kept_tokens(tokenizer):
    """About 60,000 predictions; each share within five standard errors."""
    ids, lengths, keys = batch([402] * 1000)
    masked = TokenMasker(tokenizer)(ids, lengths, keys)
    predicted = masked.labels != IGNORED
    n = predicted.sum()
    assert abs(n / (400 * 1000) - 0.15) < 5 * np.sqrt(0.25 / 1000) / 400
    is_mask = (masked.ids == MASK)[predicted].mean()
    kept = (masked.ids == ids)[predicted].mean()
    for share, expected in ((is_mask, 0.8), (kept, 0.1 + 0.1 / 996), (1 - is_mask - kept, 0.1)):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n)
    # Every position is as likely as any other, and so is every pair of neighbours.
    grid = predicted.reshape(1000, 402)[:, 1:-1]
    assert abs(grid.sum(axis=0) - 150).max() < 5 * np.sqrt(1000 * 0.15 * 0.85)
    both = (grid[:, 1:] & grid[:, :-1]).mean()
    assert abs(both - 60 / 400 * 59 / 399) < 5 * np.sqrt(0.0222 / (399 * 1000))


def test_bernoulli_counts_vary_as_coins_do(tokenizer):
    ids, lengths, keys = batch([42] * 4000)
    counts = TokenMasker(tokenizer, num_masked="bernoulli", at_least_one=False)(ids, lengths, keys).labels != IGNORED
    counts = counts.reshape(4000, 42).sum(axis=1)
    assert abs(counts.mean() - 6) < 5 * np.sqrt(40 * 0.15 * 0.85 / 4000)
    assert abs(counts.var() - 40 * 0.15 * 0.85) < 0.6
    least = TokenMasker(tokenizer, num_masked="bernoulli", mask_probability=1e-6)(ids, lengths, keys).labels != IGNORED
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
    ids, lengths, keys = batch([4, 30, 128])
    labels = TokenMasker(tokenizer, **options)(ids, lengths, keys).labels
    assert [(row != IGNORED).sum() for row in np.split(labels, np.cumsum(lengths)[:-1])] == counts


@pytest.mark.parametrize("unit", ["word", "ngram", "span"])
def test_words_are_masked_whole_up_to_the_number_to_mask(tokenizer, unit):
    random = np.random.default_rng(0)
    rows = [texts(random.integers(4, 300, 60), random.integers(1, 4, 60)) for _ in range(200)]
    lengths = np.array([len(row) for row in rows])
    ids, keys = np.concatenate(rows), example_keys(0, 0, np.arange(200))
    masker = TokenMasker(tokenizer, unit=unit, word_starts=EveryThird)
    predicted = masker(ids, lengths, keys).labels != IGNORED
    words = np.cumsum((ids % 3 == 0) | np.isin(ids, [CLS, SEP]))
    per_word = np.bincount(words, predicted) / np.bincount(words).clip(1)
    assert set(per_word) == {0.0, 1.0}
    counts = np.add.reduceat(predicted.astype(int), np.cumsum(lengths) - lengths)
    assert (counts <= np.ceil((lengths - 2) * 0.15) + (2 if unit == "word" else 0)).all()
    assert counts.sum() == pytest.approx(((lengths - 2) * 0.15).sum(), rel=0.02)


@pytest.mark.parametrize("unit", ["word", "phrase", "entity"])
@pytest.mark.parametrize(("length", "number"), [(28, 6000), (126, 1500)])
def test_words_of_all_lengths_are_masked_equally_often(tokenizer, unit, length, number):
    """Words of 1 to 8 tokens, within 4.5 standard errors; the original code passes over those that do not fit."""
    random = np.random.default_rng(0)
    ends = np.cumsum(random.integers(1, 9, (number, length)), axis=1)
    starts = np.zeros((number, length + 2), dtype=np.uint8)
    starts[:, [0, 1, -1]] = UnitStart[unit.upper()]
    rows, places = np.nonzero(ends < length)
    starts[rows, 1 + ends[rows, places]] = UnitStart[unit.upper()]
    ids = random.integers(5, 300, starts.shape)
    ids[:, 0], ids[:, -1] = CLS, SEP
    first = np.flatnonzero(starts)
    sizes = np.diff(np.append(first, starts.size))[ids.ravel()[first] > SEP]
    first = first[ids.ravel()[first] > SEP]
    arguments = ids.ravel(), np.full(number, length + 2), example_keys(0, 0, np.arange(number)), starts.ravel()
    is_chosen = TokenMasker(tokenizer, unit=unit)(*arguments).labels != IGNORED
    counts = np.bincount(sizes)[1:]
    shares = np.bincount(sizes, is_chosen[first])[1:] / counts
    assert np.all(abs(shares - 0.15) < 4.5 * np.sqrt(0.15 * 0.85 / counts))
    assert is_chosen.sum() / (number * length) == pytest.approx(0.15, abs=0.003)
    is_chosen = TokenMasker(tokenizer, unit=unit, pass_over_long_words=True)(*arguments).labels != IGNORED
    assert is_chosen[first[sizes == 1]].mean() > 0.16 and is_chosen[first[sizes == 8]].mean() < 0.13


def test_word_starts_of_the_corpus_come_before_the_rule(tokenizer):
    ids = np.array([CLS, *range(10, 30), SEP])
    starts = np.zeros(22, dtype=np.uint8)
    starts[[1, 6, 11, 16]] = 1  # words of five tokens
    masker = TokenMasker(tokenizer, unit="word", mask_probability=0.5, num_masked="nearest", word_starts=EveryThird)
    for key in example_keys(0, 0, np.arange(20)):
        labels = masker(ids, np.array([22]), np.array([key]), starts).labels[1:-1].reshape(4, 5)
        assert ((labels != IGNORED).all(axis=1) == (labels != IGNORED).any(axis=1)).all()
        assert (labels != IGNORED).sum() == 10


def test_units_end_at_separators_unless_asked(tokenizer):
    """Two words, [SEP] between them, second one beginning like the rest of a word."""
    ids = np.array([CLS, 9, 10, SEP, 11, 13, SEP])

    def together(**options):
        masker = TokenMasker(tokenizer, unit="word", mask_probability=0.5, word_starts=EveryThird, **options)
        found = set()
        for key in example_keys(0, 0, np.arange(50)):
            found.add(tuple(np.flatnonzero(masker(ids, np.array([7]), np.array([key])).labels != IGNORED).tolist()))
        return found

    assert together() == {(1, 2), (4, 5)}
    # One word of four tokens, and two to mask: passed over, or chosen with probability 1/2.
    assert together(units_cross_separators=True, pass_over_long_words=True) == {()}
    assert together(units_cross_separators=True) == {(), (1, 2, 4, 5)}
    trigrams = TokenMasker(
        tokenizer, unit="ngram", max_ngram=2, num_masked="nearest", mask_probability=0.5, units_cross_separators=True
    )
    ids = np.array([CLS, 9, SEP, 11, SEP] * 1)
    seen = {
        tuple(np.flatnonzero(trigrams(ids, np.array([5]), np.array([key])).labels != IGNORED).tolist())
        for key in example_keys(0, 0, np.arange(50))
    }
    assert seen == {(1,), (3,)}


@pytest.mark.parametrize(("unit", "mean"), [("ngram", 18 / 11), ("span", 3.8)])
def test_lengths_of_runs(tokenizer, unit, mean):
    """Rarely masked, so that runs do not touch: their lengths are those drawn."""
    ids, lengths, keys = batch([5002] * 400)
    masker = TokenMasker(tokenizer, unit=unit, mask_probability=0.01)
    predicted = masker(ids, lengths, keys).labels != IGNORED
    edges = np.diff(np.concatenate([[0], predicted.astype(int), [0]]))
    sizes = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
    expected = masker.masking.run_size_probabilities()
    shares = np.bincount(sizes, minlength=len(expected) + 1)[1 : len(expected) + 1] / len(sizes)
    assert abs(shares - expected).max() < 0.03
    assert abs(sizes.mean() - mean) < 0.05 * mean


def test_replacement_is_decided_once_a_unit_where_asked(tokenizer):
    random = np.random.default_rng(0)
    rows = [texts(random.integers(4, 300, 60), np.full(60, 3)) for _ in range(300)]
    lengths, ids = np.array([len(row) for row in rows]), np.concatenate(rows)
    keys = example_keys(0, 0, np.arange(300))

    def kinds(**options):
        masker = TokenMasker(tokenizer, unit="word", word_starts=EveryThird, num_masked="nearest", **options)
        masked = masker(ids, lengths, keys)
        places = np.sort(masked.positions).reshape(-1, 3)
        return np.where(masked.ids[places] == MASK, 0, np.where(masked.ids[places] == ids[places], 1, 2))

    by_word, by_token = kinds(replacement_per="unit"), kinds()
    assert (by_word == by_word[:, :1]).mean() > 0.99  # a random token may be the original one
    assert abs((by_token == 0).all(axis=1).mean() - 0.8**3) < 5 * np.sqrt(0.25 / len(by_token))
    for found in (by_word, by_token):
        assert abs((found == 0).mean() - 0.8) < 5 * np.sqrt(0.16 / len(found))


@pytest.mark.parametrize(
    ("random_tokens", "never", "sometimes"),
    [
        ("ordinary", [0, CLS, SEP, UNKNOWN, MASK], [5]),
        ("ordinary_and_mask", [0, CLS, SEP, UNKNOWN], [MASK]),
        ("any", [], [0, CLS, UNKNOWN]),
    ],
)
def test_random_tokens(make_tokenizer, random_tokens, never, sometimes):
    ids, lengths, keys = batch([402] * 500)
    ids = np.minimum(ids, 99)
    masker = TokenMasker(
        make_tokenizer(100), random_tokens=random_tokens, mask_replace_probability=0.0, random_replace_probability=1.0
    )
    masked = masker(ids, lengths, keys)
    replaced = masked.ids[masked.positions]
    assert not np.isin(replaced, never).any()
    assert np.isin(sometimes, replaced).all()
    assert len(np.unique(replaced)) == 100 - len(never)


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "span"])
def test_masks_do_not_depend_on_the_batch_but_on_the_epoch(tokenizer, unit):
    masker = TokenMasker(tokenizer, unit=unit, word_starts=EveryThird)
    ids, lengths, keys = batch([50, 60, 70])
    together = masker(ids, lengths, keys)
    alone = pickle.loads(pickle.dumps(masker))(ids[50:110], lengths[1:2], keys[1:2])
    assert np.array_equal(together.labels[50:110], alone.labels)
    assert np.array_equal(together.ids[50:110], alone.ids)
    assert not np.array_equal(together.labels, masker(*batch([50, 60, 70], epoch=1)).labels)


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
@pytest.mark.parametrize("ids", [[CLS, SEP], [0, 0, 0]])
def test_an_example_of_special_tokens_alone_predicts_nothing(tokenizer, ids, unit):
    masked = TokenMasker(tokenizer, unit=unit)(np.array(ids), np.array([len(ids)]), example_keys(0, 0, [0]))
    assert masked.ids.tolist() == ids and (masked.labels == IGNORED).all()


def test_ids_of_another_tokenizer_are_refused(tokenizer):
    for unit in ("token", "word"):
        with pytest.raises(ValueError, match="ids from 1 to 1000, but those of the tokenizer go from 0 to 999"):
            TokenMasker(tokenizer, unit=unit)(np.array([1, 1000]), np.array([2]), example_keys(0, 0, [0]))


def test_vocabularies_may_have_gaps():
    vocabulary = {name: i for i, name in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])}
    vocabulary |= {f"w{i}": i for i in range(100, 150)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")), pad_token="[PAD]",
        cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]",
    )  # fmt: skip
    masker = TokenMasker(tokenizer, mask_replace_probability=0.0, random_replace_probability=1.0, mask_probability=1.0)
    masked = masker(np.array([1, *range(100, 150), 2]), np.array([52]), example_keys(0, 0, [0]))
    assert len(masked.positions) == 50
    assert masked.ids[1:-1].min() >= 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_probability": 0.0}, "mask_probability=0.0"),
        ({"mask_probability": 1.5}, "mask_probability=1.5"),
        ({"mask_replace_probability": 0.95}, "sum of at most 1"),
        ({"mask_probability": "0.2"}, "mask_probability='0.2' must be"),
        ({"random_replace_probability": "0.1"}, "random_replace_probability='0.1' must be"),
        ({"similar_replace_probability": None}, "similar_replace_probability=None"),
        ({"span_end_probability": "0.2", "unit": "span"}, "span_end_probability='0.2'"),
        ({"unit": "sentence"}, "unit='sentence' is not known: use one of token, word, phrase, entity, ngram, span"),
        ({"num_masked": "exact"}, "num_masked='exact'"),
        ({"num_masked": "bernoulli", "unit": "span"}, "samples tokens or words"),
        ({"max_predictions": 0}, "max_predictions=0"),
        ({"max_predictions": 2.5}, "max_predictions=2.5"),
        ({"mask_replace_probability": float("nan")}, "sum of at most 1"),
        ({"max_predictions": 6, "unit": "word", "share_of_words": True}, "counts tokens"),
        ({"share_of_words": True}, "needs unit='word'"),
        ({"max_ngram": 2}, "needs unit='ngram'"),
        ({"max_span": 5, "unit": "ngram"}, "need unit='span'"),
        ({"span_end_probability": 1.0}, "span_end_probability=1.0"),
        ({"random_tokens": "all"}, "random_tokens='all'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Masking(**options)
