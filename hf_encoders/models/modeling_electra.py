"""ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555).

Differs from BERT in: factorised embeddings, no pooler, a head with one score per token (was it replaced?), and an MLM
head in the embedding width, that of the generator. Leaves out: decoder use.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_electra import HfeElectraConfig
from .encoder_blocks import (
    ClassificationHead,
    Encoder,
    EncoderEmbeddings,
    JoinedHead,
    SequenceSummary,
    activation,
)
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
    EncoderHead,
    EncoderInputs,
    check_labels,
)
from .encoder_losses import IGNORED, mean_loss
from .encoder_models import EncoderModel, EncoderPreTrainedModel, FlatEncoderOutput
from .encoder_tokens import FlatTokens


class HfeElectraPreTrainedModel(EncoderPreTrainedModel):
    """Names of the ELECTRA models."""

    config_class = HfeElectraConfig
    base_model_prefix = "electra"
    pretraining_heads = (
        r"discriminator_predictions\.(dense|dense_prediction)\.(weight|bias)",
        r"generator_predictions\.(LayerNorm|dense)\.(weight|bias)",
        r"generator_lm_head\.(weight|bias)",
    )
    _no_split_modules = ["EncoderEmbeddings", "EncoderLayer"]

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.electra = HfeElectraModel(self.config)


class HfeElectraModel(EncoderModel, HfeElectraPreTrainedModel):
    """ELECTRA without a head."""

    pooler = None

    def __init__(self, config: HfeElectraConfig):
        super().__init__(config)
        self.embeddings = EncoderEmbeddings(config, config.embedding_size)
        self.has_projection = config.embedding_size != config.hidden_size
        if self.has_projection:
            self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size)
        self.encoder = Encoder(config)
        self.post_init()

    def run_layers(self, hidden_states: torch.Tensor, tokens: FlatTokens, *flags: bool) -> torch.Tensor:
        """`(N, E)` -> `(N, D)`."""
        if self.has_projection:
            hidden_states = self.embeddings_project(hidden_states)
        return self.encoder(hidden_states, tokens, *flags)


# --- the generator ---


class ElectraGeneratorPredictions(nn.Module):
    """Dense, erf GELU and LayerNorm in front of the vocabulary projection."""

    def __init__(self, config: HfeElectraConfig):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, E)`."""
        return self.LayerNorm(nn.functional.gelu(self.dense(hidden_states)))


class HfeElectraForMaskedLM(EncoderForMaskedLM, HfeElectraPreTrainedModel):
    """ELECTRA with the MLM head: the generator."""

    _tied_weights_keys = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}

    def _add_head(self) -> None:
        self.generator_predictions = ElectraGeneratorPredictions(self.config)
        self.generator_lm_head = nn.Linear(self.config.embedding_size, self.config.vocab_size)

    @property
    def mlm_head(self) -> nn.Module:
        """Return the MLM head."""
        return JoinedHead(self.generator_predictions, self.generator_lm_head)


# --- the discriminator ---


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
class HfeElectraForPreTrainingOutput(ModelOutput):
    """Output of the discriminator.

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


class ElectraDiscriminatorPredictions(nn.Module):
    """Dense, activation and one score."""

    def __init__(self, config: HfeElectraConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.dense_prediction = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(N, D)` -> `(N,)`."""
        return self.dense_prediction(self.activation(self.dense(hidden_states))).squeeze(-1)


class HfeElectraForPreTraining(EncoderHead, HfeElectraPreTrainedModel):
    """ELECTRA with the head that it is pre-trained with, the discriminator: was this token replaced?"""

    loss_terms = {"rtd": "labels"}

    def _add_head(self) -> None:
        self.discriminator_predictions = ElectraDiscriminatorPredictions(self.config)

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> HfeElectraForPreTrainingOutput:
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
        scores = self.discriminator_predictions(outputs.last_hidden_state)
        rtd = None if labels is None else detection_sums(scores, outputs.tokens.flatten(labels.to(scores.device)))
        logits, loss = outputs.tokens.pad(scores), mean_loss(rtd, num_items_in_batch)
        return HfeElectraForPreTrainingOutput(loss=loss, logits=logits, rtd=rtd, **outputs.recorded)


# --- heads for fine-tuning ---


class HfeElectraForSequenceClassification(EncoderForSequenceClassification, HfeElectraPreTrainedModel):
    """ELECTRA for labels or numbers of whole sequences."""

    has_pooler = False

    def _add_head(self) -> None:
        self.classifier = ClassificationHead(self.config, nn.functional.gelu)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_labels)`."""
        return self.classifier(outputs.first_tokens)


class HfeElectraForTokenClassification(EncoderForTokenClassification, HfeElectraPreTrainedModel):
    """ELECTRA for labels of tokens."""


class HfeElectraForQuestionAnswering(EncoderForQuestionAnswering, HfeElectraPreTrainedModel):
    """ELECTRA for answers in a text."""


class HfeElectraForMultipleChoice(EncoderForMultipleChoice, HfeElectraPreTrainedModel):
    """ELECTRA for the best of several continuations."""

    has_pooler = False

    def _add_head(self) -> None:
        config = self.config
        self.sequence_summary = SequenceSummary(config, config.hidden_size, last_dropout=config.summary_last_dropout)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, 1)`."""
        return self.classifier(self.sequence_summary(outputs.first_tokens))
