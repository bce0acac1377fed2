"""Training arguments that no run can be made of, refused before there is any compute."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainingArguments, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks

from hf_encoders.errors import first_line


# Field of `TrainingArguments` -> the interval its value must lie in. torch refuses some of these values without naming
# the field, others train on to weights that are worth nothing.
RANGES = {
    "learning_rate": "(0, 1]",
    "weight_decay": "[0, inf)",
    "adam_beta1": "[0, 1)",
    "adam_beta2": "[0, 1)",
    "adam_epsilon": "(0, 1)",
    "max_grad_norm": "[0, inf)",
    "label_smoothing_factor": "[0, 1)",
    "warmup_steps": "[0, inf)",
    "num_train_epochs": "[0, inf)",
    "per_device_train_batch_size": "[1, inf)",
    "per_device_eval_batch_size": "[1, inf)",
    "gradient_accumulation_steps": "[1, inf)",
}


def check_ranges(fields: Mapping[str, Any], options: Mapping[str, str] | None = None) -> None:
    """Refuse values outside of `RANGES`.

    Args:
        fields: fields of `TrainingArguments`; those that `RANGES` does not name are not looked at.
        options (*optional*): what the command line calls a field, for the error.

    Raises:
        ValueError: names the field or option, its value and the interval.

    >>> check_ranges({"adam_beta2": 1.0})
    Traceback (most recent call last):
    ...
    ValueError: adam_beta2=1.0 must be at least 0 and below 1.
    """
    for name, interval in RANGES.items():
        value = fields.get(name)
        least, most = (end.strip() for end in interval[1:-1].split(","))
        if value is None or (
            (value >= float(least) if interval[0] == "[" else value > float(least))
            and (value <= float(most) if interval[-1] == "]" else value < float(most))
        ):
            continue
        above = f"{'at least' if interval[0] == '[' else 'above'} {least}"
        below = f"{'at most' if interval[-1] == ']' else 'below'} {most}"
        what = f"{options[name]} {value}:" if name in (options or {}) else f"{name}={value}"
        raise ValueError(f"{what} must be {f'a finite number, {above}' if most == 'inf' else f'{above} and {below}'}.")
    rate, decay = fields.get("learning_rate"), fields.get("weight_decay")
    if rate is not None and decay is not None and rate * decay >= 1:
        raise ValueError(
            f"learning rate {rate} x weight decay {decay}: must be below 1, for each step takes this share off every "
            "weight."
        )


def check_precision(arguments: TrainingArguments) -> None:
    """Refuse float16 on a CPU, where accelerate trains in float32 and says nothing.

    Raises:
        ValueError: names what asked for it, and the remedy.
    """
    if arguments.mixed_precision == "fp16" and arguments.device.type == "cpu":
        asked = "fp16" if arguments.fp16 else "accelerate's mixed_precision=fp16"
        raise ValueError(f"{asked}: a CPU has no mixed precision of float16: use bf16, or leave it out.")


def check_training_arguments(
    arguments: TrainingArguments, steps: int, options: Mapping[str, str] | None = None
) -> None:
    """Refuse what would be told only when all the text is prepared, or never.

    Args:
        arguments (`TrainingArguments`): of the run.
        steps (`int`): how many optimizer steps the run has.
        options (*optional*): as in `check_ranges`.

    Raises:
        ValueError: for a value out of range; for float16 on a CPU; for warm-up and decay that do not fit into the
            run, where transformers would train on with hardly any learning rate; for options of a schedule that it
            does not have or that are missing; for a `report_to` whose library is not there.
    """
    check_ranges(vars(arguments), options)
    check_precision(arguments)
    warmup = arguments.get_warmup_steps(steps)
    decay = (arguments.lr_scheduler_kwargs or {}).get("num_decay_steps", 0)
    if warmup + decay > steps:
        raise ValueError(
            f"warmup_steps={warmup:,} and num_decay_steps={decay:,} do not fit into a run of {steps:,} steps: give "
            "fewer, warmup_steps perhaps as a share such as 0.06."
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
    for callback in get_reporting_integration_callbacks(arguments.report_to):
        try:
            callback()
        except (ImportError, RuntimeError) as error:
            raise ValueError(f"report_to={arguments.report_to}: {first_line(error)}") from error
