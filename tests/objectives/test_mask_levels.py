"""Units longer than words, drawn for each example, and ERNIE's law beside what its code did."""

import numpy as np
import pytest

from hf_encoders import DataCollatorForMaskedLM
from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.randomness import example_keys
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.objectives import presets
from hf_encoders.objectives.batches import IGNORED
from hf_encoders.objectives.masker import TokenMasker
from hf_encoders.objectives.masking import Masking


CLS, SEP, MASK = 1, 2, 4
WORD, PHRASE, ENTITY = UnitStart.WORD, UnitStart.PHRASE, UnitStart.ENTITY
ALL = WORD | PHRASE | ENTITY
# Three words, of which the last two are a phrase; a name of two words; a word.
BITS = [ALL, 0, ALL, WORD | ENTITY, ALL, WORD | PHRASE, ALL]
UNITS = {
    "token": [[0], [1], [2], [3], [4], [5], [6]],
    "word": [[0, 1], [2], [3], [4], [5], [6]],
    "phrase": [[0, 1], [2, 3], [4], [5], [6]],
    "entity": [[0, 1], [2], [3], [4, 5], [6]],
}


def one_text(number):
    """The same text `number` times between [CLS] and [SEP], its bits, and keys."""
    ids = np.tile([CLS, *range(10, 17), SEP], number)
    return (
        ids,
        np.full(number, 9),
        example_keys(0, 0, np.arange(number)),
        np.tile([1, *BITS, 1], number).astype(np.uint8),
    )


def chosen_sets(masker, number=400):
    ids, lengths, keys, starts = one_text(number)
    labels = masker(ids, lengths, keys, starts).labels.reshape(number, 9)[:, 1:-1]
    return [tuple(np.flatnonzero(row != IGNORED).tolist()) for row in labels]


@pytest.mark.parametrize("unit", UNITS)
def test_units_of_each_level(tokenizer, unit):
    """With a number below every unit's length, each example has at most one unit; every unit comes."""
    found = set(chosen_sets(TokenMasker(tokenizer, unit=unit, num_masked="nearest", mask_probability=1e-6)))
    assert found - {()} == {tuple(one) for one in UNITS[unit]}


def test_the_level_is_drawn_for_each_example(tokenizer):
    """[0], [2, 3], and [4, 5] tell the levels apart; the shares within five standard errors of 4,000 draws."""
    units = {"token": 0.5, "phrase": 0.2, "entity": 0.3}
    draws = chosen_sets(TokenMasker(tokenizer, units=units, num_masked="bernoulli", mask_probability=0.5), 4000)
    of_level = {
        "token": [(0 in row) != (1 in row) for row in draws],
        "phrase": [(2 in row) != (3 in row) for row in draws],
        "entity": [(4 in row) != (5 in row) for row in draws],
    }
    # Two tokens of one unit are apart in half of the examples whose level divides them.
    expected = {"token": 0.5 / 2, "phrase": (0.5 + 0.3) / 2, "entity": (0.5 + 0.2) / 2}
    for level, is_divided in of_level.items():
        assert abs(np.mean(is_divided) - expected[level]) < 5 * np.sqrt(0.25 / 4000)


def test_one_level_of_a_mixture_is_that_unit(tokenizer):
    for unit in ("word", "phrase", "entity"):
        assert chosen_sets(TokenMasker(tokenizer, units={unit: 1.0, "token": 0.0})) == chosen_sets(
            TokenMasker(tokenizer, unit=unit)
        )


def test_masks_do_not_depend_on_the_batch_and_a_lower_rate_takes_the_first(tokenizer):
    masker = TokenMasker(tokenizer, units={"token": 0.5, "entity": 0.5}, num_masked="bernoulli")
    ids, lengths, keys, starts = one_text(20)
    together = masker(ids, lengths, keys, starts)
    alone = masker(ids[45:54], lengths[:1], keys[5:6], starts[45:54])
    assert np.array_equal(together.ids[45:54], alone.ids) and np.array_equal(together.labels[45:54], alone.labels)
    more, fewer = (set(masker(ids, lengths, keys, starts, rate).positions.tolist()) for rate in (0.5, 0.2))
    assert fewer < more


def test_a_corpus_without_the_level_is_refused(tokenizer):
    ids, lengths, keys, starts = one_text(3)
    for unit, option in (("phrase", "--phrases"), ("entity", "--lexicon FILE")):
        said = f"unit='{unit}': .* prepare it with `hf-encoders corpus {option}`"
        for masker in (TokenMasker(tokenizer, unit=unit), TokenMasker(tokenizer, units={unit: 0.5, "word": 0.5})):
            for column in (None, starts & WORD):
                with pytest.raises(ValueError, match=said):
                    masker(ids, lengths, keys, column)


def test_an_example_without_ordinary_tokens_has_no_unit_to_miss(tokenizer):
    masked = TokenMasker(tokenizer, unit="entity")(np.array([CLS, SEP]), np.array([2]), example_keys(0, 0, [0]))
    assert masked.ids.tolist() == [CLS, SEP]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"units": {"token": 0.5, "phrases": 0.5}}, "must be probabilities of token, word, phrase, entity"),
        ({"units": {"token": 0.5, "word": 0.4}}, "with a sum of 1"),
        ({"units": {"token": 1.5, "word": -0.5}}, "must be probabilities"),
        ({"units": {}}, "must be probabilities"),
        ({"units": ["token"]}, "must be probabilities"),
        ({"units": {"token": "1"}}, "must be probabilities"),
        ({"units": {"word": 1.0}, "unit": "word"}, "unit='word' and units=.*: leave one of them out"),
        ({"units": {"word": 1.0}, "num_masked": "bernoulli", "max_predictions": 5}, "count words: leave one"),
    ],
)
def test_wrong_units_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Masking(**options)


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
    begin = offsets_of(lengths)
    ids[begin[:-1]], ids[begin[1:] - 1], ids[(begin[:-1] + begin[1:]) // 2] = CLS, SEP, SEP
    return ids, lengths, example_keys(0, 0, np.arange(number)), np.concatenate(starts)


@pytest.mark.parametrize("unit", ERNIE)
def test_ernie_law(make_tokenizer, unit):
    """4,000 samples, 380,000 tokens: the share within .002, its deviation within .003, kinds within .01."""
    share, deviation = ERNIE[unit]
    ids, lengths, keys, starts = ernie_samples(4000)
    masked = TokenMasker(make_tokenizer(1000), unit=unit, **presets.ERNIE_MASKING)(ids, lengths, keys, starts)
    predicted = masked.labels != IGNORED
    assert not predicted[ids < 5].any()
    assert predicted.mean() == pytest.approx(share, abs=0.002)
    per_sample = np.diff(offsets_of(predicted)[offsets_of(lengths)]) / lengths
    assert per_sample.std() == pytest.approx(deviation, abs=0.003)
    # Kinds of the first and of later tokens of a unit, in samples of the corpus's units: each on its own.
    is_later = starts[masked.positions] == 0
    new, originals = masked.ids[masked.positions], masked.originals
    for which in [~is_later, is_later]:
        kinds = (new[which] == MASK).mean(), (new[which] == originals[which]).mean()
        assert kinds == pytest.approx((0.8, 0.1), abs=0.01)
    if unit == "entity":
        is_bound = (starts > 0) | (ids < 5) | (np.roll(ids, 1) < 5)
        parts = np.split(predicted, np.flatnonzero(is_bound)[1:])
        assert all(part.all() == part.any() for part in parts)
        # What becomes of a unit's later token does not depend on its first: the mask token in 80 % after it too.
        second = np.flatnonzero(is_later & (np.roll(masked.positions, 1) == masked.positions - 1))
        after_mask = second[new[second - 1] == MASK]
        assert (new[after_mask] == MASK).mean() == pytest.approx(0.8, abs=0.02)


def test_presets_reach_the_collator(tokenizer):
    assert "num_masked='bernoulli'" in repr(DataCollatorForMaskedLM(tokenizer, **presets.ERNIE_MASKING))


@pytest.mark.parametrize("phases", ["word", [None], [["unit", "word"]]])
def test_options_of_phases_that_are_no_options(tokenizer, phases):
    with pytest.raises(ValueError, match="phase_masking=.* must be the options of each phase"):
        DataCollatorForMaskedLM(tokenizer, phase_masking=phases)
