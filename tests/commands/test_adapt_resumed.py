"""Runs of `hf-encoders adapt` that are stopped, moved, extended, or not the same run."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs.run import Run
from tests.commands.adapt_runs import RECIPE, adapt, checkpoint, write_texts
from tests.commands.pretrain_runs import weights


@pytest.fixture
def folder(tmp_path):
    return write_texts(tmp_path)


def test_without_its_general_text_it_is_another_run(folder, capsys):
    source = checkpoint(folder, "bert")
    assert adapt(folder, source, "run", "--keep", folder / "general.txt") == 0
    assert adapt(folder, source, "run") == 2
    assert "holds a run with another recipe (sources)" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same(folder, capsys, monkeypatch):
    source = checkpoint(folder, "bert")
    words = ["--objective", "nsp", "--head-steps", "3"]
    assert adapt(folder, source, "whole", *words) == 0
    shutil.copytree(folder / "whole", folder / "again")
    shutil.rmtree(folder / "again" / "checkpoint-4")
    shutil.rmtree(folder / "again" / "model")
    capsys.readouterr()
    assert adapt(folder, source, "again", *words) == 0
    printed = capsys.readouterr().out
    assert "checkpoint-2" in printed and "held-out, before" in printed
    one, other = (weights(folder / name / "model") for name in ("whole", "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    # Of a run that was killed before its first checkpoint, the evaluation before it changes nothing.
    evaluated = []
    monkeypatch.setattr(Run, "trainer", _counting(Run.trainer, evaluated))
    shutil.rmtree(folder / "again" / "checkpoint-2")
    assert adapt(folder, source, "again", *words, "--overwrite") == 0
    other = weights(folder / "again" / "model")
    assert all(torch.equal(one[name], other[name]) for name in one)


def _counting(make_trainer, found):
    def made(*arguments):
        found.append(make_trainer(*arguments))
        return found[-1]

    return made


@pytest.mark.slow
def test_new_heads_learn_alone_as_long_in_a_run_that_is_extended(folder, capsys):
    source = checkpoint(folder, "bert")
    words = ["--objective", "nsp", "--head-steps", "0.25"]
    assert adapt(folder, source, "run", *words) == 0
    assert adapt(folder, source, "run", *words, "--max-steps", "40") == 0
    printed = capsys.readouterr().out
    assert "alone in the first 1 of 4 steps" in printed and "alone in the first 1 of 40 steps" in printed
    assert adapt(folder, source, "run", *words[:-1], "3", "--max-steps", "40") == 2
    assert "another initial checkpoint (head steps)" in capsys.readouterr().err


def test_a_further_phase_may_be_as_long_as_the_checkpoint_has_positions(folder):
    source = checkpoint(folder, "bert")
    short = {"steps": 2, "length": 16, "examples": 4}
    for phases in ([short], [short, {"steps": 2, "length": 32, "examples": 4}]):
        (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "phases": phases}), encoding="utf-8")
        assert adapt(folder, source, "run") == 0
    record = TrainingRecord.load(folder / "run" / "model")
    assert record.schedule["phases"] == "2 steps of 4 x 16 tokens, 2 steps of 4 x 32 tokens"


def test_another_checkpoint_is_another_run(folder, capsys):
    source = checkpoint(folder, "bert")
    assert adapt(folder, source, "run") == 0
    other = checkpoint(folder, "bert", name="other", initializer_range=0.5)
    assert adapt(folder, other, "run") == 2
    assert "another initial checkpoint" in capsys.readouterr().err


def test_a_checkpoint_may_be_moved_while_it_is_adapted(folder, capsys):
    source = Path(checkpoint(folder, "bert", "AutoModelForMaskedLM"))
    assert adapt(folder, source, "whole", "--objective", "nsp") == 0
    shutil.copytree(folder / "whole", folder / "again")
    shutil.rmtree(folder / "again" / "checkpoint-4")
    shutil.rmtree(folder / "again" / "model")
    source.rename(folder / "elsewhere")
    capsys.readouterr()
    assert adapt(folder, folder / "elsewhere", "again", "--objective", "nsp") == 0
    assert "checkpoint-2" in capsys.readouterr().out
    one, other = (weights(folder / name / "model") for name in ("whole", "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert adapt(folder, folder / "elsewhere", "again", "--objective", "nsp") == 0
    assert "This run is finished" in capsys.readouterr().out


def test_the_checkpoint_that_a_run_begins_from_is_not_overwritten(folder, capsys):
    source = checkpoint(folder, "bert")
    assert adapt(folder, source, "run", "--save_steps", "2") == 0
    begun = folder / "run" / "checkpoint-2"
    assert adapt(folder, begun, "run", "--tokenizer", source, "--overwrite") == 2
    assert "--overwrite would remove" in capsys.readouterr().err
    assert (begun / "model.safetensors").exists()
    assert adapt(folder, folder / "run" / "model", "run", "--overwrite") == 2
    assert "the result would replace CHECKPOINT" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_it_is_the_same(folder, capsys):
    source = checkpoint(folder, "bert", hidden_dropout_prob=0.2)
    assert adapt(folder, source, "whole") == 0
    shutil.copytree(folder / "whole", folder / "again")
    run_file = folder / "again" / "run.json"
    for name in ("checkpoint-2", "checkpoint-4", "model"):
        shutil.rmtree(folder / "again" / name)
    noted = json.loads(run_file.read_text())
    run_file.write_text(json.dumps({**noted, "is_finished": False}))
    capsys.readouterr()
    assert adapt(folder, source, "again") == 0
    assert json.loads(run_file.read_text())["before"] == noted["before"]
    one, other = (weights(folder / name / "model") for name in ("whole", "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)
