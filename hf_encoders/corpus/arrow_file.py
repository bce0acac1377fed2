"""The Arrow file of a corpus: whole documents as flat arrays, written in one record batch.

A row is a document, a list of sentences: `input_ids` of type `list<list<int32>>`, and in a corpus made with a word
segmenter, a lexicon or phrases `word_starts` of type `list<list<uint8>>` and the same shape, bits of `UnitStart`. The
offsets of a `list` column have 32 bits; beyond that it is a `large_list`.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa

from hf_encoders.corpus.ragged import offsets_of, ranges


ARROW_FILE = "corpus.arrow"  # in the folder of a corpus
COLUMN = "input_ids"
WORD_STARTS = "word_starts"
MOST_IN_A_LIST_COLUMN = 2**31 - 1  # tokens, or sentences; with more, lists are large
BYTES_PER_WRITE = 2**26  # converted at once

_VALUES = {COLUMN: pa.int32(), WORD_STARTS: pa.uint8()}
# `SentenceBatch` field -> type in its file while a record batch grows; files of lengths hold their offsets.
_NUMBERS = {"tokens": np.int32, "sentence_lengths": np.int64, "document_lengths": np.int64, "word_starts": np.uint8}
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


def corpus_file(directory: Path, name: str) -> Path:
    """An Arrow file beside that of a corpus."""
    return directory / f"corpus-{name}.arrow"


def write_corpus(
    blocks: Iterable[SentenceBatch], directory: Path, *, has_word_starts: bool, name: str | None = None
) -> datasets.Dataset:
    """Write documents into one Arrow file, with a name that only they have: by default a hash of the contents."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        table = Path(scratch) / "table.arrow"
        found = write_arrow_file(blocks, table, has_word_starts=has_word_starts)
        path = corpus_file(directory, name or found)
        # Only complete files get this name, so that an existing one holds the same bytes.
        if not path.exists():
            os.replace(table, path)
    return datasets.Dataset.from_file(str(path))


def write_arrow_file(blocks: Iterable[SentenceBatch], path: Path, *, has_word_starts: bool) -> str:
    """Write documents into one Arrow file, in one record batch, with memory for one block and twice the disk space.

    Returns a hash of the contents, 32 hexadecimal digits, which does not depend on the division into blocks.
    """
    names = [name for name in SentenceBatch._fields if has_word_starts or name != "word_starts"]
    # One per array: a corpus without word starts never has the hash of one with them.
    digests = {name: hashlib.blake2b(digest_size=16) for name in names}
    num_tokens = num_sentences = 0
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        paths = {name: Path(scratch, name) for name in names}
        with contextlib.ExitStack() as opened:
            files = {name: opened.enter_context(open(file, "wb")) for name, file in paths.items()}
            for name in ("sentence_lengths", "document_lengths"):
                files[name].write(np.zeros(1, dtype=_NUMBERS[name]))
            for block in blocks:
                arrays = block._asdict() | {
                    "sentence_lengths": num_tokens + np.cumsum(block.sentence_lengths, dtype=np.int64),
                    "document_lengths": num_sentences + np.cumsum(block.document_lengths, dtype=np.int64),
                }
                for name in names:
                    files[name].write(np.ascontiguousarray(arrays[name], dtype=_NUMBERS[name]))
                    digests[name].update(np.ascontiguousarray(getattr(block, name), _HASHED[name]))
                num_tokens += len(block.tokens)
                num_sentences += len(block.sentence_lengths)
        _write_record_batch(paths, path, max(num_tokens, num_sentences) > MOST_IN_A_LIST_COLUMN)
    return hashlib.blake2b(b"".join(d.digest() for d in digests.values()), digest_size=16).hexdigest()


def _write_record_batch(paths: dict[str, Path], path: Path, is_large: bool) -> None:
    """Write the Arrow file from memory maps of its buffers; each file of `paths` holds one."""
    numbers = dict(_NUMBERS)
    if not is_large:
        for name in ("sentence_lengths", "document_lengths"):
            numbers[name] = np.int32
            _narrow(paths[name])
    # An empty file cannot be mapped; without documents, that of the tokens is empty.
    arrays = {
        name: np.memmap(file, numbers[name], mode="r") if file.stat().st_size else np.empty(0, numbers[name])
        for name, file in paths.items()
    }
    values = {COLUMN: arrays["tokens"]}
    if "word_starts" in arrays:
        values[WORD_STARTS] = arrays["word_starts"]
    # Arrow implementations other than the one in C++ may not read more than 2**31 values.
    options = pa.ipc.IpcWriteOptions(allow_64bit=is_large)
    schema = corpus_schema("word_starts" in arrays, is_large)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema, options=options) as writer:
        writer.write_batch(_record_batch(values, arrays["sentence_lengths"], arrays["document_lengths"]))


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
    first, end = document_offsets[rows], document_offsets[rows + 1]
    sentences, tokens = ranges(first, end), ranges(sentence_offsets[first], sentence_offsets[end])
    return SentenceBatch(
        block.tokens[tokens],
        sentence_offsets[sentences + 1] - sentence_offsets[sentences],
        end - first,
        None if block.word_starts is None else block.word_starts[tokens],
    )
