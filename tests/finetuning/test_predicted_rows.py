"""Examples of predictions: rows of each task as a person reads them, which ones are shown, and their page."""

import json
from html import unescape

import numpy as np
import pytest

from hf_encoders.cli import main
from hf_encoders.finetuning import (
    multiple_choice,
    question_answering,
    sequence_classification,
    sequence_regression,
    token_classification,
)
from tests.finetuning.tiny import LENGTH, save_encoder, sentences, splits, tokenizer_of
from tests.hub.tiny_checkpoints import BERT


WORDS = ["the", "cat", "sat", "on", "a", "mat"] * 10


def rows_of(module, columns, scores, **options):
    """The predicted rows of a test set that is the training set too; probabilities rounded."""
    task = module.prepare(splits(train=columns, test=columns), tokenizer_of(BERT), max_length=LENGTH, **options)
    return [
        (
            dict(row.inputs),
            list(row.labels),
            [(text, None if number is None else round(number, 3)) for text, number in row.predictions],
            row.is_right,
        )
        for row in task.predicted_rows("test", scores)
    ]


def test_a_class_has_the_softmax_of_its_score():
    columns = {"text": ["cat", "dog"], "other": ["a", "b"], "label": ["x", "y"]}
    scores = np.array([[np.log(3.0), 0.0], [np.log(9.0), 0.0]], dtype=np.float32)
    assert rows_of(sequence_classification, columns, scores, text_pair_column="other") == [
        ({"text": "cat", "other": "a"}, ["x"], [("x", 0.75)], True),
        ({"text": "dog", "other": "b"}, ["y"], [("x", 0.9)], False),
    ]


def test_each_of_several_labels_has_its_own_probability():
    columns = {"text": ["cat", "dog", "mat"], "label": ["y,x", "", "x"]}
    scores = np.array([[np.log(3.0), np.log(9.0)], [-1.0, -2.0], [1.0, 1.0]], dtype=np.float32)
    assert rows_of(sequence_classification, columns, scores, multi_label=True) == [
        ({"text": "cat"}, ["x", "y"], [("x", 0.75), ("y", 0.9)], True),
        ({"text": "dog"}, [], [], True),
        ({"text": "mat"}, ["x"], [("x", 0.731), ("y", 0.731)], False),
    ]


def test_a_number_is_neither_right_nor_has_it_a_probability():
    scores = np.array([[2.468], [1.0]], dtype=np.float32)
    assert rows_of(sequence_regression, {"text": ["cat", "dog"], "label": [2.5, 1]}, scores) == [
        ({"text": "cat"}, ["2.5"], [("2.47", None)], None),
        ({"text": "dog"}, ["1"], [("1.00", None)], None),
    ]


def test_an_ending_is_shown_with_all_of_its_row():
    columns = {"prompt": ["the", "a"], "one": ["cat", "dog"], "two": ["mat", "day"], "label": [1, 1]}
    scores = np.array([[0.0, np.log(3.0)], [np.log(4.0), 0.0]], dtype=np.float32)
    assert rows_of(multiple_choice, columns, scores, ending_columns=["one", "two"]) == [
        ({"prompt": "the", "endings": "cat\nmat"}, ["mat"], [("mat", 0.75)], True),
        ({"prompt": "a", "endings": "dog\nday"}, ["day"], [("dog", 0.8)], False),
    ]


def test_tags_are_shown_except_o_around_the_first_mistake():
    tags = ["O", "B-X", *["O"] * 58]
    columns = {"tokens": [WORDS[:2], WORDS], "ner_tags": [["O", "B-X"], tags]}
    task = token_classification.prepare(splits(train=columns, test=columns), tokenizer_of(BERT), max_length=80)
    assert task.label_names == ["B-X", "O"]
    scores = np.zeros((2, 62, 2), dtype=np.float32)
    scores[..., 1] = np.log(4.0)  # of O
    scores[:, 2] = [np.log(3.0), 0.0]  # the first cat, after [CLS] the
    short, long = task.predicted_rows("test", scores)
    assert (dict(short.inputs), short.labels, short.is_right) == ({"tokens": "the cat"}, ["cat B-X"], True)
    [(word, probability)] = short.predictions
    assert word == "cat B-X" and probability == pytest.approx(0.75)
    assert long.inputs["tokens"] == " ".join(WORDS[:40]) and long.is_right
    scores[1, 51] = [np.log(3.0), 0.0]  # word 50, a
    *_, long = task.predicted_rows("test", scores)
    assert long.inputs["tokens"] == " ".join(WORDS[20:]) and not long.is_right
    assert (long.labels, [word for word, _ in long.predictions]) == ([], [f"{WORDS[50]} B-X"])


def test_an_answer_is_compared_as_squad_does():
    context = "the cat sat on a mat . " + "the dog slept all day . " * 5 + "a dog sat ."
    golds = [{"text": ["cat", "cat"], "answer_start": [4, 4]}, {"text": [], "answer_start": []}]
    columns = {"question": ["the", "day"], "context": [context] * 2, "answers": golds}
    options = {"max_length": 64, "allow_no_answer": True}
    task = question_answering.prepare(splits(train=columns, test=columns), tokenizer_of(BERT), **options)
    shape = (2, max(map(len, task.eval_sets["test"]["input_ids"])))
    starts, ends = np.full(shape, -50.0, dtype=np.float32), np.full(shape, -50.0, dtype=np.float32)
    starts[:, 3], ends[:, 4] = 50.0, 50.0  # [CLS] question [SEP] the cat
    answered, unanswerable = task.predicted_rows("test", (starts, ends))
    assert dict(answered.inputs) == {"question": "the", "context": context}
    assert (answered.labels, answered.predictions, answered.is_right) == (["cat"], [("the cat", 1.0)], True)
    assert (unanswerable.labels, unanswerable.is_right) == (["no answer"], False)
    starts[1, 0] = ends[1, 0] = 90.0
    *_, unanswerable = task.predicted_rows("test", (starts, ends))
    assert (unanswerable.predictions, unanswerable.is_right) == ([("no answer", 1.0)], True)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_encoder(BERT, tmp_path_factory.mktemp("encoder"))


def finetuned(encoder, folder, task, rows, *options):
    """Fine-tune on 40 rows for a step, test on the others; return the examples and the page."""
    for name, part in (("train", rows[:40]), ("test", rows[40:])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    files = [option for name in ("train", "test") for option in (f"--{name}", str(folder / f"{name}.jsonl"))]
    settings = ["--max-steps", "1", "--batch-size", "8", "--disable-tqdm", "True", "--max-length", str(LENGTH)]
    output = folder / "out"
    assert main(["finetune", task, "--model", str(encoder), "--output", str(output), *files, *settings, *options]) == 0
    assert main(["report", str(output)]) == 0
    page = (output / "report.html").read_text(encoding="utf-8")
    return json.loads((output / "examples.json").read_text(encoding="utf-8")), page


def test_half_of_the_examples_are_wrong_and_their_texts_are_text(encoder, tmp_path):
    texts = [f"<b>{text}</b> {number}" for number, text in enumerate(sentences(80))]
    texts[40:] = [text + " the cat" * 100 for text in texts[40:]]
    rows = [{"text": text, "label": "xy"[number % 2]} for number, text in enumerate(texts)]
    examples, page = finetuned(encoder, tmp_path, "text-classification", rows, "--seeds", "3", "4")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    accuracy = results["seeds"][0]["metrics"]["test"]["accuracy"]
    assert (examples["seed"], examples["split"], examples["rows"]) == (3, "test", 40)
    assert examples["wrong"] == round(40 * (1 - accuracy)) >= 4
    assert [row["is_right"] for row in examples["shown"]] == [False] * 4 + [True] * 4
    shown = [row["inputs"]["text"] for row in examples["shown"]]
    assert len(set(shown)) == 8 and all(len(text) == 400 and text.endswith("…") for text in shown)
    assert all(any(text.startswith(start[:-1]) for text in texts[40:]) for start in shown)
    assert "<b>" not in page and all(text in unescape(page) for text in shown)
    assert "8 of the 40 rows of the test set, with the predictions of seed 3." in page
    assert f"Of these 4 are wrong, of all rows {examples['wrong']};" in page
    assert page.count(">wrong</td>") == page.count(">right</td>") == 4
    [(_, probability)] = examples["shown"][0]["predictions"]
    assert f"{100 * probability:.0f} %</span>" in page
    assert not list((tmp_path / "out").glob("seed-*/examples.json"))  # which folders are pushed


def test_numbers_have_a_page_without_right_and_wrong(encoder, tmp_path):
    rows = [{"text": text, "label": number / 2} for number, text in enumerate(sentences(43))]
    examples, page = finetuned(encoder, tmp_path, "text-regression", rows)
    assert (examples["rows"], examples["wrong"], len(examples["shown"])) == (3, None, 3)
    assert "Examples of predictions" in page and "wrong" not in page
    assert {row["labels"][0] for row in examples["shown"]} == {"20", "20.5", "21"}


def test_results_without_examples_have_a_page_too(encoder, tmp_path):
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(sentences(44))]
    finetuned(encoder, tmp_path, "text-classification", rows)
    (tmp_path / "out" / "examples.json").unlink()
    assert main(["report", str(tmp_path / "out")]) == 0
    assert "Examples of predictions" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
