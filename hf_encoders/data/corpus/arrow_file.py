"""The Arrow file of a corpus: whole documents as flat arrays, written in one record batch.

A row is a document, a list of sentences: `input_ids` of type `list<list<int32>>`, and in a corpus made with a word
segmenter `word_starts` of type `list<list<uint8>>` and the same shape. The offsets of a `list` column have 32 bits;
beyond that it is a `large_list`.
"""

import contextlib
import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import datasets
import numpy as np
import pyarrow as pa

from hf_encoders.data.ragged import offsets_of, ranges


ARROW_FILE = "corpus.arrow"  # in the folder of a corpus
COLUMN = "input_ids"
WORD_STARTS = "word_starts"
MOST_IN_A_LIST_COLUMN = 2**31 - 1  # tokens, or sentences; with more, lists are large
BYTES_PER_WRITE = 2**26  # copied from one file to another at once

_VALUES = {COLUMN: pa.int32(), WORD_STARTS: pa.uint8()}
# `SentenceBatch` field -> type in its file while a record batch grows; files of lengths hold their offsets.
_NUMBERS = {
    "tokens": np.int32,
    "sentence_lengths": np.int64,
    "document_lengths": np.int64,
    "word_starts": np.uint8,
}
_HASHED = _NUMBERS | {"sentence_lengths": np.int32, "document_lengths": np.int32}  # hashes are of the lengths


class SentenceBatch(NamedTuple):
    """Whole documents as one-dimensional integer arrays."""

    tokens: np.ndarray
    sentence_lengths: np.ndarray  # in tokens
    document_lengths: np.ndarray  # in sentences
    word_starts: np.ndarray | None = None  # one per token, in a corpus that has them


def corpus_schema(has_word_starts: bool, is_large: bool = False) -> pa.Schema:
    """The Arrow schema of a corpus, as `datasets` writes it."""
    list_of = pa.large_list if is_large else pa.list_
    names = [COLUMN, WORD_STARTS] if has_word_starts else [COLUMN]
    schema = pa.schema({name: list_of(list_of(_VALUES[name])) for name in names})
    return datasets.Features.from_arrow_schema(schema).arrow_schema


def record_batch(block: SentenceBatch) -> pa.RecordBatch:
    """The documents as rows; too many tokens for a list column are a `ValueError`."""
    if max(len(block.tokens), len(block.sentence_lengths)) > MOST_IN_A_LIST_COLUMN:
        raise ValueError(
            f"documents: one document has about {len(block.tokens):,} tokens, and at most {MOST_IN_A_LIST_COLUMN:,} "
            "are tokenized at once: separate documents by blank lines."
        )
    offsets = [offsets_of(lengths).astype(np.int32) for lengths in (block.sentence_lengths, block.document_lengths)]
    arrays = {COLUMN: block.tokens}
    if block.word_starts is not None:
        arrays[WORD_STARTS] = block.word_starts
    values = {name: np.ascontiguousarray(array, _VALUES[name].to_pandas_dtype()) for name, array in arrays.items()}
    return _record_batch(values, *offsets)


def block_of(batch: pa.RecordBatch) -> SentenceBatch:
    """The arrays of a record batch, tokens not copied; missing values and misshapen word starts are a `ValueError`."""
    block = _flat(batch.column(COLUMN), COLUMN)
    if WORD_STARTS not in batch.schema.names:
        return block
    starts = _flat(batch.column(WORD_STARTS), WORD_STARTS)
    if not all(np.array_equal(ours, theirs) for ours, theirs in zip(block[1:3], starts[1:3], strict=True)):
        raise ValueError(
            f"dataset: column {WORD_STARTS!r} is not shaped like {COLUMN!r}: it needs one number per token; remove it "
            "with dataset.remove_columns, or prepare the corpus again with a word_segmenter."
        )
    return block._replace(word_starts=starts.tokens)


def write_corpus(blocks: Iterable[SentenceBatch], directory: Path, *, has_word_starts: bool) -> datasets.Dataset:
    """Write documents into one Arrow file, named by a hash of its contents."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        table = Path(scratch) / "table.arrow"
        name = write_arrow_file(blocks, table, has_word_starts=has_word_starts)
        path = directory / f"corpus-{name}.arrow"
        # Only complete files get this name, so that an existing one holds the same bytes.
        if not path.exists():
            os.replace(table, path)
    return datasets.Dataset.from_file(str(path))


def write_arrow_file(blocks: Iterable[SentenceBatch], path: Path, *, has_word_starts: bool) -> str:
    """Write documents into one Arrow file, in one record batch, with memory for one block and twice the disk space.

    Returns:
        `str`: Hash of the contents, 32 hexadecimal digits; it does not depend on the division into blocks.
    """
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as scratch,
        contextlib.closing(_RecordBatchOnDisk(Path(scratch), has_word_starts)) as growing,
        open(path, "wb") as file,
    ):
        # One per array: a corpus without word starts never has the hash of one with them.
        digests = {name: hashlib.blake2b(digest_size=16) for name in growing.names}
        for block in blocks:
            growing.append(block)
            for name in growing.names:
                digests[name].update(np.ascontiguousarray(getattr(block, name), _HASHED[name]))
        growing.move_to(file)
    return hashlib.blake2b(b"".join(d.digest() for d in digests.values()), digest_size=16).hexdigest()


class _Sink:
    """A file for Arrow to write to that releases the memory of the maps it is written from."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.maps: list[mmap.mmap] = []
        self.closed = False

    def write(self, data: pa.Buffer | bytes) -> int:
        view = memoryview(data)
        for begin in range(0, len(view), BYTES_PER_WRITE):
            self.file.write(view[begin : begin + BYTES_PER_WRITE])
            # Mapped pages count as memory of this process until they are released; not every system can do that.
            if len(view) > BYTES_PER_WRITE and hasattr(mmap, "MADV_DONTNEED"):
                for pages in self.maps:
                    pages.madvise(mmap.MADV_DONTNEED)
        return len(view)

    def flush(self) -> None:
        self.file.flush()

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.closed = True


class _RecordBatchOnDisk:
    """The buffers of one Arrow record batch, which grow in files and are written from memory maps."""

    def __init__(self, directory: Path, has_word_starts: bool):
        self.has_word_starts = has_word_starts
        self.names = [name for name in SentenceBatch._fields if has_word_starts or name != "word_starts"]
        self.paths = {name: directory / name for name in self.names}
        self.num_tokens = self.num_sentences = 0
        self.files = {name: open(path, "wb") for name, path in self.paths.items()}  # noqa: SIM115 - see `close`
        for name in ("sentence_lengths", "document_lengths"):
            self.files[name].write(np.zeros(1, dtype=_NUMBERS[name]))

    def append(self, block: SentenceBatch) -> None:
        arrays = block._asdict() | {
            "sentence_lengths": self.num_tokens + np.cumsum(block.sentence_lengths, dtype=np.int64),
            "document_lengths": self.num_sentences + np.cumsum(block.document_lengths, dtype=np.int64),
        }
        for name in self.names:
            self.files[name].write(np.ascontiguousarray(arrays[name], dtype=_NUMBERS[name]))
        self.num_tokens += len(block.tokens)
        self.num_sentences += len(block.sentence_lengths)

    def move_to(self, file: BinaryIO) -> None:
        self.close()
        is_large = max(self.num_tokens, self.num_sentences) > MOST_IN_A_LIST_COLUMN
        numbers = dict(_NUMBERS)
        if not is_large:
            for name in ("sentence_lengths", "document_lengths"):
                numbers[name] = np.int32
                _narrow(self.paths[name])
        sink = _Sink(file)
        schema = corpus_schema(self.has_word_starts, is_large)
        # Arrow implementations other than the one in C++ may not read more than 2**31 values.
        options = pa.ipc.IpcWriteOptions(allow_64bit=is_large)
        target = pa.PythonFile(sink, mode="w")
        with contextlib.ExitStack() as files, pa.ipc.new_stream(target, schema, options=options) as writer:
            arrays = {}
            for name, path in self.paths.items():
                # An empty file cannot be mapped; without documents, that of the tokens is empty.
                pages = b""
                if path.stat().st_size:
                    mapped = files.enter_context(open(path, "rb"))
                    pages = mmap.mmap(mapped.fileno(), 0, access=mmap.ACCESS_READ)
                    sink.maps.append(pages)
                arrays[name] = np.frombuffer(pages, dtype=numbers[name])
            values = {COLUMN: arrays["tokens"]}
            if "word_starts" in arrays:
                values[WORD_STARTS] = arrays["word_starts"]
            writer.write_batch(_record_batch(values, arrays["sentence_lengths"], arrays["document_lengths"]))

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def _narrow(path: Path) -> None:
    """Convert a file of 64-bit integers to 32-bit integers, in steps."""
    narrow = path.with_suffix(".narrow")
    with open(path, "rb") as wide, open(narrow, "wb") as file:
        while len(numbers := np.fromfile(wide, np.int64, BYTES_PER_WRITE // 8)):
            file.write(numbers.astype(np.int32))
    os.replace(narrow, path)


def _record_batch(
    values: dict[str, np.ndarray], sentence_offsets: np.ndarray, document_offsets: np.ndarray
) -> pa.RecordBatch:
    """Columns of lists of lists over flat arrays, which are not copied; 64-bit offsets give large lists."""
    is_large = sentence_offsets.dtype == np.int64
    list_of = pa.large_list if is_large else pa.list_
    columns = []
    for name, array in values.items():
        kind, column = _VALUES[name], pa.Array.from_buffers(_VALUES[name], len(array), [None, pa.py_buffer(array)])
        for offsets in (sentence_offsets, document_offsets):
            kind = list_of(kind)
            buffers = [None, pa.py_buffer(offsets)]
            column = pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[column])
        columns.append(column)
    return pa.record_batch(columns, schema=corpus_schema(WORD_STARTS in values, is_large))


def _flat(documents: pa.ListArray | pa.LargeListArray, name: str) -> SentenceBatch:
    sentences = documents.flatten()
    tokens = sentences.flatten()
    if documents.null_count or sentences.null_count or tokens.null_count:
        raise ValueError(f"dataset: column {name!r} has missing values: remove those rows with dataset.filter.")
    return SentenceBatch(tokens.to_numpy(), sentences.value_lengths().to_numpy(), documents.value_lengths().to_numpy())


def chosen_documents(block: SentenceBatch, rows: np.ndarray) -> SentenceBatch:
    """Documents `rows` of a block, in that order.

    >>> block = SentenceBatch(np.array([5, 6, 7, 8]), np.array([2, 1, 1]), np.array([2, 1]))
    >>> chosen_documents(block, np.array([1, 0])).tokens.tolist()
    [8, 5, 6, 7]
    """
    sentence_offsets, document_offsets = offsets_of(block.sentence_lengths), offsets_of(block.document_lengths)
    return chosen_between(block, sentence_offsets, document_offsets, rows)


def chosen_between(
    block: SentenceBatch, sentence_offsets: np.ndarray, document_offsets: np.ndarray, rows: np.ndarray
) -> SentenceBatch:
    """`chosen_documents` with known offsets."""
    first, end = document_offsets[rows], document_offsets[rows + 1]
    sentences, tokens = ranges(first, end), ranges(sentence_offsets[first], sentence_offsets[end])
    return SentenceBatch(
        block.tokens[tokens],
        sentence_offsets[sentences + 1] - sentence_offsets[sentences],
        end - first,
        None if block.word_starts is None else block.word_starts[tokens],
    )
