"""Bidirectional attention over flat tokens (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

With the trainable relative positions of Shaw et al. 2018 and Huang et al. 2020 (https://arxiv.org/abs/2009.13658), as
in transformers 4. The kernel is `config._attn_implementation` (`attn_implementation=`, `set_attn_implementation`):
  * `sdpa`, the default: on a CPU one call per sequence, without padding; on CUDA, with `hf_encoders`, kernels
    for sequences of any length; elsewhere, and where padding is kept, one call for all sequences;
  * `eager`: explicit softmax, also whenever `output_attentions=True`: no other kernel returns the weights;
  * `flash_attention_2` and the like, where installed: without padding;
  * any other name known to transformers (`flex_attention`, your own): transformers' attention interface, over
    sequences padded to equal length; not with relative positions or 4D masks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import nn
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .encoder_configuration import EncoderConfig
from .encoder_kernels import (
    Heads,
    attend_with_dropout,
    is_eager,
    matmul_dtype,
    padded_to,
    project_each,
    samples_16_bits,
)
from .encoder_tokens import FlatTokens, first_rows


class EncoderSelfAttention(nn.Module):
    """Multi-head self-attention with separate query, key and value projections."""

    projections: ClassVar[tuple[str, str, str]] = ("query", "key", "value")  # their names

    def __init__(self, config: EncoderConfig):
        super().__init__()
        if config.hidden_size % config.num_attention_heads != 0:
            raise ValueError(
                f"{config.own_name('hidden_size')}={config.hidden_size} is not a multiple of "
                f"{config.own_name('num_attention_heads')}={config.num_attention_heads}: change one of them."
            )
        self.config = config
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.attention_head_size**-0.5
        self.dropout_prob = config.attention_probs_dropout_prob
        self.is_causal = False  # read by transformers' attention functions

        for name in self.projections:
            setattr(self, name, nn.Linear(config.hidden_size, config.hidden_size))
        if config.position_embedding_type != "absolute":
            self.distance_embedding = nn.Embedding(2 * config.max_position_embeddings - 1, self.attention_head_size)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(N, D)` -> `(N, D)`, and the weights `(S, A, L, L)` if asked for, else None."""
        # Cast once instead of in each of the three projections, and likewise in the backward pass.
        hidden_states = hidden_states.to(matmul_dtype(hidden_states))
        heads = self.heads(hidden_states)
        if tokens.attend is not None:
            return tokens.attend(*heads, self.scaling, self._dropout).reshape(hidden_states.shape), None
        heads = tuple(first_rows(x, tokens.num_tokens) for x in heads)  # without the padding rows
        context, weights = self._attend(heads, tokens, output_attentions)
        return padded_to(context, hidden_states.shape[0]).reshape(hidden_states.shape), weights

    def heads(self, hidden_states: torch.Tensor) -> Heads:
        """Return queries, keys and values: `(N, D)` -> `(N, A, H)` each."""
        shape = (hidden_states.shape[0], self.num_attention_heads, self.attention_head_size)
        linears = [getattr(self, name) for name in self.projections]
        return tuple(x.view(shape) for x in project_each(linears, hidden_states))

    def _attend(
        self, heads: Heads, tokens: FlatTokens, output_attentions: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Choose the kernel: `(N, A, H)` each -> `(N, A, H)`, and the weights `(S, A, L, L)` if asked for."""
        query = heads[0]
        implementation = "eager" if output_attentions else self.config._attn_implementation
        is_ragged = tokens.sequence_lengths is not None
        if tokens.is_causal:
            return self._attend_padded(heads, tokens, implementation)
        if implementation == "sdpa" and query.device.type == "cpu":
            # Rows without padding are one call; while weights are dropped, torch has no fast kernel for it.
            if is_ragged or (tokens.is_full and self._drops_by_mask(query, tokens)):
                return self._attend_per_sequence(heads, tokens), None
        elif tokens.attention_mask is None and not self.adds_to_scores(tokens):
            if implementation == "sdpa" and is_eager():
                context = attend_without_padding(heads, tokens, self.scaling, self._dropout)
                if context is not None:
                    return context, None
            if is_ragged and implementation.startswith("flash_attention"):
                return self._attend_with_flash(heads, tokens, implementation), None
        return self._attend_padded(heads, tokens, implementation)

    def _attend_with_flash(self, heads: Heads, tokens: FlatTokens, implementation: str) -> torch.Tensor:
        """Attend by flash attention, any length, through transformers: `(N, A, H)` each -> `(N, A, H)`."""
        kernel = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        bounds, longest = tokens.cu_seq_lens.int(), max(tokens.sequence_lengths)
        lengths = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
        inputs = (x.transpose(0, 1).unsqueeze(0) for x in heads)  # (1, A, N, H)
        context, _ = kernel(self, *inputs, None, dropout=self._dropout, scaling=self.scaling, **lengths)
        return context.squeeze(0)

    def _drops_by_mask(self, query: torch.Tensor, tokens: FlatTokens) -> bool:
        return self._dropout > 0 and not self.adds_to_scores(tokens) and samples_16_bits(query, self._dropout)

    def _attend_per_sequence(self, heads: Heads, tokens: FlatTokens) -> torch.Tensor:
        """Attend with one call per sequence: `(N, A, H)` each -> `(N, A, H)`."""
        lengths = tokens.lengths()
        if self._drops_by_mask(heads[0], tokens):
            return attend_with_dropout(*heads, lengths, self.scaling, self._dropout)
        adds_to_scores = self.adds_to_scores(tokens)
        columns = tokens.columns(heads[0].device).split(lengths) if adds_to_scores else [None] * len(lengths)
        contexts = []
        # Transposed once, not once per sequence: for short sequences the views are a tenth of the time.
        heads = (x.transpose(0, 1).unsqueeze(0) for x in heads)  # (1, A, N, H)
        for q, k, v, position in zip(*(x.split(lengths, dim=2) for x in heads), columns, strict=True):
            bias = None if position is None else self.distance_scores(q, k, position.unsqueeze(0), tokens)
            context = nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=self._dropout, scale=self.scaling
            )
            contexts.append(context.transpose(1, 2))
        return torch.cat(contexts, dim=1).squeeze(0)

    def _attend_padded(
        self, heads: Heads, tokens: FlatTokens, implementation: str
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend with one call, padded to the longest: `(N, A, H)` each -> `(N, A, H)`, `(S, A, L, L)`."""
        if self.adds_to_scores(tokens) and implementation not in ("eager", "sdpa"):
            raise ValueError(
                f"position_embedding_type={self.config.position_embedding_type!r} adds to the attention scores, which "
                f"attn_implementation={implementation!r} cannot: use attn_implementation='sdpa' or 'eager'."
            )
        kernel = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        mask = _mask_for_kernel(self.config, implementation, heads[0], tokens)
        query, key, value = (tokens.to_sequences(x).transpose(1, 2) for x in heads)  # (S, A, L, H)
        if self.adds_to_scores(tokens):
            columns = tokens.to_sequences(tokens.columns(query.device))
            bias = self.distance_scores(query, key, columns, tokens)
            if mask is None:
                mask = bias
            elif mask.dtype == torch.bool:
                mask = bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
            else:
                mask = bias + mask
        with without_cudnn(query):
            context, weights = kernel(self, query, key, value, mask, dropout=self._dropout, scaling=self.scaling)
        return tokens.from_sequences(context), weights

    @property
    def _dropout(self) -> float:
        return self.dropout_prob if self.training else 0.0

    def adds_to_scores(self, tokens: FlatTokens) -> bool:
        """Return whether `distance_scores` are added to the attention scores."""
        return self.config.position_embedding_type != "absolute"

    def distance_scores(
        self, query: torch.Tensor, key: torch.Tensor, columns: torch.Tensor, tokens: FlatTokens
    ) -> torch.Tensor:
        """Return what relative positions add to the scaled scores, `(S, A, L, L)`.

        `relative_key` adds query · e(i - j), `relative_key_query` adds key · e(i - j) too; both before the scaling.
        `query` and `key` are `(S, A, L, H)`, `columns` `(S, L)` the position of each token in its sequence.
        """
        distances = columns[:, :, None] - columns[:, None, :] + self.config.max_position_embeddings - 1  # (S, L, L)
        distances = distances[:, None].expand(-1, query.shape[1], -1, -1)
        # Every dot product with the whole table, then a gather: no (L, L, H) tensor of looked-up embeddings.
        # The table is read by calling the module, because offloaded weights are there during the call only.
        rows = torch.arange(self.distance_embedding.num_embeddings, device=query.device)
        table = self.distance_embedding(rows).transpose(0, 1)  # (H, 2 * max_position_embeddings - 1)
        scores = (query @ table).gather(-1, distances)
        if self.config.position_embedding_type == "relative_key_query":
            scores = scores + (key @ table).gather(-1, distances.transpose(-1, -2)).transpose(-1, -2)
        return scores * self.scaling


def attend_without_padding(heads: Heads, tokens: FlatTokens, scaling: float, dropout: float) -> torch.Tensor | None:
    """`(N, A, H)` each -> `(N, A, H)`, or None; `hf_encoders.cuda_kernels` has another function for CUDA."""
    return None


@contextmanager
def without_cudnn(query: torch.Tensor) -> Iterator[None]:
    """Leave out cuDNN, which rounds dropout to sixteenths, and can give NaN gradients to long masked rows.

    https://github.com/pytorch/pytorch/pull/174245, https://github.com/pytorch/pytorch/issues/196678
    """
    switches = query.device.type == "cuda" and is_eager() and torch.backends.cuda.cudnn_sdp_enabled()
    if switches:
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if switches:
            torch.backends.cuda.enable_cudnn_sdp(True)


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend by the formula written out, the reference for every other kernel; transformers' signature.

    `query`, `key` and `value` are `(S, A, L, H)`, `attention_mask` is additive. Returns the context `(S, L, A, H)` and
    the weights after dropout `(S, A, L, L)`.
    """
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _causal_mask(tokens: FlatTokens, is_real: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Return which tokens of a sequence each one sees: itself and real ones before it; `(S or 1, 1, L, L)`."""
    if is_real is not None and is_real.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(is_real.shape)}: with is_causal it must be of shape (B, T)."
        )
    sees = torch.ones(tokens.longest, tokens.longest, dtype=torch.bool, device=device).tril()[None, None]
    if is_real is None:
        return sees
    return sees & (is_real[:, None, None] | torch.eye(tokens.longest, dtype=torch.bool, device=device))


def _mask_for_kernel(
    config: EncoderConfig, implementation: str, query: torch.Tensor, tokens: FlatTokens
) -> torch.Tensor | object | None:
    """Return the mask as the kernel reads it: a tensor, a block mask or flags; made once per forward pass."""
    if implementation in tokens.derived:
        return tokens.derived[implementation]
    mask = tokens.sequence_mask()
    lowest = torch.finfo(query.dtype).min
    if tokens.is_causal:
        mask = _causal_mask(tokens, mask, query.device)
        mask = query.new_zeros(mask.shape).masked_fill(~mask, lowest)
    if mask is None:
        return None
    if mask.dim() == 4:
        if implementation not in ("eager", "sdpa"):
            problem = "is_causal=True" if tokens.is_causal else "attention_mask is 4D"
            raise ValueError(
                f"{problem} and attn_implementation={implementation!r}: leave it out (or pass a mask of (B, T)) or "
                "use attn_implementation='sdpa' or 'eager'."
            )
        mask = mask.to(query.dtype).clamp(min=lowest)
    elif implementation == "sdpa" and tokens.attention_mask is None:
        mask = mask[:, None, None, :]  # transformers would read whether one is False, and wait for the device
    elif implementation == "eager":  # also for `output_attentions=True`, whichever kernel the configuration names
        mask = query.new_zeros(mask.shape).masked_fill(~mask, lowest)[:, None, None, :]
    else:
        shape_only = query.new_empty(()).expand(*mask.shape, query.shape[-1])
        mask = create_bidirectional_mask(config=config, inputs_embeds=shape_only, attention_mask=mask)
    tokens.derived[implementation] = mask
    return mask
