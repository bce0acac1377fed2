"""Sources of text, divided into units that workers read and tokenize independently.

Files are divided into byte ranges, datasets into ranges of rows; streaming datasets are read once, in batches. The
division depends on the input alone, so that it is the same with any number of workers and after a restart.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets

from hf_encoders.corpus.byte_ranges import ByteRange, byte_ranges
from hf_encoders.corpus.documents import DocumentReader, values_of_rows
from hf_encoders.corpus.text_files import skipped_files, text_files


BYTES_PER_UNIT = 2**22  # of a file, or of the text of rows


class Unit(NamedTuple):
    """The input of one shard."""

    part: Any  # for the reader of the source
    size: int  # in the unit of progress of the source
    digest: str = ""  # hash of the text, where nothing else identifies it


class FileSource:
    """Text files and JSON lines; `paths` as in `read_documents`, and all must be regular files of text.

    Attributes:
        skipped_files (`dict[str, int]`): What in the folders is not read: files by suffix, broken links.
        text_bytes (`int`): Size of the text, here with the markup of JSON lines; `None` in sources of unknown size.
    """

    progress_unit = "B"

    def __init__(self, paths: Sequence[str | Path], documents: DocumentReader):
        self.documents = documents
        self.files = [file for path in paths for file in text_files(Path(path))]
        self.skipped_files = skipped_files(paths)
        if not self.files:
            raise ValueError(f"source={paths!r} names no file: give text files, JSON lines or folders of them.")
        for file in self.files:
            if not file.is_file():
                raise ValueError(f"source: '{file}' is not a regular file and cannot be read in parts: save it first.")
        self.total = self.text_bytes = sum(file.stat().st_size for file in self.files)

    def identity(self) -> Any:
        """What identifies the input: path, size and modification time of every file."""
        stats = [(file, file.stat()) for file in self.files]
        files = [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in stats]
        return {"files": files, "bytes_a_unit": BYTES_PER_UNIT}

    def units(self) -> Iterator[Unit]:
        """Byte ranges that begin and end between documents."""
        for file in self.files:
            for part in byte_ranges(file, BYTES_PER_UNIT):
                yield Unit(part, part.end - part.begin)

    def reader(self) -> Callable[[ByteRange], Iterator[list[str]]]:
        """The function that reads the documents of a range."""
        return self.documents.of_file


class RowSource:
    """A dataset of known length, one row per document."""

    progress_unit = " documents"
    skipped_files: Mapping[str, int] = {}

    def __init__(self, dataset: datasets.Dataset, documents: DocumentReader):
        values_of_rows(dataset, documents.column)
        if len(dataset) == 0:
            raise ValueError("source is a dataset without rows: give one with documents.")
        self.fingerprint = dataset._fingerprint
        self.dataset = dataset.select_columns([documents.column])
        self.documents = documents
        self.total = len(dataset)
        table = self.dataset.data
        # After a selection of rows the table still holds all of them.
        self.bytes_per_row = max(table.nbytes // max(table.num_rows, 1), 1)
        self.text_bytes = table.nbytes * self.total // max(table.num_rows, 1)

    def identity(self) -> Any:
        """The fingerprint that `datasets` keeps of the contents and their order."""
        return {"dataset": self.fingerprint, "rows": self.total, "bytes_a_unit": BYTES_PER_UNIT}

    def units(self) -> Iterator[Unit]:
        """Ranges of rows."""
        step = max(BYTES_PER_UNIT // self.bytes_per_row, 1)
        for first in range(0, self.total, step):
            rows = range(first, min(first + step, self.total))
            yield Unit(rows, len(rows))

    def reader(self) -> Callable[[range], Iterator[list[str]]]:
        """The function that reads the documents of some rows."""
        return partial(_read_rows, self.documents, self.dataset)


class StreamSource:
    """A streaming dataset, one row per document; this process reads it once and sends its text to the workers.

    After a restart it is read again from the start (and downloaded again), but not tokenized again. It has to give the
    same rows in every run.
    """

    progress_unit = " documents"
    skipped_files: Mapping[str, int] = {}
    total = None
    text_bytes = None

    def __init__(self, dataset: datasets.IterableDataset, documents: DocumentReader):
        values_of_rows(dataset, documents.column)
        self.dataset = dataset
        self.documents = documents

    def identity(self) -> Any:
        """Only the kind: batches are compared by a hash of their text when they are read."""
        return {"dataset": "streaming", "bytes_a_unit": BYTES_PER_UNIT}

    def units(self) -> Iterator[Unit]:
        """Batches of rows."""
        values, size, first_row, digest = [], 0, 0, hashlib.blake2b(digest_size=16)
        for value in values_of_rows(self.dataset, self.documents.column):
            data = repr(value).encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
            values.append(value)
            size += len(data)
            if size >= BYTES_PER_UNIT:
                yield Unit((values, first_row), len(values), digest.hexdigest())
                first_row += len(values)
                values, size, digest = [], 0, hashlib.blake2b(digest_size=16)
        if values:
            yield Unit((values, first_row), len(values), digest.hexdigest())

    def reader(self) -> Callable[[tuple[list[Any], int]], Iterator[list[str]]]:
        """The function that makes documents from a batch."""
        return partial(_read_batch, self.documents)


TextSource = FileSource | RowSource | StreamSource


def make_source(
    source: Sequence[str | Path] | datasets.Dataset | datasets.IterableDataset | TextSource, documents: DocumentReader
) -> TextSource:
    """The source for the user's files or dataset; what has units of its own (`ParallelSource`) is one."""
    if hasattr(source, "units"):
        return source
    if isinstance(source, datasets.Dataset):
        return RowSource(source, documents)
    if isinstance(source, datasets.IterableDataset):
        return StreamSource(source, documents)
    if isinstance(source, dict):
        raise ValueError(f"source is a {type(source).__name__}: give one split, for example dataset['train'].")
    return FileSource([source] if isinstance(source, str | Path) else source, documents)


def _read_rows(documents: DocumentReader, dataset: datasets.Dataset, rows: range) -> Iterator[list[str]]:
    return documents.of_values(values_of_rows(dataset.select(rows), documents.column), rows.start)


def _read_batch(documents: DocumentReader, batch: tuple[list[Any], int]) -> Iterator[list[str]]:
    return documents.of_values(*batch)
