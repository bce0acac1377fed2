import datasets
import numpy as np
import pytest
from transformers import BertTokenizer

from hf_encoders import tokenize_documents
from hf_encoders.corpus import similar_words
from hf_encoders.corpus.similar_words import (
    SimilarWords,
    build_similar_words,
    describe_similar_words,
    read_similar_words,
)


DETERMINERS, NOUNS, VERBS = range(5, 8), range(10, 20), range(30, 36)


def sentences(number: int, seed: int = 0) -> list[str]:
    """Determiner, noun, verb, determiner, noun: words of a kind stand beside the same words."""
    generator = np.random.default_rng(seed)
    kinds = (DETERMINERS, NOUNS, VERBS, DETERMINERS, NOUNS)
    return [" ".join(f"w{generator.choice(kind)}" for kind in kinds) for _ in range(number)]


def similar_to(table: SimilarWords, word: tuple[int, ...]) -> list[tuple[int, ...]]:
    number = int(table.find(np.array(word), np.array([0]), np.array([len(word)]))[0])
    begin, end = table.similar_offsets[number], table.similar_offsets[number + 1]
    return [tuple(table.tokens_of(np.array([one])).tolist()) for one in table.similar_numbers[begin:end]]


class TestLearned:
    def test_words_of_a_kind(self, tokenizer):
        table = build_similar_words(tokenize_documents([sentences(1500)], tokenizer), tokenizer)
        for kind in (DETERMINERS, NOUNS, VERBS):
            for word in kind:
                found = similar_to(table, (word,))
                assert len(found) == min(5, len(kind) - 1)
                assert {one for (one,) in found} <= set(kind) - {word}

    def test_equals_dense_matrices(self, tokenizer):
        documents = tokenize_documents([sentences(300), sentences(100, seed=1)], tokenizer)
        words = similar_words._words_of(documents, tokenizer)
        vocabulary = [int(ids[0]) for ids in words.ids]
        counts = np.zeros((len(vocabulary), 4, len(vocabulary)))
        for document in documents["input_ids"]:
            for sentence in document:
                for place, word in enumerate(sentence):
                    for slot, other in enumerate((place - 2, place - 1, place + 1, place + 2)):
                        if 0 <= other < len(sentence):
                            counts[vocabulary.index(word), slot, vocabulary.index(sentence[other])] += 1
        counts = counts.reshape(len(vocabulary), -1)
        contexts = np.maximum(counts.sum(axis=0), 1) ** 0.75
        with np.errstate(divide="ignore"):
            pmi = np.log(counts / counts.sum(axis=1, keepdims=True) / contexts * contexts.sum())
        left, values, _ = np.linalg.svd(np.maximum(pmi, 0), full_matrices=False)
        vectors = (left * np.sqrt(values))[:, : len(vocabulary) - 1]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        found = similar_words._vectors(words)
        np.testing.assert_allclose(found @ found.T, vectors @ vectors.T, atol=1e-4)

    def test_a_mark_is_never_similar_to_a_word(self):
        """Comma, semicolon and two particles stand at the same places."""
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", ";", "和", "与", *"abcdefgh"]
        tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
        generator = np.random.default_rng(0)
        text = [" ".join(generator.choice(list(kind)) for kind in ("abcd", ",;和与", "efgh")) for _ in range(800)]
        table = build_similar_words(tokenize_documents([text], tokenizer), tokenizer, least_similarity=0.1)
        assert similar_to(table, (5,)) == [(6,)] and similar_to(table, (8,))[0] == (7,)
        assert not {5, 6} & {one for word in range(7, len(pieces)) for (one,) in similar_to(table, (word,))}

    def test_only_as_many_tokens(self):
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##x", "##y", "c", "d", "e"]
        tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
        generator = np.random.default_rng(0)
        kinds = (["c", "d"], ["a", "b", "ax", "bx", "ay"], ["e"])
        text = [" ".join(generator.choice(kind) for kind in kinds) for _ in range(300)]
        table = build_similar_words(tokenize_documents([text], tokenizer), tokenizer)
        assert similar_to(table, (5,)) == [(6,)]
        assert set(similar_to(table, (5, 7))) == {(6, 7), (5, 8)}

    def test_words_of_a_segmenter(self, tokenizer):
        documents = [[sentence.replace("w10", "w10 w40") for sentence in sentences(500)]]

        def segmenter(sentence: str) -> list[str]:
            return sentence.replace("w10 w40", "w10w40").split()

        corpus = tokenize_documents(documents, tokenizer, word_segmenter=segmenter)
        table = build_similar_words(corpus, tokenizer)
        assert similar_to(table, (11,)) and similar_to(table, (10, 40)) == []
        assert table.find(np.array([10, 40]), np.array([0]), np.array([1])).tolist() == [-1]

    def test_the_same_table_every_time(self, tokenizer):
        documents = tokenize_documents([sentences(300)], tokenizer)
        one, two = (build_similar_words(documents, tokenizer) for _ in range(2))
        assert one.fingerprint == two.fingerprint
        words = similar_words._words_of(documents, tokenizer)
        assert np.array_equal(similar_words._vectors(words), similar_words._vectors(words))

    def test_number_and_similarity(self, tokenizer):
        documents = tokenize_documents([sentences(500)], tokenizer)
        table = build_similar_words(documents, tokenizer, words_per_entry=2)
        assert table.counts.max() == 2
        more, fewer = (build_similar_words(documents, tokenizer, 50, least).counts.sum() for least in (0.3, 0.6))
        assert more > fewer > 0

    def test_rare_words_and_unknown_ones_are_left_out(self, tokenizer):
        text = [f"{sentence} zz" for sentence in sentences(300)] + ["w50 w12 w33"] * 4
        table = build_similar_words(tokenize_documents([text], tokenizer), tokenizer)
        assert set(table.tokens.tolist()) == {*DETERMINERS, *NOUNS, *VERBS}

    def test_large_corpora_are_read_in_stretches_of_whole_sentences(self, tokenizer, monkeypatch):
        documents = tokenize_documents([sentences(400), sentences(400, seed=1)], tokenizer)
        whole = np.concatenate([ids for ids, *_ in similar_words._stretches(documents, tokenizer)])
        assert whole.tolist() == [token for document in documents["input_ids"] for one in document for token in one]
        monkeypatch.setattr(similar_words, "MOST_TOKENS", 1000)
        parts = list(similar_words._stretches(documents, tokenizer))
        assert len(parts) == similar_words.STRETCHES
        assert 900 < sum(len(ids) for ids, *_ in parts) < 1100
        assert all(len(ids) == 5 * begins.sum() and begins[0] for ids, _, begins in parts)

    def test_only_the_most_frequent_words(self, tokenizer, monkeypatch):
        monkeypatch.setattr(similar_words, "MOST_WORDS", 13)
        table = build_similar_words(tokenize_documents([sentences(4000)], tokenizer), tokenizer, least_similarity=0.1)
        assert len(table) == 13
        assert {*DETERMINERS, *NOUNS} == set(table.tokens.tolist())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"words_per_entry": 0}, "words_per_entry=0"),
            ({"words_per_entry": "5"}, "words_per_entry='5'"),
            ({"least_similarity": 0.0}, "least_similarity=0.0 is a cosine"),
            ({"least_similarity": 1.5}, "least_similarity=1.5 is a cosine"),
        ],
    )
    def test_wrong_options(self, tokenizer, options, message):
        with pytest.raises(ValueError, match=message):
            build_similar_words(tokenize_documents([["w5"]], tokenizer), tokenizer, **options)

    @pytest.mark.parametrize("text", [["w5"], ["w5 w6"] * 20, ["zz yy"] * 20, ["w5", "w6", "w7"] * 9])
    def test_a_corpus_without_similar_words(self, tokenizer, text):
        with pytest.raises(ValueError, match="no two words that occur 5 times are similar"):
            build_similar_words(tokenize_documents([text], tokenizer), tokenizer)


class TestFiles:
    def test_pairs_of_as_many_tokens(self, tokenizer, tmp_path):
        file = tmp_path / "similar.tsv"
        file.write_text("# mine\nw5\tw6 w7\n\nw6\tw5 zz\nw5\tw8\n")
        table = read_similar_words(file, tokenizer)
        assert similar_to(table, (5,)) == [(6,), (7,), (8,)]
        assert similar_to(table, (6,)) == [(5,)]
        assert similar_to(table, (7,)) == []

    def test_words_after_a_space_and_without_one(self, tmp_path):
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "ab", "##c"]
        tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
        file = tmp_path / "similar.tsv"
        file.write_text("ac\tabc b\n")
        assert similar_to(read_similar_words(file, tokenizer), (5, 8)) == [(7, 8)]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("w5 w6\n", "line 1: 'w5 w6' is not a word, a tab and similar words"),
            ("w5\tw6\nw7\t \n", "line 2: "),
            ("\tw6\n", "line 1: "),
            ("w5\tzz\n", "has no word with a similar one of as many tokens"),
            ("# none\n", "has no word with a similar one"),
        ],
    )
    def test_wrong_files(self, tokenizer, tmp_path, content, message):
        file = tmp_path / "similar.tsv"
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_similar_words(file, tokenizer)
        with pytest.raises(ValueError, match="--similar-words '.*gone' is not a file"):
            read_similar_words(tmp_path / "gone", tokenizer, "--similar-words ")

    def test_a_binary_file(self, tokenizer, tmp_path):
        (tmp_path / "similar").write_bytes(bytes(200))
        with pytest.raises(ValueError, match="is a binary file"):
            read_similar_words(tmp_path / "similar", tokenizer)


def test_how_far_a_table_goes(tokenizer):
    documents = tokenize_documents([sentences(500)], tokenizer)
    table = build_similar_words(documents, tokenizer)
    text = describe_similar_words(table, documents, tokenizer)
    assert "words of the corpus without a similar one: 0.0%" in text
    assert "warning" not in text
    assert text.splitlines()[2].startswith("  w")
    text = describe_similar_words(SimilarWords.of({(5,): [(6,)]}, tokenizer), documents, tokenizer)
    assert "warning: 87% of the words have no similar one and are replaced by random words" in text
    assert text.splitlines()[2] == "  w5: w6"
    of_others = datasets.Dataset.from_dict({"input_ids": [[[20, 21]]]})
    assert "without a similar one: 100.0%" in describe_similar_words(table, of_others, tokenizer)
