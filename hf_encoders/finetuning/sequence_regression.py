"""A number for a text or a pair of texts: similarity, ratings.

Mean squared error on the numbers as they are in the data (STS-B in BERT, section 4.1). Pearson's and Spearman's
correlation of predictions and numbers are the figures.
"""

import argparse
import math
from typing import Any

import datasets
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
)

from hf_encoders.finetuning.baselines import Baseline, constant_metrics
from hf_encoders.finetuning.sequence_inputs import (
    add_text_arguments,
    encode_splits,
    input_columns,
    require_text_columns,
)
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.metrics import PearsonCorrelation, SpearmanCorrelation


HIDDEN = -1.0  # what data sets of the Hub have in place of labels that are not published


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task's options."""
    add_text_arguments(parser, "column of the number")


def prepare(
    data: datasets.DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
) -> PreparedTask:
    """Tokenised texts and numbers.

    Args:
        data: `train` and evaluation splits with the columns below.
        tokenizer: of the encoder.
        max_length (`int`): longest text or pair in tokens.
        text_column, text_pair_column, label_column (`str`): columns; no second text by default.

    Raises:
        ValueError: for missing columns or texts, or a label that is no finite number.
    """
    require_text_columns(data, text_column, text_pair_column, label_column)
    numbers = {split: read_numbers(rows[label_column], split, label_column) for split, rows in data.items()}
    if len(set(numbers["train"])) < 2:
        raise ValueError(
            f"train data: {label_column} is {numbers['train'][0]} in every row: there is nothing to learn."
        )
    for split, found in numbers.items():
        if set(found) == {HIDDEN}:
            raise ValueError(
                f"{split} data: {label_column} is hidden ({HIDDEN:g} in every row): use --{split}-split none."
            )
    encoded, plan = encode_splits(data, text_column, text_pair_column, numbers, tokenizer, max_length)
    mean = [sum(numbers["train"]) / len(numbers["train"])]
    return PreparedTask(
        auto_class=AutoModelForSequenceClassification,
        config_fields={"num_labels": 1, "problem_type": "regression"},
        train_set=encoded.pop("train"),
        eval_sets=encoded,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda split: correlations,
        main_metric="pearsonr",
        baseline=Baseline(
            "mean of the training numbers", lambda split: constant_metrics(correlations, mean, numbers[split])
        ),
        input_columns=input_columns(text_column, text_pair_column),
        plan=[*plan, f"numbers from {min(numbers['train']):g} to {max(numbers['train']):g}"],
    )


def read_numbers(labels: Any, split: str, column: str) -> list[float]:
    """Labels as numbers.

    Raises:
        ValueError: for one that is none, or not finite.
    """
    numbers = []
    for row, label in enumerate(labels):
        try:
            numbers.append(float(label))
        except (TypeError, ValueError):
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise ValueError(f"{split} data, row {row}: {column} is {label!r}, not a finite number.")
    return numbers


def correlations(prediction: EvalPrediction) -> dict[str, float]:
    """Pearson's and Spearman's correlation, 0 where all predictions or all numbers are equal, and squared error."""
    predicted, numbers = prediction.predictions.reshape(-1), prediction.label_ids.reshape(-1)
    figures = {"pearsonr": 0.0, "spearmanr": 0.0}
    # An untrained model may give every row the same number, and a figure that is no number chooses no checkpoint.
    if predicted.min() < predicted.max() and numbers.min() < numbers.max():
        items = {"predictions": predicted, "references": numbers}
        figures = {
            **PearsonCorrelation(keep_in_memory=True).compute(**items),
            **SpearmanCorrelation(keep_in_memory=True).compute(**items),
        }
    return {**figures, "mse": float(((predicted - numbers) ** 2).mean())}
