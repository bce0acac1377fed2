"""Sentence splitters.

A splitter is a `Callable[[str], list[str]]`: it takes one line of a text file, or the whole text of a document, and
returns its sentences in order, none of them empty. A line break always ends a sentence, so that one sentence per line
and one paragraph per line are the same input; unwrap hard-wrapped text first.

The library `sentencex` decides where a sentence ends. Leaves out: limits on the length, which are in tokens
(`tokenize_documents`).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate

import sentencex

from hf_encoders.inputs import is_language_code


# Characters of a line given to sentencex at once: in Chinese text its time is quadratic in this (1.0.32: 0.7 ms for
# 2,000 characters, 2.3 s for 100,000), and in any text an unclosed quotation mark hides all sentence ends after it.
WINDOW_CHARACTERS = 2000
# A sentence end is accepted only with this many characters of context on both sides within the window.
MARGIN_CHARACTERS = 32

_LINE_BREAK = re.compile(r"\r\n?|\n")
# White space above ASCII: sentencex 1.0.32 panics where it stands between a letter and a full stop ("A\u00a0."). One
# space in place of each moves no character.
_WIDE_WHITESPACE = re.compile(r"[^\S\x00-\x7f]")


def one_sentence_per_line(text: str) -> list[str]:
    r"""Take every line that is not blank as one sentence, without white space or byte order marks around it.

    >>> one_sentence_per_line("A first. And more.\r\n\r\n  A second.")
    ['A first. And more.', 'A second.']
    """
    lines = _LINE_BREAK.split(text) if "\n" in text or "\r" in text else [text]
    return [stripped for line in lines if (stripped := line.strip().lstrip("\ufeff").strip())]


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Split text into sentences with the rules of `sentencex` for a language; a line break always ends a sentence.

    No character but white space is lost: text without punctuation is one sentence, however long. Lines longer than
    `WINDOW_CHARACTERS` are read through overlapping windows, so that time is linear in the length; a window's end is
    not a sentence end. Lone surrogates become U+FFFD.

    For another language use `functools.partial(split_sentences, language="zh")`, or any function of the same form.

    Args:
        text (`str`): One line or several, of any length.
        language (`str`, *optional*, defaults to `"en"`): Lower-case ISO 639 code of two or three letters, without a
            region; others are a `ValueError`. `sentencex` reads codes it does not know as English.

    >>> split_sentences("Dr. Smith walked 3.5 miles. He was tired.")
    ['Dr. Smith walked 3.5 miles.', 'He was tired.']
    """
    if not is_language_code(language):
        # sentencex would silently take "german", "DE", "de-AT" or "xx" for English.
        raise ValueError(
            f"language={language!r} is not a language code: give the lower-case ISO 639 code of two or three letters, "
            "without a region, for example 'en', 'de' or 'zh'."
        )
    sentences = []
    for line in one_sentence_per_line(replace_lone_surrogates(text)):
        if len(line) <= WINDOW_CHARACTERS and (line.isascii() or not _WIDE_WHITESPACE.search(line)):
            parts = sentencex.segment(language, line)
        else:
            parts = [line[start:end] for start, end in _sentence_spans(line, language)]
        sentences += [sentence for part in parts if (sentence := part.strip())]
    return sentences


def splitter_for(language: str | None) -> Callable[[str], list[str]]:
    """The splitter for a language; `None` takes lines as they are."""
    if language is None:
        return one_sentence_per_line
    split_sentences("", language)
    return split_sentences if language == "en" else partial(split_sentences, language=language)


def replace_lone_surrogates(text: str) -> str:
    r"""Replace halves of surrogate pairs, which UTF-8 cannot encode, by U+FFFD; a complete pair becomes its character.

    They come from JSON escapes such as `"\ud83d"`.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def sentences_of_text(text: str, sentence_splitter: Callable[[str], list[str]]) -> list[str]:
    """The sentences that a splitter returns for a text; anything but a list of `str` is a `ValueError`."""
    found = sentence_splitter(text)
    sentences = list(found) if isinstance(found, Iterable) and not isinstance(found, str | bytes) else [None]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise ValueError(
            f"sentence_splitter gives {found!r:.80} for {text!r:.80}: it has to return a list of str, the sentences."
        )
    return sentences


def _sentence_spans(line: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) in characters of every sentence of one line; the spans touch and cover the line."""
    sentence_start = window_start = 0
    while sentence_start < len(line):
        window = line[window_start : window_start + WINDOW_CHARACTERS]
        window_end = window_start + len(window)
        lowest = window_start + (MARGIN_CHARACTERS if window_start > sentence_start else 0)
        highest = window_end - (MARGIN_CHARACTERS if window_end < len(line) else 0)

        parts = sentencex.segment(language, _WIDE_WHITESPACE.sub(" ", window))
        ends = accumulate(map(len, parts), initial=window_start)
        accepted = [end for end in ends if lowest < end <= highest]
        if window_end == len(line) and accepted[-1:] != [window_end]:
            accepted.append(window_end)
        for end in accepted:
            yield sentence_start, end
            sentence_start = end
        # Without an end, the next window starts so far back that it covers what had too little context here.
        window_start = sentence_start if accepted else window_end - 2 * MARGIN_CHARACTERS
