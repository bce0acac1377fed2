"""Call kernels of CUDA, and fewer: attention to sequences of any length, one product for queries, keys and values.

Takes the place of functions of `models/`. A checkpoint's own code (`trust_remote_code`) does without: there, sequences
are padded for attention, and each projection is a product of its own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_encoders.models import encoder_attention, encoder_kernels
from hf_encoders.models.encoder_kernels import Heads, can_recompute, matmul_dtype, multiply, project
from hf_encoders.models.encoder_tokens import FlatTokens


# --- attention ---


def attend_without_padding(heads: Heads, tokens: FlatTokens, scaling: float, dropout: float) -> torch.Tensor | None:
    """Attend within sequences of any length: `(N, A, H)` each -> `(N, A, H)`; None if torch has no kernel for them.

    Flash attention in 16 bits, memory-efficient attention in float32. torch's tensors of nested sequences lead to the
    same kernels, by way of more Python than the GPU needs time.

    While weights are dropped, memory-efficient attention is left out: it drops the same ones in all heads and
    sequences (seen with torch 2.11 on an H100; of padded sequences it drops others in each).
    """
    width, device = heads[0].shape[-1], heads[0].device
    if device.type != "cuda":
        return None
    heads = padded_heads(tuple(x.to(matmul_dtype(x)) for x in heads))
    bounds, longest = bounds_of(tokens, device)
    if has_flash_attention(heads[0].dtype, width):
        context = flash_attention(heads, bounds, longest, scaling, dropout)
    elif dropout == 0 and has_efficient_attention(heads[0].dtype):
        needs_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in heads)
        arguments = (None, bounds, bounds, longest, longest, 0.0, 0, needs_gradients)
        inputs = (x.unsqueeze(0) for x in heads)  # (1, N, A, H)
        context, *_ = torch.ops.aten._efficient_attention_forward(*inputs, *arguments, scale=scaling)
        context = context.squeeze(0)
    else:
        return None
    return context if context.shape[-1] == width else context[..., :width]


def has_flash_attention(dtype: torch.dtype, width: int) -> bool:
    """Return whether torch has flash attention for heads of this type and width, and it is not switched off."""
    # Wider heads have no backward pass on some devices.
    has_kernel = dtype in (torch.float16, torch.bfloat16) and width <= 192 and computes_bfloat16()
    is_built = torch.version.hip is None or torch.backends.cuda.is_flash_attention_available()
    return has_kernel and is_built and torch.backends.cuda.flash_sdp_enabled()


def has_efficient_attention(dtype: torch.dtype) -> bool:
    """Return whether torch has memory-efficient attention for heads of this type, and it is not switched off."""
    has_kernel = dtype in (torch.float32, torch.float16) or (dtype == torch.bfloat16 and computes_bfloat16())
    return has_kernel and torch.backends.cuda.mem_efficient_sdp_enabled()


def computes_bfloat16() -> bool:
    """Return whether the device computes in bfloat16, as those since Ampere do, which flash attention needs too."""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def bounds_of(tokens: FlatTokens, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return the start of each sequence and N, `(S + 1,)` of int32, and the longest length; once per forward pass."""
    name = "bounds", device  # of a model in parts on several devices
    if name not in tokens.derived:
        bounds = tokens.cu_seq_lens
        if bounds is None:
            bounds = torch.arange(tokens.batch_size + 1, device=device) * tokens.row_length
        tokens.derived[name] = bounds.int(), max(tokens.lengths(), default=0)
    return tokens.derived[name]


def padded_heads(heads: Heads) -> Heads:
    """Add columns of zeros up to a width that the kernels take, a multiple of 8: `(N, A, H)` each."""
    padding = -heads[0].shape[-1] % 8
    return tuple(nn.functional.pad(x, (0, padding)) for x in heads) if padding else heads


def flash_attention(heads: Heads, bounds: torch.Tensor, longest: int, scaling: float, dropout: float) -> torch.Tensor:
    """Call torch's flash attention, in 16 bits: `(N, A, H)` each, bounds of sequences as int32 -> `(N, A, H)`."""
    lengths = (bounds, bounds, longest, longest)
    context, *_ = torch.ops.aten._flash_attention_forward(*heads, *lengths, dropout, False, False, scale=scaling)
    return context


# --- projections ---

# Of parameters, with these, so that no other tensor takes their id.
_copies: ContextVar[dict[tuple, tuple[tuple[torch.Tensor, ...], torch.Tensor]] | None] = ContextVar(
    "copies", default=None
)


@contextmanager
def one_copy_of_each_parameter(model: PreTrainedModel) -> Iterator[None]:
    """Cast each parameter once in a forward pass on CUDA, for layers that share theirs."""
    parameter = next(model.parameters(), None)  # replicas of DataParallel have none
    keeps_copies = parameter is not None and parameter.device.type == "cuda" and torch.is_grad_enabled()
    keeps_copies = keeps_copies and _copies.get() is None  # a head and its encoder share them
    if keeps_copies and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        keeps_copies = False  # layers run again in the backward pass, where there are none
    token = _copies.set({} if keeps_copies else _copies.get())
    try:
        yield
    finally:
        _copies.reset(token)


def parameters_of(linear: nn.Module, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return weight and bias of a layer, None without one; in `dtype` on CUDA.

    A cast weight stays for the backward pass there: memory is less scarce than launches.
    """
    if linear.weight.device.type != "cuda":
        return linear.weight, linear.bias
    return _joined((linear.weight,), dtype), None if linear.bias is None else _joined((linear.bias,), dtype)


def _joined(parameters: tuple[torch.Tensor, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return parameters one below the other, in `dtype`."""
    copies, name = _copies.get(), (dtype, *map(id, parameters))
    if copies is not None and name in copies:
        return copies[name][1]
    joined = (parameters[0] if len(parameters) == 1 else torch.cat(parameters)).to(dtype)
    if copies is not None:
        copies[name] = parameters, joined
    return joined


def project_each(linears: Sequence[nn.Module], hidden_states: torch.Tensor) -> Sequence[torch.Tensor]:
    """Project by each of several layers; on CUDA in one product, of which the results are views."""
    is_on_cuda = hidden_states.device.type == "cuda"
    if not is_on_cuda or not all(can_recompute(linear, hidden_states, None) for linear in linears):
        return [project(linear, hidden_states) for linear in linears]
    weights, biases = zip(*((linear.weight, linear.bias) for linear in linears), strict=True)
    dtype = matmul_dtype(hidden_states)
    joined = multiply(hidden_states, _joined(weights, dtype), _joined(biases, dtype), None)
    return joined.split([linear.out_features for linear in linears], dim=-1)


encoder_attention.attend_without_padding = attend_without_padding
encoder_attention.project_each = project_each
encoder_kernels.parameters_of = parameters_of
