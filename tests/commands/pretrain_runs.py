"""The command `hf-encoders pretrain` on a recipe and a text of seconds."""

import json
import shutil

import torch
import yaml
from safetensors.torch import load_file

from hf_encoders.cli import main
from tests.corpus.corpora import write_corpus


TINY = {
    "family": "albert",
    "objective": "sop",
    "model": {
        "num_hidden_layers": 2,
        "hidden_size": 12,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "embedding_size": 8,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
    },
    "tokenizer": {"vocab_size": 150},
    "mask_rate": [0.3, 0.15],
    "masking": {"unit": "ngram"},
    "optimizer": "lamb",
    "phases": [{"steps": 4, "length": 24, "examples": 6}, {"steps": 2, "length": 40, "examples": 3}],
    "training": {"learning_rate": 0.01, "warmup_steps": 0.3, "weight_decay": 0.01},
}


def pretrain(folder, output, *words, corpus="text.txt", recipe="tiny.yaml"):
    options = ["--validation-share", "0.2", "--save_steps", "2", "--disable_tqdm", "True", *words]
    text = [] if "--corpus" in options else ["--corpus", str(folder / corpus)]
    return main(["pretrain", str(folder / recipe), *text, "--output", str(folder / output), *options])


def weights(directory):
    return load_file(directory / "model.safetensors")


def finished_run(folder):
    """A recipe, text, and a finished run with all its checkpoints."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    write_corpus(folder / "text.txt", 60, "alpha")
    assert pretrain(folder, "whole", "--save_total_limit", "9") == 0
    return folder


def same_weights(folder, first, second):
    before, after = (weights(folder / name / "model") for name in (first, second))
    return before.keys() == after.keys() and all(torch.equal(value, after[name]) for name, value in before.items())


def stopped_after(folder, source, output, step):
    """A copy of a finished run that has the checkpoints up to a step and no model."""
    shutil.copytree(folder / source, folder / output)
    for path in (folder / output).glob("checkpoint-*"):
        if int(path.name.removeprefix("checkpoint-")) > step:
            shutil.rmtree(path)
    shutil.rmtree(folder / output / "model")
    run_file = folder / output / "run.json"
    run_file.write_text(json.dumps({**json.loads(run_file.read_text()), "is_finished": False}))
