"""The fine-tuning examples run on the user's files."""

import json

import pytest

from tests.end_to_end.test_examples import run_example
from tests.finetuning.tiny import save_encoder, sentences
from tests.hub.tiny_checkpoints import BERT


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
