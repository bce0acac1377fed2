"""ALBERT (Lan et al. 2019, https://arxiv.org/abs/1909.11942).

Differs from BERT in: factorised embeddings, layers shared across depth, a pooler without a module of its own, and
sentence order instead of next sentence as the pair objective.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_albert import LAYER_PARTS, HfeAlbertConfig
from .encoder_attention import EncoderSelfAttention
from .encoder_blocks import EncoderEmbeddings, LayerStack, PredictionHead, activation, in_chunks
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForPreTraining,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
    EncoderInputs,
    LogitsOnRequest,
)
from .encoder_kernels import EncoderDropout, project
from .encoder_losses import ObjectiveSums
from .encoder_models import EncoderModel, EncoderPreTrainedModel
from .encoder_tokens import FlatTokens


@dataclass
class HfeAlbertForPreTrainingOutput(LogitsOnRequest, ModelOutput):
    """Output of ALBERT's pre-training head: as `HfeForPreTrainingOutput`, with transformers' name for the pair scores.

    Args:
        sop_logits (`torch.Tensor` of shape `(S, 2)`): scores of "in order" and "swapped".
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    sop_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    mlm_loss: torch.Tensor | None = None
    pair_loss: torch.Tensor | None = None
    mlm: ObjectiveSums | None = None
    pair: ObjectiveSums | None = None


class AlbertAttention(EncoderSelfAttention):
    """Self-attention with its projection, residual and LayerNorm in one module."""

    def __init__(self, config: HfeAlbertConfig):
        super().__init__(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.output_dropout = EncoderDropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(N, D)` -> `(N, D)`, and the weights `(S, A, L, L)` if asked for."""
        context, weights = super().forward(hidden_states, tokens, output_attentions)
        return self.LayerNorm(self.output_dropout(project(self.dense, context), hidden_states)), weights


class AlbertLayer(GradientCheckpointingLayer):
    """A layer of BERT under ALBERT's parameter names, or some parts of it.

    No dropout after the feed-forward part, as in transformers.
    """

    def __init__(self, config: HfeAlbertConfig, parts: Sequence[str] = LAYER_PARTS):
        super().__init__()
        self.parts = parts
        self.chunk_size = config.chunk_size_feed_forward
        if "attention" in parts:
            self.attention = AlbertAttention(config)
        if "feed_forward" in parts:
            self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
            self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
            self.activation = activation(config.hidden_act)

    def forward(
        self,
        hidden_states: torch.Tensor,
        tokens: FlatTokens,
        output_attentions: bool = False,
        shared: "AlbertLayer | None" = None,
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`; `shared` has the part that this layer lacks."""
        attending, feeding = (self if part in self.parts else shared for part in LAYER_PARTS)
        hidden_states, _ = attending.attention(hidden_states, tokens, output_attentions)
        return feeding.feed_forward(hidden_states)

    def feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""

        def widen(states: torch.Tensor) -> torch.Tensor:
            return project(self.ffn_output, project(self.ffn, states), self.activation)

        return self.full_layer_layer_norm(in_chunks(widen, hidden_states, self.chunk_size) + hidden_states)


class AlbertLayerGroup(nn.Module):
    """Holds the layers of a group under transformers' name."""

    def __init__(self, config: HfeAlbertConfig):
        super().__init__()
        parts = [part for part in LAYER_PARTS if part != config.shared_between_groups]
        self.albert_layers = nn.ModuleList([AlbertLayer(config, parts) for _ in range(config.inner_group_num)])


class AlbertEncoder(LayerStack):
    """Projection from the embedding width, then `num_hidden_layers` passes through the groups, each group in turn."""

    def __init__(self, config: HfeAlbertConfig):
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList([AlbertLayerGroup(config) for _ in range(config.num_hidden_groups)])
        self.num_hidden_layers, self.shared_parts = config.num_hidden_layers, None
        if config.shared_between_groups is not None:  # the paper's section 3.1, table 4
            # Once, outside of the groups: each parameter has one name, and FSDP, which gathers a layer's parameters
            # when the layer runs, gathers these with the whole model.
            shared = [AlbertLayer(config, [config.shared_between_groups]) for _ in range(config.inner_group_num)]
            self.shared_parts = nn.ModuleList(shared)

    def forward(self, hidden_states: torch.Tensor, tokens: FlatTokens, *flags: bool) -> torch.Tensor:
        """Project embeddings and run the layers, `(N, E)` -> `(N, D)`; `flags` as in `LayerStack`."""
        return super().forward(self.embedding_hidden_mapping_in(hidden_states), tokens, *flags)

    def layers(self) -> list[Callable[..., torch.Tensor]]:
        """Return the layers of the group that each depth uses, with the shared part of each."""
        depth, groups = self.num_hidden_layers, self.albert_layer_groups
        # Depth i uses group floor(i * groups / depth), in the floating-point form of the original modeling.py.
        used = [groups[int(i / (depth / len(groups)))] for i in range(depth)]
        layers = [layer for group in used for layer in group.albert_layers]
        if self.shared_parts is None:
            return layers
        shared = [part for _ in used for part in self.shared_parts]
        return [partial(layer, shared=part) for layer, part in zip(layers, shared, strict=True)]


# --- heads ---


class AlbertMLMHead(PredictionHead):
    """The MLM head, in the embedding width."""

    def __init__(self, config: HfeAlbertConfig):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self._add_decoder(config, config.embedding_size)
        self.activation = activation(config.hidden_act)

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, E)`."""
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class AlbertSOPHead(nn.Module):
    """Dropout and projection of the pooled output to "in order" and "swapped".

    As wide as `num_labels`, as in transformers: 2 unless the configuration says otherwise.
    """

    def __init__(self, config: HfeAlbertConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.head_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, num_labels)`."""
        return self.classifier(self.dropout(pooled))


class HfeAlbertPreTrainedModel(EncoderPreTrainedModel):
    """Names of the ALBERT models."""

    config_class = HfeAlbertConfig
    base_model_prefix = "albert"
    mlm_head_name = "predictions"
    pair_head_name = "sop_classifier"
    pretraining_heads = (
        r"(albert\.)?pooler\.(weight|bias)",
        r"predictions\.(bias|(LayerNorm|dense|decoder)\.(weight|bias))",
        r"sop_classifier\.classifier\.(weight|bias)",
    )
    _no_split_modules = ["EncoderEmbeddings", "AlbertLayer"]

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.albert = HfeAlbertModel(self.config, add_pooling_layer)


class HfeAlbertModel(EncoderModel, HfeAlbertPreTrainedModel):
    """ALBERT without a head."""

    def __init__(self, config: HfeAlbertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = EncoderEmbeddings(config, config.embedding_size)
        self.encoder = AlbertEncoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self.post_init()

    def pool(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, D)`."""
        return self.pooler(first_tokens).tanh()


TIED_DECODER = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}


class HfeAlbertForPreTraining(EncoderForPreTraining, HfeAlbertPreTrainedModel):
    """ALBERT with the heads it is pre-trained with: masked tokens and sentence order."""

    _tied_weights_keys = TIED_DECODER
    loss_terms = {"mlm": "labels", "pair": "sentence_order_label"}

    def _add_head(self) -> None:
        self.predictions = AlbertMLMHead(self.config)
        self.sop_classifier = AlbertSOPHead(self.config)

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        sentence_order_label: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> HfeAlbertForPreTrainingOutput:
        r"""Predict masked tokens and whether two segments are in order.

        Args:
            labels, num_items_in_batch, return_logits (*optional*): as in `EncoderForMaskedLM`.
            sentence_order_label (`torch.LongTensor` of shape `(B,)`, *optional*): 0 = in order, 1 = swapped.
            kwargs: as in `EncoderForMaskedLM`.
        """
        outputs = dict(self.pretrain(labels, sentence_order_label, num_items_in_batch, return_logits, **kwargs))
        return HfeAlbertForPreTrainingOutput(sop_logits=outputs.pop("seq_relationship_logits"), **outputs)


class HfeAlbertForMaskedLM(EncoderForMaskedLM, HfeAlbertPreTrainedModel):
    """ALBERT with the MLM head alone."""

    _tied_weights_keys = TIED_DECODER

    def _add_head(self) -> None:
        self.predictions = AlbertMLMHead(self.config)


class HfeAlbertForSequenceClassification(EncoderForSequenceClassification, HfeAlbertPreTrainedModel):
    """ALBERT for labels or numbers of whole sequences."""


class HfeAlbertForTokenClassification(EncoderForTokenClassification, HfeAlbertPreTrainedModel):
    """ALBERT for labels of tokens."""


class HfeAlbertForQuestionAnswering(EncoderForQuestionAnswering, HfeAlbertPreTrainedModel):
    """ALBERT for answers in a text."""


class HfeAlbertForMultipleChoice(EncoderForMultipleChoice, HfeAlbertPreTrainedModel):
    """ALBERT for the best of several continuations."""
