"""Labels as people have them in files and data sets: lists in text, a column each, missing ones, spaces, capitals."""

import json

import datasets
import pytest

from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.finetuning import sequence_classification
from tests.finetuning.tiny import LENGTH, splits, tokenizer_of
from tests.hub.tiny_checkpoints import BERT


def prepare(labels, **options):
    data = {"text": [f"cat {number}" for number in range(len(labels))], "label": labels}
    return sequence_classification.prepare(splits(train=data), tokenizer_of(BERT), max_length=LENGTH, **options)


def lists_of_classes(names, rows):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.List(datasets.ClassLabel(names=names))}
    )
    data = datasets.Dataset.from_dict({"text": ["the cat"] * len(rows), "label": rows}, features=features)
    return datasets.DatasetDict(train=data)


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
def test_a_list_in_a_cell_is_a_list(cells):
    task = prepare(cells, multi_label=True)
    assert task.label_names == ["fault", "pump", "valve"]
    assert task.train_set["labels"][:] == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize("cell", ["['pump' 'fault']", "[pump, fault]", "['pump', nan]", "['pump', ['fault']]"])
def test_what_is_no_list_is_refused(cell):
    """As numpy writes an array, for one, whose strings Python would join to one."""
    with pytest.raises(ValueError, match=r"train data, row 1: label is .*not a list of labels: write it as \['pump'"):
        prepare(["['valve', 'fault']", cell], multi_label=True)


@pytest.mark.parametrize("label", ["['pump', 'fault']", '["pump"]', ["pump"], "[]", "[1, 0, 1]", [1, 5]])
def test_several_labels_need_the_option(label):
    with pytest.raises(ValueError, match="row 0: label is .*: for several labels use --multi-label"):
        prepare([label, label])


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 0, 1], [0, 1, 0]],
        [[1, 0], [0, 1]],
        [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]],
        [[True, False], [True, True]],
        ["[1, 0, 1]", "[0, 1, 0]"],
        ["1,0,1", "0,1,0"],
        ["[True, False]", "[False, True]"],
    ],
)
def test_rows_of_0_and_1_are_refused(rows):
    with pytest.raises(ValueError, match="train data, row 0: label is .*0 and 1.*--label-column pump,valve,fault"):
        prepare(rows, multi_label=True)


def test_classes_may_be_called_0_and_1():
    assert prepare([[0], [1], [0, 1], []], multi_label=True).train_set["labels"][2] == [1.0, 1.0]
    data = splits(train={"text": ["a", "b"], "label": [[0, 1], [2]]}, test={"text": ["a"], "label": [[0, 1]]})
    task = sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH, multi_label=True)
    assert task.eval_sets["test"]["labels"][:] == [[1.0, 1.0, 0.0]]


@pytest.mark.parametrize("element", [None, float("nan"), "", " ", "-100", -1, -1.0, -100])
def test_a_missing_label_in_a_list_is_refused(element):
    other = "a" if element is None or isinstance(element, str) else 2
    with pytest.raises(ValueError, match=r"train data, row 1: label is \[.*and .* is no label: leave it out"):
        prepare([[other], [other, element]], multi_label=True)


def test_a_missing_label_in_a_list_of_class_labels_is_not_the_last_class():
    with pytest.raises(ValueError, match=r"train data, row 1: label is \[0, -1\], and -1 is no label"):
        sequence_classification.prepare(
            lists_of_classes(["x", "y", "z"], [[0, 2], [0, -1]]),
            tokenizer_of(BERT),
            max_length=LENGTH,
            multi_label=True,
        )


def test_intervals_are_labels():
    assert prepare(["[1]", "[1,5]", "[0, 1]"]).label_names == ["[0, 1]", "[1,5]", "[1]"]


@pytest.mark.parametrize("label", [" ", "-100"])
def test_a_missing_label_is_refused(label):
    with pytest.raises(ValueError, match=f"train data, row 1: label is '{label}', which marks no label: give the row"):
        prepare(["a", label])


def test_minus_one_may_be_a_class():
    assert prepare([-1, 0, 1]).label_names == ["-1", "0", "1"]
    task = prepare(["-1,1", "0", "-1", ""], multi_label=True)
    assert task.label_names == ["-1", "0", "1"]
    assert task.train_set["labels"][:] == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("columns", ["pump,valve, fault", ["pump", "valve", "fault"]])
@pytest.mark.parametrize("values", [["1", "0"], [1, 0], [1.0, 0.0], [True, False], ["true", "FALSE"]])
def test_one_column_per_label(columns, values):
    yes, no = values
    data = {"text": ["a cat", "a dog"], "pump": [yes, no], "valve": [no, no], "fault": [yes, yes]}
    task = sequence_classification.prepare(
        splits(train=data), tokenizer_of(BERT), max_length=LENGTH, multi_label=True, label_column=columns
    )
    assert task.label_names == ["pump", "valve", "fault"]
    assert task.train_set["labels"][:] == [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("columns", "value", "options", "message"),
    [
        ("pump,valve", "2", {"multi_label": True}, "train data, row 1: valve is '2': .* must be 0 or 1"),
        ("pump,valve", "", {"multi_label": True}, "train data, row 1: valve is '': "),
        ("pump,fault", "0", {"multi_label": True}, "--label-column fault: the train data has no such column"),
        ("pump,valve", "0", {}, "--label-column pump,valve: several columns are for --multi-label"),
    ],
)
def test_wrong_columns_of_labels_are_refused(columns, value, options, message):
    data = splits(train={"text": ["a cat", "a dog"], "pump": ["1", "0"], "valve": ["1", value]})
    with pytest.raises(ValueError, match=message):
        sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH, label_column=columns, **options)


def test_spaces_at_the_ends_do_not_make_a_class_and_capitals_are_warned_of(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,Bad\nb,bad\nc,good \nd,good\ne,\u00a0good\nf,\u3000good\n", encoding="utf-8")
    data = datasets.DatasetDict(train=read_file(path))
    task = sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH)
    assert task.label_names == ["Bad", "bad", "good"]
    assert task.plan[-2:] == [
        "3 classes: Bad, bad, good",
        "WARNING: the classes 'Bad', 'bad' differ in capitals only: write them alike if they mean the same.",
    ]


def test_names_of_a_data_set_that_differ_in_spaces_are_one_class():
    data = lists_of_classes(["good", " good", "bad"], [[0], [1], [2]])
    task = sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH, multi_label=True)
    assert task.label_names == ["good", "bad"]
    assert task.train_set["labels"][:] == [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]


def test_each_split_is_read_by_its_own_names():
    def split(names, labels):
        features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
        return datasets.Dataset.from_dict({"text": ["a cat", "a dog"], "label": labels}, features=features)

    data = datasets.DatasetDict(train=split(["no", "yes"], [0, 1]), test=split(["yes", "no"], [0, 1]))
    task = sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH)
    assert (task.train_set["labels"][:], task.eval_sets["test"]["labels"][:]) == ([0, 1], [1, 0])


def test_lists_of_a_json_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": "a cat", "label": ["pump", None]}, {"text": "a dog", "label": ["valve"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(ValueError, match=r"train data, row 0: label is \['pump', None\], and None is no label"):
        sequence_classification.prepare(
            datasets.DatasetDict(train=read_file(path)), tokenizer_of(BERT), max_length=LENGTH, multi_label=True
        )
