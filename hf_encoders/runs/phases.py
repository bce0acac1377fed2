"""A run as one dataset: the micro-batches of all its phases in order.

`Trainer` sees a map-style dataset whose item k is the k-th micro-batch of the run. So a run of several lengths and
batch sizes is one `train()`, with one optimizer and one schedule, and a restart skips to its micro-batch without
reading those before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.randomness import RandomStream, example_keys, random_bits
from hf_encoders.objectives.examples import EpochDataset
from hf_encoders.objectives.mixture import MixedExamples
from hf_encoders.runs.recipe import Phase
from hf_encoders.training.checkpoints import sentence_stores


@dataclass(frozen=True)
class PhaseExamples:
    """A phase and the dataset of its examples, which have the phase's length."""

    phase: Phase
    dataset: EpochDataset


def check_division(phases: Sequence[Phase], micro_batches: int) -> None:
    """Raise ValueError if a phase has fewer examples per step than there are micro-batches."""
    for number, phase in enumerate(phases):
        if phase.examples < micro_batches:
            raise ValueError(
                f"phase {number + 1} has {phase.examples} examples per step, and processes times accumulation steps "
                f"are {micro_batches}: use fewer of either (a larger per_device_train_batch_size accumulates less), "
                "or give the phase more examples."
            )


class RunExamples(Dataset):
    """The micro-batches of a run.

    Every step takes the next `examples` of its phase from a random order of the epoch's examples, a function of (seed,
    epoch). The division into micro-batches changes neither the examples of a step nor their random choices: a run on
    one device equals the same run on two. Epochs are numbered across phases, so no phase repeats an earlier one.

    Args:
        phases (`Sequence[PhaseExamples]`): The phases in order.
        micro_batches (`int`): Micro-batches per step, over all processes: processes times accumulation steps.
        mask_rate (`Callable`, *optional*): Progress in [0, 1) -> mask rate of a step, such as `MaskRate`. None
            leaves it to the data collator.

    Examples of a phase with `masking` name it, for the data collator's `phase_masking`.

    Raises:
        ValueError: as `check_division`.
    """

    def __init__(
        self,
        phases: Sequence[PhaseExamples],
        micro_batches: int,
        mask_rate: Callable[[float], float] | None = None,
    ):
        self.phases, self.micro_batches, self.mask_rate = list(phases), micro_batches, mask_rate
        check_division([part.phase for part in self.phases], micro_batches)
        # First micro-batch and first epoch of each phase.
        self.first_items, self.first_epochs = [0], [0]
        for part in self.phases:
            self.first_items.append(self.first_items[-1] + part.phase.steps * micro_batches)
            epochs = -(-part.phase.steps * part.phase.examples // len(part.dataset))
            self.first_epochs.append(self.first_epochs[-1] + epochs)
        self._opened: tuple[int, int, EpochDataset, np.ndarray] | None = None

    def __len__(self) -> int:
        return self.first_items[-1]

    @property
    def stores(self) -> list[FlatCorpus]:
        """The corpora of the phases, which checkpoints record."""
        return list(sentence_stores(self.phases[0].dataset))

    @property
    def mixtures(self) -> list[tuple[MixedExamples, float]]:
        """The mixture of sources of each phase, and how many of its epochs the phase has; empty for a single text."""
        return [
            (part.dataset, part.phase.steps * part.phase.examples / len(part.dataset))
            for part in self.phases
            if isinstance(part.dataset, MixedExamples)
        ]

    @property
    def passes(self) -> dict[str, float]:
        """How often the run reads each source; empty for a single text."""
        found: dict[str, float] = {}
        for mixture, epochs in self.mixtures:
            for name, passes in mixture.passes.items():
                found[name] = found.get(name, 0.0) + passes * epochs
        return found

    def items_of(self, place: int) -> range:
        """The micro-batches of phase `place`, from 0."""
        return range(self.first_items[place], self.first_items[place + 1])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def __getitem__(self, index: int) -> list[Any]:
        """The examples of a micro-batch, as data collators take them."""
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
            found += dataset.__getitems__(order[first : first + count])
            begin += count
        given: dict[str, Any] = {}
        if self.mask_rate is not None:
            given["mask_rate"] = self.mask_rate(index // self.micro_batches * self.micro_batches / len(self))
        if part.phase.masking:
            given["phase"] = place + 1
        return [replace(examples, **given) for examples in found] if given else found

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples of several micro-batches together."""
        return [examples for index in indices for examples in self[int(index)]]

    def _open(self, place: int, epoch: int) -> tuple[EpochDataset, np.ndarray]:
        """A phase's dataset in an epoch, and the order of its examples in it."""
        if self._opened is None or self._opened[:2] != (place, epoch):
            dataset = self.phases[place].dataset.at_epoch(epoch)
            keys = example_keys(dataset.seed, epoch, np.arange(len(dataset)))
            order = np.argsort(random_bits(keys, RandomStream.PHASE_SHUFFLE, place), kind="stable")
            self._opened = (place, epoch, dataset, order)
        return self._opened[2:]
