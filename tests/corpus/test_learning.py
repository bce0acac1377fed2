import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AddedToken, AutoTokenizer

from hf_encoders import HfeAlbertConfig, HfeBertConfig, HfeRobertaConfig
from hf_encoders.corpus.tokenizer_training import _with_equal_restored, train_tokenizer, untrained_tokenizer
from hf_encoders.corpus.word_counts import count_words, covered_words, repeated
from tests.corpus.trained import FAMILIES, digests, train
from tests.hub.remote_process import run_without_package


ROOT = Path(__file__).parents[3]
# Ids of the special tokens in the published tokenizers; BERT's without its spare entries. "last" is V - 1.
PUBLISHED = {
    "bert": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
    "roberta": {"cls": 0, "bos": 0, "pad": 1, "sep": 2, "eos": 2, "unk": 3, "mask": "last"},
    "albert": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
}
PUBLISHED["xlm-roberta"] = PUBLISHED["roberta"]
PUBLISHED["xlm"] = {"bos": 0, "eos": 1, "cls": 1, "sep": 1, "pad": 2, "unk": 3, "mask": 5}
PUBLISHED["distilbert"] = PUBLISHED["electra"] = PUBLISHED["bert"]
PUBLISHED["xlnet"] = {"unk": 0, "bos": 1, "eos": 2, "cls": 3, "sep": 4, "pad": 5, "mask": 6}
DOUBLED_SEPARATOR = ("roberta", "xlm-roberta", "xlm")  # between the texts of a pair


@pytest.mark.processes
def test_the_same_text_gives_the_same_bytes_in_another_process(tmp_path):
    code = "import sys; from tests.corpus.trained import digests; print(*digests(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "there")]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert digests(str(tmp_path / "here")) == printed.split()


def test_word_counts_are_those_of_the_text():
    words = count_words(["b a A", "a\u00e9 b,"], untrained_tokenizer(HfeBertConfig, {}))
    assert list(words.items()) == [(",", 1), ("a", 2), ("ae", 1), ("b", 2)]
    again = "".join(repeated({"x": 25, "yz": 1}, words_per_line=10)).replace("x", "x ").split()
    assert (again.count("x"), again[-1]) == (25, "yz")


def test_characters_are_covered_up_to_the_share():
    words = {"ab": 50, "b": 49, "c": 1, "d": 1}
    assert covered_words(words, 1) == words
    assert covered_words(words, 0.98) == {"ab": 50, "b": 49}
    assert covered_words(words, 0.99) == {"ab": 50, "b": 49, "c": 1}  # of equal counts the lower code point
    with pytest.raises(ValueError, match="character_coverage=0 must be in"):
        covered_words(words, 0)


@pytest.mark.parametrize("config_class", FAMILIES)
def test_special_tokens_have_the_published_ids(config_class):
    tokenizer = train(config_class)
    for role, i in PUBLISHED[config_class.model_type].items():
        assert getattr(tokenizer, f"{role}_token_id") == (len(tokenizer) - 1 if i == "last" else i), role
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    middle = [last, last] if config_class.model_type in DOUBLED_SEPARATOR else [last]
    one, two = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("cat", "mat"))
    if config_class.model_type == "xlnet":
        assert tokenizer("cat", "mat")["input_ids"] == [*one, last, *two, last, first]
    else:
        assert tokenizer("cat", "mat")["input_ids"] == [first, *one, *middle, *two, last]


def test_wordpiece_is_learned_as_by_hand():
    # (##u, ##g) stands 10 + 5 + 5 = 20 times, (##u, ##n) 12 + 4 = 16; then (h, ##ug) 15 times and (p, ##un) 12.
    text = ["hug"] * 10 + ["pug"] * 5 + ["pun"] * 12 + ["bun"] * 4 + ["hugs"] * 5
    tokenizer = train_tokenizer(text, HfeBertConfig, 5 + 7 + 4 + 4, 16)
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)[5:]
    characters = ["b", "g", "h", "n", "p", "s", "u", "##g", "##n", "##s", "##u"]
    assert pieces == [*characters, "##ug", "##un", "hug", "pun"]


def test_chinese_characters_stand_apart_in_wordpiece():
    tokenizer = train_tokenizer(["中文字中文 abc中"] * 5, HfeBertConfig, 60, 16)
    assert tokenizer.tokenize("中文abc") == ["中", "文", "abc"]
    assert not any(piece.startswith("##") and not piece.isascii() for piece in tokenizer.get_vocab())


def test_the_mask_takes_the_space_before_it_where_pieces_do():
    for config_class in (HfeRobertaConfig, HfeAlbertConfig):
        tokenizer = train(config_class)
        ids = tokenizer(f"cat {tokenizer.mask_token}", add_special_tokens=False)["input_ids"]
        assert ids == [*tokenizer("cat", add_special_tokens=False)["input_ids"], tokenizer.mask_token_id]


def test_byte_level_bpe_marks_the_space_before_and_knows_all_text():
    tokenizer = train(HfeRobertaConfig)
    assert "".join(tokenizer.tokenize("the the")) == "theĠthe"
    for text in ("Ü中\u0000\n😀 x", " two  spaces "):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_characters_restored_share_the_lowest_score():
    scores = {"▁the": -2.0, "e": -3.00005, "ab": -9.0, "x": -9.0, "y": -8.9999, "z": -8.9998}
    assert _with_equal_restored(scores) == scores | {"y": -9.0, "z": -9.0}


@pytest.mark.parametrize("config_class", FAMILIES)
def test_a_vocabulary_too_small_for_the_characters_is_refused(config_class):
    with pytest.raises(ValueError, match=r"vocab_size=30 is too small .* takes \d+ entries"):
        train(config_class, vocab_size=30)


@pytest.mark.processes
def test_auto_tokenizer_loads_it_without_this_package(tmp_path):
    texts = ["The cat, 中文 Über!", "qxz naïve"]
    expected = {}
    for config_class in FAMILIES:
        tokenizer = train(config_class)
        tokenizer.save_pretrained(tmp_path / config_class.model_type)
        masked = [*texts, f"a {tokenizer.mask_token} run"]
        mask = tokenizer.added_tokens_decoder[tokenizer.mask_token_id]
        assert isinstance(mask, AddedToken) and mask.lstrip == (config_class.VOCABULARY_KIND in ("bpe", "unigram"))
        expected[config_class.model_type] = [type(tokenizer).__name__, 48, masked, tokenizer(masked)["input_ids"]]
    snippet = """
    from transformers import AutoTokenizer

    result = {}
    for name, (_, _, texts, _) in argument["expected"].items():
        tokenizer = AutoTokenizer.from_pretrained(argument["folder"] + "/" + name)
        ids = tokenizer(texts)["input_ids"]
        result[name] = [type(tokenizer).__name__, tokenizer.model_max_length, texts, ids]
    """
    argument = {"expected": expected, "folder": str(tmp_path)}
    assert run_without_package(snippet, tmp_path / "home", argument=argument) == expected


def test_saved_again_it_is_the_same(tmp_path):
    for config_class in FAMILIES:
        train(config_class).save_pretrained(tmp_path / "a")
        AutoTokenizer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
        assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()
