"""The interface between the modules of the tasks and the training loop in `runs.py`.

A task is a module with a docstring, the help of its command, and two functions. `add_arguments(group)` adds the task's
options, such as `--text-column`; those that all tasks share, such as `--model` and `--max-length`, belong to the
command. `prepare(data, tokenizer, *, max_length, ...)` returns a `PreparedTask`; its other keyword-only parameters
are the options under the same names, with the same defaults. `data` is a `datasets.DatasetDict` of raw rows with
`train` and optionally `validation` and `test`, in the formats of `labelled_files.py`; `tokenizer` is the encoder's.
`max_length` is the longest input in tokens, with special tokens, at most what model and tokenizer take.

The module is imported for its options and its help: it imports transformers, datasets and numpy inside of functions.

Errors in the user's data are `ValueError`s of `prepare` that name column, row or label.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import EvalPrediction


# Standard errors above the baseline from which on a metric is more than chance: about 2 in 100 exceed them by chance.
STANDARD_ERRORS = 2.0
CORRELATIONS = ("pearsonr", "spearmanr", "matthews_correlation")
ComputeMetrics = Callable[[EvalPrediction], dict[str, float]]


@dataclass(frozen=True)
class Baseline:
    """The best that one answer to all items can be, without reading the input.

    For labels this is the most frequent one of the evaluation set itself: a model that always predicts it has learned
    nothing, also where it exceeds the most frequent label of the training set.
    """

    name: str  # in words: `most frequent label`
    metrics: Callable[[str], dict[str, float]]  # of an evaluation set's name; not necessarily all of the task's


@dataclass
class PreparedTask:
    """A task for the training loop."""

    auto_class: type  # the head, `transformers.AutoModelFor...`
    config_fields: dict[str, Any]  # of the head: `id2label` and `label2id`, or `num_labels`, `problem_type` ...
    train_set: datasets.Dataset  # tokenized rows, unpadded; `Trainer` removes columns that `forward` does not have
    eval_sets: dict[str, datasets.Dataset]  # `validation` and `test`, as far as they exist, with labels
    data_collator: Callable[[list[dict[str, Any]]], dict[str, Any]]
    # Name of an evaluation set -> `compute_metrics` of `Trainer` for it; metric names without the prefix `eval_`.
    compute_metrics: Callable[[str], ComputeMetrics]
    main_metric: str  # chooses the best checkpoint; greater is better
    label_names: list[str] | None = None  # names of the classes by id, for class weights and the record
    # Called with a path, an evaluation set and the predictions of `Trainer.predict`; writes the task's usual format.
    write_predictions: Callable[[Path, str, Any], None] | None = None
    baseline: Baseline | None = None  # the result without reading the input
    input_columns: tuple[str, ...] = ()  # columns of raw rows: rows that are equal in them are the same example
    plan: list[str] = field(default_factory=list)  # about the data, printed before training: lengths, windows, labels


def constant_metrics(compute: ComputeMetrics, scores: Sequence[float], labels: Any) -> dict[str, float]:
    """Return the metrics of the same `scores` (of C classes, or one number) for every one of N rows with `labels`."""
    labels = np.asarray(labels)
    return compute(EvalPrediction(np.tile(np.asarray(scores, dtype=float), (len(labels), 1)), labels))


def most_frequent(labels: Sequence[int], num_classes: int) -> list[float]:
    """Return scores that are highest for the most frequent label.

    >>> most_frequent([2, 0, 2], 3)
    [0.0, 0.0, 1.0]
    """
    first = Counter(labels).most_common(1)[0][0]
    return [float(number == first) for number in range(num_classes)]


def most_frequent_set(labels: Sequence[Sequence[float]]) -> list[float]:
    """Return scores, 1 or -1, of the set of labels with the best micro-averaged F1 for multi-label rows.

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
    """Return how much a metric over `items` items can exceed its baseline by chance; 0 without a simple rule.

    `STANDARD_ERRORS` of a share, or of a correlation of 0.

    >>> round(margin("accuracy", 0.5, 100), 3), margin("pearsonr", 0.0, 400), margin("f1_macro", 0.2, 100)
    (0.1, 0.1, 0.0)
    """
    if metric == "accuracy":
        return STANDARD_ERRORS * (baseline * (1 - baseline) / items) ** 0.5
    return STANDARD_ERRORS / items**0.5 if metric in CORRELATIONS else 0.0


def compared(metric: str, value: float, baseline: Baseline, eval_set: str, items: int) -> str | None:
    """Return a warning if a metric (greater is better) does not exceed its baseline on a set of `items`."""
    least = baseline.metrics(eval_set).get(metric)
    if least is None:
        return None
    chance = margin(metric, least, items)
    if value > least + chance:
        return None
    fault = f"no better than {least:.4f}, which the baseline reaches ({baseline.name})"
    if value > least:
        fault = (
            f"not clearly better than {least:.4f} of the baseline ({baseline.name}): {items:,} items leave "
            f"±{chance:.3f} to chance"
        )
    return (
        f"{eval_set}: {metric} {value:.4f} is {fault}. The model may have learned nothing: try a higher learning "
        "rate, more epochs, more rows, or another encoder."
    )
