"""Text to sentences: the two sentence splitters of the package, and the form any other one must have.

A splitter is a `Callable[[str], list[str]]`: it gets one line of a text file, or the whole text of one document, and
returns its sentences in order, none of them empty. A line break always ends a sentence, so that "one sentence a line"
and "one paragraph a line" are the same input; hard-wrapped text has to be unwrapped before it comes here.

The rules for where a sentence ends belong to the library `sentencex`. Leaves out: documents (see `corpus.py`) and any
cut by length, which is made in tokens, after the tokenizer (`tokenize_documents`).
"""

import re
from collections.abc import Iterator
from itertools import accumulate

import sentencex


WINDOW_CHARACTERS = 2000
"""Characters of a line given to `sentencex` at once: its time grows with the square of this for text that is not
ASCII (measured with 1.0.32: 0.7 ms for 2,000 Chinese characters, 2.3 s for 100,000)."""

MARGIN_CHARACTERS = 32
"""Context, in characters, that a sentence end near the border of a window must have on both sides to be believed."""

_LINE_BREAK = re.compile(r"\r\n?|\n")
# sentencex 1.0.32 panics on a letter, one of these and a full stop ("A\u00a0."), in every language.
_WIDE_WHITESPACE = re.compile(r"[^\S\x00-\x7f]")
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}")


def one_sentence_per_line(text: str) -> list[str]:
    r"""Take every line that is not blank as one sentence.

    Args:
        text (`str`): One line or several; `\n`, `\r\n` and `\r` end a line.

    Returns:
        `list[str]`: The lines without white space or byte order marks around them; blank lines are left out.

    Example:
        >>> one_sentence_per_line("A first. And more.\r\n\r\n  A second.")
        ['A first. And more.', 'A second.']
    """
    lines = (line.strip().lstrip("\ufeff").strip() for line in _LINE_BREAK.split(text))
    return [line for line in lines if line]


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Split text into sentences with the rules of `sentencex` for a language; a line break always ends a sentence.

    Every character that is not white space comes back, in order: text without punctuation is one sentence, however
    long. Lines above `WINDOW_CHARACTERS` are read through overlapping windows, so that the time grows linearly with
    the length; no cut is made where a window ends. Lone surrogates become U+FFFD.

    For another language, or a splitter of your own: `functools.partial(split_sentences, language="zh")`, or any
    function of the same form.

    Args:
        text (`str`): One line or several, of any length.
        language (`str`, *optional*, defaults to `"en"`): Lower-case ISO 639 code of two or three letters, without a
            region. `sentencex` reads codes it does not know as English.

    Returns:
        `list[str]`: Sentences without white space around them, none empty.

    Raises:
        ValueError: When `language` does not have the form of a language code.

    Example:
        >>> split_sentences("Dr. Smith came at 3.5 km/h. He left.")
        ['Dr. Smith came at 3.5 km/h.', 'He left.']
    """
    if not _LANGUAGE_CODE.fullmatch(language):
        # sentencex would take "german", "DE" or "de-AT" for English without a word.
        raise ValueError(
            f"language={language!r} is not a language code: give the lower-case ISO 639 code of two or three letters, "
            "without a region, for example 'en', 'de' or 'zh'."
        )
    sentences = []
    for line in one_sentence_per_line(replace_lone_surrogates(text)):
        for start, end in _sentence_spans(line, language):
            sentence = line[start:end].strip()
            if sentence:
                sentences.append(sentence)
    return sentences


def replace_lone_surrogates(text: str) -> str:
    r"""Replace halves of surrogate pairs, which no UTF-8 file and no Rust string can hold, by U+FFFD.

    They come out of JSON escapes such as `"\ud83d"`. Two halves that belong together become their character.

    Args:
        text (`str`): Any text.

    Returns:
        `str`: The same text, the same object where there is nothing to replace.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _sentence_spans(line: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) in characters of every sentence of one line; the spans touch and cover the line."""
    sentence_start = window_start = 0
    while sentence_start < len(line):
        window = line[window_start : window_start + WINDOW_CHARACTERS]
        window_end = window_start + len(window)
        lowest = window_start + (MARGIN_CHARACTERS if window_start > sentence_start else 0)
        highest = window_end - (MARGIN_CHARACTERS if window_end < len(line) else 0)

        ends = accumulate(map(len, sentencex.segment(language, _narrow_whitespace(window))), initial=window_start)
        believed = [end for end in ends if lowest < end <= highest]
        if window_end == len(line) and believed[-1:] != [window_end]:
            believed.append(window_end)
        for end in believed:
            yield sentence_start, end
            sentence_start = end
        # Without an end, go on behind this window, far enough back to see once more what had too little context.
        window_start = sentence_start if believed else window_end - 2 * MARGIN_CHARACTERS


def _narrow_whitespace(text: str) -> str:
    """Replace each white space character above ASCII by one space: no character moves."""
    return text if text.isascii() else _WIDE_WHITESPACE.sub(" ", text)
