"""Hand-made answers for the SQuAD metrics: questions with gold answers, predictions, no-answer probabilities."""

from typing import NamedTuple


class Answer(NamedTuple):
    """A question by its gold answers (none if it has no answer), what was predicted, and how sure of no answer."""

    golds: list[str]
    predicted: str
    no_answer_probability: float = 0.0


# Behind each its exact match and F1, by hand.
SQUAD = [
    Answer(["The Eiffel Tower"], "eiffel tower!"),  # 1, 1: articles and punctuation
    Answer(["Denver Broncos", "Denver"], "Broncos of Denver"),  # 0, 0.8: two of three words, both found
    Answer(["1,000"], "1000"),  # 1, 1
    Answer(["Zürich"], "zürich"),  # 1, 1
    Answer(["«naïve» café"], "naïve café"),  # 0, 0.5: only ASCII punctuation is dropped
    Answer(["the"], ""),  # 1, 0: nothing is left of either, and no word is common
    Answer(["cat cat dog"], "cat dog dog"),  # 0, 2/3: bags of words
    Answer(["blue"], ""),  # 0, 0
    Answer(["İstanbul"], "istanbul"),  # 0, 0: lower-case i with a dot above it
    Answer(["an apple", "a pear"], "A pear"),  # 1, 1: the best gold answer counts
    Answer(["the-end"], "theend"),  # 1, 1: punctuation goes before articles
    Answer(["theatre  of\tan opera"], "Theatre of opera"),  # 1, 1: articles are whole words, blanks do not count
]
SQUAD_V2 = [
    Answer(["The Eiffel Tower"], "eiffel tower", 0.1),  # 1, 1
    Answer(["Denver Broncos", "Denver"], "Broncos of Denver", 0.3),  # 0, 0.8
    Answer([], "", 0.9),  # 1, 1
    Answer([], "Paris", 0.2),  # 0, 0
    Answer([], "the", 0.05),  # 1, 1: nothing is left of it, but the search for a threshold takes it for an answer
    Answer(["blue"], "", 0.8),  # 0, 0
    Answer(["the", "..."], "", 0.7),  # 1, 1: gold answers without words are no answer
    Answer(["red cat"], "a red cat", 0.95),  # 1, 1; above a threshold of 0.5 0, 0
    Answer([], "London", 0.6),  # 0, 0; above a threshold of 0.5 1, 1
    Answer(["one", "two"], "two three", 0.6),  # 0, 2/3; the same probability as the one before
    Answer(["“naïve”"], "naïve", 0.25),  # 0, 0
    Answer(["moon"], "The Moon", 0.01),  # 1, 1
]


def references(answers: list[Answer]) -> list[dict]:
    """As `datasets` has them."""
    return [
        {"id": f"q{i}", "answers": {"text": answer.golds, "answer_start": [0] * len(answer.golds)}}
        for i, answer in enumerate(answers)
    ]


def predictions(answers: list[Answer], probabilities: bool) -> list[dict]:
    """Rows of predictions, with `no_answer_probability` if the metric wants it."""
    rows = [{"id": f"q{i}", "prediction_text": answer.predicted} for i, answer in enumerate(answers)]
    if probabilities:
        for row, answer in zip(rows, answers, strict=True):
            row["no_answer_probability"] = answer.no_answer_probability
    return rows
