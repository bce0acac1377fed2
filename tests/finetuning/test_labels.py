"""Labels as people have them in files and datasets: lists in text, a column each, missing ones; weights of classes."""

from collections.abc import Sequence
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from hf_encoders import read_file
from hf_encoders.finetuning import sequence_classification, sequence_regression
from hf_encoders.finetuning.runs import balanced_weights, class_weighted_loss, read_class_weights
from hf_encoders.finetuning.task import PreparedTask
from tests.finetuning.tiny import LENGTH, labelled, splits, tokenizer_of
from tests.hub.tiny_checkpoints import BERT


NAN = float("nan")
NO_LABEL = "label is .*no label: leave it out"


def prepare(labels: Sequence[Any] | datasets.DatasetDict, **options: Any) -> PreparedTask:
    data = labels
    if not isinstance(labels, datasets.DatasetDict):
        data = splits(train={"text": [f"cat {number}" for number in range(len(labels))], "label": labels})
    return sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH, **options)


def named(names: list[str], rows: list, is_list: bool = False) -> datasets.Dataset:
    """Rows whose labels are numbers of classes with names."""
    label = datasets.ClassLabel(names=names)
    features = {"text": datasets.Value("string"), "label": datasets.List(label) if is_list else label}
    return datasets.Dataset.from_dict({"text": ["the cat"] * len(rows), "label": rows}, datasets.Features(features))


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["no", "yes", "no"], ["no", "yes"], [0, 1, 0]),
        (["10", "9", "9"], ["9", "10"], [1, 0, 0]),
        ([True, False, True], ["0", "1"], [1, 0, 1]),
        ([-1, 0, 1], ["-1", "0", "1"], [0, 1, 2]),
        (["[1]", "[1,5]", "[0, 1]"], ["[0, 1]", "[1,5]", "[1]"], [2, 1, 0]),  # intervals
    ],
)
def test_labels_become_class_numbers(labels, names, numbers):
    task = prepare(labels)
    assert (task.label_names, task.train_set["labels"][:]) == (names, numbers)
    assert task.config_fields["id2label"] == dict(enumerate(names))


@pytest.mark.parametrize(
    "cells",
    [
        ["['pump', 'fault']", "[]", "['valve']"],  # pandas
        ['["pump", "fault"]', " [ ] ", '["valve"]'],  # JSON
        ["('pump', 'fault')", "[]", "('valve',)"],
        ["{'pump', 'fault'}", "set()", "{'valve'}"],
        ["pump, fault", "", "valve"],
        [[" pump", "fault"], [], ["valve "]],
    ],
)
def test_several_labels_a_row(cells):
    task = prepare(cells, multi_label=True)
    assert task.label_names == ["fault", "pump", "valve"]
    assert task.train_set["labels"][:] == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert task.config_fields["problem_type"] == "multi_label_classification"


def test_classes_of_several_labels_may_be_numbers():
    assert prepare([[0], [1], [0, 1], []], multi_label=True).train_set["labels"][2] == [1.0, 1.0]
    data = splits(train={"text": ["a", "b"], "label": [[0, 1], [2]]}, test={"text": ["a"], "label": [[0, 1]]})
    assert prepare(data, multi_label=True).eval_sets["test"]["labels"][:] == [[1.0, 1.0, 0.0]]
    task = prepare(["-1,1", "0", "-1", ""], multi_label=True)
    assert task.label_names == ["-1", "0", "1"]
    assert task.train_set["labels"][:] == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


REFUSED = [
    # As numpy writes an array, for one, whose strings Python would join to one.
    *((["['valve', 'fault']", cell], True, r"row 1: label is .*not a list of labels")
      for cell in ("['pump' 'fault']", "[pump, fault]", "['pump', ['fault']]")),
    *(([label, label], False, "row 0: label is .*--multi-label")
      for label in ("['pump', 'fault']", ["pump"], "[]", "[1, 0, 1]", [1, 5])),
    *((rows, True, "row 0: label is .*0 and 1.*--label-column pump,valve,fault")
      for rows in ([[1, 0, 1], [0, 1, 0]], [[True, False], [True, True]], ["[1, 0, 1]", "[0, 1, 0]"],
                   ["1,0,1", "0,1,0"])),
    *(([[first], [first, element]], True, f"row 1: {NO_LABEL}")
      for first, element in (("a", None), ("a", " "), ("a", "-100"), (2, NAN), (2, -1), (2, -100))),
    *((["a", label], False, "row 1: label is .*marks no label") for label in (" ", "-100", None)),
    ([1.0, NAN], False, "row 1: label is nan"),
    (["x", "x"], False, "label has one class"),
    ([1, 2], True, "row 0: label is 1: --multi-label"),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "multi_label", "message"), REFUSED)
def test_wrong_labels_are_refused(labels, multi_label, message):
    with pytest.raises(ValueError, match=message):
        prepare(labels, multi_label=multi_label)


def test_a_label_that_training_does_not_have_and_an_empty_separator_are_refused():
    data = splits(train={"text": ["the", "cat"], "label": ["x", "y"]}, test={"text": ["the"], "label": ["z"]})
    with pytest.raises(ValueError, match=r"test data: label has the labels \['z'\]"):
        prepare(data)
    with pytest.raises(ValueError, match="--label-separator is empty"):
        prepare(["a", "b"], multi_label=True, label_separator="")


@pytest.mark.parametrize(
    ("columns", "yes", "no"),
    [("pump,valve, fault", "1", "0"), (["pump", "valve", "fault"], 1.0, 0.0), ("pump,valve,fault", "true", "FALSE")],
)
def test_one_column_per_label(columns, yes, no):
    data = {"text": ["a cat", "a dog"], "pump": [yes, no], "valve": [no, no], "fault": [yes, yes]}
    task = prepare(splits(train=data), multi_label=True, label_column=columns)
    assert task.label_names == ["pump", "valve", "fault"]
    assert task.train_set["labels"][:] == [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("columns", "value", "options", "message"),
    [
        ("pump,valve", "2", {"multi_label": True}, "row 1: valve is '2': .* 0 or 1"),
        ("pump,valve", "", {"multi_label": True}, "row 1: valve is '': "),
        ("pump,fault", "0", {"multi_label": True}, "--label-column fault"),
        ("pump,valve", "0", {}, "--label-column pump,valve: .*--multi-label"),
    ],
)
def test_wrong_columns_of_labels_are_refused(columns, value, options, message):
    data = splits(train={"text": ["a cat", "a dog"], "pump": ["1", "0"], "valve": ["1", value]})
    with pytest.raises(ValueError, match=message):
        prepare(data, label_column=columns, **options)


def test_spaces_at_the_ends_do_not_make_a_class_and_capitals_are_warned_of(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,Bad\nb,bad\nc,good \nd,good\ne,\u00a0good\nf,\u3000good\n", encoding="utf-8")
    task = prepare(datasets.DatasetDict(train=read_file(path)))
    assert task.label_names == ["Bad", "bad", "good"]
    assert task.plan[-2:] == [
        "3 classes: Bad, bad, good",
        "WARNING: the classes 'Bad', 'bad' differ in capitals only: write them alike if they mean the same.",
    ]


def test_named_classes_keep_their_order_and_each_split_its_own_names():
    data = datasets.DatasetDict(train=named(["z", "unused", "a"], [2, 0]), test=named(["a", "z"], [0, 1]))
    task = prepare(data)
    assert task.label_names == ["z", "unused", "a"]
    assert (task.train_set["labels"][:], task.eval_sets["test"]["labels"][:]) == ([2, 0], [2, 0])


def test_lists_of_named_classes():
    """Names that differ in spaces are one class; -1 is none, and not the last one."""
    rows = named(["good", " good", "bad"], [[0], [1], [2]], is_list=True)
    task = prepare(datasets.DatasetDict(train=rows), multi_label=True)
    assert task.label_names == ["good", "bad"]
    assert task.train_set["labels"][:] == [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(ValueError, match=r"train data, row 1: label is \[0, -1\], and -1 is no label"):
        prepare(datasets.DatasetDict(train=named(["x", "y", "z"], [[0, 2], [0, -1]], True)), multi_label=True)


# Class weights.


def test_weighted_loss_is_the_weighted_sum_over_the_count():
    logits, labels = torch.randn(5, 3), torch.tensor([0, 2, -100, 1, 2])
    nll = -logits.log_softmax(-1)
    expected = (0.5 * nll[0, 0] + 4 * nll[1, 2] + 2 * nll[3, 1] + 4 * nll[4, 2]) / 4
    loss = class_weighted_loss([0.5, 2.0, 4.0])
    torch.testing.assert_close(loss({"logits": logits}, labels), expected)
    torch.testing.assert_close(loss({"logits": logits}, labels, torch.tensor(8)), expected / 2)
    logits, labels = torch.randn(2, 3, 4), torch.tensor([[0, -100, 3], [1, 2, -100]])  # of tokens
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(class_weighted_loss([1.0] * 4)({"logits": logits}, labels), expected)


def test_balanced_weights_are_those_of_scikit_learn():
    labels = [0, 1, 1, 2, 2, 2, 2]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    for rows in (labels, [[0, -100, 1], [1, 2, 2, 2], [2]]):
        assert balanced_weights(rows, ["a", "b", "c"]) == pytest.approx(expected.tolist())
    with pytest.raises(ValueError, match="no training row has b"):
        balanced_weights([0, 0], ["a", "b"])


def test_words_become_weights_in_the_order_of_the_classes():
    task = prepare(splits(train=labelled(9)))
    assert task.label_names == ["cat", "none"]
    assert read_class_weights(["none=0.25"], task) == [1.0, 0.25]
    assert read_class_weights(["balanced"], task) == pytest.approx([9 / (2 * 3), 9 / (2 * 6)])
    assert read_class_weights([], task) is None
    numbers = splits(train={"text": ["a", "the"], "label": [0, 1]})
    regression = sequence_regression.prepare(numbers, tokenizer_of(BERT), max_length=LENGTH)
    for wrong_task, word, message in (
        (task, "dog=2", "no class 'dog'; use cat, none"),
        (task, "cat=x", "not a number"),
        (task, "cat=-1", "at least 0"),
        (prepare(splits(train=labelled(9)), multi_label=True), "balanced", "one class per row or token"),
        (regression, "balanced", "one class per row or token"),
    ):
        with pytest.raises(ValueError, match=message):
            read_class_weights([word], wrong_task)
