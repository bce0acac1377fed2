"""ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663).

Differs from BERT in: rotary positions, attention to a window in two of three layers, gated feed-forward parts,
LayerNorm before each part and after the last one, one dense layer before every classifier, a truncated normal
initialisation. Has no pooler and no token types.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_modernbert import TYPES, HfeModernBertConfig
from .encoder_blocks import JoinedHead, activation, embed_words, for_hooks, in_chunks, through_layers
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
)
from .encoder_kernels import EncoderDropout, project
from .encoder_models import EncoderModel, EncoderPreTrainedModel, FlatEncoderOutput, check_ids
from .encoder_rotary import GatedActivation, RotarySelfAttention
from .encoder_tokens import FlatTokens, HiddenStateRecorder


NO_TYPES = (
    "ModernBERT has no token types: leave them out (a tokenizer with model_input_names=['input_ids', "
    "'attention_mask'] makes none)"
)
CUTOFF = 3  # standard deviations, where the configuration says None


def layer_norm(config: HfeModernBertConfig) -> nn.LayerNorm:
    """Return a LayerNorm as the configuration says."""
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)


class ModernBertEmbeddings(nn.Module):
    """Word embeddings, LayerNorm and dropout; positions are in the attention."""

    first_position = 0

    def __init__(self, config: HfeModernBertConfig):
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.norm = layer_norm(config)
        self.drop = EncoderDropout(config.embedding_dropout)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        tokens: FlatTokens,
    ) -> torch.Tensor:
        """Border tensors `(B, T)` (`inputs_embeds` `(B, T, D)`) -> flat embeddings `(N, D)`; keeps the positions."""
        if position_ids is not None:
            tokens.derived["positions"] = tokens.flatten_ids(position_ids)
        embeddings = embed_words(self.tok_embeddings, tokens, input_ids, inputs_embeds)
        return for_hooks(self, tokens, self.drop(self.norm(embeddings)))


class ModernBertMLP(nn.Module):
    """The gated feed-forward part; its first projection is kept for the backward pass, what follows is recomputed."""

    def __init__(self, config: HfeModernBertConfig):
        super().__init__()
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.Wi.fused_parts = 2
        self.gated = GatedActivation(activation(config.hidden_activation))
        self.drop = EncoderDropout(config.mlp_dropout)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.Wo.initial_std = config.residual_range

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        inner = project(self.Wi, hidden_states)
        if self.training and self.drop.p > 0:
            return project(self.Wo, self.drop(self.gated(inner)))
        return project(self.Wo, inner, self.gated)


class ModernBertLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each after a LayerNorm (pre-norm); the first one's input is normalised already."""

    def __init__(self, config: HfeModernBertConfig, index: int):
        super().__init__()
        self.chunk_size = config.chunk_size_feed_forward
        self.attn_norm = layer_norm(config) if index else nn.Identity()
        self.attn = RotarySelfAttention(config, config.layer_types[index])
        self.mlp_norm = layer_norm(config)
        self.mlp = ModernBertMLP(config)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool = False
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        attended, _ = self.attn(self.attn_norm(hidden_states), tokens, output_attentions)
        hidden_states = hidden_states + attended
        return in_chunks(lambda states: states + self.mlp(self.mlp_norm(states)), hidden_states, self.chunk_size)


class HfeModernBertPreTrainedModel(EncoderPreTrainedModel):
    """Names and initialisation of the ModernBERT models."""

    config_class = HfeModernBertConfig
    base_model_prefix = "model"
    pretraining_heads = (r"head\.(dense|norm)\.(weight|bias)", r"decoder\.(weight|bias)")
    _input_embed_layer = "tok_embeddings"
    _no_split_modules = ["ModernBertEmbeddings", "ModernBertLayer"]
    head_inputs = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.model = HfeModernBertModel(self.config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw as FlexBERT's `full_megatron` does: narrower for what is added to the residual stream, and in heads.

        A module says so itself, by `initial_std`: transformers asks about modules with parameters of their own only.
        """
        if not isinstance(module, nn.Linear | nn.Embedding):
            super()._init_weights(module)
            return
        std = getattr(module, "initial_std", self.config.initializer_range)
        factor = self.config.initializer_cutoff_factor
        cutoff = (CUTOFF if factor is None else factor) * std
        init.trunc_normal_(module.weight, mean=0.0, std=std, a=-cutoff, b=cutoff)
        if getattr(module, "bias", None) is not None:
            init.zeros_(module.bias)


class HfeModernBertModel(EncoderModel, HfeModernBertPreTrainedModel):
    """ModernBERT without a head."""

    pooler = None

    def __init__(self, config: HfeModernBertConfig):
        super().__init__(config)
        self.embeddings = ModernBertEmbeddings(config)
        self.layers = nn.ModuleList([ModernBertLayer(config, i) for i in range(config.num_hidden_layers)])
        self.final_norm = layer_norm(config)
        self.recorder = HiddenStateRecorder()
        self.post_init()

    def run_layers(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool, output_hidden_states: bool
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        *layers, last = self.layers

        def normed(*inputs: object) -> torch.Tensor:  # the last hidden state is recorded after it
            return self.final_norm(last(*inputs))

        recorder = self.recorder if output_hidden_states else None
        return through_layers([*layers, normed], hidden_states, tokens, output_attentions, recorder)

    def _check_inputs(
        self, input_ids: torch.Tensor | None, token_type_ids: torch.Tensor | None, *more_inputs: torch.Tensor | None
    ) -> None:
        check_ids("token_type_ids", token_type_ids, TYPES, "type_vocab_size", NO_TYPES)
        super()._check_inputs(input_ids, token_type_ids, *more_inputs)


# --- heads ---


class ModernBertPredictionHead(nn.Module):
    """Dense layer, activation and LayerNorm, before the vocabulary and before every classifier."""

    def __init__(self, config: HfeModernBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.classifier_bias)
        self.dense.initial_std = config.residual_range
        self.act = activation(config.classifier_activation)
        self.norm = layer_norm(config)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, D)`."""
        return self.norm(self.act(self.dense(hidden_states)))


class HfeModernBertForMaskedLM(EncoderForMaskedLM, HfeModernBertPreTrainedModel):
    """ModernBERT with the MLM head, its only pre-training head."""

    _tied_weights_keys = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}

    def _add_head(self) -> None:
        self.head = ModernBertPredictionHead(self.config)
        self.decoder = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=self.config.decoder_bias)
        self.decoder.initial_std = self.config.residual_range  # where it is not the word embedding

    @property
    def mlm_head(self) -> nn.Module:
        """Return the MLM head; `decoder.weight` is the word embedding."""
        return JoinedHead(self.head, self.decoder)


def mean_of_each_sequence(tokens: FlatTokens, flat: torch.Tensor) -> torch.Tensor:
    """Return the mean of the real tokens of every sequence, zeros for an empty one: `(N, D)` -> `(S, D)`."""
    if tokens.cu_seq_lens is None:
        rows = flat.view(tokens.batch_size, tokens.row_length, -1)
        if tokens.attention_mask is None or tokens.attention_mask.dim() != 2:
            return rows.mean(dim=1)
        is_real = tokens.attention_mask[..., None].to(rows.dtype)
        return (rows * is_real).sum(dim=1) / is_real.sum(dim=1).clamp(min=1)
    lengths = tokens.cu_seq_lens.diff()
    sequences = tokens.of_tokens(torch.arange(len(lengths), device=flat.device))
    sums = flat.new_zeros(len(lengths), flat.shape[1]).index_add(0, sequences, flat)
    return sums / lengths.clamp(min=1)[:, None]


class ModernBertClassifier:
    """The modules of the classifiers."""

    has_pooler = False

    def _add_head(self) -> None:
        self.head = ModernBertPredictionHead(self.config)
        self.drop = nn.Dropout(self.config.classifier_dropout)
        self.classifier = nn.Linear(self.config.hidden_size, self.num_scores or self.config.num_labels)
        self.classifier.initial_std = self.config.hidden_size**-0.5

    def scores(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, num_scores)`."""
        return self.classifier(self.drop(self.head(hidden_states)))

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_scores)`, of the first token or of the mean of all."""
        if self.config.classifier_pooling == "cls":
            return self.scores(outputs.first_tokens)
        return self.scores(mean_of_each_sequence(outputs.tokens, outputs.last_hidden_state))


class HfeModernBertForSequenceClassification(
    ModernBertClassifier, EncoderForSequenceClassification, HfeModernBertPreTrainedModel
):
    """ModernBERT for labels or numbers of whole sequences."""


class HfeModernBertForTokenClassification(
    ModernBertClassifier, EncoderForTokenClassification, HfeModernBertPreTrainedModel
):
    """ModernBERT for labels of tokens."""


class HfeModernBertForQuestionAnswering(
    ModernBertClassifier, EncoderForQuestionAnswering, HfeModernBertPreTrainedModel
):
    """ModernBERT for answers in a text."""

    num_scores = 2


class HfeModernBertForMultipleChoice(ModernBertClassifier, EncoderForMultipleChoice, HfeModernBertPreTrainedModel):
    """ModernBERT for the best of several continuations."""
