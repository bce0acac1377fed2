"""DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108).

Differs from BERT in: no token types, no pooler, no dropout after the projection of attention, an MLM head whose parts
are the model's own, a classifier of its own on the first token.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_distilbert import TYPES, HfeDistilBertConfig
from .encoder_attention import EncoderSelfAttention
from .encoder_blocks import (
    EncoderEmbeddings,
    JoinedHead,
    LayerStack,
    SinusoidalEmbedding,
    activation,
    in_chunks,
)
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
)
from .encoder_kernels import EncoderDropout, project
from .encoder_models import EncoderModel, EncoderPreTrainedModel, FlatEncoderOutput, check_ids
from .encoder_tokens import FlatTokens


# Parts of the names of BERT's weights -> of the same weights here, in order.
NAMES_IN_BERT = {
    r"^bert\.embeddings\.": "distilbert.embeddings.",
    r"^bert\.encoder\.": "distilbert.transformer.",
    r"\.self\.(q)uery\.|\.self\.(k)ey\.|\.self\.(v)alue\.": r".\1\2\3_lin.",
    r"\.attention\.output\.dense\.": ".attention.out_lin.",
    r"\.attention\.output\.LayerNorm\.": ".sa_layer_norm.",
    r"\.intermediate\.dense\.": ".ffn.lin1.",
    r"\.output\.dense\.": ".ffn.lin2.",
    r"\.output\.LayerNorm\.": ".output_layer_norm.",
    r"^cls\.predictions\.transform\.dense\.": "vocab_transform.",
    r"^cls\.predictions\.transform\.LayerNorm\.": "vocab_layer_norm.",
    r"^cls\.predictions\.decoder\.": "vocab_projector.",
}
NO_TYPES = (
    "DistilBERT has no token types: leave them out (a tokenizer with model_input_names=['input_ids', "
    "'attention_mask'] makes none)"
)
ONLY_IN_BERT = re.compile(r"bert\.pooler\..*|cls\.seq_relationship\..*|cls\.predictions\.bias")


class DistilBertEmbeddings(EncoderEmbeddings):
    """Embeddings without token types."""

    has_token_types = False

    def __init__(self, config: HfeDistilBertConfig):
        super().__init__(config, config.dim)
        if config.sinusoidal_pos_embds:
            self.position_embeddings = SinusoidalEmbedding(config.max_position_embeddings, config.dim)


class DistilBertAttention(EncoderSelfAttention):
    """Self-attention and its projection, without dropout after it."""

    projections = ("q_lin", "k_lin", "v_lin")

    def __init__(self, config: HfeDistilBertConfig):
        super().__init__(config)
        self.out_lin = nn.Linear(config.dim, config.dim)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(N, D)` -> `(N, D)`, and the weights `(S, A, L, L)` if asked for."""
        context, weights = super().forward(hidden_states, tokens, output_attentions)
        return project(self.out_lin, context), weights


class DistilBertFeedForward(nn.Module):
    """The feed-forward part and the residual."""

    def __init__(self, config: HfeDistilBertConfig):
        super().__init__()
        self.lin1 = nn.Linear(config.dim, config.hidden_dim)
        self.lin2 = nn.Linear(config.hidden_dim, config.dim)
        self.activation = activation(config.activation)
        self.dropout = EncoderDropout(config.dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        return self.dropout(project(self.lin2, project(self.lin1, hidden_states), self.activation), hidden_states)


class DistilBertLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each followed by residual and LayerNorm (post-norm)."""

    def __init__(self, config: HfeDistilBertConfig):
        super().__init__()
        self.chunk_size = config.chunk_size_feed_forward
        self.attention = DistilBertAttention(config)
        self.sa_layer_norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)
        self.ffn = DistilBertFeedForward(config)
        self.output_layer_norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool = False
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        attended, _ = self.attention(hidden_states, tokens, output_attentions)
        hidden_states = self.sa_layer_norm(attended + hidden_states)
        return in_chunks(lambda states: self.output_layer_norm(self.ffn(states)), hidden_states, self.chunk_size)


class DistilBertTransformer(LayerStack):
    """The layers."""

    def __init__(self, config: HfeDistilBertConfig):
        super().__init__()
        self.layer = nn.ModuleList([DistilBertLayer(config) for _ in range(config.n_layers)])


class HfeDistilBertPreTrainedModel(EncoderPreTrainedModel):
    """Names of the DistilBERT models."""

    config_class = HfeDistilBertConfig
    base_model_prefix = "distilbert"
    pretraining_heads = (r"vocab_(transform|layer_norm|projector)\.(weight|bias)",)
    _no_split_modules = ["DistilBertEmbeddings", "DistilBertLayer"]
    # BERT's tokenizer makes token types: Trainer drops the columns of a dataset that the signature does not name.
    inputs = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.distilbert = HfeDistilBertModel(self.config)

    @staticmethod
    def weights_of_bert(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights of a BERT with an MLM head under the names here, for a student of as many layers.

        The embedding of token type 0 is added to every position, so that the same sum is computed (the original's
        `extract_distilbert.py` leaves it out).
        """
        renamed = {}
        for name, value in weights.items():
            if not ONLY_IN_BERT.fullmatch(name):
                for pattern, name_here in NAMES_IN_BERT.items():
                    name = re.sub(pattern, name_here, name)
                renamed[name] = value
        types = renamed.pop("distilbert.embeddings.token_type_embeddings.weight")
        positions = "distilbert.embeddings.position_embeddings.weight"
        return renamed | {positions: renamed[positions] + types[0]}


class HfeDistilBertModel(EncoderModel, HfeDistilBertPreTrainedModel):
    """DistilBERT without a head."""

    pooler = None

    def __init__(self, config: HfeDistilBertConfig):
        super().__init__(config)
        self.embeddings = DistilBertEmbeddings(config)
        self.transformer = DistilBertTransformer(config)
        self.post_init()

    def run_layers(self, hidden_states: torch.Tensor, tokens: FlatTokens, *flags: bool) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        return self.transformer(hidden_states, tokens, *flags)

    def _check_inputs(
        self, input_ids: torch.Tensor | None, token_type_ids: torch.Tensor | None, *more_inputs: torch.Tensor | None
    ) -> None:
        check_ids("token_type_ids", token_type_ids, TYPES, "type_vocab_size", NO_TYPES)
        super()._check_inputs(input_ids, token_type_ids, *more_inputs)


# --- heads ---


class HfeDistilBertForMaskedLM(EncoderForMaskedLM, HfeDistilBertPreTrainedModel):
    """DistilBERT with the MLM head, its only pre-training head."""

    _tied_weights_keys = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}

    def _add_head(self) -> None:
        width = self.config.dim
        self.activation = activation(self.config.activation)
        self.vocab_transform = nn.Linear(width, width)
        self.vocab_layer_norm = nn.LayerNorm(width, eps=self.config.layer_norm_eps)
        self.vocab_projector = nn.Linear(width, self.config.vocab_size)

    @property
    def mlm_head(self) -> nn.Module:
        """Return the MLM head; `vocab_projector.weight` is the word embedding."""
        return JoinedHead(
            nn.Sequential(self.vocab_transform, self.activation, self.vocab_layer_norm), self.vocab_projector
        )


class DistilBertSequenceHead:
    """Dense, ReLU, dropout and projection of the first token."""

    has_pooler = False

    def _add_head(self) -> None:
        self.pre_classifier = nn.Linear(self.config.dim, self.config.dim)
        self.classifier = nn.Linear(self.config.dim, self.num_scores or self.config.num_labels)
        self.dropout = nn.Dropout(self.config.seq_classif_dropout)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_scores)`."""
        return self.classifier(self.dropout(self.pre_classifier(outputs.first_tokens).relu()))


class HfeDistilBertForSequenceClassification(
    DistilBertSequenceHead, EncoderForSequenceClassification, HfeDistilBertPreTrainedModel
):
    """DistilBERT for labels or numbers of whole sequences."""


class HfeDistilBertForTokenClassification(EncoderForTokenClassification, HfeDistilBertPreTrainedModel):
    """DistilBERT for labels of tokens."""


class HfeDistilBertForQuestionAnswering(EncoderForQuestionAnswering, HfeDistilBertPreTrainedModel):
    """DistilBERT for answers in a text."""

    def _add_head(self) -> None:
        super()._add_head()
        self.dropout = nn.Dropout(self.config.qa_dropout)

    def encode(self, *inputs: Any, **kwargs: Any) -> FlatEncoderOutput:
        """As in `EncoderHead`, with dropout before the head."""
        outputs = super().encode(*inputs, **kwargs)
        outputs.last_hidden_state = self.dropout(outputs.last_hidden_state)
        return outputs


class HfeDistilBertForMultipleChoice(DistilBertSequenceHead, EncoderForMultipleChoice, HfeDistilBertPreTrainedModel):
    """DistilBERT for the best of several continuations."""
