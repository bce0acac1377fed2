"""How layers multiply: what a projection keeps for the way back, the dtype of its products, and numbers and layouts
of rows that a CPU's 16-bit kernels are quick with.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook


# From this width on, a copy costs less than it saves: with 1,120 rows, 768 x 768 takes 1.4 ms instead of 1.7,
# 3072 x 768 4.5 instead of 9.2 (AMX, torch 2.13); 256 x 1024 took longer.
TRANSPOSED_WIDTH = 768


def project(linear: nn.Module, hidden_states: torch.Tensor, activation: nn.Module | None = None) -> torch.Tensor:
    """`linear(activation(hidden_states))`, `(rows, width)` -> `(rows, output width)`.

    Where gradients are computed, a bare `nn.Linear` keeps `hidden_states` and its parameters alone for the way back.
    What is quick is computed a second time there: an activation without parameters, which must not draw random
    numbers, and the weights in 16 bits under autocast. Anything else that `linear` may be (an adapter, quantised or
    offloaded weights) is called as it is.
    """
    if not _keeps_little(linear, hidden_states, activation):
        return linear(hidden_states if activation is None else activation(hidden_states))
    return _Projection.apply(hidden_states.to(matmul_dtype(hidden_states)), linear.weight, linear.bias, activation)


def _keeps_little(linear: nn.Module, hidden_states: torch.Tensor, activation: nn.Module | None) -> bool:
    """Whether `_Projection` does what the modules would do."""
    if not is_eager() or not torch.is_grad_enabled():
        return False
    if not is_bare_linear(linear) or linear.bias is None:
        return False
    if activation is not None and not (is_bare(activation) and next(activation.parameters(), None) is None):
        return False
    tensors = (hidden_states, linear.weight, linear.bias)
    # Of dtypes that differ without autocast, the module says so.
    return any(x.requires_grad for x in tensors) and len({matmul_dtype(x) for x in tensors}) == 1


class _Projection(torch.autograd.Function):
    """`activation(hidden_states) @ weight.T + bias`, in the dtype of `hidden_states`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        activation: nn.Module | None,
    ) -> torch.Tensor:
        of_hidden, of_weight = ctx.needs_input_grad[:2]
        # What is frozen needs the other factor of its product only.
        ctx.save_for_backward(
            hidden_states if of_weight or (of_hidden and activation is not None) else None,
            weight if of_hidden else None,
        )
        ctx.activation, ctx.dtypes = activation, (weight.dtype, bias.dtype)
        with without_autocast(hidden_states):
            # Its own `forward`: hooks for all modules at once would otherwise be called on the way back too.
            activated = hidden_states if activation is None else activation.forward(hidden_states)
            return nn.functional.linear(activated, weight.to(activated.dtype), bias.to(activated.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # The dtypes are chosen; a backward pass under autocast changes nothing.
        with without_autocast(gradient):
            return _Projection._gradients(ctx, gradient)

    @staticmethod
    def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_states, weight = ctx.saved_tensors
        of_hidden = of_weight = of_bias = None
        inputs = activated = hidden_states
        if ctx.activation is not None and hidden_states is not None:
            is_differentiated_again = torch.is_grad_enabled()
            inputs = hidden_states if is_differentiated_again else hidden_states.detach().requires_grad_()
            with torch.enable_grad():
                activated = ctx.activation.forward(inputs)
        if ctx.needs_input_grad[0]:
            of_hidden = gradient @ weight.to(gradient.dtype)
            if ctx.activation is not None:
                (of_hidden,) = torch.autograd.grad(
                    activated, inputs, of_hidden, retain_graph=True, create_graph=is_differentiated_again
                )
        if ctx.needs_input_grad[1]:
            of_weight = (_transposed(gradient, activated.shape[1]) @ activated).to(ctx.dtypes[0])
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(dim=0).to(ctx.dtypes[1])
        return of_hidden, of_weight, of_bias, None


def _transposed(gradient: torch.Tensor, width: int) -> torch.Tensor:
    """`(rows, output width)` -> `(output width, rows)`, to be multiplied by `(rows, width)`.

    In 16 bits on a CPU oneDNN multiplies rows that lie in columns at half its rate.
    """
    is_slow = gradient.device.type == "cpu" and gradient.element_size() == 2 and width >= TRANSPOSED_WIDTH
    return gradient.t().contiguous() if is_slow else gradient.t()


def matmul_dtype(tensor: torch.Tensor) -> torch.dtype:
    """In which dtype `nn.functional.linear` multiplies here: autocast's, or the tensor's own."""
    device = tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return tensor.dtype


def without_autocast(tensor: torch.Tensor) -> AbstractContextManager:
    """No autocast on the tensor's device; nothing where there is none."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def spare_rows(tensor: torch.Tensor) -> int:
    """How many rows of zeros to append to `(rows, width)` before it is multiplied, at most a 32nd of its rows.

    In 16 bits on a CPU, oneDNN compiles a kernel for every number of rows it has not seen lately: 4 to 15 ms for each
    of a layer's twelve products, and flat batches have another number of tokens at every step. With spare rows few
    numbers are left, and their kernels stay in its cache.

    >>> [rows + spare_rows(torch.zeros(rows, 1, dtype=torch.bfloat16)) for rows in (20, 100, 1090, 1100, 2300)]
    [20, 100, 1120, 1120, 2304]
    >>> spare_rows(torch.zeros(1090, 1))
    0
    """
    is_16_bit = torch.finfo(matmul_dtype(tensor)).bits == 16
    if tensor.device.type != "cpu" or not is_16_bit or not is_eager():
        return 0
    rows = tensor.shape[0]
    return -rows % 2 ** max((rows // 32).bit_length() - 1, 0)


def with_spare_rows(tensor: torch.Tensor) -> torch.Tensor:
    """`(rows, width)` with `spare_rows` behind it."""
    spare = spare_rows(tensor)
    return nn.functional.pad(tensor, (0, 0, 0, spare)) if spare else tensor


def is_eager() -> bool:
    """Whether operations run as they come: neither traced or compiled, nor transformed by `torch.func`.

    Only then are the functions of this package, whose backward passes are their own, put in the place of torch's.
    """
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not (is_traced or torch._C._are_functorch_transforms_active())


def is_bare(module: nn.Module) -> bool:
    """Whether calling the module runs its class's `forward` and nothing else: no hooks, no `forward` of its own.

    A `forward` of the instance's own is how accelerate offloads weights; hooks for all modules at once are how
    operations are counted by module.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and "forward" not in vars(module) and not _has_any_global_hook()


def is_bare_linear(module: nn.Module) -> bool:
    """Whether calling the module is `nn.functional.linear` with its plain parameters and nothing more."""
    # Quantised and distributed weights are tensors of another class in a linear of the same.
    return type(module) is nn.Linear and is_bare(module) and type(module.weight) in (nn.Parameter, torch.Tensor)
