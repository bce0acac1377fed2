"""Dropout (Srivastava et al. 2014) whose masks are cheap to draw on a CPU.

Drawing the Bernoulli mask is most of what dropout costs there. Here an element takes 16 random bits, four of them from
one 64-bit draw. A probability is therefore a multiple of 1/65536; kept values are scaled by the inverse of what is
really kept, so the mean is exact.

No mask is kept for the way back: its seed is, which comes from torch's generator, so that `torch.manual_seed` and
gradient checkpointing repeat it, and the bits are drawn a second time there.

On other devices, and inside compiled graphs, torch's own dropout runs: it is one fused kernel there; and under
`torch.func`.
"""

from typing import Any

import torch
from torch import nn

from .encoder_matmul import is_eager


STEPS = 2**16  # of a probability


class EncoderDropout(nn.Dropout):
    """`nn.Dropout` with 16-bit masks on a CPU, and with the residual that follows it in a transformer's layer."""

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Drop elements of `hidden_states` and add `residual`, of the same shape, if there is one."""
        if not self.training or self.p == 0.0:
            return hidden_states if residual is None else hidden_states + residual
        if not draws_16_bits(hidden_states, self.p):
            dropped = super().forward(hidden_states)
            return dropped if residual is None else dropped + residual
        return _DropAndAdd.apply(hidden_states, residual, self.p)


def draws_16_bits(tensor: torch.Tensor, probability: float) -> bool:
    """Whether masks for `tensor` are drawn here rather than by torch."""
    return tensor.device.type == "cpu" and is_eager() and 0 < round(probability * STEPS) < STEPS


def draw_seed(num_elements: int) -> int:
    """A seed for `random_bits` from torch's own generator, in [0, 2^32): all that a generator on a CPU reads of one.

    The number of elements goes into it. Processes start with equal seeds, and with batches of different size their
    masks differ, as they do where every element draws from one generator.
    """
    draw = int(torch.empty((), dtype=torch.int64).random_(2**32))
    return draw ^ (num_elements * 0x9E3779B1 & 0xFFFFFFFF)  # Knuth's multiplicative hash


def random_bits(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """16 random bits an element, `int16`, on the CPU: the same for the same shape and seed."""
    num_elements = torch.Size(shape).numel()
    draws = torch.empty(-(-num_elements // 4), dtype=torch.int64)
    draws.random_(torch.iinfo(torch.int64).min, None, generator=torch.Generator().manual_seed(seed))
    return draws.view(torch.int16)[:num_elements].view(shape)


def scaled_mask(bits: torch.Tensor, probability: float, dtype: torch.dtype) -> torch.Tensor:
    """Zero for dropped elements and 1 / (share kept) for the others, of the shape of `bits`.

    `dtype` is float32 or float64: 16 bits would round the factor, and with it the mean.

    >>> scaled_mask(torch.tensor([-(2**15), -1, 0, 2**15 - 1], dtype=torch.int16), 0.5, torch.float32).tolist()
    [0.0, 0.0, 2.0, 2.0]
    """
    dropped = round(probability * STEPS)
    mask = torch.empty(bits.shape, dtype=dtype)
    # Into the mask's dtype at once: a boolean in between takes three times as long.
    torch.ge(bits, dropped + torch.iinfo(torch.int16).min, out=mask)
    return mask.mul_(STEPS / (STEPS - dropped))


class _DropAndAdd(torch.autograd.Function):
    """Dropout and the sum with a residual. Keeps nothing for the way back but the seed of the bits."""

    @staticmethod
    def forward(
        ctx: Any, hidden_states: torch.Tensor, residual: torch.Tensor | None, probability: float
    ) -> torch.Tensor:
        ctx.seed, ctx.probability, ctx.dtype = draw_seed(hidden_states.numel()), probability, hidden_states.dtype
        bits = random_bits(hidden_states.shape, ctx.seed)
        mask = scaled_mask(bits, probability, torch.promote_types(hidden_states.dtype, torch.float32))
        if residual is None:
            return (hidden_states * mask).to(hidden_states.dtype)
        return torch.addcmul(residual.to(mask.dtype), hidden_states, mask).to(residual.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        bits = random_bits(gradient.shape, ctx.seed)
        mask = scaled_mask(bits, ctx.probability, torch.promote_types(gradient.dtype, torch.float32))
        return (gradient * mask).to(ctx.dtype), gradient if ctx.needs_input_grad[1] else None, None
