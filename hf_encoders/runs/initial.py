"""The checkpoint or teacher that a run reads."""

import copy
import math
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from hf_encoders.loading import fingerprint, load_weights, optional_file, read_config
from hf_encoders.models.encoder_checkpoints import encoder_weights
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.files import copy_modules, submodels
from hf_encoders.publishing.record import name_of_checkpoint
from hf_encoders.tokenizer_loading import load_tokenizer


HEAD_STEPS = 0.05  # of all steps; this package's choice
POSITIONS = "max_position_embeddings"  # the field that the run may change, with the model's table
HOW = ("copy", "interpolate")  # a table of positions becomes longer


@dataclass(frozen=True)
class Initial:
    """A checkpoint, from a folder or the Hub, that the model of a run is initialised from or learns from.

    Args:
        source (`str`): Folder or name.
        option (`str`): What messages call it.
        auto_class (`str`): Whose class it is loaded with.
        positions (`str`): How its table of positions becomes longer, one of `HOW`.
        head_steps (`float`, *optional*): Steps in which new heads learn alone, for a checkpoint without some of them;
            below 1 a share of all steps. Defaults to `HEAD_STEPS`.
    """

    source: str
    option: str = "CHECKPOINT"
    auto_class: str = "AutoModelForMaskedLM"
    positions: str = HOW[0]
    head_steps: float | None = None

    def __post_init__(self):
        steps = self._head_steps
        if not 0 <= steps < math.inf:  # nan too
            raise ValueError(f"head_steps={steps} (--head-steps): it must be a number of at least 0.")
        if steps > 1 and steps % 1:
            raise ValueError(f"head_steps={steps} (--head-steps): give a share below 1, or a whole number.")

    def __str__(self) -> str:
        return f"{self.option} {self.source!r}"

    @property
    def _head_steps(self) -> float:
        return HEAD_STEPS if self.head_steps is None else self.head_steps

    @property
    def name(self) -> str:
        """For record and card."""
        return name_of_checkpoint(self.source)

    @cached_property
    def config(self) -> EncoderConfig:
        """Its configuration."""
        return read_config(self.source, self.option)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its configuration, for the model of the run."""
        base = {option.name for option in fields(transformers.PreTrainedConfig)} - {"tie_word_embeddings"}
        names = [field.name for field in fields(self.config) if field.name not in base]
        return {name: getattr(self.config, name) for name in names}

    def alone(self, steps: int) -> int:
        """Return the steps in which new heads learn alone; ValueError if the encoder would never learn."""
        alone = self._head_steps
        if alone >= max(steps, 1):
            raise ValueError(
                f"head_steps={alone:g} (--head-steps): the run has {steps:,} steps, and the encoder would "
                "not learn: give fewer, or a share below 1."
            )
        # Of a share, the last step is the encoder's too.
        return min(math.ceil(alone * steps), steps - 1) if alone < 1 else int(alone)

    def check_output(self, output: str) -> None:
        """Refuse a folder where the result would replace it."""
        if Path(self.source).resolve() == Path(output, "model").resolve():
            raise ValueError(
                f"--output {output}: the result would replace {self}, which the run begins from: give another folder."
            )

    def copy_files(self, directory: Path) -> None:
        """Copy what belongs to the checkpoint besides weights and tokenizer, to the folder of the trained model."""
        copy_modules(self.source, directory)

    def file(self, name: str) -> Path | None:
        """Return a further file of weights in its folder, or downloaded; None if it has none."""
        return optional_file(self.source, name)

    def tokenizer_name(self, name: str | None) -> str:
        """Return the name of the tokenizer, `name` or its own; ValueError if both are there and have other ids."""
        if name is None:
            return self.source
        try:
            tokenizer = load_tokenizer(self.source)
        except ValueError:  # there is none: that is what --tokenizer is for
            return name
        if not tokenizer.get_vocab().items() <= load_tokenizer(name, "--tokenizer").get_vocab().items():
            raise ValueError(
                f"--tokenizer {name!r} has other ids than the tokenizer of {self}, whose rows they would stand for: "
                "leave it out."
            )
        return name

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts that identify it, for `run.json`; ValueError for `head_steps` where no head is new."""
        model, missing, _ = self._load(self.auto_class, self.config)
        if self.head_steps is not None and not missing:
            raise ValueError(
                f"head_steps={self.head_steps:g} (--head-steps): {self} has all weights of {type(model).__name__}, "
                "and no head is new: leave it out."
            )
        for name in missing:  # drawn each time
            model.state_dict()[name].zero_()
        how = {"positions": self.positions, "head steps": self._head_steps}
        return {"name": self.name, "weights": fingerprint(model), **how}

    def model(self, config: EncoderConfig) -> PreTrainedModel:
        """Return the model with the checkpoint's weights; its `new_weights` are the names of those that it lacks.

        `unused_weights` are the names of weights that only the checkpoint has.

        Raises:
            ValueError: If weights of the encoder are missing, or of other shapes.
        """
        as_saved = copy.deepcopy(config)
        if POSITIONS in self.fields:
            setattr(as_saved, POSITIONS, self.fields[POSITIONS])
        model, missing, unused = self._load(self.auto_class, as_saved)
        extend_positions(model, config.max_position_embeddings, self.positions)
        model.new_weights, model.unused_weights = frozenset(missing), frozenset(unused)
        return model

    def extend(self, model: PreTrainedModel, config: EncoderConfig) -> None:
        """Give another model of the checkpoint's folder as many positions as the run's."""
        extend_positions(model, config.max_position_embeddings, self.positions)

    def teacher(self) -> PreTrainedModel:
        """Return the model with its masked-LM head, in float32; ValueError for a checkpoint without it."""
        if type(self.config) not in transformers.AutoModelForMaskedLM._model_mapping:
            raise ValueError(
                f"{self} is of {self.config.model_type}, which has no head for masked tokens, and the student learns "
                "from its scores: choose another teacher."
            )
        teacher, missing, _ = self._load("AutoModelForMaskedLM", self.config)
        if missing:
            remedy = "give the checkpoint of the pre-training, with the head"
            if folders := submodels(Path(self.source)):
                remedy = f"give the {folders[0]}, {self.source}/{folders[0]}, and --tokenizer {self.source}"
            raise ValueError(
                f"{self} has no masked-LM head ({missing[0]} is missing), and the student learns from its scores: "
                f"{remedy}."
            )
        return teacher

    def _load(self, auto_class: str, config: EncoderConfig) -> tuple[PreTrainedModel, list[str], list[str]]:
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()  # the run says what is new or unused; it is no sign of damage
        try:
            model, missing, unused = load_weights(self.source, getattr(transformers, auto_class), config, self.option)
        finally:
            transformers.logging.set_verbosity(verbosity)
        if lacking := encoder_weights(model) & set(missing):
            raise ValueError(
                f"{self} has no {min(lacking)}, one of {len(lacking)} weights of the encoder: give a complete "
                "checkpoint."
            )
        return model, missing, unused


@torch.no_grad()
def extend_positions(model: PreTrainedModel, rows: int, how: str = "copy") -> None:
    """Give a model a table of positions with more rows, in place.

    `copy` repeats the rows of the old positions for those after them, as Longformer (Beltagy et al. 2020, section 5,
    https://arxiv.org/abs/2004.05150): neighbours keep the distances that the model knows. `interpolate` stretches the
    table (Chen et al. 2023, https://arxiv.org/abs/2306.15595): the order of far positions is kept, and the distance of
    neighbours is new. Rows before the first position, RoBERTa's, stay.

    Args:
        model (`PreTrainedModel`): A model with absolute positions.
        rows (`int`): `max_position_embeddings` of the longer table.
        how (`str`, *optional*, defaults to `"copy"`): `copy` or `interpolate`.

    Raises:
        ValueError: For fewer rows than there are, another `how`, and a model without a table of absolute positions.
    """
    if how not in HOW:
        raise ValueError(f"positions={how!r}: it must be {' or '.join(HOW)}.")
    before = model.config.max_position_embeddings
    if rows == before:
        return
    if rows < before:
        raise ValueError(
            f"max_position_embeddings={rows} is less than the model's {before}: positions are not cut off."
        )
    if not model.config.LIMITS_LENGTH:
        model.config.max_position_embeddings = rows
        return
    tables = [item for item in model.named_modules() if item[0].rpartition(".")[2] == "position_embeddings"]
    if len(tables) != 1 or tables[0][1].num_embeddings != before:
        raise ValueError(
            f"max_position_embeddings={rows}: {type(model).__name__} has no table of {before} absolute positions that "
            "could become longer."
        )
    ((name, table),) = tables
    first = before - model.base_model.longest_row()  # rows that no position uses
    longer = type(table)(rows, table.embedding_dim, padding_idx=table.padding_idx).to(table.weight)
    longer.weight[:first] = table.weight[:first]
    longer.weight[first:] = _stretched(table.weight[first:], rows - first, how)
    longer.weight.requires_grad_(table.weight.requires_grad)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, longer)
    model.config.max_position_embeddings = rows


def _stretched(table: torch.Tensor, rows: int, how: str) -> torch.Tensor:
    """Stretch a table: `(before, D)` -> `(rows, D)`.

    >>> _stretched(torch.tensor([[0.0], [1.0]]), 4, "copy").flatten().tolist()
    [0.0, 1.0, 0.0, 1.0]
    >>> _stretched(torch.tensor([[0.0], [3.0]]), 4, "interpolate").flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    if how == "copy":
        return table[torch.arange(rows, device=table.device) % len(table)]
    longer = nn.functional.interpolate(table.float().t()[None], size=rows, mode="linear", align_corners=True)
    return longer[0].t().to(table.dtype)
