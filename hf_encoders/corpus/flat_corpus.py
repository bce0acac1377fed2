"""A corpus as flat arrays: the documents of a `datasets.Dataset`, or of a part of a stream, concatenated.

A row of the dataset is a document, a list of sentences: `input_ids` are their token ids, and `word_starts`, where the
corpus has it, bits of `UnitStart` in the same shape. The dataset may be of any origin. Tokens are never copied as a
whole: they are slices of the memory-mapped pieces, the record batches, that the dataset has.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import datasets
import numpy as np
import pyarrow as pa


COLUMN = "input_ids"
WORD_STARTS = "word_starts"
DOCUMENTS_PER_STEP = 1000


@dataclass(frozen=True, eq=False)
class Pieces:
    """An array that is a concatenation of runs of other arrays, read by slices; one within a run is not copied.

    >>> arrays = [np.array([5, 6]), np.array([7, 8, 9])]
    >>> pieces = Pieces(arrays, numbers=np.array([1, 0]), begins=np.array([1, 0]), offsets=np.array([0, 2, 4]))
    >>> pieces[:].tolist(), pieces[1:3].tolist(), len(pieces)
    ([8, 9, 5, 6], [9, 5], 4)
    """

    arrays: list[np.ndarray]
    numbers: np.ndarray  # array of each run
    begins: np.ndarray  # where the run begins in it
    offsets: np.ndarray  # where the run begins here, and the length at the end
    dtype: type = np.int32

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __getitem__(self, part: slice) -> np.ndarray:
        begin, end, _ = part.indices(len(self))
        if end <= begin:
            return np.empty(0, self.dtype)
        run = int(self.offsets.searchsorted(begin, "right")) - 1
        slices = [self._of_run(run, begin, end)]
        while (reached := int(self.offsets[run + 1])) < end:
            run += 1
            slices.append(self._of_run(run, reached, end))
        return slices[0] if len(slices) == 1 else np.concatenate(slices)

    def _of_run(self, run: int, begin: int, end: int) -> np.ndarray:
        shift = int(self.begins[run]) - int(self.offsets[run])
        end = min(end, int(self.offsets[run + 1]))
        return self.arrays[self.numbers[run]][begin + shift : end + shift].astype(self.dtype, copy=False)


@dataclass(frozen=True, eq=False, repr=False)
class FlatCorpus:
    """Documents of sentences of token ids, concatenated.

    >>> corpus = FlatCorpus.of(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]}))
    >>> corpus.tokens[:].tolist(), corpus.sentence_offsets.tolist(), corpus.document_offsets.tolist()
    ([5, 6, 7, 8], [0, 2, 3, 4], [0, 2, 3])
    """

    tokens: np.ndarray | Pieces  # all token ids, int32, (N,)
    sentence_offsets: np.ndarray  # first token of every sentence, and N; int64, (S + 1,)
    document_offsets: np.ndarray  # first sentence of every document, and S; int64, (D + 1,)
    word_starts: np.ndarray | Pieces | None = None  # bits of `UnitStart`, what a token begins; uint8, (N,)
    dataset: datasets.Dataset | None = None  # where the arrays are from, which stands for them in a pickle
    has_empty: bool = False  # whether empty sentences and documents were kept

    @classmethod
    def of(cls, dataset: datasets.Dataset, keep_empty: bool = False) -> "FlatCorpus":
        """Return the documents of a dataset; `tokens` and `word_starts` are `Pieces` of its memory map.

        Takes 8 bytes of memory per sentence, and of a selection of rows up to 24 per document.

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
        # `select` and `shuffle` keep the table and add a list of rows, which has no public name.
        rows = None if dataset._indices is None else dataset._indices.column(0).to_numpy()
        corpus = replace(cls.of_table(dataset.data, rows), dataset=dataset, has_empty=True)
        return corpus if keep_empty else corpus.without_empty()

    @classmethod
    def of_table(cls, table: pa.Table, rows: np.ndarray | None = None) -> "FlatCorpus":
        """Return the documents of some rows of a table with the columns of a corpus, or of all, as `of`."""
        batches, starts = table.to_batches(), None
        tokens, sentence_lengths, document_lengths = _flat(batches, COLUMN)
        if WORD_STARTS in table.column_names:
            starts, *lengths = _flat(batches, WORD_STARTS)
            if not all(map(np.array_equal, lengths, (sentence_lengths, document_lengths))):
                raise ValueError(
                    f"dataset: column {WORD_STARTS!r} is not shaped like {COLUMN!r}: it needs one number per token; "
                    "remove it with dataset.remove_columns, or prepare the corpus again with a word_segmenter."
                )
        arrays = offsets_of(np.array([len(array) for array in tokens], np.int64))
        numbers, begins, ends = np.arange(len(tokens)), arrays[:-1], arrays[1:]
        if rows is not None:
            sentences = offsets_of(document_lengths)
            first, last = offsets_of(sentence_lengths)[[sentences[rows], sentences[rows + 1]]]
            sentence_lengths = sentence_lengths[ranges(sentences[rows], sentences[rows + 1])]
            document_lengths = document_lengths[rows]
            # Rows that follow each other in one array are one run.
            first, last = first[first < last], last[first < last]
            numbers = arrays.searchsorted(first, "right") - 1
            begins_run = np.append(True, (first[1:] != last[:-1]) | (numbers[1:] != numbers[:-1]))[: len(first)]
            numbers, begins = numbers[begins_run], first[begins_run]
            ends = last[np.append(begins_run[1:], True)[: len(first)]]
        runs = numbers, begins - arrays[numbers], offsets_of(ends - begins)
        return cls(
            Pieces(tokens, *runs),
            offsets_of(sentence_lengths),
            offsets_of(document_lengths),
            None if starts is None else Pieces(starts, *runs, np.uint8),
        )

    @classmethod
    def from_lengths(
        cls,
        tokens: np.ndarray,
        sentence_lengths: np.ndarray,
        document_lengths: np.ndarray,
        word_starts: np.ndarray | None = None,
    ) -> "FlatCorpus":
        """Return a corpus from the tokens per sentence and the sentences per document.

        >>> FlatCorpus.from_lengths(np.array([7, 8, 9]), np.array([1, 2]), np.array([2])).sentence_offsets.tolist()
        [0, 1, 3]
        """
        return cls(tokens, offsets_of(sentence_lengths), offsets_of(document_lengths), word_starts)

    @classmethod
    def steps(cls, dataset: datasets.Dataset) -> "Iterator[FlatCorpus]":
        """Yield the documents of a dataset, `DOCUMENTS_PER_STEP` at a time, as `of` with `keep_empty`, as arrays."""
        corpus = cls.of(dataset, keep_empty=True)
        for first in range(0, corpus.num_documents, DOCUMENTS_PER_STEP):
            yield corpus.part(first, first + DOCUMENTS_PER_STEP)

    def part(self, first: int = 0, last: int | None = None) -> "FlatCorpus":
        """Return documents `first` to below `last`, with arrays in memory."""
        documents = self.document_offsets[first : None if last is None else last + 1]
        sentences = self.sentence_offsets[documents[0] : documents[-1] + 1]
        tokens = slice(sentences[0], sentences[-1])
        starts = None if self.word_starts is None else self.word_starts[tokens]
        return FlatCorpus(self.tokens[tokens], sentences - sentences[0], documents - documents[0], starts)

    def to_table(self) -> pa.Table:
        """Return the documents as rows: `input_ids` of type `list<list<int32>>`, and perhaps `word_starts`, `uint8`.

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
        """Return the number of documents, D."""
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        """Return the number of sentences, S."""
        return len(self.sentence_offsets) - 1

    @property
    def sentence_lengths(self) -> np.ndarray:
        """Return the tokens of every sentence, `int64` of shape `(S,)`."""
        return np.diff(self.sentence_offsets)

    @property
    def document_lengths(self) -> np.ndarray:
        """Return the sentences of every document, `int64` of shape `(D,)`."""
        return np.diff(self.document_offsets)

    @property
    def document_tokens(self) -> np.ndarray:
        """Return the tokens of every document, `int64` of shape `(D,)`."""
        return np.diff(self.sentence_offsets[self.document_offsets])

    @cached_property
    def document_starts(self) -> np.ndarray:
        """Return the first token of every document, `int64` of shape `(D,)`."""
        return self.sentence_offsets[self.document_offsets[:-1]]

    def without_empty(self) -> "FlatCorpus":
        """Return the corpus without sentences that have no token and documents that have no sentence.

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
    """Return the dataset with the columns of a corpus alone; refuse anything else."""
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
    dataset = dataset.select_columns([name for name in (COLUMN, WORD_STARTS) if name in dataset.column_names])
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


def _flat(batches: list[pa.RecordBatch], name: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return the tokens of each record batch, not copied, and the lengths of all sentences and documents."""
    tokens, sentence_lengths, document_lengths = [], [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for batch in batches:
        documents = batch.column(name)
        sentences = documents.flatten()
        values = sentences.flatten()
        if documents.null_count or sentences.null_count or values.null_count:
            raise ValueError(f"dataset: column {name!r} has missing values: remove those rows with dataset.filter.")
        tokens.append(values.to_numpy())
        sentence_lengths.append(sentences.value_lengths().to_numpy())
        document_lengths.append(documents.value_lengths().to_numpy())
    return tokens, np.concatenate(sentence_lengths), np.concatenate(document_lengths)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return where each row of some lengths `(n,)` begins, and the end of the last one; `int64` of shape `(n + 1,)`.

    >>> offsets_of(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the integers of several ranges, concatenated; `int64`.

    >>> ranges(np.array([7, 3, 5]), np.array([9, 3, 8]))
    array([7, 8, 5, 6, 7])
    """
    before = offsets_of(ends - starts)
    numbers = np.arange(before[-1])
    numbers += np.repeat(starts - before[:-1], ends - starts)
    return numbers
