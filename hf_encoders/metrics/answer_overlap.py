"""When two answers are the same, and how far they overlap: the rules of SQuAD (Rajpurkar et al. 2016, section 6.1).

Used by both versions of the task, which differ in what an empty answer is worth.
"""

import re
import string
from collections import Counter


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalised_words(answer: str) -> list[str]:
    """The words that are compared: lower-case, without ASCII punctuation and English articles.

    Punctuation goes first, so "a-b" is the one word "ab"; other scripts' punctuation stays.

    >>> normalised_words("The  cat's (an) A-team, «now»")
    ['cats', 'ateam', '«now»']
    """
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def is_exact_match(prediction: str, gold: str) -> bool:
    """Whether the normalised words are the same, in the same order."""
    return normalised_words(prediction) == normalised_words(gold)


def word_f1(prediction: str, gold: str) -> float:
    """F1 of the bags of normalised words, in [0, 1]; 0 without a common word, so also between two empty answers.

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
    """The predictions for the references, matched by `id`.

    Raises:
        ValueError: if an id comes twice, or has no counterpart.
    """
    by_id = {prediction["id"]: prediction for prediction in predictions}
    wanted = [reference["id"] for reference in references]
    for name, rows in (("predictions", predictions), ("references", references)):
        ids = Counter(row["id"] for row in rows)
        if len(ids) < len(rows):
            raise ValueError(f"{name} has the id {ids.most_common(1)[0][0]!r} twice: pass one row a question.")
    if missing := [question for question in wanted if question not in by_id]:
        raise ValueError(
            f"predictions has no row for the question {missing[0]!r} and {len(missing) - 1} others: pass "
            "prediction_text='' where there is no answer."
        )
    return [by_id[question] for question in wanted]
