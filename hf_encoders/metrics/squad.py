"""SQuAD 1.1: exact match and F1 of extracted answers (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250)."""

import datasets
import evaluate

from .answer_overlap import in_order_of_references, is_exact_match, word_f1


class Squad(evaluate.Metric):
    """Figures equal to those of the official script `evaluate-v1.1.py`.

    >>> Squad().compute(
    ...     predictions=[{"id": "q1", "prediction_text": "the red cat"}],
    ...     references=[{"id": "q1", "answers": {"text": ["A cat", "dogs"], "answer_start": [3, 9]}}],
    ... )
    {'exact_match': 0.0, 'f1': 66.66666666666666}
    """

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        answers = datasets.Sequence({"text": text, "answer_start": datasets.Value("int32")})
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=self._compute.__doc__,
            features=datasets.Features(
                {
                    "predictions": {"id": text, "prediction_text": text},
                    "references": {"id": text, "answers": answers},
                }
            ),
        )

    def _compute(self, predictions: list[dict], references: list[dict]) -> dict[str, float]:
        """Compare answers.

        Args:
            predictions (`list` of `dict`): `id` and `prediction_text` of each question, in any order.
            references (`list` of `dict`): `id` and `answers`, a `dict` of the lists `text` (any of which is right, at
                least one) and `answer_start` (not read).

        Returns:
            `exact_match` and `f1`, in per cent; each question counts with its best gold answer.

        Raises:
            ValueError: if ids come twice or do not match, or a question has no gold answer.
        """
        exact, f1 = [], []
        for prediction, reference in zip(in_order_of_references(predictions, references), references, strict=True):
            text, golds = prediction["prediction_text"], reference["answers"]["text"]
            if not golds:
                raise ValueError(
                    f"references: the question {reference['id']!r} has no answer: use SquadV2 for data with questions "
                    "that cannot be answered."
                )
            exact.append(max(is_exact_match(text, gold) for gold in golds))
            f1.append(max(word_f1(text, gold) for gold in golds))
        return {"exact_match": 100.0 * sum(exact) / len(exact), "f1": 100.0 * sum(f1) / len(f1)}
