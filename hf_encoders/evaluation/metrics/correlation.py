"""Correlation of predictions and true values: Pearson's and Spearman's of numbers, Matthews' of classes."""

import datasets
import evaluate
import scipy.stats
import sklearn.metrics


class Correlation(evaluate.Metric):
    """scipy's correlations of numbers; with the configuration `classes` scikit-learn's of class ids (Gorodkin 2004).

    >>> metrics = Correlation().compute(predictions=[1, 2, 4], references=[1, 3, 2])
    >>> round(metrics["pearsonr"], 6), round(metrics["spearmanr"], 6)
    (0.327327, 0.5)
    >>> Correlation("classes").compute(predictions=[1, 0, 1, 0], references=[1, 0, 0, 1])
    {'matthews_correlation': 0.0}
    """

    def _info(self) -> evaluate.MetricInfo:
        kinds = {"default": datasets.Value("float64"), "classes": datasets.Value("int64")}
        if self.config_name not in kinds:
            raise ValueError(f"config_name={self.config_name!r}: must be one of {', '.join(kinds)}.")
        features = datasets.Features(dict.fromkeys(("predictions", "references"), kinds[self.config_name]))
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        """Compute the correlation of values `(items,)`, two numbers or more.

        Returns:
            `pearsonr` and `spearmanr`, or `matthews_correlation`; in [-1, 1]. All are 0 if all predictions, or all
            references, are equal: there is no linear relation then, and NaN could not choose a checkpoint.
        """
        if self.config_name == "classes":
            return {"matthews_correlation": float(sklearn.metrics.matthews_corrcoef(references, predictions))}
        if len(references) < 2:
            raise ValueError(f"references has {len(references)} numbers: pass 2 or more.")
        if len({*predictions}) == 1 or len({*references}) == 1:
            return {"pearsonr": 0.0, "spearmanr": 0.0}
        return {
            "pearsonr": float(scipy.stats.pearsonr(predictions, references).statistic),
            "spearmanr": float(scipy.stats.spearmanr(predictions, references).statistic),
        }
