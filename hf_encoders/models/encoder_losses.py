"""Losses and their normalisation.

Every loss term is a sum over its own items (predicted tokens, sentence pairs, labelled rows) divided by their number
in the whole batch, over accumulation steps and processes: `num_items_in_batch` of Trainer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from .encoder_kernels import is_bare_linear, is_eager, matmul_dtype, rows_at_once, with_padding_rows, without_autocast


IGNORED = -100


class ObjectiveSums(NamedTuple):
    """Sums of one loss term over the items of one forward pass; scalars, all but `nll` without gradient.

    Labels of -100 are not items.
    """

    nll: torch.Tensor  # summed negative log-likelihood in nats, float32 or the model's float64
    correct: torch.Tensor  # items whose most likely class is the label
    count: torch.Tensor


def classification_sums(logits: torch.Tensor, labels: torch.Tensor) -> ObjectiveSums:
    """Sum the cross-entropy over items: logits `(items, classes)`, labels `(items,)` with -100 ignored."""
    labels = labels.long()
    nll = nn.functional.cross_entropy(_at_least_float32(logits), labels, ignore_index=IGNORED, reduction="sum")
    is_item = labels != IGNORED
    correct = ((logits.detach().argmax(dim=-1) == labels) & is_item).sum()
    return ObjectiveSums(nll, correct, is_item.sum())


def _at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def normalised(
    total: torch.Tensor, count: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Divide `total` by the number of items in the whole batch, or in this forward pass (`count`) if that is None.

    Without items the result and its gradients are zero.
    """
    divisor = count if num_items_in_batch is None else num_items_in_batch
    if torch.is_tensor(divisor):
        return total / divisor.to(total.device).clamp(min=1)
    return total / max(divisor, 1)


def mean_loss(sums: ObjectiveSums | None, num_items_in_batch: torch.Tensor | int | None = None) -> torch.Tensor | None:
    """Return the `normalised` loss of a term, None without labels."""
    return None if sums is None else normalised(sums.nll, sums.count, num_items_in_batch)


def pair_share_of_batch(
    pair: ObjectiveSums, mlm: ObjectiveSums | None, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Return the mean over this pass's pairs, weighted by its share of the predicted tokens.

    The stock Trainer counts the items of `labels` only, and adds up the losses of micro-batches: exact for one pass.
    """
    if num_items_in_batch is None or mlm is None:
        return mean_loss(pair)
    return mean_loss(pair) * normalised(mlm.count.to(pair.nll.dtype), mlm.count, num_items_in_batch)


def infer_problem_type(labels: torch.Tensor | None, num_labels: int) -> str | None:
    """Return the problem type that the dtype of `labels` and `num_labels` imply, as transformers infers it."""
    if labels is None or num_labels == 1:
        return None if labels is None else "regression"
    return "single_label_classification" if labels.dtype in (torch.long, torch.int) else "multi_label_classification"


def sequence_classification_loss(
    logits: torch.Tensor, labels: torch.Tensor, problem_type: str, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Compute the loss of a classifier or regressor; `logits` `(B, num_labels)`, labels as in its `forward`.

    Raises:
        ValueError: if the number of labels does not match the logits.
    """
    is_single_label = problem_type == "single_label_classification"
    shape = logits.shape[:1] if is_single_label else logits.shape
    if labels.numel() != shape.numel():
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}, but {problem_type} with num_labels={logits.shape[-1]} needs "
            f"{tuple(shape)}: pass that, or set num_labels or problem_type in the configuration."
        )
    labels = labels.reshape(shape)
    if is_single_label:
        return mean_loss(classification_sums(logits, labels), num_items_in_batch)
    logits = _at_least_float32(logits)
    labels = labels.to(logits.dtype)
    if problem_type == "regression":
        total = nn.functional.mse_loss(logits, labels, reduction="sum")
    else:
        total = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return normalised(total, labels.numel(), num_items_in_batch)


def span_loss(
    start_logits: torch.Tensor, end_logits: torch.Tensor, start_positions: torch.Tensor, end_positions: torch.Tensor
) -> torch.Tensor:
    """Average the cross-entropies of an answer's first and last token (BERT, section 4.2) over `(B, T)` scores.

    The softmax includes padding, as in the original code. Positions beyond the row's end are ignored, negative ones
    count as 0, as in transformers.
    """
    losses = []
    for logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
        row_length = logits.shape[1]
        positions = positions.view(-1).clamp(0, row_length)
        positions = positions.masked_fill(positions == row_length, IGNORED)
        losses.append(mean_loss(classification_sums(logits, positions)))
    return (losses[0] + losses[1]) / 2


CHUNK_SCORES = 2**24  # 549 items with a vocabulary of 30,522
CHUNK_SCORES_ON_CUDA = 2**27  # 4,397 items; 0.8 GB in 16 bits and float32, and an eighth of the launches
VOCABULARY_BLOCK = 2**12  # 16-bit products of a base model on a CPU: 6 MB instead of 47


def chunk_scores(device: torch.device) -> int:
    """Return how many scores, items times classes, are held at once."""
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
    """Compute in chunks the loss of `become_gradients_` on `linear(hidden_states)` and `targets`, `(P, ...)`."""
    settings = (become_gradients_, matmul_dtype(hidden_states), torch.is_grad_enabled())
    return _LinearLoss.apply(hidden_states, linear.weight, linear.bias, targets, *settings)


class _LinearLoss(torch.autograd.Function):
    """Summed loss and number of correct items.

    The weight's gradient, the largest, is computed in the backward pass from the saved gradients of the last chunk's
    scores (usually the only chunk's); earlier chunks add theirs up in the forward pass.
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
    """Count items whose first highest score is the label's; on a CPU `argmax`, slow, of possible ones only."""
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
