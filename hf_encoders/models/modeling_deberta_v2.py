"""DeBERTa v3 (He et al. 2021, https://arxiv.org/abs/2111.09543); in brackets sections of DeBERTa's own paper.

The paper of the architecture is https://arxiv.org/abs/2006.03654. Differs from BERT in: attention by content and
distance [3.1], with one table of distances for all layers; no positions and no token types among the embeddings; a
pooler in the heads for sequences; an optional decoder of masked tokens that knows their positions [3.2]; a head with
one score per token, for pre-training. Leaves out: v2's convolution, embeddings of another width.
"""

from typing import Any

import torch
from torch import nn
from transformers import initialization as init

from .configuration_deberta_v2 import HfeDebertaV2Config
from .encoder_blocks import (
    EncoderEmbeddings,
    EncoderLayer,
    JoinedHead,
    LayerStack,
    PredictionHead,
    activation,
    in_chunks,
    through_layers,
)
from .encoder_detection import EncoderForTokenDetection
from .encoder_disentangled import DisentangledSelfAttention
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
)
from .encoder_models import EncoderModel, EncoderPreTrainedModel, FlatEncoderOutput
from .encoder_tokens import FlatTokens


# --- layers ---


class DebertaV2Embeddings(EncoderEmbeddings):
    """Word embeddings; positions and token types where the configuration has them."""

    def __init__(self, config: HfeDebertaV2Config, for_mask_decoder: bool):
        super().__init__(config, config.hidden_size)
        if for_mask_decoder:  # not added to the words
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)


class DebertaV2Layer(EncoderLayer):
    """A layer whose attention reads the table of distances; with `queries` a layer of the decoder."""

    def __init__(self, config: HfeDebertaV2Config):
        super().__init__(config, DisentangledSelfAttention)

    def forward(
        self,
        hidden_states: torch.Tensor,
        tokens: FlatTokens,
        output_attentions: bool = False,
        table: torch.Tensor | None = None,
        queries: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`; with `queries` `(P, D)` at `places` `(P,)` of the tokens -> `(P, D)`."""
        if queries is None:
            return super().forward(hidden_states, tokens, output_attentions, table)
        context = self.attention.self.attend_from(queries, places, hidden_states, tokens, table)
        hidden_states = self.attention.output(context, queries)
        return in_chunks(lambda states: self.output(self.intermediate(states), states), hidden_states, self.chunk_size)


class DebertaV2Encoder(LayerStack):
    """The layers, and the table of distances that they share.

    Args:
        leaves_last (`bool`): Whether the last layer is left to the decoder of masked tokens.
    """

    def __init__(self, config: HfeDebertaV2Config, leaves_last: bool):
        super().__init__()
        self.leaves_last = leaves_last
        self.layer = nn.ModuleList([DebertaV2Layer(config) for _ in range(config.num_hidden_layers)])
        self.rel_embeddings = None
        if config.relative_attention:
            self.rel_embeddings = nn.Embedding(2 * config.distance_span, config.hidden_size)
        has_norm = config.norm_rel_ebd == "layer_norm"
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if has_norm else None

    def distance_table(self, device: torch.device) -> torch.Tensor | None:
        """Return the table of distances, normalised, `(rows, D)`."""
        if self.rel_embeddings is None:
            return None
        # A call of the module, not a read of its weight: offloaded weights are there during the call only.
        table = self.rel_embeddings(torch.arange(self.rel_embeddings.num_embeddings, device=device))
        return table if self.LayerNorm is None else self.LayerNorm(table)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool, output_hidden_states: bool
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        table = self.distance_table(hidden_states.device)
        layers = list(self.layer)[: -1 if self.leaves_last else None]
        layers = [lambda *inputs, layer=layer: layer(*inputs, table) for layer in layers]
        recorder = self.recorder if output_hidden_states else None
        return through_layers(layers, hidden_states, tokens, output_attentions, recorder)


class HfeDebertaV2PreTrainedModel(EncoderPreTrainedModel):
    """Names and initialisation of the DeBERTa models."""

    config_class = HfeDebertaV2Config
    base_model_prefix = "deberta"
    _supports_flash_attn = False
    _supports_flex_attn = False
    _supports_attention_backend = False
    _can_set_attn_implementation_cached_value = True  # transformers looks for its own interface in this file
    _can_record_outputs = {**EncoderPreTrainedModel._can_record_outputs, "attentions": DisentangledSelfAttention}
    # Published discriminators have the positions of the decoder, which is their generator's.
    _keys_to_ignore_on_load_unexpected = [r"position_embeddings", r"embeddings\.position_ids$"]
    pretraining_heads = (
        r"cls\.predictions\.(bias|(decoder|transform\.(dense|LayerNorm))\.(weight|bias))",
        r"lm_predictions\.lm_head\.(bias|(dense|LayerNorm)\.(weight|bias))",
        r"mask_predictions\.(dense|LayerNorm|classifier)\.(weight|bias)",
    )
    _no_split_modules = ["DebertaV2Embeddings", "DebertaV2Layer"]

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.deberta = HfeDebertaV2Model(self.config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, DebertaV2LMHead):
            init.zeros_(module.bias)


class HfeDebertaV2Model(EncoderModel, HfeDebertaV2PreTrainedModel):
    """DeBERTa without a head.

    Args:
        for_mask_decoder (`bool`): Whether `decode` follows, which the last layer is left to; that one's states and
            weights are not recorded.
    """

    pooler = None

    def __init__(self, config: HfeDebertaV2Config, for_mask_decoder: bool = False):
        super().__init__(config)
        self.embeddings = DebertaV2Embeddings(config, for_mask_decoder)
        self.encoder = DebertaV2Encoder(config, for_mask_decoder)
        self.post_init()

    def embed(self, tokens: FlatTokens, *inputs: torch.Tensor | None) -> torch.Tensor:
        """Border tensors, `(B, T)` and `inputs_embeds` `(B, T, D)` -> flat embeddings `(N, D)`; keeps positions."""
        if (position_ids := inputs[2]) is not None:
            tokens.derived["positions"] = tokens.flatten_ids(position_ids)
        return super().embed(tokens, *inputs)

    def decode(self, hidden_states: torch.Tensor, tokens: FlatTokens, places: torch.Tensor | None) -> torch.Tensor:
        """Return states at `places`, `(P,)`, or all, that know their positions: `(N, D)` -> `(P, D)` [3.2].

        The last layer runs twice, from queries that begin as the states of the layer before it and the position;
        keys and values are those states. `EnhancedMaskDecoder` in `DeBERTa/apps/models/masked_language_model.py` of
        microsoft/DeBERTa.
        """
        table, last = self.encoder.distance_table(hidden_states.device), self.encoder.layer[-1]
        positions = tokens.derived.get("positions")
        positions = tokens.columns(hidden_states.device) if positions is None else positions
        queries = hidden_states
        if places is not None:
            positions, queries = positions.index_select(0, places), queries.index_select(0, places)
        queries = queries + self.embeddings.position_embeddings(positions)
        for _ in range(2):
            queries = last(hidden_states, tokens, False, table, queries, places)
        return queries

    def _check_inputs(
        self, input_ids: torch.Tensor | None, token_type_ids: torch.Tensor | None, *more_inputs: torch.Tensor | None
    ) -> None:
        # The published tokenizers make token types, which the published models do not read.
        super()._check_inputs(input_ids, token_type_ids if self.config.type_vocab_size else None, *more_inputs)


# --- heads of pre-training ---


class DebertaV2LMTransform(nn.Module):
    """Dense, activation and LayerNorm in front of the vocabulary projection."""

    def __init__(self, config: HfeDebertaV2Config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, D)`."""
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class DebertaV2LMHead(DebertaV2LMTransform):
    """The published masked-LM head: what is before the word embeddings, and the bias after them."""

    def __init__(self, config: HfeDebertaV2Config):
        super().__init__(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class WordProjection(nn.Module):
    """The projection to the vocabulary by weights that are other modules' parameters."""

    def __init__(self, words: torch.Tensor, bias: torch.Tensor):
        super().__init__()
        self.parts = words, bias

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, V)`."""
        return nn.functional.linear(hidden_states, *self.parts)


class LegacyLMHead(PredictionHead):
    """The masked-LM head of v1, under the names of BERT's."""

    def __init__(self, config: HfeDebertaV2Config):
        super().__init__()
        self.transform = DebertaV2LMTransform(config)
        self._add_decoder(config, config.hidden_size)


class HfeDebertaV2ForMaskedLM(EncoderForMaskedLM, HfeDebertaV2PreTrainedModel):
    """DeBERTa with the masked-LM head, behind the decoder if the configuration has it: the generator."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    _keys_to_ignore_on_load_unexpected = [
        *HfeDebertaV2PreTrainedModel._keys_to_ignore_on_load_unexpected,
        r"mask_predictions.*",  # as transformers' class
    ]

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.deberta = HfeDebertaV2Model(self.config, for_mask_decoder=self.config.enhanced_mask_decoder)

    def _add_head(self) -> None:
        if self.config.legacy:
            self.cls = nn.ModuleDict({"predictions": LegacyLMHead(self.config)})
            return
        self._tied_weights_keys = {}  # the projection has no name of its own
        self.lm_predictions = nn.ModuleDict({"lm_head": DebertaV2LMHead(self.config)})

    @property
    def mlm_head(self) -> nn.Module:
        """Return the masked-LM head."""
        if self.config.legacy:
            return self.cls.predictions
        head = self.lm_predictions.lm_head
        return JoinedHead(head, WordProjection(self.get_input_embeddings().weight, head.bias))

    def get_output_embeddings(self) -> nn.Linear:
        """Return the projection to the vocabulary; the published head's is its bias and the word embeddings."""
        if self.config.legacy:
            return super().get_output_embeddings()
        words, projection = self.get_input_embeddings().weight, nn.Linear(1, 1, device="meta")
        projection.out_features, projection.in_features = words.shape
        del projection.weight, projection.bias
        # Not as parameters: a functional call has tensors in their places.
        vars(projection).update(weight=words, bias=self.lm_predictions.lm_head.bias)
        return projection

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the projection to the vocabulary; of the published head its bias."""
        if self.config.legacy:
            super().set_output_embeddings(new_embeddings)
        else:
            self.lm_predictions.lm_head.bias = new_embeddings.bias

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as in transformers, and the bias of the published head too."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        size = embeddings.weight.shape[0]
        if not self.config.legacy and len(bias := self.lm_predictions.lm_head.bias) != size:
            added = bias.detach().mean().expand(max(0, size - len(bias)))  # as transformers for other heads
            self.lm_predictions.lm_head.bias = nn.Parameter(torch.cat([bias.detach()[:size], added]))
        return embeddings

    def states_at(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return as in the base class, by the decoder if there is one."""
        if not self.config.enhanced_mask_decoder:
            return super().states_at(hidden_states, tokens, places)
        return self.deberta.decode(hidden_states, tokens, places)


class DebertaV2MaskPredictions(nn.Module):
    """LayerNorm of a token's state and its sequence's first one, dense layer, activation and one score.

    `ReplacedTokenDetectionModel` in `DeBERTa/apps/models/replaced_token_detection_model.py` of microsoft/DeBERTa.
    """

    def __init__(self, config: HfeDebertaV2Config):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_states: torch.Tensor, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(N, D)`, and the first token of each one's sequence, `(N, D)` -> `(N,)`."""
        hidden_states = self.dense(self.LayerNorm(first_tokens + hidden_states))
        return self.classifier(self.activation(hidden_states)).squeeze(-1)


class HfeDebertaV2ForPreTraining(EncoderForTokenDetection, HfeDebertaV2PreTrainedModel):
    """DeBERTa with the head that it is pre-trained with, the discriminator: was this token replaced?"""

    def _add_head(self) -> None:
        self.mask_predictions = DebertaV2MaskPredictions(self.config)

    def detection_scores(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return one score per token, `(N,)`."""
        return self.mask_predictions(outputs.last_hidden_state, outputs.tokens.of_tokens(outputs.first_tokens))


# --- heads for fine-tuning ---


class DebertaV2Pooler(nn.Module):
    """Dropout, projection and activation of a sequence's first token."""

    def __init__(self, config: HfeDebertaV2Config):
        super().__init__()
        self.dropout = nn.Dropout(config.pooler_dropout)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.pooler_hidden_act)

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, D)`."""
        return self.activation(self.dense(self.dropout(first_tokens)))


class DebertaV2SequenceHead:
    """The modules of classifiers of sequences."""

    has_pooler = False

    def _add_head(self) -> None:
        self.pooler = DebertaV2Pooler(self.config)
        super()._add_head()

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_scores)`."""
        return self.scores(self.pooler(outputs.first_tokens))


class HfeDebertaV2ForSequenceClassification(
    DebertaV2SequenceHead, EncoderForSequenceClassification, HfeDebertaV2PreTrainedModel
):
    """DeBERTa for labels or numbers of whole sequences."""


class HfeDebertaV2ForTokenClassification(EncoderForTokenClassification, HfeDebertaV2PreTrainedModel):
    """DeBERTa for labels of tokens."""

    def _add_head(self) -> None:
        super()._add_head()
        self.dropout = nn.Dropout(self.config.hidden_dropout_prob)


class HfeDebertaV2ForQuestionAnswering(EncoderForQuestionAnswering, HfeDebertaV2PreTrainedModel):
    """DeBERTa for answers in a text."""


class HfeDebertaV2ForMultipleChoice(DebertaV2SequenceHead, EncoderForMultipleChoice, HfeDebertaV2PreTrainedModel):
    """DeBERTa for the best of several continuations."""
