"""Training of tokenizers: published ids, the same bytes everywhere, text of every script, several sources."""

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from transformers import AddedToken, AutoTokenizer

from hf_encoders import HfeAlbertConfig, HfeBertConfig, HfeRobertaConfig, HfeXLMConfig, train_tokenizer
from hf_encoders.corpus.text_files import Sampling
from hf_encoders.corpus.tokenizer_training import _with_equal_restored, untrained_tokenizer
from hf_encoders.corpus.word_counts import count_words, covered_words, repeated, weighted_words
from tests.corpus.trained import FAMILIES, digests, train
from tests.hub.remote_process import run_without_package


ROOT = Path(__file__).parents[2]
KINDS = [HfeBertConfig, HfeRobertaConfig, HfeAlbertConfig, HfeXLMConfig]  # one of each kind of vocabulary
SCRIPTS = ["हिन्दी में लिखा है", "Über den Fluß geht es", "ภาษาไทยมีสระ", "plain English words"] * 30
# Ids of the special tokens in the published tokenizers; BERT's without its spare entries. "last" is V - 1.
PUBLISHED = {
    "bert": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
    "roberta": {"cls": 0, "bos": 0, "pad": 1, "sep": 2, "eos": 2, "unk": 3, "mask": "last"},
    "albert": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
    "xlm": {"bos": 0, "eos": 1, "cls": 1, "sep": 1, "pad": 2, "unk": 3, "mask": 5},
    "xlnet": {"unk": 0, "bos": 1, "eos": 2, "cls": 3, "sep": 4, "pad": 5, "mask": 6},
    "deberta-v2": {"pad": 0, "cls": 1, "sep": 2, "unk": 3, "mask": "last"},
    "modernbert": {"mask": "last"},  # the last of five; in the published vocabulary 83 spare ones follow
}
PUBLISHED["xlm-roberta"] = PUBLISHED["roberta"]
PUBLISHED["distilbert"] = PUBLISHED["electra"] = PUBLISHED["bert"]
DOUBLED_SEPARATOR = ("roberta", "xlm-roberta", "xlm")  # between the texts of a pair
ENGLISH = [f"the {word} house is {word}" for word in ("red", "old", "small", "wide", "dark", "green")] * 50
SWISS = [f"s {word} huus isch {word}" for word in ("root", "alt", "chlii", "breit", "dunkel", "grüen")]
SOURCES = {"en": ENGLISH, "gsw": SWISS}


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
    with pytest.raises(ValueError, match="character_coverage=0 "):
        covered_words(words, 0)


@pytest.mark.parametrize("config_class", FAMILIES)
def test_special_tokens_have_the_published_ids(config_class):
    tokenizer = train(config_class)
    for role, i in PUBLISHED[config_class.model_type].items():
        assert getattr(tokenizer, f"{role}_token_id") == (len(tokenizer) - 1 if i == "last" else i), role
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert tokenizer.model_max_length == 48 and len(tokenizer) <= 420
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    middle = [last, last] if config_class.model_type in DOUBLED_SEPARATOR else [last]
    one, two = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("cat", "mat"))
    expected = [first, *one, *middle, *two, last]
    if config_class.model_type == "xlnet":
        expected = [*one, last, *two, last, first]
    assert tokenizer("cat", "mat")["input_ids"] == expected


@pytest.mark.parametrize("config_class", FAMILIES)
def test_marks_of_other_languages_survive(config_class):
    tokenizer = train_tokenizer(SCRIPTS, config_class, vocab_size=400, max_length=32, lowercase=False)
    for sentence in SCRIPTS[:4]:
        ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        if config_class.model_type == "xlnet":  # transformers' class of it always strips them
            characters = unicodedata.normalize("NFKD", sentence)
            sentence = "".join(character for character in characters if unicodedata.category(character)[0] != "M")
        assert tokenizer.decode(ids).replace(" ", "") == sentence.replace(" ", "")


def test_accents_and_case_go_where_asked(tmp_path):
    tokenizer = train_tokenizer(SCRIPTS, HfeBertConfig, 400, 32, lowercase=True, strip_accents=True)
    tokenizer.save_pretrained(tmp_path)
    for loaded in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert loaded.decode(loaded("Über", add_special_tokens=False)["input_ids"]) == "uber"


def test_wordpiece_is_learned_as_by_hand():
    # (##u, ##g) stands 10 + 5 + 5 = 20 times, (##u, ##n) 12 + 4 = 16; then (h, ##ug) 15 times and (p, ##un) 12.
    text = ["hug"] * 10 + ["pug"] * 5 + ["pun"] * 12 + ["bun"] * 4 + ["hugs"] * 5
    tokenizer = train_tokenizer(text, HfeBertConfig, 5 + 7 + 4 + 4, 16)
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)[5:]
    characters = ["b", "g", "h", "n", "p", "s", "u", "##g", "##n", "##s", "##u"]
    assert pieces == [*characters, "##ug", "##un", "hug", "pun"]


@pytest.mark.parametrize("config_class", [HfeRobertaConfig, HfeAlbertConfig])
def test_the_mask_takes_the_space_before_it_where_pieces_do(config_class):
    tokenizer = train(config_class)
    ids = tokenizer(f"cat {tokenizer.mask_token}", add_special_tokens=False)["input_ids"]
    assert ids == [*tokenizer("cat", add_special_tokens=False)["input_ids"], tokenizer.mask_token_id]


def test_characters_restored_share_the_lowest_score():
    scores = {"▁the": -2.0, "e": -3.00005, "ab": -9.0, "x": -9.0, "y": -8.9999, "z": -8.9998}
    assert _with_equal_restored(scores) == scores | {"y": -9.0, "z": -9.0}


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


def test_lone_surrogates_are_replaced():
    """JSON escapes may hold half a pair, which UTF-8 cannot encode."""
    texts = ([f"plain {character} words"] * 9 for character in ("\ud83d", "\ufffd"))
    vocabularies = [train_tokenizer(text, HfeBertConfig, 60, 32).get_vocab() for text in texts]
    assert vocabularies[0] == vocabularies[1]


class TestSeveralSources:
    def entries(self, alpha, sources=SOURCES):
        return set(train_tokenizer(sources, HfeBertConfig, 60, sampling_alpha=alpha).get_vocab())

    def test_alpha_1_is_the_text_as_it_is_and_the_order_does_not_matter(self):
        assert self.entries(1.0) == self.entries(1.0, sources=[*ENGLISH, *SWISS])
        assert self.entries(0.5) == self.entries(0.5, sources=dict(reversed(SOURCES.items())))

    def test_a_lower_alpha_gives_the_small_source_more_entries(self):
        words = {word for line in SWISS for word in line.split()}
        assert len(words & self.entries(0.1)) > len(words & self.entries(1.0))

    def test_words_count_as_in_a_text_of_these_shares(self):
        """10,000 bytes and 400, to the power 0.5, are five to one, not 25: the small one counts five times."""
        words = {"en": {"a": 70, "b": 30}, "gsw": {"b": 3, "c": 1}}
        shares = Sampling(0.5).shares({"en": 10_000, "gsw": 400})
        assert shares == {"en": pytest.approx(5 / 6), "gsw": pytest.approx(1 / 6)}
        assert weighted_words(words, {"en": 10_000, "gsw": 400}, shares) == {"a": 70, "b": 30 + 15, "c": 5}


@pytest.mark.parametrize(
    ("sentences", "options", "message"),
    [
        ([], {}, "the text is empty"),
        (ENGLISH, {"vocab_size": 20}, r"vocab_size=20 .* takes \d+ entries"),
        ({"en": ENGLISH, "gsw": []}, {}, "source 'gsw' has no text"),
        (ENGLISH, {"sampling_alpha": 0.5}, "sampling_alpha=0.5 is for several sources"),
        (SOURCES, {"sampling_alpha": 2}, "alpha=2 "),
    ],
)
def test_wrong_input(sentences, options, message):
    for config_class in KINDS:
        with pytest.raises(ValueError, match=message):
            train_tokenizer(sentences, config_class, **{"vocab_size": 400, **options})
