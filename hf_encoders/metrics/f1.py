"""F1: the harmonic mean of precision and recall, of one class, averaged over classes in three ways, or of each."""

from collections.abc import Sequence

import datasets
import evaluate
import sklearn.metrics


AVERAGES = ("binary", "macro", "micro", "weighted", "per_class")


class F1(evaluate.Metric):
    """F1 over scikit-learn.

    The configuration `multilabel` takes a list of 0 and 1 an item; `average="binary"` is not for it.

    >>> F1().compute(predictions=[0, 1, 1, 0, 0], references=[0, 1, 0, 0, 1])
    {'f1': 0.5}
    >>> F1().compute(predictions=[0, 1, 1, 0, 0], references=[0, 1, 0, 0, 1], average="per_class")
    {'f1_0': 0.6666666666666666, 'f1_1': 0.5}
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", "multilabel"):
            raise ValueError(f"config_name={self.config_name!r}: must be 'default' or 'multilabel'.")
        classes = datasets.Value("int64")
        if self.config_name == "multilabel":
            classes = datasets.Sequence(classes)
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=self._compute.__doc__,
            features=datasets.Features({"predictions": classes, "references": classes}),
        )

    def _compute(
        self,
        predictions: list[int] | list[list[int]],
        references: list[int] | list[list[int]],
        average: str = "binary",
        pos_label: int = 1,
        labels: Sequence[int] | None = None,
        label_names: Sequence[str] | None = None,
        sample_weight: list[float] | None = None,
    ) -> dict[str, float]:
        """Compare classes.

        A class that is never predicted and never true, but is in `labels`, has an F1 of 0.

        Args:
            predictions, references: class ids, `(items,)`; with `multilabel` 0 or 1, `(items, classes)`.
            average (`str`): `binary` (that of `pos_label`), `macro` (mean over classes), `micro` (of the counts of
                all classes together), `weighted` (mean weighted by how often each class is true), `per_class`.
            pos_label (`int`): the class that `binary` is about.
            labels (`Sequence` of `int`, *optional*): the classes to count, in this order; None means those that occur
                in `predictions` or `references`, sorted.
            label_names (`Sequence` of `str`, *optional*): for `per_class`, names of the classes, by id.
            sample_weight (`list` of `float`, *optional*): weight of each item, `(items,)`.

        Returns:
            `f1`, in [0, 1]; with `per_class` `f1_<id or name>` for each class instead.

        Raises:
            ValueError: for another `average`; for `binary` with more than two classes (scikit-learn); for a class
                without a name, and for two of the same, whose figures could not be told apart.
        """
        if average not in AVERAGES:
            raise ValueError(f"average={average!r}: must be one of {', '.join(AVERAGES)}.")
        found = sklearn.metrics.f1_score(
            references,
            predictions,
            labels=labels,
            pos_label=pos_label,
            average=None if average == "per_class" else average,
            sample_weight=sample_weight,
            zero_division=0.0,
        )
        if average != "per_class":
            return {"f1": float(found)}
        if labels is None and self.config_name == "multilabel":
            labels = range(len(found))
        elif labels is None:
            labels = sorted({*predictions, *references})
        return dict(zip(_figure_names(labels, label_names), map(float, found), strict=True))


def _figure_names(labels: Sequence[int], label_names: Sequence[str] | None) -> list[str]:
    try:
        names = labels if label_names is None else [label_names[label] for label in labels]
    except LookupError:
        raise ValueError(f"label_names has no name for one of the classes {list(labels)}: name all.") from None
    figures = [f"f1_{name}" for name in names]
    if twice := [name for name in figures if figures.count(name) > 1]:
        raise ValueError(f"{twice[0]} would be the figure of two classes: give each a name of its own.")
    return figures
