"""Initialise a large model from a smaller one of its family, whose layers and matrices are repeated."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.student import LAYER_NUMBER
from hf_encoders.runs.initial import POSITIONS, Initial


def tile_weights(model: PreTrainedModel, smaller: PreTrainedModel) -> PreTrainedModel:
    """Initialise a model with the repeated weights of a smaller one of its family, in place.

    The rule is `tile_weights_from_middle` of AnswerDotAI/ModernBERT, which ModernBERT-large was initialised by. Of L
    layers, layer i takes layer round(i l / L) of the smaller model's l, at most its last. A smaller matrix lies in the
    middle of the larger one, and is repeated around it along both axes. Queries, keys and values, and the halves of a
    gate, are tiled by themselves. Weights that the smaller model does not have stay as they are.

    Args:
        model (`PreTrainedModel`): The model that is initialised.
        smaller (`PreTrainedModel`): Of the same class, with no dimension larger.

    Returns:
        `PreTrainedModel`: `model`.

    Raises:
        ValueError: for another family, another vocabulary or number of positions, heads of another width, and a
            dimension of `smaller` that is larger.
    """
    check_smaller(smaller.config, model.config, "smaller")
    return tile(model, smaller.state_dict())


@torch.no_grad()
def tile(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> PreTrainedModel:
    """Fill a model with tiled weights, by name, of a smaller one."""
    parts = {name: getattr(module, "fused_parts", 1) for name, module in model.named_modules()}
    state = model.state_dict()
    sources = {name: weights.get(source_name(name, state, weights)) for name in state}
    tables = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    for name, target in state.items():
        value = sources[name]
        if value is None:
            continue
        has_other_rows = name in tables and value.shape[0] != target.shape[0]
        if has_other_rows or any(size > larger for size, larger in zip(value.shape, target.shape, strict=True)):
            rule = "tables must have as many rows" if has_other_rows else "it must not be larger"
            raise ValueError(
                f"{name} is {tuple(value.shape)} in the smaller model and {tuple(target.shape)} here: {rule}."
            )
    for name, target in state.items():
        value = sources[name]
        if value is not None:
            count = parts[name.rpartition(".")[0]]
            pieces = zip(value.chunk(count), target.chunk(count), strict=True)
            target.copy_(torch.cat([tiled(piece, rows.shape) for piece, rows in pieces]))
    return model


def source_name(name: str, state: Mapping[str, Any], weights: Mapping[str, Any]) -> str:
    """Return the name of the smaller model's weight that a weight of the larger one is tiled from.

    >>> state = [f"layers.{i}.attn.weight" for i in range(4)]
    >>> [source_name(name, state, state[:3]) for name in state]
    ['layers.0.attn.weight', 'layers.1.attn.weight', 'layers.2.attn.weight', 'layers.2.attn.weight']
    """
    number = LAYER_NUMBER.search(name)
    if number is None:
        return name
    before, after = name[: number.start()], name[number.end() :]
    depth, smaller_depth = (
        len({other[len(before) :].partition(".")[0] for other in names if other.startswith(before)})
        for names in (state, weights)
    )
    # The last layers of a model at least twice as deep would be one past the smaller one's last.
    return f"{before}{min(round(int(number[0]) * smaller_depth / depth), smaller_depth - 1)}{after}"


def tiled(weight: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a weight in the middle of a larger one, repeated around it along all axes.

    >>> tiled(torch.tensor([1, 2, 3]), torch.Size([6])).tolist()
    [3, 1, 2, 3, 1, 2]
    """
    for axis, (size, larger) in enumerate(zip(weight.shape, shape, strict=True)):
        first = (larger - size) // 2
        weight = weight.index_select(axis, (torch.arange(larger, device=weight.device) - first) % size)
    return weight


def check_smaller(smaller: EncoderConfig, config: EncoderConfig, name: str) -> None:
    """Refuse a smaller model that a larger one cannot be tiled from; `name` is how messages call it."""
    if type(smaller) is not type(config):
        kinds = [type(each).__name__ for each in (smaller, config)]
        raise ValueError(f"{name} has a {kinds[0]}, and the model a {kinds[1]}: they must be of one family.")
    rows = [POSITIONS] if config.has_position_table else []
    for field in ("vocab_size", *rows):
        if (value := getattr(smaller, field)) != getattr(config, field):
            raise ValueError(f"{field}={getattr(config, field)}: {name} has {value}: they must be equal.")
    widths = [each.hidden_size / each.num_attention_heads for each in (smaller, config)]
    if widths[0] != widths[1]:
        raise ValueError(
            f"num_attention_heads={config.num_attention_heads}: heads are {widths[1]:g} wide, and those of {name} "
            f"{widths[0]:g}: they must be equal."
        )
    for field in ("num_hidden_layers", "hidden_size", "intermediate_size"):
        if (value := getattr(smaller, field)) > getattr(config, field):
            raise ValueError(
                f"{field}={getattr(config, field)}: {name} has {value}: it must not be larger than the model."
            )


@dataclass(frozen=True)
class SmallerCheckpoint(Initial):
    """A smaller model's checkpoint, whose weights the model of a run is tiled from."""

    @property
    def fields(self) -> dict[str, Any]:
        """The rows of its tables, which the model has too."""
        rows = {"vocab_size": self.config.vocab_size}
        return {**rows, POSITIONS: getattr(self.config, POSITIONS)} if self.config.has_position_table else rows

    def alone(self, steps: int) -> int:
        """Return 0: all weights are new enough to learn from the first step on."""
        return 0

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts that identify it, for `run.json`."""
        return {**super().facts, "how": "tiled"}

    def model(self, config: EncoderConfig) -> PreTrainedModel:
        """Return the larger model.

        Raises:
            ValueError: as `tile_weights`.
        """
        check_smaller(self.config, config, str(self))
        smaller, missing, unused = self._load(self.auto_class, self.config)
        weights = {name: value for name, value in smaller.state_dict().items() if name not in missing}
        model = tile(getattr(transformers, self.auto_class).from_config(config), weights)
        model.new_weights, model.unused_weights = frozenset(missing), frozenset(unused)
        return model

    def copy_files(self, directory: Path) -> None:
        """Copy nothing: modules of its width do not fit."""

    def file(self, name: str) -> None:
        """Return none, likewise."""
