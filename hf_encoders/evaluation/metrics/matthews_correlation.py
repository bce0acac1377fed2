"""Matthews correlation: agreement of predicted and true classes, also for imbalanced ones."""

import datasets
import evaluate
import sklearn.metrics


class MatthewsCorrelation(evaluate.Metric):
    """scikit-learn's Matthews correlation, for two classes or more (Gorodkin 2004).

    >>> MatthewsCorrelation().compute(predictions=[1, 0, 1, 0], references=[1, 0, 0, 1])
    {'matthews_correlation': 0.0}
    """

    def _info(self) -> evaluate.MetricInfo:
        class_id = datasets.Value("int64")
        features = datasets.Features({"predictions": class_id, "references": class_id})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self, predictions: list[int], references: list[int], sample_weight: list[float] | None = None
    ) -> dict[str, float]:
        """Compute the correlation of class ids `(items,)`, optionally weighted.

        Returns:
            `matthews_correlation`, in [-1, 1]; 0 if all predictions, or all references, are the same class.
        """
        found = sklearn.metrics.matthews_corrcoef(references, predictions, sample_weight=sample_weight)
        return {"matthews_correlation": float(found)}
