"""Kernels of training: on a CPU dropout, attention with dropout and 16-bit products; everywhere products that keep
less for the backward pass.

Sampling is most of what dropout costs on a CPU. Here an element takes 16 random bits: a probability is a multiple of
1/65536, and the mean is exact. Only the seed, from torch's generator, is saved for the backward pass. On other
devices, in compiled graphs and under `torch.func` torch's own operations run.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn


Heads = tuple[torch.Tensor, ...]  # query, key and value
STEPS = 2**16  # of a dropout probability
CACHED_NUMBERS = 2**18  # float32 numbers that fit into a core's cache
# From this width on, a copy costs less than it saves: with 1,120 rows, 768 x 768 takes 1.4 ms instead of 1.7,
# 3072 x 768 4.5 instead of 9.2 (AMX, torch 2.13); 256 x 1024 took longer.
TRANSPOSED_WIDTH = 768


def is_eager() -> bool:
    """Return whether autograd functions of this package may replace torch's: no graph, no `torch.func`."""
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    # A private name, which may go: torch's own operations are right in any case.
    is_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
    return not (is_traced or is_transformed())


def matmul_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype in which `nn.functional.linear` multiplies here: autocast's, or the tensor's own."""
    device = tensor.device.type
    # `torch.amp.is_autocast_available` breaks graphs of torch 2.11; of the device types here "meta" has none.
    has_autocast = device != "meta" and tensor.dtype != torch.float64
    return torch.get_autocast_dtype(device) if has_autocast and torch.is_autocast_enabled(device) else tensor.dtype


# --- dropout ---


class EncoderDropout(nn.Dropout):
    """`nn.Dropout` with 16-bit masks on a CPU, and with the residual that follows it in a transformer's layer."""

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Drop elements of `hidden_states` and add `residual`, of the same shape, if given."""
        if not self.training or self.p == 0.0:
            return hidden_states if residual is None else hidden_states + residual
        if not samples_16_bits(hidden_states, self.p):
            dropped = super().forward(hidden_states)
            return dropped if residual is None else dropped + residual
        return _DropAndAdd.apply(hidden_states, residual, self.p)


def samples_16_bits(tensor: torch.Tensor, probability: float) -> bool:
    """Return whether masks for `tensor` are sampled here rather than by torch."""
    return tensor.device.type == "cpu" and is_eager() and 0 < round(probability * STEPS) < STEPS


def sample_seed(num_elements: int, drawn: torch.Tensor | None = None) -> int:
    """Return a seed for `random_bits`, in [0, 2^32): a number of torch's generator, mixed with the number of elements.

    So processes with equal seeds and batches of different size sample different masks.
    """
    seed = int(torch.randint(2**32, ()) if drawn is None else drawn)
    return seed ^ (num_elements * 0x9E3779B1 & 0xFFFFFFFF)  # Knuth's multiplicative hash


def random_bits(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """16 random bits per element, `int16`, on the CPU: the same for the same shape and seed."""
    num_elements = torch.Size(shape).numel()
    numbers = torch.empty(-(-num_elements // 4), dtype=torch.int64)
    numbers.random_(torch.iinfo(torch.int64).min, None, generator=torch.Generator().manual_seed(seed))
    return numbers.view(torch.int16)[:num_elements].view(shape)


def scaled_mask(bits: torch.Tensor, probability: float, dtype: torch.dtype) -> torch.Tensor:
    """Return 0 for dropped elements and 1 / (share kept) for the others, of the shape of `bits`.

    `dtype` is float32 or float64: 16 bits would round the factor, and with it the mean.

    >>> scaled_mask(torch.tensor([-(2**15), -1, 0, 2**15 - 1], dtype=torch.int16), 0.5, torch.float32).tolist()
    [0.0, 0.0, 2.0, 2.0]
    """
    dropped = round(probability * STEPS)
    mask = torch.empty(bits.shape, dtype=dtype)
    # Straight into the mask's dtype: a boolean in between takes three times as long.
    torch.ge(bits, dropped + torch.iinfo(torch.int16).min, out=mask)
    return mask.mul_(STEPS / (STEPS - dropped))


class _DropAndAdd(torch.autograd.Function):
    """Dropout and the sum with a residual; only the seed is saved for backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden_states: torch.Tensor, residual: torch.Tensor | None, probability: float
    ) -> torch.Tensor:
        ctx.seed, ctx.probability, ctx.dtype = sample_seed(hidden_states.numel()), probability, hidden_states.dtype
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


# --- attention with dropout ---


def attend_with_dropout(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int], scaling: float, dropout: float
) -> torch.Tensor:
    """Compute attention sequence by sequence, as torch's kernel is slow with dropout: `(N, A, H)` each -> `(N, A, H)`.

    At least in float32, as in torch: in bfloat16 every new length is compiled.
    """
    with torch.autocast("cpu", enabled=False):
        return _AttentionWithDropout.apply(query, key, value, lengths, scaling, dropout)


class _AttentionWithDropout(torch.autograd.Function):
    """Saves its inputs and the seed of the random bits; weights and bits are recomputed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        *heads, lengths, scaling, dropout = inputs
        ctx.save_for_backward(*heads)
        ctx.numbers = lengths, torch.randint(2**32, ()), scaling, dropout
        return attend_to_sequences(torch.empty_like(heads[0]), heads, *ctx.numbers)

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "attention with dropout cannot be differentiated twice (create_graph=True) with "
                "attn_implementation='sdpa' on a CPU: use attn_implementation='eager'."
            )
        return *gradients_of_attention(gradient, ctx.saved_tensors, *ctx.numbers), None, None, None


def attend_to_sequences(
    context: torch.Tensor, heads: Heads, lengths: list[int], seed: torch.Tensor, scaling: float, dropout: float
) -> torch.Tensor:
    """Write what `attend_with_dropout` computes with a seed into `context`, except rows after the sequences."""
    exact, masks = _masks(heads[0], lengths, seed, dropout)
    inputs = ((heads[0] * scaling).to(exact), *(x.to(exact) for x in heads[1:]), context)
    for q, k, v, its_context, mask in zip(*views_of_sequences(lengths, *inputs), masks, strict=True):
        weights = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)  # (A, L, L)
        its_context.copy_(torch.bmm(mask.view(weights.shape).mul_(weights), v))
    return context


def gradients_of_attention(
    gradient: torch.Tensor, heads: Heads, lengths: list[int], seed: torch.Tensor, scaling: float, dropout: float
) -> Heads:
    """Compute those of query, key and value, zero after the sequences; weights and masks are recomputed."""
    exact, masks = _masks(heads[0], lengths, seed, dropout)
    gradients = tuple(torch.zeros_like(x) for x in heads)
    inputs = ((heads[0] * scaling).to(exact), *(x.to(exact) for x in (*heads[1:], gradient)), *gradients)
    for q, k, v, g, of_q, of_k, of_v, mask in zip(*views_of_sequences(lengths, *inputs), masks, strict=True):
        weights = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)
        mask = mask.view(weights.shape)
        of_weights = torch.bmm(g, v.transpose(1, 2)).mul_(mask)
        of_v.copy_(torch.bmm(mask.mul_(weights).transpose(1, 2), g))
        of_scores = gradient_of_scores(of_weights, weights)
        of_q.copy_(torch.bmm(of_scores, k))
        of_k.copy_(torch.bmm(of_scores.transpose(1, 2), q))
    gradients[0].mul_(scaling)
    return gradients


def gradient_of_scores(of_weights: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of a softmax's input from that of its output `weights`; `(..., L)` each."""
    # torch's kernel takes half the time; its name is private, and may go.
    if kernel := getattr(torch, "_softmax_backward_data", None):
        return kernel(of_weights, weights, -1, weights.dtype)
    products = of_weights * weights
    return products.addcmul_(weights, products.sum(dim=-1, keepdim=True), value=-1)


def _masks(like: torch.Tensor, lengths: list[int], seed: torch.Tensor, dropout: float) -> tuple[torch.dtype, Heads]:
    """Return the dtype to compute in, and the scaled mask of each sequence's weights, flat; ones without dropout."""
    exact = torch.promote_types(like.dtype, torch.float32)
    sizes = [like.shape[1] * length**2 for length in lengths]
    if dropout == 0:
        return exact, torch.ones(sum(sizes), dtype=exact).split(sizes)
    return exact, scaled_mask(random_bits((sum(sizes),), sample_seed(sum(sizes), seed)), dropout, exact).split(sizes)


def views_of_sequences(lengths: list[int], *tensors: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], ...]:
    """`(rows, A, H)` each -> for each a view `(A, length, H)` of every sequence."""
    rows = sum(lengths)
    return tuple(tensor[:rows].transpose(0, 1).split(lengths, dim=1) for tensor in tensors)


# --- matrix products ---


def num_padding_rows(tensor: torch.Tensor) -> int:
    """Return how many rows of zeros to append to `(rows, width)` before it is multiplied, at most 1/32 of its rows.

    In 16 bits on a CPU, oneDNN compiles a kernel for every number of rows that is not in its cache: 4 to 15 ms for
    each of a layer's twelve products. Flat batches differ in their number of tokens; with padding rows few occur.

    >>> [rows + num_padding_rows(torch.zeros(rows, 1, dtype=torch.bfloat16)) for rows in (20, 100, 1090, 1100, 2300)]
    [20, 100, 1120, 1120, 2304]
    """
    is_16_bit = torch.finfo(matmul_dtype(tensor)).bits == 16
    if tensor.device.type != "cpu" or not is_16_bit or not is_eager():
        return 0
    rows = tensor.shape[0]
    return -rows % 2 ** max((rows // 32).bit_length() - 1, 0)


def with_padding_rows(tensor: torch.Tensor) -> torch.Tensor:
    """`(rows, width)` followed by `num_padding_rows` rows of zeros."""
    return padded_to(tensor, tensor.shape[0] + num_padding_rows(tensor))


def padded_to(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """`(N, *)` -> `(rows, *)`, zeros at the end."""
    padding = rows - tensor.shape[0]
    return nn.functional.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, padding)) if padding else tensor


def transposed(gradient: torch.Tensor, width: int) -> torch.Tensor:
    """`(rows, output width)` -> `(output width, rows)`, to be multiplied by `(rows, width)`."""
    # In 16 bits on a CPU oneDNN multiplies rows that lie in columns at half its rate.
    is_slow = gradient.device.type == "cpu" and gradient.element_size() == 2 and width >= TRANSPOSED_WIDTH
    return gradient.t().contiguous() if is_slow else gradient.t()


def rows_at_once(scores: torch.Tensor) -> int:
    """Return how many rows of `scores` to process at a time: on a CPU as many as stay in its cache."""
    rows, width = scores.shape
    return max(1, CACHED_NUMBERS // width) if scores.device.type == "cpu" else max(1, rows)


HOOKS = ("forward", "forward_pre", "backward", "backward_pre")


def project(linear: nn.Module, hidden_states: torch.Tensor, activation: nn.Module | None = None) -> torch.Tensor:
    """Compute `linear(activation(hidden_states))`, `(rows, width)` -> `(rows, output width)`.

    A bare `nn.Linear` saves only `hidden_states` and its parameters for the backward pass, which recomputes the
    activation and, under autocast, the 16-bit weights (kept on CUDA). Any other `linear` (an adapter, quantised or
    offloaded weights) is called as it is.
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
    """Return whether `_Projection` computes what the modules would."""
    if not is_eager() or not torch.is_grad_enabled() or not is_bare_linear(linear):
        return False
    if activation is not None and not (is_bare(activation) and next(activation.parameters(), None) is None):
        return False
    tensors = [x for x in (hidden_states, linear.weight, linear.bias) if x is not None]
    # For dtypes that differ without autocast, the module raises the error.
    return any(x.requires_grad for x in tensors) and len({matmul_dtype(x) for x in tensors}) == 1


class _Projection(torch.autograd.Function):
    """`activation(hidden_states) @ weight.T + bias`, in the dtype of `hidden_states`."""

    @staticmethod
    def forward(
        ctx: Any, hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: Any
    ) -> torch.Tensor:
        of_hidden, of_weight = ctx.needs_input_grad[:2]
        # A frozen factor needs only the other factor of its product.
        ctx.save_for_backward(
            hidden_states if of_weight or (of_hidden and activation is not None) else None,
            weight if of_hidden else None,
        )
        ctx.activation, ctx.dtype = activation, weight.dtype  # the bias has the same
        with without_autocast(hidden_states):
            # `forward` itself: global module hooks would otherwise be called in the backward pass too.
            activated = hidden_states if activation is None else activation.forward(hidden_states)
            bias = None if bias is None else bias.to(activated.dtype)
            return nn.functional.linear(activated, weight.to(activated.dtype), bias)

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
                of_weight = (transposed(gradient, activated.shape[1]) @ activated).to(ctx.dtype)
            if ctx.needs_input_grad[2]:
                of_bias = gradient.sum(dim=0).to(ctx.dtype)
            return of_hidden, of_weight, of_bias, None


def without_autocast(tensor: torch.Tensor) -> AbstractContextManager:
    """Switch autocast off on the tensor's device, if the device has it."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def is_bare(module: nn.Module) -> bool:
    """Return whether calling the module runs only its class's `forward`: no hooks, no `forward` of the instance."""
    # Private names of torch, the same in all its versions; hooks on every module of the process are in its file.
    hooks = [getattr(module, f"_{kind}_hooks") for kind in HOOKS]
    hooks += [getattr(nn.modules.module, f"_global_{kind}_hooks", None) for kind in HOOKS]
    return not any(hooks) and "forward" not in vars(module)


def is_bare_linear(module: nn.Module) -> bool:
    """Return whether calling the module is `nn.functional.linear` with its plain parameters and nothing more."""
    # Quantised and distributed weights are tensor subclasses in an `nn.Linear`.
    return type(module) is nn.Linear and is_bare(module) and type(module.weight) in (nn.Parameter, torch.Tensor)
