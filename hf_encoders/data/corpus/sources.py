"""Where the text of a corpus comes from, divided into units that workers read and tokenise independently.

Files are divided into byte ranges, data sets into ranges of rows, and of streaming data sets one reader makes batches.
How they are divided depends on the input alone, so that it is the same with any number of workers and after a restart.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets

from hf_encoders.data.corpus.byte_ranges import ByteRange, byte_ranges
from hf_encoders.data.corpus.segmentation import read_range, sentences_of_values, values_of_rows
from hf_encoders.data.corpus.text_files import skipped_files, text_files


BYTES_A_UNIT = 2**22  # bytes of a file, or of the text of rows


class Unit(NamedTuple):
    """What one worker makes one shard of the corpus of."""

    part: Any  # what the reader of its source needs to read it
    size: int  # in the unit of progress of its source
    digest: str = ""  # hash of the text, where nothing else tells whether a finished shard was made of it


@dataclass(frozen=True)
class TextReading:
    """How documents are read.

    Args:
        sentence_splitter (`Callable[[str], list[str]]`): Gets a line of a text file or the text of a document.
        text_column (`str`): Field of JSON lines or column of a data set with the text of a document.
        sentences_column (`str`, *optional*): The one with a list of sentences, taken as they are instead.
    """

    sentence_splitter: Callable[[str], list[str]]
    text_column: str = "text"
    sentences_column: str | None = None

    @property
    def column(self) -> str:
        """The column that is read."""
        return self.sentences_column or self.text_column

    def documents(self, values: Iterable[Any], first_row: int) -> Iterator[list[str]]:
        """Documents of values of the column; `first_row` is the number of the first one."""
        return sentences_of_values(values, self.column, bool(self.sentences_column), self.sentence_splitter, first_row)


class FileSource:
    """Text files and JSON lines.

    Args:
        paths (`Sequence[str | Path]`): As for `read_documents`.
        reading (`TextReading`): How documents are read.

    Raises:
        ValueError: If a path does not exist, is not a regular file, cannot be text, or there is none.

    Attributes:
        skipped_files (`dict[str, int]`): What in the folders is not read: files by ending, broken links.
        text_bytes (`int`): Size of the text, here with the markup of JSON lines; `None` in other sources where it is
            not known.
    """

    progress_unit = "B"

    def __init__(self, paths: Sequence[str | Path], reading: TextReading):
        self.reading = reading
        self.files = [file for path in paths for file in text_files(Path(path))]
        self.skipped_files = skipped_files(paths)
        if not self.files:
            raise ValueError(f"source={paths!r} names no file: give text files, JSON lines or folders of them.")
        for file in self.files:
            if not file.is_file():
                raise ValueError(f"source: '{file}' is not a regular file, which can be read in parts: save it first.")
        self.total = self.text_bytes = sum(file.stat().st_size for file in self.files)

    def identity(self) -> Any:
        """What tells that the input is the same: path, size and time of change of every file."""
        stats = [(file, file.stat()) for file in self.files]
        files = [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in stats]
        return {"files": files, "bytes_a_unit": BYTES_A_UNIT}

    def units(self) -> Iterator[Unit]:
        """Byte ranges that begin and end between documents."""
        for file in self.files:
            for part in byte_ranges(file, BYTES_A_UNIT):
                yield Unit(part, part.end - part.begin)

    def reader(self) -> Callable[[ByteRange], Iterator[list[str]]]:
        """What reads the documents of a range."""
        return partial(_read_file_part, self.reading)


class RowSource:
    """A data set with a number of rows, one row a document.

    Args:
        dataset (`datasets.Dataset`): One split.
        reading (`TextReading`): How documents are read.

    Raises:
        ValueError: If there is no such column, or no row.
    """

    progress_unit = " documents"
    skipped_files: Mapping[str, int] = {}

    def __init__(self, dataset: datasets.Dataset, reading: TextReading):
        values_of_rows(dataset, reading.column)
        if len(dataset) == 0:
            raise ValueError("source is a data set without rows: give one with documents.")
        self.fingerprint = dataset._fingerprint
        self.dataset = dataset.select_columns([reading.column])
        self.reading = reading
        self.total = len(dataset)
        table = self.dataset.data
        self.text_bytes = table.nbytes * self.total // max(table.num_rows, 1)  # a selection of rows is not copied

    def identity(self) -> Any:
        """The fingerprint that `datasets` keeps of what is in a data set, and of its order."""
        return {"dataset": self.fingerprint, "rows": self.total, "bytes_a_unit": BYTES_A_UNIT}

    def units(self) -> Iterator[Unit]:
        """Ranges of rows."""
        table = self.dataset.data
        bytes_a_row = max(table.nbytes // max(table.num_rows, 1), 1)
        step = max(BYTES_A_UNIT // bytes_a_row, 1)
        for first in range(0, self.total, step):
            rows = range(first, min(first + step, self.total))
            yield Unit(rows, len(rows))

    def reader(self) -> Callable[[range], Iterator[list[str]]]:
        """What reads the documents of some rows."""
        return partial(_read_rows, self.reading, self.dataset)


class StreamSource:
    """A streaming data set, one row a document; it is read once, here, and its text goes to the workers.

    After a restart it is read again from the start, which costs the reading (and the download), not the tokenising.

    Args:
        dataset (`datasets.IterableDataset`): One split; it has to give the same rows in every run.
        reading (`TextReading`): How documents are read.

    Raises:
        ValueError: If there is no such column.
    """

    progress_unit = " documents"
    skipped_files: Mapping[str, int] = {}
    total = None
    text_bytes = None

    def __init__(self, dataset: datasets.IterableDataset, reading: TextReading):
        values_of_rows(dataset, reading.column)
        self.dataset = dataset
        self.reading = reading

    def identity(self) -> Any:
        """Nothing but the kind: batches are compared by a hash of their text when they come."""
        return {"dataset": "streaming", "bytes_a_unit": BYTES_A_UNIT}

    def units(self) -> Iterator[Unit]:
        """Batches of rows."""
        values, size, first_row, digest = [], 0, 0, hashlib.blake2b(digest_size=16)
        for value in values_of_rows(self.dataset, self.reading.column):
            data = repr(value).encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
            values.append(value)
            size += len(data)
            if size >= BYTES_A_UNIT:
                yield Unit((values, first_row), len(values), digest.hexdigest())
                first_row += len(values)
                values, size, digest = [], 0, hashlib.blake2b(digest_size=16)
        if values:
            yield Unit((values, first_row), len(values), digest.hexdigest())

    def reader(self) -> Callable[[tuple[list[Any], int]], Iterator[list[str]]]:
        """What makes documents of a batch."""
        return partial(_read_batch, self.reading)


def make_source(
    source: Sequence[str | Path] | datasets.Dataset | datasets.IterableDataset, reading: TextReading
) -> FileSource | RowSource | StreamSource:
    """The source for what the user gave.

    Raises:
        ValueError: If it is none of these, or cannot be read.
    """
    if isinstance(source, datasets.Dataset):
        return RowSource(source, reading)
    if isinstance(source, datasets.IterableDataset):
        return StreamSource(source, reading)
    if isinstance(source, (str, Path)):
        return FileSource([source], reading)
    if isinstance(source, dict):
        raise ValueError(f"source is a {type(source).__name__}: give one split, for example dataset['train'].")
    return FileSource(source, reading)


def _read_file_part(reading: TextReading, part: ByteRange) -> Iterator[list[str]]:
    return read_range(part, reading.sentence_splitter, reading.text_column, reading.sentences_column)


def _read_rows(reading: TextReading, dataset: datasets.Dataset, rows: range) -> Iterator[list[str]]:
    return reading.documents(values_of_rows(dataset.select(rows), reading.column), rows.start)


def _read_batch(reading: TextReading, batch: tuple[list[Any], int]) -> Iterator[list[str]]:
    return reading.documents(*batch)
