"""Spearman correlation: the monotonic relation between predicted and true numbers."""

import datasets
import evaluate
import scipy.stats


class SpearmanCorrelation(evaluate.Metric):
    """scipy's Spearman correlation.

    >>> round(SpearmanCorrelation().compute(predictions=[1, 2, 4], references=[1, 3, 2])["spearmanr"], 6)
    0.5
    """

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        """Compute the correlation of at least two numbers.

        Returns:
            `spearmanr`, in [-1, 1]; NaN, with scipy's warning, if all predictions or all references are equal.
        """
        return {"spearmanr": float(scipy.stats.spearmanr(predictions, references).statistic)}
