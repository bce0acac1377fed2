"""Rows of the sequence tasks become the right ids, labels and batches."""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, EvalPrediction

from hf_encoders.finetuning import multiple_choice, sequence_classification, sequence_regression
from hf_encoders.finetuning.runs import RunSettings, finetune
from tests.finetuning.tiny import LENGTH, labelled, save_encoder, splits, tokenizer_of
from tests.hub.tiny_checkpoints import ALBERT, BERT, FAMILIES


TYPED = ("bert", "albert", "distilbert", "electra", "xlnet", "deberta-v2")  # tokenizers; XLM's would be words
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
def test_token_types_are_those_of_the_family(family):
    tokenizer = tokenizer_of(family)
    data = splits(train={"a": ["The cat sat."] * 2, "b": ["A dog slept."] * 2, "label": ["x", "y"]})
    options = {"max_length": LENGTH, "text_column": "a"}
    pair = sequence_classification.prepare(data, tokenizer, **options, text_pair_column="b").train_set
    if family.name in TYPED:
        ends = [i for i, token in enumerate(pair[0]["input_ids"]) if token == tokenizer.sep_token_id]
        expected = [0] * (ends[0] + 1) + [1] * (ends[-1] - ends[0])
        expected += [2] * (family.name == "xlnet")  # of its <cls>, the last token
        assert pair[0]["token_type_ids"] == expected
    else:
        assert pair.column_names == ["input_ids", "attention_mask", "labels"]
    single = sequence_classification.prepare(data, tokenizer, **options).train_set[0]
    expected = [0] * (len(single["input_ids"]) - 1) + [2] if family.name == "xlnet" else None
    assert single.get("token_type_ids") == expected


@each_family
def test_a_fine_tuned_models_pipeline_reads_the_rows_of_training(family, tmp_path):
    tokenizer = tokenizer_of(family)
    data = splits(train={"a": ["the cat"] * 2, "b": ["a dog"] * 2, "label": ["x", "y"]})
    task = sequence_classification.prepare(data, tokenizer, max_length=LENGTH, text_column="a", text_pair_column="b")
    settings = RunSettings(str(save_encoder(family, tmp_path / "encoder")), training={"max_steps": 1, "use_cpu": True})
    finetune(task, tokenizer, settings, 0, tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    saved = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    row = {name: values for name, values in task.train_set[0].items() if name != "labels"}
    if family.name in ("distilbert", "deberta-v2"):
        del row["token_type_ids"]  # which they do not read, and their saved tokenizers do not make
    assert dict(saved("the cat", "a dog")) == row


def test_the_longer_text_is_cut_and_the_plan_says_how_often():
    data = splits(train={"a": ["the cat", "the"], "b": ["a mat and a dog all day long", "dog"], "label": [1, 0]})
    tokenizer = tokenizer_of(BERT)
    task = sequence_classification.prepare(data, tokenizer, max_length=8, text_column="a", text_pair_column="b")
    assert tokenizer.decode(task.train_set[0]["input_ids"]) == "[CLS] the cat [SEP] a mat and [SEP]"
    assert task.plan[0] == "train: 2 examples of 6 tokens on average, 8 at most; 50.0% are truncated"


def test_classification_metrics():
    task = sequence_classification.prepare(splits(train=labelled(6)), tokenizer_of(BERT), max_length=LENGTH)
    scores = np.array([[2.0, 1], [0, 1], [3, 1], [0, 5]])
    metrics = task.compute_metrics("test")(EvalPrediction(scores, np.array([0, 0, 0, 1])))
    # Class 0: precision 1, recall 2/3; class 1: precision 1/2, recall 1. Matthews: (2*1 - 0*1) / sqrt(2*3*1*2).
    expected = {"accuracy": 0.75, "f1_macro": (0.8 + 2 / 3) / 2, "matthews_correlation": 2 / 12**0.5}
    assert metrics == pytest.approx(expected)


def test_metrics_of_several_labels_a_row():
    data = splits(train={"text": ["the", "cat", "sat"], "label": ["b, a", "", "c"]})
    task = sequence_classification.prepare(data, tokenizer_of(BERT), max_length=LENGTH, multi_label=True)
    scores = EvalPrediction(np.array([[1.0, -1, -1], [-1, 1, 1]]), np.array([[1.0, 1, 0], [0, 1, 1]]))
    # Three of four labels found, none wrong: F1 = 2 * 3 / (3 + 4), by class 1, 2/3, 1; one of two rows all right.
    expected = {"f1_micro": 6 / 7, "f1_macro": 8 / 9, "accuracy": 0.5}
    assert task.compute_metrics("test")(scores) == pytest.approx(expected)


def test_regression_metrics_and_numbers():
    data = splits(train={"text": ["the", "cat"], "label": ["1", "2.5"]})
    task = sequence_regression.prepare(data, tokenizer_of(BERT), max_length=LENGTH)
    assert task.train_set["labels"][:] == [1.0, 2.5]
    assert task.config_fields == {"num_labels": 1, "problem_type": "regression"}
    predicted = np.array([[1.0], [2.0], [4.0]])
    metrics = task.compute_metrics("test")(EvalPrediction(predicted, np.array([1.0, 2.0, 3.0])))
    assert metrics == pytest.approx({"pearsonr": 0.981981, "spearmanr": 1.0, "mse": 1 / 3}, abs=1e-6)
    # An untrained model may predict the same number for every row, and NaN cannot choose a checkpoint.
    constant = task.compute_metrics("test")(EvalPrediction(np.ones((3, 1)), np.array([1.0, 2.0, 3.0])))
    assert (constant["pearsonr"], constant["spearmanr"]) == (0.0, 0.0)


@pytest.mark.parametrize("columns", [("endings",), ("e0", "e1")], ids=["list column", "column each"])
def test_choices_become_a_batch_of_pairs(columns):
    endings = [["a mat.", "a dog slept."], ["cat.", "day."]]
    rows = {"prompt": ["The cat sat on", "A dog"], "endings": endings, "label": ["1", "0"]}
    rows |= {f"e{i}": [row[i] for row in endings] for i in range(2)}
    tokenizer = tokenizer_of(BERT)
    task = multiple_choice.prepare(splits(train=rows), tokenizer, max_length=LENGTH, ending_columns=columns)
    batch = task.data_collator([task.train_set[0], task.train_set[1]])
    assert batch["labels"].tolist() == [1, 0]
    assert [[tokenizer.decode(ids) for ids in row] for row in batch["input_ids"]] == [
        ["[CLS] the cat sat on [SEP] a mat. [SEP] [PAD]", "[CLS] the cat sat on [SEP] a dog slept. [SEP]"],
        ["[CLS] a dog [SEP] cat. [SEP]" + " [PAD]" * 4, "[CLS] a dog [SEP] day. [SEP]" + " [PAD]" * 4],
    ]
    assert torch.equal(batch["attention_mask"].sum(-1), torch.tensor([[10, 11], [7, 7]]))


TEXTS = {"text": ["the", "cat"], "label": ["x", "y"]}
NUMBERS = {"text": ["the", "cat"], "label": [1.0, 2.5]}
CHOICES = {"prompt": ["the", "cat"], "endings": [["a", "dog"], ["on", "mat"]], "label": [0, 1]}


@pytest.mark.parametrize(
    ("module", "train", "changed", "message"),
    [
        (sequence_classification, {"txt": ["the"], "label": ["x"]}, {}, "--text-column text: .* txt, label"),
        (sequence_classification, TEXTS, {"text": ["the", None]}, "train data, row 1: text is None"),
        (sequence_regression, NUMBERS, {"label": ["1", "x"]}, "row 1: label is 'x'.*finite number"),
        (sequence_regression, NUMBERS, {"label": [1.0, float("nan")]}, "row 1: label is nan"),
        (sequence_regression, NUMBERS, {"label": [-1.0, -1.0]}, "label is -1.0.*two values"),
        (multiple_choice, CHOICES, {"label": [0, 2]}, "row 1: label 2 .* from 0 to 1"),
        (multiple_choice, CHOICES, {"endings": [["a", "dog"], ["on"]]}, "row 1: 1 endings, but train row 0 has 2"),
        (multiple_choice, CHOICES, {"endings": ["a", "b"]}, "endings must be text"),
        (multiple_choice, TEXTS, {}, "--prompt-column prompt"),
        (multiple_choice, CHOICES, {"prompt": ["the", None]}, "train data, row 1: prompt is None"),
    ],
)
def test_wrong_rows_are_refused(module, train, changed, message):
    with pytest.raises(ValueError, match=message):
        module.prepare(splits(train={**train, **changed}), tokenizer_of(ALBERT), max_length=LENGTH)


def test_hidden_numbers_are_refused():
    data = splits(train=NUMBERS, test={**NUMBERS, "label": [-1.0, -1.0]})
    with pytest.raises(ValueError, match="test data: label is hidden .* --test-split none"):
        sequence_regression.prepare(data, tokenizer_of(BERT), max_length=LENGTH)
