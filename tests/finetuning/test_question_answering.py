"""Questions on texts: gold answers to columns and back, metrics and files of the official scripts, from set scores."""

import json
from typing import Any

import datasets
import numpy as np
import pytest
from transformers import EvalPrediction

from hf_encoders.finetuning.question_answering import (
    Question,
    answer_metrics,
    label_windows,
    prepare,
    questions_held,
    read_questions,
)
from hf_encoders.finetuning.runs import RunSettings, finetune
from hf_encoders.models.question_answering_pipeline import Answer, HfeQuestionAnsweringPipeline, trimmed_span
from tests.finetuning.tiny import save_encoder, splits, tokenizer_of
from tests.hub.tiny_checkpoints import BERT, FAMILIES, ROBERTA, Family


each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
COLUMNS = ("id", "question", "context", "answers")
CONTEXT = "the cat sat on a mat , and the dog slept all day long . a cat and a dog sat on the mat all day ."
LENGTH = 30


def asked(*rows: tuple[str, str, list[tuple[str, int]]]) -> dict[str, list]:
    """Rows of question, context and gold answers with their places."""
    return {
        "id": [f"q{i}" for i in range(len(rows))],
        "question": [question for question, _, _ in rows],
        "context": [context for _, context, _ in rows],
        "answers": [{"text": [t for t, _ in golds], "answer_start": [p for _, p in golds]} for _, _, golds in rows],
    }


def gold(text: str, occurrence: int = 0) -> tuple[str, int]:
    """An answer at its nth place in `CONTEXT`."""
    place = -1
    for _ in range(occurrence + 1):
        place = CONTEXT.index(text, place + 1)
    return text, place


ROWS = asked(
    ("cat", CONTEXT, [gold("the cat sat")]),
    ("dog", CONTEXT, [gold("dog slept all day")]),
    ("a", "a dog", [("dog", 2)]),
    ("mat", CONTEXT, [gold("the mat"), gold("on the mat all day")]),
)
WITHOUT = asked(("cat", CONTEXT, [gold("the cat")]), ("dog", CONTEXT, []))


def pointing_at_labels(rows: datasets.Dataset, score: float = 9.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are highest at each window's labels, padded as `Trainer.predict` pads."""
    longest = max(map(len, rows["input_ids"]))
    scores = []
    for name in ("start_positions", "end_positions"):
        found = np.full((len(rows), longest), -100.0, dtype=np.float32)
        for row, (ids, column) in enumerate(zip(rows["input_ids"], rows[name], strict=True)):
            found[row, : len(ids)] = 0.0
            found[row, column] = score
        scores.append(found)
    return tuple(scores)


def metrics_of(task, split: str, scores: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    return task.compute_metrics(split)(EvalPrediction(predictions=scores, label_ids=None))


@each_family
def test_gold_answers_come_back_exactly(family: Family) -> None:
    """From characters to columns, and from the columns of every window to the same characters."""
    questions, _ = read_questions(datasets.Dataset.from_dict(ROWS), "train", COLUMNS, False)
    # A window has to hold a whole answer, of which byte-level tokens are many.
    length, stride = (LENGTH + 10, 17) if family.name == "modernbert" else (LENGTH, 10)
    rows = label_windows(questions, tokenizer_of(family), length, doc_stride=stride)
    held = questions_held(rows)
    assert len(rows) > len(questions) and set(held) == set(range(len(questions)))
    for row in rows:
        first, last = row["start_positions"], row["end_positions"]
        if first == row["null_column"]:
            assert last == first
            continue
        question = questions[row["question"]]
        span = trimmed_span(question.context, row["token_starts"][first], row["token_ends"][last])
        assert span == question.span
        assert question.context[slice(*span)] == question.golds[0]


def test_labels_of_windows_exactly() -> None:
    """[CLS] cat [SEP] + 8 words + [SEP], neighbours sharing 3: an answer cut by a border points to [CLS]."""
    rows = asked(("cat", "the cat sat on a mat and the dog slept all day long", [("mat and the", 17)]))
    task = prepare(splits(train=rows), tokenizer_of(BERT), max_length=12, doc_stride=3, max_question_length=2)
    tokens = [" ".join(tokenizer_of(BERT).convert_ids_to_tokens(ids)) for ids in task.train_set["input_ids"]]
    assert tokens == [
        "[CLS] cat [SEP] the cat sat on a mat and the [SEP]",
        "[CLS] cat [SEP] mat and the dog slept all day long [SEP]",
    ]
    assert task.train_set["start_positions"][:] == [8, 3]
    assert task.train_set["end_positions"][:] == [10, 5]
    cut = prepare(splits(train=rows), tokenizer_of(BERT), max_length=12, doc_stride=2, max_question_length=2)
    assert cut.train_set["start_positions"][:] == [8, 0]  # the second window begins with "and"
    assert cut.train_set["token_type_ids"][0] == [0] * 3 + [1] * 9
    assert "1 answers are in no window" not in cut.plan[0]


def test_an_answer_takes_whole_tokens_and_no_blanks() -> None:
    rows = asked(("cat", "the cats sat on a mat", [("at", 19)]), ("cat", "the cat sat", [(" cat ", 3)]))
    train, tokenizer = prepare(splits(train=rows), tokenizer_of(BERT), max_length=20).train_set, tokenizer_of(BERT)
    ids = [row["input_ids"][row["start_positions"] : row["end_positions"] + 1] for row in train]
    assert list(map(tokenizer.convert_ids_to_tokens, ids)) == [["mat"], ["cat"]]


@each_family
def test_right_scores_give_perfect_metrics(family: Family) -> None:
    rows = ROWS if family is not ROBERTA else {name: values[::2] + values[3:] for name, values in ROWS.items()}
    length, stride = (LENGTH + 10, 17) if family.name == "modernbert" else (LENGTH, 9)
    task = prepare(splits(train=rows, test=rows), tokenizer_of(family), max_length=length, doc_stride=stride)
    metrics = metrics_of(task, "test", pointing_at_labels(task.eval_sets["test"]))
    assert metrics == {"exact_match": 100.0, "f1": 100.0}


def test_any_gold_answer_is_right_and_the_first_is_learnt() -> None:
    rows = {name: values[3:] for name, values in ROWS.items()}
    task = prepare(splits(train=rows, test=rows), tokenizer_of(BERT), max_length=43)
    starts, ends = pointing_at_labels(task.eval_sets["test"])
    assert metrics_of(task, "test", (starts, ends))["exact_match"] == 100.0
    ends[0, ends[0].argmax() + 2] = 10.0  # "the mat all day": one word less than the second gold answer
    assert metrics_of(task, "test", (starts, ends)) == {"exact_match": 0.0, "f1": pytest.approx(100 * 2 * 3 / (3 + 4))}


def test_metrics_with_unanswerable_questions_and_the_threshold() -> None:
    """q0 has its answer 2 + 2 above "no answer", q1 "no answer" 3 + 3 against 1 + 1 of "cat"."""
    task = prepare(splits(train=WITHOUT, test=WITHOUT), tokenizer_of(BERT), max_length=43, allow_no_answer=True)
    rows = task.eval_sets["test"]
    starts, ends = pointing_at_labels(rows, score=2.0)
    assert rows["start_positions"][:] == [3, 0]
    starts[1, [0, 4]] = ends[1, [0, 4]] = 3.0, 1.0
    metrics = metrics_of(task, "test", (starts, ends))
    assert (metrics["exact"], metrics["f1"], metrics["NoAns_exact"]) == (100.0, 100.0, 100.0)
    for threshold, exact in ((3.9, 100.0), (4.0, 50.0), (-4.1, 50.0), (-4.0, 100.0)):
        options = {"allow_no_answer": True, "null_threshold": threshold}
        task = prepare(splits(train=WITHOUT, test=WITHOUT), tokenizer_of(BERT), max_length=43, **options)
        metrics = metrics_of(task, "test", (starts, ends))
        assert metrics["exact"] == exact, threshold
        assert (metrics["best_exact"], metrics["best_exact_thresh"]) == (100.0, -4.0)


def metrics_with_odds(odds: dict[float, bool], threshold: float = 0.0) -> dict[str, float]:
    """Questions whose "no answer" scores so much more than their answer, which is right where there is one."""
    questions = [Question(str(i), "cat", "cat", ["cat"] if has else [], None) for i, has in enumerate(odds.values())]
    decoded = [[Answer("cat", 0, 3, 0.0, 0.0), Answer("", 0, 0, score, 0.0)] for score in odds]
    return answer_metrics(questions, decoded, allow_no_answer=True, null_threshold=threshold)


@pytest.mark.parametrize(
    ("odds", "best", "threshold"),
    [
        ({-5.0: True, -3.0: False}, 100.0, -5.0),
        ({5.0: True, 8.0: False}, 100.0, 5.0),
        ({-5.0: False, -3.0: False, -2.0: True}, 200 / 3, -6.0),  # best answered by nobody
        ({50.0: True, 51.0: False, 900.0: False}, 100.0, 50.0),
        ({-900.0: True, -51.0: True, -50.0: False}, 100.0, -51.0),
    ],
)
def test_best_threshold_is_one_that_gives_the_best_figure(
    odds: dict[float, bool], best: float, threshold: float
) -> None:
    """With odds of any sign and size, though the official script's search begins at 0."""
    metrics = metrics_with_odds(odds)
    for name in ("exact", "f1"):
        assert metrics[f"best_{name}"] == pytest.approx(best)
        assert metrics[f"best_{name}_thresh"] == threshold
        assert metrics_with_odds(odds, threshold)[name] == pytest.approx(best)


def test_the_plan_ends_with_lengths_and_threshold() -> None:
    """The model card takes the last line for the objective."""
    plan = prepare(splits(train=ROWS), tokenizer_of(BERT), max_length=LENGTH).plan
    assert plan[-1] == "answers of at most 30 tokens, windows of 30 tokens with overlap 10, questions of at most 10"
    options = {"doc_stride": 9, "max_question_length": 5, "max_answer_length": 7, "allow_no_answer": True}
    plan = prepare(splits(train=WITHOUT), tokenizer_of(BERT), max_length=43, null_threshold=-0.5, **options).plan
    expected = "at most 7 tokens, windows of 43 tokens with overlap 9, questions of at most 5, or none if that scores "
    assert plan[-1] == f"answers of {expected}more than -0.5 above the best"


def test_files_have_the_official_form(tmp_path) -> None:
    task = prepare(
        splits(train=WITHOUT, test=WITHOUT), tokenizer_of(BERT), max_length=43, allow_no_answer=True, n_best=2
    )
    starts, ends = pointing_at_labels(task.eval_sets["test"], score=2.0)
    starts[1, 0] = 4.0
    task.write_predictions(tmp_path / "p", "test", (starts, ends))
    files = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert files["p.json"] == {"q0": "the cat", "q1": ""}
    assert files["p-null-odds.json"] == {"q0": -4.0, "q1": 6.0}
    # Of equal candidates the earliest start, then the shortest: "the" is 2 + 0.
    total = np.exp([4.0, 2.0, 0.0]).sum()
    assert files["p-nbest.json"]["q0"] == [
        {"text": text, "probability": pytest.approx(np.exp(sum(logits)) / total), "start_logit": logits[0],
         "end_logit": logits[1]}
        for text, logits in (("the cat", (2.0, 2.0)), ("the", (2.0, 0.0)), ("", (0.0, 0.0)))
    ]  # fmt: skip
    assert [entry["text"] for entry in files["p-nbest.json"]["q1"]] == ["", "the", "the cat"]
    # Without ids, and without questions that have no answer.
    rows = {name: values[:2] for name, values in ROWS.items() if name != "id"}
    task = prepare(splits(train=rows, test=rows), tokenizer_of(BERT), max_length=43)
    task.write_predictions(tmp_path / "other", "test", pointing_at_labels(task.eval_sets["test"]))
    assert {path.name for path in tmp_path.glob("other*")} == {"other.json", "other-nbest.json"}
    assert json.loads((tmp_path / "other.json").read_text()) == {"0": "the cat sat", "1": "dog slept all day"}
    assert "" not in [entry["text"] for entry in json.loads((tmp_path / "other-nbest.json").read_text())["0"]]


def test_padding_is_at_the_end_whatever_the_tokenizer_prefers() -> None:
    """Labels are columns."""
    tokenizer = tokenizer_of(BERT)
    tokenizer.padding_side = "left"
    rows = asked(("a", "a dog", [("dog", 2)]), ("a", "the dog sat", [("dog", 4)]))
    task = prepare(splits(train=rows), tokenizer, max_length=LENGTH)
    names = ("input_ids", "attention_mask", "start_positions", "end_positions")
    batch = task.data_collator([{name: row[name] for name in names} for row in task.train_set])
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 0], [1] * 7]
    assert batch["start_positions"].tolist() == [4, 4]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (WITHOUT, {}, "1 of 2 questions have no answer.*'q1'.*--allow-no-answer"),
        (asked(("a", "the cat", [("dog", 4)])), {}, "'q0': .*'dog' is not at answer_start=4, nor in .*--skip-invalid"),
        (asked(("a", CONTEXT, [("cat", 28)])), {}, "=28, which occurs 2 times .*--skip-invalid"),
        (asked(("a", "the cat", [("dog", 4)])), {"skip_invalid": True}, "no question is left; .*'q0'"),
        (asked(("a", "the cat", [("", 0)])), {}, "its answer is ''"),
        (asked((" ", "the cat", [("cat", 4)])), {}, "its question is ' '"),
        (asked(("a", "", [])), {"allow_no_answer": True}, "its context is ''"),
        ({**ROWS, "id": ["same"] * 4}, {}, "'same' occurs twice"),
        (ROWS, {"answers_column": "gold"}, "--answers-column gold"),
        (ROWS, {"max_answer_length": 0}, "--max-answer-length 0"),
        (ROWS, {"n_best": 0}, "--n-best 0"),
        (ROWS, {"doc_stride": 99}, "doc_stride=99"),
        (asked(("a", CONTEXT, [(CONTEXT, 0)])), {"max_length": 12}, "no window of 12 tokens.*--max-length"),
        *(
            ({"question": ["a"], "context": ["the cat"], "answers": [answers]}, {}, "'0': its answers are .*give")
            for answers in (
                None,
                ["cat"],
                {"text": ["cat"]},
                {"text": ["cat"], "answer_start": [4.0]},
                {"text": [None], "answer_start": [4]},
                {"text": ["cat", "cat"], "answer_start": [4]},
                [{"text": "cat"}],
            )
        ),
    ],
)
def test_wrong_data_is_refused(rows: dict[str, list], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(splits(train=rows), tokenizer_of(BERT), **{"max_length": LENGTH, **options})


def test_answers_may_be_a_list_of_answers() -> None:
    """As the files of SQuAD have them."""
    listed = [
        [{"text": text, "answer_start": start} for text, start in zip(row["text"], row["answer_start"], strict=True)]
        for row in ROWS["answers"]
    ]
    forms = ({**ROWS, "answers": listed}, ROWS)
    read = [read_questions(datasets.Dataset.from_dict(form), "train", COLUMNS, False)[0] for form in forms]
    assert read[0] == read[1] and len(read[0][3].golds) == 2


@pytest.mark.parametrize("start", [3, 5, -3, 900])
def test_an_answer_beside_its_position_is_moved_there(start: int) -> None:
    """One character off, or counted in bytes: at its only place there is no doubt."""
    rows, right = (asked(("a", "the cat sat", [("cat", place)]), ("a", "a dog", [("dog", 2)])) for place in (start, 4))
    task = prepare(splits(train=rows, test=rows), tokenizer_of(BERT), max_length=LENGTH)
    expected = prepare(splits(train=right), tokenizer_of(BERT), max_length=LENGTH)
    assert task.train_set.to_list() == expected.train_set.to_list()
    line = "1 answer(s) moved from answer_start to where they are in the context; the first: question 'q0': 'cat' from"
    assert task.plan[:2] == [f"{split}: {line} {start} to 4" for split in ("train", "test")]


def test_questions_whose_answer_is_not_found_are_left_out_on_request() -> None:
    rows = asked(("a", "the cat", [("cat", 4)]), ("a", "the cat", [("dog", 4)]), ("a", CONTEXT, [("mat", 13)]))
    task = prepare(splits(train=rows, test=rows), tokenizer_of(BERT), max_length=LENGTH, skip_invalid=True)
    assert set(task.train_set["question"]) == {0, 1}
    first = "train data, question 'q1': its answer 'dog' is not at answer_start=4, nor in its context"
    assert f"train: 1 question(s) left out (--skip-invalid); the first: {first}" in task.plan


def places(count: int) -> dict[str, list]:
    """Where the word of the question is: one word long, in contexts of several windows."""
    words = ["cat", "dog", "mat"]
    rows = []
    for i in range(count):
        word = words[i % 3]
        before = " ".join(["sat on a"] * (i % 7))
        context = f"{before} {word} and the {before}".strip()
        rows.append((word, context, [(word, context.index(word))]))
    return asked(*rows)


@pytest.mark.slow
@each_family
def test_it_learns_to_point_and_the_pipeline_answers_as_evaluation_does(family: Family, tmp_path) -> None:
    rows = places(21)
    length, doc_stride = (40, 9) if family.config_class.VOCABULARY_KIND in ("bpe", "suffix-bpe") else (16, 4)
    options = {"max_length": length, "doc_stride": doc_stride}
    task = prepare(splits(train=rows, test=rows), tokenizer_of(family), **options)
    encoder = save_encoder(family, tmp_path / "encoder")
    training = {"max_steps": 60, "learning_rate": 3e-3, "per_device_train_batch_size": 16, "disable_tqdm": True}
    settings = RunSettings(str(encoder), checkpoint="last", training=training)
    result = finetune(task, tokenizer_of(family), settings, 0, tmp_path / "run")
    assert result.metrics["test"]["f1"] > (60 if family is BERT else 15)
    task.write_predictions(tmp_path / "p", "test", result.predictions["test"])
    options = {"max_seq_len": length, "doc_stride": doc_stride, "device": result.model.device}
    qa = HfeQuestionAnsweringPipeline(model=result.model.eval(), tokenizer=tokenizer_of(family), **options)
    answers = qa(question=rows["question"], context=rows["context"], batch_size=4)
    assert [answer["answer"] for answer in answers] == list(json.loads((tmp_path / "p.json").read_text()).values())
    best = json.loads((tmp_path / "p-nbest.json").read_text())
    probabilities = [of_question[0]["probability"] for of_question in best.values()]
    assert [answer["score"] for answer in answers] == pytest.approx(probabilities, abs=1e-5)


def test_stock_classes_train_on_the_same_windows(tmp_path) -> None:
    """To compare with; they ignore what the collator says about padding."""
    rows = places(8)
    task = prepare(splits(train=rows, test=rows), tokenizer_of(BERT), max_length=30)
    encoder = save_encoder(BERT, tmp_path / "encoder")
    settings = RunSettings(str(encoder), classes="transformers", training={"max_steps": 2, "disable_tqdm": True})
    result = finetune(task, tokenizer_of(BERT), settings, 0, tmp_path / "run")
    assert type(result.model).__module__.startswith("transformers.models.")
    assert set(result.metrics["test"]) == {"loss", "exact_match", "f1"}
