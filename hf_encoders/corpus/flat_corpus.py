"""A corpus as flat arrays: the documents of a `datasets.Dataset`, or of a part of a stream, concatenated.

A row of the dataset is a document, a list of sentences: `input_ids` are their token ids, and `word_starts`, where the
corpus has it, bits of `UnitStart` in the same shape. The dataset may be of any origin.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
from datasets.fingerprint import get_temporary_cache_files_directory


COLUMN = "input_ids"
WORD_STARTS = "word_starts"
ROWS_PER_STEP = 1000  # documents that are copied at once
TYPES = {"tokens": np.int32, "sentence_lengths": np.int32, "document_lengths": np.int32, "word_starts": np.uint8}


class _Arrays(NamedTuple):
    """Documents without offsets."""

    tokens: np.ndarray
    sentence_lengths: np.ndarray  # in tokens
    document_lengths: np.ndarray  # in sentences
    word_starts: np.ndarray | None = None


@dataclass(frozen=True, eq=False, repr=False)
class FlatCorpus:
    """Documents of sentences of token ids, concatenated; the arrays may be a read-only file.

    >>> corpus = FlatCorpus.of(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]}))
    >>> corpus.tokens.tolist(), corpus.sentence_offsets.tolist(), corpus.document_offsets.tolist()
    ([5, 6, 7, 8], [0, 2, 3, 4], [0, 2, 3])
    """

    tokens: np.ndarray  # all token ids, int32, (N,)
    sentence_offsets: np.ndarray  # first token of every sentence, and N; int64, (S + 1,)
    document_offsets: np.ndarray  # first sentence of every document, and S; int64, (D + 1,)
    word_starts: np.ndarray | None = None  # bits of `UnitStart`, what a token begins; uint8, (N,)
    dataset: datasets.Dataset | None = None  # where the arrays are from, which stands for them in a pickle
    has_empty: bool = False  # whether empty sentences and documents were kept

    @classmethod
    def of(cls, dataset: datasets.Dataset, keep_empty: bool = False) -> "FlatCorpus":
        """The arrays of a dataset of documents, memory mapped.

        Nothing is copied if the dataset is one record batch. Any other one on disk (shuffled, selected, or written in
        several batches, as by `prepare_corpus`) is copied once into a folder next to its files, or in a temporary one
        where that is read-only; processes and later runs share the copy.

        Args:
            dataset (`datasets.Dataset`): Column `input_ids`, and perhaps `word_starts`, as above.
            keep_empty (`bool`, *optional*, defaults to `False`): Whether to keep sentences without a token, which hold
                the places of turns in dialogues, and documents without a sentence.

        Raises:
            ValueError: If it is something else, or has missing values.
        """
        if isinstance(dataset, FlatCorpus):
            return dataset.without_empty()
        dataset = _checked(dataset)
        batches = dataset.data.to_batches()
        # `select` and `shuffle` keep the table and add a list of rows, which has no public name.
        if dataset._indices is None and len(batches) == 1:
            arrays = _arrays_of(batches[0])
        elif dataset.cache_files:
            arrays = _arrays_on_disk(dataset)
        else:
            arrays = _joined(_steps(dataset), WORD_STARTS in dataset.column_names)
        corpus = replace(cls.from_lengths(*arrays), dataset=dataset, has_empty=True)
        return corpus if keep_empty else corpus.without_empty()

    @classmethod
    def from_lengths(
        cls,
        tokens: np.ndarray,
        sentence_lengths: np.ndarray,
        document_lengths: np.ndarray,
        word_starts: np.ndarray | None = None,
    ) -> "FlatCorpus":
        """A corpus from the tokens per sentence and the sentences per document.

        >>> FlatCorpus.from_lengths(np.array([7, 8, 9]), np.array([1, 2]), np.array([2])).sentence_offsets.tolist()
        [0, 1, 3]
        """
        return cls(tokens, offsets_of(sentence_lengths), offsets_of(document_lengths), word_starts)

    @classmethod
    def steps(cls, dataset: datasets.Dataset) -> "Iterator[FlatCorpus]":
        """The documents of a dataset, `ROWS_PER_STEP` at a time, as `of` with `keep_empty`, without a copy on disk."""
        return (cls.from_lengths(*arrays) for arrays in _steps(_checked(dataset)))

    @classmethod
    def of_table(cls, table: pa.Table) -> "FlatCorpus":
        """The documents of an Arrow table with the columns of a corpus, as `of` with `keep_empty`."""
        return cls.from_lengths(*_arrays_of(table))

    @classmethod
    def joined(cls, parts: "Iterable[FlatCorpus]") -> "FlatCorpus":
        """The documents of several corpora, all with word starts or all without, as one in memory."""
        parts = [_Arrays(p.tokens, p.sentence_lengths, p.document_lengths, p.word_starts) for p in parts]
        return cls.from_lengths(*_joined(parts, parts[0].word_starts is not None))

    def to_table(self) -> pa.Table:
        """The documents as rows: `input_ids` of type `list<list<int32>>`, and perhaps `word_starts`, `uint8`.

        >>> FlatCorpus.from_lengths(np.array([7, 8, 9]), np.array([1, 2]), np.array([2])).to_table().to_pylist()
        [{'input_ids': [[7], [8, 9]]}]
        """
        columns = {}
        for name, values, kind in ((COLUMN, self.tokens, pa.int32()), (WORD_STARTS, self.word_starts, pa.uint8())):
            if values is not None:
                column = pa.array(values, kind)
                for offsets in (self.sentence_offsets, self.document_offsets):
                    column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), column)
                columns[name] = column
        return pa.table(columns)

    def __repr__(self) -> str:
        counts = f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {len(self.tokens):,} tokens"
        return f"FlatCorpus({counts}{'' if self.word_starts is None else ', word starts'})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A dataset on disk is pickled as its path: workers of a loader open the arrays themselves.
        if self.dataset is not None:
            return FlatCorpus.of, (self.dataset, self.has_empty)
        return FlatCorpus, (self.tokens, self.sentence_offsets, self.document_offsets, self.word_starts)

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

    @property
    def document_lengths(self) -> np.ndarray:
        """Sentences of every document, `int64` of shape `(D,)`."""
        return np.diff(self.document_offsets)

    @property
    def document_tokens(self) -> np.ndarray:
        """Tokens of every document, `int64` of shape `(D,)`."""
        return np.diff(self.sentence_offsets[self.document_offsets])

    @cached_property
    def document_starts(self) -> np.ndarray:
        """First token of every document, `int64` of shape `(D,)`."""
        return self.sentence_offsets[self.document_offsets[:-1]]

    def without_empty(self) -> "FlatCorpus":
        """The corpus without sentences that have no token and documents that have no sentence.

        >>> corpus = FlatCorpus.from_lengths(np.array([7, 8, 9]), np.array([1, 0, 2]), np.array([2, 0, 1]))
        >>> corpus.without_empty().sentence_offsets.tolist(), corpus.without_empty().document_offsets.tolist()
        ([0, 1, 3], [0, 1, 2])
        """
        if self.sentence_lengths.all() and self.document_lengths.all():
            return replace(self, has_empty=False)
        numbers = offsets_of(self.sentence_lengths > 0)
        sentence_offsets = np.unique(np.append(self.sentence_offsets, len(self.tokens)))
        document_offsets = np.unique(np.append(numbers[self.document_offsets], len(sentence_offsets) - 1))
        return replace(self, sentence_offsets=sentence_offsets, document_offsets=document_offsets, has_empty=False)


def _checked(dataset: Any) -> datasets.Dataset:
    """The dataset with the columns of a corpus alone; anything else is refused."""
    if not isinstance(dataset, datasets.Dataset):
        remedy = (
            "text becomes one with prepare_corpus or tokenize_documents, lists of token ids with "
            "datasets.Dataset.from_dict({'input_ids': documents})"
        )
        if isinstance(dataset, (str, os.PathLike)):
            remedy = f"open it with datasets.load_from_disk({str(dataset)!r})"
        elif isinstance(dataset, Mapping):
            remedy = "give one split, for example dataset['train']"
        elif isinstance(dataset, datasets.IterableDataset):
            remedy = "store the stream as a corpus with prepare_corpus"
        raise ValueError(f"documents is a {type(dataset).__name__}, not a tokenized corpus: {remedy}.")
    if COLUMN not in dataset.column_names:
        raise ValueError(
            f"dataset has {dataset.column_names}, not the column {COLUMN!r}: make it with prepare_corpus or "
            "tokenize_documents."
        )
    names = [name for name in (COLUMN, WORD_STARTS) if name in dataset.column_names]
    if names != dataset.column_names:  # else the fingerprint, which names a copy, would change
        dataset = dataset.select_columns(names)
    for field in dataset.data.schema:
        value = field.type
        for _ in range(2):
            is_list = pa.types.is_list(value) or pa.types.is_large_list(value)
            value = value.value_type if is_list else pa.null()
        if not pa.types.is_integer(value):
            raise ValueError(
                f"dataset: column {field.name!r} holds {field.type}, not lists of sentences with one integer per "
                "token: make it with prepare_corpus or tokenize_documents."
            )
    return dataset


def _steps(dataset: datasets.Dataset) -> Iterator[_Arrays]:
    return map(_arrays_of, dataset.with_format("arrow").iter(ROWS_PER_STEP))


def _arrays_of(table: pa.Table | pa.RecordBatch) -> _Arrays:
    """The arrays of some documents; those of a record batch are not copied."""
    arrays = _flat(table, COLUMN, pa.int32())
    if WORD_STARTS not in table.column_names:
        return arrays
    starts = _flat(table, WORD_STARTS, pa.uint8())
    if not all(np.array_equal(ours, theirs) for ours, theirs in zip(arrays[1:3], starts[1:3], strict=True)):
        raise ValueError(
            f"dataset: column {WORD_STARTS!r} is not shaped like {COLUMN!r}: it needs one number per token; remove it "
            "with dataset.remove_columns, or prepare the corpus again with a word_segmenter."
        )
    return arrays._replace(word_starts=starts.tokens)


def _flat(table: pa.Table | pa.RecordBatch, name: str, kind: pa.DataType) -> _Arrays:
    documents = table.column(name)
    if isinstance(documents, pa.ChunkedArray):
        documents = documents.combine_chunks()
    sentences = documents.flatten()
    tokens = sentences.flatten()
    if documents.null_count or sentences.null_count or tokens.null_count:
        raise ValueError(f"dataset: column {name!r} has missing values: remove those rows with dataset.filter.")
    lengths = sentences.value_lengths().to_numpy(), documents.value_lengths().to_numpy()
    return _Arrays(tokens.cast(kind).to_numpy(), *lengths)


def _joined(parts: Iterable[_Arrays], has_word_starts: bool) -> _Arrays:
    none = _Arrays(*(np.empty(0, kind) for kind in TYPES.values()))
    columns = list(zip(none, *parts, strict=True))[: 3 + has_word_starts]
    return _Arrays(*map(np.concatenate, columns))


def _arrays_on_disk(dataset: datasets.Dataset) -> _Arrays:
    """Memory maps of a copy next to the files of a dataset, which is made if it is not there."""
    copy = Path(dataset.cache_files[0]["filename"]).with_name(f"flat-{dataset._fingerprint}")
    if not copy.is_dir() and not os.access(copy.parent, os.W_OK):
        copy = Path(get_temporary_cache_files_directory(), copy.name)
    names = list(TYPES) if WORD_STARTS in dataset.column_names else list(TYPES)[:3]
    if not copy.is_dir():
        with tempfile.TemporaryDirectory(dir=copy.parent, prefix="flat-unfinished-") as scratch:
            made = Path(scratch, "made")  # which others may read, as the scratch folder they may not
            made.mkdir()
            with ExitStack() as opened:
                files = {name: opened.enter_context(open(made / name, "wb")) for name in names}
                for arrays in _steps(dataset):
                    for name, file in files.items():
                        getattr(arrays, name).astype(TYPES[name], copy=False).tofile(file)
            try:
                os.rename(made, copy)
            except OSError:
                if not copy.is_dir():
                    raise  # else another process was first
    paths = [copy / name for name in names]
    return _Arrays(
        *(
            np.memmap(path, TYPES[path.name], mode="r") if path.stat().st_size else np.empty(0, TYPES[path.name])
            for path in paths
        )
    )


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Lengths `(n,)` -> where each row begins, and the end of the last one; `int64` of shape `(n + 1,)`.

    >>> offsets_of(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
