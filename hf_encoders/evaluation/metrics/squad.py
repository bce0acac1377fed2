"""SQuAD's metrics of answers: version 1.1 (Rajpurkar et al. 2016) and version 2.0, with questions without an answer.

https://arxiv.org/abs/1606.05250 and https://arxiv.org/abs/1806.03822; equal to the official `evaluate-v1.1.py` and
`evaluate-v2.0.py`.
"""

import re
import string
from collections import Counter

import datasets
import evaluate
import numpy as np


PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class Squad(evaluate.Metric):
    """The metrics of SQuAD 1.1; with the configuration `v2` those of SQuAD 2.0.

    >>> Squad().compute(
    ...     predictions=[{"id": "q1", "prediction_text": "the red cat"}],
    ...     references=[{"id": "q1", "answers": {"text": ["A cat", "dogs"], "answer_start": [3, 9]}}],
    ... )
    {'exact_match': 0.0, 'f1': 66.66666666666666}
    >>> Squad("v2").compute(
    ...     predictions=[
    ...         {"id": "q1", "prediction_text": "a cat", "no_answer_probability": 0.1},
    ...         {"id": "q2", "prediction_text": "dogs", "no_answer_probability": 0.4},
    ...     ],
    ...     references=[
    ...         {"id": "q1", "answers": {"text": ["The cat"], "answer_start": [0]}},
    ...         {"id": "q2", "answers": {"text": [], "answer_start": []}},
    ...     ],
    ... )  # doctest: +NORMALIZE_WHITESPACE
    {'exact': 50.0, 'f1': 50.0, 'total': 2, 'HasAns_exact': 100.0, 'HasAns_f1': 100.0, 'HasAns_total': 1,
     'NoAns_exact': 0.0, 'NoAns_f1': 0.0, 'NoAns_total': 1, 'best_exact': 100.0, 'best_exact_thresh': 0.1,
     'best_f1': 100.0, 'best_f1_thresh': 0.1}
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", "v2"):
            raise ValueError(f"config_name={self.config_name!r}: must be default (version 1.1) or v2.")
        text = datasets.Value("string")
        answers = datasets.Sequence({"text": text, "answer_start": datasets.Value("int32")})
        prediction = {"id": text, "prediction_text": text}
        if self.config_name == "v2":
            prediction["no_answer_probability"] = datasets.Value("float64")
        features = datasets.Features({"predictions": prediction, "references": {"id": text, "answers": answers}})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self, predictions: list[dict], references: list[dict], no_answer_threshold: float = 1.0
    ) -> dict[str, float]:
        """Compute exact match and F1; each question counts with its best right answer.

        Args:
            predictions (`list` of `dict`): `id`, `prediction_text` and, with `v2`, `no_answer_probability` of each
                question, in any order. The text is empty for no answer; the probability is 0.0 if unknown, and any
                increasing score works.
            references (`list` of `dict`): `id` and `answers`, a `dict` of the lists `text` (right answers; with `v2`
                empty for a question without one) and `answer_start` (unused).
            no_answer_threshold (`float`, *optional*, defaults to 1.0): With `v2`, a question with a higher
                `no_answer_probability` counts as not answered.

        Returns:
            In percent. `exact_match` and `f1`; with `v2` `exact`, `f1` and `total` (number of questions), of all, and
            with the prefixes `HasAns_` and `NoAns_` of those with and without an answer, if there are any;
            `best_exact`, `best_f1` with the best threshold, and `best_exact_thresh`, `best_f1_thresh`, that threshold.
        """
        predictions = in_order_of_references(predictions, references)
        texts = [prediction["prediction_text"] for prediction in predictions]
        golds = [reference["answers"]["text"] for reference in references]
        if self.config_name == "default":
            for reference, answers in zip(references, golds, strict=True):
                if not answers:
                    raise ValueError(f"references: the question {reference['id']!r} has no answer: use Squad('v2').")
            scores = question_scores(texts, golds, empty_f1=0.0)
            return {"exact_match": percent(scores["exact"]), "f1": percent(scores["f1"])}
        # Gold answers without words are no answer.
        golds_with_words = [[gold for gold in answers if normalised_words(gold)] or [""] for answers in golds]
        scores = question_scores(texts, golds_with_words, empty_f1=1.0)
        has_answer = np.array([bool(answers) for answers in golds])
        probabilities = np.array([prediction["no_answer_probability"] for prediction in predictions])
        metrics = {}
        for prefix, chosen in (("", np.ones_like(has_answer)), ("HasAns_", has_answer), ("NoAns_", ~has_answer)):
            if chosen.any():
                for name, values in scores.items():
                    # Above the threshold the answer is dropped, which is right if there is none.
                    kept = np.where(probabilities > no_answer_threshold, ~has_answer, values)
                    metrics[prefix + name] = percent(kept[chosen])
                metrics[f"{prefix}total"] = int(chosen.sum())
        for name, values in scores.items():
            best, threshold = best_threshold(values, texts, probabilities, has_answer)
            metrics |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
        return metrics


def question_scores(texts: list[str], golds: list[list[str]], empty_f1: float) -> dict[str, list[float]]:
    """Return `exact` and `f1` of each answer, in [0, 1]; `empty_f1` is the F1 of two answers without words."""
    pairs = list(zip(texts, golds, strict=True))
    return {
        "exact": [float(normalised_words(text) in map(normalised_words, answers)) for text, answers in pairs],
        "f1": [max(word_f1(text, gold, empty_f1) for gold in answers) for text, answers in pairs],
    }


def normalised_words(answer: str) -> list[str]:
    """Return the words that are compared: lower-cased, without ASCII punctuation (removed first) and English articles.

    >>> normalised_words("The  cat's (an) A-team, «now»")
    ['cats', 'ateam', '«now»']
    """
    return ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split()


def word_f1(prediction: str, gold: str, empty: float = 0.0) -> float:
    """Return F1 of the bags of normalised words, in [0, 1]; `empty` if both have none.

    >>> word_f1("the red cat", "A cat")
    0.6666666666666666
    """
    predicted, true = normalised_words(prediction), normalised_words(gold)
    if not predicted and not true:
        return empty
    common = (Counter(predicted) & Counter(true)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(true)
    return 2 * precision * recall / (precision + recall)


def percent(scores: list[float] | np.ndarray) -> float:
    """Return the mean of scores in [0, 1], in percent."""
    return 100.0 * sum(map(float, scores)) / len(scores)


def best_threshold(
    scores: list[float], texts: list[str], probabilities: np.ndarray, has_answer: np.ndarray
) -> tuple[float, float]:
    """Return the best mean score, in percent, over thresholds on the no-answer probability, and that threshold.

    As in the official script, with its two peculiarities: questions of equal probability are added one by one in the
    given order, so the score may be slightly above what any threshold reaches, and an answer to a question without one
    is wrong even if normalisation leaves nothing of it. `scores` are those of the answers, if they are kept.

    >>> best_threshold([1.0, 0.0, 0.0], ["cat", "dog", "cow"], [0.2, 0.3, 0.1], [True, True, False])
    (33.333333333333336, 0.0)
    """
    current = best = len(scores) - sum(map(bool, has_answer))
    threshold = 0.0
    for question in sorted(range(len(scores)), key=probabilities.__getitem__):
        if has_answer[question]:
            current += scores[question]
        elif texts[question]:
            current -= 1
        if current > best:
            best, threshold = current, float(probabilities[question])
    return 100.0 * best / len(scores), threshold


def in_order_of_references(predictions: list[dict], references: list[dict]) -> list[dict]:
    """Return the predictions in the order of the references, matched by `id`; ids must be unique and match."""
    for name, rows in (("predictions", predictions), ("references", references)):
        [(most_common, count)] = Counter(row["id"] for row in rows).most_common(1)
        if count > 1:
            raise ValueError(f"{name} has the id {most_common!r} twice: pass one row per question.")
    by_id = {prediction["id"]: prediction for prediction in predictions}
    for reference in references:
        if reference["id"] not in by_id:
            raise ValueError(f"predictions has no row for the question {reference['id']!r}: pass '' for no answer.")
    return [by_id[reference["id"]] for reference in references]
