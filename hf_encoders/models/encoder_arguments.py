"""Checks of a model's arguments: names that nothing reads, ids out of range, a configuration of another family.

transformers ignores unknown arguments of `forward`: a model given a label that no head reads would train without it.
"""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


# What transformers' Trainer, collators and pipelines pass to any model, and an encoder does not need: heads that count
# items name the count, and keys are the same tokens as queries.
WITHOUT_EFFECT = frozenset(
    {"num_items_in_batch", "cu_seq_lens_k", "max_length_q", "max_length_k", "return_dict", "use_cache"}
)
# What wrappers pass to encoders too, switched off.
ONLY_OFF = {"cache_position", "encoder_attention_mask", "encoder_hidden_states", "head_mask", "is_causal"}
ONLY_OFF |= {"output_router_logits", "past_key_values", "seq_idx"}
SPAN_LABELS = ("start_positions", "end_positions")
SAME_WORD = 0.85  # of `difflib`: a letter too many or too few, or two letters swapped


def arguments_of(model_class: type) -> frozenset[str]:
    """Return names of the arguments that a class's `forward` and those it overrides read, or that have no effect."""
    forwards = [vars(base)["forward"] for base in model_class.__mro__ if "forward" in vars(base)]
    parameters = [parameter for forward in forwards for parameter in inspect.signature(forward).parameters.values()]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return WITHOUT_EFFECT.union(parameter.name for parameter in parameters if parameter.kind not in variadic)


def refuse_unknown_arguments(model: nn.Module, arguments: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise ValueError for one of the `arguments` of `model.forward` that is not `known`: nothing reads it."""
    unknown = arguments.keys() - known
    if not unknown:
        return
    is_off = {name for name in unknown & ONLY_OFF if arguments[name] is None or arguments[name] is False}
    is_off |= {name for name in unknown if arguments[name] is None and is_label(name)}
    if unknown := sorted(unknown - is_off):
        raise ValueError(" ".join(_describe(name, model, known) for name in unknown))


def is_label(name: str) -> bool:
    """Return whether an argument has the name of a label."""
    return "label" in name or name in SPAN_LABELS


def _describe(name: str, model: nn.Module, known: frozenset[str]) -> str:
    parameters = [name for name in inspect.signature(type(model).forward).parameters if name not in ("self", "kwargs")]
    start = f"{type(model).__name__}.forward takes no {name!r}"
    if name in ONLY_OFF:
        return f"{start}, which an encoder does not use: leave it out."
    if alike := difflib.get_close_matches(name, [*parameters, *sorted(known)], n=1, cutoff=SAME_WORD):
        return f"{start}: did you mean {alike[0]!r}?"
    if not is_label(name):
        return f"{start}, and would ignore it: leave it out of the batch, or of the call."
    labels = [parameter for parameter in parameters if is_label(parameter)]
    takes = f"its labels are {' and '.join(map(repr, labels))}" if labels else "it has no head"
    remedy = "use a model with a head for it, or leave it out of the batch"
    for label in model.loss_terms.values():
        if label != "labels":
            remedy += f", or call it {label!r} (label_name={label!r} of a pair collator) to train that head"
    return f"{start}, and would be trained without it; {takes}: {remedy}."


def check_configuration(model_class: type, config: Any) -> None:
    """Raise ValueError unless `config` is of the class's family. By class name: remote code has an equal class."""
    needed = model_class.config_class
    is_one = any(base.__name__ == needed.__name__ for base in type(config).__mro__)
    # A family may be a subclass of another's. The type that a file named, an attribute, is checked after loading.
    if is_one and type(config).model_type == needed.model_type:
        return
    start = f"{model_class.__name__} needs a {needed.__name__}, and config is a {type(config).__name__}"
    if getattr(config, "model_type", None) == needed.model_type:
        raise ValueError(f"{start}: pass {needed.__name__}.from_dict(config.to_dict()).")
    raise ValueError(f"{start}: use the model class of its family, or a {needed.__name__}.")


def own_configuration(model_class: type, config: Any) -> Any:
    """Convert transformers' own configuration of the class's family, and return any other as it is.

    Tools keep such a configuration, and give it to the class that its `auto_map` names.
    """
    needed = model_class.config_class
    if type(config).__name__ != needed.__name__.removeprefix("Hfe"):
        return config
    converted = needed.from_dict(config.to_dict())
    converted.name_or_path, converted._attn_implementation = config.name_or_path, config._attn_implementation
    return converted


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the CPU, where reading its values waits for no device: the trainer's copy, or a new one."""
    owner, version, copy = (None,) * 3 if torch.compiler.is_compiling() else getattr(tensor, "host_copy", (None,) * 3)
    return copy if owner == id(tensor) and version == tensor._version else tensor.cpu()


def check_ids(
    name: str,
    ids: torch.Tensor | None,
    size: int,
    size_name: str,
    remedy: str = "check that the tokenizer belongs to this model, or configure a larger table",
) -> None:
    """Raise ValueError for ids that are not integers, or without a row in their table.

    Inside a traced graph values are not known, and not checked.
    """
    if ids is not None and ids.is_floating_point():
        raise ValueError(f"{name} has dtype {ids.dtype}: pass integers.")
    if ids is None or ids.numel() == 0 or torch.compiler.is_compiling() or torch.jit.is_tracing() or ids.is_meta:
        return
    low, high = (int(bound) for bound in on_host(ids).aminmax())
    if low < 0 or high >= size:
        raise ValueError(
            f"{name} holds {low if low < 0 else high}, outside of [0, {size - 1}] ({size_name}={size}): {remedy}."
        )
