"""The command's training options, and every other field of `TrainingArguments` by name."""

import argparse
import dataclasses
import math
from typing import Any

import torch
from transformers import HfArgumentParser, PreTrainedConfig, TrainingArguments

from hf_encoders.option_names import NAMES
from hf_encoders.training.hyperparameters import check_ranges


# Batch, epochs and learning rate lie in the ranges of BERT, appendix A.3; ten per cent of warm-up as there. The two of
# them that `defaults` raises for narrower encoders are those of the papers' width.
BASE_WIDTH = 768
BASE_RATE = 5e-5
BASE_EPOCHS = 3.0
HIGHEST_RATE = 1e-3
LEAST_STEPS = 500
MOST_EPOCHS = 50
FAR_ABOVE = 30  # times the usual learning rate from which a user is warned
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "max_steps": -1,
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "gradient_accumulation_steps": 1,
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


def defaults(config: PreTrainedConfig, examples: int, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of `TrainingArguments` that a fine-tuning has unless the user says otherwise.

    For encoders of width 768 and more those of the papers: 5e-5, 3 epochs. A narrower one needs larger steps and more
    of them; with those of the papers it often stays at the most frequent class. So, for a hidden size H below 768:

    - learning rate: 5e-5 x (768 / H)^2, at most 1e-3: 1.1e-4 for 512, 2e-4 for 384, 4.5e-4 for 256, 1e-3 for 172 and
      below;
    - epochs: as many as 500 optimizer steps take, from 3 to 50.

    docs/finetuning.md has the measurements.

    Args:
        config: of the encoder, with `hidden_size`.
        examples (`int`): rows, or windows, of the training set.
        given (*optional*): the fields that the user set; the batch decides how many steps an epoch has.

    >>> from transformers import BertConfig
    >>> for width, examples in ((768, 1600), (256, 1600), (128, 100_000), (64, 40)):
    ...     found = defaults(BertConfig(hidden_size=width), examples)
    ...     print(width, found["learning_rate"], found["num_train_epochs"])
    768 5e-05 3.0
    256 0.00045 10.0
    128 0.001 3.0
    64 0.001 50.0
    """
    width = getattr(config, "hidden_size", BASE_WIDTH)
    rate, epochs = BASE_RATE, BASE_EPOCHS
    if width < BASE_WIDTH:
        rate = min(HIGHEST_RATE, float(f"{BASE_RATE * (BASE_WIDTH / width) ** 2:.1e}"))
        needed = math.ceil(LEAST_STEPS / steps_per_epoch({**DEFAULTS, **(given or {})}, examples))
        epochs = float(min(max(needed, BASE_EPOCHS), MOST_EPOCHS))
    return {**DEFAULTS, "learning_rate": rate, "num_train_epochs": epochs}


def steps_per_epoch(training: dict[str, Any], examples: int) -> int:
    """Optimizer steps of one pass over the examples, in one process."""
    rows = training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    return math.ceil(examples / rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `training_fields`."""
    training = parser.add_argument_group("training")
    by_width = {
        "learning_rate": f"{BASE_RATE:g} from width {BASE_WIDTH}, up to {HIGHEST_RATE:g} for narrower encoders",
        "num_train_epochs": f"{BASE_EPOCHS:g}; for narrower encoders as many as {LEAST_STEPS} updates take, up to "
        f"{MOST_EPOCHS}",
    }
    for field, kind, metavar, text in (
        ("learning_rate", float, "RATE", "peak; linear to 0 after warm-up"),
        ("per_device_train_batch_size", int, "ROWS", "rows of a forward pass, on each device"),
        ("gradient_accumulation_steps", int, "N", "forward passes an update; the loss stays exact"),
        ("per_device_eval_batch_size", int, "ROWS", "rows of a forward pass in evaluation"),
        ("num_train_epochs", float, "N", "passes over the training rows"),
        ("max_steps", int, "N", "updates, instead of --epochs; -1: by --epochs"),
        ("warmup_steps", float, "N", "updates of warm-up, or below 1 their share"),
        ("weight_decay", float, "X", "of AdamW, not on biases and LayerNorms"),
    ):
        training.add_argument(
            *dict.fromkeys((OPTIONS[field], f"--{field.replace('_', '-')}")),
            dest=field,
            type=kind,
            metavar=metavar,
            help=f"{text} (default: {by_width.get(field, DEFAULTS.get(field))})",
        )
    known = [one.name for one in dataclasses.fields(TrainingArguments) if one.init]
    parser.set_defaults(
        other_names={
            **{name: (f"--trainer {name}=VALUE",) for name in known if name not in NAMES},
            **{name: (remedy,) for name, remedy in TAKEN.items()},
        }
    )
    training.add_argument(
        "--bf16", action="store_true", default=None, help="autocast to bfloat16; weights stay float32"
    )
    training.add_argument(
        "--fp16", action="store_true", default=None, help="autocast to float16, on a GPU; weights stay float32"
    )
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
    """The `TrainingArguments` fields that the user gave.

    Raises:
        ValueError: for a number out of range, and `--trainer` fields that there are not, or that have an option of
            their own.
    """
    names = {**DEFAULTS, **OPTIONS}
    fields = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    fields |= parse_fields(arguments.trainer)
    check_ranges(fields, OPTIONS)
    if fields.get("max_steps", -1) < 1 and fields.get("max_steps", -1) != -1:
        raise ValueError(f"--max-steps {fields['max_steps']}: must be at least 1, or -1 for as many as --epochs has.")
    if fields.get("num_train_epochs") == 0 and "max_steps" not in fields:
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
    try:
        made = TrainingArguments(output_dir="unused", **{"use_cpu": not torch.accelerator.is_available(), **values})
    except ValueError as error:
        raise ValueError(f"--trainer {' '.join(words)}: {' '.join(str(error).split())}") from error
    return {name: getattr(made, name) for name in given}
