"""Dialogues in JSON lines, pre-trained on by the command: a run that learns, is exact and resumes."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from hf_encoders import get_objective
from hf_encoders.cli import main
from hf_encoders.runs.recipe import recipe_of
from hf_encoders.runs.run import Run, divide
from tests.corpus.corpora import make_dataset, random_documents, write_corpus
from tests.training.tiny import NO_DROPOUT, make_tokenizer


WORDS = "of the examples (three turns; token types 0 query, 1 response) with a turn from another dialogue (label 1)"
TOPICS = ("cat", "dog", "house", "river", "teacher", "engine", "song", "letter")
RECIPE = {
    "family": "bert",
    "objective": "dialogue",
    "model": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "initializer_range": 0.1,
        **NO_DROPOUT,
    },
    "tokenizer": {"vocab_size": 150},
    "phases": [{"steps": 200, "length": 32, "examples": 48}],
    "training": {"learning_rate": 0.005, "warmup_steps": 0.1, "logging_steps": 50, "save_steps": 100},
}


def write_dialogues(path, number: int = 400):
    """Dialogues about one thing each, which every turn names; roles are given in every second."""
    generator = np.random.default_rng(0)
    lines = []
    for i in range(number):
        topic = TOPICS[i % 8]
        turns = [f"{generator.choice(['see', 'hear', 'know'])} the {topic}", f"the {topic} {i % 50}", f"yes {topic}"]
        roles = ["user", "assistant", generator.choice(["user", "assistant"])]
        with_roles = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
        lines.append(json.dumps({"turns": with_roles if i % 2 else turns}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def pretrain(folder, output, *words, corpus="dialogues.jsonl"):
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    options = ["--validation-share", "0.2", "--disable_tqdm", "True", "--use_cpu", *words]
    paths = ["--corpus", str(folder / corpus), "--output", str(folder / output)]
    return main(["pretrain", str(folder / "tiny.yaml"), *paths, *options])


@pytest.mark.slow
def test_a_model_learns_what_is_fake_and_a_resumed_run_is_the_same(tmp_path, capsys):
    write_dialogues(tmp_path / "dialogues.jsonl")
    assert pretrain(tmp_path, "run") == 0
    record = json.loads((tmp_path / "run" / "model" / "training_record.json").read_text())
    assert set(record["losses"]) == {"masked tokens, held-out", "dialogues, held-out"}
    assert record["objectives"]["dialogue language modelling"] == f"half {WORDS}"
    (accuracy,) = (one["value"] for one in record["evaluation"] if one["task"] == "text-classification")
    assert accuracy > 0.8  # chance 0.5; a turn on the same topic, one of 8, cannot be told
    assert "dialogues loss" in capsys.readouterr().out
    whole = load_file(tmp_path / "run" / "model" / "model.safetensors")
    shutil.rmtree(tmp_path / "run" / "checkpoint-200")
    shutil.rmtree(tmp_path / "run" / "model")
    assert pretrain(tmp_path, "run") == 0
    assert "Resuming from" in capsys.readouterr().out
    again = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert whole.keys() == again.keys() and all(torch.equal(whole[name], again[name]) for name in whole)


def test_text_and_corpora_of_text_are_refused(tmp_path, capsys):
    write_dialogues(tmp_path / "dialogues.jsonl", 80)
    words = ["--input", str(tmp_path / "dialogues.jsonl"), "--output", str(tmp_path / "tokenizer")]
    assert main(["tokenizer", *words, "--turns-column", "turns", "--family", "bert", "--vocab-size", "150"]) == 0
    (tmp_path / "texts.jsonl").write_text('{"text": "see the cat"}\n')
    assert pretrain(tmp_path, "other", corpus="texts.jsonl") == 2
    assert "line 1: no field 'turns'" in capsys.readouterr().err
    write_corpus(tmp_path / "text.txt", 60, "alpha")
    tokenizer = ("--tokenizer", str(tmp_path / "tokenizer"))
    prepared = ["--output", str(tmp_path / "prepared"), "--workers", "1", *tokenizer]
    assert main(["corpus", "--input", str(tmp_path / "text.txt"), *prepared]) == 0
    assert pretrain(tmp_path, "other", *tokenizer, corpus="prepared") == 2
    assert (
        "is of text, not of dialogues: prepare them with hf-encoders corpus --turns-column" in capsys.readouterr().err
    )
    words = [
        "corpus",
        "--input",
        str(tmp_path / "dialogues.jsonl"),
        "--turns-column",
        "turns",
        "--overwrite",
        *prepared,
    ]
    assert main(words) == 0
    assert pretrain(tmp_path, "other", *tokenizer, "--max_steps", "2", corpus="prepared") == 0


def test_commands_that_read_documents_do_not_offer_it(capsys):
    with pytest.raises(SystemExit):
        main(["quickstart", "--objective", "dialogue"])
    assert "invalid choice: 'dialogue'" in capsys.readouterr().err


def test_lines_of_text_files_are_turns(tmp_path):
    write_corpus(tmp_path / "text.txt", 60, "alpha")
    assert pretrain(tmp_path, "run", "--max_steps", "2", corpus="text.txt") == 0


@pytest.mark.slow
def test_a_step_is_the_same_however_it_is_divided(tmp_path):
    """One micro-batch = three = two of each of two processes, in losses, gradients and weights."""
    documents, found = make_dataset(random_documents(80, 0, (3, 6))), []
    recipe = recipe_of("tiny", {**RECIPE, "optimizer": "sgd", "phases": [{"steps": 3, "length": 24, "examples": 12}]})
    for accumulation in (1, 3, 4):
        options = {"eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
        division = divide(recipe, 1, accumulation=accumulation)
        run = Run.from_recipe(recipe, tmp_path / str(accumulation), options, division)
        torch.manual_seed(0)
        trainer = run.trainer(documents, documents, make_tokenizer())
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        names = ("loss", "mlm_loss", "pair_loss", "pair_accuracy", "grad_norm")
        found.append([[entry[name] for name in names] for entry in logs])
        found[-1].append([float(weight.detach().double().norm()) for weight in trainer.model.parameters()])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert two == pytest.approx(one, abs=1e-5)


def test_the_card_says_the_share_of_fakes():
    collator = get_objective("dialogue").collator_class(make_tokenizer())
    words = get_objective("dialogue").describe(collator, (), {}, {"pair_label_1_share": 0.3})
    assert words["dialogue language modelling"] == f"30 % {WORDS}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "roberta"}, "roberta has no head for dialogues"),
        ({"examples": {"fake_probability": 1.0}}, "examples: fake_probability=1.0 must be above 0 and below 1"),
        ({"examples": {"fakes": 0.5}}, "dialogue has no option 'fakes': its options are fake_probability"),
        ({"examples": {"short_sequence_probability": 0.5}}, "no option 'short_sequence_probability'"),
    ],
)
def test_wrong_recipes(change, message):
    with pytest.raises(ValueError, match=message):
        recipe_of("tiny", {**RECIPE, **change})
