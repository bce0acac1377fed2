"""Batches by token budget: groups of as many examples as a budget of tokens holds.

Steps then have nearly the same number of tokens, so their memory and time are known. Packed (`packed=True` of the
collators) a group is one row without padding. Groups are random samples of the epoch's examples.
"""

import copy
import math
from typing import Any

import numpy as np

from hf_encoders.corpus.ragged import offsets_of, ranges
from hf_encoders.corpus.randomness import RandomStream, example_keys, random_bits
from hf_encoders.objectives.chunk_examples import ChunkExamples
from hf_encoders.objectives.chunks import DocumentChunks
from hf_encoders.objectives.collators import DataCollatorForMaskedLM
from hf_encoders.objectives.dialogues import Dialogues
from hf_encoders.objectives.examples import CorpusDataset, EpochDataset, TextExamples


EXAMPLES_PER_STEP = 2**16  # whose lengths are computed at once
LOOKAHEAD = 256  # a group's last gap is filled with the best of this many next examples
SPARE_GROUPS = 0.01  # share of groups for epochs that have more tokens than epoch 0


class TokenBudget(EpochDataset):
    """Groups of examples with at most `max_tokens` tokens in total; one group is one row of a `Trainer`'s batch.

    `per_device_train_batch_size=1` gives up to `max_tokens` tokens per step and device, k gives k groups at once.

    Groups are a function of (seed, epoch): the epoch's examples in random order, filled into one group after the
    other. The length is the number of groups that epoch 0 needs, and 1 % more (at least one; none with `redraw=False`)
    for epochs that have more tokens. Each epoch fills all groups alike, so every example comes once, also those that
    `DocumentChunks` leaves out, or repeats, to keep its length. Only what exceeds the budget of all groups is left
    out. An epoch with fewer examples than groups repeats its first groups.

    `set_epoch`, and `__init__` for epoch 0, compute the lengths of all examples; docs/data.md has the time it takes.

    Args:
        dataset (`CorpusDataset`): The examples, with their seed and epochs: `DocumentChunks`, `SentenceBlocks` and
            others of a corpus.
        collator (`DataCollatorForMaskedLM` or a pair collator): The one that makes the batches, which knows how long
            each example is.
        max_tokens (`int`, *optional*, defaults to 16384): Most tokens of a group, special tokens included; at least
            the longest example.

    >>> from datasets import Dataset
    >>> from hf_encoders.objectives.blocks import SentenceBlocks
    >>> documents = Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]], [[30]]]})
    >>> blocks = SentenceBlocks(documents, max_length=8, cross_documents=False, redraw=False)
    >>> groups = TokenBudget(blocks, DataCollatorForMaskedLM(doctest_tokenizer()), max_tokens=10)
    >>> [[group.token_ids(i)[0].tolist() for i in range(len(group))] for group in (groups[0], groups[1])]
    [[[20, 21, 22, 23, 24]], [[30], [10, 11, 12]]]
    """

    def __init__(self, dataset: CorpusDataset, collator: DataCollatorForMaskedLM, max_tokens: int = 16384):
        _check(dataset, collator)
        super().__init__(dataset.seed, dataset.redraw, dataset.epochs_per_draw, dataset.dupe_factor)
        self.dataset, self.collator, self.max_tokens = dataset, collator, max_tokens
        # Epoch 0 is counted without setting the epoch, which is the trainer's task.
        first_epoch = copy.copy(dataset)
        first_epoch.redraw = False
        lengths = self._lengths(first_epoch)
        longest = int(lengths.max())
        if isinstance(dataset, DocumentChunks | Dialogues):
            longest = max(longest, dataset.max_length)  # in later epochs
        if not isinstance(max_tokens, (int, np.integer)) or max_tokens < longest:
            raise ValueError(
                f"max_tokens={max_tokens} must be a whole number of at least {longest}, the longest example: raise it "
                f"(16384, for example), or lower max_length of the dataset."
            )
        num_needed = len(fill_groups(self._shuffled(0, len(lengths)), lengths, max_tokens)[1])
        spare = max(1, round(SPARE_GROUPS * num_needed)) if dataset.redraw else 0
        self.num_groups = min(num_needed + spare, len(lengths))
        self._plan: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return self.num_groups

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        return [f"{len(self):,} groups of {self.dataset!r}", f"max_tokens={self.max_tokens}"]

    @property
    def epoch(self) -> int:
        """The current epoch of the examples' dataset; raises as there."""
        return self.dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, and make its groups, so that workers started later do not each have to."""
        self.dataset.set_epoch(epoch)
        self._groups()

    def examples(self, indices: np.ndarray) -> TextExamples | ChunkExamples:
        """The examples of groups `indices`, all in one object."""
        order, offsets = self._groups()
        indices = indices % (len(offsets) - 1)
        return self.dataset.examples(order[ranges(offsets[indices], offsets[indices + 1])])

    def _groups(self) -> tuple[np.ndarray, np.ndarray]:
        """The epoch's examples in the order of its groups, `(E,)`, and the bounds of the groups, `(G + 1,)`."""
        epoch = self.epoch
        if self._plan is None or self._plan[0] != epoch:
            lengths = self._lengths(self.dataset)
            order, counts = self._filled_alike(self._shuffled(epoch, len(lengths)), lengths)
            counts = divided(counts, self.num_groups)[: self.num_groups]
            self._plan = (epoch, order[: counts.sum()], offsets_of(counts))
        return self._plan[1:]

    def _filled_alike(self, order: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`fill_groups` with the lowest limit found that needs no more groups than there are, or with `max_tokens`."""
        even, longest, surplus = lengths.sum() / self.num_groups, int(lengths.max()), 0.002
        while True:
            limit = min(max(math.ceil(even * (1 + surplus)), longest), self.max_tokens)
            filled, counts = fill_groups(order, lengths, limit)
            if len(counts) <= self.num_groups or limit == self.max_tokens:
                return filled, counts
            surplus *= 2

    def _shuffled(self, epoch: int, num_examples: int) -> np.ndarray:
        keys = example_keys(self.seed, epoch, np.arange(num_examples))
        return np.argsort(random_bits(keys, RandomStream.TOKEN_BUDGET_SHUFFLE, 0), kind="stable")

    def _lengths(self, dataset: CorpusDataset) -> np.ndarray:
        """Lengths of all examples of the epoch, special tokens included."""
        num_examples = dataset.num_in_epoch() if isinstance(dataset, DocumentChunks) else len(dataset)
        steps = np.array_split(np.arange(num_examples), range(EXAMPLES_PER_STEP, num_examples, EXAMPLES_PER_STEP))
        return np.concatenate([self.collator.example_lengths(dataset.examples(indices)) for indices in steps])


def fill_groups(order: np.ndarray, lengths: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Fill groups with examples, one group after the other.

    A group takes examples in order while they fit, and then, as long as one does, the longest that fits among the next
    ones (best fit, with a lookahead).

    `order` has the examples in the order to take them, `lengths` the tokens of examples 0 to E - 1, each in
    [1, `max_tokens`]; `int64` of shape `(E,)`. Returns the examples group by group, and the number in each group.

    Groups of 10: 4 and 5 leave a gap of 1, which the last but one fills:

    >>> order, counts = fill_groups(np.arange(5), np.array([4, 5, 7, 1, 3]), 10)
    >>> order.tolist(), counts.tolist()
    ([0, 1, 3, 2, 4], [3, 2])
    """
    order, lengths = order.copy(), lengths[order]
    shortest = int(lengths.min())
    most = max_tokens // shortest
    counts, start = [], 0
    while start < len(order):
        sums = np.cumsum(lengths[start : start + most])
        stop = start + int(np.searchsorted(sums, max_tokens, "right"))
        gap = max_tokens - int(sums[stop - start - 1])
        while gap >= shortest and stop < len(order):
            candidates = lengths[stop : stop + LOOKAHEAD]
            best = stop + int(np.where(candidates <= gap, candidates, 0).argmax())
            if lengths[best] > gap:
                break
            for values in (order, lengths):
                values[[stop, best]] = values[[best, stop]]
            gap -= int(lengths[stop])
            stop += 1
        counts.append(stop - start)
        start = stop
    return order, np.array(counts)


def divided(counts: np.ndarray, num_groups: int) -> np.ndarray:
    """Groups of `counts` examples, of which the fullest are halved until there are `num_groups`, or one example each.

    >>> divided(np.array([4, 9, 5]), 5).tolist()
    [4, 5, 4, 3, 2]
    """
    while (missing := num_groups - len(counts)) > 0:
        fullest = np.sort(np.argsort(counts, kind="stable")[-missing:])
        fullest = fullest[counts[fullest] > 1]
        if len(fullest) == 0:
            break
        halves = counts[fullest] // 2
        counts = counts.copy()
        counts[fullest] -= halves
        counts = np.insert(counts, fullest + 1, halves)
    return counts


def _check(dataset: Any, collator: Any) -> None:
    if not isinstance(dataset, CorpusDataset):
        raise ValueError(
            f"dataset is a {type(dataset).__name__}: give a DocumentChunks or SentenceBlocks of the documents. The "
            "lengths of a stream's examples are not known before it is read: give the stream itself to Trainer, with "
            "packed=True in the data collator (a fixed number of examples per batch), or make a corpus with "
            "prepare_corpus."
        )
    if not hasattr(collator, "example_lengths"):
        raise ValueError(
            f"collator is a {type(collator).__name__}: give the one of hf_encoders.data that makes the batches, which "
            "knows the lengths of examples."
        )
