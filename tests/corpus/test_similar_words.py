"""Similar words: learned from a corpus or read from a file; lookup, draws, saving, and what is refused."""

import datasets
import numpy as np
import pytest
from safetensors.numpy import save_file
from transformers import BertTokenizer

from hf_encoders import build_similar_words, read_similar_words, tokenize_documents
from hf_encoders.corpus import similar_words
from hf_encoders.corpus.similar_words import (
    SIMILAR_WORDS_FILE,
    SimilarWords,
    describe_similar_words,
    join_similar_words,
)


TABLE = {(10,): [(11,), (12,), (13,)], (20, 21): [(22, 23)], (11,): [(10,)], (30, 31, 32): []}
DETERMINERS, NOUNS, VERBS = range(5, 8), range(10, 20), range(30, 36)


def bert(*pieces: str) -> BertTokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(names)})


def sentences(number: int, seed: int = 0) -> list[str]:
    """Determiner, noun, verb, determiner, noun: words of a kind stand next to the same words."""
    generator = np.random.default_rng(seed)
    kinds = (DETERMINERS, NOUNS, VERBS, DETERMINERS, NOUNS)
    return [" ".join(f"w{generator.choice(kind)}" for kind in kinds) for _ in range(number)]


def drawn_of(kinds: tuple[str | list[str], ...], number: int) -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(list(kind)) for kind in kinds) for _ in range(number)]


@pytest.fixture
def table(tokenizer):
    return SimilarWords.of(TABLE, tokenizer)


class TestTable:
    def test_similar_words_of_a_word(self, table):
        assert [word.tolist() for word in table.similar(np.array([10]))] == [[11], [12], [13]]
        assert table.similar((20, 21))[0].dtype == np.int32
        assert table.similar((12,)) == table.similar((40,)) == table.similar((21, 20)) == table.similar(()) == []

    def test_any_word_of_a_length_is_as_likely(self, table):
        generator = np.random.default_rng(0)
        words = [tuple(table.random_word(1, generator).tolist()) for _ in range(4000)]
        assert set(words) == {(10,), (11,), (12,), (13,)}
        assert all(abs(words.count(word) / 4000 - 0.25) < 0.04 for word in set(words))
        assert {tuple(table.random_word(2, generator).tolist()) for _ in range(50)} == {(20, 21), (22, 23)}
        assert table.random_word(4, generator) is None

    def test_saved_and_read(self, table, tokenizer, make_tokenizer, tmp_path):
        assert table.save(tmp_path).name == SIMILAR_WORDS_FILE
        loaded = SimilarWords.load(tmp_path, tokenizer)
        assert (loaded.words, loaded.table, loaded.fingerprint) == (table.words, table.table, table.fingerprint)
        assert SimilarWords.of({**TABLE, (40,): [(41,)]}, tokenizer).fingerprint != table.fingerprint
        with pytest.raises(ValueError, match="similar_words.safetensors was made with another tokenizer"):
            SimilarWords.load(tmp_path, make_tokenizer(61))

    def test_tables_of_several_corpora_are_one(self, table, tokenizer):
        """A word of both keeps the similar words of the first."""
        other = SimilarWords.of({(10,): [(40,)], (41,): [(40,), (10,)], (22, 23): [(50, 51)]}, tokenizer)
        joined = join_similar_words([table, other, other])
        assert joined.table == {**other.table, **table.table}
        assert len(joined.words) == len(table.words) + 3  # 40, 41 and 50 51

    def test_files_that_are_no_table_are_refused(self, table, tmp_path):
        with pytest.raises(ValueError, match="is missing: .* --similar-words build"):
            SimilarWords.load(tmp_path)
        path = table.save(tmp_path)
        for content in (b"", path.read_bytes()[:-4]):
            path.write_bytes(content)
            with pytest.raises(ValueError, match="is damaged"):
                SimilarWords.load(tmp_path)
        arrays = {"tokens": [10, 11], "lengths": [1, 1], "similar": [2], "counts": [1, 0]}
        for names in (["tokens"], list(arrays)):  # there is no word of number 2
            save_file({name: np.array(arrays[name], np.int32) for name in names}, path, {"tokenizer": "0"})
            with pytest.raises(ValueError, match="is damaged"):
                SimilarWords.load(tmp_path)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({(): [(10,)]}, r"\(\) is no word"),
            ({(1,): [(10,)]}, r"\(1,\) is no word"),  # [CLS]
            ({(10,): [(99,)]}, r"\(99,\) is no word"),
            ({(10,): [(11, 12)]}, r"\(11, 12\) cannot stand for \(10,\)"),
            ({(10,): [(10,)]}, r"\(10,\) cannot stand for \(10,\)"),
        ],
    )
    def test_wrong_words(self, tokenizer, wrong, message):
        with pytest.raises(ValueError, match=message):
            SimilarWords.of(wrong, tokenizer)


class TestLearned:
    def test_words_of_a_kind(self, tokenizer):
        text = [f"{sentence} zz" for sentence in sentences(1500)] + ["w50 w12 w33"] * 4  # unknown, and rare
        documents = tokenize_documents([text], tokenizer)
        learned, again = (build_similar_words(documents, tokenizer) for _ in range(2))
        assert {word for (word,) in learned.words} == {*DETERMINERS, *NOUNS, *VERBS}
        for kind in (DETERMINERS, NOUNS, VERBS):
            for word in kind:
                similar = {token for (token,) in learned.table[word,]}
                assert len(similar) == min(5, len(kind) - 1) and similar <= set(kind) - {word}
        assert learned.fingerprint == again.fingerprint

    def test_vectors_equal_those_of_dense_matrices(self, tokenizer):
        documents = tokenize_documents([sentences(300), sentences(100, seed=1)], tokenizer)
        words, text = similar_words._frequent_words(documents, tokenizer)
        counts = np.zeros((len(words), 4, len(words)))
        for document in documents["input_ids"]:
            for sentence in document:
                for position, word in enumerate(sentence):
                    for slot, distance in enumerate((-2, -1, 1, 2)):
                        if 0 <= position + distance < len(sentence):
                            context = sentence[position + distance]
                            counts[words.index((word,)), slot, words.index((context,))] += 1
        counts = counts.reshape(len(words), -1)
        contexts = np.maximum(counts.sum(axis=0), 1) ** 0.75
        with np.errstate(divide="ignore"):
            pmi = np.log(counts / counts.sum(axis=1, keepdims=True) / contexts * contexts.sum())
        left, values, _ = np.linalg.svd(np.maximum(pmi, 0), full_matrices=False)
        vectors = (left * np.sqrt(values))[:, : len(words) - 1]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        learned = similar_words._vectors(text, len(words))
        np.testing.assert_allclose(learned @ learned.T, vectors @ vectors.T, atol=1e-4)

    def test_only_words_of_as_many_tokens_and_no_mark_with_a_word(self):
        """Comma, semicolon and two particles stand at the same positions."""
        tokenizer = bert(",", ";", "和", "与", *"abcdefgh")
        documents = tokenize_documents([drawn_of(("abcd", ",;和与", "efgh"), 800)], tokenizer)
        table = build_similar_words(documents, tokenizer, least_similarity=0.1).table
        assert table[5,] == [(6,)] and table[8,][0] == (7,)
        assert not any({(5,), (6,)} & {*similar} for (word,), similar in table.items() if word > 6)
        tokenizer = bert("a", "b", "##x", "##y", "c", "d", "e")
        text = drawn_of((["c", "d"], ["a", "b", "ax", "bx", "ay"], ["e"]), 300)
        table = build_similar_words(tokenize_documents([text], tokenizer), tokenizer).table
        assert table[5,] == [(6,)] and set(table[5, 7]) == {(6, 7), (5, 8)}

    def test_words_of_a_segmenter(self, tokenizer):
        documents = [[sentence.replace("w10", "w10 w40") for sentence in sentences(500)]]

        def segmenter(sentence: str) -> list[str]:
            return sentence.replace("w10 w40", "w10w40").split()

        corpus = tokenize_documents(documents, tokenizer, word_segmenter=segmenter)
        learned = build_similar_words(corpus, tokenizer)
        assert learned.similar((11,)) and (10, 40) in learned.words and (10,) not in learned.words

    def test_number_and_similarity(self, tokenizer):
        documents = tokenize_documents([sentences(500)], tokenizer)
        table = build_similar_words(documents, tokenizer, words_per_entry=2).table
        assert max(map(len, table.values())) == 2
        tables = (build_similar_words(documents, tokenizer, 50, least).table for least in (0.3, 0.6))
        more, fewer = (sum(map(len, table.values())) for table in tables)
        assert more > fewer > 0

    def test_of_large_corpora_every_nth_sentence_is_read(self, tokenizer, monkeypatch):
        documents = tokenize_documents([sentences(400), sentences(400, seed=1)], tokenizer)
        text = [[(token,) for token in sentence] for document in documents["input_ids"] for sentence in document]
        assert list(similar_words._sentences(documents, tokenizer)) == text
        monkeypatch.setattr(similar_words, "MOST_TOKENS", 1000)  # of 4000
        assert list(similar_words._sentences(documents, tokenizer)) == text[::4]

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            (["w5"], {"words_per_entry": 0}, "words_per_entry=0"),
            (["w5"], {"words_per_entry": "5"}, "words_per_entry='5'"),
            (["w5"], {"least_similarity": 0.0}, "least_similarity=0.0"),
            (["w5"], {"least_similarity": 1.5}, "least_similarity=1.5"),
            (["w5"], {}, "no two words that occur 5 times"),
            (["zz yy"] * 20, {}, "no two words"),
            (["w5", "w6", "w7"] * 9, {}, "no two words"),
        ],
    )
    def test_wrong_input(self, tokenizer, text, options, message):
        with pytest.raises(ValueError, match=message):
            build_similar_words(tokenize_documents([text], tokenizer), tokenizer, **options)

    def test_coverage(self, tokenizer):
        documents = tokenize_documents([sentences(500)], tokenizer)
        learned = build_similar_words(documents, tokenizer)
        text = describe_similar_words(learned, documents, tokenizer)
        assert "words of the corpus without a similar one: 0.0%" in text and "warning" not in text
        assert text.splitlines()[2].startswith("  w")
        text = describe_similar_words(SimilarWords.of({(5,): [(6,)]}, tokenizer), documents, tokenizer)
        assert "warning: 87% of the words" in text and text.splitlines()[2] == "  w5: w6"
        of_others = datasets.Dataset.from_dict({"input_ids": [[[20, 21]]]})
        assert "without a similar one: 100.0%" in describe_similar_words(learned, of_others, tokenizer)


class TestFiles:
    def test_pairs_of_as_many_tokens(self, tokenizer, tmp_path):
        file = tmp_path / "similar.tsv"
        file.write_text("# mine\nw5\tw6 w7\n\nw6\tw5 zz\nw5\tw8\n")
        assert read_similar_words(file, tokenizer).table == {(5,): [(6,), (7,), (8,)], (6,): [(5,)]}
        file.write_text("ac\tabc b\n")
        assert read_similar_words(file, bert("a", "b", "ab", "##c")).table == {(5, 8): [(7, 8)]}

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"w5 w6\n", "line 1: 'w5 w6' is not a word, a tab"),
            (b"w5\tw6\nw7\t \n", "line 2: "),
            (b"\tw6\n", "line 1: "),
            (b"w5\tzz\n", "no word with a similar one"),
            (b"# none\n", "no word with a similar one"),
            (bytes(200), "is a binary file"),
        ],
    )
    def test_wrong_files(self, tokenizer, tmp_path, content, message):
        (tmp_path / "similar.tsv").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_similar_words(tmp_path / "similar.tsv", tokenizer)
        with pytest.raises(ValueError, match="--similar-words '.*gone' is not a file"):
            read_similar_words(tmp_path / "gone", tokenizer, "--similar-words ")
