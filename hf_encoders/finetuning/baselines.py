"""Constant baselines: the same answer for every row, and how far chance can lift a metric above them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import EvalPrediction


# Standard errors above the baseline from which on a metric is more than chance: about 2 in 100 exceed them by chance.
STANDARD_ERRORS = 2.0
CORRELATIONS = ("pearsonr", "spearmanr", "matthews_correlation")


@dataclass(frozen=True)
class Baseline:
    """The best that one answer to all items can be, without reading the input.

    For labels this is the most frequent one of the evaluation set itself: a model that always predicts it has learned
    nothing, also where it exceeds the most frequent label of the training set.
    """

    name: str  # in words: `most frequent label`
    metrics: Callable[[str], dict[str, float]]  # of an evaluation set's name; not necessarily all of the task's


def constant_metrics(
    compute: Callable[[EvalPrediction], dict[str, float]], scores: Sequence[float], labels: Any
) -> dict[str, float]:
    """The metrics of the same `scores` (of C classes, or one number) for every one of N rows with `labels`."""
    labels = np.asarray(labels)
    return compute(EvalPrediction(np.tile(np.asarray(scores, dtype=float), (len(labels), 1)), labels))


def most_frequent(labels: Sequence[int], num_classes: int) -> list[float]:
    """Scores that are highest for the most frequent label.

    >>> most_frequent([2, 0, 2], 3)
    [0.0, 0.0, 1.0]
    """
    first = Counter(labels).most_common(1)[0][0]
    return [float(number == first) for number in range(num_classes)]


def most_frequent_set(labels: Sequence[Sequence[float]]) -> list[float]:
    """Scores, 1 or -1, of the set of labels with the best micro-averaged F1 for multi-label rows.

    >>> most_frequent_set([[1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 0, 1]])
    [1.0, 1.0, -1.0]
    """
    counts = np.asarray(labels).sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    sizes = np.arange(1, len(order) + 1)
    f1 = 2 * counts[order].cumsum() / (sizes * len(labels) + counts.sum())
    scores = np.full(len(order), -1.0)
    scores[order[: f1.argmax() + 1]] = 1.0
    return scores.tolist()


def margin(metric: str, baseline: float, items: int) -> float:
    """How much a metric over `items` items can exceed its baseline by chance; 0 for metrics without a simple rule.

    `STANDARD_ERRORS` of a share, or of a correlation of 0.

    >>> round(margin("accuracy", 0.5, 100), 3), margin("pearsonr", 0.0, 400), margin("f1_macro", 0.2, 100)
    (0.1, 0.1, 0.0)
    """
    if metric == "accuracy":
        return STANDARD_ERRORS * (baseline * (1 - baseline) / items) ** 0.5
    return STANDARD_ERRORS / items**0.5 if metric in CORRELATIONS else 0.0


def compared(metric: str, value: float, baseline: Baseline, eval_set: str, items: int) -> str | None:
    """A warning if a metric (greater is better) does not exceed its baseline on an evaluation set of `items`."""
    least = baseline.metrics(eval_set).get(metric)
    if least is None:
        return None
    chance = margin(metric, least, items)
    if value > least + chance:
        return None
    what = f"no better than {least:.4f}, which the baseline reaches ({baseline.name})"
    if value > least:
        what = (
            f"not clearly better than {least:.4f} of the baseline ({baseline.name}): {items:,} items leave "
            f"±{chance:.3f} to chance"
        )
    return (
        f"{eval_set}: {metric} {value:.4f} is {what}. The model may have learned nothing: try a higher "
        "learning rate, more epochs, more rows, or another encoder."
    )
