"""Pearson correlation: the linear relation between predicted and true numbers."""

import datasets
import evaluate
import scipy.stats


class PearsonCorrelation(evaluate.Metric):
    """scipy's Pearson correlation.

    >>> round(PearsonCorrelation().compute(predictions=[1, 2, 4], references=[1, 2, 3])["pearsonr"], 6)
    0.981981
    """

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        """Compute the correlation of at least two numbers.

        Returns:
            `pearsonr`, in [-1, 1]; NaN, with scipy's warning, if all predictions or all references are equal.
        """
        return {"pearsonr": float(scipy.stats.pearsonr(predictions, references).statistic)}
