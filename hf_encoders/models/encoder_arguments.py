"""What a model is called and built with: an argument that would be ignored, or a configuration of another family.

transformers hands unknown arguments of `forward` on until nobody reads them. A label that no head takes is lost on the
way without a word, and the model is trained on the rest of the loss alone.
"""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


# What transformers' Trainer, collators and pipelines pass to any model, and an encoder computes the same without:
# items are counted for the heads that have them, and keys are the same tokens as queries.
WITHOUT_EFFECT = frozenset(
    {"num_items_in_batch", "cu_seq_lens_k", "max_length_q", "max_length_k", "return_dict", "use_cache"}
)
# What wrappers pass switched off to encoders too.
ONLY_OFF = frozenset(
    {
        "cache_position",
        "encoder_attention_mask",
        "encoder_hidden_states",
        "head_mask",
        "is_causal",
        "output_router_logits",
        "past_key_values",
        "seq_idx",
    }
)
SPAN_LABELS = ("start_positions", "end_positions")
SAME_WORD = 0.85  # of `difflib`: a letter too many or too few, or two letters swapped


def arguments_of(model_class: type) -> frozenset[str]:
    """Names of the arguments that a class's `forward` and those it overrides read, or that change nothing."""
    forwards = [vars(base)["forward"] for base in model_class.__mro__ if "forward" in vars(base)]
    parameters = [one for forward in forwards for one in inspect.signature(forward).parameters.values()]
    return WITHOUT_EFFECT.union(
        one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    )


def refuse_unknown_arguments(model: nn.Module, given: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise ValueError for an argument that nothing reads, with its name, the model's and what to do.

    Args:
        model (`nn.Module`): whose `forward` was called.
        given: arguments that it does not read itself, by name; values are not looked at, but for None and False.
        known: names of those that are read further in.
    """
    unknown = given.keys() - known
    if not unknown:
        return
    is_off = {name for name in unknown & ONLY_OFF if given[name] is None or given[name] is False}
    # A label that is None trains nothing, with a head or without.
    is_off |= {name for name in unknown if given[name] is None and is_label(name)}
    if unknown := sorted(unknown - is_off):
        raise ValueError(" ".join(_describe(name, model, known) for name in unknown))


def is_label(name: str) -> bool:
    """Whether an argument is called like one that a model is trained on."""
    return "label" in name or name in SPAN_LABELS


def _describe(name: str, model: nn.Module, known: frozenset[str]) -> str:
    own = [one for one in inspect.signature(type(model).forward).parameters if one not in ("self", "kwargs")]
    start = f"{type(model).__name__}.forward takes no {name!r}"
    if name in ONLY_OFF:
        return f"{start}, which an encoder has no use for: leave it out."
    if alike := difflib.get_close_matches(name, [*own, *sorted(known)], n=1, cutoff=SAME_WORD):
        return f"{start}: did you mean {alike[0]!r}?"
    if not is_label(name):
        return f"{start}, and would ignore it: leave it out of the batch, or of the call."
    labels = [one for one in own if is_label(one)]
    found = f"its labels are {' and '.join(map(repr, labels))}" if labels else "it has no head"
    remedy = "use a model with a head for it, or leave it out of the batch"
    if (pair_label := getattr(model, "pair_label_name", None)) is not None:
        remedy += f", or call it {pair_label!r} (label_name={pair_label!r} of a pair collator) to train that head"
    return f"{start}, and would be trained without it; {found}: {remedy}."


def check_configuration(model_class: type, config: Any) -> None:
    """Raise ValueError unless `config` is of the class's family.

    By name, as transformers looks classes up: a checkpoint's own code has a class of the same name.
    """
    needed = model_class.config_class
    if any(base.__name__ == needed.__name__ for base in type(config).__mro__):
        return
    start = f"{model_class.__name__} needs a {needed.__name__}, and config is a {type(config).__name__}"
    if getattr(config, "model_type", None) == needed.model_type:
        raise ValueError(f"{start}: pass {needed.__name__}.from_dict(config.to_dict()).")
    raise ValueError(f"{start}: use the model class of its family, or a {needed.__name__}.")


def check_ids(
    name: str,
    ids: torch.Tensor | None,
    size: int,
    size_name: str,
    remedy: str = "check that the tokenizer belongs to this model, or configure a larger table",
) -> None:
    """Raise ValueError if an id has no row in its table; not inside a traced graph, where values are not known."""
    if ids is None or ids.numel() == 0 or torch.compiler.is_compiling() or torch.jit.is_tracing() or ids.is_meta:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= size:
        raise ValueError(
            f"{name} holds {low if low < 0 else high}, outside of [0, {size - 1}] ({size_name}={size}): {remedy}."
        )
