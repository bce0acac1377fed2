import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import BertTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from hf_encoders.corpus.units import Lexicon, jieba_entries, read_entries, spellings
from hf_encoders.corpus.word_starts import WordStarts


def bert(*pieces: str) -> BertTokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(names)})


def entries_in(sentence: str, lexicon: Lexicon, tokenizer) -> list[list[str]]:
    ids = np.array(tokenizer(sentence, add_special_tokens=False)["input_ids"])
    begins_sentence = np.arange(len(ids)) == 0
    spans = lexicon.find(ids, WordStarts(tokenizer)(ids, begins_sentence), begins_sentence)
    return [tokenizer.convert_ids_to_tokens(ids[begin:end]) for begin, end in spans]


def brute_force(keys: set[tuple[int, ...]], ids: list[int], begins_word: list[bool], begins_sentence: list[bool]):
    spans, start = [], 0
    stop = [*begins_sentence, True]
    may_end = [*(a or b for a, b in zip(begins_word, begins_sentence, strict=True)), True]
    while start < len(ids):
        best = 0
        for length in range(1, len(ids) - start + 1):
            if length > 1 and stop[start + length - 1]:
                break
            if begins_word[start] and tuple(ids[start : start + length]) in keys and may_end[start + length]:
                best = length
        spans += [(start, start + best)] if best else []
        start += best or 1
    return spans


class TestLongestMatch:
    def test_equals_a_search_of_all_runs(self, tokenizer):
        generator = np.random.default_rng(0)
        for _ in range(200):
            entries = {tuple(generator.integers(5, 9, generator.integers(1, 5)).tolist()) for _ in range(8)}
            lexicon = Lexicon([" ".join(f"w{token}" for token in entry) for entry in entries], tokenizer)
            ids = generator.integers(5, 10, 60)
            begins_sentence = (generator.random(60) < 0.1) | (np.arange(60) == 0)
            begins_word = (generator.random(60) < 0.7) | begins_sentence
            expected = brute_force(entries, ids.tolist(), begins_word.tolist(), begins_sentence.tolist())
            assert lexicon.find(ids, begins_word, begins_sentence) == expected

    def test_tokens_that_are_not_free(self, tokenizer):
        lexicon = Lexicon(["w5 w6", "w7 w8", "w5"], tokenizer)
        ids, words = np.array([5, 6, 7, 8, 5]), np.ones(5, dtype=bool)
        is_free = np.array([True, False, True, True, False])
        assert lexicon.find(ids, words & is_free, (np.arange(5) == 0) | ~is_free) == [(0, 1), (2, 4)]


class TestSpelling:
    def test_case_and_accents_are_the_tokenizers_and_an_entry_ends_with_a_word(self):
        tokenizer = bert("new", "york", "##er", "münchen", "munchen", ".")
        lexicon = Lexicon(["New York", "München"], tokenizer)
        assert entries_in("new NEW YORK. Munchen new yorker", lexicon, tokenizer) == [["new", "york"], ["munchen"]]

    @pytest.mark.parametrize("prefix", [False, True])
    def test_byte_level_tokens_after_a_space_at_the_start_and_after_a_mark(self, prefix):
        letters = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        backend = Tokenizer(models.BPE(letters | {"Ġa": 256, "bb": 257}, [("Ġ", "a"), ("b", "b")]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        backend.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
        lexicon = Lexicon(["a bb"], tokenizer)
        texts = {"a bb": 1, "c a bb": 1, "(a bb": 1, "c a bb, a bb": 2, "a bbb": 0, "ca bb": 0}
        for text, number in texts.items():
            assert len(entries_in(text, lexicon, tokenizer)) == number, text

    def test_sentencepiece_tokens_after_a_space_and_after_a_mark(self):
        pieces = ["<unk>", "▁", "▁a", "a", "▁bb", "▁(", "b", "(", ","]
        backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
        lexicon = Lexicon(["a bb"], tokenizer)
        for text, number in {"a bb": 1, "b a bb": 1, "(a bb": 1, "a bb,": 1, "a bbb": 0}.items():
            assert len(entries_in(text, lexicon, tokenizer)) == number, text

    def test_chinese_characters_anywhere(self):
        tokenizer = bert(*"北京大学生在")
        lexicon = Lexicon(["北京", "北京大学"], tokenizer)
        assert entries_in("在北京大学在北京", lexicon, tokenizer) == [[*"北京大学"], [*"北京"]]

    def test_full_width_letters(self):
        backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
        backend.normalizer, backend.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")
        assert entries_in("\uff41 \uff42 a", Lexicon(["a b"], tokenizer), tokenizer) == [["a", "b"]]

    def test_only_contexts_that_matter(self):
        assert spellings(["a b"], bert("a", "b", "(")) == [[(5, 6)]]


def test_entries_that_cannot_be_spelled_and_a_slow_tokenizer(tokenizer):
    assert Lexicon(["w5", "w6 zz"], tokenizer).unspelled == ["w6 zz"]
    with pytest.raises(ValueError, match="ByT5Tokenizer is written in Python"):
        Lexicon(["a"], ByT5Tokenizer())


class TestFiles:
    def test_comments_tabs_blank_lines_and_repeated_entries(self, tmp_path, tokenizer):
        file = tmp_path / "names.txt"
        file.write_bytes(b"\xef\xbb\xbf# names\nw5  w6\t12\t0.5\r\n\n#w7\n w8 \nw5 w6\n")
        assert read_entries(file) == ["w5  w6", "#w7", "w8", "w5 w6"]
        assert Lexicon(read_entries(file), tokenizer).entries == ["w5 w6", "#w7", "w8"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"# nothing\n\n", "' has no entry"),
            (bytes(range(256)) * 4, "is a binary file"),
            (("Köln\n" * 20).encode("utf-16"), "is a binary file"),
            (None, "is not a file"),
        ],
    )
    def test_other_files_are_refused(self, tmp_path, content, message):
        if content is not None:
            (tmp_path / "names.txt").write_bytes(content)
        with pytest.raises(ValueError, match=f"--lexicon '.*names.txt.*{message}"):
            read_entries(tmp_path / "names.txt", "--lexicon ")

    def test_names_of_jieba(self):
        pytest.importorskip("jieba")
        entries = jieba_entries()
        assert {"北京", "国务院", "中华人民共和国"} <= set(entries)
        assert not {"我们", "学习", "王"} & set(entries)
        assert 100_000 < len(entries) < 120_000
