"""Pre-training heads: masked tokens and sentence pairs. What follows them in life is in `encoder_tasks.py`.

Each class here holds the forward pass of one head for every family; a family's file names the parameters.
"""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import NextSentencePredictorOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

from .encoder_arguments import check_ids, refuse_unknown_arguments
from .encoder_blocks import EncoderPreTrainedModel
from .encoder_linear_loss import linear_classification_sums
from .encoder_losses import IGNORED, ObjectiveSums, classification_sums, normalised, pair_share_of_batch
from .encoder_matmul import is_bare
from .encoder_outputs import FlatEncoderOutput, HfeForPreTrainingOutput, HfeMaskedLMOutput
from .encoder_tokens import FlatTokens


logger = logging.get_logger(__name__)


class HeadModel(EncoderPreTrainedModel):
    """An encoder with something on top.

    A family sets `encoder_class` and, where it differs, `classifier_dropout`.
    """

    encoder_class: type

    def add_encoder(self, add_pooling_layer: bool) -> None:
        """Build the family's base model under the family's name."""
        setattr(self, self.base_model_prefix, self.encoder_class(self.config, add_pooling_layer=add_pooling_layer))

    @property
    def classifier_dropout(self) -> float:
        """Dropout probability before a task's classifier."""
        if self.config.classifier_dropout is None:
            return self.config.hidden_dropout_prob
        return self.config.classifier_dropout

    def encode(
        self,
        attention_mask: torch.Tensor | None,
        labels: torch.Tensor | None = None,
        classes: tuple[str, int] = ("num_labels", 0),
        /,
        **inputs: Any,
    ) -> FlatEncoderOutput:
        """Run the base model for a head: flat output, and padding computed only if `labels` ask for it.

        Args:
            attention_mask: as in `forward`.
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): one label a token.
            classes: what the number of classes of `labels` is called, and that number.
            inputs: the other arguments of the base model.

        Raises:
            ValueError: for labels of another shape or range and for arguments that nothing reads, before anything is
                computed; and as the base model does.
        """
        refuse_unknown_arguments(self, inputs, self.base_model.arguments)
        for name in ("input_ids", "inputs_embeds"):
            if inputs[name] is not None:
                check_labels("labels", labels, inputs[name].shape[:2], *classes)
        keep_padding = inputs.pop("keep_padding", False) or labels_on_padding(labels, attention_mask)
        return self.base_model(
            attention_mask=attention_mask, keep_padding=keep_padding, flat_output=True, return_dict=True, **inputs
        )


def check_labels(
    name: str, labels: torch.Tensor | None, shape: tuple[int, ...] | None, size_name: str, num_classes: int
) -> None:
    """Raise ValueError unless `labels` has the shape (if one is named) and holds integer classes or -100."""
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
    check_ids(name, labels[labels != IGNORED], num_classes, size_name, remedy)


def labels_on_padding(labels: torch.Tensor | None, attention_mask: torch.Tensor | None) -> bool:
    """Whether a token that the mask hides is to be predicted. transformers counts such tokens, and so do we."""
    if labels is None or attention_mask is None or attention_mask.dim() != 2 or labels.shape != attention_mask.shape:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    found = bool(((labels != IGNORED) & (attention_mask == 0)).any())
    if found:
        logger.warning_once(
            "labels ask for predictions at padding tokens (attention_mask 0): they are computed and counted in the "
            f"loss, as in transformers. Set labels to {IGNORED} at padding to leave them out."
        )
    return found


class MaskedTokenPrediction(HeadModel):
    """What models with an MLM head share: the head, its tied decoder, and prediction of the masked tokens only.

    A family sets `mlm_head_name`, the path of the module that maps `(P, D)` to `(P, V)`. The module holds `bias`,
    `transform`, which maps `(P, D)` to `(P, D or E)`, and `decoder`, the projection of that to the vocabulary.
    """

    mlm_head_name: str

    @property
    def mlm_head(self) -> nn.Module:
        """The MLM head."""
        return self.get_submodule(self.mlm_head_name)

    def get_output_embeddings(self) -> nn.Linear:
        """The projection to the vocabulary."""
        return self.mlm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the projection to the vocabulary, bias included."""
        self.mlm_head.decoder = new_embeddings
        bias = new_embeddings.bias
        # Untied biases must stay two parameters, or saving leaves one of them out.
        self.mlm_head.bias = bias if self.config.tie_word_embeddings else nn.Parameter(bias.detach().clone())

    @property
    def classes(self) -> tuple[str, int]:
        """V, by the name of its field."""
        return "vocab_size", self.get_output_embeddings().out_features

    def predict_tokens(
        self,
        hidden_states: torch.Tensor,
        tokens: FlatTokens,
        labels: torch.Tensor | None,
        return_logits: bool | None,
    ) -> tuple[torch.Tensor | None, ObjectiveSums | None]:
        """Scores at the border and the sums of the MLM objective.

        Args:
            hidden_states (`torch.Tensor` of shape `(N, D)`): flat tokens.
            tokens (`FlatTokens`): their layout.
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): ids to predict, -100 elsewhere.
            return_logits (`bool`, *optional*): whether to project every token; None means unless training with labels.

        Returns:
            `(B, T, V)` or None, and the sums or None.
        """
        if return_logits is None:
            return_logits = labels is None or not self.training
        if labels is None:
            return (tokens.pad(self.mlm_head(hidden_states)) if return_logits else None), None
        labels = tokens.flatten(labels.to(hidden_states.device))
        if torch.compiler.is_compiling():
            # A graph of fixed shapes cannot select the predicted tokens.
            scores = self.mlm_head(hidden_states)
            return (tokens.pad(scores) if return_logits else None), classification_sums(scores, labels)
        predicted = (labels != IGNORED).nonzero().squeeze(1)
        labels = labels.index_select(0, predicted)
        if return_logits:
            scores = self.mlm_head(hidden_states)
            return tokens.pad(scores), classification_sums(scores.index_select(0, predicted), labels)
        hidden_states = hidden_states.index_select(0, predicted)
        if not is_bare(self.mlm_head):
            return None, classification_sums(self.mlm_head(hidden_states), labels)
        transformed = self.mlm_head.transform(hidden_states)
        return None, linear_classification_sums(transformed, self.get_output_embeddings(), labels)


class MaskedLanguageModel(MaskedTokenPrediction):
    """Encoder with an MLM head. Classes: `Hfe<Family>ForMaskedLM`."""

    loss_terms = {"mlm": "labels"}

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
    ) -> HfeMaskedLMOutput:
        r"""Predict masked tokens.

        Args:
            input_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): token ids.
            attention_mask (`torch.Tensor` of shape `(B, T)`, *optional*): non-zero for real tokens; None means all
                are.
            token_type_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): segment of each token.
            position_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): rows of the position table.
            inputs_embeds (`torch.Tensor` of shape `(B, T, E)`, *optional*): instead of `input_ids`.
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): ids to predict, -100 elsewhere.
            num_items_in_batch (*optional*): predicted tokens in the whole batch, over accumulation steps and
                processes; what the loss is divided by. Trainer passes it. None means those of this call.
            return_logits (`bool`, *optional*): whether `logits` are computed for every token; None means yes, unless
                the model is training and has labels.
            kwargs: passed to the base model, such as `output_hidden_states` or `cu_seq_lens_q`.
        """
        outputs = self.encode(
            attention_mask,
            labels,
            self.classes,
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits, mlm = self.predict_tokens(outputs.last_hidden_state, outputs.tokens, labels, return_logits)
        return HfeMaskedLMOutput(
            loss=None if mlm is None else normalised(mlm.nll, mlm.count, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            mlm=mlm,
        )


class PreTrainingModel(MaskedTokenPrediction):
    """Encoder with an MLM head and a head for one label a sentence pair. Classes: `Hfe<Family>ForPreTraining`.

    A family writes `forward`, because the name of the pair label is part of its signature, and calls `pretrain`.
    """

    pair_label_name: str

    def score_pairs(self, pooled: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, 2)`."""
        raise NotImplementedError

    def pretrain(
        self,
        attention_mask: torch.Tensor | None,
        labels: torch.Tensor | None,
        pair_labels: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None,
        return_logits: bool | None,
        /,
        **inputs: Any,
    ) -> HfeForPreTrainingOutput:
        """Both objectives, or the one whose labels are given; arguments as in a family's `forward`."""
        check_labels(self.pair_label_name, pair_labels, None, "two classes", 2)
        outputs = self.encode(attention_mask, labels, self.classes, **inputs)
        logits, mlm = self.predict_tokens(outputs.last_hidden_state, outputs.tokens, labels, return_logits)
        pair_logits = self.score_pairs(outputs.pooler_output)
        pair = None if pair_labels is None else pair_sums(pair_logits, pair_labels, self.pair_label_name)
        mlm_loss = None if mlm is None else normalised(mlm.nll, mlm.count, num_items_in_batch)
        pair_loss = None if pair is None else pair_share_of_batch(pair, mlm, num_items_in_batch)
        terms = [term for term in (mlm_loss, pair_loss) if term is not None]
        return HfeForPreTrainingOutput(
            loss=sum(terms) if terms else None,
            prediction_logits=logits,
            seq_relationship_logits=pair_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            mlm_loss=None if mlm_loss is None else mlm_loss.detach(),
            pair_loss=None if pair_loss is None else pair_loss.detach(),
            mlm=mlm,
            pair=pair,
        )


def pair_sums(logits: torch.Tensor, labels: torch.Tensor, label_name: str) -> ObjectiveSums:
    """Sums of a pair objective; `logits` `(S, 2)`, `labels` `(S,)` of 0 and 1, -100 for no label."""
    labels = labels.view(-1).to(logits.device)
    if labels.shape[0] != logits.shape[0]:
        raise ValueError(f"{label_name} has {labels.shape[0]} labels for {logits.shape[0]} sequences: pass one each.")
    return classification_sums(logits, labels)


class NextSentenceModel(HeadModel):
    """Encoder with a pair head alone. Class: `HfeBertForNextSentencePrediction`."""

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
        **kwargs: Unpack[TransformersKwargs],
    ) -> NextSentencePredictorOutput:
        r"""Tell whether segment B follows segment A.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: as in the MLM head.
            labels (`torch.LongTensor` of shape `(B,)`, *optional*): 0 = follows, 1 = random.
            num_items_in_batch (*optional*): labels in the whole batch.
            kwargs: passed to the base model.
        """
        check_labels("labels", labels, None, "two classes", 2)
        outputs = self.encode(
            attention_mask,
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.score_pairs(outputs.pooler_output)
        sums = None if labels is None else pair_sums(logits, labels, "labels")
        return NextSentencePredictorOutput(
            loss=None if sums is None else normalised(sums.nll, sums.count, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
