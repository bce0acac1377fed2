"""Mask rates that follow the steps of a run.

`RunExamples` gives its examples the rate of the step that they are for, so masks are still a function of seed, epoch,
example and step alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass


# Share of the way from the first rate to the last, as a function of the share of the run's steps; both in [0, 1].
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,
    "cosine": lambda progress: (1 - math.cos(math.pi * progress)) / 2,
}


@dataclass(frozen=True)
class MaskRate:
    """A mask rate that changes over the run.

    From 30 % to 15 % linearly made a better BERT base than 15 % throughout (Ankner et al. 2023, "Dynamic masking rate
    schedules for MLM pretraining", https://arxiv.org/abs/2305.15096).

    Args:
        start, end (`float`): Share of the tokens to predict in the first and after the last step, in (0, 1].
        shape (`str`, *optional*, defaults to `"linear"`): How the rate changes, one of `SHAPES`.

    Raises:
        ValueError: for a rate out of range or an unknown shape.

    >>> rate, cosine = MaskRate(0.30, 0.15), MaskRate(0.30, 0.15, "cosine")
    >>> rate(0.0), rate(1.0), round(rate(0.25), 4), round(cosine(0.25), 4)
    (0.3, 0.15, 0.2625, 0.278)
    """

    start: float = 0.30
    end: float = 0.15
    shape: str = "linear"

    def __post_init__(self):
        if not (0 < self.start <= 1 and 0 < self.end <= 1):
            raise ValueError(f"start={self.start} and end={self.end} must be in (0, 1], for example 0.30 and 0.15.")
        if self.shape not in SHAPES:
            raise ValueError(f"shape={self.shape!r} must be one of {', '.join(SHAPES)}.")

    def __call__(self, progress: float) -> float:
        """The rate at a share of the run's steps, in [0, 1]."""
        return self.start + (self.end - self.start) * SHAPES[self.shape](progress)

    def __str__(self) -> str:
        return f"{self.start} to {self.end}" + f" ({self.shape})" * (self.shape != "linear")
