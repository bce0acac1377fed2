"""Words replaced by similar ones, each word on its own, and MacBERT's law."""

import numpy as np
import pytest
import torch

from hf_encoders import DataCollatorForMaskedLM, SentenceBlocks
from hf_encoders.corpus.randomness import example_keys
from hf_encoders.corpus.similar_words import SimilarWords
from hf_encoders.objectives import presets
from hf_encoders.objectives.batches import IGNORED
from hf_encoders.objectives.masker import TokenMasker
from hf_encoders.objectives.masking import Masking
from tests.corpus.corpora import equal_documents


CLS, SEP, MASK = 1, 2, 4
SIMILAR_ONLY = {**presets.MACBERT_MASKING, "similar_replace_probability": 1.0, "random_replace_probability": 0.0}
PER_WORD = ("unit", "replacement_per", "mask_replace_probability")


class Pairs:
    """Words of one token below id 500, and of two tokens above: an even id, and the odd one that follows it."""

    def __init__(self, tokenizer):
        pass

    def __call__(self, ids, begins_text):
        return (ids < 500) | (ids % 2 == 0) | begins_text


@pytest.fixture
def tokenizer(make_tokenizer):
    return make_tokenizer(1000)


@pytest.fixture
def table(tokenizer):
    """Words 6-399 and 500-899 stand for those that are 100 further (modulo), words 400-499 and 900-999 for none."""
    singles = {(i,): [(6 + (i + 94) % 394,), (6 + (i + 194) % 394,)] for i in range(6, 400)}
    pairs = {(i, i + 1): [(500 + (i - 400) % 400, 501 + (i - 400) % 400)] for i in range(500, 900, 2)}
    return SimilarWords.of({**singles, **pairs}, tokenizer)


def batch(number=300, words=100, seed=0):
    """Rows of words of one and two tokens, half each, most with similar ones."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        singles, pairs = random.integers(6, 500, words), 2 * random.integers(250, 500, words)
        is_single = random.random(words) < 0.5
        row = [[singles[i]] if is_single[i] else [pairs[i], pairs[i] + 1] for i in range(words)]
        rows.append(np.array([CLS, *(token for word in row for token in word), SEP]))
    lengths = np.array([len(row) for row in rows])
    return np.concatenate(rows), lengths, example_keys(seed, 0, np.arange(number))


def words_of(ids):
    """First token of each word, and its tokens."""
    starts = np.flatnonzero((ids > 4) & ((ids < 500) | (ids % 2 == 0)))
    return starts, np.where(ids[starts] < 500, 1, 2)


def make_masker(tokenizer, table, **options):
    return TokenMasker(tokenizer, similar_words=table, word_starts=Pairs, **{**presets.MACBERT_MASKING, **options})


def test_a_word_becomes_one_of_its_similar_words(tokenizer, table):
    ids, lengths, keys = batch()
    masked = make_masker(tokenizer, table, **SIMILAR_ONLY)(ids, lengths, keys)
    predicted = masked.labels != IGNORED
    starts, sizes = words_of(ids)
    seen = set()
    for start, size in zip(starts[predicted[starts]].tolist(), sizes[predicted[starts]].tolist(), strict=True):
        assert predicted[start : start + size].all()
        word, new = (tuple(values[start : start + size].tolist()) for values in (ids, masked.ids))
        number = table.find(np.array(word), np.array([0]), np.array([size]))
        if table.has_similar(number)[0]:
            first = table.similar_offsets[number[0]]
            similar = table.similar_numbers[first : first + table.counts[number[0]]]
            assert new in {tuple(table.tokens_of(np.array([one])).tolist()) for one in similar}
            seen.add((word, new))
        else:  # a random word of as many tokens
            assert table.find(np.array(new), np.array([0]), np.array([size]))[0] >= 0
    of_one_word = {new for word, new in seen if word == (50,)} or {new for word, new in seen if len(word) == 1}
    assert len(of_one_word) > 1
    assert np.array_equal(masked.ids[~predicted], ids[~predicted])


def test_macbert_law(tokenizer, table):
    """No [MASK]; 15 % of the tokens; kinds per word .80/.10/.10, within five standard errors of 9,000 words."""
    ids, lengths, keys = batch(number=600)
    masked = make_masker(tokenizer, table)(ids, lengths, keys)
    predicted = masked.labels != IGNORED
    assert not (masked.ids == MASK).any() and len(masked.ids) == len(ids)
    assert predicted.sum() / (ids > 4).sum() == pytest.approx(0.15, abs=0.001)
    starts, sizes = words_of(ids)
    chosen, sizes = starts[predicted[starts]], sizes[predicted[starts]]
    assert predicted[chosen + sizes - 1].all()
    same = masked.ids[chosen] == ids[chosen]
    numbers = table.find(ids, chosen, chosen + sizes)
    having = table.has_similar(numbers)
    n = len(chosen)
    is_similar = np.zeros(n, dtype=bool)
    for k in range(2):
        place = table.similar_offsets[numbers[having]] + np.minimum(k, table.counts[numbers[having]] - 1)
        first = table.tokens[table.offsets[table.similar_numbers[place]]]
        is_similar[having] |= masked.ids[chosen[having]] == first
    assert n > 8000
    # A random word of a few hundred is similar, or the same, now and then.
    for share, expected in ((same.mean(), 0.1), (is_similar[having].mean(), 0.8)):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n) + 0.1 / 100


def test_macbert_runs():
    """Runs of 1/2/3/4 words .4/.3/.2/.1, mean 2; ALBERT's 1/n to 4 would be .48/.24/.16/.12."""
    masking = Masking(**presets.MACBERT_MASKING)
    assert masking.run_size_probabilities() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert masking.run_size_probabilities() @ np.arange(1, 5) == pytest.approx(2.0)
    assert Masking(unit="ngram", max_ngram=4).run_size_probabilities() == pytest.approx([0.48, 0.24, 0.16, 0.12])


def test_sizes_of_runs_and_shares_of_words_in_them(tokenizer, table):
    """Rarely masked, so that runs do not touch: shares of runs, and of words in them, within .02."""
    random = np.random.default_rng(0)
    ids = random.integers(6, 400, 400 * 5002)
    lengths = np.full(400, 5002)
    ids[::5002], ids[5001::5002] = CLS, SEP
    masker = make_masker(tokenizer, table, mask_probability=0.01)
    predicted = masker(ids, lengths, example_keys(0, 0, np.arange(400))).labels != IGNORED
    edges = np.diff(np.concatenate([[0], predicted.astype(int), [0]]))
    sizes = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
    runs = np.bincount(sizes, minlength=5)[1:5] / len(sizes)
    assert runs == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.02)
    words = runs * np.arange(1, 5) / (runs @ np.arange(1, 5))
    assert words == pytest.approx([0.2, 0.3, 0.3, 0.2], abs=0.02)
    assert sizes.mean() == pytest.approx(2.0, abs=0.05)


def test_each_word_of_an_ngram_draws_its_own_kind(tokenizer):
    """Of two words in a bigram, both are masked in .64 of the runs, and one in .32."""
    options = {"unit": "ngram", "ngram_probabilities": [0.0, 1.0], "replacement_per": "word", "word_starts": Pairs}
    random, number = np.random.default_rng(0), 3000
    pairs = 2 * random.integers(250, 500, (number, 2))
    rows = np.stack([np.full(number, CLS), pairs[:, 0], pairs[:, 0] + 1, pairs[:, 1], pairs[:, 1] + 1], axis=1)
    masker = TokenMasker(tokenizer, mask_probability=1.0, random_replace_probability=0.2, **options)
    masked = masker(rows.ravel(), np.full(number, 5), example_keys(0, 0, np.arange(number))).ids.reshape(number, 5)
    is_mask = masked[:, 1:].reshape(number, 2, 2) == MASK
    assert (is_mask[..., 0] == is_mask[..., 1]).all()  # decided for the word
    both = np.bincount(is_mask[..., 0].sum(axis=1), minlength=3) / number
    assert abs(both - [0.04, 0.32, 0.64]).max() < 5 * np.sqrt(0.25 / number)


def test_words_as_long_as_none_of_the_table_become_random_tokens(tokenizer):
    table = SimilarWords.of({(10,): [(11,)]}, tokenizer)
    ids, lengths, keys = batch()
    masked = make_masker(tokenizer, table, **SIMILAR_ONLY)(ids, lengths, keys)
    starts, sizes = words_of(ids)
    predicted = masked.labels != IGNORED
    singles, pairs = (starts[(sizes == size) & predicted[starts]] for size in (1, 2))
    assert set(masked.ids[singles].tolist()) == {10, 11}
    assert len(set(masked.ids[pairs].tolist())) > 800  # of 995 ordinary ones, in 2,162 draws
    assert masked.ids[pairs].min() > 4


def test_the_share_of_the_corpus_without_a_similar_word(tokenizer, table):
    ids, *_ = batch()
    ids = ids[ids > 4]
    starts, sizes = words_of(ids)
    expected = (((sizes == 1) & (ids[starts] >= 400)) | ((sizes == 2) & (ids[starts] >= 900))).mean()
    assert table.missing_share(ids, (ids < 500) | (ids % 2 == 0)) == pytest.approx(expected)


def test_masks_do_not_depend_on_the_batch_and_a_lower_rate_takes_the_first(tokenizer, table):
    masker = make_masker(tokenizer, table)
    ids, lengths, keys = batch(number=5)
    together, begin = masker(ids, lengths, keys), lengths[:2].sum()
    part = slice(begin, begin + lengths[2])
    alone = masker(ids[part], lengths[2:3], keys[2:3])
    assert np.array_equal(together.ids[part], alone.ids) and np.array_equal(together.labels[part], alone.labels)
    rates = [masker(ids, lengths, keys, None, rate) for rate in (0.3, 0.1)]
    more, fewer = (set(masked.positions.tolist()) for masked in rates)
    assert len(fewer - more) <= 4 * 5  # but for the last n-gram of each example, which is cut to what is left
    both = sorted(fewer & more)
    assert np.array_equal(rates[0].ids[both], rates[1].ids[both])


def test_packed_and_padded_batches_are_alike(tokenizer):
    documents = equal_documents(9)
    table = SimilarWords.of({(i,): [(5 + (i + 1) % 50,)] for i in range(5, 55)}, tokenizer)
    found = []
    for packed in (False, True):
        collator = DataCollatorForMaskedLM(tokenizer, packed=packed, similar_words=table, **presets.MACBERT_MASKING)
        collated = collator(SentenceBlocks(documents, 24, redraw=False).__getitems__(range(5)))
        real = collated.get("attention_mask", torch.ones_like(collated["input_ids"])).bool()
        found.append([collated[name][real].tolist() for name in ("input_ids", "labels")])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"similar_replace_probability": 0.8, "mask_replace_probability": 0.0}, "replaces words: set replacement_per"),
        ({"replacement_per": "word"}, "replacement_per='word' needs units of words"),
        ({"replacement_per": "word", "units": {"token": 0.5, "word": 0.5}}, "units without 'token'"),
        (
            {"replacement_per": "word", "unit": "word", "similar_replace_probability": 0.3},
            "similar_replace_probability=0.3 .* sum of at most 1",
        ),
        ({"ngram_probabilities": [0.5, 0.5]}, "ngram_probabilities=.* needs unit='ngram'"),
        ({"unit": "ngram", "ngram_probabilities": [0.5, 0.4]}, "with a sum of 1"),
        ({"unit": "ngram", "ngram_probabilities": [1.5, -0.5]}, "with a sum of 1"),
        ({"unit": "ngram", "ngram_probabilities": []}, "with a sum of 1"),
        ({"unit": "ngram", "ngram_probabilities": 0.5}, "with a sum of 1"),
        ({"unit": "ngram", "ngram_probabilities": [0.5, 0.5], "max_ngram": 2}, "leave max_ngram out"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Masking(**options)


def test_a_missing_or_another_tokenizers_table_is_refused(tokenizer, make_tokenizer, table):
    with pytest.raises(ValueError, match="similar_words is missing: .* `hf-encoders corpus --similar-words build`"):
        DataCollatorForMaskedLM(tokenizer, **presets.MACBERT_MASKING)
    with pytest.raises(ValueError, match="similar_words was made with another tokenizer"):
        DataCollatorForMaskedLM(make_tokenizer(1001), similar_words=table, **presets.MACBERT_MASKING)
    for other in ("table", SimilarWords.of({}, tokenizer)):
        with pytest.raises(ValueError, match="similar_words is .*: similar_replace_probability=0.8 needs the table"):
            DataCollatorForMaskedLM(tokenizer, similar_words=other, **presets.MACBERT_MASKING)
    with pytest.raises(ValueError, match="similar_words is for similar_replace_probability: set it"):
        DataCollatorForMaskedLM(tokenizer, similar_words=table)
