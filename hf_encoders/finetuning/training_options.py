"""The fields of `TrainingArguments` that fine-tuning uses: those that the user gave, and defaults by width."""

import argparse
import math
from typing import Any

from transformers import PreTrainedConfig

from hf_encoders.finetuning.shared_options import (
    BASE_EPOCHS,
    BASE_RATE,
    BASE_WIDTH,
    DEFAULTS,
    HIGHEST_RATE,
    LEAST_STEPS,
    MOST_EPOCHS,
)
from hf_encoders.options import given_fields
from hf_encoders.training.hyperparameters import check_ranges


FAR_ABOVE = 30  # multiple of the default learning rate above which a warning is printed


def defaults(config: PreTrainedConfig, examples: int, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of `TrainingArguments` that fine-tuning uses unless the user sets them.

    An encoder narrower than 768 often predicts the most frequent class only with the papers' 5e-5 and 3 epochs. For
    hidden size H below 768 the learning rate is 5e-5 x (768 / H)^2, at most 1e-3, and the epochs are enough for 500
    optimizer steps, from 3 to 50. docs/measurements.md has the measurements.

    Args:
        config (`PreTrainedConfig`): Of the encoder, with `hidden_size`.
        examples (`int`): Rows, or windows, of the training set.
        given (`dict`, *optional*): The fields that the user set; the batch size determines the steps per epoch.

    >>> from transformers import BertConfig
    >>> for width, examples in ((768, 1600), (256, 1600), (128, 100_000), (64, 40)):
    ...     found = defaults(BertConfig(hidden_size=width), examples)
    ...     print(width, found["learning_rate"], found["num_train_epochs"])
    768 5e-05 3.0
    256 0.00045 10.0
    128 0.001 3.0
    64 0.001 50.0
    """
    epochs = BASE_EPOCHS
    if config.hidden_size < BASE_WIDTH:
        needed = math.ceil(LEAST_STEPS / steps_per_epoch({**DEFAULTS, **(given or {})}, examples))
        epochs = float(min(max(needed, BASE_EPOCHS), MOST_EPOCHS))
    return {**DEFAULTS, "learning_rate": rate_of_width(config.hidden_size), "num_train_epochs": epochs}


def rate_of_width(width: int, base: float = BASE_RATE) -> float:
    """The learning rate for an encoder's hidden size, from that for a width of 768: narrower ones take a higher one.

    >>> rate_of_width(1024), rate_of_width(384), rate_of_width(128)
    (5e-05, 0.0002, 0.001)
    """
    return min(HIGHEST_RATE, float(f"{base * max(1, BASE_WIDTH / width) ** 2:.1e}"))


def steps_per_epoch(training: dict[str, Any], examples: int) -> int:
    """Optimizer steps per epoch, in one process."""
    rows = training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    return math.ceil(examples / rows)


def training_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The `TrainingArguments` fields that the user gave, validated."""
    fields = given_fields(arguments)
    check_ranges(fields)
    if fields.get("max_steps", -1) < 1 and fields.get("max_steps", -1) != -1:
        raise ValueError(f"--max-steps {fields['max_steps']}: must be at least 1, or -1 to train for --epochs.")
    if fields.get("num_train_epochs") == 0 and "max_steps" not in fields:
        raise ValueError("--epochs 0: nothing would be trained; give more, or --max-steps.")
    if "eval_steps" in fields:
        if fields["eval_steps"] < 1:
            raise ValueError(f"--eval-steps {fields['eval_steps']:g}: must be at least 1.")
        fields["eval_strategy"] = "steps"
    return fields
