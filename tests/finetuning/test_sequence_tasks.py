"""Rows of the sequence tasks become the right ids, labels and batches."""

import datasets
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, EvalPrediction

from hf_encoders.finetuning import multiple_choice, sequence_classification, sequence_regression
from hf_encoders.finetuning.runs import RunSettings, finetune
from tests.finetuning.tiny import LENGTH, labelled, save_encoder, splits, tokenizer_of
from tests.hub.tiny_checkpoints import ALBERT, BERT, FAMILIES


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_pairs_have_the_token_types_of_the_family(family):
    tokenizer = tokenizer_of(family)
    data = splits(train={"a": ["The cat sat."] * 2, "b": ["A dog slept."] * 2, "label": ["x", "y"]})
    task = sequence_classification.prepare(data, tokenizer, max_length=LENGTH, text_column="a", text_pair_column="b")
    if family.name not in (
        "bert",
        "albert",
        "distilbert",
        "electra",
        "xlnet",
    ):  # the others have one: XLM's would be words
        assert task.train_set.column_names == ["input_ids", "attention_mask", "labels"]
        return
    ends = [i for i, token in enumerate(task.train_set[0]["input_ids"]) if token == tokenizer.sep_token_id]
    expected = [0] * (ends[0] + 1) + [1] * (ends[-1] - ends[0])
    expected += [2] * (family.name == "xlnet")  # of its <cls>, the last token
    assert task.train_set[0]["token_type_ids"] == expected


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_single_text_has_token_types_only_where_one_is_above_0(family):
    task = sequence_classification.prepare(
        splits(train={"text": ["The cat sat."] * 2, "label": ["x", "y"]}), tokenizer_of(family), max_length=LENGTH
    )
    row = task.train_set[0]
    expected = [0] * (len(row["input_ids"]) - 1) + [2] if family.name == "xlnet" else None  # that of its <cls>
    assert row.get("token_type_ids") == expected


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_fine_tuned_models_pipeline_reads_the_rows_of_training(family, tmp_path):
    folder, tokenizer = save_encoder(family, tmp_path / "encoder"), tokenizer_of(family)
    data = splits(train={"a": ["the cat"] * 2, "b": ["a dog"] * 2, "label": ["x", "y"]})
    task = sequence_classification.prepare(data, tokenizer, max_length=LENGTH, text_column="a", text_pair_column="b")
    settings = RunSettings(str(folder), training={"max_steps": 1, "optim": "adamw_torch", "use_cpu": True})
    finetune(task, tokenizer, settings, 0, tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    saved = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    row = {name: values for name, values in task.train_set[0].items() if name != "labels"}
    if family.name == "distilbert":
        del row["token_type_ids"]  # it has none, and the trainer leaves out what a model does not take
    assert dict(saved("the cat", "a dog")) == row


def test_the_longer_text_is_cut_and_the_plan_says_how_often():
    data = splits(train={"a": ["the cat", "the"], "b": ["a mat and a dog all day long", "dog"], "label": [1, 0]})
    tokenizer = tokenizer_of(BERT)
    task = sequence_classification.prepare(data, tokenizer, max_length=8, text_column="a", text_pair_column="b")
    assert tokenizer.decode(task.train_set[0]["input_ids"]) == "[CLS] the cat [SEP] a mat and [SEP]"
    assert task.plan[0] == "train: 2 examples of 6 tokens on average, 8 at most; 50.0% are truncated"


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["no", "yes", "no"], ["no", "yes"], [0, 1, 0]),
        (["10", "9", "9"], ["9", "10"], [1, 0, 0]),
        ([3, 1, 3], ["1", "3"], [1, 0, 1]),
        ([True, False, True], ["0", "1"], [1, 0, 1]),
    ],
)
def test_labels_become_class_numbers(labels, names, numbers):
    data = splits(train={"text": ["the"] * 3, "label": labels})
    task = sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH)
    assert task.label_names == names
    assert task.train_set["labels"][:] == numbers
    assert task.config_fields["id2label"] == dict(enumerate(names))


def test_class_label_columns_keep_their_order_and_classes_without_rows():
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["z", "unused", "a"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["the", "cat"], "label": [2, 0]}, features=features)
    task = sequence_classification.prepare(
        datasets.DatasetDict({"train": rows}), tokenizer_of(BERT), max_length=LENGTH
    )
    assert task.label_names == ["z", "unused", "a"]
    assert task.train_set["labels"][:] == [2, 0]


def test_several_labels_a_row():
    data = splits(
        train={"text": ["the", "cat", "sat"], "label": ["b, a", "", "c"]}, test={"text": ["a"], "label": ["c"]}
    )
    task = sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH, multi_label=True)
    assert task.train_set["labels"][:] == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert task.config_fields["problem_type"] == "multi_label_classification"
    scores = EvalPrediction(np.array([[1.0, -1, -1], [-1, 1, 1]]), np.array([[1.0, 1, 0], [0, 1, 1]]))
    # Three of four labels found, none wrong: F1 = 2 * 3 / (3 + 4); one of two rows all right.
    metrics = task.compute_metrics("test")(scores)
    assert metrics["f1_micro"] == pytest.approx(6 / 7)
    assert metrics["accuracy"] == 0.5


def test_classification_metrics():
    task = sequence_classification.prepare(splits(train=labelled(6)), tokenizer_of(BERT), max_length=LENGTH)
    scores = np.array([[2.0, 1], [0, 1], [3, 1], [0, 5]])
    metrics = task.compute_metrics("test")(EvalPrediction(scores, np.array([0, 0, 0, 1])))
    # Class 0: precision 1, recall 2/3; class 1: precision 1/2, recall 1. Matthews: (2*1 - 0*1) / sqrt(2*3*1*2).
    expected = {"accuracy": 0.75, "f1_macro": (0.8 + 2 / 3) / 2, "matthews_correlation": 2 / 12**0.5}
    assert metrics == pytest.approx(expected)


def test_regression_metrics_and_numbers():
    data = splits(train={"text": ["the", "cat"], "label": ["1", "2.5"]})
    task = sequence_regression.prepare(data, tokenizer_of(BERT), max_length=LENGTH)
    assert task.train_set["labels"][:] == [1.0, 2.5]
    assert task.config_fields == {"num_labels": 1, "problem_type": "regression"}
    predicted = np.array([[1.0], [2.0], [4.0]])
    metrics = task.compute_metrics("test")(EvalPrediction(predicted, np.array([1.0, 2.0, 3.0])))
    assert metrics == pytest.approx({"pearsonr": 0.981981, "spearmanr": 1.0, "mse": 1 / 3}, abs=1e-6)
    constant = task.compute_metrics("test")(EvalPrediction(np.ones((3, 1)), np.array([1.0, 2.0, 3.0])))
    assert (constant["pearsonr"], constant["spearmanr"]) == (0.0, 0.0)


def test_hidden_numbers_are_refused():
    data = splits(
        train={"text": ["the", "cat"], "label": [1.0, 2.5]}, test={"text": ["the", "cat"], "label": [-1.0, -1.0]}
    )
    with pytest.raises(ValueError, match="test data: label is hidden .* --test-split none"):
        sequence_regression.prepare(data, tokenizer_of(BERT), max_length=LENGTH)


@pytest.mark.parametrize("columns", [("endings",), ("e0", "e1")], ids=["list column", "column each"])
def test_choices_become_a_batch_of_pairs(columns):
    endings = [["a mat.", "a dog slept."], ["cat.", "day."]]
    rows = {"prompt": ["The cat sat on", "A dog"], "endings": endings, "label": ["1", "0"]}
    rows |= {f"e{i}": [row[i] for row in endings] for i in range(2)}
    tokenizer = tokenizer_of(BERT)
    task = multiple_choice.prepare(splits(train=rows), tokenizer, max_length=LENGTH, ending_columns=columns)
    batch = task.data_collator([task.train_set[0], task.train_set[1]])
    assert batch["labels"].tolist() == [1, 0]
    assert batch["input_ids"].shape == (2, 2, 11)
    assert [[tokenizer.decode(ids) for ids in row] for row in batch["input_ids"]] == [
        ["[CLS] the cat sat on [SEP] a mat. [SEP] [PAD]", "[CLS] the cat sat on [SEP] a dog slept. [SEP]"],
        ["[CLS] a dog [SEP] cat. [SEP]" + " [PAD]" * 4, "[CLS] a dog [SEP] day. [SEP]" + " [PAD]" * 4],
    ]
    assert torch.equal(batch["attention_mask"].sum(-1), torch.tensor([[10, 11], [7, 7]]))


TEXTS = {"text": ["the", "cat"], "label": ["x", "y"]}
CHOICES = {"prompt": ["the", "cat"], "endings": [["a", "dog"], ["on", "mat"]], "label": [0, 1]}


@pytest.mark.parametrize(
    ("module", "train", "test", "message"),
    [
        (sequence_classification, {"txt": ["the"], "label": ["x"]}, None, "--text-column text: .* it has txt, label"),
        (sequence_classification, {**TEXTS, "text": ["the", None]}, None, "train data, row 1: text is None"),
        (sequence_classification, {**TEXTS, "label": ["x", ""]}, None, "train data, row 1: label is ''"),
        (sequence_classification, {**TEXTS, "label": ["x", "x"]}, None, r"label has one class \('x'\); at least two"),
        (sequence_classification, {**TEXTS, "label": [1.0, float("nan")]}, None, "row 1: label is nan"),
        (sequence_classification, {**TEXTS, "label": [["x"], ["x", "y"]]}, None, r"row 0: label is \['x'\].*--multi"),
        (
            sequence_classification,
            TEXTS,
            {"text": ["the"], "label": ["z"]},
            r"test data: label has the labels \['z'\]",
        ),
        (sequence_regression, {**TEXTS, "label": ["1", "x"]}, None, "row 1: label is 'x', not a finite number"),
        (sequence_regression, {**TEXTS, "label": [1.0, float("nan")]}, None, "row 1: label is nan"),
        (sequence_regression, {**TEXTS, "label": [1.0, 1.0]}, None, "give two values or more"),
        (multiple_choice, {**CHOICES, "label": [0, 2]}, None, "row 1: label 2 must be .* from 0 to 1"),
        (
            multiple_choice,
            {**CHOICES, "endings": [["a", "dog"], ["on"]]},
            None,
            "row 1: 1 endings, but train row 0 has 2",
        ),
        (multiple_choice, {**CHOICES, "endings": ["a", "b"]}, None, "endings must be text"),
        (multiple_choice, TEXTS, None, "--prompt-column prompt"),
        (multiple_choice, {**CHOICES, "prompt": ["the", None]}, None, "train data, row 1: prompt is None, not text"),
    ],
)
def test_wrong_rows_are_refused(module, train, test, message):
    data = splits(train=train) if test is None else splits(train=train, test=test)
    with pytest.raises(ValueError, match=message):
        module.prepare(data, tokenizer_of(ALBERT), max_length=LENGTH)


@pytest.mark.parametrize(
    ("labels", "separator", "message"),
    [([1, 2], ",", "row 0: label is 1: --multi-label"), (["a", None], ",", "row 1: label is None"),
     (["a", "b"], "", "--label-separator is empty")],
)  # fmt: skip
def test_wrong_rows_of_several_labels_are_refused(labels, separator, message):
    with pytest.raises(ValueError, match=message):
        sequence_classification.prepare(
            splits(train={**TEXTS, "label": labels}), tokenizer_of(ALBERT), max_length=LENGTH, multi_label=True,
            label_separator=separator,
        )  # fmt: skip
