"""Text to documents, lists of sentences: text files, JSON lines, dialogues and datasets.

A dialogue is a document too. Its turns are the sentences: queries at even places, responses at odd ones. Where one
side speaks twice in a row, or a response comes first, an empty sentence holds the place between, so that objectives
that know no roles read turns as sentences.

A sentence splitter is a `Callable[[str], list[str]]`: it takes one line of a text file, or the whole text of a
document, and returns its sentences in order, none of them empty. A line break always ends a sentence, so that one
sentence per line and one paragraph per line are the same input; unwrap hard-wrapped text first. The library
`sentencex` decides where a sentence ends.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import sentencex

from hf_encoders.corpus.text_files import skipped_files, text_files
from hf_encoders.inputs import is_language_code, replace_lone_surrogates


ROWS_PER_READ = 100  # rows of a dataset held in memory at once
# Roles of ERNIE's dialogue language model (https://arxiv.org/abs/1904.09223, section 3.3), and their names in chats.
ROLES = {"query": 0, "response": 1, "user": 0, "assistant": 1}
TEXT_FIELDS = ("text", "content")


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
    """Return the splitter for a language; `None` takes lines as they are."""
    if language is None:
        return one_sentence_per_line
    split_sentences("", language)
    return split_sentences if language == "en" else partial(split_sentences, language=language)


def sentences_of_text(text: str, sentence_splitter: Callable[[str], list[str]]) -> list[str]:
    """Return the sentences that a splitter finds in a text; refuse anything but a list of `str`."""
    split = sentence_splitter(text)
    sentences = list(split) if isinstance(split, Iterable) and not isinstance(split, str | bytes) else [None]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise ValueError(
            f"sentence_splitter gives {split!r:.80} for {text!r:.80}: it has to return a list of str, the sentences."
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


class Reading(NamedTuple):
    """Counts of what was read, before anything is left out."""

    sentences: int = 0
    damaged_sentences: int = 0  # with U+FFFD (bytes that are not UTF-8 become it) or NUL

    def with_document(self, document: list[str]) -> "Reading":
        """Return the counts with one more document."""
        text, damaged = "".join(document), 0
        if "\ufffd" in text or "\0" in text:
            damaged = sum("\ufffd" in sentence or "\0" in sentence for sentence in document)
        return Reading(self.sentences + len(document), self.damaged_sentences + damaged)


def read_documents(
    paths: Sequence[str | Path],
    *,
    sentence_splitter: Callable[[str], list[str]] = split_sentences,
    text_field: str = "text",
    sentences_field: str | None = None,
    turns_field: str | None = None,
) -> Iterator[list[str]]:
    """Read documents from text files and JSON lines, one at a time.

    Text files have one sentence or one paragraph per line and a blank line between documents; the end of a file ends
    its document too. Files ending in `.jsonl` have one document per line, an object. All are UTF-8, with or without a
    byte order mark; bytes that are not UTF-8 become U+FFFD. A document is held in memory as a whole.

    Args:
        paths (`Sequence[str | Path]`): Files, or folders in which all `*.txt` and `*.jsonl` files are read, sorted by
            path, hidden ones and those behind symbolic links included. A file with another suffix is read as text.
        sentence_splitter (`Callable[[str], list[str]]`, *optional*, defaults to `split_sentences`): Takes a line of a
            text file or the text of a JSON document.
        text_field, sentences_field, turns_field: As `text_column`, `sentences_column` and `turns_column` of
            `prepare_corpus`.

    Returns:
        `Iterator[list[str]]`: Sentences of one document each; documents without a sentence are left out.
    """
    if isinstance(paths, str | Path):
        raise ValueError(f"paths={str(paths)!r} is a single path: give a list, [{str(paths)!r}].")
    reader = DocumentReader(sentence_splitter, text_field, sentences_field, turns_field)
    return TextSource(paths, reader, "paths").documents()


@dataclass(frozen=True)
class DocumentReader:
    """Read documents from files and values of datasets; fields as in `prepare_corpus`.

    It reads in two steps: first the parts of a document, which are lines, one text, sentences or turns; then the
    sentences of the parts, which takes longer.
    """

    sentence_splitter: Callable[[str], list[str]] = split_sentences
    text_column: str = "text"
    sentences_column: str | None = None
    turns_column: str | None = None

    def __post_init__(self):
        if self.sentences_column and self.turns_column:
            raise ValueError(
                f"sentences_column={self.sentences_column!r} and turns_column={self.turns_column!r}: give one of them."
            )
        if self.turns_column:  # every line of a text file is a turn
            object.__setattr__(self, "sentence_splitter", one_sentence_per_line)

    @property
    def column(self) -> str:
        """Return the column of a dataset, or field of JSON lines, that is read."""
        return self.turns_column or self.sentences_column or self.text_column

    def sentences(self, parts: list[str]) -> list[str]:
        """Return the sentences of the parts of a document."""
        if self.turns_column or self.sentences_column:
            return parts
        return [sentence for part in parts for sentence in sentences_of_text(part, self.sentence_splitter)]

    def parts_of_value(self, value: Any) -> list[str]:
        """Return the parts of a document, from its text, its list of sentences or its turns."""
        if self.turns_column:
            return sentences_of_turns(value)
        if self.sentences_column:
            if not isinstance(value, list) or not all(isinstance(sentence, str) for sentence in value):
                raise ValueError(
                    f"{self.column!r} is {value!r:.80}, not a list of str: leave out or repair that document."
                )
            return [sentence for sentence in value if sentence.strip()]
        if not isinstance(value, str):
            raise ValueError(
                f"{self.column!r} is {value!r:.80}, not a str: leave the document out; for lists use "
                "sentences_column (read_documents: sentences_field)."
            )
        return [value]

    def parts_of_row(self, row: int, value: Any) -> list[str]:
        """`parts_of_value`; errors name the row."""
        try:
            return self.parts_of_value(value)
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from error

    def parts_of_file(self, path: Path) -> Iterator[list[str]]:
        """Yield the parts of each document of a file, of which none is empty."""
        # Bytes that are not UTF-8 become U+FFFD. Concatenated files have byte order marks in the middle.
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = (line.strip().lstrip("\ufeff") for line in file)
            if path.suffix.lower() == ".jsonl":
                yield from filter(None, self._parts_of_json_lines(path, lines))
            else:
                yield from (list(group) for is_text, group in groupby(lines, bool) if is_text)

    def _parts_of_json_lines(self, path: Path, lines: Iterator[str]) -> Iterator[list[str]]:
        for number, line in enumerate(lines, start=1):
            if line:
                try:
                    yield self.parts_of_value(_json_value(line, self.column))
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from error


class TextSource:
    """Text to read document by document: files, or a dataset with one row per document.

    Args:
        source (`Sequence[str | Path]`, `datasets.Dataset` or `datasets.IterableDataset`): As in `prepare_corpus`.
        reader (`DocumentReader`): Reads them.
        option (`str`, *optional*, defaults to `"source"`): What messages call the source.

    Attributes:
        files (`list[Path]`): The files; empty for a dataset.
        skipped_files (`dict[str, int]`): What in the folders is not read: files by suffix, broken links.
        text_bytes (`int` or `None`): Size of the text, with the markup of JSON lines; `None` if unknown.

    Raises:
        ValueError: If there is no file, one is not text, or the dataset has no such column.
    """

    dataset: datasets.Dataset | datasets.IterableDataset | None = None
    text_bytes: int | None = None

    def __init__(self, source: Any, reader: DocumentReader, option: str = "source"):
        self.reader = reader
        self.files: list[Path] = []
        self.skipped_files: dict[str, int] = {}
        if isinstance(source, datasets.Dataset | datasets.IterableDataset):
            if source.column_names is not None and reader.column not in source.column_names:
                raise ValueError(
                    f"dataset has no column {reader.column!r} but {source.column_names}: name the one that holds the "
                    "text with text_column, or the one that holds lists of sentences with sentences_column."
                )
            self.dataset = source
            if isinstance(source, datasets.Dataset):
                table = source.data
                self.text_bytes = table.nbytes * len(source) // max(table.num_rows, 1)
            return
        if isinstance(source, Mapping):
            raise ValueError(f"{option} is a {type(source).__name__}: give one split, for example dataset['train'].")
        paths = [source] if isinstance(source, str | Path) else source
        self.files = text_files(paths, option)
        self.skipped_files = skipped_files(paths)
        if not self.files:
            raise ValueError(f"{option}={source!r} names no file: give text files, JSON lines or folders of them.")
        self.text_bytes = sum(file.stat().st_size for file in self.files)

    def identity(self) -> dict[str, Any]:
        """Return path, size and modification time of every file, or the dataset's fingerprint."""
        if isinstance(self.dataset, datasets.Dataset):
            return {"dataset": self.dataset._fingerprint, "rows": len(self.dataset)}
        if self.dataset is not None:
            return {"dataset": "streaming"}
        stats = [(file, file.stat()) for file in self.files]
        return {"files": [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in stats]}

    @property
    def divided_files(self) -> list[Path]:
        """Return the files, where `parts` can read some of them alone."""
        return self.files

    def parts(self, files: Sequence[Path] | None = None) -> Iterator[list[str]]:
        """Return the parts of each document, in order; of all files, or of some."""
        if self.dataset is None:
            return chain.from_iterable(map(self.reader.parts_of_file, self.files if files is None else files))
        column, batches = self.reader.column, self.dataset.with_format(None).iter(batch_size=ROWS_PER_READ)
        values = (value for batch in batches for value in batch[column])
        return (self.reader.parts_of_row(row, value) for row, value in enumerate(values))

    def documents(self) -> Iterator[list[str]]:
        """Return the sentences of each document that has one."""
        return filter(None, map(self.reader.sentences, self.parts()))


def _json_value(line: str, field: str) -> Any:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}): one JSON object per line is expected.") from error
    if not isinstance(record, dict) or field not in record:
        fields = list(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(
            f"no field {field!r} but {fields}: name the field of the text with text_field (--text-column), of a list "
            "of sentences with sentences_field (--sentences-column), or of turns with turns_field (--turns-column)."
        )
    return record[field]


def sentences_of_turns(turns: Any) -> list[str]:
    """Return the turns of a dialogue, queries at even places and responses at odd ones; blank turns are left out.

    Args:
        turns (`list`): `str`, of which the first is a query and the others alternate; or objects with `role` ("query"
            or "user", "response" or "assistant") and `text` (or `content`).

    Raises:
        ValueError: If something is neither.

    >>> sentences_of_turns(["How are you?", "Fine.", "Good."])
    ['How are you?', 'Fine.', 'Good.']
    >>> spoken = ("user", "Hello?"), ("user", "Anybody there?"), ("assistant", "Yes.")
    >>> sentences_of_turns([{"role": role, "text": text} for role, text in spoken])
    ['Hello?', '', 'Anybody there?', 'Yes.']
    """
    if not isinstance(turns, list):
        raise ValueError(f"{turns!r:.80} is not a list of turns: leave out or repair that dialogue.")
    sentences: list[str] = []
    for number, turn in enumerate(turns):
        role, text = (number % 2, turn) if isinstance(turn, str) else _role_and_text(turn)
        if isinstance(turn, str) != isinstance(turns[0], str):
            raise ValueError(
                f"turn {number} is {turn!r:.80}, and turn 0 is {turns[0]!r:.80}: give all turns of a dialogue a role, "
                "or none."
            )
        if text.strip():
            if len(sentences) % 2 != role:
                sentences.append("")
            sentences.append(text)
    return sentences


def _role_and_text(turn: Any) -> tuple[int, str]:
    turn = turn if isinstance(turn, dict) else {"role": turn}
    role = turn.get("role")
    text = next((turn[name] for name in TEXT_FIELDS if name in turn), None)
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(
            f"a turn with role {role!r:.80}: it must be one of {', '.join(ROLES)}; leave other turns out, or give "
            "turns that alternate as a list of str."
        )
    if not isinstance(text, str):
        raise ValueError(f"a turn has {turn!r:.80}, and no text: give it as a str in {' or '.join(TEXT_FIELDS)}.")
    return ROLES[role], text
