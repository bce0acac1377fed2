import functools
import pickle
import random
import time

import pytest

from hf_encoders.corpus import documents
from hf_encoders.corpus.documents import one_sentence_per_line, split_sentences
from hf_encoders.inputs import replace_lone_surrogates


def without_whitespace(text: str) -> str:
    return "".join(text.split())


def test_sentences_of_a_paragraph():
    assert split_sentences("Dr. Smith walked in. Was he late? No! He sat down.") == [
        "Dr. Smith walked in.",
        "Was he late?",
        "No!",
        "He sat down.",
    ]


def test_language_decides_what_an_abbreviation_is():
    text = "Das ist bzw. Herr Meier. Er kam."
    assert split_sentences(text, "de") == ["Das ist bzw. Herr Meier.", "Er kam."]
    assert split_sentences(text, "en") == ["Das ist bzw.", "Herr Meier.", "Er kam."]


def test_text_without_spaces_is_split():
    assert split_sentences("今天下雨。我们回家吧！好吗？", "zh") == ["今天下雨。", "我们回家吧！", "好吗？"]


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n\n", "\r\n \t\r\n"])
@pytest.mark.parametrize("split", [split_sentences, one_sentence_per_line])
def test_a_line_break_ends_a_sentence(split, line_break):
    assert split(f"no full stop{line_break}  and another line ") == ["no full stop", "and another line"]


def test_lines_are_kept_whole_when_each_is_a_sentence():
    assert one_sentence_per_line("\ufeffOne. Two.\n\n \n\ufeffThree.") == ["One. Two.", "Three."]


@pytest.mark.parametrize("text", ["", " ", "\n\r\n", "\ufeff", "\u3000\t\x0b\x0c\x1c\x85\u2028"])
@pytest.mark.parametrize("split", [split_sentences, one_sentence_per_line])
def test_blank_text_has_no_sentence(split, text):
    assert split(text) == []


@pytest.mark.parametrize("language", ["", "EN", "de-AT", "e1", "xx"])
def test_what_is_not_a_language_code_is_refused(language):
    with pytest.raises(ValueError, match=f"language='{language}'.*'de'"):
        split_sentences("One. Two.", language)


@pytest.mark.parametrize("space", ["\xa0", "\u3000", "\x85", "\u2028"])
def test_wide_whitespace_before_a_full_stop(space):
    # The library panics on these, with an exception that is not an Exception.
    assert split_sentences(f"It is plan A{space}. Go{space}on. End.") == [
        f"It is plan A{space}.",
        f"Go{space}on.",
        "End.",
    ]


def test_lone_surrogates_are_replaced_and_pairs_joined():
    assert replace_lone_surrogates("a\ud83d b\ude00 c\ud83d\ude00") == "a\ufffd b\ufffd c😀"
    assert split_sentences("One\ud800. Two.") == ["One\ufffd.", "Two."]
    text = "unchanged 😀"
    assert replace_lone_surrogates(text) is text


LONG = 10**6
HOSTILE = {
    "letters": "a" * LONG,
    "full_stops": "." * LONG,
    "one_letter_sentences": "é. A" * (LONG // 4),
    "quotes": '"Hi." ' * (LONG // 6),
    "chinese_sentences": "你好世界。" * (LONG // 5),
    "chinese_without_end": "你好世界" * (LONG // 4),
    "emoji": "👩\u200d👧" * (LONG // 3),
    "control": "\x01\x85\u2028 " * (LONG // 4),
    "wide_space_full_stop": "A\xa0." * (LONG // 3),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_million_characters_on_a_line_neither_crash_nor_take_quadratic_time(name):
    text = HOSTILE[name]
    start = time.process_time()
    sentences = split_sentences(text)
    # About 1 s for the slowest, Chinese, which takes the library 200 s in one call.
    assert time.process_time() - start < 10
    assert without_whitespace("".join(sentences)) == without_whitespace(text)


def test_a_line_without_an_end_is_one_sentence():
    assert split_sentences("a" * 100_000) == ["a" * 100_000]
    assert [len(s) for s in split_sentences("b " * 50_000 + "end. Next one. " + "c" * 50_000)] == [100_004, 9, 50_000]


def test_windows_cut_nowhere_else_than_the_whole_line():
    generator = random.Random(0)
    words = ["plan", "Dr.", "e.g.", "3.5", "Meier", "went", "to", "U.S.", "A", "no.", "x" * 50]
    sentences = []
    for _ in range(3000):
        chosen = generator.choices(words, k=generator.choice([1, 3, 8, 20, 200]))
        sentences.append(" ".join(["The", *chosen, "house."]))
    line = " ".join(sentences)
    assert len(line) > 100 * documents.WINDOW_CHARACTERS
    assert max(map(len, sentences)) > documents.WINDOW_CHARACTERS / 2
    in_windows = split_sentences(line)
    whole = [part.strip() for part in documents.sentencex.segment("en", line)]
    assert in_windows == whole
    assert len(in_windows) >= 3000


def test_an_open_quotation_mark_does_not_swallow_the_rest_of_a_long_line():
    sentences = split_sentences("He said “no. " + "Nobody came to the house. " * 1000)
    assert len(sentences) > 900


def test_any_text_comes_back_whole(monkeypatch):
    monkeypatch.setattr(documents, "WINDOW_CHARACTERS", 150)
    generator = random.Random(1)
    characters = [
        *'aA bB.!?…。？։।"“”‘’«»()[]12\t\r\n\0\x01\x0b\x1c\x85\xa0\u2028\ufeff\u200d😀é\u0301İß一文、',
        "Dr.",
        "1. ",
    ]
    for _ in range(2000):
        text = "".join(generator.choices(characters, k=generator.randint(1, 600)))
        sentences = split_sentences(text, generator.choice(["en", "de", "zh", "fr", "zxx"]))
        assert all(sentence and sentence == sentence.strip() for sentence in sentences)
        assert without_whitespace("".join(sentences)).replace("\ufeff", "") == without_whitespace(text).replace(
            "\ufeff", ""
        )


def test_a_splitter_with_its_language_travels_to_another_process():
    splitter = pickle.loads(pickle.dumps(functools.partial(split_sentences, language="zh")))
    assert splitter("好。坏。") == ["好。", "坏。"]
