"""Heads: masked tokens and sentence pairs of pre-training, and those of fine-tuning.

A class here is mixed into each family's class, `class HfeBertForMaskedLM(EncoderForMaskedLM, HfeBertPreTrainedModel)`.
It has the forward pass, which names only its own arguments: those of the base model come first in its signature, by
`with_inputs`. `_add_head` builds the modules, in the family's file where their names differ by family.
"""

from dataclasses import MISSING, dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.modeling_outputs import (
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

from .encoder_blocks import PredictionHead
from .encoder_configuration import EncoderConfig
from .encoder_kernels import is_bare
from .encoder_losses import (
    IGNORED,
    ObjectiveSums,
    classification_sums,
    infer_problem_type,
    linear_classification_sums,
    mean_loss,
    pair_share_of_batch,
    sequence_classification_loss,
    span_loss,
)
from .encoder_models import INPUTS, FlatEncoderOutput, check_ids, refuse_unknown_arguments, with_inputs
from .encoder_tokens import FlatTokens, on_host, places_of


logger = logging.get_logger(__name__)


class EncoderInputs(TransformersKwargs, total=False):
    """Arguments of the base model, which every head takes too and passes on; shapes as in `EncoderModel.forward`."""

    input_ids: torch.Tensor | None
    attention_mask: torch.Tensor | None
    token_type_ids: torch.Tensor | None
    position_ids: torch.Tensor | None
    inputs_embeds: torch.Tensor | None


class EncoderHead:
    """An encoder, built by the family's `_add_encoder`, with a head."""

    has_pooler: ClassVar[bool] = False
    num_scores: ClassVar[int | None] = None  # of a classifier; None: `num_labels`
    classes_field: ClassVar[str] = "num_labels"  # of the configuration: how many classes the labels of tokens have

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if issubclass(cls, nn.Module):
            cls.forward = with_inputs(cls.forward, cls.inputs)

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self._add_encoder(add_pooling_layer=self.has_pooler)
        self._add_head()
        self.post_init()

    def _add_head(self) -> None:
        """Build the head's modules: here those of the classifiers."""
        self.dropout = nn.Dropout(self.config.head_dropout)
        self.classifier = nn.Linear(self.config.hidden_size, self.num_scores or self.config.num_labels)

    def scores(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Score tokens or sequences: `(P, D)` -> `(P, num_scores)`."""
        return self.classifier(self.dropout(hidden_states))

    def encode(
        self,
        *inputs: torch.Tensor | None,
        token_labels: torch.Tensor | None = None,
        keep_padding: bool = False,
        **kwargs: Unpack[EncoderInputs],
    ) -> FlatEncoderOutput:
        """Run the base model: flat output, with padding only for `keep_padding` or labels at padding.

        Raises:
            ValueError: for `token_labels` of another shape than `(B, T)` or out of range, and for arguments that
                nothing reads, before anything is computed; and as the base model does.
        """
        kwargs |= zip(INPUTS, inputs, strict=False)
        refuse_unknown_arguments(self, kwargs, self.base_model.arguments)
        rows = kwargs.get("input_ids" if kwargs.get("inputs_embeds") is None else "inputs_embeds")
        if rows is not None:
            num_classes = getattr(self.config, self.classes_field)
            check_labels("labels", token_labels, rows.shape[:2], self.classes_field, num_classes)
        keep_padding = keep_padding or labels_on_padding(token_labels, kwargs.get("attention_mask"))
        return self.base_model(keep_padding=keep_padding, flat_output=True, return_dict=True, **kwargs)


def check_labels(
    name: str, labels: torch.Tensor | None, shape: tuple[int, ...] | None, size_name: str, num_classes: int
) -> None:
    """Raise ValueError unless `labels` has the shape (if given) and holds integer classes or -100."""
    if labels is None:
        return
    if labels.is_floating_point():
        raise ValueError(f"{name} has dtype {labels.dtype}: pass class ids as integers.")
    if shape is not None and labels.shape != shape:
        raise ValueError(
            f"{name} has shape {tuple(labels.shape)}: pass labels of shape {tuple(shape)}, with {IGNORED} where there "
            "is none."
        )
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    remedy = f"pass classes from 0, or {IGNORED} where there is no label"
    labels = on_host(labels)
    check_ids(name, labels[labels != IGNORED], num_classes, size_name, remedy)


def labels_on_padding(labels: torch.Tensor | None, attention_mask: torch.Tensor | None) -> bool:
    """Return whether a masked-out token is to be predicted. Such tokens count in the loss, as in transformers."""
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if is_traced or labels is None or attention_mask is None or labels.shape != attention_mask.shape:
        return False
    has_labels = bool(((on_host(labels) != IGNORED) & (on_host(attention_mask) == 0)).any())
    if has_labels:
        logger.warning_once(
            "labels ask for predictions at padding tokens (attention_mask 0): they are computed and counted in the "
            f"loss, as in transformers. Set labels to {IGNORED} at padding to leave them out."
        )
    return has_labels


class LogitsOnRequest:
    """Mixed into outputs whose scores are not computed while training: says so where these are read as in a dict.

    `outputs.logits` and `outputs.get("logits", None)` are None then: copying, pickling and DDP read every attribute.
    """

    def __getitem__(self, key: Any) -> Any:
        if key in ("logits", "prediction_logits") and key not in self:
            raise KeyError(f"{key} are not computed while training with labels: pass return_logits=True to the model.")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = MISSING) -> Any:
        """As in a dict, but scores that were not computed are a KeyError unless a default is given, also None."""
        if default is MISSING and key in ("logits", "prediction_logits"):
            return self[key]
        return super().get(key, None if default is MISSING else default)


@dataclass
class HfeMaskedLMOutput(LogitsOnRequest, MaskedLMOutput):
    """Output of the MLM heads.

    Args:
        loss (`torch.Tensor` of shape `()`, *optional*): summed negative log-likelihood of the predicted tokens over
            their number in the whole batch; when `labels` are given.
        logits (`torch.Tensor` of shape `(B, T, V)`, *optional*): scores, zero at padding. None while training with
            labels, where only predicted tokens are projected; `return_logits=True` asks for them.
        hidden_states, attentions: as in transformers.
        mlm (`ObjectiveSums`, *optional*): sums over this call's predicted tokens; `nll` with gradient.
    """

    mlm: ObjectiveSums | None = None


@dataclass
class HfeForPreTrainingOutput(LogitsOnRequest, ModelOutput):
    """Output of BERT's pre-training head.

    Args:
        loss (`torch.Tensor` of shape `()`, *optional*): sum of the losses whose labels were given.
        prediction_logits (`torch.Tensor` of shape `(B, T, V)`, *optional*): as `logits` of `HfeMaskedLMOutput`.
        seq_relationship_logits (`torch.Tensor` of shape `(S, 2)`): scores of the two classes of the pair label.
        hidden_states, attentions: as in transformers.
        mlm_loss, pair_loss (`torch.Tensor` of shape `()`, *optional*): the terms of `loss`, without gradient.
        mlm, pair (`ObjectiveSums`, *optional*): sums over this call's predicted tokens and pairs; `nll` with
            gradient.
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    mlm_loss: torch.Tensor | None = None
    pair_loss: torch.Tensor | None = None
    mlm: ObjectiveSums | None = None
    pair: ObjectiveSums | None = None


class EncoderForTokenPrediction(EncoderHead):
    """Encoder with a head that predicts tokens, `(P, D)` -> `(P, V)`.

    It is the module that a family names in `mlm_head_name`, or its own `mlm_head`: `transform`, `(P, D)` -> `(P, D or
    E)`, and `decoder`, the projection of that to the vocabulary. The decoder's weight is the first of the tied ones.
    """

    classes_field = "vocab_size"

    @property
    def mlm_head(self) -> nn.Module:
        """Return the head."""
        return self.get_submodule(self.mlm_head_name)

    @property
    def decoder_name(self) -> str:
        """Name of the projection to the vocabulary."""
        return next(iter(self._tied_weights_keys)).removesuffix(".weight")

    def get_output_embeddings(self) -> nn.Linear:
        """Return the projection to the vocabulary."""
        return self.get_submodule(self.decoder_name)

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the projection to the vocabulary, bias included."""
        self.set_submodule(self.decoder_name, new_embeddings)
        if isinstance(self.mlm_head, PredictionHead):
            bias = new_embeddings.bias
            # Untied biases must stay two parameters, or saving leaves one of them out.
            self.mlm_head.bias = bias if self.config.tie_word_embeddings else nn.Parameter(bias.detach().clone())

    def predict_tokens(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, labels: torch.Tensor | None, return_logits: bool | None
    ) -> tuple[torch.Tensor | None, ObjectiveSums | None]:
        """Return scores `(B, T, V)` or None, and the sums of the MLM objective or None.

        Only the predicted tokens of `hidden_states`, `(N, D)`, are projected to the vocabulary unless all logits are
        to be returned.
        """
        if return_logits is None:
            return_logits = labels is None or not self.training
        if labels is None:
            states = self.states_at(hidden_states, tokens) if return_logits else None
            return (tokens.pad(self.mlm_head(states)) if return_logits else None), None
        padded_labels, labels = labels, tokens.flatten(labels.to(hidden_states.device))
        if torch.compiler.is_compiling():  # a graph of fixed shapes cannot select the predicted tokens
            scores = self.mlm_head(self.states_at(hidden_states, tokens))
            return (tokens.pad(scores) if return_logits else None), classification_sums(scores, labels)
        predicted = places_of(labels != IGNORED, on_host(padded_labels) != IGNORED)
        labels = labels.index_select(0, predicted)
        if return_logits:
            scores = self.mlm_head(self.states_at(hidden_states, tokens))
            return tokens.pad(scores), classification_sums(scores.index_select(0, predicted), labels)
        return None, self.prediction_sums(self.states_at(hidden_states, tokens, predicted), labels)

    def states_at(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return what the head reads at some of the tokens, `(P,)`, or at all: `(N, D)` -> `(P, D)`."""
        return hidden_states if places is None else hidden_states.index_select(0, places)

    def prediction_sums(self, states: torch.Tensor, labels: torch.Tensor) -> ObjectiveSums:
        """Return the sums of the MLM objective of what `states_at` returned, `(P, D)`, and its labels, `(P,)`."""
        if not is_bare(self.mlm_head):
            return classification_sums(self.mlm_head(states), labels)
        return linear_classification_sums(self.mlm_head.transform(states), self.get_output_embeddings(), labels)


class EncoderForMaskedLM(EncoderForTokenPrediction):
    """Encoder with an MLM head."""

    loss_terms = {"mlm": "labels"}

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> HfeMaskedLMOutput:
        r"""Predict masked tokens.

        Args:
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): ids to predict, -100 elsewhere.
            num_items_in_batch (*optional*): predicted tokens in the whole batch, over accumulation steps and
                processes, which the loss is divided by. Trainer passes it. None means those of this call.
            return_logits (`bool`, *optional*): whether `logits` are computed for every token; None means yes, unless
                the model is training and has labels.
            kwargs: `EncoderInputs`, and other arguments of the base model.
        """
        outputs = self.encode(token_labels=labels, **kwargs)
        logits, mlm = self.predict_tokens(outputs.last_hidden_state, outputs.tokens, labels, return_logits)
        loss = mean_loss(mlm, num_items_in_batch)
        return HfeMaskedLMOutput(loss=loss, logits=logits, mlm=mlm, **outputs.recorded)


class EncoderForPreTraining(EncoderForMaskedLM):
    """Encoder with an MLM head and a head for sentence pairs, `pair_head_name`: pooled output `(S, D)` -> `(S, 2)`.

    A family sets `loss_terms` and writes `forward`, whose signature names the pair label. `PreTrainingTrainer` counts
    the pairs of the whole batch too, and divides the sums in `mlm` and `pair` itself.
    """

    has_pooler = True

    def pretrain(
        self,
        labels: torch.Tensor | None,
        pair_labels: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None,
        return_logits: bool | None,
        **kwargs: Any,
    ) -> HfeForPreTrainingOutput:
        """Return both objectives, or the one whose labels are given; arguments as in a family's `forward`."""
        pair_label_name = self.loss_terms["pair"]
        check_labels(pair_label_name, pair_labels, None, "two classes", 2)
        outputs = self.encode(token_labels=labels, **kwargs)
        logits, mlm = self.predict_tokens(outputs.last_hidden_state, outputs.tokens, labels, return_logits)
        pair_logits = self.get_submodule(self.pair_head_name)(outputs.pooler_output)
        pair = None if pair_labels is None else pair_sums(pair_logits, pair_labels, pair_label_name)
        mlm_loss = mean_loss(mlm, num_items_in_batch)
        pair_loss = None if pair is None else pair_share_of_batch(pair, mlm, num_items_in_batch)
        terms = [term for term in (mlm_loss, pair_loss) if term is not None]
        return HfeForPreTrainingOutput(
            loss=sum(terms) if terms else None,
            prediction_logits=logits,
            seq_relationship_logits=pair_logits,
            **outputs.recorded,
            mlm_loss=None if mlm_loss is None else mlm_loss.detach(),
            pair_loss=None if pair_loss is None else pair_loss.detach(),
            mlm=mlm,
            pair=pair,
        )


def pair_sums(logits: torch.Tensor, labels: torch.Tensor, label_name: str) -> ObjectiveSums:
    """Return sums of a pair objective; `logits` `(S, 2)`, `labels` `(S,)` of 0 and 1, -100 for no label."""
    labels = labels.view(-1).to(logits.device)
    if labels.shape[0] != logits.shape[0]:
        raise ValueError(f"{label_name} has {labels.shape[0]} labels for {logits.shape[0]} sequences: pass one each.")
    return classification_sums(logits, labels)


class EncoderForNextSentencePrediction(EncoderHead):
    """Encoder with a pair head alone; a family sets `pair_head_name`."""

    has_pooler = True

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> NextSentencePredictorOutput:
        r"""Predict whether segment B follows segment A; `labels` `(B,)`: 0 = follows, 1 = random."""
        check_labels("labels", labels, None, "two classes", 2)
        outputs = self.encode(**kwargs)
        logits = self.get_submodule(self.pair_head_name)(outputs.pooler_output)
        sums = None if labels is None else pair_sums(logits, labels, "labels")
        return NextSentencePredictorOutput(
            loss=mean_loss(sums, num_items_in_batch),
            logits=logits,
            **outputs.recorded,
        )


class SequenceHead(EncoderHead):
    """Scores of a whole sequence."""

    has_pooler = True

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_scores)`."""
        return self.scores(outputs.pooler_output)


class EncoderForSequenceClassification(SequenceHead):
    """One label, several labels or a number for a whole sequence."""

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> SequenceClassifierOutput:
        r"""Classify or score sequences.

        `labels` are class ids `(B,)`, numbers `(B,)` or `(B, num_labels)`, or flags `(B, num_labels)`, as the
        configuration's `problem_type` says.
        """
        problem_type = self.config.problem_type or infer_problem_type(labels, self.config.num_labels)
        if problem_type == "single_label_classification":
            check_labels("labels", labels, None, "num_labels", self.config.num_labels)
        outputs = self.encode(**kwargs)
        logits = self.classify(outputs)
        loss = None
        if labels is not None:
            loss = sequence_classification_loss(logits, labels.to(logits.device), problem_type, num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits, **outputs.recorded)


class EncoderForTokenClassification(EncoderHead):
    """One label per token."""

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> TokenClassifierOutput:
        r"""Label tokens: `labels` are class ids `(B, T)` or -100, `logits` `(B, T, num_labels)`, zero at padding."""
        outputs = self.encode(token_labels=labels, **kwargs)
        logits = self.scores(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            sums = classification_sums(logits, outputs.tokens.flatten(labels.to(logits.device)))
            loss = mean_loss(sums, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss,
            logits=outputs.tokens.pad(logits),
            **outputs.recorded,
        )


class EncoderForQuestionAnswering(EncoderHead):
    """First and last token of an answer."""

    def _add_head(self) -> None:
        self.qa_outputs = nn.Linear(self.config.hidden_size, 2)

    def scores(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Score tokens as the first and the last of an answer: `(P, D)` -> `(P, 2)`."""
        return self.qa_outputs(hidden_states)

    @can_return_tuple
    def forward(
        self,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        span_loss_over_padding: bool = True,
        **kwargs: Unpack[EncoderInputs],
    ) -> QuestionAnsweringModelOutput:
        r"""Find an answer in a text.

        Args:
            start_positions, end_positions (`torch.LongTensor` of shape `(B,)`, *optional*): columns of the answer's
                first and last token; beyond the row's end means no answer in this window.
            span_loss_over_padding (`bool`, *optional*, defaults to `True`): whether the softmax of the loss includes
                padding, as in transformers. Padding is computed then, and a row's loss depends on the longest row of
                its batch, so accumulated micro-batches differ from the whole batch.

        Returns:
            `start_logits` and `end_logits` of shape `(B, T)`, the lowest finite number at padding that is not
            computed.
        """
        has_labels = start_positions is not None
        if has_labels != (end_positions is not None):
            name, other = ("end_positions", "start_positions") if has_labels else ("start_positions", "end_positions")
            raise ValueError(f"{name} is None and {other} is not: pass both to train, or none.")
        # Trainer's count belongs to `labels`, which this head does not have: Trainer averages micro-batches.
        kwargs.pop("num_items_in_batch", None)
        outputs = self.encode(keep_padding=has_labels and span_loss_over_padding, **kwargs)
        logits = self.scores(outputs.last_hidden_state)
        start_logits, end_logits = outputs.tokens.pad(logits, torch.finfo(logits.dtype).min).unbind(dim=-1)
        return QuestionAnsweringModelOutput(
            loss=span_loss(start_logits, end_logits, start_positions, end_positions) if has_labels else None,
            start_logits=start_logits.contiguous(),
            end_logits=end_logits.contiguous(),
            **outputs.recorded,
        )


class EncoderForMultipleChoice(SequenceHead):
    """The best of several continuations."""

    num_scores = 1

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> MultipleChoiceModelOutput:
        r"""Choose between sequences.

        Inputs are `(B, num_choices, T)`, `inputs_embeds` `(B, num_choices, T, E)`, `labels` `(B,)` the indices of the
        right choices, `logits` `(B, num_choices)`.
        """
        for name, dims in (("input_ids", 3), ("inputs_embeds", 4)):
            if (value := kwargs.get(name)) is not None:
                if value.dim() != dims:
                    raise ValueError(
                        f"{name} has shape {tuple(value.shape)}: pass (batch_size, num_choices, sequence_length"
                        f"{', width' if dims == 4 else ''})."
                    )
                num_choices = value.shape[1]
                check_labels("labels", labels, value.shape[:1], "num_choices", num_choices)
        for name in (*INPUTS, *self.base_model.embedding_arguments):
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name].flatten(0, 1)
        outputs = self.encode(**kwargs)
        logits = self.classify(outputs).view(-1, num_choices)
        loss = None
        if labels is not None:
            loss = mean_loss(classification_sums(logits, labels.to(logits.device)), num_items_in_batch)
        return MultipleChoiceModelOutput(loss=loss, logits=logits, **outputs.recorded)
