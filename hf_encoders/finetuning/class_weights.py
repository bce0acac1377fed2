"""Class weights of the loss."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.models.encoder_losses import normalised
from hf_encoders.objectives.batches import IGNORED


def read_class_weights(words: list[str], task: PreparedTask) -> list[float] | None:
    """A weight for each class from `["balanced"]` or from `label=weight` words; classes not named weigh 1."""
    if not words:
        return None
    if task.label_names is None or task.config_fields.get("problem_type") == "multi_label_classification":
        raise ValueError("--class-weights is for tasks with one class per row or token: leave it out.")
    if words == ["balanced"]:
        return balanced_weights(task.train_set["labels"], task.label_names)
    weights = dict.fromkeys(task.label_names, 1.0)
    for word in words:
        name, _, weight = word.rpartition("=")
        if name not in weights:
            raise ValueError(f"--class-weights {word!r}: there is no class {name!r}; use {', '.join(weights)}.")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise ValueError(f"--class-weights {word!r}: {weight!r} is not a number.") from None
        if not weights[name] >= 0:
            raise ValueError(f"--class-weights {word!r}: a weight must be at least 0.")
    return list(weights.values())


def balanced_weights(labels: Any, names: list[str]) -> list[float]:
    """`items / (classes * items of the class)` for each class, as in scikit-learn; their mean over all items is 1.

    `labels` are class ids of training rows, or lists of those of tokens, -100 for none.

    >>> balanced_weights([0, 0, 0, 1], ["no", "yes"])
    [0.6666666666666666, 2.0]
    """
    items = np.concatenate([np.atleast_1d(np.asarray(row)) for row in labels])
    counts = np.bincount(items[items != IGNORED], minlength=len(names))
    missing = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if missing:
        raise ValueError(f"--class-weights balanced: no training row has {', '.join(missing)}: use label=weight.")
    return (counts.sum() / (len(names) * counts)).tolist()


def class_weighted_loss(weights: list[float]) -> Callable[..., torch.Tensor]:
    r"""`Trainer`'s `compute_loss_func` for `sum_i w(y_i) * -log p(y_i) / number of labelled items`.

    The divisor counts the items of the whole batch, over accumulated micro-batches and processes, so the loss does not
    depend on how the batch is split. `torch.nn.CrossEntropyLoss` divides by `sum_i w(y_i)` instead, which a
    micro-batch cannot know of the others; with balanced weights both are equal on average.

    >>> loss = class_weighted_loss([1.0, 3.0])
    >>> scores = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> loss({"logits": scores}, torch.tensor([0, 1])).item() / torch.tensor(2.0).log().item()
    2.0
    """

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None) -> torch.Tensor:
        logits = outputs["logits"].float().flatten(0, -2)
        labels = labels.to(logits.device).flatten()
        weight = torch.tensor(weights, dtype=logits.dtype, device=logits.device)
        total = torch.nn.functional.cross_entropy(logits, labels, weight, reduction="sum", ignore_index=IGNORED)
        return normalised(total, labels.ne(IGNORED).sum(), num_items_in_batch)

    return loss
