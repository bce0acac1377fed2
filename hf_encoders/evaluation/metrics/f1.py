"""F1, the harmonic mean of precision and recall: of one class, averaged over classes, or of each class."""

import datasets
import evaluate
import sklearn.metrics


AVERAGES = ("binary", "macro", "micro", "weighted", "per_class")


class F1(evaluate.Metric):
    """scikit-learn's F1; the configuration `multilabel` takes a list of 0 and 1 per item.

    >>> F1().compute(predictions=[0, 1, 1, 0, 0], references=[0, 1, 0, 0, 1])
    {'f1': 0.5}
    >>> F1().compute(predictions=[0, 1, 1, 0, 0], references=[0, 1, 0, 0, 1], average="per_class")
    {'f1_0': 0.6666666666666666, 'f1_1': 0.5}
    """

    def _info(self) -> evaluate.MetricInfo:
        label = datasets.Value("int64")
        kinds = {"default": label, "multilabel": datasets.Sequence(label)}
        if self.config_name not in kinds:
            raise ValueError(f"config_name={self.config_name!r}: must be one of {', '.join(kinds)}.")
        features = datasets.Features(dict.fromkeys(("predictions", "references"), kinds[self.config_name]))
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self,
        predictions: list,
        references: list,
        average: str = "binary",
        pos_label: int = 1,
    ) -> dict[str, float]:
        """Compute F1.

        Args:
            predictions, references (`list`): Class ids `(items,)`; with `multilabel` 0 or 1, `(items, classes)`.
            average (`str`, *optional*, defaults to `"binary"`): `binary` (of `pos_label`; not with `multilabel`),
                `macro` (mean of classes), `micro` (from the counts of all classes together), `weighted` (mean by true
                frequency) or `per_class`.
            pos_label (`int`, *optional*, defaults to 1): The class for `binary`.

        Returns:
            `f1`, in [0, 1]; with `per_class` `f1_<id>` of each class instead.
        """
        if average not in AVERAGES:
            raise ValueError(f"average={average!r}: must be one of {', '.join(AVERAGES)}.")
        scores = sklearn.metrics.f1_score(
            references,
            predictions,
            pos_label=pos_label,
            average=None if average == "per_class" else average,
            zero_division=0.0,
        )
        if average != "per_class":
            return {"f1": float(scores)}
        is_multilabel = self.config_name == "multilabel"
        labels = range(len(scores)) if is_multilabel else sorted({*predictions, *references})
        return {f"f1_{label}": float(score) for label, score in zip(labels, scores, strict=True)}
