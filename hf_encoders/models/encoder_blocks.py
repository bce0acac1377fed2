"""The blocks of every encoder, over flat tokens: embeddings, layers, pooler; and the modules of heads."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN, get_activation
from transformers.modeling_layers import GradientCheckpointingLayer

from .encoder_attention import EncoderSelfAttention
from .encoder_configuration import EncoderConfig
from .encoder_kernels import EncoderDropout, is_bare, project, with_padding_rows
from .encoder_tokens import FlatTokens, HiddenStateRecorder, first_rows


def activation(name: str) -> nn.Module:
    """Return transformers' activation of that name; `gelu_new` by torch's kernel for tanh, 4 to 7 times as fast."""
    return nn.GELU(approximate="tanh") if name == "gelu_new" else ACT2FN[name]


def embed_words(
    embedding: nn.Module, tokens: FlatTokens, ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None = None
) -> torch.Tensor:
    """Look up border ids: `(B, T)` -> flat `(N, E)`; or flatten `inputs_embeds`, `(B, T, E)`, if given.

    Padding is looked up too where a hook or a wrapper sees what goes in and comes out (NEFTune's noise, attributions,
    an adapter): each expects `(B, T)` and `(B, T, E)`.
    """
    if inputs_embeds is not None:
        return tokens.flatten(inputs_embeds)
    if tokens.kept is None or type(embedding) is not nn.Embedding or not is_bare(embedding):
        return tokens.flatten(embedding(ids))
    return embedding(tokens.flatten(ids))


def for_hooks(module: nn.Module, tokens: FlatTokens, embeddings: torch.Tensor) -> torch.Tensor:
    """Pad a module's output `(N, E)` to `(B, T, E)`, which its hooks expect, if it has any."""
    return embeddings if torch.compiler.is_compiling() or is_bare(module) else tokens.pad(embeddings)


class SinusoidalEmbedding(nn.Embedding):
    """Positions that begin as sine and cosine (Vaswani et al. 2017, section 3.5); `_init_weights` knows the class."""


def sinusoidal_positions(rows: int, width: int) -> torch.Tensor:
    """Return sines in even and cosines in odd columns, `(rows, width)`."""
    columns = torch.arange(width)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] / 10000 ** (2 * (columns // 2) / width).double()
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())


class EncoderEmbeddings(nn.Module):
    """Sum of word, token type and (absolute) position embeddings of width E, then LayerNorm and dropout.

    Positions start at `first_position`; the row `position_padding` of their table stays zero.
    """

    has_token_types: bool = True

    def __init__(
        self, config: EncoderConfig, width: int, first_position: int = 0, position_padding: int | None = None
    ):
        super().__init__()
        self.first_position = first_position
        self.has_positions = config.has_position_table
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        if self.has_positions:
            self.position_embeddings = nn.Embedding(
                config.max_position_embeddings, width, padding_idx=position_padding
            )
        self.has_token_types = self.has_token_types and config.type_vocab_size > 0
        if self.has_token_types:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = EncoderDropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        tokens: FlatTokens,
    ) -> torch.Tensor:
        """Border tensors `(B, T)` (`inputs_embeds` `(B, T, E)`) -> flat embeddings `(N, E)`; padded ones for hooks."""
        embeddings = embed_words(self.word_embeddings, tokens, input_ids, inputs_embeds)
        if self.has_token_types:
            # A call of the module, not a read of its weight: offloaded weights are there during the call only.
            zero = embeddings.new_zeros(1, dtype=torch.long)
            types = zero if token_type_ids is None else tokens.flatten_ids(token_type_ids)
            embeddings = embeddings + self.token_type_embeddings(types)
        if self.has_positions:
            positions = self._positions(tokens, input_ids, position_ids, embeddings.device)
            embeddings = embeddings + self.position_embeddings(positions)
        return for_hooks(self, tokens, self.dropout(self.LayerNorm(embeddings)))

    def _positions(
        self,
        tokens: FlatTokens,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        device: torch.device,
    ) -> torch.Tensor:
        """Return the position of each flat token: `(N,)`."""
        if position_ids is not None:
            return tokens.flatten_ids(position_ids)
        return tokens.columns(device) + self.first_position


class EncoderOutput(nn.Module):
    """Projection to the model's width, dropout, residual and LayerNorm: the end of each sub-layer.

    With an activation, that of the feed-forward part, before the projection: only its input is saved for the backward
    pass, which recomputes it.
    """

    def __init__(self, config: EncoderConfig, input_width: int, activation: nn.Module | None = None):
        super().__init__()
        self.activation = activation
        self.dense = nn.Linear(input_width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = EncoderDropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`(N, input_width)` and the residual `(N, D)` -> `(N, D)`."""
        return self.LayerNorm(self.dropout(project(self.dense, hidden_states, self.activation), residual))


class EncoderAttention(nn.Module):
    """Self-attention and its projection."""

    def __init__(self, config: EncoderConfig, self_attention: type[EncoderSelfAttention] = EncoderSelfAttention):
        super().__init__()
        self.self = self_attention(config)
        self.output = EncoderOutput(config, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, *inputs: Any) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`; `inputs` as of the self-attention."""
        context, _ = self.self(hidden_states, *inputs)
        return self.output(context, hidden_states)


class EncoderIntermediate(nn.Module):
    """Projection to the width of the feed-forward part, without the activation, which is `EncoderOutput`'s."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(N, D)` -> `(N, intermediate_size)`."""
        return project(self.dense, hidden_states)


class EncoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each followed by residual and LayerNorm (post-norm)."""

    def __init__(self, config: EncoderConfig, self_attention: type[EncoderSelfAttention] = EncoderSelfAttention):
        super().__init__()
        self.chunk_size = config.chunk_size_feed_forward
        self.attention = EncoderAttention(config, self_attention)
        self.intermediate = EncoderIntermediate(config)
        self.output = EncoderOutput(config, config.intermediate_size, activation(config.hidden_act))

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool = False, *inputs: Any
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`; `inputs` are others of a family's self-attention."""
        hidden_states = self.attention(hidden_states, tokens, output_attentions, *inputs)
        return in_chunks(lambda states: self.output(self.intermediate(states), states), hidden_states, self.chunk_size)


def in_chunks(
    function: Callable[[torch.Tensor], torch.Tensor], hidden_states: torch.Tensor, chunk_size: int
) -> torch.Tensor:
    """Apply a token-wise function to `chunk_size` tokens at a time; to all at once when it is 0, and in a graph."""
    if chunk_size == 0 or torch.compiler.is_compiling():  # a graph for each number of chunks
        return function(hidden_states)
    return torch.cat([function(chunk) for chunk in hidden_states.split(chunk_size)])


def run_layer(layer: Callable, *inputs: Any) -> torch.Tensor:
    """Run one layer; `hf_encoders.compilation` replaces this function by one that knows of compilers."""
    return layer(*inputs)


def through_layers(
    layers: Sequence[Callable[[torch.Tensor, FlatTokens, bool], torch.Tensor]],
    hidden_states: torch.Tensor,
    tokens: FlatTokens,
    output_attentions: bool,
    recorder: HiddenStateRecorder | None,
) -> torch.Tensor:
    """Run one layer after the other, hidden states recorded where there is a recorder: `(N, D)` -> `(N, D)`."""
    if recorder is None:
        hidden_states = with_padding_rows(hidden_states)
        for layer in layers:
            hidden_states = run_layer(layer, hidden_states, tokens, output_attentions)
        return first_rows(hidden_states, tokens.num_tokens)
    padded = tokens.pad(hidden_states)
    for layer in layers:
        hidden_states = run_layer(layer, tokens.to(padded.device).flatten(padded), tokens, output_attentions)
        padded = recorder(padded, hidden_states, tokens)
    return tokens.to(padded.device).flatten(padded)


class LayerStack(nn.Module):
    """Runs the layers of `layers()`, and records hidden states where they are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder = HiddenStateRecorder()

    def layers(self) -> Sequence[Callable[..., torch.Tensor]]:
        """Return the layers that a token passes through, in order."""
        return self.layer

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool, output_hidden_states: bool
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        recorder = self.recorder if output_hidden_states else None
        return through_layers(self.layers(), hidden_states, tokens, output_attentions, recorder)


class Encoder(LayerStack):
    """Layers with parameters of their own; a family with another attention passes its class."""

    def __init__(self, config: EncoderConfig, self_attention: type[EncoderSelfAttention] = EncoderSelfAttention):
        super().__init__()
        self.layer = nn.ModuleList([EncoderLayer(config, self_attention) for _ in range(config.num_hidden_layers)])


class Pooler(nn.Module):
    """Projection and tanh of a sequence's first token."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, D)`."""
        return self.dense(first_tokens).tanh()


# --- modules of heads ---


class PredictionHead(nn.Module):
    """Base of an MLM head, `transform` and `decoder`, whose weight is the word embedding and whose bias is `bias`."""

    def _add_decoder(self, config: EncoderConfig, width: int) -> None:
        self.decoder = nn.Linear(width, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, V)`."""
        return self.decoder(self.transform(hidden_states))


class JoinedHead(nn.Module):
    """An MLM head of two modules that are the model's own in transformers."""

    def __init__(self, transform: nn.Module, decoder: nn.Linear):
        super().__init__()
        self.transform, self.decoder = transform, decoder

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, V)`."""
        return self.decoder(self.transform(hidden_states))


class ClassificationHead(nn.Module):
    """Dense, activation and projection of the first token, with dropout before each."""

    def __init__(self, config: EncoderConfig, activation: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.head_dropout)
        self.activation = activation
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, num_labels)`."""
        return self.out_proj(self.dropout(self.activation(self.dense(self.dropout(first_tokens)))))


class SequenceSummary(nn.Module):
    """Dropout, projection to `width`, activation and dropout of one token of each sequence."""

    def __init__(self, config: EncoderConfig, width: int, first_dropout: float = 0.0, last_dropout: float = 0.0):
        super().__init__()
        self.summary = nn.Linear(config.hidden_size, width) if config.summary_use_proj else nn.Identity()
        self.activation = get_activation(config.summary_activation) if config.summary_activation else nn.Identity()
        self.first_dropout, self.last_dropout = nn.Dropout(first_dropout), nn.Dropout(last_dropout)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, width)`."""
        return self.last_dropout(self.activation(self.summary(self.first_dropout(states))))
