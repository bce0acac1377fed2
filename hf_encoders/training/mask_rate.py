"""A mask rate that changes while training goes on.

A batch is masked at the schedule's highest rate, by whichever worker and however long before it is needed; the trainer
takes masks back off it that are too many for its step, those drawn last. What is left has the lower rate; tokens (up
to a rate of a half) and words are the very ones that the same draws give at the lower rate. So the mask is still a
function of seed, epoch, example and step alone.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from hf_encoders.data.masking import IGNORED, MASK_RATES


@dataclass(frozen=True)
class LinearMaskRate:
    """A mask rate that goes from one value to another in a straight line over the run.

    From 30 % to 15 % made a better BERT base than 15 % throughout (Ankner et al. 2023, "Dynamic masking rate schedules
    for MLM pretraining", https://arxiv.org/abs/2305.15096).

    Args:
        start, end (`float`): share of the tokens that is predicted in the first and after the last step, in (0, 1].

    Raises:
        ValueError: for a rate out of range.

    >>> rate = LinearMaskRate(0.30, 0.15)
    >>> rate(0.0), rate(1.0), round(rate(0.5), 3), rate.highest
    (0.3, 0.15, 0.225, 0.3)
    """

    start: float = 0.30
    end: float = 0.15

    def __post_init__(self):
        if not (0 < self.start <= 1 and 0 < self.end <= 1):
            raise ValueError(f"start={self.start} and end={self.end} must be in (0, 1], for example 0.30 and 0.15.")

    def __call__(self, progress: float) -> float:
        """The rate at a share of the run's steps, in [0, 1]."""
        return self.start + (self.end - self.start) * progress

    @property
    def highest(self) -> float:
        """The highest rate of the run."""
        return max(self.start, self.end)


def prepared_collator(collator: Any, schedule: LinearMaskRate) -> Any:
    """A copy of a collator that tells at which rate each of its masks would be there.

    Raises:
        ValueError: if it is none of this package's, or masks at another rate than the schedule's highest.
    """
    masker = getattr(collator, "masker", None)
    if masker is None:
        raise ValueError(
            f"mask_rate needs a data collator of hf_encoders.data, which can take masks back; this is a "
            f"{type(collator).__name__}."
        )
    if masker.masking.mask_probability != schedule.highest:
        raise ValueError(
            f"mask_rate goes up to {schedule.highest}, and the data collator masks at mask_probability="
            f"{masker.masking.mask_probability}: give it mask_probability={schedule.highest}."
        )
    if masker.masking.max_predictions is not None:
        raise ValueError("mask_rate does not go with max_predictions: leave it out of the data collator.")
    if masker.masking.pass_over_long_words:
        raise ValueError("mask_rate does not go with pass_over_long_words=True: leave it out of the data collator.")
    prepared = copy.copy(collator)
    prepared.masker = copy.copy(masker)
    prepared.masker.with_rates = True
    return prepared


def thinned(batch: dict[str, torch.Tensor], rate: float) -> dict[str, torch.Tensor]:
    """A batch without the masks that a lower rate would not have made.

    Args:
        batch (`dict[str, torch.Tensor]`): with `mask_rates`, `(B, T)`, from a collator that was prepared.
        rate (`float`): the mask rate wanted.

    >>> rates = torch.tensor([[float("inf"), 0.1, 0.29]])
    >>> batch = {"input_ids": torch.tensor([[1, 4, 4]]), "labels": torch.tensor([[-100, 7, 8]]), "mask_rates": rates}
    >>> {name: values.tolist() for name, values in thinned(batch, 0.15).items()}
    {'input_ids': [[1, 4, 8]], 'labels': [[-100, 7, -100]]}
    """
    kept = {name: values for name, values in batch.items() if name != MASK_RATES}
    surplus = (batch[MASK_RATES] > rate) & (kept["labels"] != IGNORED)
    kept["input_ids"] = torch.where(surplus, kept["labels"], kept["input_ids"])
    kept["labels"] = kept["labels"].masked_fill(surplus, IGNORED)
    return kept
