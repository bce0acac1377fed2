"""Tensors of a CPU build of torch that say they are on CUDA: their operations run on the CPU, and are counted.

As on CUDA, an operation of tensors on both devices is an error, and what reads a value waits. Reference bodies stand
in for the attention kernels, and check what they are given. This shows nothing of the kernels themselves, of their
numerics and of CUDA's random numbers. `guard.cpp` is loaded before torch.
"""

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


COPIES = {"_to_copy", "copy_"}
WITHOUT_KERNEL = {"_unsafe_view", "detach", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
SIZED_BY_VALUES = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "equal"}
counts: Counter[str] = Counter()  # kernels, casts among them, waits by name


class OnCuda(torch.Tensor):
    """Says that it is on CUDA; its values are in `on_cpu`."""

    @staticmethod
    def __new__(cls, on_cpu: torch.Tensor) -> "OnCuda":
        layout = {"strides": on_cpu.stride(), "storage_offset": on_cpu.storage_offset(), "dtype": on_cpu.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, on_cpu.shape, device="cuda:0", **layout)

    def __init__(self, on_cpu: torch.Tensor) -> None:
        self.on_cpu = on_cpu

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run(func, args, kwargs or {})


class Cuda(TorchDispatchMode):
    """Needed for what is made on CUDA, or moved there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU; its results are on CUDA if its inputs are, or if it is asked for."""
    name = func.overloadpacket.__name__
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    is_from_cuda = any(isinstance(x, OnCuda) for x in tensors)
    target = kwargs.get("device")
    is_to_cuda = is_from_cuda if target is None else torch.device(target).type == "cuda"
    if is_from_cuda and name not in COPIES and any(x.dim() > 0 and not isinstance(x, OnCuda) for x in tensors):
        raise RuntimeError(f"{name} of tensors on both devices: {[(x.device.type, tuple(x.shape)) for x in tensors]}")
    if name == "copy_":
        is_to_cuda, is_from_cuda = (isinstance(x, OnCuda) for x in args[:2])
    if is_from_cuda or is_to_cuda:
        _count(func, name, args, kwargs, is_from_cuda, is_to_cuda)
    plain_args, plain = tree_map_only(OnCuda, lambda x: x.on_cpu, (args, kwargs))
    if is_to_cuda and target is not None:
        plain["device"] = torch.device("cpu")
    if name == "mul":
        plain_args = _in_common_dtype(*plain_args)
    result = KERNELS.get(name, func)(*plain_args, **plain)
    if func._schema.is_mutable:
        arguments = func._schema.arguments
        given = dict(zip((one.name for one in arguments), args, strict=False)) | kwargs
        written = [given[one.name] for one in arguments if one.alias_info is not None and one.alias_info.is_write]
        return written[0] if len(written) == 1 else tuple(written)
    return tree_map_only(torch.Tensor, OnCuda, result) if is_to_cuda else result


def _count(func: Any, name: str, args: tuple, kwargs: dict[str, Any], is_from_cuda: bool, is_to_cuda: bool) -> None:
    moves = name in COPIES and is_from_cuda != is_to_cuda
    is_blocking = moves and not kwargs.get("non_blocking", name == "copy_" and len(args) > 2 and args[2])
    by_flags = name.startswith(("index", "_index_put")) and any(
        index is not None and index.dtype == torch.bool for index in (args[1] if isinstance(args[1], list) else ())
    )
    is_sized = name == "repeat_interleave" and kwargs.get("output_size") is None
    if is_blocking or by_flags or is_sized or name in SIZED_BY_VALUES:
        counts[f"wait: {name}"] += 1
    if is_to_cuda and not func.is_view and name not in WITHOUT_KERNEL:
        counts["kernels"] += 1
        counts["casts"] += name == "_to_copy" and not moves


def _in_common_dtype(factor: torch.Tensor, other: Any) -> tuple[torch.Tensor, Any]:
    """Kernels on CUDA read a scalar on the device in the dtype of the result; on a CPU it is not rounded."""
    if torch.is_tensor(other) and other.is_floating_point() and other.dim() == 0 < factor.dim():
        other = other.to(torch.result_type(factor, other))
    return factor, other


# --- attention ---


def _each_sequence(bounds: torch.Tensor, longest: int, *flat: torch.Tensor) -> Any:
    """`(N, A, H)` each -> of every sequence, `(A, length, H)` of each in float32."""
    lengths = bounds.diff().tolist()
    assert bounds.dtype == torch.int32 and max(lengths) <= longest and sum(lengths) == flat[0].shape[0]
    assert all(x.stride(-1) == 1 and x.shape[-1] % 8 == 0 and x.dtype == flat[0].dtype for x in flat)
    return zip(*(x.float().transpose(0, 1).split(lengths, dim=1) for x in flat), strict=True)


def _weights(query: torch.Tensor, key: torch.Tensor, scale: float, dropout: float, generator: Any) -> Any:
    weights = (query @ key.mT * scale).softmax(dim=-1)
    return weights, (torch.rand(weights.shape, generator=generator) >= dropout) / (1 - dropout)


def _attend(heads: Any, bounds: torch.Tensor, longest: int, dropout: float, scale: float) -> Any:
    seed, contexts = torch.randint(2**32, ()), []
    generator = torch.Generator().manual_seed(int(seed))
    for query, key, value in _each_sequence(bounds, longest, *heads):
        weights, mask = _weights(query, key, scale, dropout, generator)
        contexts.append((weights * mask @ value).transpose(0, 1))
    return torch.cat(contexts).to(heads[0].dtype), seed


def _gradients(gradient: Any, heads: Any, bounds: Any, longest: int, dropout: float, seed: Any, scale: float) -> Any:
    generator, of_each = torch.Generator().manual_seed(int(seed)), []
    for of_context, query, key, value in _each_sequence(bounds, longest, gradient, *heads):
        weights, mask = _weights(query, key, scale, dropout, generator)
        of_weights = of_context @ value.mT * mask
        of_scores = weights * (of_weights - (of_weights * weights).sum(dim=-1, keepdim=True)) * scale
        of_each.append((of_scores @ key, of_scores.mT @ query, (weights * mask).mT @ of_context))
    joined = (torch.cat(x, dim=1).transpose(0, 1) for x in zip(*of_each, strict=True))
    return tuple(x.to(heads[0].dtype).contiguous() for x in joined)


def _flash(q: Any, k: Any, v: Any, bounds: Any, _: Any, longest: int, __: int, dropout: float, *___: Any, scale: Any):
    assert q.element_size() == 2
    context, seed = _attend((q, k, v), bounds, longest, dropout, scale)
    return context, torch.zeros(()), seed, torch.zeros(()), torch.zeros(())


def _flash_backward(gradient: Any, q: Any, k: Any, v: Any, *rest: Any, scale: float) -> Any:
    _, _, bounds, _, longest, _, dropout, _, seed, _ = rest
    return _gradients(gradient, (q, k, v), bounds, longest, dropout, seed, scale)


def _efficient(*arguments: Any, scale: float) -> Any:
    *heads, bias, bounds, _, longest, _, dropout, _, needs_gradients = arguments
    assert bias is None and needs_gradients
    context, seed = _attend([x.squeeze(0) for x in heads], bounds, longest, dropout, scale)
    return context.unsqueeze(0), torch.zeros(()), seed, torch.zeros((), dtype=torch.long), longest, longest


def _efficient_backward(*arguments: Any, scale: float) -> Any:
    gradient, *heads, _, _, bounds, _, longest, _, _, dropout, seed, _, _, _ = arguments
    found = _gradients(gradient.squeeze(0), [x.squeeze(0) for x in heads], bounds, longest, dropout, seed, scale)
    return *(x.unsqueeze(0) for x in found), None


KERNELS = {
    "_flash_attention_forward": _flash,
    "_flash_attention_backward": _flash_backward,
    "_efficient_attention_forward": _efficient,
    "_efficient_attention_backward": _efficient_backward,
}
_on_cpu = nn.functional.scaled_dot_product_attention


def dense_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, scale: Any = None, **options: Any
) -> torch.Tensor:
    """In the place of torch's kernels, of which none makes rows of zeros where a mask is minus infinity."""
    if query.device.type == "cpu":
        return _on_cpu(query, key, value, attn_mask, dropout_p, scale=scale, **options)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    scores = query @ key.mT * scale
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.to(dtype)
    return nn.functional.dropout(scores.float().softmax(dim=-1), dropout_p).to(dtype) @ value.to(dtype)


def install() -> None:
    """Answer what Python asks before it makes or casts a tensor there, for the rest of the process."""
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_bf16_supported = lambda **_: True
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    nn.functional.scaled_dot_product_attention = dense_attention


def move(model: nn.Module) -> None:
    """`model.to("cuda")`, with shared parameters."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = moved.setdefault(
                    id(parameter), nn.Parameter(OnCuda(parameter.detach().clone()))
                )
        for name, buffer in module._buffers.items():
            module._buffers[name] = OnCuda(buffer)
