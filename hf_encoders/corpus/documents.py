"""Readers of documents: text files, JSON lines and datasets to lists of sentences."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import datasets

from hf_encoders.corpus.byte_ranges import ByteRange, lines_before, open_range
from hf_encoders.corpus.segmentation import one_sentence_per_line, sentences_of_text, split_sentences
from hf_encoders.corpus.text_files import text_files
from hf_encoders.corpus.turns import sentences_of_turns


ROWS_PER_READ = 100  # rows of a dataset held in memory at once


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
            path, hidden ones and those behind symbolic links included; `skipped_files` counts the others. A file with
            another suffix is read as text.
        sentence_splitter (`Callable[[str], list[str]]`, *optional*, defaults to `split_sentences`): Takes a line of a
            text file or the text of a JSON document.
        text_field (`str`, *optional*, defaults to `"text"`): Field of a JSON document that holds its text.
        sentences_field (`str`, *optional*): Field that holds a list of sentences, which replaces the text.
        turns_field (`str`, *optional*): Field that holds the turns of a dialogue, as `turns_column` of
            `prepare_corpus`.

    Returns:
        `Iterator[list[str]]`: Sentences of one document each; documents without a sentence are left out.
    """
    if isinstance(paths, str | Path):
        raise ValueError(f"paths={str(paths)!r} is a single path: give a list, [{str(paths)!r}].")
    files = [file for path in paths for file in text_files(Path(path))]
    if not files:
        raise ValueError(f"paths={paths!r} names no file: give text files, JSON lines or folders of them.")
    reader = DocumentReader(sentence_splitter, text_field, sentences_field, turns_field)
    return chain.from_iterable(reader.of_file(ByteRange(file)) for file in files)


def documents_from_dataset(
    dataset: datasets.Dataset | datasets.IterableDataset,
    text_column: str = "text",
    *,
    sentence_splitter: Callable[[str], list[str]] = split_sentences,
    sentences_column: str | None = None,
) -> Iterator[list[str]]:
    """Read documents from a dataset, streaming or not, one row per document.

    Arguments and sentences are those of `read_documents`. Raises `ValueError` at once, if this is not one split or has
    no such column, and while reading, if a value is not text.
    """
    reader = DocumentReader(sentence_splitter, text_column, sentences_column)
    return reader.of_values(values_of_rows(dataset, reader.column))


def values_of_rows(dataset: datasets.Dataset | datasets.IterableDataset, column: str) -> Iterator[Any]:
    """The values of one column of a dataset, which is checked at once."""
    if not isinstance(dataset, datasets.Dataset | datasets.IterableDataset):
        raise ValueError(f"dataset is a {type(dataset).__name__}: give one split, for example dataset['train'].")
    if dataset.column_names is not None and column not in dataset.column_names:
        raise ValueError(
            f"dataset has no column {column!r} but {dataset.column_names}: name the one that holds the text with "
            "text_column, or the one that holds lists of sentences with sentences_column."
        )
    return (value for batch in dataset.with_format(None).iter(batch_size=ROWS_PER_READ) for value in batch[column])


@dataclass(frozen=True)
class DocumentReader:
    """Reads documents from parts of files and values of datasets; fields as in `prepare_corpus`."""

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
        """The column of a dataset, or field of JSON lines, that is read."""
        return self.turns_column or self.sentences_column or self.text_column

    def of_file(self, part: ByteRange) -> Iterator[list[str]]:
        """Documents of a file, or of a part of one that begins and ends between documents."""
        return self._of_json_lines(part) if part.is_json_lines else self._of_text(part)

    def of_values(self, values: Iterable[Any], first_row: int = 0) -> Iterator[list[str]]:
        """Documents from values of the column; errors number the rows from `first_row`."""
        for row, value in enumerate(values, start=first_row):
            try:
                sentences = self._sentences(value)
            except ValueError as error:
                raise ValueError(f"row {row}: {error}") from error
            if sentences:
                yield sentences

    def _of_text(self, part: ByteRange) -> Iterator[list[str]]:
        sentences: list[str] = []
        with open_range(part) as lines:
            for line in lines:
                # Concatenated files have byte order marks in the middle.
                line = line.strip().lstrip("\ufeff")
                if line:
                    sentences += sentences_of_text(line, self.sentence_splitter)
                elif sentences:
                    yield sentences
                    sentences = []
        if sentences:
            yield sentences

    def _of_json_lines(self, part: ByteRange) -> Iterator[list[str]]:
        with open_range(part) as lines:
            for number, line in enumerate(lines, start=1):
                line = line.strip().lstrip("\ufeff")
                if not line:
                    continue
                try:
                    sentences = self._sentences(_json_value(line, self.column))
                except ValueError as error:
                    raise ValueError(f"{part.path}, line {lines_before(part) + number}: {error}") from error
                if sentences:
                    yield sentences

    def _sentences(self, value: Any) -> list[str]:
        """Sentences of one document, from its text, its list of sentences or its turns."""
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
                f"{self.column!r} is {value!r:.80}, not a str: leave the document out; for lists use sentences_field "
                "(files) or sentences_column (datasets)."
            )
        return sentences_of_text(value, self.sentence_splitter)


def _json_value(line: str, field: str) -> Any:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}): one JSON object per line is expected.") from error
    if not isinstance(record, dict) or field not in record:
        found = list(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(
            f"no field {field!r}, found {found}: name the field that holds the text with text_field (--text-column), "
            "or the one that holds a list of sentences with sentences_field (--sentences-column), or of turns with "
            "turns_column (--turns-column)."
        )
    return record[field]
