"""Cross-entropy of a projection to a large vocabulary that never holds more than a chunk of the scores.

The scores of a chunk are overwritten with their gradients. (`torch.nn.functional.linear_cross_entropy` has the same
aim. It does not return the highest scores, which the accuracy needs, and took 2 to 20 times as long on a CPU with
torch 2.13, 30,522 classes and 200 to 2,000 items.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .encoder_cpu_kernels import is_eager, matmul_dtype, rows_at_once, with_padding_rows
from .encoder_losses import ObjectiveSums, classification_sums
from .encoder_recompute import is_bare_linear, without_autocast


CHUNK_SCORES = 2**24  # 549 items with a vocabulary of 30,522
CHUNK_SCORES_ON_CUDA = 2**27  # 4,397 items; 0.8 GB in 16 bits and float32, and an eighth of the launches
VOCABULARY_BLOCK = 2**12  # 16-bit products of a base model on a CPU: 6 MB instead of 47


def chunk_scores(device: torch.device) -> int:
    """How many scores, items times classes, are held at once."""
    return CHUNK_SCORES_ON_CUDA if device.type == "cuda" else CHUNK_SCORES


def linear_classification_sums(hidden_states: torch.Tensor, linear: nn.Module, labels: torch.Tensor) -> ObjectiveSums:
    """`classification_sums(linear(hidden_states), labels)`, in chunks where `linear` is a plain projection.

    `hidden_states` are `(P, D)`, `labels` `(P,)` classes in [0, V), none of them ignored. Anything but a bare
    `nn.Linear` with a bias (an adapter, quantised or offloaded weights) is called on all items at once.
    """
    if not is_bare_linear(linear) or linear.bias is None or not is_eager():
        return classification_sums(linear(hidden_states), labels)
    nll, correct = linear_loss(hidden_states, linear, labels.long(), _become_gradients_)
    return ObjectiveSums(nll, correct, torch.full_like(correct, labels.numel()))


def linear_loss(
    hidden_states: torch.Tensor, linear: nn.Linear, targets: torch.Tensor, become_gradients_: Callable
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss that `become_gradients_` computes of `linear(hidden_states)` and `targets`, `(P, ...)`, in chunks."""
    settings = (become_gradients_, matmul_dtype(hidden_states), torch.is_grad_enabled())
    return _LinearLoss.apply(hidden_states, linear.weight, linear.bias, targets, *settings)


class _LinearLoss(torch.autograd.Function):
    """Summed loss and number of correct items.

    The gradients of the last chunk's scores (usually the only chunk's) are saved, so that the weight's gradient, the
    largest, is computed once, in the backward pass. Earlier chunks add theirs up in the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        become_gradients_: Callable,
        dtype: torch.dtype,
        wants_gradients: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cast_weight, chunk_size = weight.to(dtype), max(1, chunk_scores(weight.device) // weight.shape[0])
        chunks, chunk_targets = hidden_states.to(dtype).split(chunk_size), targets.split(chunk_size)
        bias_gradient = torch.zeros_like(bias, dtype=torch.promote_types(dtype, torch.float32))
        nll, correct, hidden_gradients, weight_gradient = 0, 0, [], None
        for chunk, its_targets in zip(chunks, chunk_targets, strict=True):
            chunk = with_padding_rows(chunk)
            scores = chunk @ cast_weight.t()
            its_nll, its_correct = become_gradients_(scores, bias, its_targets, bias_gradient)
            nll, correct = nll + its_nll, correct + its_correct
            if wants_gradients and ctx.needs_input_grad[0]:
                hidden_gradients.append((scores @ cast_weight)[: len(its_targets)])
            if wants_gradients and ctx.needs_input_grad[1] and its_targets is not chunk_targets[-1]:
                weight_gradient = _add_products(weight_gradient, scores, chunk, weight)
        ctx.mark_non_differentiable(correct)
        if wants_gradients:
            # The weight for its shape, and so that torch detects a change between the passes, as for any layer.
            ctx.save_for_backward(scores, chunk, weight, weight_gradient, bias_gradient, *hidden_gradients)
            ctx.input_dtypes = hidden_states.dtype, bias.dtype
        return nll, correct

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the MLM loss cannot be differentiated twice (create_graph=True): pass return_logits=True."
            )
        # The dtypes were chosen in `forward`; autocast around the backward pass changes nothing.
        with without_autocast(gradient):
            scores, chunk, weight, weight_gradient, bias_gradient, *hidden_gradients = ctx.saved_tensors
            of_hidden = of_weight = of_bias = None
            hidden_dtype, bias_dtype = ctx.input_dtypes
            # CUDA would round a scalar to 16 bits: float16 has no 65,536, with which `GradScaler` begins.
            factor = gradient.view(1)
            if ctx.needs_input_grad[0]:
                of_hidden = (torch.cat(hidden_gradients) * factor).to(chunk.dtype).to(hidden_dtype)
            if ctx.needs_input_grad[1]:
                of_weight = _add_products(None, scores, (chunk * factor).to(chunk.dtype), weight)
                if weight_gradient is not None:
                    of_weight.addcmul_(weight_gradient, gradient.to(weight.dtype))
            if ctx.needs_input_grad[2]:
                of_bias = (bias_gradient * gradient).to(bias_dtype)
            return of_hidden, of_weight, of_bias, None, None, None, None


def _become_gradients_(
    scores: torch.Tensor, bias: torch.Tensor, labels: torch.Tensor, bias_gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn scores without bias, `(items and padding rows, V)`, into the gradients of their loss, in place.

    Adds to `bias_gradient`, `(V,)`. Returns the summed negative log-likelihood and the number of correct items.
    """
    nll, correct = bias_gradient.new_zeros(()), labels.new_zeros(())
    scores = scores[: len(labels)]
    block_size = rows_at_once(scores)
    for block, targets in zip(scores.split(block_size), labels.split(block_size), strict=True):
        exact = block.to(bias_gradient.dtype).add_(bias)
        of_label, highest = exact.gather(1, targets[:, None]), exact.amax(dim=1, keepdim=True)
        correct += _num_correct(exact, of_label, highest, targets)
        shares = torch.softmax(exact, -1, out=exact)
        # log(sum(exp(scores))) by way of the largest share, which is never zero.
        nll += (highest - shares.amax(dim=1, keepdim=True).log() - of_label).sum()
        shares.scatter_add_(1, targets[:, None], torch.full_like(of_label, -1.0))
        bias_gradient += shares.sum(dim=0)
        block.copy_(shares)
    return nll, correct


def _num_correct(
    scores: torch.Tensor, of_label: torch.Tensor, highest: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Items whose first highest score is the label's; on a CPU `argmax`, slower than `amax`, of possible ones only."""
    if scores.device.type != "cpu":
        return (scores.argmax(dim=1) == labels).sum()
    candidates = (of_label == highest).squeeze(1).nonzero().squeeze(1)
    return (scores.index_select(0, candidates).argmax(dim=1) == labels.index_select(0, candidates)).sum()


def _add_products(
    total: torch.Tensor | None, scores: torch.Tensor, hidden_states: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """`scores.T @ hidden_states`, `(V, D)`, in the dtype of `weight`, added to `total` if there is one.

    One block of the vocabulary at a time where the dtypes differ on a CPU, so that no second full product is held.
    """
    if scores.dtype == weight.dtype:
        products = scores.t() @ hidden_states
        return products if total is None else total.add_(products)
    gradient = torch.empty_like(weight) if total is None else total
    size = VOCABULARY_BLOCK if scores.device.type == "cpu" else len(gradient)
    for rows, columns in zip(gradient.split(size), scores.split(size, dim=1), strict=True):
        products = columns.t() @ hidden_states
        rows.copy_(products) if total is None else rows.add_(products)
    return gradient
