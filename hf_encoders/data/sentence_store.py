"""A tokenised corpus on disk, and the view of it as flat arrays.

The form: a `datasets.Dataset` with one column, `input_ids` of `list<list<int32>>`; a row is a document, a list in it a
sentence, without special tokens. `write_corpus` makes such a file, `SentenceStore` reads any such data set.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
from datasets.fingerprint import get_temporary_cache_files_directory


COLUMN = "input_ids"
# Arrow counts the tokens of one list column in 32 bits, so that a longer corpus needs several record batches.
MOST_TOKENS_A_RECORD_BATCH = 2**31 - 1
ROWS_A_STEP = 1000  # documents that are put into another order at once

_COLUMN_TYPE = pa.list_(pa.list_(pa.int32()))
_SCHEMA = datasets.Features.from_arrow_schema(pa.schema({COLUMN: _COLUMN_TYPE})).arrow_schema


class SentenceStore:
    """A corpus as flat arrays, without a copy of the tokens where its Arrow table is in one piece.

    `tokenize_documents` writes such a table. Any other one (after `select`, `shuffle`, `concatenate_datasets`, a
    reload of `save_to_disk`, or with another integer type) is first written anew in one piece: next to its own file if
    that folder can be written to, otherwise into a temporary folder. Above 2**31 tokens there is no single piece, and
    the tokens are copied into memory.

    A pickled store holds the data set, which for one on disk is a path, not the arrays. Copy tokens before changing
    them: they may be a read-only file.

    Args:
        dataset (`datasets.Dataset`): A corpus.

    Attributes:
        tokens (`np.ndarray` of `int32`, shape `(N,)`): All token ids, in order.
        sentence_offsets (`np.ndarray` of `int64`, shape `(S + 1,)`): First token of every sentence, and N.
        document_offsets (`np.ndarray` of `int64`, shape `(D + 1,)`): First sentence of every document, and S.

    Raises:
        ValueError: If there is no column `input_ids` of lists of lists of integers, or a value in it is missing.

    >>> store = SentenceStore(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]}))
    >>> store.tokens.tolist(), store.sentence_offsets.tolist(), store.document_offsets.tolist()
    ([5, 6, 7, 8], [0, 2, 3, 4], [0, 2, 3])
    """

    def __init__(self, dataset: datasets.Dataset):
        self.dataset = _in_one_piece(dataset)
        blocks = [_block_of(chunk) for chunk in self.dataset.data.column(COLUMN).chunks]
        block = blocks[0] if len(blocks) == 1 else SentenceBatch(*map(np.concatenate, zip(*blocks, strict=True)))
        self.tokens = block.tokens
        self.sentence_offsets = offsets_of(block.sentence_lengths)
        self.document_offsets = offsets_of(block.document_lengths)

    @classmethod
    def from_dataset(cls, dataset: datasets.Dataset) -> "SentenceStore":
        """The store of a corpus."""
        return cls(dataset)

    @property
    def num_documents(self) -> int:
        """Number of documents, D."""
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        """Number of sentences, S."""
        return len(self.sentence_offsets) - 1

    @property
    def sentence_lengths(self) -> np.ndarray:
        """Tokens of every sentence, `int64` of shape `(S,)`."""
        return np.diff(self.sentence_offsets)

    def sentence(self, i: int) -> np.ndarray:
        """Token ids of sentence `i` in [0, S), `int32`; a view."""
        return self.tokens[self.sentence_offsets[i] : self.sentence_offsets[i + 1]]

    def document(self, d: int) -> list[np.ndarray]:
        """Token ids of every sentence of document `d` in [0, D); views."""
        return [self.sentence(i) for i in range(self.document_offsets[d], self.document_offsets[d + 1])]

    def tokens_between(self, first_sentence: int, end_sentence: int) -> np.ndarray:
        """Token ids from sentence `first_sentence` up to `end_sentence`, that one excluded; a view."""
        return self.tokens[self.sentence_offsets[first_sentence] : self.sentence_offsets[end_sentence]]

    def __getstate__(self) -> dict[str, datasets.Dataset]:
        return {"dataset": self.dataset}

    def __setstate__(self, state: dict[str, datasets.Dataset]) -> None:
        self.__init__(state["dataset"])


class SentenceBatch(NamedTuple):
    """Whole documents on their way to or from Arrow, each array one-dimensional and `int32`."""

    tokens: np.ndarray
    sentence_lengths: np.ndarray  # in tokens
    document_lengths: np.ndarray  # in sentences


def write_corpus(blocks: Iterable[SentenceBatch], directory: Path) -> datasets.Dataset:
    """Write documents into one Arrow file, in one record batch where they fit, with memory for one block."""
    directory.mkdir(parents=True, exist_ok=True)
    digests = [hashlib.blake2b(digest_size=16) for _ in SentenceBatch._fields]
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        table = Path(scratch) / "table.arrow"
        with (
            contextlib.closing(_RecordBatchOnDisk(Path(scratch))) as record_batch,
            pa.OSFile(str(table), "wb") as sink,
            pa.ipc.new_stream(sink, _SCHEMA) as writer,
        ):
            for block in blocks:
                if len(block.tokens) > MOST_TOKENS_A_RECORD_BATCH:
                    raise ValueError(
                        f"documents: one document has about {len(block.tokens):,} tokens, and Arrow stores at most "
                        f"{MOST_TOKENS_A_RECORD_BATCH:,} in a row: separate documents by blank lines."
                    )
                if record_batch.num_tokens + len(block.tokens) > MOST_TOKENS_A_RECORD_BATCH:
                    record_batch.move_to(writer)
                record_batch.append(block)
                for digest, array in zip(digests, block, strict=True):
                    digest.update(array)
            record_batch.move_to(writer)
        name = hashlib.blake2b(b"".join(digest.digest() for digest in digests), digest_size=16).hexdigest()
        path = directory / f"corpus-{name}.arrow"
        # Files get this name only when they are complete, so one that is there already holds the same bytes.
        if not path.exists():
            os.replace(table, path)
    return datasets.Dataset.from_file(str(path))


class _RecordBatchOnDisk:
    """The buffers of one Arrow record batch, grown in files and handed to the writer as memory maps."""

    def __init__(self, directory: Path):
        self.paths = [directory / name for name in ("tokens", "sentence_offsets", "document_offsets")]
        self._start()

    def append(self, block: SentenceBatch) -> None:
        sentence_ends = self.num_tokens + np.cumsum(block.sentence_lengths)
        document_ends = self.num_sentences + np.cumsum(block.document_lengths)
        for file, array in zip(self.files, (block.tokens, sentence_ends, document_ends), strict=True):
            file.write(np.ascontiguousarray(array, dtype=np.int32))
        self.num_tokens += len(block.tokens)
        self.num_sentences += len(block.sentence_lengths)
        self.num_documents += len(block.document_lengths)

    def move_to(self, writer: pa.ipc.RecordBatchStreamWriter) -> None:
        self.close()
        writer.write_batch(pa.record_batch([self._column()], schema=_SCHEMA))
        self._start()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _start(self) -> None:
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self.files = [open(path, "wb") for path in self.paths]  # noqa: SIM115 - closed by `close`
        for offsets in self.files[1:]:
            offsets.write(np.zeros(1, dtype=np.int32))

    def _column(self) -> pa.ListArray:
        # An empty file cannot be mapped, and the one of tokens is empty for a corpus without documents.
        tokens, *offsets = (
            pa.memory_map(str(path)).read_buffer() if path.stat().st_size else pa.py_buffer(b"") for path in self.paths
        )
        column = pa.Array.from_buffers(pa.int32(), self.num_tokens, [None, tokens])
        levels = ((_COLUMN_TYPE.value_type, self.num_sentences), (_COLUMN_TYPE, self.num_documents))
        for (kind, length), buffer in zip(levels, offsets, strict=True):
            column = pa.Array.from_buffers(kind, length, [None, buffer], children=[column])
        return column


def _in_one_piece(dataset: datasets.Dataset) -> datasets.Dataset:
    """The corpus itself if its table is one chunk of the right type, in the order of its rows; else a copy that is."""
    if COLUMN not in dataset.column_names:
        raise ValueError(f"dataset has {dataset.column_names}, no column {COLUMN!r}: make it with tokenize_documents.")
    dataset = dataset.select_columns([COLUMN])
    column = dataset.data.column(COLUMN)
    if not _holds_sentences(column.type):
        raise ValueError(
            f"dataset: column {COLUMN!r} holds {column.type}, not lists of sentences of token ids: make it with "
            "tokenize_documents."
        )
    # `select` and `shuffle` leave the table as it is and keep a list of rows beside it, which has no public name.
    if dataset._indices is not None:
        rows = dataset._indices.column(0).to_numpy()
        blocks = _chosen_documents(SentenceStore(datasets.Dataset(dataset.data)), rows)
    else:
        num_tokens = sum(len(_block_of(chunk).tokens) for chunk in column.chunks)
        if column.type == _COLUMN_TYPE and (column.num_chunks == 1 or num_tokens > MOST_TOKENS_A_RECORD_BATCH):
            return dataset
        blocks = (_block_of(chunk.cast(_COLUMN_TYPE)) for chunk in column.chunks)
    own_folders = [os.path.dirname(file["filename"]) for file in dataset.cache_files]
    writable = [folder for folder in own_folders if os.access(folder, os.W_OK)]
    return write_corpus(blocks, Path(writable[0] if writable else get_temporary_cache_files_directory()))


def _chosen_documents(store: SentenceStore, rows: np.ndarray) -> Iterator[SentenceBatch]:
    """Documents `rows` of a corpus, in that order."""
    token_starts = store.sentence_offsets[store.document_offsets]
    for i in range(0, len(rows), ROWS_A_STEP):
        step = rows[i : i + ROWS_A_STEP]
        sentences = _ranges(store.document_offsets[step], store.document_offsets[step + 1])
        tokens = _ranges(token_starts[step], token_starts[step + 1])
        lengths = store.sentence_offsets[sentences + 1] - store.sentence_offsets[sentences]
        document_lengths = store.document_offsets[step + 1] - store.document_offsets[step]
        yield SentenceBatch(store.tokens[tokens], lengths.astype(np.int32), document_lengths.astype(np.int32))


def _ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers of several ranges, one range after the other.

    >>> _ranges(np.array([7, 3, 5]), np.array([9, 3, 8]))
    array([7, 8, 5, 6, 7])
    """
    before = offsets_of(ends - starts)
    return np.arange(before[-1]) + np.repeat(starts - before[:-1], ends - starts)


def _holds_sentences(kind: pa.DataType) -> bool:
    """Whether values of this type are lists of lists of integers."""
    for _ in range(2):
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return False
        kind = kind.value_type
    return pa.types.is_integer(kind)


def _block_of(documents: pa.ListArray) -> SentenceBatch:
    """The arrays of one chunk, without a copy of the tokens."""
    sentences = documents.flatten()
    tokens = sentences.flatten()
    if documents.null_count or sentences.null_count or tokens.null_count:
        raise ValueError(f"dataset: column {COLUMN!r} has missing values: remove those rows with dataset.filter.")
    return SentenceBatch(tokens.to_numpy(), sentences.value_lengths().to_numpy(), documents.value_lengths().to_numpy())


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Lengths `(n,)` -> where each begins and the last ends, `int64` of shape `(n + 1,)`."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
