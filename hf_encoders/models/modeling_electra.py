"""ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555).

Differs from BERT in: factorised embeddings, no pooler, a head with one score per token (was it replaced?), and an MLM
head in the embedding width, that of the generator. Leaves out: decoder use.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from transformers.activations import get_activation
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_electra import SUMMARY, HfeElectraConfig
from .encoder_blocks import Encoder, EncoderEmbeddings, activation
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
    EncoderHead,
    check_labels,
)
from .encoder_losses import IGNORED, normalised
from .encoder_models import EncoderModel, EncoderPreTrainedModel, FlatEncoderOutput
from .encoder_tokens import FlatTokens


class HfeElectraPreTrainedModel(EncoderPreTrainedModel):
    """Return names of the ELECTRA models."""

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
        """`(N, E)` -> `(N, D)`; `flags` as in `EncoderModel`."""
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


class ElectraMLMHead(nn.Module):
    """The two modules of the MLM head, which are apart in transformers' names, as one."""

    def __init__(self, transform: nn.Module, decoder: nn.Linear):
        super().__init__()
        self.transform, self.decoder = transform, decoder

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, V)`."""
        return self.decoder(self.transform(hidden_states))


class HfeElectraForMaskedLM(EncoderForMaskedLM, HfeElectraPreTrainedModel):
    """ELECTRA with the MLM head: the generator."""

    _tied_weights_keys = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}

    def _add_head(self) -> None:
        self.generator_predictions = ElectraGeneratorPredictions(self.config)
        self.generator_lm_head = nn.Linear(self.config.embedding_size, self.config.vocab_size)

    @property
    def mlm_head(self) -> nn.Module:
        """The MLM head."""
        return ElectraMLMHead(self.generator_predictions, self.generator_lm_head)

    def get_output_embeddings(self) -> nn.Linear:
        """The projection to the vocabulary."""
        return self.generator_lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the projection to the vocabulary, bias included."""
        self.generator_lm_head = new_embeddings


# --- the discriminator ---


class DetectionSums(NamedTuple):
    """`ObjectiveSums` of replaced token detection, and how many of the tokens were replaced."""

    nll: torch.Tensor
    correct: torch.Tensor
    count: torch.Tensor
    label_1: torch.Tensor


def detection_sums(scores: torch.Tensor, labels: torch.Tensor) -> DetectionSums:
    """Binary cross-entropy summed over tokens; `scores` `(N,)`, `labels` `(N,)` 1 = replaced, 0 = not, -100 = none."""
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
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> HfeElectraForPreTrainingOutput:
        r"""Tell replaced tokens from original ones.

        Args:
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): 1 where a token was replaced, 0 where not, -100
                where neither counts. Padding never does.
            num_items_in_batch (*optional*): tokens that count in the whole batch, over accumulation steps and
                processes; None means in this call.
            kwargs: passed to the base model, like the inputs before the labels.
        """
        rows = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
        check_labels("labels", labels, rows, "two classes", 2)
        outputs = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        scores = self.discriminator_predictions(outputs.last_hidden_state)
        rtd = None
        if labels is not None:
            if attention_mask is not None and attention_mask.shape == labels.shape:
                labels = labels.masked_fill(attention_mask == 0, IGNORED)
            rtd = detection_sums(scores, outputs.tokens.flatten(labels.to(scores.device)))
        return HfeElectraForPreTrainingOutput(
            loss=None if rtd is None else normalised(rtd.nll, rtd.count, num_items_in_batch),
            logits=outputs.tokens.pad(scores),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            rtd=rtd,
        )


# --- heads for fine-tuning ---


class ElectraClassificationHead(nn.Module):
    """Dense, erf GELU and projection of the first token, with dropout before each."""

    def __init__(self, config: HfeElectraConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.head_dropout)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, num_labels)`."""
        return self.out_proj(self.dropout(nn.functional.gelu(self.dense(self.dropout(first_tokens)))))


class ElectraSequenceSummary(nn.Module):
    """Projection and activation of the first token, then dropout.

    Of transformers' other summaries, `last` and `mean` count padding.
    """

    def __init__(self, config: HfeElectraConfig):
        super().__init__()
        for name, needed in (("summary_type", SUMMARY), ("summary_use_proj", True)):
            if getattr(config, name) != needed:
                raise ValueError(f"{name}={getattr(config, name)!r}: only {needed!r} is built: leave it out.")
        self.summary = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = get_activation(config.summary_activation) if config.summary_activation else nn.Identity()
        self.last_dropout = nn.Dropout(config.summary_last_dropout)

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, D)`."""
        return self.last_dropout(self.activation(self.summary(first_tokens)))


class HfeElectraForSequenceClassification(EncoderForSequenceClassification, HfeElectraPreTrainedModel):
    """ELECTRA for labels or numbers of whole sequences."""

    has_pooler = False

    def _add_head(self) -> None:
        self.classifier = ElectraClassificationHead(self.config)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_labels)`."""
        return self.classifier(outputs.tokens.first_of_each_sequence(outputs.last_hidden_state))


class HfeElectraForTokenClassification(EncoderForTokenClassification, HfeElectraPreTrainedModel):
    """ELECTRA for labels of tokens."""


class HfeElectraForQuestionAnswering(EncoderForQuestionAnswering, HfeElectraPreTrainedModel):
    """ELECTRA for answers in a text."""


class HfeElectraForMultipleChoice(EncoderForMultipleChoice, HfeElectraPreTrainedModel):
    """ELECTRA for the best of several continuations."""

    has_pooler = False

    def _add_head(self) -> None:
        self.sequence_summary = ElectraSequenceSummary(self.config)
        self.classifier = nn.Linear(self.config.hidden_size, 1)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, 1)`."""
        return self.classifier(self.sequence_summary(outputs.tokens.first_of_each_sequence(outputs.last_hidden_state)))
