"""XLM (Lample and Conneau 2019, https://arxiv.org/abs/1901.07291).

Differs from BERT in: language embeddings, an MLM head that is the word embedding with a bias and nothing more,
LayerNorms in lists of their own, no pooler, hidden states of zero at padding, which is found by its id where there is
no mask. Leaves out: decoder use and its cache, `lengths`, adaptive softmax, the beam search of
`XLMForQuestionAnswering`.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_xlm import HfeXLMConfig
from .encoder_attention import EncoderSelfAttention
from .encoder_blocks import (
    SequenceSummary,
    SinusoidalEmbedding,
    activation,
    embed_words,
    in_chunks,
    through_layers,
)
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
)
from .encoder_kernels import EncoderDropout, padded_to, project
from .encoder_models import INPUTS, EncoderModel, EncoderPreTrainedModel, FlatEncoderOutput, check_ids
from .encoder_tokens import FlatTokens, HiddenStateRecorder


class XLMAttention(GradientCheckpointingLayer, EncoderSelfAttention):
    """Self-attention, its projection and the residual; the LayerNorm after it, in a list of the model, is given."""

    projections = ("q_lin", "k_lin", "v_lin")

    def __init__(self, config: HfeXLMConfig):
        super().__init__(config)
        self.out_lin = nn.Linear(config.emb_dim, config.emb_dim)
        self.output_dropout = EncoderDropout(config.dropout)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, norm: nn.LayerNorm, output_attentions: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(N, D)` -> `(N, D)`, and the weights `(S, A, L, L)` if asked for."""
        context, weights = super().forward(hidden_states, tokens, output_attentions)
        return norm(self.output_dropout(project(self.out_lin, context), hidden_states)), weights


class XLMFeedForward(GradientCheckpointingLayer):
    """The feed-forward part and the residual; the LayerNorm after it, in a list of the model, is given."""

    def __init__(self, config: HfeXLMConfig):
        super().__init__()
        self.chunk_size = config.chunk_size_feed_forward
        self.lin1 = nn.Linear(config.emb_dim, config.intermediate_size)
        self.lin2 = nn.Linear(config.intermediate_size, config.emb_dim)
        self.activation = activation(config.hidden_act)
        self.dropout = EncoderDropout(config.dropout)

    def forward(self, hidden_states: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""

        def feed_forward(states: torch.Tensor) -> torch.Tensor:
            widened = project(self.lin2, project(self.lin1, states), self.activation)
            return norm(self.dropout(widened, states))

        return in_chunks(feed_forward, hidden_states, self.chunk_size)


class XLMPredLayer(nn.Module):
    """The MLM head: `proj.weight` is the word embedding."""

    def __init__(self, config: HfeXLMConfig):
        super().__init__()
        self.proj = nn.Linear(config.emb_dim, config.vocab_size)

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, D)`: nothing stands before the projection."""
        return hidden_states

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, V)`."""
        return self.proj(hidden_states)


class HfeXLMPreTrainedModel(EncoderPreTrainedModel):
    """Names and initialisation of the XLM models."""

    config_class = HfeXLMConfig
    base_model_prefix = "transformer"
    inputs = (*INPUTS[:2], "langs", *INPUTS[2:])
    mlm_head_name = "pred_layer"
    _input_embed_layer = "embeddings"
    pretraining_heads = (r"pred_layer\.proj\.(weight|bias)",)
    _keys_to_ignore_on_load_unexpected = [r"(^|\.)position_ids$"]
    _no_split_modules = ["XLMAttention", "XLMFeedForward"]

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.transformer = HfeXLMModel(self.config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Embedding) and not isinstance(module, SinusoidalEmbedding):
            init.normal_(module.weight, mean=0.0, std=self.config.embed_init_std)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])


def with_mask_of_padding(arguments: dict[str, Any], pad_token_id: int | None) -> dict[str, Any]:
    """Give padded rows that come without a mask one: as many first tokens as a row has without padding ids.

    As in transformers' XLM, and unlike other families, which take every token for a real one then.
    """
    input_ids = arguments.get("input_ids")
    is_given = any(arguments.get(name) is not None for name in ("attention_mask", "cu_seq_lens_q"))
    if is_given or pad_token_id is None or input_ids is None or input_ids.dim() != 2:
        return arguments
    lengths = (input_ids != pad_token_id).sum(dim=1, keepdim=True)
    mask = torch.arange(input_ids.shape[1], device=input_ids.device) < lengths
    return arguments | {"attention_mask": mask}


def zero_at_padding(hidden_states: torch.Tensor, tokens: FlatTokens) -> torch.Tensor:
    """Set padding to zero where it is among the flat tokens: `(N, D)` -> `(N, D)`."""
    if tokens.attention_mask is None or tokens.attention_mask.dim() != 2:
        return hidden_states
    is_real = tokens.to(hidden_states.device).attention_mask
    return hidden_states * padded_to(is_real.reshape(-1, 1).to(hidden_states.dtype), hidden_states.shape[0])


class HfeXLMModel(EncoderModel, HfeXLMPreTrainedModel):
    """XLM without a head."""

    embedding_arguments = ("langs",)
    pooler = None

    def __init__(self, config: HfeXLMConfig):
        super().__init__(config)
        width, depth = config.emb_dim, range(config.n_layers)
        self.has_positions = config.position_embedding_type == "absolute"
        if self.has_positions:
            kind = SinusoidalEmbedding if config.sinusoidal_embeddings else nn.Embedding
            self.position_embeddings = kind(config.max_position_embeddings, width)
        if config.has_language_embeddings:
            self.lang_embeddings = nn.Embedding(config.n_langs, width)
        self.embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.layer_norm_emb = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = EncoderDropout(config.dropout)
        self.attentions = nn.ModuleList(XLMAttention(config) for _ in depth)
        self.layer_norm1 = nn.ModuleList(nn.LayerNorm(width, eps=config.layer_norm_eps) for _ in depth)
        self.ffns = nn.ModuleList(XLMFeedForward(config) for _ in depth)
        self.layer_norm2 = nn.ModuleList(nn.LayerNorm(width, eps=config.layer_norm_eps) for _ in depth)
        self.recorder = HiddenStateRecorder()
        self.post_init()

    def forward(self, langs: torch.Tensor | None = None, **kwargs: Any) -> Any:
        r"""As in `EncoderModel`, and:

        Args:
            attention_mask (*optional*): None means that padding ids at the end of a row are padding.
            langs (`torch.LongTensor` of shape `(B, T)`, *optional*): language id of each token, of `config.lang2id`;
                None means `config.default_lang`. Without effect on a model without language embeddings.
            token_type_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): words whose embeddings are added, as in
                transformers; None adds none.

        Raises:
            ValueError: for a model with language embeddings and neither `langs` nor a default; as in `EncoderModel`.
        """
        if not self.config.has_language_embeddings:
            langs = None
        elif langs is None and self.config.default_lang is None:
            raise ValueError(
                f"langs is None, and the model has embeddings of {self.config.n_langs} languages: pass the language "
                "id of each token (config.lang2id), of the shape of input_ids, or set config.default_lang to the name "
                "of one."
            )
        elif langs is not None and langs.device.type == "cpu":  # elsewhere the lookup itself checks, without a wait
            remedy = "take ids from config.lang2id"
            check_ids("langs", langs, self.config.n_langs, "n_langs", remedy)
        return super().forward(langs=langs, **with_mask_of_padding(kwargs, self.config.pad_token_id))

    def embed(
        self, tokens: FlatTokens, *inputs: torch.Tensor | None, langs: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Border tensors `(B, T)` (`inputs_embeds` `(B, T, D)`) -> flat embeddings `(N, D)`."""
        input_ids, token_type_ids, position_ids, inputs_embeds = inputs
        words = embed_words(self.embeddings, tokens, input_ids, inputs_embeds)
        if self.has_positions:
            positions = tokens.columns(words.device) if position_ids is None else tokens.flatten_ids(position_ids)
            words = words + self.position_embeddings(positions)
        if self.config.has_language_embeddings:
            if langs is None:
                default = self.config.lang2id[self.config.default_lang]
                words = words + self.lang_embeddings(words.new_full((1,), default, dtype=torch.long))
            else:
                words = words + self.lang_embeddings(tokens.flatten_ids(langs))
        if token_type_ids is not None:
            token_type_ids = token_type_ids.expand(tokens.batch_size, tokens.row_length)
            words = words + embed_words(self.embeddings, tokens, token_type_ids)
        return zero_at_padding(self.dropout(self.layer_norm_emb(words)), tokens)

    def run_layers(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool, output_hidden_states: bool
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        modules = zip(self.attentions, self.layer_norm1, self.ffns, self.layer_norm2, strict=True)
        layers = [partial(run_xlm_layer, *its_modules) for its_modules in modules]
        recorder = self.recorder if output_hidden_states else None
        return through_layers(layers, hidden_states, tokens, output_attentions, recorder)


def run_xlm_layer(
    attend: XLMAttention,
    attention_norm: nn.LayerNorm,
    feed_forward: XLMFeedForward,
    norm: nn.LayerNorm,
    hidden_states: torch.Tensor,
    tokens: FlatTokens,
    output_attentions: bool,
) -> torch.Tensor:
    """Run the modules of one depth: `(N, D)` -> `(N, D)`."""
    hidden_states, _ = attend(hidden_states, tokens, attention_norm, output_attentions)
    return zero_at_padding(feed_forward(hidden_states, norm), tokens)


# --- heads ---


class XLMHead:
    """Mixed into each head: finds padding before labels are looked at."""

    def encode(self, *inputs: torch.Tensor | None, **kwargs: Any) -> FlatEncoderOutput:
        """As in `EncoderHead`."""
        kwargs |= zip(INPUTS, inputs, strict=False)
        return super().encode(**with_mask_of_padding(kwargs, self.config.pad_token_id))


class HfeXLMWithLMHeadModel(XLMHead, EncoderForMaskedLM, HfeXLMPreTrainedModel):
    """XLM with the MLM head, its only pre-training head."""

    _tied_weights_keys = {"pred_layer.proj.weight": "transformer.embeddings.weight"}

    def _add_head(self) -> None:
        self.pred_layer = XLMPredLayer(self.config)


def summary(config: HfeXLMConfig) -> SequenceSummary:
    """Make the summary of a sequence, whose projection is to the labels."""
    return SequenceSummary(config, config.num_labels, first_dropout=config.summary_first_dropout)


class HfeXLMForSequenceClassification(XLMHead, EncoderForSequenceClassification, HfeXLMPreTrainedModel):
    """XLM for labels or numbers of whole sequences."""

    has_pooler = False

    def _add_head(self) -> None:
        self.sequence_summary = summary(self.config)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_labels)`."""
        return self.sequence_summary(outputs.first_tokens)


class HfeXLMForTokenClassification(XLMHead, EncoderForTokenClassification, HfeXLMPreTrainedModel):
    """XLM for labels of tokens."""


class HfeXLMForQuestionAnsweringSimple(XLMHead, EncoderForQuestionAnswering, HfeXLMPreTrainedModel):
    """XLM for answers in a text; transformers' `XLMForQuestionAnswering`, with a beam search, is another head."""


class HfeXLMForMultipleChoice(XLMHead, EncoderForMultipleChoice, HfeXLMPreTrainedModel):
    """XLM for the best of several continuations."""

    has_pooler = False

    def _add_head(self) -> None:
        self.sequence_summary = summary(self.config)
        self.logits_proj = nn.Linear(self.config.num_labels, 1)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, 1)`."""
        return self.logits_proj(self.sequence_summary(outputs.first_tokens))
