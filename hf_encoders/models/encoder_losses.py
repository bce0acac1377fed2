"""Losses and their normalisation.

Every loss term is a sum over its own items (predicted tokens, sentence pairs, labelled rows) divided by the number of
these items. When a batch is split over accumulation steps or processes, the divisor is the number of items in the
whole batch, which Trainer passes as `num_items_in_batch`; so the loss does not depend on the split.
"""

from typing import NamedTuple

import torch
from torch import nn


IGNORED = -100


class ObjectiveSums(NamedTuple):
    """Sums of one loss term over the items of one forward pass; scalars, all but `nll` without gradient.

    Labels of -100 are not items.
    """

    nll: torch.Tensor  # summed negative log-likelihood in nats, float32 or the model's float64
    correct: torch.Tensor  # items whose most likely class is the label
    count: torch.Tensor


def classification_sums(logits: torch.Tensor, labels: torch.Tensor) -> ObjectiveSums:
    """Cross-entropy summed over items: logits `(items, classes)`, labels `(items,)` with -100 ignored."""
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
    """`total` divided by the number of items in the whole batch, or in this forward pass (`count`) if that is unknown.

    Without items the result and its gradients are zero, so that a micro-batch without predictions changes nothing.
    """
    divisor = count if num_items_in_batch is None else num_items_in_batch
    if torch.is_tensor(divisor):
        return total / divisor.to(total.device).clamp(min=1)
    return total / max(divisor, 1)


def pair_share_of_batch(
    pair: ObjectiveSums, mlm: ObjectiveSums | None, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Normalised loss of the sentence pairs.

    The stock Trainer counts the items of `labels` only and expects the losses of micro-batches to add up. So the mean
    over this pass's pairs is weighted by its share of the predicted tokens: right in scale, and exact for one pass.
    """
    if num_items_in_batch is None or mlm is None:
        return normalised(pair.nll, pair.count, None)
    share = normalised(mlm.count.to(pair.nll.dtype), mlm.count, num_items_in_batch)
    return normalised(pair.nll, pair.count, None) * share


def infer_problem_type(labels: torch.Tensor | None, num_labels: int) -> str | None:
    """The problem type that the dtype of `labels` and `num_labels` imply, as transformers infers it."""
    if labels is None:
        return None
    if num_labels == 1:
        return "regression"
    return "single_label_classification" if labels.dtype in (torch.long, torch.int) else "multi_label_classification"


def sequence_classification_loss(
    logits: torch.Tensor, labels: torch.Tensor, problem_type: str, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Loss of a classifier or regressor over whole sequences; `logits` are `(B, num_labels)`.

    `labels` are `(B,)` class ids, `(B,)` or `(B, num_labels)` floats for regression, or `(B, num_labels)` of 0 and 1
    for several labels per row, as `problem_type` says.

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
        sums = classification_sums(logits, labels)
        return normalised(sums.nll, sums.count, num_items_in_batch)
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
    """Mean of the cross-entropies of an answer's first and last token (BERT, section 4.2).

    The softmax runs over the whole row of `(B, T)` scores, padding included, as in the original code. Positions are
    columns; those beyond the row's end, from windows without the answer, are ignored, and negative ones count as 0,
    as in transformers.
    """
    losses = []
    for logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
        row_length = logits.shape[1]
        positions = positions.view(-1).clamp(0, row_length)
        positions = positions.masked_fill(positions == row_length, IGNORED)
        sums = classification_sums(logits, positions)
        losses.append(normalised(sums.nll, sums.count, None))
    return (losses[0] + losses[1]) / 2
