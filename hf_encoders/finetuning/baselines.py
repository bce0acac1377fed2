"""What a figure must be better than: the same answer to every row, and the noise of a small evaluation set."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import EvalPrediction


# Standard errors above the baseline that a figure must lie to be more than luck: about 2 in 100 by chance.
STANDARD_ERRORS = 2.0
CORRELATIONS = ("pearsonr", "spearmanr", "matthews_correlation")


@dataclass(frozen=True)
class Baseline:
    """What is reached without reading the input: the best that one answer to all items can be.

    Of labels, the one that is the most frequent in the evaluation set itself. Where that is another one than in the
    training set, a model that settles on it looks better than the training set's, and has learned as little.

    Args:
        name (`str`): how, in words: `most frequent label`.
        figures (`Callable`): gives the figures of an evaluation set by its name; perhaps not all of the task's.
    """

    name: str
    figures: Callable[[str], dict[str, float]]


def constant_figures(
    figures: Callable[[EvalPrediction], dict[str, float]], scores: Sequence[float], labels: Any
) -> dict[str, float]:
    """The figures of the same scores for every row.

    Args:
        figures: of a task's predictions.
        scores (sequence of C `float`): of the classes, or one number.
        labels: of N rows.
    """
    labels = np.asarray(labels)
    return figures(EvalPrediction(np.tile(np.asarray(scores, dtype=float), (len(labels), 1)), labels))


def most_frequent(labels: Sequence[int], num_classes: int) -> list[float]:
    """Scores that are highest for the most frequent label.

    >>> most_frequent([2, 0, 2], 3)
    [0.0, 0.0, 1.0]
    """
    first = Counter(labels).most_common(1)[0][0]
    return [float(number == first) for number in range(num_classes)]


def most_frequent_set(labels: Sequence[Sequence[float]]) -> list[float]:
    """Scores, 1 or -1, of the set of labels with the best micro-averaged F1 where each row has any number of them.

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
    """How much better than its baseline a figure of so many items can be by luck; 0 for figures without a simple rule.

    `STANDARD_ERRORS` of a share, or of a correlation that is 0.

    >>> round(margin("accuracy", 0.5, 100), 3), margin("pearsonr", 0.0, 400), margin("f1_macro", 0.2, 100)
    (0.1, 0.1, 0.0)
    """
    if metric == "accuracy":
        return STANDARD_ERRORS * (baseline * (1 - baseline) / items) ** 0.5
    return STANDARD_ERRORS / items**0.5 if metric in CORRELATIONS else 0.0


def compared(metric: str, value: float, baseline: Baseline, eval_set: str, items: int) -> str | None:
    """A warning where a figure does not stand out from its baseline, else None.

    Args:
        metric (`str`), value (`float`): the figure; greater is better.
        baseline (`Baseline`): of the task.
        eval_set (`str`): that the figure is of.
        items (`int`): rows or words that it is a mean over.
    """
    least = baseline.figures(eval_set).get(metric)
    if least is None:
        return None
    luck = margin(metric, least, items)
    if value > least + luck:
        return None
    what = f"no better than {least:.4f}, which the baseline reaches ({baseline.name})"
    if value > least:
        what = (
            f"not clearly better than {least:.4f} of the baseline ({baseline.name}): {items:,} items leave ±{luck:.3f}"
        )
    return (
        f"{eval_set}: {metric} {value:.4f} is {what}. The model may have learned nothing: try a higher "
        "learning rate, more epochs, more rows, or another encoder."
    )
