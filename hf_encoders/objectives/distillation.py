"""Distillation of an encoder with a masked-LM head (DistilBERT, section 3): soft targets, masked tokens, cosine."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from hf_encoders.loading import fingerprint
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.models.encoder_heads import EncoderForMaskedLM
from hf_encoders.objectives.mlm import MASKED_TOKENS, MaskedLanguageModelling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.student import fields_of, initialise, student_config
from hf_encoders.objectives.teacher import DistillationOptions, class_with_teacher, with_teacher


TERMS = {
    "ce": LossTerm("ce", "soft targets"),
    "mlm": MASKED_TOKENS,
    "cos": LossTerm("cos", "hidden states"),
}


class Distillation(MaskedLanguageModelling):
    """Learn what a teacher predicts for the same masked text, beside the masked tokens themselves.

    The registered one has no teacher: `of_teacher` gives one that has, which makes students.

    Args:
        options: As of `DistillationOptions`.
    """

    name = "distillation"
    options_class = DistillationOptions
    needs = "a teacher: use `hf-encoders distil TEACHER --recipe RECIPE`"

    def __init__(self, **options: Any):
        self.options = DistillationOptions(**options)
        weights = self.options.weights
        self.terms = tuple(dataclasses.replace(TERMS[name], weight=weight) for name, weight in weights.items())
        self.teacher: PreTrainedModel | None = None
        self.teacher_name, self.layers, self.teacher_fingerprint = "", None, ""

    def of_teacher(self, teacher: PreTrainedModel, name: str, layers: Sequence[int] | None) -> "Distillation":
        """The same with a teacher.

        Args:
            teacher (`PreTrainedModel`): With a masked-LM head.
            name (`str`): For record and card.
            layers (`Sequence[int]`, *optional*): Those that students begin with; None for fresh weights.
        """
        found = copy.copy(self)
        found.teacher, found.teacher_name, found.layers = teacher, name, layers
        found.teacher_fingerprint = fingerprint(teacher)
        found.needs = None
        return found

    def _model_class(self, config_class: type[EncoderConfig]) -> tuple[type[PreTrainedModel] | None, list[str]]:
        found, missing = super()._model_class(config_class)
        if found is None or not issubclass(found, EncoderForMaskedLM):
            return found, missing
        return class_with_teacher(found), []

    def model_fields(self, config_class: type[EncoderConfig]) -> dict[str, Any]:
        """Those of the teacher, which the recipe may replace."""
        if self.teacher is None:
            return {}
        depth = self.teacher.config.num_hidden_layers if self.layers is None else len(self.layers)
        return fields_of(student_config(self.teacher.config, depth, config_class.model_type))

    def new_model(self, config: EncoderConfig) -> PreTrainedModel:
        """A student with its teacher; a plain model if there is none."""
        student = super().new_model(config)
        if self.teacher is None:
            return student
        if self.layers is not None:
            initialise(student, self.teacher, self.layers)
        return with_teacher(student, self.teacher, **dataclasses.asdict(self.options))

    @property
    def begins_trained(self) -> bool:
        """Whether students begin with layers of the teacher."""
        return self.layers is not None

    def facts(self) -> dict[str, Any]:
        """The teacher's fingerprint and layers, and the options."""
        if self.teacher is None:
            return {}
        weights = {"loss weights": self.options.weights}
        about = {"teacher": self.teacher_fingerprint, "layers": None if self.layers is None else list(self.layers)}
        options = {"soft targets": self.options.soft_targets, "temperature": self.options.temperature}
        return {"distillation": about | options | weights}

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """How tokens were masked, and what was learnt from which teacher."""
        found = super().describe(collator, mask_rates, examples, logged)
        options, weights = self.options, self.options.weights
        tokens = "predicted tokens" if options.soft_targets == "predicted" else "all tokens"
        of_layers = "" if self.layers is None else f", initialised from its layers {' '.join(map(str, self.layers))}"
        terms = {
            "ce": f"soft targets of {tokens} at temperature {options.temperature:g}",
            "mlm": "masked tokens",
            "cos": "cosine of the last hidden states of all tokens",
        }
        learnt = ", ".join(f"{weight:g} x {terms[name]}" for name, weight in weights.items())
        teacher = f"from {self.teacher_name} (weights {self.teacher_fingerprint}){of_layers}"
        return {**found, "distillation": f"{teacher}; loss: {learnt}"}
