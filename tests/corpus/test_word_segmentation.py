import sys

import datasets
import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_encoders import tokenize_documents
from hf_encoders.corpus.documents import one_sentence_per_line
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.word_starts import jieba_segmenter, word_starts_of_tokens
from tests.corpus.corpora import contents


def pairs_of_characters(sentence: str) -> list[str]:
    """A segmenter for tests: words of two characters, without white space."""
    solid = "".join(sentence.split())
    return [solid[i : i + 2] for i in range(0, len(solid), 2)]


class TestWordStarts:
    @pytest.fixture
    def characters(self):
        vocabulary = {token: i for i, token in enumerate(["[UNK]", *"abcdefgh"])}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")]
        )
        return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")

    def test_a_column_shaped_like_the_ids(self, characters, tmp_path):
        file = tmp_path / "a.txt"
        file.write_text("abc d\nefg\n\nh\n\nabc d\nefg\n\nab")
        options = {"workers": 2, "sentence_splitter": one_sentence_per_line, "word_segmenter": pairs_of_characters}
        prepare_corpus([file], tmp_path / "out", characters, **options)
        dataset = datasets.load_from_disk(tmp_path / "out")
        assert dataset["input_ids"][:] == [[[1, 2, 3, 4], [5, 6, 7]], [[8]], [[1, 2]]]
        assert dataset["word_starts"][:] == [[[1, 0, 1, 0], [1, 0, 1]], [[1]], [[1, 0]]]
        assert dataset.data.column("word_starts").type == pa.list_(pa.list_(pa.uint8()))
        store = FlatCorpus.of(dataset, keep_empty=True)
        assert store.word_starts[:].tolist() == [1, 0, 1, 0, 1, 0, 1, 1, 1, 0]
        assert store.word_starts.dtype == np.uint8

    def test_a_divided_sentence_divides_its_words(self, characters):
        dataset = tokenize_documents(
            [["ab cd ef gh", "abcdefghab"]], characters, word_segmenter=pairs_of_characters, max_sentence_tokens=3
        )
        assert dataset["input_ids"][:] == [[[1, 2, 3], [4, 5, 6], [7, 8], [1, 2, 3], [4, 5, 6], [7, 8, 1], [2]]]
        starts = [[1, 0, 1], [1, 1, 0], [1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 1], [1]]
        assert dataset["word_starts"][:] == [starts]

    def test_words_that_are_not_the_sentence_are_refused(self, characters, tmp_path):
        with pytest.raises(ValueError, match="word_segmenter gives .* for 'ab c'"):
            tokenize_documents([["ab c"]], characters, word_segmenter=lambda sentence: ["ab"])
        file = tmp_path / "a.txt"
        file.write_text("ab c\n\nd")
        with pytest.raises(ValueError, match="word_segmenter gives"):
            prepare_corpus([file], tmp_path / "out", characters, word_segmenter=str.upper)

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d.select([2, 0]),
            lambda d: d.shuffle(seed=1),
            lambda d: datasets.concatenate_datasets([d, d]),
            lambda d: d.select([]),
            lambda d: d.cast(
                datasets.Features({n: [[datasets.Value("int64")]] for n in ("word_starts", "input_ids")})
            ),
        ],
    )
    def test_a_store_keeps_them(self, characters, change):
        documents = [["abc", "de"], ["fgh"], ["a"]]
        dataset = change(tokenize_documents(documents, characters, word_segmenter=pairs_of_characters))
        store = FlatCorpus.of(dataset, keep_empty=True)
        assert contents(store) == dataset["input_ids"][:]
        flat = [start for document in dataset["word_starts"][:] for sentence in document for start in sentence]
        assert store.word_starts[:].tolist() == flat
        assert store.word_starts.dtype == np.uint8

    def test_an_empty_corpus_with_them_is_not_taken_for_one_without(self, characters):
        dataset = tokenize_documents([["abc"]], characters, word_segmenter=pairs_of_characters).select([])
        assert FlatCorpus.of(dataset.select_columns(["input_ids"]), keep_empty=True).word_starts is None
        assert FlatCorpus.of(dataset, keep_empty=True).word_starts[:].tolist() == []

    def test_another_shape_is_refused(self):
        dataset = datasets.Dataset.from_dict({"input_ids": [[[1, 2], [3]]], "word_starts": [[[1], [1, 0]]]})
        with pytest.raises(ValueError, match="'word_starts' is not shaped like 'input_ids'"):
            FlatCorpus.of(dataset, keep_empty=True)


class TestWhereTokensAre:
    def starts(self, backend: Tokenizer, sentence: str, words: list[str]) -> list[int]:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
        dataset = tokenize_documents([[sentence]], tokenizer, word_segmenter=lambda _: words)
        return dataset["word_starts"][0][0]

    def test_characters_that_are_several_tokens_and_space_markers(self):
        alphabet = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        backend = Tokenizer(models.BPE(alphabet, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        # A space and three bytes a character: two characters in the first word, one in the second.
        assert self.starts(backend, "\u4e2d\u56fd \u4eba", ["\u4e2d\u56fd", "\u4eba"]) == [1] + [0] * 6 + [1] + [0] * 3
        assert self.starts(backend, "ab  c", ["a", "b", "  ", "c"]) == [1, 0, 1, 1, 0, 0]

    def test_normalised_text(self):
        # U+337F becomes four characters and full-width letters become others, but words are words of the text.
        letters = "\u682a\u5f0f\u4f1a\u793eabi\u0307"
        backend = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="a"))
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        assert self.starts(backend, "\u337f\uff21\uff22", ["\u337f", "\uff21\uff22"]) == [1, 0, 0, 0, 1, 0]
        assert self.starts(backend, "\u0130AB", ["\u0130", "A", "B"]) == [1, 0, 1, 1]

    def test_a_token_is_in_the_word_of_its_first_character(self):
        words = ["ab", "cd", "ef"]
        assert word_starts_of_tokens("abcdef", words, [(0, 1), (1, 3), (3, 4), (4, 6)]).tolist() == [1, 0, 1, 1]
        assert word_starts_of_tokens("aa", ["a", "a"], [(0, 1), (1, 2), (2, 2)]).tolist() == [1, 1, 0]
        assert word_starts_of_tokens("  ", [], [(0, 1), (1, 2)]).tolist() == [1, 0]
        assert word_starts_of_tokens("", [], []).tolist() == []


def test_a_missing_jieba_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(ValueError, match=r"pip install 'hf_encoders\[chinese\]'"):
        jieba_segmenter()
