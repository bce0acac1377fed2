"""Two streams of rows in one tensor: what is read, and what is predicted without being seen (XLNet, section 2.3).

Content rows are the flat tokens, `(N, D)`. Behind them stand the query rows of the P predicted tokens, so that
everything that is done row by row is done once for both, `(N + P, D)`; keys and values are those of the content rows.
Who sees whom is one integer per token, its `order`, instead of a matrix for each sequence: token i sees token j if
`order[j] <= order[i]`, and its query row if `order[j] < order[i]`.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from .configuration_xlnet import HfeXLNetConfig
from .encoder_attention import eager_attention, without_cudnn
from .encoder_kernels import EncoderDropout, padded_to, with_padding_rows
from .encoder_tokens import FlatTokens, first_rows


@dataclass
class Streams:
    """The rows of one forward pass and who sees whom: what attention reads in every layer.

    Sequences are padded to L keys and n = L + Q rows, the L content rows and up to Q query rows.

    Args:
        tokens (`FlatTokens`): Layout of the N content rows.
        query_places (`torch.LongTensor` of shape `(P,)`, *optional*): Of each query row in the `S * Q` grid.
        most_queries (`int`): Q.
        distances (`torch.LongTensor` of shape `(S, n, L)`): Row of the table of distances, for each row and key.
        visible (`torch.BoolTensor` of shape `(S, 1, n, L)`, *optional*): Whether a row sees a key; None: all do. A row
            that sees nothing is marked as seeing the first key: no kernel knows what the mean of nothing is.
        sees_nothing (`torch.BoolTensor` of shape `(S, n, 1, 1)`, *optional*): The rows of which that is true.
        same_segment (`torch.BoolTensor` of shape `(S, 1, n, L)`, *optional*): Whether they have one token type.
    """

    tokens: FlatTokens
    query_places: torch.Tensor | None
    most_queries: int
    distances: torch.Tensor
    visible: torch.Tensor | None
    sees_nothing: torch.Tensor | None
    same_segment: torch.Tensor | None

    @property
    def num_rows(self) -> int:
        """N + P."""
        return self.tokens.num_tokens + (0 if self.query_places is None else len(self.query_places))

    def to(self, device: torch.device | int | str, non_blocking: bool = False) -> "Streams":
        """Return the same on another device; accelerate calls this where a model is spread over several."""
        tensors = {name: value for name, value in vars(self).items() if hasattr(value, "to")}
        return replace(self, **{name: value.to(device, non_blocking=non_blocking) for name, value in tensors.items()})

    def of_sequences(self, rows: torch.Tensor) -> torch.Tensor:
        """`(N + P, ...)` -> `(S, n, ...)`."""
        content = self.tokens.to_sequences(first_rows(rows, self.tokens.num_tokens))
        if self.query_places is None:
            return content
        queries = rows[self.tokens.num_tokens : self.num_rows]
        grid = queries.new_zeros(len(content) * self.most_queries, *queries.shape[1:])
        grid = grid.index_copy(0, self.query_places, queries)
        return torch.cat([content, grid.view(len(content), self.most_queries, *queries.shape[1:])], dim=1)

    def from_sequences(self, padded: torch.Tensor) -> torch.Tensor:
        """Invert `of_sequences`: `(S, n, ...)` -> `(N + P, ...)`."""
        content = self.tokens.from_sequences(padded[:, : self.tokens.longest])
        if self.query_places is None:
            return content
        queries = padded[:, self.tokens.longest :].flatten(0, 1)
        return torch.cat([content, queries.index_select(0, self.query_places)])


def make_streams(
    tokens: FlatTokens,
    device: torch.device,
    token_type_ids: torch.Tensor | None,
    order: torch.Tensor | None,
    is_reversed: torch.Tensor | None,
    queries: torch.Tensor | None,
    query_counts: torch.Tensor | None,
) -> Streams:
    """Make the streams of a batch; arguments as in `HfeXLNetModel.forward`, `token_type_ids` and `order` flat, `(N,)`.

    `queries` are the content rows that have a query row, `(P,)`, in their order; `query_counts` how many they are in
    each sequence, `(S,)` on the CPU, so that no accelerator is waited for.
    """
    longest = tokens.longest
    columns = tokens.columns(device)
    places, most = None, 0
    if queries is not None and len(queries):
        sequences = tokens.of_tokens(torch.arange(tokens.num_sequences, device=device)).index_select(0, queries)
        most = int(query_counts.max())
        first = (query_counts.cumsum(0) - query_counts).to(device, non_blocking=device.type == "cuda")
        places = sequences * most + torch.arange(len(queries), device=device) - first.index_select(0, sequences)
    streams = Streams(tokens, places, most, columns, None, None, None)

    def both(values: torch.Tensor, of_queries: torch.Tensor | None = None) -> torch.Tensor:
        if places is None:
            return streams.of_sequences(values)
        of_queries = values.index_select(0, queries) if of_queries is None else of_queries
        return streams.of_sequences(torch.cat([values, of_queries]))

    key_columns = tokens.to_sequences(columns)[:, None]
    distances = both(columns)[:, :, None] - key_columns
    if is_reversed is not None:
        distances = torch.where(is_reversed.to(device, torch.bool)[:, None, None], -distances, distances)
    visible = _visible_keys(tokens, longest + most, device)
    if order is not None:
        seen = None if places is None else order.index_select(0, queries) - 1
        may_see = tokens.to_sequences(order)[:, None] <= both(order, seen)[:, :, None]
        visible = may_see if visible is None else visible & may_see
    same = None
    if token_type_ids is not None:
        same = (both(token_type_ids)[:, :, None] == tokens.to_sequences(token_type_ids)[:, None])[:, None]
    sees_nothing = None
    if visible is not None:
        is_blind = ~visible.any(dim=-1, keepdim=True)
        is_first = torch.arange(longest, device=device) == 0
        visible, sees_nothing = (visible | (is_blind & is_first))[:, None], is_blind[..., None]
    masks = {"visible": visible, "sees_nothing": sees_nothing, "same_segment": same}
    return replace(streams, distances=distances + longest - 1, **masks)


def count_queries(tokens: FlatTokens, queries: torch.Tensor) -> torch.Tensor:
    """Return the number of queries in each sequence, of flags at the border on the CPU: `(B, T)` -> `(S,)`."""
    if not tokens.is_packed:
        return queries.sum(dim=1)
    before = nn.functional.pad(queries.flatten().cumsum(0), (1, 0))
    return before[nn.functional.pad(torch.tensor(tokens.sequence_lengths).cumsum(0), (1, 0))].diff()


def _visible_keys(tokens: FlatTokens, rows: int, device: torch.device) -> torch.Tensor | None:
    """Return which keys are tokens, `(S, 1 or n, L)`; None for all."""
    is_real = tokens.sequence_mask()
    if is_real is None:
        return None
    if is_real.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(is_real.shape)}: XLNet takes one flag per token; pass order to say who "
            "sees whom."
        )
    if tokens.attention_mask is None:
        return is_real[:, None]
    # Padding among the tokens sees itself too, as in transformers.
    return is_real[:, None] | torch.eye(rows, is_real.shape[1], dtype=torch.bool, device=device)


def sinusoids(longest: int, width: int, clamp_len: int, like: torch.Tensor) -> torch.Tensor:
    """Encode the distances from -(L - 1) to L - 1: sines in the first half of columns, cosines in the second.

    `relative_positional_encoding` in `modeling.py` of zihangdai/xlnet. `(2 * L - 1, D)`.
    """
    distances = torch.arange(1 - longest, longest, device=like.device, dtype=torch.float32)
    if clamp_len > 0:
        distances = distances.clamp(-clamp_len, clamp_len)
    columns = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    angles = distances[:, None] * (1 / 10000 ** (columns / width))
    return torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype)


class RelativeAttention(nn.Module):
    """Attention of both streams to the content, with the residual and the LayerNorm after it (section 2.5).

    The score of row i and key j is `(q_i + r_w) k_j + (q_i + r_r) (W_r R_{i-j}) + (q_i + r_s) s`, over the square root
    of the head's width, with one s for tokens of the same segment and another one for others.
    """

    def __init__(self, config: HfeXLNetConfig):
        super().__init__()
        if config.d_model % config.n_head != 0:
            raise ValueError(f"d_model={config.d_model} is not a multiple of n_head={config.n_head}: change one.")
        self.config = config
        heads = (config.n_head, config.d_head)
        for name in ("q", "k", "v", "o", "r"):
            setattr(self, name, nn.Parameter(torch.empty(config.d_model, *heads)))
        for name in ("r_r_bias", "r_s_bias", "r_w_bias"):
            setattr(self, name, nn.Parameter(torch.empty(heads)))
        self.seg_embed = nn.Parameter(torch.empty(2, *heads))  # same segment, another one
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = EncoderDropout(config.dropout)
        self.scaling = config.d_head**-0.5

    def forward(
        self, hidden_states: torch.Tensor, distances: torch.Tensor, streams: Streams, output_attentions: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(N + P, D)` and the encodings `(2 * L - 1, D)` -> `(N + P, D)`, and weights `(S, A, L, L)` if asked for."""
        content = with_padding_rows(first_rows(hidden_states, streams.tokens.num_tokens))
        heads = self._heads(hidden_states, self.q), self._heads(content, self.k), self._heads(content, self.v)
        context, weights = self._attend(*heads, self._heads(distances, self.r), streams, output_attentions)
        context = padded_to(context.flatten(1), hidden_states.shape[0])
        return self.layer_norm(self.dropout(context @ self.o.flatten(1).t(), hidden_states)), weights

    def _heads(self, hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """`(rows, D)` -> `(rows, A, H)`."""
        return (hidden_states @ weight.flatten(1)).view(-1, *weight.shape[1:])

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        distance_key: torch.Tensor,
        streams: Streams,
        output_attentions: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(rows, A, H)` each -> `(N + P, A, H)`, and weights of the content rows if asked for."""
        implementation = "eager" if output_attentions else self.config._attn_implementation
        if implementation not in ("eager", "sdpa"):
            raise ValueError(
                f"attn_implementation={implementation!r} cannot add distances to the scores, as XLNet does: use "
                "attn_implementation='sdpa' or 'eager'."
            )
        num_tokens = streams.tokens.num_tokens
        query = streams.of_sequences(query).transpose(1, 2)  # (S, A, n, H)
        key, value = (streams.tokens.to_sequences(first_rows(x, num_tokens)).transpose(1, 2) for x in (key, value))
        bias = self._bias(query, distance_key, streams)
        query = query + self.r_w_bias.to(query.dtype)[:, None]
        dropout = self.dropout.p if self.training else 0.0
        if implementation == "sdpa":
            weights = None
            with without_cudnn(query):
                context = nn.functional.scaled_dot_product_attention(
                    query, key, value, attn_mask=bias, dropout_p=dropout, scale=self.scaling
                ).transpose(1, 2)
        else:
            context, weights = eager_attention(self, query, key, value, bias, self.scaling, dropout)
            if streams.most_queries:  # weights of the content rows; without other rows, those that the context is of
                weights = weights[:, :, : streams.tokens.longest]
        if streams.sees_nothing is not None:  # such as the first of an order: its context is zero
            context = context.masked_fill(streams.sees_nothing, 0.0)
        return streams.from_sequences(context), weights

    def _bias(self, query: torch.Tensor, distance_key: torch.Tensor, streams: Streams) -> torch.Tensor:
        """Compute what distance, segment and visibility add to the scaled scores, `(S, A, n, L)`."""
        scaled = query * self.scaling
        distance_bias = self.r_r_bias
        if streams.same_segment is None and self.training:
            # The parameters of segments have gradients then too, of zero: several processes wait for them.
            distance_bias = distance_bias + 0.0 * (self.r_s_bias + self.seg_embed.sum(dim=0))
        # All products with the table, then a gather: no encoding is projected twice.
        by_distance = (scaled + self._scaled(distance_bias, query)) @ distance_key.permute(1, 2, 0)
        index = streams.distances[:, None].expand(-1, query.shape[1], -1, -1)
        bias = by_distance.gather(-1, index)
        if streams.same_segment is not None:
            # A softmax does not change by a constant: what the same segment adds over another one is enough.
            direction = (self.seg_embed[0] - self.seg_embed[1]).to(query.dtype)
            by_segment = ((scaled + self._scaled(self.r_s_bias, query)) * direction[:, None]).sum(dim=-1, keepdim=True)
            # CUDA's autocast makes sums float32: the bias would be, twice as large, and its lowest value infinite.
            bias = bias + by_segment.to(query.dtype) * streams.same_segment
        if streams.visible is not None:
            bias = bias.masked_fill(~streams.visible, torch.finfo(bias.dtype).min)
        return bias

    def _scaled(self, bias: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        return (bias * self.scaling).to(query.dtype)[:, None]
