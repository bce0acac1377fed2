"""The published checkpoint that a run goes on from: continued pre-training (Gururangan et al. 2020)."""

import copy
import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import transformers
from transformers import PreTrainedModel

from hf_encoders.runs.positions import extend_positions
from hf_encoders.objectives.teacher import fingerprint
from hf_encoders.loading import load_weights
from hf_encoders.models.encoder_checkpoints import encoder_weights
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.record import name_of_checkpoint


HEAD_STEPS = 0.05  # of all steps; this package's choice
POSITIONS = "max_position_embeddings"  # the field that the run may change, with the model's table


@dataclass(frozen=True)
class InitialCheckpoint:
    """A checkpoint of this package or of transformers, from a folder or the Hub, that models begin as.

    Args:
        source (`str`): Folder or name.
        config (`EncoderConfig`): Its configuration.
        auto_class (`str`): Whose class it is loaded with, such as `AutoModelForMaskedLM`.
        positions (`str`): How its table of positions becomes longer, one of `HOW` of `positions.py`.
        head_steps (`float`, *optional*): Steps in which new heads learn alone, for a checkpoint without some of them;
            below 1 a share of all steps. Defaults to `HEAD_STEPS`.
        option (`str`): The command line's name for it, for messages.
    """

    source: str
    config: EncoderConfig
    auto_class: str
    positions: str = "copy"
    head_steps: float | None = None
    option: str = "CHECKPOINT"

    def __post_init__(self):
        steps = self._head_steps
        if not 0 <= steps < math.inf:  # nan too
            raise ValueError(f"head_steps={steps} (--head-steps): it must be a number of at least 0.")
        if steps > 1 and steps % 1:
            raise ValueError(f"head_steps={steps} (--head-steps): give a share below 1, or a whole number.")

    @property
    def _head_steps(self) -> float:
        return HEAD_STEPS if self.head_steps is None else self.head_steps

    def alone(self, steps: int) -> int:
        """Steps in which new heads learn alone, of a run of `steps`; of a share, the last step is the encoder's too.

        Raises:
            ValueError: If the encoder would never learn.
        """
        alone = self._head_steps
        if alone >= max(steps, 1):
            raise ValueError(
                f"head_steps={alone:g} (--head-steps): the run has {steps:,} steps, and the encoder would "
                "not learn: give fewer, or a share below 1."
            )
        return min(math.ceil(alone * steps), steps - 1) if alone < 1 else int(alone)

    @property
    def name(self) -> str:
        """For record and card."""
        return name_of_checkpoint(self.source)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its configuration, for the model of the run."""
        own = {one.name: getattr(self.config, one.name) for one in fields(self.config)}
        base = {one.name for one in fields(transformers.PreTrainedConfig)}
        return {name: value for name, value in own.items() if name not in base or name == "tie_word_embeddings"}

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What identifies it, for `run.json`.

        Raises:
            ValueError: As `model`; and for `head_steps` where the checkpoint has all heads.
        """
        model, missing, _ = self._load(self.config)
        if self.head_steps is not None and not missing:
            raise ValueError(
                f"head_steps={self.head_steps:g} (--head-steps): {self.option} {self.source!r} has all weights of "
                f"{type(model).__name__}, and no head is new: leave it out."
            )
        for name in missing:  # drawn each time
            model.state_dict()[name].zero_()
        how = {"positions": self.positions, "head steps": self._head_steps}
        return {"name": self.name, "weights": fingerprint(model), **how}

    def model(self, config: EncoderConfig) -> PreTrainedModel:
        """The model with the checkpoint's weights; its `new_weights` are the names of those that it does not have.

        `unused_weights` are the names of weights that only the checkpoint has.

        Raises:
            ValueError: If weights of the encoder are missing, or of other shapes.
        """
        as_saved = copy.deepcopy(config)
        if POSITIONS in self.fields:
            setattr(as_saved, POSITIONS, self.fields[POSITIONS])
        model, missing, unused = self._load(as_saved)
        extend_positions(model, config.max_position_embeddings, self.positions)
        model.new_weights, model.unused_weights = frozenset(missing), frozenset(unused)
        return model

    def _load(self, config: EncoderConfig) -> tuple[PreTrainedModel, list[str], list[str]]:
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()  # the run says what is new or unused; it is no sign of damage
        try:
            auto_class = getattr(transformers, self.auto_class)
            model, missing, unused = load_weights(self.source, auto_class, config, self.option)
        finally:
            transformers.logging.set_verbosity(verbosity)
        if lacking := encoder_weights(model) & set(missing):
            raise ValueError(
                f"{self.option} {self.source!r} has no {min(lacking)}, one of {len(lacking)} weights of the encoder: "
                "give a complete checkpoint."
            )
        return model, missing, unused
