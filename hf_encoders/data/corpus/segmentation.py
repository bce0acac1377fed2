"""Text to documents of sentences: the sentence splitters, and the readers of text files, JSON lines and data sets.

A splitter is a `Callable[[str], list[str]]`: it gets one line of a text file, or the whole text of one document, and
returns its sentences in order, none of them empty. A line break always ends a sentence, so that "one sentence a line"
and "one paragraph a line" are the same input; hard-wrapped text has to be unwrapped before it comes here.

The rules for where a sentence ends belong to the library `sentencex`. Leaves out: any cut by length, which is made in
tokens, after the tokenizer (`tokenize_documents` in `tokenized.py`).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import datasets
import sentencex

from hf_encoders.data.corpus.byte_ranges import ByteRange, lines_before, open_range
from hf_encoders.data.corpus.text_files import text_files
from hf_encoders.data.language_codes import is_language_code


# Characters of a line given to sentencex at once: in Chinese text its time grows with the square of this (1.0.32: 0.7
# ms for 2,000 characters, 2.3 s for 100,000), and in any text one quotation mark that is never closed hides all
# sentence ends behind it.
WINDOW_CHARACTERS = 2000
# Context that a sentence end near the border of a window must have on both sides to be believed.
MARGIN_CHARACTERS = 32

ROWS_A_READ = 100  # rows of a data set held in memory at once

_LINE_BREAK = re.compile(r"\r\n?|\n")
# White space above ASCII: sentencex 1.0.32 panics where it stands between a letter and a full stop ("A\u00a0."). One
# space in place of each moves no character.
_WIDE_WHITESPACE = re.compile(r"[^\S\x00-\x7f]")


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
    lines = _LINE_BREAK.split(text) if "\n" in text or "\r" in text else [text]
    return [stripped for line in lines if (stripped := line.strip().lstrip("\ufeff").strip())]


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
        ValueError: When `language` is no language code.

    Example:
        >>> split_sentences("Dr. Smith walked 3.5 miles. He was tired.")
        ['Dr. Smith walked 3.5 miles.', 'He was tired.']
    """
    if not is_language_code(language):
        # sentencex would take "german", "DE", "de-AT" or "xx" for English without a word.
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


def replace_lone_surrogates(text: str) -> str:
    r"""Replace halves of surrogate pairs, which no UTF-8 file and no Rust string can hold, by U+FFFD.

    They come out of JSON escapes such as `"\ud83d"`. Two halves that belong together become their character.

    Args:
        text (`str`): Any text.

    Returns:
        `str`: The same text, the same object where there is nothing to replace.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def sentences_of_text(text: str, sentence_splitter: Callable[[str], list[str]]) -> list[str]:
    """What a splitter makes of a text, checked.

    Raises:
        ValueError: If that is a `str`, which would be read as a list of characters, or no list of `str`.
    """
    found = sentence_splitter(text)
    sentences = list(found) if isinstance(found, Iterable) and not isinstance(found, (str, bytes)) else [None]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise ValueError(
            f"sentence_splitter gives {found!r:.80} for {text!r:.80}: it has to return a list of str, the sentences."
        )
    return sentences


def read_documents(
    paths: Sequence[str | Path],
    *,
    sentence_splitter: Callable[[str], list[str]] = split_sentences,
    text_field: str = "text",
    sentences_field: str | None = None,
) -> Iterator[list[str]]:
    """Read documents from text files and JSON lines, one at a time.

    Text files have one sentence or one paragraph a line and a blank line between documents; the end of a file ends its
    document too. Files ending in `.jsonl` have one document a line, an object. All are UTF-8, with or without a byte
    order mark; bytes that are not UTF-8 become U+FFFD. A document is held in memory as a whole.

    Args:
        paths (`Sequence[str | Path]`): Files, or folders in which all files `*.txt` and `*.jsonl` are read, sorted by
            path, hidden ones and those behind symbolic links too; `skipped_files` tells what else a folder holds. A
            file with another ending is read as text.
        sentence_splitter (`Callable[[str], list[str]]`, *optional*, defaults to `split_sentences`): Gets a line of a
            text file or the text of a JSON document.
        text_field (`str`, *optional*, defaults to `"text"`): Field of a JSON document that holds its text.
        sentences_field (`str`, *optional*): Field that holds a list of sentences, taken as they are instead of a text.

    Returns:
        `Iterator[list[str]]`: Sentences of one document each; documents without a sentence are left out.

    Raises:
        ValueError: At once, if a path does not exist or cannot be read, a folder holds no such file, or a file is no
            text by its ending or its first bytes. While reading, if a line is not a JSON object with the field, or the
            splitter does not give a list of `str`.
    """
    if isinstance(paths, (str, Path)):
        raise ValueError(f"paths={str(paths)!r} is a single path: give a list, [{str(paths)!r}].")
    files = [file for path in paths for file in text_files(Path(path))]
    if not files:
        raise ValueError(f"paths={paths!r} names no file: give text files, JSON lines or folders of them.")

    def read() -> Iterator[list[str]]:
        for file in files:
            yield from read_range(ByteRange(file), sentence_splitter, text_field, sentences_field)

    return read()


def read_range(
    part: ByteRange, sentence_splitter: Callable[[str], list[str]], text_field: str, sentences_field: str | None
) -> Iterator[list[str]]:
    """Read the documents of a file, or of a part of one that begins and ends between documents."""
    if part.is_json_lines:
        return _read_json_lines(part, sentence_splitter, text_field, sentences_field)
    return _read_text(part, sentence_splitter)


def documents_from_dataset(
    dataset: datasets.Dataset | datasets.IterableDataset,
    text_column: str = "text",
    *,
    sentence_splitter: Callable[[str], list[str]] = split_sentences,
    sentences_column: str | None = None,
) -> Iterator[list[str]]:
    """Read documents from a data set, one row a document; streaming data sets too.

    Args:
        dataset (`datasets.Dataset` or `datasets.IterableDataset`): One split.
        text_column (`str`, *optional*, defaults to `"text"`): Column of `str`, the text of a document.
        sentence_splitter (`Callable[[str], list[str]]`, *optional*, defaults to `split_sentences`): Gets that text.
        sentences_column (`str`, *optional*): Column of `list[str]`, taken as they are instead of the text.

    Returns:
        `Iterator[list[str]]`: Sentences of one document each; documents without a sentence are left out.

    Raises:
        ValueError: At once, if this is not one split or has no such column. While reading, if a value is not text.
    """
    values = values_of_rows(dataset, sentences_column or text_column)
    return sentences_of_values(values, sentences_column or text_column, bool(sentences_column), sentence_splitter)


def values_of_rows(dataset: datasets.Dataset | datasets.IterableDataset, column: str) -> Iterator[Any]:
    """One column of a data set, value by value; the data set is checked at once."""
    if not isinstance(dataset, (datasets.Dataset, datasets.IterableDataset)):
        raise ValueError(f"dataset is a {type(dataset).__name__}: give one split, for example dataset['train'].")
    if dataset.column_names is not None and column not in dataset.column_names:
        raise ValueError(
            f"dataset has no column {column!r} but {dataset.column_names}: name the one that holds the text with "
            "text_column, or the one that holds lists of sentences with sentences_column."
        )
    return (value for batch in dataset.with_format(None).iter(batch_size=ROWS_A_READ) for value in batch[column])


def sentences_of_values(
    values: Iterable[Any],
    column: str,
    is_split: bool,
    sentence_splitter: Callable[[str], list[str]],
    first_row: int = 0,
) -> Iterator[list[str]]:
    """Documents of the values of a data set's column; `first_row` is the number of the first one."""
    for row, value in enumerate(values, start=first_row):
        try:
            sentences = _sentences_of(value, is_split, sentence_splitter, column)
        except _Unreadable as error:
            raise ValueError(f"row {row}: {error}") from None
        if sentences:
            yield sentences


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
        believed = [end for end in ends if lowest < end <= highest]
        if window_end == len(line) and believed[-1:] != [window_end]:
            believed.append(window_end)
        for end in believed:
            yield sentence_start, end
            sentence_start = end
        # Without an end, go on behind this window, far enough back to see once more what had too little context.
        window_start = sentence_start if believed else window_end - 2 * MARGIN_CHARACTERS


def _read_text(part: ByteRange, sentence_splitter: Callable[[str], list[str]]) -> Iterator[list[str]]:
    sentences: list[str] = []
    with open_range(part) as lines:
        for line in lines:
            # Files that were joined bring their byte order marks into the middle.
            line = line.strip().lstrip("\ufeff")
            if line:
                sentences += sentences_of_text(line, sentence_splitter)
            elif sentences:
                yield sentences
                sentences = []
    if sentences:
        yield sentences


def _read_json_lines(
    part: ByteRange, sentence_splitter: Callable[[str], list[str]], text_field: str, sentences_field: str | None
) -> Iterator[list[str]]:
    field = sentences_field or text_field
    with open_range(part) as lines:
        for number, line in enumerate(lines, start=1):
            line = line.strip().lstrip("\ufeff")
            if not line:
                continue
            try:
                sentences = _sentences_of_json(line, field, bool(sentences_field), sentence_splitter)
            except _Unreadable as error:
                raise ValueError(f"{part.path}, line {lines_before(part) + number}: {error}") from error.__cause__
            if sentences:
                yield sentences


class _Unreadable(Exception):
    """What is wrong with a document; who reads it knows where it stands."""


def _sentences_of_json(
    line: str, field: str, is_split: bool, sentence_splitter: Callable[[str], list[str]]
) -> list[str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"not JSON ({error}): one JSON object a line is expected.") from error
    if not isinstance(record, dict) or field not in record:
        found = list(record) if isinstance(record, dict) else type(record).__name__
        raise _Unreadable(
            f"no field {field!r}, found {found}: name the field that holds the text with text_field (--text-column), "
            "or the one that holds a list of sentences with sentences_field (--sentences-column)."
        )
    return _sentences_of(record[field], is_split, sentence_splitter, field)


def _sentences_of(value: Any, is_split: bool, sentence_splitter: Callable[[str], list[str]], field: str) -> list[str]:
    """Sentences of one document, from its text or its list of sentences."""
    if is_split:
        if not isinstance(value, list) or not all(isinstance(sentence, str) for sentence in value):
            raise _Unreadable(f"{field!r} is {value!r:.80}, not a list of str: leave out or repair that document.")
        return [sentence for sentence in value if sentence.strip()]
    if not isinstance(value, str):
        raise _Unreadable(
            f"{field!r} is {value!r:.80}, not a str: leave the document out; for lists use sentences_field (files) or "
            "sentences_column (data sets)."
        )
    return sentences_of_text(value, sentence_splitter)
