"""Replaced token detection: the head of discriminators, one score per token, and its loss (ELECTRA, DeBERTa v3)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import nn
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .encoder_heads import EncoderHead, EncoderInputs, check_labels
from .encoder_losses import IGNORED, mean_loss
from .encoder_models import FlatEncoderOutput


class DetectionSums(NamedTuple):
    """`ObjectiveSums` of replaced token detection, and how many of the tokens were replaced."""

    nll: torch.Tensor
    correct: torch.Tensor
    count: torch.Tensor
    label_1: torch.Tensor


def detection_sums(scores: torch.Tensor, labels: torch.Tensor) -> DetectionSums:
    """Sum the cross-entropy over tokens; `scores` `(N,)`, `labels` `(N,)` 1 = replaced, 0 = not, -100 = none."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    is_item, is_replaced = labels != IGNORED, labels == 1
    nll = nn.functional.binary_cross_entropy_with_logits(
        scores, is_replaced.to(scores.dtype), weight=is_item.to(scores.dtype), reduction="sum"
    )
    correct = ((scores.detach() > 0) == is_replaced) & is_item
    return DetectionSums(nll, correct.sum(), is_item.sum(), is_replaced.sum())


@dataclass
class TokenDetectionOutput(ModelOutput):
    """Output of a head that tells replaced tokens from original ones.

    Args:
        loss (`torch.Tensor` of shape `()`, *optional*): when `labels` are given.
        logits (`torch.Tensor` of shape `(B, T)`): scores, above 0 for a token predicted to be replaced; zero at
            padding.
        hidden_states, attentions: as in transformers.
        rtd (`DetectionSums`, *optional*): sums over this call's tokens; `nll` with gradient.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    rtd: DetectionSums | None = None


class EncoderForTokenDetection(EncoderHead):
    """Encoder with a head that tells replaced tokens: a family's `detection_scores`."""

    loss_terms: ClassVar[dict[str, str]] = {"rtd": "labels"}

    def detection_scores(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return one score per token, above 0 for one predicted to be replaced, `(N,)`."""
        raise NotImplementedError

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> TokenDetectionOutput:
        r"""Tell replaced tokens from original ones.

        Args:
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): 1 where a token was replaced, 0 where not, -100
                where neither counts. Padding never does.
            num_items_in_batch (*optional*): tokens that count in the whole batch, over accumulation steps and
                processes; None means in this call.
            kwargs: `EncoderInputs`, and other arguments of the base model.
        """
        rows = kwargs.get("input_ids" if kwargs.get("inputs_embeds") is None else "inputs_embeds")
        check_labels("labels", labels, rows.shape[:2], "two classes", 2)
        outputs = self.encode(**kwargs)
        mask = kwargs.get("attention_mask")
        if labels is not None and mask is not None and mask.shape == labels.shape:
            labels = labels.masked_fill(mask == 0, IGNORED)
        scores = self.detection_scores(outputs)
        rtd = None if labels is None else detection_sums(scores, outputs.tokens.flatten(labels.to(scores.device)))
        logits, loss = outputs.tokens.pad(scores), mean_loss(rtd, num_items_in_batch)
        return TokenDetectionOutput(loss=loss, logits=logits, rtd=rtd, **outputs.recorded)
