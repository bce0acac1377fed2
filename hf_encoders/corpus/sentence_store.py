"""A tokenized corpus, a `datasets.Dataset` with the columns of `arrow_file.py`, as flat arrays."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.fingerprint import get_temporary_cache_files_directory

from hf_encoders.corpus.arrow_file import (
    COLUMN,
    WORD_STARTS,
    SentenceBatch,
    block_of,
    corpus_file,
    corpus_schema,
    write_corpus,
)
from hf_encoders.corpus.ragged import offsets_of


ROWS_PER_STEP = 1000  # documents that are copied at once


class SentenceStore:
    """A corpus as flat arrays; the tokens are not copied if its Arrow table is one record batch.

    `prepare_corpus` and `tokenize_documents` write such a table. Any other table (after `select`, `shuffle`,
    `concatenate_datasets`, a reload of `save_to_disk`, or with another integer type) is first rewritten as one record
    batch: next to its own file if that folder is writable, otherwise in a temporary folder.

    A pickled store holds the dataset (for one on disk, its path), not the arrays. Copy tokens before changing them:
    they may be a read-only file.

    Attributes:
        tokens (`np.ndarray` of `int32`, shape `(N,)`): All token ids in order.
        sentence_offsets (`np.ndarray` of `int64`, shape `(S + 1,)`): First token of every sentence, and N.
        document_offsets (`np.ndarray` of `int64`, shape `(D + 1,)`): First sentence of every document, and S.
        word_starts (`np.ndarray` of `uint8`, shape `(N,)`, or `None`): Bits of `UnitStart`: what a token
            begins, 0 where it continues a word; `None` for a corpus without the column `word_starts`.

    >>> store = SentenceStore(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]}))
    >>> store.tokens.tolist(), store.sentence_offsets.tolist(), store.document_offsets.tolist()
    ([5, 6, 7, 8], [0, 2, 3, 4], [0, 2, 3])
    """

    def __init__(self, dataset: datasets.Dataset):
        self.dataset = _in_one_batch(dataset)
        batches = self.dataset.data.to_batches()  # one, or none
        block = block_of(batches[0]) if batches else _no_documents(WORD_STARTS in self.dataset.column_names)
        self.tokens = block.tokens
        self.word_starts = block.word_starts
        self.sentence_offsets = offsets_of(block.sentence_lengths)
        self.document_offsets = offsets_of(block.document_lengths)

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

    def __repr__(self) -> str:
        counts = f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {len(self.tokens):,} tokens"
        return f"SentenceStore({counts}{'' if self.word_starts is None else ', word starts'})"

    def __getstate__(self) -> dict[str, datasets.Dataset]:
        return {"dataset": self.dataset}

    def __setstate__(self, state: dict[str, datasets.Dataset]) -> None:
        self.__init__(state["dataset"])


def _in_one_batch(dataset: datasets.Dataset) -> datasets.Dataset:
    """The corpus itself if its table is one chunk of the right types in row order, else a copy that is."""
    if not isinstance(dataset, datasets.Dataset):
        raise ValueError(f"documents is a {type(dataset).__name__}, not a tokenized corpus: {_remedy(dataset)}.")
    if COLUMN not in dataset.column_names:
        raise ValueError(
            f"dataset has {dataset.column_names}, not the column {COLUMN!r}: make it with prepare_corpus or "
            "tokenize_documents."
        )
    names = [name for name in (COLUMN, WORD_STARTS) if name in dataset.column_names]
    dataset = dataset.select_columns(names)
    types = [dataset.data.column(name).type for name in names]
    for name, kind in zip(names, types, strict=True):
        _check_sentences(name, kind)
    has_word_starts = WORD_STARTS in names
    small, large = (corpus_schema(has_word_starts, is_large) for is_large in (False, True))
    # `select` and `shuffle` keep the table and add a list of rows, which has no public name.
    if dataset._indices is None and len(dataset.data.to_batches()) <= 1 and types in (small.types, large.types):
        return dataset
    tables = dataset.with_format("arrow").iter(ROWS_PER_STEP)
    blocks = (block_of(_cast(table, large)) for table in tables)
    own_folders = [os.path.dirname(file["filename"]) for file in dataset.cache_files]
    writable = [folder for folder in own_folders if os.access(folder, os.W_OK)]
    folder = Path(writable[0] if writable else get_temporary_cache_files_directory())
    # The same selection is written once, not by every process and every start of a run.
    name = f"of-{dataset._fingerprint}" if datasets.is_caching_enabled() else None
    if name is not None and (file := corpus_file(folder, name)).is_file():
        return datasets.Dataset.from_file(str(file))
    return write_corpus(blocks, folder, has_word_starts=has_word_starts, name=name)


def _remedy(documents: Any) -> str:
    """How to make a corpus from what was given instead of one."""
    if isinstance(documents, (str, os.PathLike)):
        return f"open it with datasets.load_from_disk({str(documents)!r})"
    if isinstance(documents, Mapping):
        return "give one split, for example dataset['train']"
    if isinstance(documents, datasets.IterableDataset):
        return "store the stream as a corpus with prepare_corpus"
    return (
        "text becomes one with prepare_corpus or tokenize_documents, lists of token ids with "
        "datasets.Dataset.from_dict({'input_ids': documents})"
    )


def _cast(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([table.column(one.name).combine_chunks().cast(one.type) for one in schema], schema=schema)


def _check_sentences(name: str, kind: pa.DataType) -> None:
    value = kind
    for _ in range(2):
        is_list = pa.types.is_list(value) or pa.types.is_large_list(value)
        value = value.value_type if is_list else pa.null()
    if not pa.types.is_integer(value):
        raise ValueError(
            f"dataset: column {name!r} holds {kind}, not lists of sentences with one integer per token: make it with "
            "prepare_corpus or tokenize_documents."
        )


def _no_documents(has_word_starts: bool) -> SentenceBatch:
    none = np.empty(0, np.int32)
    return SentenceBatch(none, none, none, np.empty(0, np.uint8) if has_word_starts else None)
