"""Optimizers by name, their hyperparameters checked before there is any compute, and learning rates by layer."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks
from transformers.training_args import OptimizerNames

from hf_encoders.inputs import first_line
from hf_encoders.training.distributed import check_precision, requests_sharding
from hf_encoders.training.muon import muon


LAYER_NUMBER = re.compile(r"(?:^|\.)(\d+)\.")
ABOVE_LAYERS = ("pooler", "sequence_summary")
GROUPING_OPTIONS = ("params", "model", "optimizer_dict")  # arguments of optimizers that group parameters themselves


def lamb(arguments: TrainingArguments) -> tuple[type, dict[str, Any]]:
    """Return the class and options of LAMB.

    Raises:
        ValueError: without weight decay, where it would be Adam, and with FSDP.
    """
    if arguments.weight_decay == 0:
        raise ValueError(
            "optimizer lamb with weight_decay=0: parameters without weight decay take Adam's step, here all of them. "
            "Give weight_decay, such as 0.01 (ALBERT), or use optimizer adamw."
        )
    if requests_sharding(arguments):
        # pytorch_optimizer 4.1 clamps the norms of shards in place, which torch refuses.
        raise ValueError("optimizer lamb does not run with fsdp: ALBERT shares its layers and fits a device; use DDP.")
    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return albert_lamb(), {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}


@cache
def albert_lamb() -> type:
    """Return the class of LAMB (You et al. 2019, https://arxiv.org/abs/1904.00962) as in google-research/albert.

    Differences from `pytorch_optimizer.Lamb`, whose arguments it has: weight decay is part of the update whose norm is
    the trust ratio's denominator; weight norms are not clamped (to 10 there); there is no bias correction; and groups
    with `weight_decay=0` (biases, LayerNorms) take Adam's step without a trust ratio.
    """
    from pytorch_optimizer import Lamb  # takes half a second

    class LAMB(Lamb):
        clamp = math.inf

        def __init__(self, params: Any, **options: Any):
            groups = list(params)
            if groups and not isinstance(groups[0], dict):
                groups = [{"params": groups}]
            decay = options.get("weight_decay", 0.0)
            groups = [{**group, "adam": group.get("weight_decay", decay) == 0} for group in groups]
            # `adam_debias` also omits the correction of the first moment, which would make the first steps ten times
            # as large.
            super().__init__(groups, weight_decouple=False, adam_debias=True, **options)

    return LAMB


def stable_adamw(arguments: TrainingArguments) -> tuple[type, dict[str, Any]]:
    """Return the class and options of StableAdamW (Wortsman et al. 2023, https://arxiv.org/abs/2304.13013).

    AdamW whose rate falls where a tensor's gradients outgrow their running average, and which needs no clipping then.
    `Trainer` knows the name, and asks for another package.
    """
    from pytorch_optimizer import StableAdamW  # takes half a second

    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return StableAdamW, {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}


# Optimizers that `Trainer` has no class for -> their class and options, by the arguments of the run; weight decay is
# that of the groups.
OPTIMIZER_CLASSES: dict[str, Callable[[TrainingArguments], tuple[type, dict[str, Any]]]] = {
    "lamb": lamb,
    "muon": muon,
    "stable_adamw": stable_adamw,
}
OPTIMIZERS = ("adamw", "lamb", "muon", *(optimizer.value for optimizer in OptimizerNames))


def optim_field(name: str) -> str:
    """Return `TrainingArguments.optim` for a name in `OPTIMIZERS`; `Trainer` does not use it where a class is passed.

    >>> optim_field("lamb"), optim_field("adafactor")
    ('adamw_torch_fused', 'adafactor')
    """
    return "adamw_torch_fused" if name == "adamw" or name in OPTIMIZER_CLASSES else name


def optimizer_class(name: str, arguments: TrainingArguments) -> tuple[type, dict[str, Any]] | None:
    """Return `Trainer`'s argument `optimizer_cls_and_kwargs`; None where `Trainer` creates the optimizer itself.

    Raises:
        ValueError: as the optimizer, one of `OPTIMIZERS`.
    """
    return OPTIMIZER_CLASSES[name](arguments) if name in OPTIMIZER_CLASSES else None


def check_layer_decay(layer_decay: float, option: str) -> None:
    """Raise ValueError unless it is in (0, 1]."""
    if not 0 < layer_decay <= 1:
        raise ValueError(f"{option} {layer_decay}: it must be in (0, 1]; 1 is one rate for all, ELECTRA's is 0.8.")


def set_layer_decay(trainer: Trainer, layer_decay: float) -> None:
    """Give each layer its learning rate, before the trainer creates its optimizer; 1 changes nothing.

    A layer's rate is `layer_decay` times that of the layer above it; heads and pooler have the whole rate, embeddings
    the lowest. Sources: Howard and Ruder 2018 (https://arxiv.org/abs/1801.06146, section 3.2), and `_get_layer_lrs` in
    `model/optimization.py` of google-research/electra, whose last layer is two steps below the heads instead of one;
    it fine-tunes with 0.8, large models with 0.9.

    Raises:
        ValueError: with FSDP, and for an optimizer that groups parameters itself.
    """
    if layer_decay == 1:
        return
    if requests_sharding(trainer.args):
        raise ValueError("layer decay needs the parameters before fsdp shards them: leave one of the two out.")
    model = trainer.model
    optimizer, options = trainer.optimizer_cls_and_kwargs or Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    if any(name in options for name in GROUPING_OPTIONS):
        raise ValueError(f"layer decay does not go with {optimizer.__name__}: use adamw, or leave it out.")
    shares, decayed = rate_shares(model, layer_decay), set(trainer.get_decay_parameter_names(model))
    groups: dict[tuple[float, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[shares[name], name in decayed].append(parameter)
    parameters = [
        {
            "params": group,
            "lr": share * trainer.args.learning_rate,
            "weight_decay": trainer.args.weight_decay if is_decayed else 0.0,
        }
        # The first group's rate is what is logged: that of the heads, as the run was given it.
        for (share, is_decayed), group in sorted(groups.items(), key=lambda item: -item[0][0])
    ]
    trainer.optimizer_cls_and_kwargs = optimizer, {**options, "params": parameters}


def rate_shares(model: PreTrainedModel, layer_decay: float) -> dict[str, float]:
    """Return the share of the learning rate that each parameter has, by name.

    A parameter's layer is the first number in its name, which is the same for all parameters of a layer, and for all
    layers that share their weights (ALBERT).

    >>> from hf_encoders import HfeBertConfig, HfeBertForMaskedLM
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    >>> shares = rate_shares(HfeBertForMaskedLM(HfeBertConfig(vocab_size=16, **sizes)), 0.5)
    >>> for name in ("bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.output.dense.weight"):
    ...     print(shares[name])
    0.125
    0.25
    >>> shares["bert.encoder.layer.1.output.dense.weight"], shares["cls.predictions.bias"]
    (0.5, 1.0)
    """
    prefix = f"{model.base_model_prefix}." if model is not model.base_model else ""
    layers = {}
    for name, _ in model.named_parameters():
        inner_name = name.removeprefix(prefix)
        number = LAYER_NUMBER.search(inner_name)
        if not name.startswith(prefix) or inner_name.startswith(ABOVE_LAYERS):
            layers[name] = None
        else:
            layers[name] = int(number[1]) if number else -1
    top = 1 + max((layer for layer in layers.values() if layer is not None), default=-1)
    return {name: 1.0 if layer is None else layer_decay ** (top - layer) for name, layer in layers.items()}


def optimization_facts(trainer: Trainer) -> dict[str, Any]:
    """Return optimizer, learning rate, schedule, batch and precision as they were used, after training."""
    optimizer = _unwrapped(trainer.optimizer, "optimizer")
    if optimizer is None:
        return {}
    groups = optimizer.param_groups
    rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
    rows = trainer.state.train_batch_size // max(trainer.args.n_gpu, 1)
    return {
        "optimizer": type(optimizer).__name__,
        "peak learning rate": max(rates),
        **({"peak learning rate of the embeddings": min(rates)} if min(rates) < max(rates) else {}),
        "weight decay": max(group.get("weight_decay", 0.0) for group in groups),
        **_schedule(trainer),
        "rows per step on each device": rows * trainer.args.gradient_accumulation_steps,
        "precision": _precision(trainer),
    }


def _unwrapped(wrapped: Any, name: str) -> Any:
    """Remove accelerate's wrappers from an optimizer or a schedule."""
    while hasattr(wrapped, name):
        wrapped = getattr(wrapped, name)
    return wrapped


def _schedule(trainer: Trainer) -> dict[str, Any]:
    arguments, after = trainer.args, "schedule after warm-up"
    if not trainer._created_lr_scheduler:  # the user's own, whose warm-up is unknown
        return {after: type(_unwrapped(trainer.lr_scheduler, "scheduler")).__name__}
    name, options = arguments.lr_scheduler_type.value, arguments.lr_scheduler_kwargs or {}
    shown = ", ".join(f"{key}={value}" for key, value in options.items())
    return {
        "warm-up steps": arguments.get_warmup_steps(trainer.state.max_steps),
        after: ("linear to 0" if name == "linear" else name) + (f" ({shown})" if shown else ""),
    }


def _precision(trainer: Trainer) -> str:
    """Return the dtypes of the weights, and of autocast if it was on: fp16 on a CPU does not turn it on."""
    dtypes = sorted({str(weight.dtype).removeprefix("torch.") for weight in trainer.model.parameters()})
    reduced = {"fp16": "float16", "bf16": "bfloat16"}.get(trainer.accelerator.mixed_precision)
    return " and ".join(dtypes) + (f", autocast to {reduced}" if trainer.accelerator.native_amp else "")


# Fields of `TrainingArguments` and the test that their values must pass, in words. torch refuses some others without
# naming the field, and trains to useless weights with the rest.
RANGES: tuple[tuple[str, Callable[[float], bool], tuple[str, ...]], ...] = (
    ("above 0 and at most 1", lambda value: 0 < value <= 1, ("learning_rate",)),
    ("above 0 and below 1", lambda value: 0 < value < 1, ("adam_epsilon",)),
    ("at least 0 and below 1", lambda value: 0 <= value < 1, ("adam_beta1", "adam_beta2", "label_smoothing_factor")),
    (
        "a finite number, at least 0",
        lambda value: 0 <= value < math.inf,
        ("weight_decay", "max_grad_norm", "warmup_steps", "num_train_epochs"),
    ),
    (
        "a finite number, at least 1",
        lambda value: 1 <= value < math.inf,
        ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    ),
)


def check_ranges(fields: Mapping[str, Any]) -> None:
    """Refuse fields of `TrainingArguments` outside of `RANGES`.

    >>> check_ranges({"adam_beta2": 1.0})
    Traceback (most recent call last):
    ...
    ValueError: adam_beta2=1.0 must be at least 0 and below 1.
    """
    for words, is_valid, names in RANGES:
        for name in names:
            if (value := fields.get(name)) is not None and not is_valid(value):
                raise ValueError(f"{name}={value} must be {words}.")
    rate, decay = fields.get("learning_rate"), fields.get("weight_decay")
    if rate is not None and decay is not None and rate * decay >= 1:
        raise ValueError(
            f"learning rate {rate} x weight decay {decay}: must be below 1, the share of every weight that a step "
            "removes."
        )


def check_training_arguments(arguments: TrainingArguments, steps: int) -> None:
    """Validate what would otherwise fail only after the data is prepared, or never, for a run of so many steps.

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
