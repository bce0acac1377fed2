"""Fine-tuning heads: whole sequences, tokens, answer spans, choices; mixed in like those of `encoder_heads.py`.

In every `forward`, the inputs before the labels and `kwargs` are those of the base model, and `num_items_in_batch` is
the number of labels in the whole batch, over accumulation steps and processes.
"""

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

from .encoder_heads import EncoderHead, check_labels
from .encoder_losses import (
    classification_sums,
    infer_problem_type,
    normalised,
    sequence_classification_loss,
    span_loss,
)
from .encoder_outputs import FlatEncoderOutput


class SequenceHead(EncoderHead):
    """Scores of a whole sequence."""

    has_pooler = True
    num_scores: int | None = None  # None: `num_labels`

    def _add_head(self) -> None:
        self.dropout = nn.Dropout(self.config.head_dropout)
        self.classifier = nn.Linear(self.config.hidden_size, self.num_scores or self.config.num_labels)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Scores of `(S, num_scores)`."""
        return self.classifier(self.dropout(outputs.pooler_output))


class EncoderForSequenceClassification(SequenceHead):
    """One label, several labels or a number for a whole sequence."""

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

        `labels` are class ids `(B,)`, numbers `(B,)` or `(B, num_labels)`, or flags `(B, num_labels)`, as the
        configuration's `problem_type` says.
        """
        problem_type = self.config.problem_type or infer_problem_type(labels, self.config.num_labels)
        if problem_type == "single_label_classification":
            check_labels("labels", labels, None, "num_labels", self.config.num_labels)
        outputs = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classify(outputs)
        loss = None
        if labels is not None:
            loss = sequence_classification_loss(logits, labels.to(logits.device), problem_type, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class EncoderForTokenClassification(EncoderHead):
    """One label per token."""

    def _add_head(self) -> None:
        self.dropout = nn.Dropout(self.config.head_dropout)
        self.classifier = nn.Linear(self.config.hidden_size, self.config.num_labels)

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
        r"""Label tokens: `labels` are class ids `(B, T)` or -100, `logits` `(B, T, num_labels)`, zero at padding."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.encode(*inputs, token_labels=labels, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            sums = classification_sums(logits, outputs.tokens.flatten(labels.to(logits.device)))
            loss = normalised(sums.nll, sums.count, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss,
            logits=outputs.tokens.pad(logits),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class EncoderForQuestionAnswering(EncoderHead):
    """First and last token of an answer."""

    def _add_head(self) -> None:
        self.qa_outputs = nn.Linear(self.config.hidden_size, 2)

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
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.encode(*inputs, keep_padding=has_labels and span_loss_over_padding, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)
        start_logits, end_logits = outputs.tokens.pad(logits, torch.finfo(logits.dtype).min).unbind(dim=-1)
        return QuestionAnsweringModelOutput(
            loss=span_loss(start_logits, end_logits, start_positions, end_positions) if has_labels else None,
            start_logits=start_logits.contiguous(),
            end_logits=end_logits.contiguous(),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class EncoderForMultipleChoice(SequenceHead):
    """The best of several continuations."""

    num_scores = 1

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

        Inputs are `(B, num_choices, T)`, `inputs_embeds` `(B, num_choices, T, E)`, `labels` `(B,)` the indices of the
        right choices, `logits` `(B, num_choices)`.
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
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        for name in self.base_model.embedding_arguments:
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name].flatten(0, 1)
        outputs = self.encode(*(None if value is None else value.flatten(0, 1) for value in inputs), **kwargs)
        logits = self.classify(outputs).view(-1, num_choices)
        loss = None
        if labels is not None:
            sums = classification_sums(logits, labels.to(logits.device))
            loss = normalised(sums.nll, sums.count, num_items_in_batch)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
