"""RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692).

Differs from BERT in: positions that start after the padding id and skip padding, the form of the MLM head, a
classifier of its own on the first token, and no pair objective. Leaves out: decoder use.
"""

import torch
from torch import nn

from .configuration_roberta import HfeRobertaConfig
from .encoder_blocks import ClassificationHead, Encoder, EncoderEmbeddings, Pooler, PredictionHead
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
)
from .encoder_models import EncoderModel, EncoderPreTrainedModel, FlatEncoderOutput
from .encoder_tokens import FlatTokens


class RobertaEmbeddings(EncoderEmbeddings):
    """Embeddings whose positions count the tokens that are not padding, from `pad_token_id + 1` (fairseq)."""

    def __init__(self, config: HfeRobertaConfig):
        is_absolute = config.position_embedding_type == "absolute"
        super().__init__(
            config,
            config.hidden_size,
            first_position=config.pad_token_id + 1 if is_absolute else 0,
            position_padding=config.pad_token_id,
        )
        self.padding_idx = config.pad_token_id  # where sentence-transformers finds the first position of packed rows

    def _positions(
        self,
        tokens: FlatTokens,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        device: torch.device,
    ) -> torch.Tensor:
        if position_ids is None and input_ids is not None:
            padding_id = self.first_position - 1
            is_token = input_ids != padding_id
            counts = is_token.long().cumsum(dim=1)  # ONNX cannot sum booleans
            if tokens.is_packed:
                # Each sequence of a packed row counts for itself.
                counts_before = nn.functional.pad(counts[0], (1, 0)).index_select(0, tokens.cu_seq_lens[:-1])
                counts = counts - tokens.of_tokens(counts_before)
            position_ids = counts * is_token + padding_id
        return super()._positions(tokens, input_ids, position_ids, device)


class RobertaLMHead(PredictionHead):
    """The MLM head: always erf GELU."""

    def __init__(self, config: HfeRobertaConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self._add_decoder(config, config.hidden_size)

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, D)`."""
        return self.layer_norm(nn.functional.gelu(self.dense(hidden_states)))


class HfeRobertaPreTrainedModel(EncoderPreTrainedModel):
    """Names of the RoBERTa models."""

    config_class = HfeRobertaConfig
    base_model_prefix = "roberta"
    mlm_head_name = "lm_head"
    pretraining_heads = (
        r"(roberta\.)?pooler\.dense\.(weight|bias)",
        r"lm_head\.(bias|(dense|layer_norm|decoder)\.(weight|bias))",
    )
    _no_split_modules = ["RobertaEmbeddings", "EncoderLayer"]

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.roberta = HfeRobertaModel(self.config, add_pooling_layer)


class HfeRobertaModel(EncoderModel, HfeRobertaPreTrainedModel):
    """RoBERTa without a head."""

    def __init__(self, config: HfeRobertaConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = RobertaEmbeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    def longest_row(self) -> int:
        """Return the length of the longest sequence: the first positions are those of padding."""
        return self.config.max_position_embeddings - self.embeddings.first_position


class HfeRobertaForMaskedLM(EncoderForMaskedLM, HfeRobertaPreTrainedModel):
    """RoBERTa with the MLM head, its only pre-training head."""

    _tied_weights_keys = {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }

    def _add_head(self) -> None:
        self.lm_head = RobertaLMHead(self.config)


class HfeRobertaForSequenceClassification(EncoderForSequenceClassification, HfeRobertaPreTrainedModel):
    """RoBERTa for labels or numbers of whole sequences."""

    has_pooler = False

    def _add_head(self) -> None:
        self.classifier = ClassificationHead(self.config, torch.tanh)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_labels)`."""
        return self.classifier(outputs.first_tokens)


class HfeRobertaForTokenClassification(EncoderForTokenClassification, HfeRobertaPreTrainedModel):
    """RoBERTa for labels of tokens."""


class HfeRobertaForQuestionAnswering(EncoderForQuestionAnswering, HfeRobertaPreTrainedModel):
    """RoBERTa for answers in a text."""


class HfeRobertaForMultipleChoice(EncoderForMultipleChoice, HfeRobertaPreTrainedModel):
    """RoBERTa for the best of several continuations."""
