"""Entries for the words of a domain: which, what they replace, and that other text is cut as before."""

import json
import random

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from hf_encoders.corpus.extension import (
    SCORE_MARGIN,
    _choose,
    _pairs,
    _replaced,
    _runs,
    _words,
    add_entries,
    compare_tokens,
    extend_vocabulary,
)
from hf_encoders.corpus.word_counts import count_words
from tests.corpus.trained import FAMILIES, lines, train
from tests.families import model_class
from tests.models.tiny import tiny_model


# Words of no line of `trained.lines`, at counts that differ.
DOMAIN = {"hypertension": 40, "hypertensive": 30, "tension": 9, "cardio": 20, "rarely": 4}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b", "##c"]


def domain_lines() -> list[str]:
    generator = random.Random(1)
    words = [word for word, count in DOMAIN.items() for _ in range(count)]
    generator.shuffle(words)
    return [" ".join(words[begin : begin + 6]) for begin in range(0, len(words), 6)]


def ids_of(tokenizer, text: list[str]) -> list[list[int]]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def new_entries(extended) -> list[str]:
    return extended.tokenizer.convert_ids_to_tokens(list(extended.pieces))


@pytest.mark.parametrize("config_class", FAMILIES, ids=lambda config_class: config_class.model_type)
class TestEveryFamily:
    def test_new_ids_follow_and_text_is_cut_into_them_or_as_before(self, config_class, tmp_path):
        tokenizer = train(config_class)
        words = count_words(domain_lines(), tokenizer)
        extended, again = (extend_vocabulary(tokenizer, words, 4) for _ in range(2))
        assert extended.pieces == again.pieces
        assert extended.tokenizer.backend_tokenizer.to_str() == again.tokenizer.backend_tokenizer.to_str()
        old, new = tokenizer.get_vocab(), extended.tokenizer.get_vocab()
        assert {name: new[name] for name in old} == old
        assert list(extended.pieces) == list(range(max(old.values()) + 1, max(old.values()) + 5))
        assert set(new.values()) - set(old.values()) == set(extended.pieces)
        assert type(extended.tokenizer) is type(tokenizer)
        assert extended.tokenizer.special_tokens_map == tokenizer.special_tokens_map
        assert extended.tokenizer.model_max_length == tokenizer.model_max_length
        pairs = ("the cat", "sat on hypertension")
        assert extended.tokenizer(*pairs).keys() == tokenizer(*pairs).keys()

        before, after = ids_of(tokenizer, domain_lines()), ids_of(extended.tokenizer, domain_lines())
        assert sum(map(len, after)) < 0.7 * sum(map(len, before))
        # An entry replaces the very tokens that stood there.
        for old_ids, new_ids in zip(before, after, strict=True):
            assert [piece for token in new_ids for piece in extended.pieces.get(token, [token])] == old_ids
        assert ids_of(extended.tokenizer, lines()) == ids_of(tokenizer, lines())

        extended.tokenizer.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        assert ids_of(loaded, domain_lines()) == after
        text = ["the cat and hypertension"]
        assert loaded.decode(ids_of(loaded, text)[0]) == tokenizer.decode(ids_of(tokenizer, text)[0])

    def test_unused_ids_come_first_and_the_model_keeps_its_shapes_while_they_last(self, config_class, tmp_path):
        tokenizer = train(config_class)
        tokenizer.add_tokens(["[unused0]", "[unused1]"])
        unused = tokenizer.convert_tokens_to_ids(["[unused0]", "[unused1]"])
        words = count_words(domain_lines(), tokenizer)
        old = {name: number for name, number in tokenizer.get_vocab().items() if number not in unused}
        for number, expected in ((2, unused), (3, [*unused, max(unused) + 1])):
            extended = extend_vocabulary(tokenizer, words, number)
            assert list(extended.pieces) == expected
            extended.tokenizer.save_pretrained(tmp_path / str(number))
            loaded = AutoTokenizer.from_pretrained(tmp_path / str(number))
            assert loaded.get_vocab() == {**old, **dict(zip(new_entries(extended), expected, strict=True))}
            assert not set(unused) & loaded.added_tokens_decoder.keys()
            before, after = ids_of(tokenizer, domain_lines()), ids_of(loaded, domain_lines())
            assert before != after
            for old_ids, new_ids in zip(before, after, strict=True):
                assert [piece for token in new_ids for piece in extended.pieces.get(token, [token])] == old_ids
            assert ids_of(loaded, lines()) == ids_of(tokenizer, lines())
        if "AutoModelForMaskedLM" not in config_class.AUTO_MAP:
            return
        extended = extend_vocabulary(tokenizer, words, 2)
        rows = max(unused) + 1  # no multiple of 64
        model = tiny_model(model_class(config_class, "AutoModelForMaskedLM"), vocab_size=rows, pad_token_id=0)
        ids = torch.tensor([ids_of(tokenizer, lines()[:1])[0][:8]])
        scores = model(ids).logits
        add_entries(model, extended.tokenizer, extended.pieces)
        assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == rows
        kept = [number for number in range(rows) if number not in unused]
        assert torch.equal(scores[..., kept], model(ids).logits[..., kept])

    def test_added_tokens_keep_their_ids_and_are_not_cut_into(self, config_class, tmp_path):
        tokenizer = train(config_class)
        tokenizer.add_tokens(["tensi", "<gene>"])
        text = domain_lines() + ["cardio <gene>"] * 9
        extended = extend_vocabulary(tokenizer, count_words(text, tokenizer), 40)
        extended.tokenizer.save_pretrained(tmp_path)
        old, new = tokenizer.get_vocab(), AutoTokenizer.from_pretrained(tmp_path).get_vocab()
        assert {name: new[name] for name in old} == old == {name: extended.tokenizer.get_vocab()[name] for name in old}
        assert min(extended.pieces) == old["<gene>"] + 1 and len(set(new.values())) == len(new)
        assert old["<gene>"] in ids_of(extended.tokenizer, ["hypertension and<gene>"])[0]
        entries = new_entries(extended)
        assert any("card" in entry for entry in entries)
        assert not any("tensi" in entry or "gene" in entry for entry in entries)
        change = compare_tokens(tokenizer, extended, text)
        assert change["tokens_before"] == sum(map(len, ids_of(tokenizer, text)))
        assert change["tokens_after"] == sum(map(len, ids_of(extended.tokenizer, text))) < change["tokens_before"]


class TestChoice:
    @pytest.mark.parametrize(
        ("cut", "runs", "least_count", "chosen"),
        [
            # abc saves 2 x 5, ab 1 x 12: then abc is one step from ab.
            ([("abc", 5), ("ab", 7)], _runs, 1, {"ab": ("a", "b"), "abc": ("ab", "c")}),
            ([("abc", 5)], _pairs, 1, {"ab": ("a", "b"), "abc": ("ab", "c")}),
            ([("abc", 5)], _runs, 1, {"abc": ("a", "b", "c")}),
            ([("xy", 5)], _pairs, 1, {}),  # an entry that is there
            ([(["ab", "c"], 5), (["a", "bc"], 4)], _pairs, 1, {"abc": ("ab", "c")}),  # one entry from two runs
            ([("aaa", 5)], _pairs, 5, {"aa": ("a", "a"), "aaa": ("aa", "a")}),  # runs that overlap count once
            ([("aaaaaa", 1)], _pairs, 4, {}),
            ([("a" * 16, 1)], _runs, 6, {"aa": ("a", "a")}),
            ([("abc" * 6, 1)], _runs, 5, {"ab": ("a", "b"), "abc": ("ab", "c")}),  # a long word gives pairs
            ([("abc" * 5, 1)], _runs, 5, {"abc": ("a", "b", "c")}),
        ],
    )
    def test_by_hand(self, cut, runs, least_count, chosen):
        entries = _choose([(list(word), count) for word, count in cut], 2, {"xy"}, "", runs, least_count)
        assert list(entries.items()) == list(chosen.items())

    def test_words_are_taken_whole(self):
        cut = [(["a", "##b", "##c"], 5), (["a", "##b"], 3), (["c"], 9)]
        assert _choose(cut, 5, set(), "##", _words) == {"abc": ("a", "##b", "##c"), "ab": ("a", "##b")}

    def test_a_naive_loop_chooses_the_same(self):
        generator = random.Random(0)
        lengths = [generator.randint(2, 6) for _ in range(60)]
        cut = [(generator.choices("abcd", k=length), generator.randint(1, 9)) for length in lengths]
        expected, words = {}, [(list(pieces), count) for pieces, count in cut]
        while len(expected) < 12:
            gains = {}
            for pieces, count in words:
                for pair in {*_pairs(pieces)}:
                    saved = len(pieces) - len(_replaced(pieces, pair, ""))
                    gains[pair] = gains.get(pair, 0) + count * saved
            gains = {pair: gain for pair, gain in gains.items() if "".join(pair) not in expected}
            pair = min(gains, key=lambda pair: (-gains[pair], pair))
            expected["".join(pair)] = pair
            words = [(_replaced(pieces, pair, "".join(pair)), count) for pieces, count in words]
        assert _choose(cut, 12, set(), "", _pairs) == expected


def test_scores_of_unigram_entries():
    albert = next(family for family in FAMILIES if family.VOCABULARY_KIND == "unigram")
    tokenizer = train(albert)
    extended = extend_vocabulary(tokenizer, count_words(domain_lines(), tokenizer), 1)
    ((new, pieces),) = extended.pieces.items()
    state = json.loads(extended.tokenizer.backend_tokenizer.to_str())["model"]["vocab"]
    assert len(pieces) > 2
    expected = sum(state[piece][1] for piece in pieces) + SCORE_MARGIN * (len(pieces) - 1)
    assert state[new][1] == pytest.approx(expected, abs=SCORE_MARGIN / 10)


def letters(model_class, names: str | list[str] = "abcdefgh", **options):
    """A tokenizer whose pieces are letters."""
    if model_class is models.BPE:
        vocabulary = {name: number for number, name in enumerate(["<unk>", *names])}
        model = models.BPE(vocabulary, [], unk_token="<unk>", **options)
    else:
        scored = [(name, -1.1 - number / 7) for number, name in enumerate(names)]
        model = models.Unigram([("<unk>", 0.0), *scored], 0, **options)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>")


def test_a_unigram_entry_wins_against_a_shorter_one_that_is_chosen_later():
    extended = extend_vocabulary(letters(models.Unigram), {"abcdefgh": 20, "abc": 30, "defg": 25}, 9)
    new = new_entries(extended)
    assert new[:3] == ["abcdefgh", "defg", "abc"]
    assert [extended.tokenizer.tokenize(entry) for entry in new] == [[entry] for entry in new]


@pytest.mark.parametrize("model_class", [models.BPE, models.Unigram])
class TestFrequency:
    def test_pieces_are_counted_over_frequent_words_and_long_ones(self, model_class):
        words = {"cabd": 5, "cdef" * 5 + "gh": 3, "efgh" * 5 + "dc": 3, "gfe": 4}
        new = new_entries(extend_vocabulary(letters(model_class), words, 99))
        assert {"cabd"} < {*new} and any("efgh" in entry for entry in new) and not any("gf" in entry for entry in new)
        assert not any("hd" in entry or "hg" in entry for entry in new)  # 3 times

    def test_an_unknown_character_divides_a_word(self, model_class):
        assert new_entries(extend_vocabulary(letters(model_class), {"abxcd": 6}, 9)) == ["ab", "cd"]

    def test_a_text_without_spaces_is_one_word(self, model_class):
        generator = random.Random(0)
        sentences = ["".join(generator.choices("cdefgh", k=90)) + "ab" * 5 for _ in range(40)]
        extended = extend_vocabulary(letters(model_class), dict.fromkeys(sentences, 1), 12)
        assert max(map(len, extended.pieces.values())) <= 10
        tokens = sum(len(extended.tokenizer.tokenize(sentence)) for sentence in sentences) / 40
        assert tokens < 85  # of 100 letters

    def test_bytes_of_unknown_characters_are_no_pieces_of_entries(self, model_class):
        names = ["a", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
        tokenizer = letters(model_class, names, byte_fallback=True)
        assert len(ids_of(tokenizer, ["é"])[0]) == 2
        assert new_entries(extend_vocabulary(tokenizer, {"é": 90, "ab": 5}, 3)) == ["ab"]


def test_tokens_that_a_unigram_model_does_not_list():
    tokenizer = letters(models.Unigram, "ab")
    tokenizer.add_tokens(["<x>"])
    extended = extend_vocabulary(tokenizer, {"ab": 5}, 1)
    assert extended.tokenizer.convert_tokens_to_ids(["<x>", "ab"]) == [3, 4]
    assert ids_of(extended.tokenizer, ["ab<x>ab"]) == [[4, 3, 4]]


@pytest.fixture
def wordpiece():
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})


def test_unused_entries_of_a_vocabulary_itself():
    """As in BERT's vocab.txt: they are entries of the model, no added tokens."""
    vocabulary = {piece: i for i, piece in enumerate([*PIECES[:1], "[unused0]", *PIECES[1:], "[unused1]"])}
    tokenizer = BertTokenizer(vocab=vocabulary)
    extended = extend_vocabulary(tokenizer, {"ab": 9, "abc": 7, "ba": 5}, 3)
    assert extended.tokenizer.get_vocab() == {
        **{piece: number for piece, number in vocabulary.items() if "unused" not in piece},
        **dict(zip(new_entries(extended), [1, len(vocabulary) - 1, len(vocabulary)], strict=True)),
    }


def test_unused_entries_in_use_are_not_taken_and_those_of_gemma_are():
    vocabulary = {piece: i for i, piece in enumerate(["[unused0]", "<unused1>", *PIECES])}
    tokenizer = BertTokenizer(vocab=vocabulary, extra_special_tokens=["[unused0]"])
    extended = extend_vocabulary(tokenizer, {"ab": 9, "abc": 7}, 2)
    assert list(extended.pieces) == [1, len(vocabulary)]
    assert extended.tokenizer.convert_tokens_to_ids("[unused0]") == 0


def test_wordpiece_by_hand(wordpiece):
    extended = extend_vocabulary(wordpiece, {"abc": 6, "cab": 5, "ab": 2}, 2)
    assert new_entries(extended) == ["abc", "cab"]
    assert extended.pieces == {11: [5, 9, 10], 12: [7, 8, 9]}
    assert ids_of(extended.tokenizer, ["abca cab b"]) == [[11, 8, 12, 6]]


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ({"abc": 6}, {"number": 0}, "number=0"),
        ({"abc": 6}, {"least_count": 0}, "least_count=0"),
        ({"abc": 4}, {}, "no word of two pieces, .* that occur 5 times"),
        ({"a": 60}, {}, "no word of two pieces"),
        ({"axb": 60}, {}, "no word of two pieces"),  # x is unknown
    ],
)
def test_wrong_input(wordpiece, words, options, message):
    with pytest.raises(ValueError, match=message):
        extend_vocabulary(wordpiece, words, **{"number": 3, **options})


def test_an_added_token_of_whole_words_is_not_counted_and_wordpiece_refuses_it(wordpiece, tokenizer):
    with pytest.raises(ValueError, match="type WordLevel"):
        extend_vocabulary(tokenizer, {"w5": 9}, 1)
    wordpiece.add_tokens([AddedToken("ab", single_word=True), AddedToken("c++", single_word=True)])
    assert count_words(["a c++ b"], wordpiece) == {"a": 1, "b": 1}
    with pytest.raises(ValueError, match="added token 'ab' .*without single_word"):
        extend_vocabulary(wordpiece, {"abc": 6}, 1)
