"""What matrix products run at: their dtype, and numbers of rows that a CPU's 16-bit kernels know already."""

import torch
from torch import nn


def matmul_dtype(tensor: torch.Tensor) -> torch.dtype:
    """In which dtype `nn.functional.linear` multiplies here: autocast's, or the tensor's own."""
    device = tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return tensor.dtype


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
    is_eager = not (torch.compiler.is_compiling() or torch.jit.is_tracing())
    if tensor.device.type != "cpu" or not is_16_bit or not is_eager:
        return 0
    rows = tensor.shape[0]
    return -rows % 2 ** max((rows // 32).bit_length() - 1, 0)


def with_spare_rows(tensor: torch.Tensor) -> torch.Tensor:
    """`(rows, width)` with `spare_rows` behind it."""
    spare = spare_rows(tensor)
    return nn.functional.pad(tensor, (0, 0, 0, spare)) if spare else tensor


def is_bare(module: nn.Module) -> bool:
    """Whether calling the module runs its class's `forward` and nothing else: no hooks, no `forward` of its own.

    A `forward` of the instance's own is how accelerate offloads weights.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and "forward" not in vars(module)


def is_bare_linear(module: nn.Module) -> bool:
    """Whether calling the module is `nn.functional.linear` with its plain parameters and nothing more."""
    # Quantised and distributed weights are tensors of another class in a linear of the same.
    return type(module) is nn.Linear and is_bare(module) and type(module.weight) in (nn.Parameter, torch.Tensor)
