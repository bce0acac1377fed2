"""Accuracy: the share of items whose predicted class is the true one."""

import datasets
import evaluate
import sklearn.metrics


class Accuracy(evaluate.Metric):
    """scikit-learn's accuracy.

    The configuration `multilabel` takes a list of 0 and 1 per item; an item is right if the whole list is.

    >>> Accuracy().compute(predictions=[0, 1, 1, 0], references=[0, 1, 0, 0])
    {'accuracy': 0.75}
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", "multilabel"):
            raise ValueError(f"config_name={self.config_name!r}: must be 'default' or 'multilabel'.")
        classes = datasets.Value("int64")
        if self.config_name == "multilabel":
            classes = datasets.Sequence(classes)
        features = datasets.Features({"predictions": classes, "references": classes})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self, predictions: list, references: list, sample_weight: list[float] | None = None
    ) -> dict[str, float]:
        """Compute the accuracy.

        Args:
            predictions, references (`list`): Class ids `(items,)`; with `multilabel` 0 or 1, `(items, classes)`.
            sample_weight (`list` of `float`, *optional*): Weight of each item, `(items,)`.

        Returns:
            `accuracy`, in [0, 1].
        """
        found = sklearn.metrics.accuracy_score(references, predictions, sample_weight=sample_weight)
        return {"accuracy": float(found)}
