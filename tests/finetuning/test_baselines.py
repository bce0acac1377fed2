"""What a metric is compared with, for every task, and the warning where it does not stand out."""

import numpy as np
import pytest

from hf_encoders.finetuning import (
    multiple_choice,
    question_answering,
    sequence_classification,
    sequence_regression,
    token_classification,
)
from hf_encoders.finetuning.report import baseline_warnings, describe_repeated, format_table, repeated_rows
from hf_encoders.finetuning.runs import RunResult, only_class
from hf_encoders.finetuning.task import Baseline, compared
from tests.finetuning.tiny import LENGTH, splits, tokenizer_of
from tests.hub.tiny_checkpoints import BERT


def prepare(module, train, test, **options):
    return module.prepare(splits(train=train, test=test), tokenizer_of(BERT), max_length=LENGTH, **options)


def test_the_most_frequent_label_of_the_evaluation_set_is_the_baseline_of_every_figure():
    """Not that of the training set: always giving `x` would look better than it, and read nothing either."""
    task = prepare(
        sequence_classification,
        {"text": ["a"] * 5, "label": ["x", "y", "y", "z", "y"]},
        {"text": ["a"] * 4, "label": ["y", "x", "x", "z"]},
    )
    metrics = task.baseline.metrics("test")
    assert task.baseline.name == "most frequent label"
    # Of three classes one has precision 1/2 and recall 1.
    assert metrics == pytest.approx({"accuracy": 0.5, "f1_macro": 2 / 9, "matthews_correlation": 0.0})


def test_the_best_constant_set_of_labels_is_the_baseline_of_several_a_row():
    train = {"text": ["a"] * 4, "label": ["p", "p,q", "p,q", "r"]}
    task = prepare(sequence_classification, train, {"text": ["a"] * 2, "label": ["p,q", "r"]}, multi_label=True)
    # Of the evaluation set, where all three are as frequent: each has precision 1/2 and recall 1.
    assert task.baseline.metrics("test") == pytest.approx({"f1_micro": 2 / 3, "f1_macro": 2 / 3, "accuracy": 0.0})


def test_numbers_have_the_training_mean_as_baseline():
    rows = {"text": ["a"] * 3, "label": [1.0, 2.0, 6.0]}
    task = prepare(sequence_regression, rows, {"text": ["a"] * 2, "label": [3.0, 5.0]})
    assert task.baseline.metrics("test") == {"pearsonr": 0.0, "spearmanr": 0.0, "mse": 2.0}


def test_words_have_the_most_frequent_tag():
    train = {"tokens": [["the", "cat"], ["a"]], "ner_tags": [["O", "B-X"], ["O"]]}
    task = prepare(token_classification, train, {"tokens": [["the", "cat", "a"]], "ner_tags": [["B-X", "O", "O"]]})
    metrics = task.baseline.metrics("test")
    assert (metrics["overall_f1"], metrics["overall_accuracy"]) == (0.0, pytest.approx(2 / 3))
    plain = {"tokens": [["the", "cat"], ["a"]], "ner_tags": [["DET", "NOUN"], ["DET"]]}
    for tags in (["DET", "NOUN", "DET"], ["NOUN", "NOUN", "DET"]):
        task = prepare(token_classification, plain, {"tokens": [["the", "cat", "a"]], "ner_tags": [tags]})
        assert task.baseline.metrics("test")["accuracy"] == pytest.approx(2 / 3)


def test_endings_have_the_most_frequent_place():
    endings = [["a", "b", "c"]] * 4
    train = {"prompt": ["the"] * 4, "endings": endings, "label": [2, 2, 1, 0]}
    for labels, accuracy in (([2, 2, 2, 0], 0.75), ([0, 1, 1, 1], 0.75), ([0, 1, 2, 0], 0.5)):
        task = prepare(multiple_choice, train, {"prompt": ["the"] * 4, "endings": endings, "label": labels})
        assert task.baseline.metrics("test") == pytest.approx({"accuracy": accuracy})


def test_questions_have_a_baseline_where_no_answer_is_one():
    answers = [{"text": ["cat"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    rows = {"id": ["1", "2"], "question": ["the", "a"], "context": ["the cat", "the dog"], "answers": answers}
    task = prepare(question_answering, rows, rows, allow_no_answer=True)
    assert task.baseline.metrics("test") == {"exact": 50.0, "f1": 50.0}
    answered = {name: values[:1] for name, values in rows.items()}
    assert prepare(question_answering, answered, answered).baseline is None


@pytest.mark.parametrize(
    ("metric", "value", "least", "warning"),
    [
        ("accuracy", 0.7075, 0.7075, "accuracy 0.7075 is no better than 0.7075, which the baseline reaches"),
        ("accuracy", 0.52, 0.5, "not clearly better than 0.5000 of the baseline (b): 400 items leave ±0.050"),
        ("accuracy", 0.56, 0.5, None),
        ("pearsonr", 0.063, 0.0, "not clearly better"),
        ("pearsonr", 0.2, 0.0, None),
        ("overall_f1", 0.0, 0.0, "no better than 0.0000"),
        ("overall_f1", 0.01, 0.0, None),
        ("accuracy", float("nan"), 0.5, "no better than 0.5000"),
        ("f1", 0.5, None, None),
    ],
)
def test_a_metric_that_does_not_stand_out_is_warned_of(metric, value, least, warning):
    baseline = Baseline("b", lambda split: {} if least is None else {metric: least})
    found = compared(metric, value, baseline, "test", items=400)
    assert found is None if warning is None else warning in found


def test_the_table_shows_the_baseline_beside_the_metrics_and_warnings_name_the_set():
    rows = {"text": ["a"] * 4, "label": ["x", "x", "x", "y"]}
    task = prepare(sequence_classification, rows, rows)
    task.eval_sets["validation"] = task.eval_sets["test"]
    task.baseline = Baseline(task.baseline.name, lambda split: {"accuracy": 0.75})
    metrics = {"test": {"accuracy": 0.75, "loss": 1.0}, "validation": {"accuracy": 0.25, "loss": 1.0}}
    result = RunResult(0, metrics, 1, 1.0, None, 1.0, 1.0, 0.1, None, None)
    head, accuracy, loss, *_ = format_table([result], task).splitlines()
    assert head.endswith("baseline: most frequent label") and accuracy.endswith("  0.7500")
    assert loss.split() == ["test", "loss", "1.0000", "1.0000"]
    of_test, of_validation = baseline_warnings(result, task)
    assert of_test.startswith("test: accuracy 0.7500 is no better than 0.7500")
    assert of_validation.startswith("validation: accuracy 0.2500 is no better than 0.7500")


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


def test_a_model_that_settles_on_one_class_is_warned_of_whichever_it_is():
    train = {"text": ["a"] * 4, "label": ["x", "x", "x", "y"]}
    task = prepare(sequence_classification, train, {"text": ["a"] * 25, "label": ["y"] * 14 + ["x"] * 11})
    metrics = {"test": {"accuracy": 0.56, "matthews_correlation": 0.0}}
    result = RunResult(0, metrics, 1, 1.0, None, 1.0, 1.0, 0.1, None, None, only_class={"test": "y"})
    assert baseline_warnings(result, task) == [
        "test: all predictions are 'y', whatever the input.",
        "test: accuracy 0.5600 is no better than 0.5600, which the baseline reaches (most frequent label). The model "
        "may have learned nothing: try a higher learning rate, more epochs, more rows, or another encoder.",
    ]


def test_rows_that_were_trained_on_are_counted_by_what_the_encoder_reads():
    train = {"a": ["x  y", "z", "q"], "b": [["1", "2 "], ["3"], ["4"]], "label": [0, 1, 0]}
    test = {"a": [" x y", "z", "z", "Q"], "b": [["1", "2"], ["3"], ["9"], ["4"]], "label": [1, 1, 1, 0]}
    data = splits(train=train, validation={"a": ["w"], "b": [["1"]], "label": [0]}, test=test)
    assert repeated_rows(data, ("a", "b")) == {"test": 2}
    assert repeated_rows(data, ("a",)) == {"test": 3}
    assert repeated_rows(data, ()) == {}
    (warning,) = describe_repeated({"test": 2}, data, ("a", "b"))
    assert warning.startswith("test: 2 of 4 rows are in the training data too, with the same a, b: ")
