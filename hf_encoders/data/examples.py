"""What data sets give to collators: examples before anything is masked, many at once in flat arrays.

A data set of this package gives a batch of examples as one object, also for a single index. So nothing loops over
examples on the way from the corpus to the batch, and a data loader works as ever: it asks a data set that has
`__getitems__` for all rows of a batch together, and hands the list it gets to the collator.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from hf_encoders.data.batches import Segments


@dataclass(frozen=True)
class TextExamples:
    """Examples of a single text each, by reference, without the special tokens at its ends; from `SentenceBlocks`.

    Not a dict, because Trainer strips the keys of a dict that the model's `forward` does not know.

    Args:
        segments (`Segments`): pieces of each example that separators stand between.
        keys (`np.ndarray` of `uint64`, shape `(B,)`): from `example_keys`; decide every draw for each example.
        mask_rate (`float`, *optional*): share of their tokens to predict, instead of the collator's.
    """

    segments: Segments
    keys: np.ndarray
    mask_rate: float | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        tokens = int((self.segments.end - self.segments.begin).sum())
        return f"{type(self).__name__}({len(self):,} examples, {tokens:,} tokens)"

    def pieces(self, i: int) -> list[np.ndarray]:
        """Token ids of each piece of example `i`; to look at."""
        bounds = zip(self.segments.begin.tolist(), self.segments.end.tolist(), strict=True)
        found = [self.segments.tokens[begin:end] for begin, end in bounds]
        first = int(self.segments.counts[:i].sum())
        return found[first : first + int(self.segments.counts[i])]


class EpochDataset(Dataset):
    """A data set whose examples are drawn anew every epoch.

    Somebody has to say which epoch it is: `hf_encoders.training.EpochCallback` does under `Trainer`. Evaluation, and
    other uses without epochs, take `redraw=False`; a loop of one's own calls `set_epoch`.

    Args:
        seed (`int`): seed of every draw.
        redraw (`bool`): False draws every epoch what epoch 0 draws; for evaluation, so that figures can be compared.
        epochs_per_draw (`int`): epochs that see the same draws before they are drawn anew.
        dupe_factor (`int`, *optional*): number of different draws, after which the first comes again: the static data
            of the original BERT, which was written that many times. `None` never repeats.

    Raises:
        ValueError: if `epochs_per_draw` or `dupe_factor` is below 1.
    """

    def __init__(self, seed: int, redraw: bool, epochs_per_draw: int = 1, dupe_factor: int | None = None):
        for name, value in (("epochs_per_draw", epochs_per_draw), ("dupe_factor", dupe_factor)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1; leave it out to draw every epoch anew.")
        self.seed = seed
        self.redraw = redraw
        self.epochs_per_draw = epochs_per_draw
        self.dupe_factor = dupe_factor
        # In shared memory, so that workers that live longer than an epoch see it change. -1: not announced yet.
        self._announced = torch.full((), -1, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int | slice | Sequence[int]) -> Any:
        """The example as a batch of one; of a slice or of several indices, a batch of all."""
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        return self.__getitems__([index] if np.ndim(index) == 0 else index)[0]

    def __repr__(self) -> str:
        announced = int(self._announced)
        options = {
            "seed": self.seed,
            "redraw": self.redraw,
            "epochs_per_draw": self.epochs_per_draw if self.epochs_per_draw > 1 else None,
            "dupe_factor": self.dupe_factor,
            "epoch": announced if self.redraw and announced >= 0 else None,
        }
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        return f"{type(self).__name__}({', '.join([*self.facts(), *given])})"

    def facts(self) -> list[str]:
        """What the data set is of, for its `repr`."""
        return [f"{len(self):,} examples"]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """All examples of a batch as a list with one object in it."""
        numbers = np.asarray(indices, dtype=np.int64)
        lowest, highest = numbers.min(initial=0), numbers.max(initial=-1)
        if not -len(self) <= lowest <= highest < len(self) and len(numbers):
            raise IndexError(f"indices from {lowest} to {highest}, but there are {len(self)} examples.")
        return [self.examples(np.where(numbers < 0, numbers + len(self), numbers) if lowest < 0 else numbers)]

    def examples(self, indices: np.ndarray) -> Any:
        """Examples `indices` (`int64`, shape `(B,)`, each in [0, length)) of the announced epoch."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Announce the epoch, from 0."""
        self._announced.fill_(int(epoch))

    def at_epoch(self, epoch: int) -> "EpochDataset":
        """The same data set in an epoch of its own: announcing one to either does not reach the other."""
        other = copy.copy(self)
        other._announced = torch.full((), -1, dtype=torch.int64)
        other.set_epoch(epoch)
        return other

    @property
    def epoch(self) -> int:
        """The epoch that was announced; 0 without `redraw`.

        Raises:
            ValueError: if nobody announced it. `Trainer` alone does so in some runs only (not after a restart, not in
                several processes); going on would silently draw epoch 0 again and again.
        """
        if not self.redraw:
            return 0
        announced = int(self._announced)
        if announced < 0:
            raise ValueError(
                "epoch was not announced to the data set, and every epoch would draw the same examples: add "
                "hf_encoders.training.EpochCallback() to the Trainer's callbacks (PreTrainingTrainer has it), call "
                "set_epoch(0) in a loop of your own, or pass redraw=False to the data set for evaluation."
            )
        return announced

    @property
    def draw(self) -> int:
        """Number of the draw that the announced epoch sees."""
        number = self.epoch // self.epochs_per_draw
        return number if self.dupe_factor is None else number % self.dupe_factor
