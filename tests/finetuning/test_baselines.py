"""The baseline that a metric is compared with, for every task, and the warning where it does not stand out."""

import numpy as np
import pytest

from hf_encoders.finetuning import (
    multiple_choice,
    question_answering,
    sequence_classification,
    sequence_regression,
    token_classification,
)
from hf_encoders.finetuning.report import (
    baseline_warnings,
    describe_repeated,
    format_table,
    near_baseline,
    over_seeds,
    repeated_rows,
)
from hf_encoders.finetuning.runs import RunResult, only_class
from tests.finetuning.tiny import LENGTH, splits, tokenizer_of
from tests.hub.tiny_checkpoints import BERT


def prepare(module, train, test, **options):
    return module.prepare(splits(train=train, test=test), tokenizer_of(BERT), max_length=LENGTH, **options)


def texts(labels):
    return {"text": ["a"] * len(labels), "label": labels}


def words(*tags):
    return {"tokens": [["the", "cat", "a"][: len(row)] for row in tags], "ner_tags": list(tags)}


def choices(labels):
    return {"prompt": ["the"] * len(labels), "endings": [["a", "b", "c"]] * len(labels), "label": labels}


@pytest.mark.parametrize(
    ("module", "train", "test", "options", "expected"),
    [
        # Of the evaluation set, not of the training set: of three classes one has precision 1/2 and recall 1.
        (sequence_classification, texts(["x", "y", "y", "z", "y"]), texts(["y", "x", "x", "z"]), {},
         {"accuracy": 0.5, "f1_macro": 2 / 9, "matthews_correlation": 0.0}),
        # All three labels, which are as frequent: each has precision 1/2 and recall 1.
        (sequence_classification, texts(["p", "p,q", "p,q", "r"]), texts(["p,q", "r"]), {"multi_label": True},
         {"f1_micro": 2 / 3, "f1_macro": 2 / 3, "accuracy": 0.0}),
        # The mean of the training numbers.
        (sequence_regression, texts([1.0, 2.0, 6.0]), texts([3.0, 5.0]), {},
         {"pearsonr": 0.0, "spearmanr": 0.0, "mse": 2.0}),
        (token_classification, words(["O", "B-X"], ["O"]), words(["B-X", "O", "O"]), {},
         {"overall_f1": 0.0, "overall_accuracy": 2 / 3}),
        (token_classification, words(["DET", "NOUN"], ["DET"]), words(["NOUN", "NOUN", "DET"]), {},
         {"accuracy": 2 / 3}),
        (multiple_choice, choices([2, 2, 1, 0]), choices([0, 1, 1, 1]), {}, {"accuracy": 0.75}),
    ],
)  # fmt: skip
def test_the_best_constant_answer_is_the_baseline(module, train, test, options, expected):
    metrics = prepare(module, train, test, **options).baseline_metrics["test"]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_questions_have_a_baseline_where_no_answer_is_one():
    answers = [{"text": ["cat"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    rows = {"id": ["1", "2"], "question": ["the", "a"], "context": ["the cat", "the dog"], "answers": answers}
    task = prepare(question_answering, rows, rows, allow_no_answer=True)
    assert task.baseline_metrics["test"] == {"exact": 50.0, "f1": 50.0}
    answered = {name: values[:1] for name, values in rows.items()}
    assert prepare(question_answering, answered, answered).baseline == ""


@pytest.mark.parametrize(
    ("metric", "value", "least", "fault"),
    [
        ("accuracy", 0.7075, 0.7075, "no better than the baseline of 0.7075"),
        ("accuracy", 0.52, 0.5, "not clearly better than the baseline of 0.5000: 400 items leave ±0.050 to chance"),
        ("accuracy", 0.56, 0.5, None),
        ("pearsonr", 0.063, 0.0, "not clearly better than the baseline of 0.0000: 400 items leave ±0.100 to chance"),
        ("overall_f1", 0.01, 0.0, None),
        ("accuracy", float("nan"), 0.5, "no better than the baseline of 0.5000"),
    ],
)
def test_a_metric_near_its_baseline_is_warned_of(metric, value, least, fault):
    assert near_baseline(metric, value, least, items=400) == fault


def result_of(metrics, seed=0, **fields):
    return RunResult(seed, metrics, 1, 1.0, None, 1.0, 1.0, 0.1, None, None, **fields)


def test_the_table_has_the_baseline_and_warnings_name_the_set_and_a_class_that_is_always_predicted():
    task = prepare(sequence_classification, texts(["x", "x", "x", "y"]), texts(["y"] * 14 + ["x"] * 11))
    result = result_of({"test": {"accuracy": 0.56, "loss": 1.0}}, only_class={"test": "y"})
    head, accuracy, loss = format_table([result], task).splitlines()
    assert head.endswith("baseline: most frequent label") and accuracy.endswith("  0.5600")
    assert loss.split() == ["test", "loss", "1.0000", "1.0000"]
    assert baseline_warnings(result, task) == [
        "test: all predictions are 'y', whatever the input.",
        "test: accuracy 0.5600 is no better than the baseline of 0.5600 (most frequent label). The model may have "
        "learned nothing: try a higher learning rate, more epochs, more rows, or another encoder.",
    ]


def test_metrics_that_one_seed_alone_has_are_not_averaged():
    task = prepare(sequence_classification, texts(["x", "y"]), texts(["y"]))
    results = [result_of({"test": {"overall_f1": 0.5, "LOC_f1": 0.0}}), result_of({"test": {"overall_f1": 0.7}}, 1)]
    for some in (results, results[::-1]):
        table = format_table(some, task)
        assert "0.6000 ± 0.1414" in table and "LOC" not in table
        assert list(over_seeds(some, "test")) == ["overall_f1"]


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([[0.0, 2.0, 1.0], [-1.0, 0.5, 0.0]], [0, 1], 1),
        ([[0.0, 2.0, 1.0], [-1.0, 0.5, 0.6]], [0, 1], None),
        ([[0.0, 2.0], [-1.0, 0.5]], [1, 1], None),  # as the rows are
        ([[0.0, 2.0], [-1.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], None),  # any number of labels a row
        ([[0.0], [0.5]], [0.2, 0.4], None),  # numbers
        ([[[3.0, 1.0], [0.0, 1.0]], [[2.0, 1.0], [5.0, 1.0]]], [[0, -100], [1, 0]], 0),  # words
        (([[0.0]], [[1.0]]), [0], None),  # starts and ends of answers
    ],
)
def test_predictions_of_one_class_are_found(scores, labels, expected):
    scores = tuple(map(np.array, scores)) if isinstance(scores, tuple) else np.array(scores)
    assert only_class(scores, np.array(labels)) == expected


def test_rows_that_were_trained_on_are_counted_by_what_the_encoder_reads():
    train = {"a": ["x  y", "z", "q"], "b": [["1", "2 "], ["3"], ["4"]], "label": [0, 1, 0]}
    test = {"a": [" x y", "z", "z", "Q"], "b": [["1", "2"], ["3"], ["9"], ["4"]], "label": [1, 1, 1, 0]}
    data = splits(train=train, validation={"a": ["w"], "b": [["1"]], "label": [0]}, test=test)
    assert repeated_rows(data, ("a", "b")) == {"test": 2}
    assert repeated_rows(data, ("a",)) == {"test": 3}
    (warning,) = describe_repeated({"test": 2}, data, ("a", "b"))
    assert warning.startswith("test: 2 of 4 rows are in the training data too, with the same a, b: ")
