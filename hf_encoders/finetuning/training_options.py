"""The command's training options, and every other field of `TrainingArguments` by name."""

import argparse
import dataclasses
from typing import Any

import torch
from transformers import HfArgumentParser, TrainingArguments


# Batch, epochs and learning rate lie in the ranges of BERT, appendix A.3; ten per cent of warm-up as there.
DEFAULTS: dict[str, Any] = {
    "learning_rate": 5e-5,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "gradient_accumulation_steps": 1,
    "bf16": False,
}
# What the loop in runs.py sets itself: field -> what to use instead.
TAKEN = {
    "output_dir": "--output",
    "seed": "--seeds",
    "save_strategy": "--checkpoint",
    "save_steps": "--eval-steps",
    "eval_steps": "--eval-steps",
    "eval_strategy": "--eval-steps",
    "load_best_model_at_end": "--checkpoint",
    "metric_for_best_model": "the task's metric",
    "greater_is_better": "the task's metric",
    "save_total_limit": "nothing: one checkpoint is kept",
    "save_only_model": "nothing: one checkpoint is kept",
    "resume_from_checkpoint": "nothing: runs begin anew",
    "label_names": "the options of columns",
    "push_to_hub": "hf-encoders publish",
    "remove_unused_columns": "nothing: columns that the model does not read are always removed",
}


class _FieldParser(HfArgumentParser):
    """Tells an error instead of ending the process."""

    def error(self, message: str) -> None:
        raise ValueError(f"--trainer: {message}. See the fields of transformers.TrainingArguments.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `training_fields`."""
    training = parser.add_argument_group("training")
    for option, field, kind, metavar, text in (
        ("--learning-rate", "learning_rate", float, "RATE", "peak; linear to 0 after warm-up"),
        ("--batch-size", "per_device_train_batch_size", int, "ROWS", "rows of a forward pass, on each device"),
        ("--accumulation", "gradient_accumulation_steps", int, "N", "forward passes an update; the loss stays exact"),
        ("--eval-batch-size", "per_device_eval_batch_size", int, "ROWS", "rows of a forward pass in evaluation"),
        ("--epochs", "num_train_epochs", float, "N", "passes over the training rows"),
        ("--max-steps", "max_steps", int, "N", "updates, instead of --epochs; -1: by --epochs"),
        ("--warmup", "warmup_steps", float, "N", "updates of warm-up, or below 1 their share"),
        ("--weight-decay", "weight_decay", float, "X", "of AdamW, not on biases and LayerNorms"),
    ):
        training.add_argument(
            option,
            dest=field,
            type=kind,
            default=DEFAULTS[field],
            metavar=metavar,
            help=f"{text} (default: %(default)s)",
        )
    training.add_argument("--bf16", action="store_true", help="autocast to bfloat16; weights stay float32")
    training.add_argument(
        "--eval-steps", type=int, metavar="N", help="evaluate every N updates (default: after every epoch)"
    )
    training.add_argument(
        "--trainer",
        nargs="+",
        action="extend",
        default=[],
        metavar="FIELD=VALUE",
        help="any other field of transformers.TrainingArguments, for example lr_scheduler_type=cosine",
    )


def training_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """`TrainingArguments` fields from the parsed options.

    Raises:
        ValueError: for a number out of range, and `--trainer` fields that there are not, or that have an option of
            their own.
    """
    fields = {name: getattr(arguments, name) for name in DEFAULTS} | parse_fields(arguments.trainer)
    for option, field, least in (
        ("--learning-rate", "learning_rate", 0),
        ("--batch-size", "per_device_train_batch_size", 1),
        ("--accumulation", "gradient_accumulation_steps", 1),
        ("--eval-batch-size", "per_device_eval_batch_size", 1),
        ("--epochs", "num_train_epochs", 0),
        ("--warmup", "warmup_steps", 0),
        ("--weight-decay", "weight_decay", 0),
    ):
        if not least <= fields[field] < float("inf"):
            raise ValueError(f"{option} {fields[field]}: must be a finite number, at least {least}.")
    if fields["max_steps"] < 1 and fields["max_steps"] != -1:
        raise ValueError(f"--max-steps {fields['max_steps']}: must be at least 1, or -1 for as many as --epochs has.")
    if fields["num_train_epochs"] == 0 and fields["max_steps"] == -1:
        raise ValueError("--epochs 0: nothing would be trained; give more, or --max-steps.")
    if arguments.eval_steps is not None:
        if arguments.eval_steps < 1:
            raise ValueError(f"--eval-steps {arguments.eval_steps}: must be at least 1.")
        fields |= {"eval_strategy": "steps", "eval_steps": arguments.eval_steps}
    return fields


def parse_fields(words: list[str]) -> dict[str, Any]:
    """Fields of `TrainingArguments` in their own types, from `name=value` words.

    >>> parse_fields(["adam_epsilon=1e-6", "group_by_length=True"])
    Traceback (most recent call last):
    ...
    ValueError: --trainer group_by_length: transformers.TrainingArguments has no such field.
    >>> parse_fields(["adam_epsilon=1e-6", "lr_scheduler_type=cosine", "full_determinism=False"])
    {'adam_epsilon': 1e-06, 'lr_scheduler_type': <SchedulerType.COSINE: 'cosine'>, 'full_determinism': False}

    Raises:
        ValueError: for a word of another form, a field that there is not or that is set elsewhere, or a wrong value.
    """
    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    given = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--trainer {word!r}: write FIELD=VALUE, for example adam_epsilon=1e-6.")
        if name in TAKEN:
            raise ValueError(f"--trainer {name}: use {TAKEN[name]}.")
        if name not in known:
            raise ValueError(f"--trainer {name}: transformers.TrainingArguments has no such field.")
        given[name] = value
    parser = _FieldParser(TrainingArguments, allow_abbrev=False)
    parsed = parser.parse_args([f"--{name}={value}" for name, value in given.items()])
    values = {name: getattr(parsed, name) for name in given}
    # argparse knows these fields as text; TrainingArguments turns them into what they are.
    made = TrainingArguments(output_dir="unused", **{"use_cpu": not torch.cuda.is_available(), **values})
    return {name: getattr(made, name) for name in given}
