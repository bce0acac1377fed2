"""How often each of several texts is drawn: by their sizes, to a power, or by weights.

Sources: XLM (arXiv 1901.07291, section 3.1) and XLM-R (arXiv 1911.02116, section 2).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """How often the sources of a mixture are drawn: by their sizes, or by given weights.

    Args:
        alpha (`float`, *optional*): Power of a source's share of the examples, in (0, 1]: 1 draws each as often as its
            size says, lower values draw small sources more often. XLM-R: 0.3, XLM: 0.7. 1 without `weights`.
        weights (`Mapping[str, float]`, *optional*): Source -> how often it is drawn, at any scale; 0 leaves it out.

    Raises:
        ValueError: if both are given, or one is out of range.

    >>> Sampling(alpha=0.5).shares({"en": 900, "gsw": 100})
    {'en': 0.75, 'gsw': 0.25}
    >>> Sampling(weights={"law": 3, "web": 1}).shares({"law": 10, "web": 9000})
    {'law': 0.75, 'web': 0.25}
    """

    alpha: float | None = None
    weights: Mapping[str, float] | None = None

    def __post_init__(self):
        if self.alpha is not None and self.weights is not None:
            raise ValueError(f"alpha={self.alpha} and weights={dict(self.weights)}: give one of them.")
        if self.alpha is not None and not (_is_number(self.alpha) and 0 < self.alpha <= 1):
            raise ValueError(
                f"alpha={self.alpha!r} must be in (0, 1]: 1 draws sources as often as their sizes say, 0.3 (XLM-R) "
                "draws small ones more often."
            )
        if self.weights is None:
            return
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise ValueError(f"weights={self.weights!r} must name each source, such as {{law: 2, web: 1}}.")
        for name, weight in self.weights.items():
            if not (_is_number(weight) and 0 <= weight < math.inf):
                raise ValueError(f"weights: {name}={weight!r} must be a number of at least 0.")
        if not any(self.weights.values()):
            raise ValueError(f"weights={dict(self.weights)}: one of them must be above 0.")

    def __str__(self) -> str:
        if self.weights is None:
            return f"alpha {self.alpha or 1.0:g}"
        return f"weights {', '.join(f'{name} {weight:g}' for name, weight in self.weights.items())}"

    def shares(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """The share of each source, given their sizes; the shares add up to 1.

        Raises:
            ValueError: if a source has no weight, or a weight no source.
        """
        if self.weights is None:
            total = sum(sizes.values())
            found = {name: (size / total) ** (self.alpha or 1.0) for name, size in sizes.items()}
        else:
            self.check_names(sizes)
            found = {name: float(self.weights[name]) for name in sizes}
        total = math.fsum(found.values())
        return {name: share / total for name, share in found.items()}

    def check_names(self, names: Sequence[str] | Mapping[str, Any]) -> None:
        """Refuse weights of other sources than these."""
        there = f"the sources are {', '.join(names)}"
        for name in self.weights or ():
            if name not in names:
                raise ValueError(f"weights: there is no source {name!r}: {there}.")
        for name in names:
            if name not in (self.weights or names):
                raise ValueError(f"weights: source {name!r} has none: {there}; 0 leaves one out.")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
