"""Linear layers on a CPU that multiply with weights in oneDNN's own layout, as `torch.compile` does with freezing.

In float32, `nn.Linear` on a CPU is a copy of the bias and MKL's product with a plain matrix; in bfloat16 it is
oneDNN's, with a matrix that every call lays out again. With the layout made before, products took 10 to 30 % less time
on a core of an AMD EPYC with AVX-512, for 64 to 2,048 tokens of width 384 and 768 (torch 2.13).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from hf_encoders.models.encoder_kernels import is_bare_linear


# Fewer do not win back the time of the copies: about 0.8 ns per weight, and 4 ps per weight and token saved.
LEAST_TOKENS = 1024
TOKENS_IN_LAYOUT = 1024  # for which oneDNN chooses it; it suits fewer, too


@contextmanager
def packed_weights(encoder: nn.Module, num_tokens: int) -> Iterator[None]:
    """Give the linears of an encoder on a CPU a `forward` with a copy of their weights, if it is to read many tokens.

    For use without gradients and autocast. Compiled models, and linears with hooks or quantised weights, are left
    alone.
    """
    # Of `model.compile()` and `torch.compile(model)`.
    is_compiled = any(one._compiled_call_impl is not None or hasattr(one, "_orig_mod") for one in encoder.modules())
    pays = num_tokens >= LEAST_TOKENS and not is_compiled and not torch.is_autocast_enabled("cpu")
    linears = [one for one in encoder.modules() if _can_be_packed(one)] if pays else []
    try:
        for linear in linears:
            weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), TOKENS_IN_LAYOUT)
            linear.forward = partial(multiply, weight, linear.bias)
        yield
    finally:
        for linear in linears:
            vars(linear).pop("forward", None)


def multiply(weight: torch.Tensor, bias: torch.Tensor | None, inputs: torch.Tensor) -> torch.Tensor:
    """`inputs @ weight.T + bias` for a weight in oneDNN's layout: `(rows, width)` -> `(rows, output width)`."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def _can_be_packed(module: nn.Module) -> bool:
    """Whether the module is a plain linear on a CPU, in a dtype that oneDNN multiplies in here."""
    if not is_bare_linear(module) or module.weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    is_bf16 = module.weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return module.weight.dtype == torch.float32 or is_bf16
