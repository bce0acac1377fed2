"""ALBERT (Lan et al. 2019, https://arxiv.org/abs/1909.11942).

Differs from BERT in: factorised embeddings, layers shared across depth, a pooler without a module of its own, and
sentence order instead of next sentence as the pair objective.
"""

from functools import partial

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_albert import LAYER_PARTS, HfeAlbertConfig
from .encoder_attention import EncoderSelfAttention
from .encoder_blocks import (
    EncoderEmbeddings,
    EncoderModel,
    EncoderPreTrainedModel,
    LayerStack,
    activation,
    in_chunks,
)
from .encoder_dropout import EncoderDropout
from .encoder_heads import HeadModel, MaskedLanguageModel, PreTrainingModel
from .encoder_matmul import project
from .encoder_outputs import HfeAlbertForPreTrainingOutput
from .encoder_tasks import ChoiceModel, QuestionAnswerer, SequenceClassifier, TokenClassifier
from .encoder_tokens import FlatTokens


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


class AlbertLayerParts(nn.Module):
    """Attention or feed-forward part of a layer, or both, each with the LayerNorm behind it.

    The names are transformers'; there is no dropout after the feed-forward part, as there.

    Args:
        config: an `HfeAlbertConfig`.
        parts (`list` of `str`): those to build, of `LAYER_PARTS`.
    """

    def __init__(self, config: HfeAlbertConfig, parts: list[str]):
        super().__init__()
        self.parts = parts
        self.chunk_size = config.chunk_size_feed_forward
        if "feed_forward" in parts:
            self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        if "attention" in parts:
            self.attention = AlbertAttention(config)
        if "feed_forward" in parts:
            self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
            self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
            self.activation = activation(config.hidden_act)

    def feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        return self.full_layer_layer_norm(in_chunks(self._widen, hidden_states, self.chunk_size) + hidden_states)

    def _widen(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return project(self.ffn_output, project(self.ffn, hidden_states), self.activation)


class AlbertLayer(AlbertLayerParts, GradientCheckpointingLayer):
    """A layer of BERT under ALBERT's parameter names, without the part that all groups share."""

    def __init__(self, config: HfeAlbertConfig):
        super().__init__(config, [part for part in LAYER_PARTS if part != config.shared_between_groups])

    def forward(
        self,
        hidden_states: torch.Tensor,
        tokens: FlatTokens,
        output_attentions: bool = False,
        shared: AlbertLayerParts | None = None,
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`, with the part of `shared` that the layer does not have."""
        attending = self if "attention" in self.parts else shared
        feeding = self if "feed_forward" in self.parts else shared
        hidden_states, _ = attending.attention(hidden_states, tokens, output_attentions)
        return feeding.feed_forward(hidden_states)


class AlbertLayerGroup(nn.Module):
    """Holds the layers of a group under transformers' name."""

    def __init__(self, config: HfeAlbertConfig):
        super().__init__()
        self.albert_layers = nn.ModuleList([AlbertLayer(config) for _ in range(config.inner_group_num)])


class AlbertEncoder(LayerStack):
    """Projection from the embedding width, then `num_hidden_layers` passes through the groups, each group in turn."""

    def __init__(self, config: HfeAlbertConfig):
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList([AlbertLayerGroup(config) for _ in range(config.num_hidden_groups)])
        self.num_hidden_layers = config.num_hidden_layers
        if config.shared_between_groups is not None:
            # Beside the groups and once, so that each parameter has one name and FSDP, which gathers a layer's own
            # parameters when the layer runs, has these at hand all the time.
            parts = [config.shared_between_groups]
            self.shared_parts = nn.ModuleList([AlbertLayerParts(config, parts) for _ in range(config.inner_group_num)])

    def forward(self, hidden_states: torch.Tensor, tokens: FlatTokens, **flags: bool) -> torch.Tensor:
        """Embeddings `(N, E)` -> `(N, D)`; `flags` as in `LayerStack.run`."""
        groups = self.albert_layer_groups
        # Depth i uses group floor(i * groups / depth), in the floating-point form of the original modeling.py.
        used = [groups[int(i / (self.num_hidden_layers / len(groups)))] for i in range(self.num_hidden_layers)]
        layers = [layer for group in used for layer in group.albert_layers]
        if hasattr(self, "shared_parts"):
            shared = [part for _ in used for part in self.shared_parts]
            layers = [partial(layer, shared=part) for layer, part in zip(layers, shared, strict=True)]
        return self.run(layers, self.embedding_hidden_mapping_in(hidden_states), tokens, **flags)


class AlbertMLMHead(nn.Module):
    """The MLM head, in the embedding width; `decoder.weight` is the word embedding and `decoder.bias` is `bias`."""

    def __init__(self, config: HfeAlbertConfig):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.activation = activation(config.hidden_act)

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, E)`."""
        return self.LayerNorm(self.activation(self.dense(hidden_states)))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, V)`."""
        return self.decoder(self.transform(hidden_states))


class AlbertSOPHead(nn.Module):
    """Dropout and projection of the pooled output to "in order" and "swapped".

    As wide as `num_labels`, as in transformers: 2 unless the configuration says otherwise.
    """

    def __init__(self, config: HfeAlbertConfig, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, num_labels)`."""
        return self.classifier(self.dropout(pooled))


class HfeAlbertPreTrainedModel(EncoderPreTrainedModel):
    """Names and initialisation of the ALBERT models."""

    config_class = HfeAlbertConfig
    base_model_prefix = "albert"
    pretraining_heads = (
        r"(albert\.)?pooler\.(weight|bias)",
        r"predictions\.(bias|(LayerNorm|dense|decoder)\.(weight|bias))",
        r"sop_classifier\.classifier\.(weight|bias)",
    )
    _no_split_modules = ["EncoderEmbeddings", "AlbertLayer"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, AlbertMLMHead):
            init.zeros_(module.bias)


class HfeAlbertModel(HfeAlbertPreTrainedModel, EncoderModel):
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


class HfeAlbertHeadModel(HfeAlbertPreTrainedModel, HeadModel):
    """An ALBERT with something on top."""

    encoder_class = HfeAlbertModel
    mlm_head_name = "predictions"

    @property
    def classifier_dropout(self) -> float:
        """Dropout probability before a task's classifier."""
        return self.config.classifier_dropout_prob


TIED_DECODER = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}


class HfeAlbertForPreTraining(HfeAlbertHeadModel, PreTrainingModel):
    """ALBERT with the heads it is pre-trained with: masked tokens and sentence order."""

    _tied_weights_keys = TIED_DECODER
    loss_terms = {"mlm": "labels", "pair": "sentence_order_label"}
    pair_label_name = "sentence_order_label"

    def __init__(self, config: HfeAlbertConfig):
        super().__init__(config)
        self.add_encoder(add_pooling_layer=True)
        self.predictions = AlbertMLMHead(config)
        self.sop_classifier = AlbertSOPHead(config, self.classifier_dropout)
        self.post_init()

    def score_pairs(self, pooled: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, 2)`."""
        return self.sop_classifier(pooled)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        sentence_order_label: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> HfeAlbertForPreTrainingOutput:
        r"""Predict masked tokens and whether two segments stand in order.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: as in `HfeAlbertModel`.
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): ids to predict, -100 elsewhere.
            sentence_order_label (`torch.LongTensor` of shape `(B,)`, *optional*): 0 = in order, 1 = swapped.
            num_items_in_batch (*optional*): predicted tokens in the whole batch, over accumulation steps and
                processes. `PreTrainingTrainer` also counts the pairs, and divides the sums in `mlm` and `pair` itself.
            return_logits (`bool`, *optional*): whether every token is projected to the vocabulary; None means yes,
                unless the model is training and has labels.
            kwargs: passed to the base model.
        """
        outputs = self.pretrain(
            attention_mask,
            labels,
            sentence_order_label,
            num_items_in_batch,
            return_logits,
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        named = {"sop_logits" if name == "seq_relationship_logits" else name: value for name, value in outputs.items()}
        return HfeAlbertForPreTrainingOutput(**named)


class HfeAlbertForMaskedLM(HfeAlbertHeadModel, MaskedLanguageModel):
    """ALBERT with the MLM head alone."""

    _tied_weights_keys = TIED_DECODER

    def __init__(self, config: HfeAlbertConfig):
        super().__init__(config)
        self.add_encoder(add_pooling_layer=False)
        self.predictions = AlbertMLMHead(config)
        self.post_init()


class HfeAlbertForSequenceClassification(HfeAlbertHeadModel, SequenceClassifier):
    """ALBERT for labels or numbers of whole sequences."""


class HfeAlbertForTokenClassification(HfeAlbertHeadModel, TokenClassifier):
    """ALBERT for labels of tokens."""


class HfeAlbertForQuestionAnswering(HfeAlbertHeadModel, QuestionAnswerer):
    """ALBERT for answers in a text."""


class HfeAlbertForMultipleChoice(HfeAlbertHeadModel, ChoiceModel):
    """ALBERT for the best of several continuations."""
