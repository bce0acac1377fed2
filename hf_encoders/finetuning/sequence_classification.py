"""One label, or several, for a text or a pair of texts: sentiment, topics, intents, inference.

The head reads the pooled output at the first token (BERT, section 4.1). The longer text of a pair is truncated first.
"""

from typing import Any

import datasets
import sklearn.metrics
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
)

from hf_encoders.finetuning.baselines import Baseline, constant_metrics, most_frequent, most_frequent_set
from hf_encoders.finetuning.label_values import class_fields, read_labels
from hf_encoders.finetuning.sequence_inputs import encode_splits, text_columns
from hf_encoders.finetuning.task import PreparedTask


SINGLE_LABEL_METRICS = ("accuracy", "f1_macro", "matthews_correlation")


def prepare(
    data: datasets.DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
    multi_label: bool = False,
    label_separator: str = ",",
    best_metric: str | None = None,
) -> PreparedTask:
    """Tokenize texts and turn labels into class ids.

    Args:
        data, tokenizer, max_length: See `task.py`.
        text_column, text_pair_column, label_column (`str`, *optional*): Columns; by default without a second text.
        multi_label (`bool`, *optional*, defaults to `False`): Whether rows have any number of labels.
        label_separator (`str`, *optional*, defaults to `","`): Separates the labels of a row that are one text.
        best_metric (`str`, *optional*): `accuracy`, the default, `f1_macro` or `matthews_correlation`; with
            `multi_label` it is always `f1_micro`.
    """
    if multi_label and best_metric is not None:
        raise ValueError(f"--best-metric {best_metric} is for one label per row, not for --multi-label: leave it out.")
    columns = text_columns(data, text_column, text_pair_column, label_column)
    if multi_label and not label_separator:
        raise ValueError("--label-separator is empty: give the text between the labels of a row.")
    for split, rows in data.items():
        check_labels(rows[label_column], multi_label, f"{split} data", label_column)
    if multi_label:
        data = data.map(lambda row: {label_column: split_labels(row[label_column], label_separator)})
    labels, names = read_labels(data, label_column)
    fields = class_fields(names, label_column)
    ids = {name: number for number, name in enumerate(names)}
    numbers = {
        split: [[float(name in label) for name in names] if multi_label else ids[label] for label in values]
        for split, values in labels.items()
    }
    encoded, plan = encode_splits(data, columns, numbers, tokenizer, max_length)
    compute = multi_label_metrics if multi_label else single_label_metrics

    def baseline(split: str) -> dict[str, float]:
        rows = numbers[split]
        scores = most_frequent_set(rows) if multi_label else most_frequent(rows, len(names))
        return constant_metrics(compute, scores, rows)

    return PreparedTask(
        auto_class=AutoModelForSequenceClassification,
        config_fields={
            **fields,
            "problem_type": "multi_label_classification" if multi_label else "single_label_classification",
        },
        train_set=encoded.pop("train"),
        eval_sets=encoded,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda split: compute,
        main_metric="f1_micro" if multi_label else best_metric or "accuracy",
        label_names=names,
        baseline=Baseline("most frequent labels" if multi_label else "most frequent label", baseline),
        input_columns=columns,
        plan=[*plan, f"{len(names)} classes: {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"],
    )


def check_labels(labels: Any, multi_label: bool, where: str, column: str) -> None:
    """Refuse lists of labels without `multi_label`, and with it anything but lists and text."""
    for row, label in enumerate(labels):
        if multi_label and not isinstance(label, str | list):
            raise ValueError(f"{where}, row {row}: {column} is {label!r}: --multi-label needs a list, or text.")
        if not multi_label and isinstance(label, list | dict):
            raise ValueError(f"{where}, row {row}: {column} is {label!r}: for several labels use --multi-label.")


def split_labels(labels: Any, separator: str) -> list:
    """The labels of one row as a list; an empty text has none.

    >>> split_labels("sport, politics", ","), split_labels("", ","), split_labels([3], ",")
    (['sport', 'politics'], [], [3])
    """
    if isinstance(labels, str):
        return [label.strip() for label in labels.split(separator) if label.strip()]
    return list(labels)


def single_label_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy, macro-averaged F1 and Matthews correlation of the classes with the highest score."""
    pairs = prediction.label_ids, prediction.predictions.argmax(axis=-1)
    return {
        "accuracy": float(sklearn.metrics.accuracy_score(*pairs)),
        "f1_macro": float(sklearn.metrics.f1_score(*pairs, average="macro", zero_division=0.0)),
        "matthews_correlation": float(sklearn.metrics.matthews_corrcoef(*pairs)),
    }


def multi_label_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Micro- and macro-averaged F1, and accuracy: the share of rows whose labels are all right.

    A label is predicted if its probability is above one half, its score above 0.
    """
    pairs = prediction.label_ids.astype(int), (prediction.predictions > 0).astype(int)
    return {
        "f1_micro": float(sklearn.metrics.f1_score(*pairs, average="micro", zero_division=0.0)),
        "f1_macro": float(sklearn.metrics.f1_score(*pairs, average="macro", zero_division=0.0)),
        "accuracy": float(sklearn.metrics.accuracy_score(*pairs)),
    }
