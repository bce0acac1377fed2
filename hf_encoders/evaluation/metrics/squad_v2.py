"""SQuAD 2.0: answers that may not exist (Rajpurkar et al. 2018, https://arxiv.org/abs/1806.03822)."""

import itertools

import datasets
import evaluate

from .squad import in_order_of_references, normalised_words, word_f1


class SquadV2(evaluate.Metric):
    """The metrics of the official script `evaluate-v2.0.py` with a file of no-answer probabilities.

    >>> SquadV2().compute(
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
        text, probability = datasets.Value("string"), datasets.Value("float64")
        answers = datasets.Sequence({"text": text, "answer_start": datasets.Value("int32")})
        features = datasets.Features(
            {
                "predictions": {"id": text, "prediction_text": text, "no_answer_probability": probability},
                "references": {"id": text, "answers": answers},
            }
        )
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self, predictions: list[dict], references: list[dict], no_answer_threshold: float = 1.0
    ) -> dict[str, float]:
        """Compute exact match and F1.

        Args:
            predictions (`list` of `dict`): `id`, `prediction_text` (empty for no answer) and `no_answer_probability`
                (0.0 if unknown; any increasing score works) of each question, in any order.
            references (`list` of `dict`): `id` and `answers`, a `dict` of the lists `text` (right answers; empty for
                an unanswerable question) and `answer_start` (unused).
            no_answer_threshold (`float`, *optional*, defaults to 1.0): A question with a higher
                `no_answer_probability` counts as not answered.

        Returns:
            `exact` and `f1`, in percent, and `total`, of all questions; with prefix `HasAns_` and `NoAns_` of those
            with and without an answer, if there are any. `best_exact`, `best_f1`: with the best threshold;
            `best_exact_thresh`, `best_f1_thresh`: that threshold.
        """
        predictions = in_order_of_references(predictions, references)
        texts = [prediction["prediction_text"] for prediction in predictions]
        probabilities = [prediction["no_answer_probability"] for prediction in predictions]
        has_answer = [bool(reference["answers"]["text"]) for reference in references]
        pairs = list(zip(texts, map(_gold_answers, references), strict=True))
        raw = {
            "exact": [
                max(float(normalised_words(text) == normalised_words(gold)) for gold in golds) for text, golds in pairs
            ],
            "f1": [max(_f1(text, gold) for gold in golds) for text, golds in pairs],
        }
        # Above the threshold the answer is dropped, which is right for unanswerable questions.
        final = {
            name: [
                float(not answerable) if probability > no_answer_threshold else score
                for score, probability, answerable in zip(scores, probabilities, has_answer, strict=True)
            ]
            for name, scores in raw.items()
        }
        metrics = _means(final, [True] * len(texts), "")
        metrics |= _means(final, has_answer, "HasAns_")
        metrics |= _means(final, [not answerable for answerable in has_answer], "NoAns_")
        for name, scores in raw.items():
            best, threshold = best_threshold(scores, texts, probabilities, has_answer)
            metrics |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
        return metrics


def best_threshold(
    scores: list[float], texts: list[str], probabilities: list[float], has_answer: list[bool]
) -> tuple[float, float]:
    """The best mean score, in percent, over thresholds on the no-answer probability, and that threshold.

    As in the official script, with its two peculiarities: questions of equal probability are added one by one in the
    given order, so the score may be slightly above what any threshold reaches, and an answer to an unanswerable
    question is wrong even if normalisation leaves nothing of it.

    Args:
        scores (`list` of `float`): Of each question if its answer is kept, in [0, 1].
        texts (`list` of `str`): The answers.
        probabilities (`list` of `float`): Of no answer.
        has_answer (`list` of `bool`): Whether the question is answerable.

    >>> best_threshold([1.0, 0.0, 0.0], ["cat", "dog", "cow"], [0.2, 0.3, 0.1], [True, True, False])
    (33.333333333333336, 0.0)
    """
    current = best = sum(not answerable for answerable in has_answer)
    threshold = 0.0
    for i in sorted(range(len(scores)), key=probabilities.__getitem__):
        if has_answer[i]:
            current += scores[i]
        elif texts[i]:
            current -= 1
        if current > best:
            best, threshold = current, probabilities[i]
    return 100.0 * best / len(scores), threshold


def _gold_answers(reference: dict) -> list[str]:
    """Gold answers with words, or one empty answer."""
    return [text for text in reference["answers"]["text"] if normalised_words(text)] or [""]


def _f1(prediction: str, gold: str) -> float:
    """As in SQuAD 1.1, but 1 for two empty answers."""
    if not normalised_words(prediction) and not normalised_words(gold):
        return 1.0
    return word_f1(prediction, gold)


def _means(scores: dict[str, list[float]], chosen: list[bool], prefix: str) -> dict[str, float]:
    total = sum(chosen)
    if total == 0:
        return {}
    sums = {name: sum(itertools.compress(values, chosen)) for name, values in scores.items()}
    return {f"{prefix}{name}": 100.0 * value / total for name, value in sums.items()} | {f"{prefix}total": total}
