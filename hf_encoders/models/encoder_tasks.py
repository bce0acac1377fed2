"""Fine-tuning heads: whole sequences, tokens, answer spans, choices.

Each class holds the parameters and the forward pass of one task for every family.
"""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .encoder_heads import HeadModel, check_labels
from .encoder_losses import (
    classification_sums,
    infer_problem_type,
    normalised,
    sequence_classification_loss,
    span_loss,
)
from .encoder_outputs import FlatEncoderOutput


class SequenceClassifier(HeadModel):
    """One label, several labels or a number for a whole sequence. Classes: `Hfe<Family>ForSequenceClassification`."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.add_classifier()
        self.post_init()

    def add_classifier(self) -> None:
        """Build the encoder and what reads its pooled output."""
        self.add_encoder(add_pooling_layer=True)
        self.dropout = nn.Dropout(self.classifier_dropout)
        self.classifier = nn.Linear(self.config.hidden_size, self.config.num_labels)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """`(S, num_labels)`."""
        return self.classifier(self.dropout(outputs.pooler_output))

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
    ) -> SequenceClassifierOutput:
        r"""Classify or score sequences.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: as in the MLM head.
            labels (`torch.Tensor` of shape `(B,)` or `(B, num_labels)`, *optional*): class ids, numbers, or flags, see
                `problem_type` in the configuration.
            num_items_in_batch (*optional*): entries of `labels` in the whole batch.
            kwargs: passed to the base model.
        """
        problem_type = self.config.problem_type or infer_problem_type(labels, self.num_labels)
        if problem_type == "single_label_classification":
            check_labels("labels", labels, None, "num_labels", self.num_labels)
        outputs = self.encode(
            attention_mask,
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classify(outputs)
        loss = None
        if labels is not None:
            loss = sequence_classification_loss(logits, labels.to(logits.device), problem_type, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class TokenClassifier(HeadModel):
    """One label per token. Classes: `Hfe<Family>ForTokenClassification`."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.add_encoder(add_pooling_layer=False)
        self.dropout = nn.Dropout(self.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

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
    ) -> TokenClassifierOutput:
        r"""Label tokens.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: as in the MLM head.
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): class ids, -100 where there is none.
            num_items_in_batch (*optional*): labelled tokens in the whole batch.
            kwargs: passed to the base model.

        Returns:
            `logits` of shape `(B, T, num_labels)`, zero at padding.
        """
        outputs = self.encode(
            attention_mask,
            labels,
            ("num_labels", self.num_labels),
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            labels = outputs.tokens.flatten(labels.to(logits.device))
            sums = classification_sums(logits, labels)
            loss = normalised(sums.nll, sums.count, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss,
            logits=outputs.tokens.pad(logits),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class QuestionAnswerer(HeadModel):
    """First and last token of an answer. Classes: `Hfe<Family>ForQuestionAnswering`."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.add_encoder(add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        span_loss_over_padding: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        r"""Find an answer in a text.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: as in the MLM head.
            start_positions, end_positions (`torch.LongTensor` of shape `(B,)`, *optional*): columns of the answer's
                first and last token; beyond the row's end means no answer in this window.
            span_loss_over_padding (`bool`): whether the softmax of the loss goes over padding, as in transformers.
                Padding is computed then, and a row's loss depends on the longest row of its batch, so accumulated
                micro-batches are not the whole batch. Fine-tuning here leaves padding out.
            kwargs: passed to the base model.

        Returns:
            `start_logits` and `end_logits` of shape `(B, T)`, the lowest finite number at padding that is not
            computed.
        """
        has_labels = start_positions is not None
        if has_labels != (end_positions is not None):
            name, other = ("end_positions", "start_positions") if has_labels else ("start_positions", "end_positions")
            raise ValueError(f"{name} is None and {other} is not: pass both to train, or none.")
        # Trainer's count belongs to `labels`, which this head does not have: micro-batches are averaged by Trainer.
        kwargs.pop("num_items_in_batch", None)
        outputs = self.encode(
            attention_mask,
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            keep_padding=has_labels and span_loss_over_padding,
            **kwargs,
        )
        logits = self.qa_outputs(outputs.last_hidden_state)
        start_logits, end_logits = outputs.tokens.pad(logits, torch.finfo(logits.dtype).min).unbind(dim=-1)
        return QuestionAnsweringModelOutput(
            loss=span_loss(start_logits, end_logits, start_positions, end_positions) if has_labels else None,
            start_logits=start_logits.contiguous(),
            end_logits=end_logits.contiguous(),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ChoiceModel(HeadModel):
    """The best of several continuations. Classes: `Hfe<Family>ForMultipleChoice`."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.add_encoder(add_pooling_layer=True)
        self.dropout = nn.Dropout(self.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

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
    ) -> MultipleChoiceModelOutput:
        r"""Choose between sequences.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids (*optional*): `(B, num_choices, T)`.
            inputs_embeds (*optional*): `(B, num_choices, T, E)`.
            labels (`torch.LongTensor` of shape `(B,)`, *optional*): index of the right choice.
            num_items_in_batch (*optional*): labels in the whole batch.
            kwargs: passed to the base model.

        Returns:
            `logits` of shape `(B, num_choices)`.
        """
        for name, value, dims in (("input_ids", input_ids, 3), ("inputs_embeds", inputs_embeds, 4)):
            if value is not None:
                if value.dim() != dims:
                    raise ValueError(
                        f"{name} has shape {tuple(value.shape)}: pass (batch_size, num_choices, sequence_length"
                        f"{', width' if dims == 4 else ''})."
                    )
                num_choices = value.shape[1]
                check_labels("labels", labels, value.shape[:1], "num_choices", num_choices)
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        inputs = {name: None if value is None else value.flatten(0, 1) for name, value in inputs.items()}
        outputs = self.encode(inputs.pop("attention_mask"), **inputs, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, num_choices)
        loss = None
        if labels is not None:
            sums = classification_sums(logits, labels.to(logits.device))
            loss = normalised(sums.nll, sums.count, num_items_in_batch)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
