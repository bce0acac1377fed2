"""The fine-tuning examples run on the user's files, and their own data is what they say."""

import json
import runpy
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.end_to_end.test_examples import EXAMPLES, run_example
from tests.finetuning.tiny import save_encoder, sentences
from tests.hub.tiny_checkpoints import BERT


def load(name):
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))


@pytest.mark.parametrize(
    ("name", "labels", "metric"),
    [
        ("finetune_pairs", ["yes", "no"], "eval_accuracy"),
        ("finetune_similarity", [0.5, 2.0], "eval_pearsonr"),
        ("finetune_multiple_choice", [0, 1], "eval_accuracy"),
    ],
)
def test_examples_take_files(name, labels, metric, tmp_path):
    encoder = save_encoder(BERT, tmp_path / "encoder")
    texts = zip(sentences(8), sentences(8, 1), labels * 4, strict=True)
    rows = [{"text": a, "text_pair": b, "prompt": a, "endings": [a, b], "label": label} for a, b, label in texts]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    output = run_example(
        f"{name}.py", "--model", str(encoder), "--train_file", str(tmp_path / "rows.jsonl"), "--test_file",
        str(tmp_path / "rows.jsonl"), "--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--max_length", "20",
        "--use_cpu", "True",
    )  # fmt: skip
    assert metric in output
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.slow
def test_pairs_are_a_function_and_a_description_of_its_module():
    data = load("finetune_pairs").functions_and_descriptions()
    counts = {label: data["train"]["label"][:].count(label) for label in ("its own", "another's")}
    assert min(counts.values()) > 0.4 * len(data["train"])
    assert len(data["test"]) > 300


@pytest.mark.slow
def test_similarity_is_five_times_the_share_of_words_kept():
    data = load("finetune_similarity").altered_sentences()
    for row in data["test"].to_list()[:200]:
        kept = row["label"] / 5 * len(row["text"].split())
        common = Counter(row["text"].split()) & Counter(row["text_pair"].split())
        assert len(row["text"].split()) == len(row["text_pair"].split())
        assert round(kept) == pytest.approx(kept)
        assert common.total() >= round(kept)  # words drawn in exchange may be among the sentence's too
        if row["label"] == 5:
            assert sorted(row["text"].split()) == sorted(row["text_pair"].split())


@pytest.mark.slow
def test_choices_have_four_endings_and_one_is_right():
    example = load("finetune_multiple_choice")
    described = {(words, text) for module in example.documented_functions() for words, text in module}
    data = example.functions_and_choices()
    assert len(data["test"]) > 300
    for row in data["test"].to_list()[:200]:
        assert len(set(row["endings"])) == 4
        assert (row["prompt"], row["endings"][row["label"]]) in described
