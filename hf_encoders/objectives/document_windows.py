"""Reads the documents of a stream in windows, and tokenises a window in memory; `streaming.py` makes the examples."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import ROWS_PER_READ, values_of_rows
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.segmentation import sentences_of_text
from hf_encoders.corpus.sentence_encoding import make_encoder, tokenized_blocks


Documents = datasets.IterableDataset | Iterable[str | list[str] | list[list[int]]]


class StreamReader:
    """Reads the documents of a stream, shard by shard; arguments as in `StreamedExamples`."""

    def __init__(self, documents: Documents, column: str):
        self.documents, self.column = documents, column
        self.num_shards = 1
        if isinstance(documents, datasets.IterableDataset):
            values_of_rows(documents, column)
            self.num_shards = documents.num_shards
        elif isinstance(documents, (datasets.Dataset, dict, str)) or not isinstance(documents, Iterable):
            raise ValueError(
                f"documents is a {type(documents).__name__}: give one split of a streaming dataset, or an iterable "
                "of documents; for a stored dataset make a corpus with prepare_corpus."
            )
        elif isinstance(documents, Iterator):
            raise ValueError(
                f"documents is a {type(documents).__name__}, which can be read only once, and every epoch and worker "
                "reads it: give a list, a class with __iter__, or datasets.IterableDataset.from_generator(function)."
            )

    def read(self, shard: int, epoch: int) -> Iterator[Any]:
        """The documents of a shard; a stream with a shuffle buffer is shuffled differently every epoch."""
        if not isinstance(self.documents, datasets.IterableDataset):
            yield from self.documents
            return
        # In this order: `with_format` returns a new dataset, of epoch 0.
        part = self.documents.shard(num_shards=self.num_shards, index=shard).with_format(None)
        part.set_epoch(epoch)
        # By `iter`, because `__iter__` would divide the rows among the data loader's workers a second time.
        for batch in part.iter(batch_size=ROWS_PER_READ):
            if self.column not in batch:
                raise ValueError(f"documents has no column {self.column!r} but {list(batch)}: name one with column.")
            yield from batch[self.column]


class WindowTokenizer:
    """Makes a corpus of documents in memory; arguments as in `StreamedExamples`."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        sentence_splitter: Callable[[str], list[str]],
        word_segmenter: Callable[[str], list[str]] | None,
        max_sentence_tokens: int | None,
    ):
        self.encode = None if tokenizer is None else make_encoder(tokenizer, word_segmenter)
        self.sentence_splitter, self.max_sentence_tokens = sentence_splitter, max_sentence_tokens
        self.is_for_text = word_segmenter is not None or max_sentence_tokens is not None

    def __call__(self, documents: list[Any]) -> FlatCorpus:
        """Non-empty documents -> their tokens, without sentences that have none."""
        if isinstance(documents[0], str) or isinstance(documents[0][0], str):
            return self._of_text(documents)
        return self._of_ids(documents)

    def _of_text(self, documents: list[str | list[str]]) -> FlatCorpus:
        if self.encode is None:
            raise ValueError(f"tokenizer=None, but documents holds text, {documents[0]!r:.80}: give the tokenizer.")
        sentences = (
            sentences_of_text(one, self.sentence_splitter) if isinstance(one, str) else one for one in documents
        )
        blocks = list(tokenized_blocks(sentences, self.encode, self.max_sentence_tokens))
        if not blocks:
            return FlatCorpus.from_lengths(*np.empty((3, 0), dtype=np.int32))
        arrays = [None if parts[0] is None else np.concatenate(parts) for parts in zip(*blocks, strict=True)]
        return FlatCorpus.from_lengths(*arrays)

    def _of_ids(self, documents: list[list[list[int]]]) -> FlatCorpus:
        if self.is_for_text:
            raise ValueError(
                "word_segmenter, max_sentence_tokens: no effect on documents of token ids; leave them out, or stream "
                "text."
            )
        try:
            sentences = list(chain.from_iterable(documents))
            tokens = np.array(list(chain.from_iterable(sentences)))
        except (TypeError, ValueError):
            tokens = np.empty(0, dtype=object)
        if tokens.dtype.kind not in "iu":
            raise ValueError(
                f"documents: {documents[0]!r:.80} and those after it are not all lists of sentences of token ids: "
                "every document of a stream must be a text, a list of sentences, or a list of sentences of ids."
            )
        lengths = np.array(list(map(len, sentences))), np.array(list(map(len, documents)))
        return FlatCorpus.from_lengths(tokens.astype(np.int32), *lengths).without_empty()


def cut_windows(values: Iterable[Any], window_documents: int, window_length: int) -> Iterator[list[Any]]:
    """Consecutive documents together; empty ones are left out, and the remainder joins the last window.

    >>> list(cut_windows(["a", "b", "", "c", "d", "e"], window_documents=2, window_length=100))
    [['a', 'b'], ['c', 'd', 'e']]
    >>> list(cut_windows(["long", "a", "long", "b", "c"], window_documents=100, window_length=4))
    [['long', 'a'], ['long', 'b', 'c']]
    """
    previous: list[Any] = []
    window: list[Any] = []
    length = 0
    for value in values:
        size = _length(value)
        if size == 0:
            continue
        window.append(value)
        length += size
        if len(window) >= window_documents or (length >= window_length and len(window) > 1):
            if previous:
                yield previous
            previous, window, length = window, [], 0
    if previous or window:
        yield previous + window


def _length(document: Any) -> int:
    """Characters or tokens of a document; 0 for white space."""
    if isinstance(document, str):
        return 0 if document.isspace() else len(document)
    try:
        if isinstance(document, Mapping):
            raise TypeError
        return sum(map(len, document))
    except TypeError:
        raise ValueError(
            f"documents: {document!r:.80} is not a text, a list of sentences, or a list of sentences of token ids: "
            "leave that document out, or name the column that holds them with column."
        ) from None
