"""XLNet (Yang et al. 2019, https://arxiv.org/abs/1906.08237).

Differs from BERT in: attention by content, distance and segment, without positions or token types among the
embeddings; a second stream of rows that predict tokens without seeing them; a summary of the last token instead of a
pooler. Leaves out: memory (`mems`), decoder use, the beam search of `XLNetForQuestionAnswering`.

Both streams are one tensor, and who sees whom is one integer per token instead of a matrix (`encoder_two_streams.py`).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils.generic import can_return_tuple

from .configuration_xlnet import HfeXLNetConfig
from .encoder_blocks import JoinedHead, SequenceSummary, activation, embed_words, in_chunks
from .encoder_heads import (
    EncoderForMultipleChoice,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
    EncoderForTokenPrediction,
    EncoderInputs,
    LogitsOnRequest,
)
from .encoder_kernels import EncoderDropout, project, with_padding_rows
from .encoder_losses import IGNORED, ObjectiveSums, classification_sums, linear_classification_sums, mean_loss
from .encoder_models import EncoderModel, EncoderPreTrainedModel, FlatEncoderOutput
from .encoder_tokens import FlatTokens, HiddenStateRecorder, first_rows, on_host, places_of
from .encoder_two_streams import RelativeAttention, Streams, count_queries, make_streams, sinusoids


INSTEAD = {
    "perm_mask": "pass order, one integer per token",
    "target_mapping": "pass order, and labels with -100 where nothing is predicted",
    "mems": "it is memory, which is not built; leave it out, or use transformers' own class",
    "input_mask": "pass attention_mask, 1 for tokens",
    "position_ids": "XLNet counts distances by itself, leave it out",
}


class XLNetFeedForward(nn.Module):
    """The feed-forward part, the residual and the LayerNorm after it."""

    def __init__(self, config: HfeXLNetConfig):
        super().__init__()
        self.chunk_size = config.chunk_size_feed_forward
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.layer_1 = nn.Linear(config.d_model, config.d_inner)
        self.layer_2 = nn.Linear(config.d_inner, config.d_model)
        self.dropout = EncoderDropout(config.dropout)
        self.activation = activation(config.ff_activation)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(rows, D)` -> `(rows, D)`."""
        return in_chunks(self._of_chunk, hidden_states, self.chunk_size)

    def _of_chunk(self, hidden_states: torch.Tensor) -> torch.Tensor:
        widened = project(self.layer_1, hidden_states)
        if self.training and self.dropout.p > 0:
            narrowed = project(self.layer_2, self.dropout(self.activation(widened)))
        else:
            narrowed = project(self.layer_2, widened, self.activation)
        return self.layer_norm(self.dropout(narrowed, hidden_states))


class XLNetLayer(GradientCheckpointingLayer):
    """Attention and feed-forward part."""

    def __init__(self, config: HfeXLNetConfig):
        super().__init__()
        self.rel_attn = RelativeAttention(config)
        self.ff = XLNetFeedForward(config)

    def forward(
        self, hidden_states: torch.Tensor, distances: torch.Tensor, streams: Streams, output_attentions: bool = False
    ) -> torch.Tensor:
        """`(N + P, D)` and the encodings of distances `(2 * L - 1, D)` -> `(N + P, D)`."""
        hidden_states, _ = self.rel_attn(hidden_states, distances, streams, output_attentions)
        return self.ff(hidden_states)


class HfeXLNetPreTrainedModel(EncoderPreTrainedModel):
    """Names and initialisation of the XLNet models."""

    config_class = HfeXLNetConfig
    base_model_prefix = "transformer"
    _supports_flash_attn = False
    _supports_flex_attn = False
    _supports_attention_backend = False
    _can_set_attn_implementation_cached_value = True  # transformers looks for its own interface in this file
    _input_embed_layer = "word_embedding"
    _can_record_outputs = {"hidden_states": HiddenStateRecorder, "attentions": RelativeAttention}
    pretraining_heads = (r"lm_loss\.(weight|bias)",)
    _no_split_modules = ["XLNetLayer"]

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.transformer = HfeXLNetModel(self.config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RelativeAttention):
            parameters = module.parameters(recurse=False)
        else:
            parameters = [module.mask_emb] if isinstance(module, HfeXLNetModel) else []
        for parameter in parameters:
            init.normal_(parameter, mean=0.0, std=self.config.initializer_range)


class HfeXLNetModel(EncoderModel, HfeXLNetPreTrainedModel):
    """XLNet without a head."""

    embedding_arguments = ("order", "is_reversed", "queries")
    pooler = None

    def __init__(self, config: HfeXLNetConfig):
        super().__init__(config)
        self.word_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.mask_emb = nn.Parameter(torch.empty(1, 1, config.d_model))  # where query rows begin
        self.layer = nn.ModuleList(XLNetLayer(config) for _ in range(config.n_layer))
        self.dropout = EncoderDropout(config.dropout)
        self.recorder = HiddenStateRecorder()
        self.post_init()

    def forward(
        self,
        order: torch.Tensor | None = None,
        is_reversed: torch.Tensor | None = None,
        queries: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        r"""As in `EncoderModel`, and:

        Args:
            token_type_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): segment of each token; any integers, of
                which only equality matters. None means one segment.
            position_ids: refused; XLNet has distances.
            order (`torch.LongTensor` of shape `(B, T)`, *optional*): who sees whom: token i sees token j if
                `order[j] <= order[i]`, and its query row if `order[j] < order[i]`. None: all tokens see each other.
            is_reversed (`torch.BoolTensor` of shape `(S,)`, *optional*): sequences that are read in reverse: their
                distances are negated.
            queries (`torch.BoolTensor` of shape `(B, T)`, *optional*): tokens that have a query row too, whose states
                stand behind those of all tokens; with `order` and `flat_output=True`. For heads. On the CPU if no
                accelerator is to be waited for.

        Raises:
            ValueError: as in `EncoderModel`; for arguments of transformers' XLNet that have other names or are not
                built here; and for queries of tokens before which there is nothing in the order.
        """
        if queries is not None and (order is None or not kwargs.get("flat_output")):
            raise ValueError("queries is for the LM head: give order and labels to HfeXLNetLMHeadModel.")
        extra = {"order": order, "is_reversed": is_reversed, "queries": queries}
        refuse_arguments_elsewhere(kwargs)
        if kwargs.get("is_causal"):
            raise ValueError("is_causal=True: XLNet's order says who sees whom: pass order=torch.arange(T), (B, T).")
        return super().forward(**extra, **kwargs)

    def embed(
        self,
        tokens: FlatTokens,
        *inputs: torch.Tensor | None,
        order: torch.Tensor | None = None,
        is_reversed: torch.Tensor | None = None,
        queries: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Border tensors `(B, T)` (`inputs_embeds` `(B, T, D)`) -> flat embeddings of both streams `(N + P, D)`."""
        input_ids, token_type_ids, _, inputs_embeds = inputs

        def flat(ids: torch.Tensor | None) -> torch.Tensor | None:
            return None if ids is None else tokens.flatten_ids(ids)

        words = embed_words(self.word_embedding, tokens, input_ids, inputs_embeds)
        counts = None
        if queries is not None:
            is_query = on_host(queries).expand(tokens.batch_size, -1)
            counts = count_queries(tokens, is_query)
            on_device = is_query.to(words.device, non_blocking=words.device.type == "cuda")
            queries = places_of(flat(on_device), is_query)
        if is_reversed is not None and is_reversed.shape != (tokens.num_sequences,):
            raise ValueError(
                f"is_reversed has shape {tuple(is_reversed.shape)}: pass one flag per sequence, "
                f"{tokens.num_sequences}."
            )
        parts = (flat(token_type_ids), flat(order), is_reversed, queries, counts)
        tokens.derived["streams"] = make_streams(tokens, words.device, *parts)
        hidden_states = self.dropout(words)
        if queries is None and not self.training:
            return hidden_states
        # While training also without query rows, so that this parameter has a gradient too.
        num_queries = 0 if queries is None else len(queries)
        start = self.mask_emb.view(1, -1).to(hidden_states.dtype).expand(num_queries, -1)
        return torch.cat([hidden_states, self.dropout(start)])

    def run_layers(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool, output_hidden_states: bool
    ) -> torch.Tensor:
        """`(N + P, D)` -> `(N + P, D)`; recorded are the states and weights of the content rows."""
        streams, num_tokens = tokens.derived["streams"], tokens.num_tokens
        table = sinusoids(tokens.longest, self.config.d_model, self.config.clamp_len, hidden_states)
        distances = self.dropout(table)
        hidden_states = with_padding_rows(hidden_states)

        def with_content(padded: torch.Tensor) -> torch.Tensor:
            return torch.cat([tokens.to(padded.device).flatten(padded), hidden_states[num_tokens:]])

        if output_hidden_states:
            padded = tokens.pad(hidden_states[:num_tokens])
            hidden_states = with_content(padded)
        for layer in self.layer:
            hidden_states = layer(hidden_states, distances, streams, output_attentions)
            if output_hidden_states:  # layers read what is recorded, so that it carries gradients
                padded = self.recorder(padded, hidden_states[:num_tokens], tokens)
                hidden_states = with_content(padded)
        return self.dropout(first_rows(hidden_states, streams.num_rows))

    def _check_inputs(
        self,
        *inputs: torch.Tensor | None,
        order: torch.Tensor | None = None,
        is_reversed: torch.Tensor | None = None,
        queries: torch.Tensor | None = None,
    ) -> None:
        super()._check_inputs(*inputs, order=order, queries=queries)
        if order is None or order.is_meta:
            return
        if order.is_floating_point():
            raise ValueError(f"order has dtype {order.dtype}: pass integers.")
        if queries is not None and ((on_host(order) < 1) & on_host(queries)).any():
            raise ValueError(
                "labels ask for the prediction of tokens of order 0, before which there is nothing: give them an "
                "order of at least 1, or the label -100."
            )


def refuse_arguments_elsewhere(arguments: dict[str, Any]) -> None:
    """Raise ValueError for what other encoders or transformers' XLNet take, with what to give instead."""
    for name, remedy in INSTEAD.items():
        if arguments.pop(name, None) is not None:
            raise ValueError(f"{name} was given, which XLNet of this package does not take: {remedy}.")


# --- heads ---


@dataclass
class HfeXLNetLMOutput(LogitsOnRequest, MaskedLMOutput):
    """Output of the LM head; fields as in `HfeMaskedLMOutput`, with the sums under another name.

    Args:
        plm (`ObjectiveSums`, *optional*): sums over this call's predicted tokens; `nll` with gradient.
    """

    plm: ObjectiveSums | None = None


class XLNetHead:
    """Mixed into each head: says what to give instead of arguments that only transformers' XLNet takes."""

    def encode(self, *inputs: torch.Tensor | None, **kwargs: Any) -> FlatEncoderOutput:
        """As in `EncoderHead`."""
        refuse_arguments_elsewhere(kwargs)
        return super().encode(*inputs, **kwargs)


class HfeXLNetLMHeadModel(XLNetHead, EncoderForTokenPrediction, HfeXLNetPreTrainedModel):
    """XLNet with the projection to the vocabulary: permutation language modelling."""

    loss_terms = {"plm": "labels"}
    _tied_weights_keys = {"lm_loss.weight": "transformer.word_embedding.weight"}

    def _add_head(self) -> None:
        self.lm_loss = nn.Linear(self.config.d_model, self.config.vocab_size)

    @property
    def mlm_head(self) -> nn.Module:
        """Return the projection to the vocabulary, before which nothing stands."""
        return JoinedHead(nn.Identity(), self.lm_loss)

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
        is_reversed: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> HfeXLNetLMOutput:
        r"""Predict tokens from those before them in an order.

        Args:
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): ids to predict, -100 elsewhere. With `order`
                they are predicted by query rows, which do not see the token. Without it by the content rows, which see
                the whole input, as in transformers: for inputs with mask tokens.
            order, is_reversed, kwargs: as in the base model.
            num_items_in_batch, return_logits (*optional*): as in `EncoderForMaskedLM`; with `order` and labels, logits
                are zero where nothing is predicted.
        """
        queries = None if order is None or labels is None else on_host(labels) != IGNORED
        extra = {"order": order, "is_reversed": is_reversed, "queries": queries}
        outputs = self.encode(token_labels=labels, **extra, **kwargs)
        if queries is None:
            logits, plm = self.predict_tokens(outputs.last_hidden_state, outputs.tokens, labels, return_logits)
        else:
            return_logits = not self.training if return_logits is None else return_logits
            logits, plm = self._predict_by_queries(outputs, labels, return_logits)
        return HfeXLNetLMOutput(loss=mean_loss(plm, num_items_in_batch), logits=logits, plm=plm, **outputs.recorded)

    def _predict_by_queries(
        self, outputs: FlatEncoderOutput, labels: torch.Tensor, return_logits: bool
    ) -> tuple[torch.Tensor | None, ObjectiveSums]:
        """Return scores `(B, T, V)` or None, and sums of the objective, of the rows behind those of the tokens."""
        tokens, states = outputs.tokens, outputs.last_hidden_state[outputs.tokens.num_tokens :]
        predicted = places_of(tokens.flatten(labels.to(states.device)) != IGNORED, on_host(labels) != IGNORED)
        labels = tokens.flatten(labels.to(states.device)).index_select(0, predicted)
        if not return_logits:
            return None, linear_classification_sums(states, self.lm_loss, labels)
        scores = self.lm_loss(states)
        everywhere = scores.new_zeros(tokens.num_tokens, scores.shape[-1]).index_copy(0, predicted, scores)
        return tokens.pad(everywhere), classification_sums(scores, labels)


def last_of_each_sequence(tokens: FlatTokens, flat: torch.Tensor) -> torch.Tensor:
    """Return the last real token of every sequence, zeros for an empty one: `(N, D)` -> `(S, D)`.

    transformers takes the last column. That is this token in rows padded on the left, as XLNet's tokenizer pads;
    padding on the right would be summarised there.
    """
    if tokens.cu_seq_lens is None:
        rows = flat.view(tokens.batch_size, tokens.row_length, -1)
        if tokens.attention_mask is None:
            return rows[:, -1]
        last = tokens.row_length - 1 - tokens.attention_mask.flip(1).int().argmax(dim=1)
        last = rows.gather(1, last[:, None, None].expand(-1, 1, rows.shape[-1])).squeeze(1)
        return last * tokens.attention_mask.any(dim=1, keepdim=True)
    is_empty = tokens.cu_seq_lens.diff() == 0
    last = (tokens.cu_seq_lens[1:] - 1).clamp(min=0)
    return nn.functional.pad(flat, (0, 0, 0, 1)).index_select(0, last).masked_fill(is_empty[:, None], 0.0)


class XLNetForSequences(XLNetHead):
    """Mixed into the heads of whole sequences: the summary, and a projection to the scores."""

    has_pooler = False

    def _add_head(self) -> None:
        width, dropout = self.config.d_model, self.config.summary_last_dropout
        self.sequence_summary = SequenceSummary(self.config, width, last_dropout=dropout)
        self.logits_proj = nn.Linear(width, self.num_scores or self.config.num_labels)

    def classify(self, outputs: FlatEncoderOutput) -> torch.Tensor:
        """Return scores of `(S, num_scores)`."""
        last = last_of_each_sequence(outputs.tokens, outputs.last_hidden_state)
        return self.logits_proj(self.sequence_summary(last))


class HfeXLNetForSequenceClassification(XLNetForSequences, EncoderForSequenceClassification, HfeXLNetPreTrainedModel):
    """XLNet for labels or numbers of whole sequences."""


class HfeXLNetForTokenClassification(XLNetHead, EncoderForTokenClassification, HfeXLNetPreTrainedModel):
    """XLNet for labels of tokens."""

    def _add_head(self) -> None:
        self.dropout = nn.Identity()  # the model ends with one
        self.classifier = nn.Linear(self.config.d_model, self.config.num_labels)


class HfeXLNetForQuestionAnsweringSimple(XLNetHead, EncoderForQuestionAnswering, HfeXLNetPreTrainedModel):
    """XLNet for answers in a text; transformers' `XLNetForQuestionAnswering`, with a beam search, is another head."""


class HfeXLNetForMultipleChoice(XLNetForSequences, EncoderForMultipleChoice, HfeXLNetPreTrainedModel):
    """XLNet for the best of several continuations."""
