"""Entries for the words of a domain: which, what they replace, and that other text is cut as before."""

import json
import random

import pytest
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from hf_encoders.corpus.extension import (
    SCORE_MARGIN,
    TextChange,
    _choose,
    _pairs,
    _replaced,
    _runs,
    _words,
    extend_vocabulary,
)
from hf_encoders.corpus.word_counts import count_words
from tests.corpus.trained import FAMILIES, lines, train


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


@pytest.mark.parametrize("config_class", FAMILIES, ids=lambda config_class: config_class.model_type)
class TestEveryFamily:
    def test_new_ids_follow_and_stand_for_old_ones(self, config_class, tmp_path):
        tokenizer = train(config_class)
        extended = extend_vocabulary(tokenizer, count_words(domain_lines(), tokenizer), 4)
        old, new = tokenizer.get_vocab(), extended.tokenizer.get_vocab()
        assert {name: new[name] for name in old} == old
        assert list(extended.pieces) == [max(old.values()) + 1 + place for place in range(4)]
        assert set(new.values()) - set(old.values()) == set(extended.pieces)
        assert type(extended.tokenizer) is type(tokenizer)
        assert extended.tokenizer.special_tokens_map == tokenizer.special_tokens_map
        assert extended.tokenizer.model_max_length == tokenizer.model_max_length
        pairs = ("the cat", "sat on hypertension")
        assert extended.tokenizer(*pairs).keys() == tokenizer(*pairs).keys()
        extended.tokenizer.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        assert ids_of(loaded, domain_lines()) == ids_of(extended.tokenizer, domain_lines())
        assert loaded.decode(ids_of(loaded, ["the cat and hypertension"])[0]) == tokenizer.decode(
            ids_of(tokenizer, ["the cat and hypertension"])[0]
        )

    def test_text_gets_shorter_and_says_the_same(self, config_class):
        tokenizer = train(config_class)
        extended = extend_vocabulary(tokenizer, count_words(domain_lines(), tokenizer), 4)
        before, after = ids_of(tokenizer, domain_lines()), ids_of(extended.tokenizer, domain_lines())
        assert sum(map(len, after)) < 0.7 * sum(map(len, before))
        # What an entry replaces are the very tokens that stood there.
        for old, new in zip(before, after, strict=True):
            assert [one for token in new for one in extended.pieces.get(token, [token])] == old
        other = lines()
        assert ids_of(extended.tokenizer, other) == ids_of(tokenizer, other)

    def test_added_tokens_keep_their_ids(self, config_class, tmp_path):
        tokenizer = train(config_class)
        tokenizer.add_tokens(["<drug>", "<gene>"])
        extended = extend_vocabulary(tokenizer, count_words(domain_lines(), tokenizer), 3)
        extended.tokenizer.save_pretrained(tmp_path)
        old, new = tokenizer.get_vocab(), AutoTokenizer.from_pretrained(tmp_path).get_vocab()
        assert {name: new[name] for name in old} == old == {name: extended.tokenizer.get_vocab()[name] for name in old}
        assert min(extended.pieces) == old["<gene>"] + 1 and len(set(new.values())) == len(new)
        ids = ids_of(extended.tokenizer, ["hypertension<drug> and<gene>"])[0]
        assert [one for one in ids if one in (old["<drug>"], old["<gene>"])] == [old["<drug>"], old["<gene>"]]

    def test_rows_are_the_same_every_time(self, config_class):
        tokenizer = train(config_class)
        words = count_words(domain_lines(), tokenizer)
        one, other = (extend_vocabulary(tokenizer, words, 3) for _ in range(2))
        assert one.pieces == other.pieces
        assert one.tokenizer.backend_tokenizer.to_str() == other.tokenizer.backend_tokenizer.to_str()


class TestChoice:
    def test_the_largest_saving_first(self):
        cut = [(["a", "b", "c"], 5), (["a", "b"], 7)]
        # abc saves 2 x 5, ab 1 x 12: then abc is one step from ab.
        assert list(_choose(cut, 5, set(), "", _runs).items()) == [("ab", ("a", "b")), ("abc", ("ab", "c"))]

    def test_merges_are_pairs(self):
        assert _choose([(["a", "b", "c"], 5)], 5, set(), "", _pairs) == {"ab": ("a", "b"), "abc": ("ab", "c")}
        assert _choose([(["a", "b", "c"], 5)], 5, set(), "", _runs) == {"abc": ("a", "b", "c")}

    def test_words_are_taken_whole(self):
        cut = [(["a", "##b", "##c"], 5), (["a", "##b"], 3), (["c"], 9)]
        assert _choose(cut, 5, set(), "##", _words) == {"abc": ("a", "##b", "##c"), "ab": ("a", "##b")}

    def test_an_entry_that_is_there_is_not_added(self):
        assert _choose([(["a", "b"], 5)], 5, {"ab"}, "", _pairs) == {}

    def test_one_entry_from_two_runs_is_one(self):
        cut = [(["ab", "c"], 5), (["a", "bc"], 4)]
        assert _choose(cut, 5, set(), "", _pairs) == {"abc": ("ab", "c")}

    def test_runs_that_overlap_count_once(self):
        assert _choose([(["a", "a", "a"], 5)], 1, set(), "", _pairs) == {"aa": ("a", "a")}
        assert _choose([(["a"] * 6, 1)], 1, set(), "", _pairs, least_count=3) == {"aa": ("a", "a")}
        assert _choose([(["a"] * 6, 1)], 1, set(), "", _pairs, least_count=4) == {}
        assert _choose([(["a"] * 16, 1)], 9, set(), "", _runs, least_count=6) == {"aa": ("a", "a")}

    def test_long_words_give_pairs(self):
        cut = [([*"abc"] * 6, 1)]
        assert list(_choose(cut, 2, set(), "", _runs, least_count=5).items()) == [
            ("ab", ("a", "b")),
            ("abc", ("ab", "c")),
        ]
        assert list(_choose([([*"abc"] * 5, 1)], 1, set(), "", _runs, least_count=5)) == ["abc"]

    def test_a_naive_loop_chooses_the_same(self):
        generator = random.Random(0)
        lengths = [generator.randint(2, 6) for _ in range(60)]
        cut = [(generator.choices("abcd", k=length), generator.randint(1, 9)) for length in lengths]
        expected, words = {}, [(list(pieces), count) for pieces, count in cut]
        while len(expected) < 12:
            gains = {}
            for pieces, count in words:
                for pair in {*zip(pieces, pieces[1:], strict=False)}:
                    saved = len(pieces) - len(_replaced(pieces, pair, ""))
                    gains[pair] = gains.get(pair, 0) + count * saved
            gains = {pair: gain for pair, gain in gains.items() if "".join(pair) not in expected}
            pair = min(gains, key=lambda pair: (-gains[pair], pair))
            expected["".join(pair)] = pair
            for place, (pieces, count) in enumerate(words):
                found, i = [], 0
                while i < len(pieces):
                    is_pair = tuple(pieces[i : i + 2]) == pair
                    found.append("".join(pair) if is_pair else pieces[i])
                    i += 1 + is_pair
                words[place] = found, count
        assert _choose(cut, 12, set(), "", _pairs) == expected


def test_scores_of_unigram_entries():
    albert = next(one for one in FAMILIES if one.VOCABULARY_KIND == "unigram")
    tokenizer = train(albert)
    extended = extend_vocabulary(tokenizer, count_words(domain_lines(), tokenizer), 1)
    ((new, pieces),) = extended.pieces.items()
    state = json.loads(extended.tokenizer.backend_tokenizer.to_str())["model"]["vocab"]
    assert len(pieces) > 2
    assert state[new][1] == pytest.approx(
        sum(state[piece][1] for piece in pieces) + SCORE_MARGIN * (len(pieces) - 1), abs=SCORE_MARGIN / 10
    )


def letters(model_class, text: str = "abcdefgh"):
    """A tokenizer whose pieces are letters."""
    if model_class is models.BPE:
        model = models.BPE({one: number for number, one in enumerate(["<unk>", *text])}, [], unk_token="<unk>")
    else:
        model = models.Unigram([("<unk>", 0.0), *((one, -1.1 - place / 7) for place, one in enumerate(text))], 0)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>")


def test_a_unigram_entry_wins_against_a_shorter_one_that_is_chosen_later():
    extended = extend_vocabulary(letters(models.Unigram), {"abcdefgh": 20, "abc": 30, "defg": 25}, 9)
    new = extended.tokenizer.convert_ids_to_tokens(list(extended.pieces))
    assert new[:3] == ["abcdefgh", "defg", "abc"]
    assert [extended.tokenizer.tokenize(entry) for entry in new] == [[entry] for entry in new]


@pytest.mark.parametrize("model_class", [models.BPE, models.Unigram])
class TestFrequency:
    def test_pieces_are_counted_over_frequent_words_and_long_ones(self, model_class):
        words = {"cabd": 5, "cdef" * 5 + "gh": 3, "efgh" * 5 + "dc": 3, "gfe": 4}
        extended = extend_vocabulary(letters(model_class), words, 99)
        new = extended.tokenizer.convert_ids_to_tokens(list(extended.pieces))
        assert {"cabd"} < {*new} and any("efgh" in entry for entry in new) and not any("gf" in entry for entry in new)
        assert not any("hd" in entry or "hg" in entry for entry in new)  # 3 times

    def test_an_unknown_character_divides_a_word(self, model_class):
        extended = extend_vocabulary(letters(model_class), {"abxcd": 6}, 9)
        assert extended.tokenizer.convert_ids_to_tokens(list(extended.pieces)) == ["ab", "cd"]

    def test_a_text_without_spaces_is_one_word(self, model_class):
        generator = random.Random(0)
        sentences = ["".join(generator.choices("cdefgh", k=90)) + "ab" * 5 for _ in range(40)]
        extended = extend_vocabulary(letters(model_class), dict.fromkeys(sentences, 1), 12)
        assert max(map(len, extended.pieces.values())) <= 10
        saved = sum(len(extended.tokenizer.tokenize(one)) for one in sentences) / 40
        assert saved < 85  # of 100 letters


@pytest.mark.parametrize("config_class", FAMILIES, ids=lambda config_class: config_class.model_type)
def test_no_entry_for_words_with_an_added_token(config_class):
    tokenizer = train(config_class)
    tokenizer.add_tokens(["tensi", "<gene>"])
    text = domain_lines() + ["cardio <gene>"] * 9
    extended = extend_vocabulary(tokenizer, count_words(text, tokenizer), 40)
    new = extended.tokenizer.convert_ids_to_tokens(list(extended.pieces))
    assert any("card" in entry for entry in new)
    used = {token for ids in ids_of(extended.tokenizer, text) for token in ids}
    assert not any("tensi" in entry or "gene" in entry for entry in new) and used.intersection(extended.pieces)
    change = TextChange.of(tokenizer, extended, text)
    assert change.tokens_before == sum(map(len, ids_of(tokenizer, text)))
    assert change.tokens_after == sum(map(len, ids_of(extended.tokenizer, text))) < change.tokens_before


def test_an_added_token_of_whole_words_that_ends_in_a_sign_is_not_counted():
    tokenizer = train(next(one for one in FAMILIES if one.model_type == "bert"))
    tokenizer.add_tokens([AddedToken("c++", single_word=True)])
    assert count_words(["a c++ b"], tokenizer) == {"a": 1, "b": 1}


def test_a_count_below_one_is_refused():
    tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
    with pytest.raises(ValueError, match="least_count=0 must be at least 1"):
        extend_vocabulary(tokenizer, {"abc": 6}, 1, least_count=0)


def test_added_tokens_of_whole_words_are_refused_in_wordpiece():
    tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
    tokenizer.add_tokens([AddedToken("ab", single_word=True)])
    with pytest.raises(ValueError, match="added token 'ab' of whole words.*add it without single_word"):
        extend_vocabulary(tokenizer, {"abc": 6}, 1)


def test_wordpiece_by_hand():
    tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
    extended = extend_vocabulary(tokenizer, {"abc": 6, "cab": 5, "ab": 2}, 2)
    assert extended.tokenizer.convert_ids_to_tokens([11, 12]) == ["abc", "cab"]
    assert extended.pieces == {11: [5, 9, 10], 12: [7, 8, 9]}
    assert ids_of(extended.tokenizer, ["abca cab b"]) == [[11, 8, 12, 6]]


@pytest.mark.parametrize(
    ("words", "number", "message"),
    [
        ({"abc": 6}, 0, "number=0 must be at least 1"),
        ({"abc": 4}, 3, "no word of two pieces, nor pieces in a long one, that occur 5 times"),
        ({"a": 60}, 3, "no word of two pieces"),
        ({"axb": 60}, 3, "no word of two pieces"),  # x is unknown
    ],
)
def test_wrong_input(words, number, message):
    tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
    with pytest.raises(ValueError, match=message):
        extend_vocabulary(tokenizer, words, number)


def test_other_models_are_refused(tokenizer):
    with pytest.raises(ValueError, match="type WordLevel: entries can be added to WordPiece, BPE, Unigram"):
        extend_vocabulary(tokenizer, {"w5": 9}, 1)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_bytes_of_unknown_characters_are_no_pieces_of_entries(kind):
    names = ["<unk>", "a", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
    if kind == "bpe":
        vocabulary = {name: number for number, name in enumerate(names)}
        model = models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    else:
        model = models.Unigram([(name, -float(place)) for place, name in enumerate(names)], 0, byte_fallback=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>")
    assert len(ids_of(tokenizer, ["é"])[0]) == 2
    extended = extend_vocabulary(tokenizer, {"é": 90, "ab": 5}, 3)
    assert extended.tokenizer.convert_ids_to_tokens(list(extended.pieces)) == ["ab"]


def test_tokens_that_a_unigram_model_does_not_list():
    model = models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.0)], unk_id=0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>")
    tokenizer.add_tokens(["<x>"])
    extended = extend_vocabulary(tokenizer, {"ab": 5}, 1)
    assert extended.tokenizer.convert_tokens_to_ids(["<x>", "ab"]) == [3, 4]
    assert ids_of(extended.tokenizer, ["ab<x>ab"]) == [[4, 3, 4]]
