"""Accuracy of a sentence-pair objective: next sentence (Devlin et al. 2018) or sentence order (Lan et al. 2019)."""

import datasets
import evaluate


CLASSES = {"next_sentence": ("follows", "random"), "sentence_order": ("in_order", "swapped")}
IGNORED = -100  # label of no pair, as in the data; this file can be loaded by itself


class PairAccuracy(evaluate.Metric):
    """Accuracy of a pair head, overall and for each class, because a head that always says the same gets one half.

    `config_name` is `next_sentence` (the default) or `sentence_order`; it names the classes. Differs from `Accuracy`
    in: pairs whose label is -100 are left out, as in the loss.

    >>> PairAccuracy("sentence_order").compute(predictions=[0, 0, 0, 0], references=[0, 1, 0, -100])
    {'pair_accuracy': 0.6666666666666666, 'pair_accuracy_in_order': 1.0, 'pair_accuracy_swapped': 0.0, 'pairs': 3}
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", *CLASSES):
            raise ValueError(f"config_name={self.config_name!r}: must be one of {', '.join(CLASSES)}.")
        class_id = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=self._compute.__doc__,
            features=datasets.Features({"predictions": class_id, "references": class_id}),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        """Compare classes.

        Args:
            predictions (`list` of `int`): the greater of the two scores, 0 or 1, `(pairs,)`.
            references (`list` of `int`): 0 = follows, in order; 1 = random, swapped; -100 = no label; `(pairs,)`.

        Returns:
            `pair_accuracy` and `pair_accuracy_<class>` for classes that occur, in [0, 1]; `pairs`, how many have a
            label.

        Raises:
            ValueError: if no pair has a label, or one has another label.
        """
        labelled = [pair for pair in zip(predictions, references, strict=True) if pair[1] != IGNORED]
        others = {label for _, label in labelled} - {0, 1}
        if others or not labelled:
            raise ValueError(
                f"references has {f'the label {min(others)}' if others else 'no label'}: pass 0 or 1 a pair, and "
                f"{IGNORED} where there is none."
            )
        names = CLASSES["next_sentence" if self.config_name == "default" else self.config_name]
        figures = {"pair_accuracy": _share_right(labelled)}
        for label, name in enumerate(names):
            if of_class := [pair for pair in labelled if pair[1] == label]:
                figures[f"pair_accuracy_{name}"] = _share_right(of_class)
        return {**figures, "pairs": len(labelled)}


def _share_right(pairs: list[tuple[int, int]]) -> float:
    return sum(prediction == label for prediction, label in pairs) / len(pairs)
