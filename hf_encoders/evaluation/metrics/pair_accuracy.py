"""Accuracy of a sentence-pair objective: next sentence (Devlin et al. 2018) or sentence order (Lan et al. 2019)."""

import datasets
import evaluate


CLASSES = {"next_sentence": ("follows", "random"), "sentence_order": ("in_order", "swapped")}
IGNORED = -100  # label of no pair, as in the data; this file can be loaded by itself


class PairAccuracy(evaluate.Metric):
    """Accuracy of a pair head, overall and per class, because a head that always predicts one class reaches one half.

    `config_name`, `next_sentence` (the default) or `sentence_order`, names the classes. Unlike in `Accuracy`, pairs
    with label -100 are ignored, as in the loss.

    >>> PairAccuracy("sentence_order").compute(predictions=[0, 0, 0, 0], references=[0, 1, 0, -100])
    {'pair_accuracy': 0.6666666666666666, 'pair_accuracy_in_order': 1.0, 'pair_accuracy_swapped': 0.0, 'pairs': 3}
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", *CLASSES):
            raise ValueError(f"config_name={self.config_name!r}: must be one of {', '.join(CLASSES)}.")
        class_id = datasets.Value("int64")
        features = datasets.Features({"predictions": class_id, "references": class_id})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        """Compute the accuracy.

        Args:
            predictions (`list` of `int`): The class with the higher score, 0 or 1, `(pairs,)`.
            references (`list` of `int`): 0 = follows, in order; 1 = random, swapped; -100 = no label; `(pairs,)`.

        Returns:
            `pair_accuracy` and `pair_accuracy_<class>` for classes that occur, in [0, 1]; `pairs`, the number of
            labelled pairs.
        """
        labelled = [pair for pair in zip(predictions, references, strict=True) if pair[1] != IGNORED]
        others = {label for _, label in labelled} - {0, 1}
        if others or not labelled:
            wrong = f"the label {min(others)}" if others else "no label"
            raise ValueError(f"references has {wrong}: pass 0 or 1, or {IGNORED} to ignore a pair.")
        names = CLASSES["next_sentence" if self.config_name == "default" else self.config_name]
        metrics = {"pair_accuracy": _share_right(labelled)}
        for label, name in enumerate(names):
            if of_class := [pair for pair in labelled if pair[1] == label]:
                metrics[f"pair_accuracy_{name}"] = _share_right(of_class)
        return {**metrics, "pairs": len(labelled)}


def _share_right(pairs: list[tuple[int, int]]) -> float:
    return sum(prediction == label for prediction, label in pairs) / len(pairs)
