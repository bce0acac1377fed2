"""Optimizers by name: those of `Trainer`, and LAMB of `pytorch_optimizer`, configured to match ALBERT's code."""

from collections.abc import Callable
from typing import Any

from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer
from transformers.training_args import OptimizerNames

from hf_encoders.training.distributed import requests_sharding


def _lamb(arguments: TrainingArguments) -> tuple[type, dict[str, Any]]:
    """ALBERT's LAMB.

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
    # Its library takes half a second to import.
    from hf_encoders.training.lamb import AlbertLamb

    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return AlbertLamb, {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}


# Those that `Trainer` has no name for -> its argument `optimizer_cls_and_kwargs`; weight decay comes from the groups.
OWN: dict[str, Callable[[TrainingArguments], tuple[type, dict[str, Any]]]] = {"lamb": _lamb}
OPTIMIZERS = ("adamw", *OWN, *(one.value for one in OptimizerNames))


def optim_field(name: str) -> str:
    """`TrainingArguments.optim` for a name in `OPTIMIZERS`; `Trainer` does not use it where a class is passed.

    >>> optim_field("lamb"), optim_field("adafactor")
    ('adamw_torch_fused', 'adafactor')
    """
    return "adamw_torch_fused" if name == "adamw" or name in OWN else name


def optimizer_class(name: str, arguments: TrainingArguments) -> tuple[type, dict[str, Any]] | None:
    """`Trainer`'s argument `optimizer_cls_and_kwargs`; None where `Trainer` creates the optimizer itself.

    Args:
        name (`str`): In `OPTIMIZERS`.
        arguments (`TrainingArguments`): Learning rate, betas and epsilon.

    Raises:
        ValueError: as the optimizer, for arguments that it cannot have.
    """
    return OWN[name](arguments) if name in OWN else None


def optimization_facts(trainer: Trainer) -> dict[str, Any]:
    """Return optimizer, learning rate, schedule, batch and precision as they were used, after training."""
    optimizer = _unwrapped(trainer.optimizer, "optimizer")
    if optimizer is None:
        return {}
    if isinstance(optimizer, LayerWiseDummyOptimizer):  # one per parameter, all of one class
        optimizer = next(iter(optimizer.optimizer_dict.values()))
    kind, groups = type(optimizer), optimizer.param_groups
    rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
    rows = trainer.state.train_batch_size // max(trainer.args.n_gpu, 1)
    return {
        "optimizer": getattr(kind, "PUBLISHED_NAME", kind.__name__),
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
    autocast = {"fp16": "float16", "bf16": "bfloat16"}
    accelerator = trainer.accelerator
    reduced = autocast.get(accelerator.mixed_precision, accelerator.mixed_precision)
    return " and ".join(dtypes) + (f", autocast to {reduced}" if accelerator.native_amp else "")
