"""Attention by content, distance and segment, as in Transformer-XL and XLNet (https://arxiv.org/abs/1906.08237).

The distances are sinusoids, projected once for each layer; who sees whom and the distances of rows and keys come from
`encoder_streams.py`.
"""

import torch
from torch import nn

from .configuration_xlnet import HfeXLNetConfig
from .encoder_attention import eager_attention, without_cudnn
from .encoder_cpu_kernels import EncoderDropout, padded_to, with_padding_rows
from .encoder_streams import Streams
from .encoder_tokens import first_rows


def sinusoids(longest: int, width: int, clamp_len: int, like: torch.Tensor) -> torch.Tensor:
    """Encodings of the distances from -(L - 1) to L - 1: sines in the first and cosines in the second half of columns.

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
        """What distance, segment and visibility add to the scaled scores, `(S, A, n, L)`."""
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
