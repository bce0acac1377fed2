"""Parts of encoders since 2024: rotary positions, attention to a window, gated feed-forward parts."""

from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .encoder_attention import EncoderSelfAttention, without_cudnn
from .encoder_configuration import EncoderConfig
from .encoder_kernels import EncoderDropout, Heads, is_eager, project
from .encoder_tokens import FlatTokens


FULL, SLIDING = "full_attention", "sliding_attention"  # types of the layers that see all, and of those with a window


# --- rotary positions (Su et al. 2021, https://arxiv.org/abs/2104.09864) ---


def rotations(
    config: EncoderConfig, layer_type: str, tokens: FlatTokens, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of the angles of each token, `(N, 1, H / 2)` each of float32, once per forward pass.

    They are computed, not kept in buffers, which a model could lose on its way to a device.
    """
    name = "rotations", layer_type
    if name not in tokens.derived:
        parameters = config.rope_parameters[layer_type]
        scaling = 1.0
        if parameters["rope_type"] == "default":
            width = config.hidden_size // config.num_attention_heads
            exponents = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width
            frequencies = 1.0 / parameters["rope_theta"] ** exponents
        else:
            compute = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
            frequencies, scaling = compute(config, positions.device, seq_len=tokens.longest, layer_type=layer_type)
        angles = positions[:, None, None].float() * frequencies
        tokens.derived[name] = angles.cos() * scaling, angles.sin() * scaling
    return tokens.derived[name]


def rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of a head's first and second half: `(N, A, H)` -> `(N, A, H)`; in float32, as in transformers."""
    first, second = heads.float().chunk(2, dim=-1)
    exact = torch.promote_types(heads.dtype, cosines.dtype)
    cosines, sines = cosines.to(exact), sines.to(exact)
    turned = first * cosines - second * sines, second * cosines + first * sines
    return torch.cat(turned, dim=-1).to(heads.dtype)


def positions_of(tokens: FlatTokens, device: torch.device) -> torch.Tensor:
    """Return the position of each flat token, `(N,)`: the batch's `position_ids`, or its column."""
    positions = tokens.derived.get("positions")
    return tokens.columns(device) if positions is None else positions


# --- attention ---


class RotarySelfAttention(EncoderSelfAttention):
    """Self-attention of rotated queries and keys, from one product, to all tokens or to a window, and its projection.

    In a layer of the type `sliding_attention` a token sees `config.sliding_window` tokens to each side, and itself.
    """

    projections = ()

    def __init__(self, config: EncoderConfig, layer_type: str):
        super().__init__(config)
        kind, known = config.rope_parameters[layer_type]["rope_type"], ("default", *ROPE_INIT_FUNCTIONS)
        if kind not in known:
            raise ValueError(f"rope_parameters: {layer_type}: rope_type={kind!r} must be one of {', '.join(known)}.")
        self.layer_type = layer_type
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.Wqkv.fused_parts = 3
        self.Wo = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)
        self.Wo.initial_std = config.residual_range
        self.out_drop = EncoderDropout(config.output_dropout)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(N, D)` -> `(N, D)`, and the weights `(S, A, L, L)` if asked for."""
        context, weights = super().forward(hidden_states, tokens, output_attentions)
        return self.out_drop(project(self.Wo, context)), weights

    def heads(self, hidden_states: torch.Tensor) -> Heads:
        """Return queries, keys and values, `(N, A, H)` each, before the rotation."""
        shape = (hidden_states.shape[0], 3, self.num_attention_heads, self.attention_head_size)
        return project(self.Wqkv, hidden_states).view(shape).unbind(1)

    def _attend(
        self, heads: Heads, tokens: FlatTokens, output_attentions: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = heads
        turns = rotations(self.config, self.layer_type, tokens, positions_of(tokens, query.device))
        heads = rotated(query, *turns), rotated(key, *turns), value
        in_blocks = self.config._attn_implementation != "eager" and not output_attentions
        in_blocks = in_blocks and tokens.attention_mask is None and not tokens.is_causal
        if in_blocks and self.adds_to_scores(tokens):
            return attend_to_window(heads, tokens, self.window, self.scaling, self._dropout), None
        return super()._attend(heads, tokens, output_attentions)

    @property
    def window(self) -> int | None:
        """Tokens to each side that a token sees, None for all; the configuration may change in a run."""
        return self.config.sliding_window if self.layer_type == SLIDING else None

    def adds_to_scores(self, tokens: FlatTokens) -> bool:
        """Return whether the window hides tokens of a sequence."""
        return self.window is not None and tokens.longest > self.window + 1

    def distance_scores(
        self, query: torch.Tensor, key: torch.Tensor, columns: torch.Tensor, tokens: FlatTokens
    ) -> torch.Tensor:
        """Return what hides the tokens outside of the window, `(S, 1, L, L)`; arguments as in the base class."""
        is_hidden = (columns[:, None, :, None] - columns[:, None, None, :]).abs() > self.window
        return query.new_zeros(is_hidden.shape).masked_fill(is_hidden, torch.finfo(query.dtype).min)


def attend_to_window(heads: Heads, tokens: FlatTokens, window: int, scaling: float, dropout: float) -> torch.Tensor:
    """Attention of each token to those at most `window` positions away: `(N, A, H)` each -> `(N, A, H)`.

    Sequences are cut into blocks of `window` queries, which see their own block of keys and the two next to it: memory
    and time are linear in the length. Only the heads are kept for the backward pass, which gathers the blocks again.
    """
    if heads[0].shape[0] == 0:
        return heads[2]
    layout = _blocks(tokens, window, heads[0])
    if dropout > 0 or not is_eager():  # what is drawn would have to be drawn again
        return _attend_in_blocks(*heads, *layout, scaling, dropout)
    return _WindowAttention.apply(*heads, *layout, scaling)


class _WindowAttention(torch.autograd.Function):
    """`_attend_in_blocks` without dropout; only its inputs are saved."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        *tensors, ctx.scaling = inputs
        ctx.save_for_backward(*tensors)
        return _attend_in_blocks(*tensors, ctx.scaling, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *heads, places, mask = ctx.saved_tensors
        is_differentiated_again = torch.is_grad_enabled()
        if not is_differentiated_again:
            heads = [x.detach().requires_grad_() for x in heads]
        with torch.enable_grad():
            context = _attend_in_blocks(*heads, places, mask, ctx.scaling, 0.0)
        gradients = torch.autograd.grad(context, heads, gradient, create_graph=is_differentiated_again)
        return *gradients, None, None, None


def _blocks(tokens: FlatTokens, window: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the place of each token in a grid of blocks, and what its rows see; once per forward pass.

    Places are `(N,)`; the mask is additive, `(blocks, 1, window, 3 * window)`.
    """
    name = "blocks", window, like.dtype
    if name not in tokens.derived:
        device, total = like.device, like.shape[0]
        num_blocks = sum(-(-length // window) for length in tokens.lengths())
        bounds = tokens.cu_seq_lens
        if bounds is None:
            bounds = torch.arange(tokens.batch_size + 1, device=device) * tokens.row_length
        lengths = bounds.diff()
        blocks_each = (lengths + window - 1) // window
        sequences = tokens.of_tokens(torch.arange(len(lengths), device=device))
        firsts = (blocks_each.cumsum(0) - blocks_each) * window - bounds[:-1]
        places = torch.arange(total, device=device) + firsts[sequences]
        # Of the grid: which sequence, -1 for none, with a block of none at either end, and the position.
        sequence = torch.full(((num_blocks + 2) * window,), -1, device=device)
        position = torch.arange((num_blocks + 2) * window, device=device)
        sequence[places + window] = sequences
        position[places + window] = tokens.columns(device)  # not `position_ids`, as in transformers
        of_queries = [x[window:-window].view(num_blocks, window, 1) for x in (sequence, position)]
        of_keys = [x.unfold(0, 3 * window, window)[:, None] for x in (sequence, position)]
        is_seen = (of_queries[0] == of_keys[0]) & ((of_queries[1] - of_keys[1]).abs() <= window)
        # A row of no token sees itself, so that no row sees nothing.
        itself = torch.eye(window, dtype=torch.bool, device=device)
        is_seen |= nn.functional.pad(itself, (window, window))
        mask = like.new_zeros(is_seen.shape).masked_fill_(~is_seen, torch.finfo(like.dtype).min)
        tokens.derived[name] = places, mask[:, None]
    return tokens.derived[name]


def _attend_in_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    places: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """Attend as in `attend_to_window`, with the layout of `_blocks`."""
    num_blocks, _, window, _ = mask.shape
    grid = [
        x.new_zeros(num_blocks * window, *x.shape[1:]).index_copy(0, places, x).unflatten(0, (num_blocks, window))
        for x in (query, key, value)
    ]
    # Each block of keys between the one before it and the one after it: (blocks, 3 * window, A, H).
    around = (nn.functional.pad(x, (0, 0) * 3 + (1, 1)) for x in grid[1:])
    keys, values = (torch.cat([x[:-2], x[1:-1], x[2:]], dim=1).transpose(1, 2) for x in around)
    with without_cudnn(query):
        context = nn.functional.scaled_dot_product_attention(
            grid[0].transpose(1, 2), keys, values, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    return context.transpose(1, 2).flatten(0, 1).index_select(0, places)


# --- feed-forward ---


class GatedActivation(nn.Module):
    """`act(a) * b` of two halves (Shazeer 2020, https://arxiv.org/abs/2002.05202): `(N, 2I)` -> `(N, I)`."""

    def __init__(self, act: nn.Module):
        super().__init__()
        self.act = act

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(N, 2I)` -> `(N, I)`."""
        activated, gate = hidden_states.chunk(2, dim=-1)
        return self.act(activated) * gate
