"""ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555).

Differs from BERT in: factorised embeddings, no pooler, a head with one score per token (was it replaced?), and an MLM
head in the embedding width, that of the generator. Leaves out: decoder use.
"""

import torch
from torch import nn

from .configuration_electra import HfeElectraConfig
from .encoder_blocks import (
    ClassificationHead,
    Encoder,
    EncoderEmbeddings,
    JoinedHead,
    SequenceSummary,
    activation,
)
from .encoder_detection import EncoderForTokenDetection
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
)
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


class HfeElectraForPreTraining(EncoderForTokenDetection, HfeElectraPreTrainedModel):
    """ELECTRA with the head that it is pre-trained with, the discriminator: was this token replaced?"""

    def _add_head(self) -> None:
        self.discriminator_predictions = ElectraDiscriminatorPredictions(self.config)

    def detection_scores(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return one score per token, `(N,)`."""
        return self.discriminator_predictions(outputs.last_hidden_state)


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
