"""A run as one dataset: the micro-batches of all its phases in order.

`Trainer` sees a map-style dataset whose item k is the k-th micro-batch of the run. So a run of several lengths and
batch sizes is one `train()`, with one optimizer and one schedule, and a restart skips to its micro-batch without
reading those before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.objectives.dataset import EpochDataset, Example
from hf_encoders.objectives.mixture import MixedExamples
from hf_encoders.objectives.randomness import Key, RandomStream, generator
from hf_encoders.runs.recipe import Phase


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
    def corpora(self) -> list[FlatCorpus]:
        """The corpora of the phases, which checkpoints record."""
        return self.phases[0].dataset.corpora

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
        total: dict[str, float] = {}
        for mixture, epochs in self.mixtures:
            for name, passes in mixture.passes.items():
                total[name] = total.get(name, 0.0) + passes * epochs
        return total

    def items_of(self, phase: int) -> range:
        """The micro-batches of a phase, from 0."""
        return range(self.first_items[phase], self.first_items[phase + 1])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def __getitem__(self, index: int) -> list[Example]:
        """Return the examples of a micro-batch."""
        number = int(np.searchsorted(self.first_items, index, "right")) - 1
        phase, num_examples = self.phases[number].phase, len(self.phases[number].dataset)
        step, turn = divmod(index - self.first_items[number], self.micro_batches)
        # Micro-batches of a step differ by one example at most.
        begin, end = (phase.examples * i // self.micro_batches for i in (turn, turn + 1))
        examples = []
        for i in range(step * phase.examples + begin, step * phase.examples + end):
            epoch, position = divmod(i, num_examples)
            dataset, order = self._open(number, self.first_epochs[number] + epoch)
            examples.append(dataset.example(int(order[position])))
        for example in examples:
            if self.mask_rate is not None:
                example.mask_rate = self.mask_rate(index // self.micro_batches * self.micro_batches / len(self))
            if phase.masking:
                example.phase = number + 1
        return examples

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Return the examples of several micro-batches together."""
        return [example for index in indices for example in self[int(index)]]

    def _open(self, phase: int, epoch: int) -> tuple[EpochDataset, np.ndarray]:
        """A phase's dataset in an epoch, and the order of its examples in it."""
        if self._opened is None or self._opened[:2] != (phase, epoch):
            dataset = self.phases[phase].dataset.at_epoch(epoch)
            random = generator(Key(dataset.seed, epoch, phase), RandomStream.PHASE_SHUFFLE)
            self._opened = (phase, epoch, dataset, random.permutation(len(dataset)))
        return self._opened[2:]
