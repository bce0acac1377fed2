"""A corpus, or a window of a stream, as flat arrays."""

from dataclasses import dataclass, replace
from functools import cached_property

import datasets
import numpy as np

from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.sentence_store import SentenceStore


@dataclass(frozen=True, eq=False, repr=False)
class FlatCorpus:
    """Documents of sentences of token ids, concatenated."""

    tokens: np.ndarray  # all token ids, (N,)
    sentence_offsets: np.ndarray  # first token of every sentence, and N; int64, (S + 1,)
    document_offsets: np.ndarray  # first sentence of every document, and S; int64, (D + 1,)
    word_starts: np.ndarray | None = None  # bits of `UnitStart`, what a token begins; uint8, (N,)

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
    def of(cls, store: SentenceStore) -> "FlatCorpus":
        """The arrays of a corpus on disk, without empty sentences and documents."""
        return cls(store.tokens, store.sentence_offsets, store.document_offsets, store.word_starts).without_empty()

    @classmethod
    def of_dataset(cls, documents: datasets.Dataset) -> "FlatCorpus":
        """Return the arrays of a tokenised dataset of documents, without empty sentences and documents."""
        return cls.of(SentenceStore(documents))

    def __repr__(self) -> str:
        sentences = len(self.sentence_offsets) - 1
        return f"FlatCorpus({self.num_documents:,} documents, {sentences:,} sentences, {len(self.tokens):,} tokens)"

    @property
    def num_documents(self) -> int:
        """Number of documents, D."""
        return len(self.document_offsets) - 1

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
        if np.diff(self.sentence_offsets).all() and np.diff(self.document_offsets).all():
            return self
        numbers = offsets_of(np.diff(self.sentence_offsets) > 0)
        sentence_offsets = np.unique(np.append(self.sentence_offsets, len(self.tokens)))
        document_offsets = np.unique(np.append(numbers[self.document_offsets], len(sentence_offsets) - 1))
        return replace(self, sentence_offsets=sentence_offsets, document_offsets=document_offsets)
