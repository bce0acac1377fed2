"""One label, or several, for a text or a pair of texts: sentiment, topics, intents, inference.

The head reads the pooled output at the first token (BERT, section 4.1). The longer text of a pair is truncated first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hf_encoders.finetuning.data import add_text_columns


if TYPE_CHECKING:
    import datasets
    import numpy as np
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from hf_encoders.finetuning.task import PreparedTask


SINGLE_LABEL_METRICS = ("accuracy", "f1_macro", "matthews_correlation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the task's options: the keyword parameters of `prepare`."""
    add_text_columns(
        parser, "column of the label: text or a whole number; with --multi-label also A,B,...: a column of 0 or 1 each"
    )
    add = parser.add_argument
    text = "any number of labels: a list, text with --label-separator, or one column per label"
    add("--multi-label", action="store_true", help=text)
    add("--label-separator", default=",", metavar="TEXT", help="between the labels of a row (default: %(default)s)")
    text = "chooses the best checkpoint (default: accuracy; with --multi-label always f1_micro)"
    add("--best-metric", choices=SINGLE_LABEL_METRICS, help=text)


def prepare(
    data: datasets.DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str | Sequence[str] = "label",
    multi_label: bool = False,
    label_separator: str = ",",
    best_metric: str | None = None,
) -> PreparedTask:
    """Tokenize texts and turn labels into class ids.

    Args:
        data, tokenizer, max_length: See `task.py`.
        text_column, text_pair_column (`str`, *optional*): Columns; by default without a second text.
        label_column (`str` or `Sequence` of `str`, *optional*): Column of the label; with `multi_label` also several,
            one for each class with 0 or 1 (false or true) in every row, as a sequence or separated by commas.
        multi_label, label_separator (*optional*): Whether rows have any number of labels: a list, or text, which may
            be a list as Python or JSON writes it, or labels between separators.
        best_metric (`str`, *optional*): `accuracy`, the default, `f1_macro` or `matthews_correlation`; with
            `multi_label` it is always `f1_micro`.
    """
    from hf_encoders.finetuning.labels import (
        class_fields,
        describe_names,
        label_columns,
        read_label_lists,
        read_labels,
    )
    from hf_encoders.finetuning.task import most_frequent, text_columns, text_task

    if multi_label and best_metric is not None:
        raise ValueError(f"--best-metric {best_metric} is for one label per row, not for --multi-label: leave it out.")
    if multi_label and not label_separator:
        raise ValueError("--label-separator is empty: give the text between the labels of a row.")
    labelled = label_columns(data, label_column, multi_label)
    columns = text_columns(data, text_column, text_pair_column, labelled[0])
    if multi_label:
        labels, names = read_label_lists(data, labelled, label_separator)
        problem, metrics, main_metric = "multi_label_classification", multi_label_metrics, "f1_micro"
    else:
        labels, names = read_labels(data, labelled[0])
        problem, metrics, main_metric = "single_label_classification", single_label_metrics, best_metric or "accuracy"
    ids = {name: number for number, name in enumerate(names)}
    numbers = {
        split: [[float(name in label) for name in names] if multi_label else ids[label] for label in values]
        for split, values in labels.items()
    }
    task = text_task(
        data,
        columns,
        numbers,
        tokenizer,
        max_length,
        metrics=metrics,
        constant=most_frequent_set if multi_label else partial(most_frequent, num_classes=len(names)),
        in_words=partial(set_in_words if multi_label else class_in_words, names),
        config_fields={**class_fields(names, labelled[0]), "problem_type": problem},
        main_metric=main_metric,
        label_names=names,
        baseline="most frequent labels" if multi_label else "most frequent label",
    )
    task.plan += describe_names(names, "classes")
    return task


def most_frequent_set(labels: Sequence[Sequence[float]]) -> list[float]:
    """Return scores, 1 or -1, of the set of labels with the best micro-averaged F1 for multi-label rows.

    >>> most_frequent_set([[1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 0, 1]])
    [1.0, 1.0, -1.0]
    """
    import numpy as np

    counts = np.asarray(labels).sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    sizes = np.arange(1, len(order) + 1)
    f1 = 2 * counts[order].cumsum() / (sizes * len(labels) + counts.sum())
    scores = np.full(len(order), -1.0)
    scores[order[: f1.argmax() + 1]] = 1.0
    return scores.tolist()


def class_in_words(names: Sequence[str], label: int, scores: np.ndarray) -> tuple[list, list, bool]:
    """Return the class of a row, the predicted one with its probability, and whether it is right."""
    from scipy.special import softmax

    predicted = int(scores.argmax())
    return [names[label]], [(names[predicted], float(softmax(scores)[predicted]))], predicted == label


def set_in_words(names: Sequence[str], label: Sequence[float], scores: np.ndarray) -> tuple[list, list, bool]:
    """Return the labels of a row, the predicted ones with their probabilities, and whether all are right."""
    from scipy.special import expit

    labels = [name for name, is_label in zip(names, label, strict=True) if is_label]
    predicted = [(name, float(expit(score))) for name, score in zip(names, scores, strict=True) if score > 0]
    return labels, predicted, labels == [name for name, _ in predicted]


def single_label_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Compute accuracy, macro-averaged F1 and Matthews correlation of the classes with the highest score."""
    from hf_encoders.evaluation.metrics.accuracy import Accuracy
    from hf_encoders.evaluation.metrics.correlation import Correlation
    from hf_encoders.evaluation.metrics.f1 import F1

    classes = {"predictions": prediction.predictions.argmax(axis=-1), "references": prediction.label_ids}
    return {
        **Accuracy(keep_in_memory=True).compute(**classes),
        "f1_macro": F1(keep_in_memory=True).compute(**classes, average="macro")["f1"],
        **Correlation("classes", keep_in_memory=True).compute(**classes),
    }


def multi_label_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Compute micro- and macro-averaged F1, and accuracy: the share of rows whose labels are all right.

    A label is predicted if its probability is above one half, its score above 0.
    """
    from hf_encoders.evaluation.metrics.accuracy import Accuracy
    from hf_encoders.evaluation.metrics.f1 import F1

    labels = {"predictions": (prediction.predictions > 0).astype(int), "references": prediction.label_ids.astype(int)}
    f1 = F1("multilabel", keep_in_memory=True)
    return {
        "f1_micro": f1.compute(**labels, average="micro")["f1"],
        "f1_macro": f1.compute(**labels, average="macro")["f1"],
        **Accuracy("multilabel", keep_in_memory=True).compute(**labels),
    }
