"""Accuracy: the share of items whose predicted class is the true one."""

from collections.abc import Sequence

import datasets
import evaluate
import numpy as np


IGNORED = -100  # label of an item without one, as in the losses; this file can be loaded alone


class Accuracy(evaluate.Metric):
    """Accuracy of the items that have a label, overall and, if asked for, of each class.

    The configuration `multilabel` takes a list of 0 and 1 per item; an item is right if the whole list is.

    >>> Accuracy().compute(predictions=[0, 1, 1, 0], references=[0, 1, 0, -100])
    {'accuracy': 0.6666666666666666}
    >>> Accuracy().compute(predictions=[0, 0, 0], references=[0, 1, 1], class_names=["in_order", "swapped"])
    {'accuracy': 0.3333333333333333, 'accuracy_in_order': 1.0, 'accuracy_swapped': 0.0}
    """

    def _info(self) -> evaluate.MetricInfo:
        label = datasets.Value("int64")
        kinds = {"default": label, "multilabel": datasets.Sequence(label)}
        if self.config_name not in kinds:
            raise ValueError(f"config_name={self.config_name!r}: must be one of {', '.join(kinds)}.")
        features = datasets.Features(dict.fromkeys(("predictions", "references"), kinds[self.config_name]))
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self, predictions: list, references: list, class_names: Sequence[str] | None = None
    ) -> dict[str, float]:
        """Compute the accuracy.

        Args:
            predictions, references (`list`): Class ids `(items,)`, -100 for no label; with `multilabel` 0 or 1,
                `(items, classes)`.
            class_names (`Sequence` of `str`, *optional*): Names of the classes by id.

        Returns:
            `accuracy`, in [0, 1]; with `class_names` also `accuracy_<name>` of the items of each class that occurs: a
            head of two classes that always predicts the same one reaches one half.
        """
        predicted, true = np.asarray(predictions), np.asarray(references)
        if self.config_name == "multilabel":
            return {"accuracy": float((predicted == true).all(axis=1).mean())}
        predicted, true = predicted[true != IGNORED], true[true != IGNORED]
        if len(true) == 0:
            raise ValueError(f"references has no label: pass classes, and {IGNORED} for some items only.")
        is_right = predicted == true
        metrics = {"accuracy": float(is_right.mean())}
        for number, name in enumerate(class_names or ()):
            if number in true:
                metrics[f"accuracy_{name}"] = float(is_right[true == number].mean())
        return metrics
