"""Dropout (Srivastava et al. 2014) whose masks are cheap to draw on a CPU.

Drawing the Bernoulli mask is most of what dropout costs there. Here an element takes 16 random bits, four of them from
one 64-bit draw of torch's generator, so `torch.manual_seed` and gradient checkpointing repeat it. A probability is
therefore a multiple of 1/65536; kept values are scaled by the inverse of what is really kept, so the mean is exact.

On other devices, and inside compiled graphs, torch's own dropout runs: it is one fused kernel there.
"""

from typing import Any

import torch
from torch import nn


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
    is_eager = not (torch.compiler.is_compiling() or torch.jit.is_tracing())
    return tensor.device.type == "cpu" and is_eager and 0 < round(probability * STEPS) < STEPS


def random_bits(shape: tuple[int, ...]) -> torch.Tensor:
    """16 random bits an element, `int16`, on the CPU."""
    num_elements = torch.Size(shape).numel()
    draws = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
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
    """Dropout and the sum with a residual. Keeps the bits for the way back, half of a float32 mask."""

    @staticmethod
    def forward(
        ctx: Any, hidden_states: torch.Tensor, residual: torch.Tensor | None, probability: float
    ) -> torch.Tensor:
        bits = random_bits(hidden_states.shape)
        ctx.save_for_backward(bits)
        ctx.probability, ctx.dtype = probability, hidden_states.dtype
        mask = scaled_mask(bits, probability, torch.promote_types(hidden_states.dtype, torch.float32))
        if residual is None:
            return (hidden_states * mask).to(hidden_states.dtype)
        return torch.addcmul(residual.to(mask.dtype), hidden_states, mask).to(residual.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (bits,) = ctx.saved_tensors
        mask = scaled_mask(bits, ctx.probability, torch.promote_types(gradient.dtype, torch.float32))
        return (gradient * mask).to(ctx.dtype), gradient if ctx.needs_input_grad[1] else None, None
