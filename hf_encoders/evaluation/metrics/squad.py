"""SQuAD 1.1: exact match and F1 of extracted answers (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250)."""

import re
import string
from collections import Counter

import datasets
import evaluate


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class Squad(evaluate.Metric):
    """The metrics of the official script `evaluate-v1.1.py`.

    >>> Squad().compute(
    ...     predictions=[{"id": "q1", "prediction_text": "the red cat"}],
    ...     references=[{"id": "q1", "answers": {"text": ["A cat", "dogs"], "answer_start": [3, 9]}}],
    ... )
    {'exact_match': 0.0, 'f1': 66.66666666666666}
    """

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        answers = datasets.Sequence({"text": text, "answer_start": datasets.Value("int32")})
        features = datasets.Features(
            {"predictions": {"id": text, "prediction_text": text}, "references": {"id": text, "answers": answers}}
        )
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(self, predictions: list[dict], references: list[dict]) -> dict[str, float]:
        """Compute exact match and F1.

        Args:
            predictions (`list` of `dict`): `id` and `prediction_text` of each question, in any order.
            references (`list` of `dict`): `id` and `answers`, a `dict` of the lists `text` (of one or more right
                answers) and `answer_start` (unused).

        Returns:
            `exact_match` and `f1`, in percent; each question counts with its best gold answer.
        """
        exact, f1 = [], []
        for prediction, reference in zip(in_order_of_references(predictions, references), references, strict=True):
            text, golds = prediction["prediction_text"], reference["answers"]["text"]
            if not golds:
                raise ValueError(f"references: the question {reference['id']!r} has no answer: use SquadV2.")
            exact.append(normalised_words(text) in map(normalised_words, golds))
            f1.append(max(word_f1(text, gold) for gold in golds))
        return {"exact_match": 100.0 * sum(exact) / len(exact), "f1": 100.0 * sum(f1) / len(f1)}


# The rules of both versions (Rajpurkar et al. 2016, section 6.1); `squad_v2.py` imports them.


def normalised_words(answer: str) -> list[str]:
    """The words that are compared: lower-cased, without ASCII punctuation (removed first) and English articles.

    >>> normalised_words("The  cat's (an) A-team, «now»")
    ['cats', 'ateam', '«now»']
    """
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def word_f1(prediction: str, gold: str) -> float:
    """F1 of the bags of normalised words, in [0, 1]; 0 without a common word, also between two empty answers.

    >>> word_f1("the red cat", "A cat")
    0.6666666666666666
    """
    predicted, true = normalised_words(prediction), normalised_words(gold)
    common = (Counter(predicted) & Counter(true)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(true)
    return 2 * precision * recall / (precision + recall)


def in_order_of_references(predictions: list[dict], references: list[dict]) -> list[dict]:
    """The predictions in the order of the references, matched by `id`; ids must be unique and match."""
    by_id = {prediction["id"]: prediction for prediction in predictions}
    wanted = [reference["id"] for reference in references]
    for name, rows in (("predictions", predictions), ("references", references)):
        ids = Counter(row["id"] for row in rows)
        if len(ids) < len(rows):
            raise ValueError(f"{name} has the id {ids.most_common(1)[0][0]!r} twice: pass one row per question.")
    if missing := [question for question in wanted if question not in by_id]:
        raise ValueError(f"predictions has no row for the question {missing[0]!r}: pass '' for no answer.")
    return [by_id[question] for question in wanted]
