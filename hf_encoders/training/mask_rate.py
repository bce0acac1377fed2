"""Mask rates that follow the steps of a run.

A schedule is a function from progress in [0, 1] to a rate. `RunExamples` gives its examples the rate of the step that
they are for, so masks are still a function of seed, epoch, example and step alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearMaskRate:
    """A mask rate that changes linearly over the run.

    From 30 % to 15 % made a better BERT base than 15 % throughout (Ankner et al. 2023, "Dynamic masking rate schedules
    for MLM pretraining", https://arxiv.org/abs/2305.15096).

    Args:
        start, end (`float`): Share of the tokens to predict in the first and after the last step, in (0, 1].

    Raises:
        ValueError: for a rate out of range.

    >>> rate = LinearMaskRate(0.30, 0.15)
    >>> rate(0.0), rate(1.0), round(rate(0.5), 3)
    (0.3, 0.15, 0.225)
    """

    start: float = 0.30
    end: float = 0.15

    def __post_init__(self):
        if not (0 < self.start <= 1 and 0 < self.end <= 1):
            raise ValueError(f"start={self.start} and end={self.end} must be in (0, 1], for example 0.30 and 0.15.")

    def __call__(self, progress: float) -> float:
        """The rate at a share of the run's steps, in [0, 1]."""
        return self.start + (self.end - self.start) * progress
