"""Runs of `hf-encoders adapt` that are stopped, moved, extended, or not the same run."""

import json
from pathlib import Path

import pytest
import yaml

from hf_encoders.publishing.record import TrainingRecord
from tests.commands.adapt_runs import RECIPE, adapt, checkpoint, write_texts
from tests.commands.pretrain_runs import same_weights, stopped_after


@pytest.fixture
def folder(tmp_path):
    return write_texts(tmp_path)


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same(folder, capsys):
    """Also of a checkpoint that was moved meanwhile, and before the first checkpoint of the run."""
    source = Path(checkpoint(folder, "bert", hidden_dropout_prob=0.2))
    words = ["--objective", "nsp", "--head-steps", "3"]
    assert adapt(folder, source, "whole", *words) == 0
    noted = json.loads((folder / "whole" / "run.json").read_text())
    source.rename(folder / "elsewhere")
    for step in (2, 0):
        stopped_after(folder, "whole", f"after {step}", step)
        capsys.readouterr()
        assert adapt(folder, folder / "elsewhere", f"after {step}", *words) == 0
        printed = capsys.readouterr().out
        assert ("checkpoint-2" in printed) == (step == 2) and "held-out, before" in printed
        assert same_weights(folder, "whole", f"after {step}")
        assert json.loads((folder / f"after {step}" / "run.json").read_text())["before"] == noted["before"]
    assert adapt(folder, folder / "elsewhere", "after 2", *words) == 0
    assert "This run is finished" in capsys.readouterr().out


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


def test_with_another_checkpoint_or_without_its_general_text_it_is_another_run(folder, capsys):
    source = checkpoint(folder, "bert")
    general = ["--keep", folder / "general.txt"]
    assert adapt(folder, source, "run", *general) == 0
    for words, options, message in (
        ([], {}, "holds a run with another recipe (sources)"),
        (general, {"name": "other", "initializer_range": 0.5}, "another initial checkpoint"),
    ):
        assert adapt(folder, checkpoint(folder, "bert", **options), "run", *words) == 2
        assert message in capsys.readouterr().err


def test_the_checkpoint_that_a_run_begins_from_is_not_overwritten(folder, capsys):
    source = checkpoint(folder, "bert")
    assert adapt(folder, source, "run", "--save_steps", "2") == 0
    begun = folder / "run" / "checkpoint-2"
    assert adapt(folder, begun, "run", "--tokenizer", source, "--overwrite") == 2
    assert "--overwrite would remove" in capsys.readouterr().err
    assert (begun / "model.safetensors").exists()
    assert adapt(folder, folder / "run" / "model", "run", "--overwrite") == 2
    assert "the result would replace CHECKPOINT" in capsys.readouterr().err
