"""One label, or several, for a text or a pair of texts: sentiment, topics, intents, inference.

The head reads the pooled output at the first token (BERT, section 4.1). A pair's longer text is cut first.
"""

import argparse
from typing import Any

import datasets
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
)

from hf_encoders.finetuning.baselines import Baseline, constant_metrics, most_frequent, most_frequent_set
from hf_encoders.finetuning.label_values import class_fields, read_labels
from hf_encoders.finetuning.sequence_inputs import (
    add_text_arguments,
    encode_splits,
    input_columns,
    require_text_columns,
)
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.metrics import F1, Accuracy, MatthewsCorrelation


SINGLE_LABEL_METRICS = ("accuracy", "f1_macro", "matthews_correlation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task's options."""
    add_text_arguments(parser, "column of the label: text or a whole number")
    parser.add_argument(
        "--multi-label",
        action="store_true",
        help="a row has any number of labels: a list, or text divided by --label-separator; one sigmoid a class",
    )
    parser.add_argument(
        "--label-separator", default=",", metavar="TEXT", help="between a row's labels (default: %(default)s)"
    )
    parser.add_argument(
        "--best-metric",
        choices=SINGLE_LABEL_METRICS,
        default="accuracy",
        help="chooses the best checkpoint; with --multi-label it is f1_micro (default: %(default)s)",
    )


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
    best_metric: str = "accuracy",
) -> PreparedTask:
    """Tokenised texts and class numbers.

    Args:
        data: `train` and evaluation splits with the columns below.
        tokenizer: of the encoder.
        max_length (`int`): longest text or pair in tokens.
        text_column, text_pair_column, label_column (`str`): columns; no second text by default.
        multi_label (`bool`): whether a row has any number of labels.
        label_separator (`str`): between the labels of a row that are one text.
        best_metric (`str`): `accuracy`, `f1_macro` or `matthews_correlation`; `f1_micro` with `multi_label`.

    Raises:
        ValueError: for missing columns, texts or labels, or a single class.
    """
    require_text_columns(data, text_column, text_pair_column, label_column)
    if multi_label and not label_separator:
        raise ValueError("--label-separator is empty: give the text between a row's labels.")
    for split, rows in data.items():
        check_labels(rows[label_column], multi_label, f"{split} data", label_column)
    if multi_label:
        data = data.map(lambda row: {label_column: split_labels(row[label_column], label_separator)})
    labels, names = read_labels(data, label_column)
    if len(names) < 2:
        raise ValueError(f"train data: {label_column} has no two classes, but {names}: there is nothing to learn.")
    ids = {name: number for number, name in enumerate(names)}
    numbers = {
        split: [[float(name in label) for name in names] if multi_label else ids[label] for label in values]
        for split, values in labels.items()
    }
    encoded, plan = encode_splits(data, text_column, text_pair_column, numbers, tokenizer, max_length)
    figures = multi_label_metrics if multi_label else single_label_metrics
    problem_type = "multi_label_classification" if multi_label else "single_label_classification"
    return PreparedTask(
        auto_class=AutoModelForSequenceClassification,
        config_fields={**class_fields(names), "problem_type": problem_type},
        train_set=encoded.pop("train"),
        eval_sets=encoded,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda split: figures,
        main_metric="f1_micro" if multi_label else best_metric,
        label_names=names,
        baseline=Baseline(
            "most frequent labels" if multi_label else "most frequent label",
            lambda split: constant_metrics(
                figures,
                most_frequent_set(numbers[split]) if multi_label else most_frequent(numbers[split], len(names)),
                numbers[split],
            ),
        ),
        input_columns=input_columns(text_column, text_pair_column),
        plan=[*plan, f"{len(names)} classes: {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"],
    )


def check_labels(labels: Any, multi_label: bool, where: str, column: str) -> None:
    """Refuse lists where a row has one label, and anything but lists and text where it has several."""
    for row, label in enumerate(labels):
        if multi_label and not isinstance(label, str | list):
            raise ValueError(f"{where}, row {row}: {column} is {label!r}: --multi-label needs a list, or text.")
        if not multi_label and isinstance(label, list | dict):
            raise ValueError(
                f"{where}, row {row}: {column} is {label!r}, not one label: with several a row use --multi-label."
            )


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
    items = {"predictions": prediction.predictions.argmax(axis=-1), "references": prediction.label_ids}
    return {
        **Accuracy(keep_in_memory=True).compute(**items),
        "f1_macro": F1(keep_in_memory=True).compute(**items, average="macro")["f1"],
        **MatthewsCorrelation(keep_in_memory=True).compute(**items),
    }


def multi_label_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """F1 over all labels and averaged over classes, and accuracy: the share of rows whose labels are all right.

    A label is predicted where its probability is above one half, its score above 0.
    """
    items = {"predictions": prediction.predictions > 0, "references": prediction.label_ids.astype(int)}
    return {
        "f1_micro": F1("multilabel", keep_in_memory=True).compute(**items, average="micro")["f1"],
        "f1_macro": F1("multilabel", keep_in_memory=True).compute(**items, average="macro")["f1"],
        **Accuracy("multilabel", keep_in_memory=True).compute(**items),
    }
