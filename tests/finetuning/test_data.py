"""Files and datasets by name give train, validation and test."""

import datasets
import pytest

from hf_encoders.finetuning.data import DataSource, hold_out, load_data
from tests.finetuning.tiny import splits


@pytest.fixture
def files(tmp_path):
    for name in ("train", "validation", "test"):
        rows = "".join(f"{name} {i},{i % 2}\n" for i in range(20))
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    return {name: str(tmp_path / f"{name}.csv") for name in ("train", "validation", "test")}


def test_each_file_is_its_split(files):
    data, note = load_data(DataSource(**files))
    assert {name: rows[0]["text"] for name, rows in data.items()} == {name: f"{name} 0" for name in files}
    assert note is None


def test_a_tenth_of_the_training_rows_is_held_out_without_evaluation_files_or_if_asked_for(files):
    data, note = load_data(DataSource(train=files["train"]))
    assert (len(data["train"]), len(data["validation"])) == (18, 2)
    assert sorted(data["train"]["text"][:] + data["validation"]["text"][:]) == sorted(f"train {i}" for i in range(20))
    assert note == "validation: 2 rows held out of the training data (10%, seed 0)"
    source = {"train": files["train"], "test": files["test"]}
    assert set(load_data(DataSource(**source))[0]) == {"train", "test"}
    data, _ = load_data(DataSource(**source, held_out=0.25))
    assert {name: len(rows) for name, rows in data.items()} == {"train": 15, "test": 20, "validation": 5}


def test_held_out_rows_depend_on_their_seed_alone(files):
    drawn = [load_data(DataSource(train=files["train"], held_out=0.3, held_out_seed=s))[0] for s in (1, 1, 2)]
    texts = [data["validation"]["text"][:] for data in drawn]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("column", ["context", "passage"])
def test_questions_about_a_context_stay_together(column):
    data = splits(train={column: [f"text {i // 5}" for i in range(40)], "question": ["?"] * 40})
    sides = hold_out(data, 0.25, 0, group_column=column)
    assert set(sides["train"][column]).isdisjoint(sides["validation"][column])
    assert len(sides["validation"]) == 10
    no_text = splits(train={column: [["a"]] * 20})
    assert len(hold_out(no_text, 0.25, 0, group_column=column)["validation"]) == 5


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.csv", "text,label\na,b\na,b,c,d\n", "cannot be loaded .Error tokenizing data"),
        ("set.py", "import datasets\n", "cannot be loaded .Dataset scripts are no longer supported"),
    ],
)
def test_folders_that_datasets_cannot_read_are_refused(tmp_path, monkeypatch, name, text, message):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_data(DataSource(dataset=str(tmp_path / "set")))


@pytest.mark.parametrize("saved", [True, False], ids=["save_to_disk", "folder of files"])
def test_dataset_by_folder(files, tmp_path, monkeypatch, saved):
    folder = tmp_path / "set"
    if saved:
        load_data(DataSource(**files))[0].save_to_disk(folder)
    else:
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        folder.mkdir()
        for name in files:
            (folder / f"{name}.csv").write_text((tmp_path / f"{name}.csv").read_text())
    data, _ = load_data(DataSource(dataset=str(folder)))
    assert {name: rows[0]["text"] for name, rows in data.items()} == {name: f"{name} 0" for name in files}
    swapped, _ = load_data(DataSource(dataset=str(folder), validation_split="test", test_split="validation"))
    assert swapped["test"][0]["text"] == "validation 0"
    assert list(load_data(DataSource(dataset=str(folder), test_split="none"))[0]) == ["train", "validation"]


def test_a_dataset_of_one_split_on_disk_is_trained_on(tmp_path):
    datasets.Dataset.from_dict({"text": ["a"] * 20}).save_to_disk(tmp_path / "set")
    data, _ = load_data(DataSource(dataset=str(tmp_path / "set")))
    assert {name: len(rows) for name, rows in data.items()} == {"train": 18, "validation": 2}


TRAIN = {"train": "train.csv"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either --train FILE or --dataset NAME"),
        ({**TRAIN, "dataset": "b"}, "either --train FILE or --dataset NAME"),
        ({**TRAIN, "train_split": "b"}, "--train-split is for --dataset"),
        ({"dataset": "b", "test": "a.csv"}, "--test is for files"),
        ({**TRAIN, "test": "a.csv"}, "--test 'a.csv' does not exist"),
        ({"dataset": "./nowhere at all"}, "--dataset .* does not exist"),
        ({"dataset": "nowhere at all"}, "cannot be loaded"),
        ({**TRAIN, "conll_columns": "0"}, "must be two numbers"),
        ({**TRAIN, "held_out": 1.0}, "share in"),
        ({**TRAIN, "validation": "test.csv", "held_out": 0.1}, "validation set already"),
        ({**TRAIN, "held_out_seed": -1}, "--held-out-seed -1"),
        ({**TRAIN, "held_out": 0.99}, "takes every row .*more rows"),
        ({"dataset": "set", "test_split": "dev"}, "has the splits train, test: name one"),
        ({"dataset": "set"}, "--test-split test: it has no rows"),
    ],
)
def test_wrong_sources_are_refused(files, tmp_path, monkeypatch, fields, message):
    monkeypatch.chdir(tmp_path)
    if fields.get("dataset") == "set":
        monkeypatch.setattr(datasets, "load_dataset", lambda *_: splits(train={"text": ["a"]}, test={"text": []}))
    with pytest.raises(ValueError, match=message):
        DataSource(**fields).check()
        load_data(DataSource(**fields))
