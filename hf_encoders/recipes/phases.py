"""A whole run as one data set: the micro-batches of all its phases, one after the other.

`Trainer` sees a map-style data set whose item k is the k-th micro-batch of the run, in order. So a run of several
lengths and batch sizes is one `train()`: one optimizer, one schedule over all steps, one row of checkpoints; and a
restart skips to its micro-batch without reading those before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from hf_encoders.data.corpus.sentence_store import SentenceStore
from hf_encoders.data.examples import EpochDataset
from hf_encoders.data.randomness import RandomStream, example_keys, random_bits
from hf_encoders.recipes.recipe import Phase


@dataclass(frozen=True)
class PhaseExamples:
    """A phase and the data set that its examples are from, which has the phase's length."""

    phase: Phase
    dataset: EpochDataset


def check_division(phases: Sequence[Phase], micro_batches: int) -> None:
    """Refuse micro-batches without an example.

    Raises:
        ValueError: if a phase has fewer examples a step than there are micro-batches.
    """
    for number, phase in enumerate(phases):
        if phase.examples < micro_batches:
            raise ValueError(
                f"phase {number + 1} has {phase.examples} examples a step, and processes times accumulation steps are "
                f"{micro_batches}: use fewer of either (a larger per_device_train_batch_size accumulates less), or "
                "give the phase more examples."
            )


class RunExamples(Dataset):
    """The micro-batches of a run.

    Every step takes the next `examples` of its phase from a random order of the epoch's examples, drawn anew every
    epoch as a function of (seed, epoch). How they are divided into micro-batches has no influence on which examples a
    step has, nor on what is drawn for them: a run on one device equals the same run on two.

    Epochs are counted on from phase to phase, so that no phase sees the draws of an earlier one again.

    Args:
        phases: the phases in order.
        micro_batches (`int`): micro-batches in a step, over all processes: processes times accumulation steps.
        mask_rate (`Callable`, *optional*): progress in [0, 1) -> the mask rate of a step, such as `LinearMaskRate`.
            None leaves it to the data collator.

    Raises:
        ValueError: if a phase has fewer examples a step than there are micro-batches.
    """

    def __init__(
        self,
        phases: Sequence[PhaseExamples],
        micro_batches: int,
        mask_rate: Callable[[float], float] | None = None,
    ):
        self.phases, self.micro_batches, self.mask_rate = list(phases), micro_batches, mask_rate
        check_division([part.phase for part in self.phases], micro_batches)
        # Of each phase its first micro-batch and its first epoch.
        self.first_items, self.first_epochs = [0], [0]
        for part in self.phases:
            self.first_items.append(self.first_items[-1] + part.phase.steps * micro_batches)
            epochs = -(-part.phase.steps * part.phase.examples // len(part.dataset))
            self.first_epochs.append(self.first_epochs[-1] + epochs)
        self._opened: tuple[int, int, EpochDataset, np.ndarray] | None = None

    def __len__(self) -> int:
        return self.first_items[-1]

    @property
    def store(self) -> SentenceStore:
        """The corpus of the phases: checkpoints note it as that of any data set."""
        return self.phases[0].dataset.store

    def items_of(self, place: int) -> range:
        """The micro-batches of phase `place`, from 0."""
        return range(self.first_items[place], self.first_items[place + 1])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def __getitem__(self, index: int) -> list[Any]:
        """The examples of a micro-batch, as the data collators take them."""
        place = int(np.searchsorted(self.first_items, index, "right")) - 1
        part = self.phases[place]
        step, turn = divmod(index - self.first_items[place], self.micro_batches)
        # Micro-batches of a step differ by one example at most.
        bounds = [part.phase.examples * i // self.micro_batches for i in (turn, turn + 1)]
        begin, end = (step * part.phase.examples + bound for bound in bounds)
        found = []
        while begin < end:
            epoch, first = divmod(begin, len(part.dataset))
            count = min(end - begin, len(part.dataset) - first)
            dataset, order = self._open(place, self.first_epochs[place] + epoch)
            found.append(dataset.examples(order[first : first + count]))
            begin += count
        if self.mask_rate is None:
            return found
        rate = self.mask_rate(index // self.micro_batches * self.micro_batches / len(self))
        return [replace(examples, mask_rate=rate) for examples in found]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples of several micro-batches together."""
        return [examples for index in indices for examples in self[int(index)]]

    def _open(self, place: int, epoch: int) -> tuple[EpochDataset, np.ndarray]:
        """A phase's data set in an epoch, and the order of its examples then."""
        if self._opened is None or self._opened[:2] != (place, epoch):
            dataset = self.phases[place].dataset.at_epoch(epoch)
            keys = example_keys(dataset.seed, epoch, np.arange(len(dataset)))
            order = np.argsort(random_bits(keys, RandomStream.PHASE_SHUFFLE, place), kind="stable")
            self._opened = (place, epoch, dataset, order)
        return self._opened[2:]
