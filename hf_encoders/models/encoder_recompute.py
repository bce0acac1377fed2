"""Linear layers that save less for the backward pass, and recompute what is fast to compute."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from .encoder_cpu_kernels import is_eager, matmul_dtype, transposed


HOOKS = ("forward", "forward_pre", "backward", "backward_pre")


def project(linear: nn.Module, hidden_states: torch.Tensor, activation: nn.Module | None = None) -> torch.Tensor:
    """`linear(activation(hidden_states))`, `(rows, width)` -> `(rows, output width)`.

    Where gradients are computed, a bare `nn.Linear` saves only `hidden_states` and its parameters for the backward
    pass, which recomputes the activation (without parameters or random numbers) and, under autocast, the 16-bit
    weights (kept on CUDA). Any other `linear` (an adapter, quantised or offloaded weights) is called as it is.
    """
    if not can_recompute(linear, hidden_states, activation):
        return linear(hidden_states if activation is None else activation(hidden_states))
    return multiply(hidden_states, *parameters_of(linear, matmul_dtype(hidden_states)), activation)


def project_each(linears: Sequence[nn.Module], hidden_states: torch.Tensor) -> Sequence[torch.Tensor]:
    """`project` by each of several layers; `hf_encoders.cuda_kernels` has another function for CUDA."""
    return [project(linear, hidden_states) for linear in linears]


def parameters_of(linear: nn.Module, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer; `hf_encoders.cuda_kernels` has another function for CUDA."""
    return linear.weight, linear.bias


def multiply(hidden_states: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """`project` by a weight, a bias and an activation that `can_recompute`."""
    return _Projection.apply(hidden_states.to(matmul_dtype(hidden_states)), *arguments)


def can_recompute(linear: nn.Module, hidden_states: torch.Tensor, activation: nn.Module | None) -> bool:
    """Whether `_Projection` computes what the modules would."""
    if not is_eager() or not torch.is_grad_enabled() or not is_bare_linear(linear) or linear.bias is None:
        return False
    if activation is not None and not (is_bare(activation) and next(activation.parameters(), None) is None):
        return False
    tensors = (hidden_states, linear.weight, linear.bias)
    # For dtypes that differ without autocast, the module raises the error.
    return any(x.requires_grad for x in tensors) and len({matmul_dtype(x) for x in tensors}) == 1


class _Projection(torch.autograd.Function):
    """`activation(hidden_states) @ weight.T + bias`, in the dtype of `hidden_states`."""

    @staticmethod
    def forward(
        ctx: Any, hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: nn.Module | None
    ) -> torch.Tensor:
        of_hidden, of_weight = ctx.needs_input_grad[:2]
        # A frozen factor needs only the other factor of its product.
        ctx.save_for_backward(
            hidden_states if of_weight or (of_hidden and activation is not None) else None,
            weight if of_hidden else None,
        )
        ctx.activation, ctx.dtypes = activation, (weight.dtype, bias.dtype)
        with without_autocast(hidden_states):
            # `forward` itself: global module hooks would otherwise be called in the backward pass too.
            activated = hidden_states if activation is None else activation.forward(hidden_states)
            return nn.functional.linear(activated, weight.to(activated.dtype), bias.to(activated.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # The dtypes were chosen in `forward`; autocast around the backward pass changes nothing.
        with without_autocast(gradient):
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
                of_weight = (transposed(gradient, activated.shape[1]) @ activated).to(ctx.dtypes[0])
            if ctx.needs_input_grad[2]:
                of_bias = gradient.sum(dim=0).to(ctx.dtypes[1])
            return of_hidden, of_weight, of_bias, None


def without_autocast(tensor: torch.Tensor) -> AbstractContextManager:
    """Autocast switched off on the tensor's device, if the device has it."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def is_bare(module: nn.Module) -> bool:
    """Whether calling the module runs only its class's `forward`: no hooks, no `forward` of the instance."""
    # Private names of torch, the same in all its versions; hooks on every module of the process are in its file.
    hooks = [getattr(module, f"_{kind}_hooks") for kind in HOOKS]
    hooks += [getattr(nn.modules.module, f"_global_{kind}_hooks", None) for kind in HOOKS]
    return not any(hooks) and "forward" not in vars(module)


def is_bare_linear(module: nn.Module) -> bool:
    """Whether calling the module is `nn.functional.linear` with its plain parameters and nothing more."""
    # Quantised and distributed weights are tensor subclasses in an `nn.Linear`.
    return type(module) is nn.Linear and is_bare(module) and type(module.weight) in (nn.Parameter, torch.Tensor)
