"""Checks of training arguments before there is any compute."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks

from hf_encoders.inputs import first_line


# Field of `TrainingArguments` -> the test that its value must pass, in words. torch refuses some others without naming
# the field, and trains to useless weights with the rest.
RANGES = {
    "learning_rate": "above 0 and at most 1",
    "weight_decay": "a finite number, at least 0",
    "adam_beta1": "at least 0 and below 1",
    "adam_beta2": "at least 0 and below 1",
    "adam_epsilon": "above 0 and below 1",
    "max_grad_norm": "a finite number, at least 0",
    "label_smoothing_factor": "at least 0 and below 1",
    "warmup_steps": "a finite number, at least 0",
    "num_train_epochs": "a finite number, at least 0",
    "per_device_train_batch_size": "a finite number, at least 1",
    "per_device_eval_batch_size": "a finite number, at least 1",
    "gradient_accumulation_steps": "a finite number, at least 1",
}
TESTS = {
    "above 0 and at most 1": lambda value: 0 < value <= 1,
    "above 0 and below 1": lambda value: 0 < value < 1,
    "at least 0 and below 1": lambda value: 0 <= value < 1,
    "a finite number, at least 0": lambda value: 0 <= value < math.inf,
    "a finite number, at least 1": lambda value: 1 <= value < math.inf,
}


def check_ranges(fields: Mapping[str, Any]) -> None:
    """Refuse fields of `TrainingArguments` outside of `RANGES`.

    >>> check_ranges({"adam_beta2": 1.0})
    Traceback (most recent call last):
    ...
    ValueError: adam_beta2=1.0 must be at least 0 and below 1.
    """
    for name, words in RANGES.items():
        value = fields.get(name)
        if value is not None and not TESTS[words](value):
            raise ValueError(f"{name}={value} must be {words}.")
    rate, decay = fields.get("learning_rate"), fields.get("weight_decay")
    if rate is not None and decay is not None and rate * decay >= 1:
        raise ValueError(
            f"learning rate {rate} x weight decay {decay}: must be below 1, the share of every weight that a step "
            "removes."
        )


def check_precision(arguments: TrainingArguments) -> None:
    """Refuse float16 on a CPU, where accelerate silently trains in float32."""
    if arguments.mixed_precision == "fp16" and arguments.device.type == "cpu":
        asked = "fp16" if arguments.fp16 else "accelerate's mixed_precision=fp16"
        raise ValueError(f"{asked}: float16 mixed precision needs an accelerator: use bf16, or leave it out.")


def check_training_arguments(arguments: TrainingArguments, steps: int) -> None:
    """Validate what would otherwise fail only after the data is prepared, or never.

    Args:
        arguments (`TrainingArguments`): Of the run.
        steps (`int`): Optimizer steps of the run.

    Raises:
        ValueError: For a value out of range; float16 on a CPU; warm-up and decay that together are longer than the
            run, where transformers would train with hardly any learning rate; wrong or missing options of a schedule;
            an optimizer or a `report_to` whose library is not installed.
    """
    check_ranges(vars(arguments))
    check_precision(arguments)
    warmup = arguments.get_warmup_steps(steps)
    decay = (arguments.lr_scheduler_kwargs or {}).get("num_decay_steps", 0)
    if warmup + decay > steps:
        raise ValueError(
            f"warmup_steps={warmup:,} and num_decay_steps={decay:,} do not fit into a run of {steps:,} steps: give "
            "fewer, or warmup_steps as a share such as 0.06."
        )
    try:
        get_scheduler(
            arguments.lr_scheduler_type,
            torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate),
            num_warmup_steps=warmup,
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(arguments.lr_scheduler_kwargs or {}),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"lr_scheduler_type={arguments.lr_scheduler_type.value} with lr_scheduler_kwargs="
            f"{arguments.lr_scheduler_kwargs}: {first_line(error)}."
        ) from error
    try:
        Trainer.get_optimizer_cls_and_kwargs(arguments)  # imports the optimizer's library
    except (ImportError, ValueError) as error:
        if "pass a" not in str(error):  # some need the model, which does not exist yet
            raise ValueError(f"optim={arguments.optim.value}: {first_line(error)}") from error
    for callback in get_reporting_integration_callbacks(arguments.report_to):
        try:
            callback()
        except (ImportError, RuntimeError) as error:
            raise ValueError(f"report_to={arguments.report_to}: {first_line(error)}") from error
