"""Distillation: the three losses of DistilBERT (Sanh et al. 2019, section 3) in the student's forward pass.

The teacher is no part of the student: not of its parameters, state dict, optimizer, checkpoints or saved folder. It
runs without gradients and dropout on the student's own flat tokens.
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from hf_encoders.inputs import is_number
from hf_encoders.loading import fingerprint
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.models.encoder_heads import EncoderForMaskedLM, HfeMaskedLMOutput
from hf_encoders.models.encoder_kernels import (
    is_bare,
    is_bare_linear,
    is_eager,
    matmul_dtype,
    rows_at_once,
    with_padding_rows,
)
from hf_encoders.models.encoder_losses import IGNORED, ObjectiveSums, linear_loss, normalised, pair_share_of_batch
from hf_encoders.models.encoder_models import FlatEncoderOutput
from hf_encoders.objectives.mlm import MASKED_TOKENS, MaskedLanguageModelling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.student import check_masked_lm, fields_of, initialise, student_config


# `train.py` of the original's README: soft targets, masked tokens, hidden states.
LOSS_WEIGHTS = {"ce": 5.0, "mlm": 2.0, "cos": 1.0}
TEMPERATURE = 2.0
SOFT_TARGETS = ("predicted", "all")


@dataclass(frozen=True)
class DistillationOptions:
    """Options of what a student learns from its teacher.

    Args:
        soft_targets (`str`, *optional*, defaults to `"predicted"`): Tokens whose scores are compared: `"predicted"`,
            those with a label, or `"all"` that are not padding, as in the original without `--restrict_ce_to_mask`.
        temperature (`float`, *optional*, defaults to 2.0): T of the soft targets, above 0.
        loss_weights (`Mapping[str, float]`, *optional*): Weights, at least 0, of `ce` (soft targets, default 5), `mlm`
            (masked tokens, 2) and `cos` (cosine of hidden states, 1); a term of weight 0 is not computed, except
            `mlm`, which is measured.

    Raises:
        ValueError: naming the option.
    """

    soft_targets: str = "predicted"
    temperature: float = TEMPERATURE
    loss_weights: Mapping[str, float] | None = None

    def __post_init__(self):
        if self.soft_targets not in SOFT_TARGETS:
            raise ValueError(f"soft_targets={self.soft_targets!r} must be one of {', '.join(SOFT_TARGETS)}.")
        if not (is_number(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature={self.temperature!r} must be a number above 0; DistilBERT uses 2.")
        weights = self.loss_weights
        if weights is not None and not (isinstance(weights, Mapping) and weights.keys() <= LOSS_WEIGHTS.keys()):
            raise ValueError(f"loss_weights={weights!r} must name terms of {', '.join(LOSS_WEIGHTS)}.")
        for name, weight in (weights or {}).items():
            if not (is_number(weight) and weight >= 0):
                raise ValueError(f"loss_weights: {name}={weight!r} must be a number of at least 0.")
        if not any(self.weights.values()):
            raise ValueError(f"loss_weights={weights!r} leave nothing to learn: give at least one above 0.")

    @property
    def weights(self) -> dict[str, float]:
        """Return the weights of the terms that are computed: `mlm` always, for comparable metrics.

        >>> DistillationOptions(loss_weights={"cos": 0}).weights
        {'mlm': 2.0, 'ce': 5.0}
        """
        weights = {**LOSS_WEIGHTS, **(self.loss_weights or {})}
        return {name: float(weights[name]) for name in ("mlm", "ce", "cos") if weights[name] or name == "mlm"}

    @property
    def loss_terms(self) -> dict[str, str]:
        """Return the argument of `forward` with the items of each term."""
        soft = "labels" if self.soft_targets == "predicted" else "input_ids"
        return {name: {"mlm": "labels", "ce": soft, "cos": "input_ids"}[name] for name in self.weights}


@dataclass
class DistillationOutput(HfeMaskedLMOutput):
    """Output of a student with its teacher.

    Args:
        loss (`torch.Tensor` of shape `()`, *optional*): the weighted sum of the terms, each over the items of this
            call, or with `num_items_in_batch` over those of the whole batch; when `labels` are given.
        logits, hidden_states, attentions: the student's, as in `HfeMaskedLMOutput`.
        mlm, ce, cos (`ObjectiveSums`, *optional*): sums over this call's items, in nats for `ce` (times T^2) and in
            [0, 2] an item for `cos`; no item is correct or wrong in the latter two.
    """

    ce: ObjectiveSums | None = None
    cos: ObjectiveSums | None = None


def with_teacher(student: PreTrainedModel, teacher: PreTrainedModel, **options: Any) -> PreTrainedModel:
    """Give a model with an MLM head a teacher to learn from, and the loss terms of `options`.

    The student is changed in place: its class is a subclass with the same name, which is saved as before. In
    `PreTrainingTrainer` each term is divided by its own items in the whole batch. The stock `Trainer` counts labels
    only: there `ce` of predicted tokens and `mlm` are exact too, and terms over all tokens are means of micro-batches,
    weighted by their labels.

    Args:
        student (`PreTrainedModel`): From `student_from`, or any other of this package.
        teacher (`PreTrainedModel`): Of the same vocabulary. It is frozen, and stays in eval mode.
        options: As of `DistillationOptions`.

    Returns:
        `PreTrainedModel`: The student.

    Raises:
        ValueError: for models without an MLM head here, of other vocabularies, of other widths (with the cosine term),
            or that do not take the same sequences; and as `DistillationOptions`.

    Example:
    ```python
    teacher = HfeBertForMaskedLM.from_pretrained("google-bert/bert-base-uncased")
    student = with_teacher(student_from(teacher, [0, 2, 4, 7, 9, 11]), teacher, soft_targets="all")
    trainer = PreTrainingTrainer(model=student, ...)
    ```
    """
    options = DistillationOptions(**options)
    check_pair(student, teacher, options)
    student.__class__ = class_with_teacher(type(student))
    teacher.requires_grad_(False).eval()
    # Not by `nn.Module.__setattr__`, which would make the teacher a part of the student.
    vars(student)["teacher"] = teacher
    student.distillation, student.loss_terms, student.loss_weights = options, options.loss_terms, options.weights
    return student


def check_pair(student: PreTrainedModel, teacher: PreTrainedModel, options: DistillationOptions) -> None:
    """Refuse a student and a teacher that do not fit, as `with_teacher` says."""
    if student is teacher:
        raise ValueError(
            "student is the teacher, whose weights are frozen: give another model, for example student_from."
        )
    check_masked_lm("student", student)
    check_masked_lm("teacher", teacher)
    config, teacher_config = student.config, teacher.config
    for name in ("vocab_size", "pad_token_id"):
        value, teacher_value = getattr(config, name), getattr(teacher_config, name)
        if value != teacher_value:
            raise ValueError(
                f"{name} is {value} in the student and {teacher_value} in the teacher: both need the same tokenizer "
                "and the same rows."
            )
    if "cos" in options.weights and config.hidden_size != teacher_config.hidden_size:
        raise ValueError(
            f"{config.own_name('hidden_size')}: hidden states of width {config.hidden_size} (student) and "
            f"{teacher_config.hidden_size} (teacher) cannot be compared: set loss_weights={{'cos': 0}}."
        )
    longest, teacher_longest = student.base_model.longest_row(), teacher.base_model.longest_row()
    if longest > teacher_longest:
        raise ValueError(
            f"max_position_embeddings: the student takes sequences of {longest} tokens, the teacher of "
            f"{teacher_longest}: give the student no more."
        )


@cache
def class_with_teacher(student_class: type) -> type:
    """Return the subclass of a model's class that computes the losses of distillation, under the same name."""
    if issubclass(student_class, StudentWithTeacher):
        return student_class
    # `save_pretrained` writes the name of the class and copies the file of its module.
    names = {"__module__": student_class.__module__, "__doc__": student_class.__doc__}
    return type(student_class.__name__, (StudentWithTeacher, student_class), names)


class StudentWithTeacher:
    """Mixed into a model with an MLM head by `with_teacher`."""

    teacher: PreTrainedModel
    distillation: DistillationOptions
    loss_terms = DistillationOptions().loss_terms  # an instance has those of its options

    @property
    def frozen_models(self) -> dict[str, PreTrainedModel]:
        """Models that are used and not trained, by name."""
        return {"teacher": self.teacher}

    def counted_passes(self, tokens: int, predicted: int) -> list[tuple[int, EncoderConfig, int]]:
        """Return forward passes (a backward pass counts as two), their configuration and projected tokens.

        One projection of a token serves the soft targets and the hard ones.
        """
        projected = tokens if self.loss_terms.get("ce") == "input_ids" else predicted
        return [(3, self.config, projected), (1, self.teacher.config, projected)]

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> DistillationOutput:
        r"""Predict masked tokens, and compare with the teacher where there are labels.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, labels, return_logits, kwargs: as in
                `EncoderForMaskedLM`; the inputs are the teacher's too.
            inputs_embeds: not with labels, since the teacher's embeddings are others.
            num_items_in_batch (*optional*): predicted tokens in the whole batch.
        """
        if labels is not None and inputs_embeds is not None:
            raise ValueError("inputs_embeds are the student's, and the teacher needs input_ids: pass those.")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs, sums = self.encode(*inputs, token_labels=labels, **kwargs), {}
        if labels is not None:
            sums = self.compare(outputs, self.teacher_forward(*inputs, token_labels=labels, **kwargs), labels)
        logits, mlm = self.predict_tokens(outputs.last_hidden_state, outputs.tokens, labels, return_logits)
        if mlm is not None:
            sums["mlm"] = mlm
        return DistillationOutput(
            loss=self._weighted_loss(sums, labels, num_items_in_batch) if sums else None,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **sums,
        )

    @torch.no_grad()
    def teacher_forward(self, *inputs: torch.Tensor | None, **kwargs: Any) -> FlatEncoderOutput:
        """Return the teacher's hidden states of the same flat tokens."""
        if self.teacher.device != self.device:
            self.teacher.to(self.device)
        return self.teacher.encode(*inputs, **{**kwargs, "output_attentions": False, "output_hidden_states": False})

    def compare(
        self, outputs: FlatEncoderOutput, teachers: FlatEncoderOutput, labels: torch.Tensor
    ) -> dict[str, ObjectiveSums]:
        """Return the sums of soft targets and cosine by name, of both models' flat tokens `(N, ...)`."""
        states, teacher_states = outputs.last_hidden_state, teachers.last_hidden_state
        mask = outputs.tokens.attention_mask
        is_real = None if mask is None or mask.dim() != 2 else mask.reshape(-1)  # None: padding is left out
        sums = {}
        if "ce" in self.loss_terms:
            is_item = is_real
            if self.distillation.soft_targets == "predicted":
                is_item = outputs.tokens.flatten(labels.to(states.device)) != IGNORED
            with torch.no_grad():
                read_by_teacher = self.teacher.states_at(teacher_states, teachers.tokens)
            sums["ce"] = self._soft_target_sums(self.states_at(states, outputs.tokens), read_by_teacher, is_item)
        if "cos" in self.loss_terms:
            sums["cos"] = cosine_sums(states, teacher_states, is_real)
        return sums

    def _soft_target_sums(
        self, states: torch.Tensor, teacher_states: torch.Tensor, is_item: torch.Tensor | None
    ) -> ObjectiveSums:
        """Compare the flat tokens in `is_item`, `(N,)`, or all of them."""
        temperature, head, teacher_head = self.distillation.temperature, self.mlm_head, self.teacher.mlm_head
        if torch.compiler.is_compiling() or not is_bare(head):
            # A graph of fixed shapes cannot select tokens, and an adapter's head is called as it is.
            with torch.no_grad():
                targets = teacher_head(teacher_states)
            return soft_target_sums(head(states), targets, temperature, is_item)
        if is_item is not None:
            items = is_item.nonzero().squeeze(1)
            states, teacher_states = states.index_select(0, items), teacher_states.index_select(0, items)
        with torch.no_grad():
            teacher_states = teacher_head.transform(teacher_states)
        linear, teacher_linear = self.get_output_embeddings(), self.teacher.get_output_embeddings()
        return linear_soft_target_sums(head.transform(states), linear, teacher_states, teacher_linear, temperature)

    def _weighted_loss(
        self, sums: dict[str, ObjectiveSums], labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
    ) -> torch.Tensor:
        """Return the loss of the stock `Trainer`, whose `num_items_in_batch` are labels."""
        predicted = ObjectiveSums(None, None, (labels != IGNORED).sum())
        total = 0.0
        for name, term in sums.items():
            if self.loss_terms[name] == "labels":
                share = normalised(term.nll, term.count, num_items_in_batch)
            else:
                share = pair_share_of_batch(term, predicted, num_items_in_batch)
            total = total + self.loss_weights[name] * share
        return total


def cosine_sums(
    hidden_states: torch.Tensor, teacher_states: torch.Tensor, is_item: torch.Tensor | None = None
) -> ObjectiveSums:
    """Return one minus the cosine of two models' hidden states `(N, D)`, in [0, 2], summed over tokens.

    >>> round(float(cosine_sums(torch.tensor([[0.0, 1.0]]), torch.tensor([[3.0, 4.0]])).nll), 4)
    0.2
    """
    exact = torch.promote_types(hidden_states.dtype, torch.float32)
    distances = 1 - nn.functional.cosine_similarity(hidden_states.to(exact), teacher_states.to(exact), dim=-1)
    if is_item is not None:
        distances = distances * is_item
    count = torch.tensor(len(distances), device=distances.device) if is_item is None else is_item.sum()
    return ObjectiveSums(distances.sum(), None, count)


def soft_target_sums(
    scores: torch.Tensor, teacher_scores: torch.Tensor, temperature: float, is_item: torch.Tensor | None = None
) -> ObjectiveSums:
    """Sum T^2 times the divergence of the softmax of `scores / T` from that of `teacher_scores / T` over items.

    Args:
        scores, teacher_scores (`torch.Tensor` of shape `(P, V)`): Without gradient for the teacher.
        temperature (`float`): T, above 0.
        is_item (`torch.BoolTensor` of shape `(P,)`, *optional*): Rows that count; None means all.

    >>> student, teacher = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.0, 2.0, 1.0]])
    >>> round(float(soft_target_sums(student, teacher, temperature=2.0).nll), 4)
    0.3986
    """
    exact = torch.promote_types(scores.dtype, torch.float32)
    student, teacher = ((x.to(exact) / temperature).log_softmax(dim=-1) for x in (scores, teacher_scores))
    divergences = (teacher.exp() * (teacher - student)).sum(dim=-1) * temperature**2
    if is_item is not None:
        divergences = divergences * is_item
    count = torch.tensor(len(divergences), device=scores.device) if is_item is None else is_item.sum()
    return ObjectiveSums(divergences.sum(), None, count)


def linear_soft_target_sums(
    hidden_states: torch.Tensor,
    linear: nn.Module,
    teacher_states: torch.Tensor,
    teacher_linear: nn.Module,
    temperature: float,
) -> ObjectiveSums:
    """Compute `soft_target_sums(linear(hidden_states), teacher_linear(teacher_states))`, a chunk at a time.

    `hidden_states` are `(P, D)`, `teacher_states` `(P, teacher's D)`. Anything but bare `nn.Linear`s with a bias (an
    adapter, quantised or offloaded weights) is called on all items at once.
    """
    if not is_eager() or any(not is_bare_linear(x) or x.bias is None for x in (linear, teacher_linear)):
        return soft_target_sums(linear(hidden_states), teacher_linear(teacher_states), temperature)
    dtype = matmul_dtype(hidden_states)
    teacher = teacher_linear.weight.detach().to(dtype), teacher_linear.bias.detach()
    become_gradients_ = partial(_become_gradients_, teacher, temperature)
    divergence, _ = linear_loss(hidden_states, linear, teacher_states.detach().to(dtype), become_gradients_)
    return ObjectiveSums(divergence, None, torch.tensor(len(hidden_states), device=hidden_states.device))


def _become_gradients_(
    teacher: tuple[torch.Tensor, torch.Tensor],
    temperature: float,
    scores: torch.Tensor,
    bias: torch.Tensor,
    teacher_states: torch.Tensor,
    bias_gradient: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn scores without bias, `(items and padding rows, V)`, into the gradients of their loss, in place.

    Adds to `bias_gradient`, `(V,)`. Returns the summed loss, and zero correct items.
    """
    weight, teacher_bias = teacher
    teacher_scores = with_padding_rows(teacher_states) @ weight.t()
    scores, teacher_scores = scores[: len(teacher_states)], teacher_scores[: len(teacher_states)]
    total = bias_gradient.new_zeros(())
    block_size = rows_at_once(scores)
    for block, teacher_block in zip(scores.split(block_size), teacher_scores.split(block_size), strict=True):
        shares = block.to(bias_gradient.dtype).add_(bias).div_(temperature)
        teacher_shares = teacher_block.to(bias_gradient.dtype).add_(teacher_bias).div_(temperature)
        differences = teacher_shares - shares
        normaliser = _to_softmax_(shares) - _to_softmax_(teacher_shares)
        total += (teacher_shares * differences).sum() + normaliser.sum()
        shares.sub_(teacher_shares).mul_(temperature)
        bias_gradient += shares.sum(dim=0)
        block.copy_(shares)
    return total * temperature**2, torch.zeros((), dtype=torch.long, device=total.device)


def _to_softmax_(scores: torch.Tensor) -> torch.Tensor:
    """Turn scores, `(items, V)`, into their softmax, in place; returns `log(sum(exp(scores)))`, `(items,)`."""
    highest = scores.amax(dim=1)
    torch._softmax(scores, -1, False, out=scores)
    # By way of the largest share, which is never zero.
    return highest - scores.amax(dim=1).log()


TERMS = {
    "ce": LossTerm("ce", "soft targets"),
    "mlm": MASKED_TOKENS,
    "cos": LossTerm("cos", "hidden states"),
}


class Distillation(MaskedLanguageModelling):
    """Learn what a teacher predicts for the same masked text, and the masked tokens themselves.

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
        """Return the objective with a teacher, its name for the card, and the layers that initialise students."""
        objective = copy.copy(self)
        objective.teacher, objective.teacher_name, objective.layers = teacher, name, layers
        objective.teacher_fingerprint = fingerprint(teacher)
        objective.needs = None
        return objective

    def find_model_class(self, config_class: type[EncoderConfig]) -> tuple[type[PreTrainedModel] | None, list[str]]:
        """Return the family's class for masked LM with a teacher, and what it has no head for."""
        model_class, missing = super().find_model_class(config_class)
        if model_class is None or not issubclass(model_class, EncoderForMaskedLM):
            return model_class, missing
        return class_with_teacher(model_class), []

    def model_fields(self, config_class: type[EncoderConfig]) -> dict[str, Any]:
        """Return the fields of the teacher, which the recipe may replace."""
        if self.teacher is None:
            return {}
        teacher, layers = self.teacher.config, self.layers
        fields = fields_of(
            student_config(teacher, teacher.num_hidden_layers if layers is None else layers, config_class.model_type)
        )
        if layers is None:  # the recipe may want another number
            fields |= dict.fromkeys(
                teacher.fields_of_layers([*range(teacher.num_hidden_layers)]).keys() & fields.keys()
            )
        return fields

    def new_model(self, config: EncoderConfig) -> PreTrainedModel:
        """Return a student with its teacher; a plain model if there is none."""
        student = super().new_model(config)
        if self.teacher is None:
            return student
        if self.layers is not None:
            initialise(student, self.teacher, self.layers)
        return with_teacher(student, self.teacher, **dataclasses.asdict(self.options))

    @property
    def begins_trained(self) -> bool:
        """Return whether students begin with layers of the teacher."""
        return self.layers is not None

    def facts(self) -> dict[str, Any]:
        """Return the teacher's fingerprint and layers, and the options."""
        if self.teacher is None:
            return {}
        weights = {"loss weights": self.options.weights}
        about = {"teacher": self.teacher_fingerprint, "layers": None if self.layers is None else list(self.layers)}
        options = {"soft targets": self.options.soft_targets, "temperature": self.options.temperature}
        return {"distillation": about | options | weights}

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Describe how tokens were masked, and what was learned from which teacher."""
        masked = super().describe(collator, mask_rates, examples, logged)
        options, weights = self.options, self.options.weights
        tokens = "predicted tokens" if options.soft_targets == "predicted" else "all tokens"
        of_layers = "" if self.layers is None else f", initialised from its layers {' '.join(map(str, self.layers))}"
        terms = {
            "ce": f"soft targets of {tokens} at temperature {options.temperature:g}",
            "mlm": "masked tokens",
            "cos": "cosine of the last hidden states of all tokens",
        }
        learned = ", ".join(f"{weight:g} x {terms[name]}" for name, weight in weights.items())
        teacher = f"from {self.teacher_name} (weights {self.teacher_fingerprint}){of_layers}"
        return {**masked, "distillation": f"{teacher}; loss: {learned}"}
