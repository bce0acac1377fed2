"""Linear layers on a CPU that multiply with weights in oneDNN's own layout, as `torch.compile` does with freezing.

In float32, `nn.Linear` on a CPU is MKL's product with a plain matrix, and a copy of the bias before it. oneDNN with
weights in blocks took 15 to 30 % less time on a core of an AMD EPYC with AVX-512, for 64 to 1,024 tokens of width 384
and 768 (torch 2.13). In 16 bits `nn.Linear` is oneDNN's already.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from hf_encoders.models.encoder_cpu_kernels import matmul_dtype
from hf_encoders.models.encoder_recompute import is_bare_linear


# Fewer do not win back the time of the copies: about 0.8 ns per weight, and 4 ps per weight and token saved.
LEAST_TOKENS = 1024
TOKENS_IN_LAYOUT = 1024  # for which oneDNN chooses it; it suits fewer, too


@contextmanager
def packed_weights(encoder: nn.Module, num_tokens: int) -> Iterator[None]:
    """Give the float32 linears of an encoder a `forward` with a copy of their weights, if it is to read many tokens.

    For use without gradients. Compiled models, and linears with hooks, adapters or quantised weights, are left alone.
    """
    # Of `model.compile()` and `torch.compile(model)`.
    is_compiled = any(one._compiled_call_impl is not None or hasattr(one, "_orig_mod") for one in encoder.modules())
    pays = num_tokens >= LEAST_TOKENS and not is_compiled and torch.backends.mkldnn.is_available()
    linears = [one for one in encoder.modules() if _is_float32_on_cpu(one)] if pays else []
    for linear in linears:
        weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), TOKENS_IN_LAYOUT)
        linear.forward = partial(multiply, weight, linear.bias)
    try:
        yield
    finally:
        for linear in linears:
            del linear.forward


def multiply(weight: torch.Tensor, bias: torch.Tensor | None, inputs: torch.Tensor) -> torch.Tensor:
    """`inputs @ weight.T + bias` for a weight in oneDNN's layout: `(rows, width)` -> `(rows, output width)`."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def _is_float32_on_cpu(module: nn.Module) -> bool:
    """Whether the module is a plain linear that multiplies in float32, also under autocast."""
    return (
        is_bare_linear(module)
        and module.weight.device.type == "cpu"
        and module.weight.dtype == matmul_dtype(module.weight) == torch.float32
    )
