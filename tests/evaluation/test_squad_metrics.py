"""SQuAD metrics equal those of the official scripts, which gave the expected values here."""

from typing import NamedTuple

import pytest

from hf_encoders import Squad


class Answer(NamedTuple):
    """A question by its gold answers (none if it has no answer), what was predicted, and how sure of no answer."""

    golds: list[str]
    predicted: str
    no_answer_probability: float = 0.0


# After each its exact match and F1, by hand.
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


def predictions(answers: list[Answer], version: str) -> list[dict]:
    """Rows of predictions, with `no_answer_probability` if the metric wants it."""
    rows = [{"id": f"q{i}", "prediction_text": answer.predicted} for i, answer in enumerate(answers)]
    for row, answer in zip(rows, answers, strict=True):
        row |= {"no_answer_probability": answer.no_answer_probability} if version == "v2" else {}
    return rows


# `python evaluate-v1.1.py` and `python evaluate-v2.0.py --na-prob-file`, without and with `--na-prob-thresh 0.5`.
OFFICIAL_SQUAD = {"exact_match": 58.333333333333336, "f1": 66.38888888888889}
OFFICIAL_SQUAD_V2 = {
    "exact": 50.0, "f1": 62.22222222222222, "total": 12,
    "HasAns_exact": 50.0, "HasAns_f1": 68.33333333333333, "HasAns_total": 8,
    "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 4,
    "best_exact": 41.666666666666664, "best_exact_thresh": 0.01,
    "best_f1": 53.888888888888886, "best_f1_thresh": 0.95,
}  # fmt: skip
OFFICIAL_SQUAD_V2_ABOVE_ONE_HALF = OFFICIAL_SQUAD_V2 | {
    "exact": 41.666666666666664, "f1": 48.333333333333336,
    "HasAns_exact": 25.0, "HasAns_f1": 35.0,
    "NoAns_exact": 75.0, "NoAns_f1": 75.0,
}  # fmt: skip
CASES = {"default": (SQUAD, OFFICIAL_SQUAD), "v2": (SQUAD_V2, OFFICIAL_SQUAD_V2)}


@pytest.fixture
def compute(tmp_path):
    def metrics(answers: list[Answer], version: str = "default", backwards: bool = False, **options) -> dict:
        metric = Squad(version, cache_dir=str(tmp_path))
        rows = predictions(answers, version)[:: -1 if backwards else 1]
        return metric.compute(predictions=rows, references=references(answers), **options)

    return metrics


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("version", CASES)
def test_metrics_are_the_official_ones_in_any_order_of_the_predictions(compute, version, backwards):
    answers, expected = CASES[version]
    assert compute(answers, version, backwards) == expected


def test_threshold_drops_answers(compute):
    assert compute(SQUAD_V2, "v2", no_answer_threshold=0.5) == OFFICIAL_SQUAD_V2_ABOVE_ONE_HALF


def test_one_question_by_hand(compute):
    scores = [(100, 100), (0, 80), (100, 100), (100, 100), (0, 50), (100, 0), (0, 200 / 3), (0, 0), (0, 0)]
    for answer, (exact_match, f1) in zip(SQUAD, [*scores, *[(100, 100)] * 3], strict=True):
        assert compute([answer]) == {"exact_match": exact_match, "f1": pytest.approx(f1, abs=1e-9)}, answer


def test_questions_with_an_answer_alone_have_no_metrics_of_the_others(compute):
    found = compute([Answer(["x"], "x"), Answer(["y"], "")], "v2")
    assert found["HasAns_exact"] == found["exact"] == 50.0
    assert not any(name.startswith("NoAns") for name in found)


def test_ids_that_do_not_match_are_a_value_error(tmp_path):
    rows, golds = predictions(SQUAD, "default"), references(SQUAD)
    other = [{**row, "id": row["id"].replace("q1", "p")} for row in rows]
    for predicted, true, message in (
        (other, golds, "'q1'"),
        ([rows[0], rows[0]], golds[:2], "predictions.*'q0' twice"),
        (rows[:2], [golds[1], golds[1]], "references.*'q1' twice"),
    ):
        with pytest.raises(ValueError, match=message):
            Squad(cache_dir=str(tmp_path)).compute(predictions=predicted, references=true)


def test_question_without_answer_is_a_value_error_in_the_first_version(compute):
    with pytest.raises(ValueError, match="'q1'.*v2"):
        compute([Answer(["x"], "x"), Answer([], "")])
