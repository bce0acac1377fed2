"""Training options of fine-tuning, their defaults, and every other field of `TrainingArguments`."""

import argparse
import math
from typing import Any

from transformers import PreTrainedConfig

from hf_encoders.option_names import NOTHING
from hf_encoders.training.argument_fields import add_field_arguments, given_fields
from hf_encoders.training.hyperparameters import check_ranges


# Batch size, epochs and learning rate are within the ranges of BERT, appendix A.3; 10 % of warm-up as there. Learning
# rate and epochs are those for the papers' width; `defaults` raises both for narrower encoders.
BASE_WIDTH = 768
BASE_RATE = 5e-5
BASE_EPOCHS = 3.0
HIGHEST_RATE = 1e-3
LEAST_STEPS = 500
MOST_EPOCHS = 50
FAR_ABOVE = 30  # multiple of the default learning rate above which a warning is printed
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "max_steps": -1,
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "gradient_accumulation_steps": 1,
    "optim": "adamw",
    "bf16": False,
    "fp16": False,
}
OPTIONS = {
    "learning_rate": "--learning-rate",
    "per_device_train_batch_size": "--batch-size",
    "gradient_accumulation_steps": "--accumulation",
    "per_device_eval_batch_size": "--eval-batch-size",
    "num_train_epochs": "--epochs",
    "max_steps": "--max-steps",
    "warmup_steps": "--warmup",
    "weight_decay": "--weight-decay",
}
# Field that the loop in runs.py sets itself -> what to use instead, as in `option_names.NAMES`.
SET_BY_COMMAND = {
    "output_dir": "--output",
    "seed": "--seeds",
    "save_strategy": "--checkpoint",
    "save_steps": "--eval-steps",
    "eval_strategy": "--eval-steps",
    "load_best_model_at_end": "--checkpoint",
    "metric_for_best_model": f"{NOTHING}: the task has a main metric",
    "greater_is_better": f"{NOTHING}: the task has a main metric",
    "save_total_limit": f"{NOTHING}: one checkpoint is kept",
    "save_only_model": f"{NOTHING}: one checkpoint is kept",
    "resume_from_checkpoint": f"{NOTHING}: runs start from scratch",
    "label_names": "the options for columns",
    "push_to_hub": "`hf-encoders publish`",
    "dataloader_drop_last": f"{NOTHING}: it would leave rows of the evaluation out",
    "remove_unused_columns": f"{NOTHING}: columns that the model does not read are always removed",
}


def defaults(config: PreTrainedConfig, examples: int, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of `TrainingArguments` that fine-tuning uses unless the user sets them.

    An encoder narrower than 768 often predicts the most frequent class only with the papers' 5e-5 and 3 epochs. For
    hidden size H below 768 the learning rate is 5e-5 x (768 / H)^2, at most 1e-3, and the epochs are enough for 500
    optimizer steps, from 3 to 50. docs/finetuning_measurements.md has the measurements.

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
    width = config.hidden_size
    rate, epochs = BASE_RATE, BASE_EPOCHS
    if width < BASE_WIDTH:
        rate = min(HIGHEST_RATE, float(f"{BASE_RATE * (BASE_WIDTH / width) ** 2:.1e}"))
        needed = math.ceil(LEAST_STEPS / steps_per_epoch({**DEFAULTS, **(given or {})}, examples))
        epochs = float(min(max(needed, BASE_EPOCHS), MOST_EPOCHS))
    return {**DEFAULTS, "learning_rate": rate, "num_train_epochs": epochs}


def steps_per_epoch(training: dict[str, Any], examples: int) -> int:
    """Optimizer steps per epoch, in one process."""
    rows = training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    return math.ceil(examples / rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `training_fields`."""
    training = parser.add_argument_group(
        "training",
        "Every other field of transformers.TrainingArguments is an option too, such as --bf16, --optim adafactor or "
        "--lr-scheduler-type cosine.",
    )
    by_width = {
        "learning_rate": f"{BASE_RATE:g} from width {BASE_WIDTH}, up to {HIGHEST_RATE:g} below",
        "num_train_epochs": f"{BASE_EPOCHS:g}; below that width enough for {LEAST_STEPS} steps, at most {MOST_EPOCHS}",
    }
    for field, kind, metavar, text in (
        ("learning_rate", float, "RATE", "peak; linear to 0 after warm-up"),
        ("per_device_train_batch_size", int, "ROWS", "rows per forward pass on each device"),
        ("gradient_accumulation_steps", int, "N", "forward passes per optimizer step; the loss stays exact"),
        ("per_device_eval_batch_size", int, "ROWS", "rows per forward pass in evaluation"),
        ("num_train_epochs", float, "N", "passes over the training rows"),
        ("max_steps", int, "N", "optimizer steps, instead of --epochs; -1: by --epochs"),
        ("warmup_steps", float, "N", "optimizer steps of warm-up, or below 1 their share"),
        ("weight_decay", float, "X", "not on biases and LayerNorms"),
    ):
        training.add_argument(
            *dict.fromkeys((OPTIONS[field], f"--{field.replace('_', '-')}")),
            dest=field,
            type=kind,
            metavar=metavar,
            help=f"{text} (default: {by_width.get(field, DEFAULTS.get(field))})",
        )
    training.add_argument(
        "--eval-steps", type=int, metavar="N", help="evaluate every N optimizer steps (default: after every epoch)"
    )
    add_field_arguments(parser, SET_BY_COMMAND)


def training_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The `TrainingArguments` fields that the user gave, validated."""
    fields = given_fields(arguments)
    check_ranges(fields, OPTIONS)
    if fields.get("max_steps", -1) < 1 and fields.get("max_steps", -1) != -1:
        raise ValueError(f"--max-steps {fields['max_steps']}: must be at least 1, or -1 to train for --epochs.")
    if fields.get("num_train_epochs") == 0 and "max_steps" not in fields:
        raise ValueError("--epochs 0: nothing would be trained; give more, or --max-steps.")
    if "eval_steps" in fields:
        if fields["eval_steps"] < 1:
            raise ValueError(f"--eval-steps {fields['eval_steps']}: must be at least 1.")
        fields["eval_strategy"] = "steps"
    return fields
