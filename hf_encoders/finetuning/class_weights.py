"""Weights that make examples of some classes count more in the loss."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hf_encoders.data.batches import IGNORED
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.models.encoder_losses import normalised


def read_class_weights(words: list[str], task: PreparedTask) -> list[float] | None:
    """A weight a class from `["balanced"]` or from `label=weight` words; classes that are not named weigh 1.

    Raises:
        ValueError: for a task without classes, a class that there is not, or a weight below 0.
    """
    if not words:
        return None
    if task.label_names is None or task.config_fields.get("problem_type") == "multi_label_classification":
        raise ValueError("--class-weights is for tasks with one class a row or a token: leave it out.")
    if words == ["balanced"]:
        return balanced_weights(task.train_set["labels"], task.label_names)
    weights = dict.fromkeys(task.label_names, 1.0)
    for word in words:
        name, _, weight = word.rpartition("=")
        if name not in weights:
            raise ValueError(f"--class-weights {word!r}: no class {name!r}, but {', '.join(weights)}; or balanced.")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise ValueError(f"--class-weights {word!r}: {weight!r} is not a number.") from None
        if not weights[name] >= 0:
            raise ValueError(f"--class-weights {word!r}: a weight must not be below 0.")
    return list(weights.values())


def balanced_weights(labels: Any, names: list[str]) -> list[float]:
    """For each class `items / (classes * items of the class)`, as in scikit-learn: the mean over all items is 1.

    Args:
        labels: class numbers of the training rows, or lists of those of tokens, with -100 for none.
        names (`list` of `str`): the classes.

    Raises:
        ValueError: for a class without a training item.

    >>> balanced_weights([0, 0, 0, 1], ["no", "yes"])
    [0.6666666666666666, 2.0]
    """
    items = np.concatenate([np.atleast_1d(np.asarray(row)) for row in labels])
    counts = np.bincount(items[items != IGNORED], minlength=len(names))
    missing = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if missing:
        raise ValueError(
            f"--class-weights balanced: no training row has {', '.join(missing)}; give label=weight pairs."
        )
    return (counts.sum() / (len(names) * counts)).tolist()


def class_weighted_loss(weights: list[float]) -> Callable[..., torch.Tensor]:
    r"""`Trainer`'s `compute_loss_func` for `sum_i w(y_i) * -log p(y_i) / number of labelled items`.

    The divisor is the number of items in the whole batch, over accumulated micro-batches and processes, so the loss
    does not depend on how the batch is cut. It is not `sum_i w(y_i)`, by which `torch.nn.CrossEntropyLoss` divides and
    which no micro-batch knows of the others; with balanced weights both are equal on the mean.

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
