"""SQuAD metrics equal those of the official scripts, which gave the expected values here for `answers.py`."""

import pytest

from hf_encoders import Squad, SquadV2
from tests.evaluation.answers import SQUAD, SQUAD_V2, Answer, predictions, references


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


@pytest.fixture
def squad(tmp_path):
    return Squad(cache_dir=str(tmp_path))


@pytest.fixture
def squad_v2(tmp_path):
    return SquadV2(cache_dir=str(tmp_path))


def test_squad_metrics_are_the_official_ones(squad):
    assert squad.compute(predictions=predictions(SQUAD, False), references=references(SQUAD)) == OFFICIAL_SQUAD


def test_squad_v2_metrics_are_the_official_ones(squad_v2):
    arguments = {"predictions": predictions(SQUAD_V2, True), "references": references(SQUAD_V2)}
    assert squad_v2.compute(**arguments) == OFFICIAL_SQUAD_V2
    assert squad_v2.compute(**arguments, no_answer_threshold=0.5) == OFFICIAL_SQUAD_V2_ABOVE_ONE_HALF


@pytest.mark.parametrize(
    ("answer", "exact_match", "f1"),
    [
        (SQUAD[0], 100.0, 100.0),
        (SQUAD[1], 0.0, 80.0),
        (SQUAD[4], 0.0, 50.0),
        (SQUAD[5], 100.0, 0.0),
        (SQUAD[6], 0.0, 200 / 3),
        (SQUAD[7], 0.0, 0.0),
        (SQUAD[8], 0.0, 0.0),
        (SQUAD[9], 100.0, 100.0),
        (SQUAD[10], 100.0, 100.0),
        (SQUAD[11], 100.0, 100.0),
    ],
)
def test_squad_of_one_question_by_hand(squad, answer, exact_match, f1):
    found = squad.compute(predictions=predictions([answer], False), references=references([answer]))
    assert found == {"exact_match": exact_match, "f1": pytest.approx(f1, abs=1e-9)}


def test_squad_v2_of_answerable_questions_alone_has_no_metrics_of_the_others(squad_v2):
    answers = [Answer(["x"], "x"), Answer(["y"], "")]
    found = squad_v2.compute(predictions=predictions(answers, True), references=references(answers))
    assert found["HasAns_exact"] == found["exact"] == 50.0
    assert not any(name.startswith("NoAns") for name in found)


@pytest.mark.parametrize("metric", ["squad", "squad_v2"])
def test_order_of_the_predictions_does_not_matter(metric, request):
    answers = SQUAD if metric == "squad" else SQUAD_V2
    expected = OFFICIAL_SQUAD if metric == "squad" else OFFICIAL_SQUAD_V2
    rows = predictions(answers, metric == "squad_v2")[::-1]
    assert request.getfixturevalue(metric).compute(predictions=rows, references=references(answers)) == expected


def test_ids_that_do_not_match_are_a_value_error(squad):
    rows, golds = predictions(SQUAD, False), references(SQUAD)
    with pytest.raises(ValueError, match="question 'q1'"):
        squad.compute(predictions=[{**row, "id": row["id"].replace("q1", "p")} for row in rows], references=golds)
    with pytest.raises(ValueError, match="predictions has the id 'q0' twice"):
        squad.compute(predictions=[rows[0], rows[0]], references=golds[:2])
    with pytest.raises(ValueError, match="references has the id 'q1' twice"):
        squad.compute(predictions=rows[:2], references=[golds[1], golds[1]])


def test_question_without_answer_is_a_value_error_in_the_first_version(squad):
    answers = [Answer(["x"], "x"), Answer([], "")]
    with pytest.raises(ValueError, match="'q1' has no answer: use SquadV2"):
        squad.compute(predictions=predictions(answers, False), references=references(answers))
