"""The table of similar words: lookup, choice, saving, and what is refused."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from hf_encoders.corpus import similar_words
from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.similar_words import SIMILAR_WORDS_FILE, SimilarWords, join_similar_words


TABLE = {(10,): [(11,), (12,), (13,)], (20, 21): [(22, 23)], (11,): [(10,)], (30, 31, 32): []}


@pytest.fixture
def table(tokenizer):
    return SimilarWords.of(TABLE, tokenizer)


def test_words_are_found_as_a_dictionary_would_find_them():
    """Random words of one to five tokens out of three, so that prefixes, parts and orders of each other are common."""
    random = np.random.default_rng(0)
    words = sorted({tuple(random.integers(0, 3, random.integers(1, 5)).tolist()) for _ in range(60)})
    numbers = {word: number for number, word in enumerate(words)}
    none = np.zeros(len(words), dtype=np.int64)
    table = SimilarWords(
        np.concatenate([np.array(word) for word in words]), np.array([len(word) for word in words]), none[:0], none, ""
    )
    lengths = random.integers(1, 6, 3000)
    ids, bounds = random.integers(0, 3, lengths.sum()).astype(np.int32), offsets_of(lengths)
    found = table.find(ids, bounds[:-1], bounds[1:])
    expected = [numbers.get(tuple(ids[b:e].tolist()), -1) for b, e in zip(bounds[:-1], bounds[1:], strict=True)]
    assert found.tolist() == expected
    assert 0.1 < (found < 0).mean() < 0.9
    assert table.find(ids, bounds[:0], bounds[:0]).tolist() == []


def test_words_with_the_same_hash_are_told_apart(tokenizer, monkeypatch):
    """With the sum of the tokens for a hash, words in another order have the same."""
    monkeypatch.setattr(
        similar_words, "hashes_of_rows", lambda tokens, lengths: np.add.reduceat(tokens, offsets_of(lengths)[:-1])
    )
    table = SimilarWords.of({(20, 21): [(22, 23)]}, tokenizer)
    ids = np.array([20, 21, 21, 20, 22, 23])
    assert table.find(ids, np.array([0, 2, 4]), np.array([2, 4, 6])).tolist() == [0, -1, 1]


def test_each_similar_word_is_as_likely(table):
    words = table.find(np.full(3000, 10), np.arange(3000), np.arange(1, 3001))
    chosen = table.tokens_of(table.choose_similar(words, np.linspace(0, 1, 3000, endpoint=False)))
    assert np.bincount(chosen)[10:].tolist() == [0, 1000, 1000, 1000]
    assert table.has_similar(table.find(np.array([10, 12, 40]), np.arange(3), np.arange(1, 4))).tolist() == [
        True, False, False,
    ]  # fmt: skip


def test_any_word_of_a_length(table):
    lengths, uniforms = np.repeat([1, 2, 3, 4], 100), np.tile(np.linspace(0, 1, 100, endpoint=False), 4)
    words = table.choose_of_length(lengths, uniforms)
    assert (words[lengths == 4] == -1).all()
    assert (table.lengths[words[lengths < 4]] == lengths[lengths < 4]).all()
    assert [len(set(words[lengths == n].tolist())) for n in (1, 2, 3)] == [4, 2, 1]


def test_an_empty_table_finds_nothing(tokenizer):
    table = SimilarWords.of({}, tokenizer)
    assert table.find(np.array([10]), np.array([0]), np.array([1])).tolist() == [-1]
    assert table.has_similar(np.array([-1])).tolist() == [False]
    assert table.choose_of_length(np.array([1]), np.array([0.5])).tolist() == [-1]
    assert table.missing_share(np.array([10, 11]), np.array([True, True])) == 1.0


def test_saved_and_read(table, tokenizer, make_tokenizer, tmp_path):
    assert table.save(tmp_path).name == SIMILAR_WORDS_FILE
    again = SimilarWords.load(tmp_path, tokenizer)
    assert again.fingerprint == table.fingerprint and repr(again) == repr(table)
    assert SimilarWords.of({**TABLE, (40,): [(41,)]}, tokenizer).fingerprint != table.fingerprint
    with pytest.raises(ValueError, match="similar_words.safetensors was made with another tokenizer"):
        SimilarWords.load(tmp_path, make_tokenizer(61))


def test_tables_of_several_corpora_are_one(table, tokenizer, make_tokenizer):
    """A word of both keeps the similar words of the first; numbers of words follow."""
    other = SimilarWords.of({(10,): [(40,)], (41,): [(40,), (10,)], (22, 23): [(50, 51)]}, tokenizer)
    joined = join_similar_words([table, other, other])

    def similar(word):
        number = joined.find(np.array(word), np.array([0]), np.array([len(word)]))
        return {
            tuple(joined.tokens_of(joined.choose_similar(number, np.array([coin]))).tolist())
            for coin in np.linspace(0, 0.99, 12)
        }

    assert similar((10,)) == {(11,), (12,), (13,)}
    assert similar((41,)) == {(40,), (10,)} and similar((20, 21)) == {(22, 23)}
    assert len(joined) == len(table) + 3  # 40, 41 and 50 51
    with pytest.raises(ValueError, match="of different tokenizers cannot be joined"):
        join_similar_words([table, SimilarWords.of({}, make_tokenizer(61))])


def test_files_that_are_no_table_are_refused(table, tmp_path):
    with pytest.raises(ValueError, match="is missing: give .* of this corpus again, with --similar-words build"):
        SimilarWords.load(tmp_path)
    path = table.save(tmp_path)
    for content in (b"", path.read_bytes()[:-4]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"similar_words.safetensors is damaged \("):
            SimilarWords.load(tmp_path)
    save_file({"tokens": np.zeros(1, np.int32)}, path, {"tokenizer": "0"})
    with pytest.raises(ValueError, match="is damaged"):
        SimilarWords.load(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({(): [(10,)]}, r"\(\) is no word of this tokenizer"),
        ({(1,): [(10,)]}, r"\(1,\) is no word of this tokenizer"),  # [CLS]
        ({(10,): [(99,)]}, r"\(99,\) is no word of this tokenizer"),
        ({(10,): [(11, 12)]}, r"\(11, 12\) cannot stand for \(10,\)"),
        ({(10,): [(10,)]}, r"\(10,\) cannot stand for \(10,\)"),
    ],
)
def test_what_cannot_stand_for_a_word_is_refused(tokenizer, wrong, said):
    with pytest.raises(ValueError, match=said):
        SimilarWords.of(wrong, tokenizer)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (([10, 11], [1, 0], [], [0, 0]), "lengths must be at least 1"),
        (([10, 11], [1], [], [0]), "2 tokens, but lengths sum to 1"),
        (([10, 11], [1, 1], [1], [0, 0]), "1 similar_numbers, but counts sum to 0"),
        (([10, 11], [1, 1], [2], [1, 0]), r"must be in \[0, 2\)"),
        (([10, 11], [1, 1], [0], [1, 0]), "another word of the same number of tokens"),
        (([10, 11, 12], [1, 2], [1], [1, 0]), "another word of the same number of tokens"),
        (([10, 10], [1, 1], [], [0, 0]), "a word is there twice"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, said):
    with pytest.raises(ValueError, match=said):
        SimilarWords(*map(np.array, arrays), tokenizer="")
