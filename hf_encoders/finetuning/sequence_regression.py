"""A number for a text or a pair of texts: similarity, ratings.

The loss is the mean squared error on the numbers as they are in the data (STS-B in BERT, section 4.1), the metrics
Pearson's and Spearman's correlation of predictions and numbers.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from hf_encoders.finetuning.data import add_text_columns


if TYPE_CHECKING:
    import datasets
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from hf_encoders.finetuning.task import PreparedTask


HIDDEN = -1.0  # stands for labels that are not published, in datasets of the Hub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the task's options: the keyword parameters of `prepare`."""
    add_text_columns(parser, "column of the number")


def prepare(
    data: datasets.DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
) -> PreparedTask:
    """Tokenize texts and read the numbers.

    Args:
        data, tokenizer, max_length: See `task.py`.
        text_column, text_pair_column, label_column (`str`, *optional*): Columns; by default without a second text.
    """
    from hf_encoders.finetuning.task import text_columns, text_task

    columns = text_columns(data, text_column, text_pair_column, label_column)
    numbers = {split: read_numbers(rows[label_column][:], split, label_column) for split, rows in data.items()}
    train = numbers["train"]
    if len(set(train)) < 2:
        raise ValueError(f"train data: {label_column} is {train[0]} in every row: give two values or more.")
    mean = sum(train) / len(train)
    task = text_task(
        data,
        columns,
        numbers,
        tokenizer,
        max_length,
        metrics=correlations,
        constant=lambda numbers: [mean],
        in_words=lambda number, scores: ([f"{number:g}"], [(f"{scores.item():.2f}", None)], None),
        config_fields={"num_labels": 1, "problem_type": "regression"},
        main_metric="pearsonr",
        baseline="mean of the training numbers",
    )
    task.plan.append(f"numbers from {min(train):g} to {max(train):g}")
    return task


def read_numbers(labels: Any, split: str, column: str) -> list[float]:
    """Return labels as finite numbers."""
    numbers = []
    for row, label in enumerate(labels):
        try:
            numbers.append(float(label))
        except (TypeError, ValueError):
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise ValueError(f"{split} data, row {row}: {column} is {label!r}, not a finite number.")
    if set(numbers) == {HIDDEN} and split != "train":
        raise ValueError(f"{split} data: {column} is hidden ({HIDDEN:g}): use --{split}-split none.")
    return numbers


def correlations(prediction: EvalPrediction) -> dict[str, float]:
    """Compute Pearson's and Spearman's correlation, and the mean squared error."""
    from hf_encoders.evaluation.metrics.correlation import Correlation

    predicted, numbers = prediction.predictions.reshape(-1), prediction.label_ids.reshape(-1)
    metrics = Correlation(keep_in_memory=True).compute(predictions=predicted, references=numbers)
    return {**metrics, "mse": float(((predicted - numbers) ** 2).mean())}
