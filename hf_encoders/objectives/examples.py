"""Datasets that sample their examples again every epoch, and examples before masking.

A batch of examples is one object of flat arrays, also for a single index: `__getitems__` returns all rows of a batch
at once, so nothing loops over examples on the way from the corpus to the collator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.objectives import dataset
from hf_encoders.objectives.batches import Segments


@dataclass(frozen=True)
class TextExamples:
    """Examples of one text each, as references into a corpus, without the special tokens at their ends.

    Not a dict, because `Trainer` removes keys of dicts that the model's `forward` does not take.
    """

    segments: Segments  # P of them, of B examples, between separators
    keys: np.ndarray  # from `example_keys`; all random choices depend on them; uint64, (B,)
    mask_rate: float | None = None  # share of the tokens to predict, instead of the collator's
    languages: np.ndarray | None = None  # name of each segment's language, str, (P,)
    # Whether every segment is a text of its own, `[CLS] x [SEP] [CLS] y [SEP]`, with positions that begin again.
    restarts: bool = False
    phase: int = 0  # number of the run's phase that they are for, from 1, whose masking applies; 0 outside of phases

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        tokens = int((self.segments.end - self.segments.begin).sum())
        return f"{type(self).__name__}({len(self):,} examples, {tokens:,} tokens)"

    def token_ids(self, i: int) -> list[np.ndarray]:
        """Token ids of each segment of example `i`, for inspection."""
        segments = self.segments
        first, last = segments.counts[:i].sum(), segments.counts[: i + 1].sum()
        bounds = zip(segments.begin[first:last], segments.end[first:last], strict=True)
        return [segments.tokens[begin:end] for begin, end in bounds]


class EpochDataset(dataset.EpochDataset):
    """A dataset whose batch is one object; it goes when all datasets return `Example`."""

    def __getitem__(self, index: int | slice | Sequence[int]) -> Any:
        """Return the example as a batch of one; for a slice or several indices, one batch of all."""
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        return self.__getitems__([index] if np.ndim(index) == 0 else index)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return all examples of a batch, as a list of one object."""
        return [self.examples(self.checked(indices))]

    def examples(self, indices: np.ndarray) -> Any:
        """Return examples `indices` (`int64`, shape `(B,)`, each in [0, length)) of the current epoch."""
        raise NotImplementedError


class CorpusDataset(EpochDataset):
    """An `EpochDataset` of a tokenised corpus on disk; `epochs` are the arguments of `EpochDataset`."""

    def __init__(self, documents: datasets.Dataset, *epochs: Any):
        super().__init__(*epochs)
        self.store = FlatCorpus.of(documents, keep_empty=True)
        self.corpus = self.store.without_empty()

    def __getstate__(self) -> dict[str, Any]:
        # Workers that are not forked open the file themselves.
        return {name: value for name, value in vars(self).items() if name != "corpus"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.corpus = self.store.without_empty()
