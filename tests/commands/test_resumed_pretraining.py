"""A folder of `hf-encoders pretrain` that holds a run: made longer, resumed, damaged, or of something else."""

import json
import re
import shutil

import pytest
import yaml

from hf_encoders.cli import main
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs import train as pretrain_command
from tests.commands.pretrain_runs import TINY, pretrain, same_weights, stopped_after


@pytest.fixture(scope="module")
def folder(pretrained):
    return pretrained


@pytest.mark.slow
@pytest.mark.parametrize("how", ["max_steps", "further phase"])
def test_a_finished_run_becomes_longer_with_the_schedule_of_the_longer_run(folder, how, capsys):
    """Its steps stay as they were; what is killed of the rest and resumed is as if it had not been killed."""
    output, words, phases = f"longer {how}", ["--max_steps", "10"], TINY["phases"]
    if how == "further phase":
        words, phases = [], [*phases, {"steps": 4, "length": 32, "examples": 4}]
    (folder / "extended.yaml").write_text(yaml.safe_dump({**TINY, "phases": phases}), encoding="utf-8")
    shutil.copytree(folder / "whole", folder / output)
    assert pretrain(folder, output, *words, recipe="extended.yaml") == 0
    printed = capsys.readouterr().out
    assert "This run is extended from 6 to 10 steps (4 steps of 6 x 24 tokens, " in printed
    # 3 steps of warm-up, then linear over 7: at step 6 of 10, 4 of these are left.
    assert "Extended from 6 to 10 steps: the learning rate of step 6 is 0.00571 instead of 0." in printed
    log = json.loads((folder / output / "checkpoint-10" / "trainer_state.json").read_text())["log_history"]
    rates = {entry["step"]: entry["learning_rate"] for entry in log if "learning_rate" in entry}
    assert [rates[step] for step in range(7, 11)] == pytest.approx([0.01 * left / 7 for left in (4, 3, 2, 1)])
    record = TrainingRecord.load(folder / output / "model")
    assert record.schedule["optimizer steps"] == 10 and record.schedule["phases"].startswith("4 steps of 6 x 24")
    assert not same_weights(folder, "whole", output)
    stopped_after(folder, output, f"{output} again", 8)
    assert pretrain(folder, f"{output} again", *words, recipe="extended.yaml") == 0
    assert re.search(r"Resuming from .*/checkpoint-8", capsys.readouterr().out)
    assert same_weights(folder, output, f"{output} again")
    assert how != "max_steps" or pretrain(folder, output) == 2, "a run cannot be shortened"


def test_what_cannot_be_made_longer_is_left_as_it_is(folder, capsys):
    """Phases that are over cannot be longer; without a checkpoint there is nothing to resume from."""
    first, last = TINY["phases"]
    recipe = {**TINY, "phases": [{**first, "steps": 5}, last]}
    (folder / "other_first.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "whole", recipe="other_first.yaml") == 2
    assert "a longer run keeps these, and extends the last (--max-steps) or adds others" in capsys.readouterr().err
    shutil.copytree(folder / "whole", folder / "no checkpoint")
    for step in (2, 4, 6):
        shutil.rmtree(folder / "no checkpoint" / f"checkpoint-{step}")
    before = (folder / "no checkpoint" / "run.json").read_text()
    assert pretrain(folder, "no checkpoint", "--max_steps", "9") == 2
    assert "a finished run of 6 steps without a checkpoint to resume from" in capsys.readouterr().err
    assert (folder / "no checkpoint" / "run.json").read_text() == before


def test_longer_examples_than_the_model_has_positions_for_are_refused_before_anything_is_written(folder, capsys):
    """Not after `run.json` says that the folder holds the longer run, which it would then refuse to go back from."""
    longer = [*TINY["phases"], {"steps": 2, "length": 48, "examples": 3}]
    (folder / "longer.yaml").write_text(yaml.safe_dump({**TINY, "phases": longer}), encoding="utf-8")
    shutil.copytree(folder / "whole", folder / "positions")
    before = (folder / "positions" / "run.json").read_bytes()
    assert pretrain(folder, "positions", recipe="longer.yaml") == 2
    said = capsys.readouterr().err
    assert "examples of 48 tokens need more positions than the model of the run" in said and said.count("\n") == 1
    assert "a recipe that sets model: max_position_embeddings" in said
    assert (folder / "positions" / "run.json").read_bytes() == before
    assert pretrain(folder, "positions") == 0
    assert "This run is finished" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_with_positions_to_spare_goes_on_with_longer_examples(folder):
    recipe = {**TINY, "model": {**TINY["model"], "max_position_embeddings": 50}}
    (folder / "spare.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "spare", recipe="spare.yaml") == 0
    recipe["phases"] = [*TINY["phases"], {"steps": 2, "length": 48, "examples": 3}]
    (folder / "spare.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "spare", recipe="spare.yaml") == 0
    assert TrainingRecord.load(folder / "spare" / "model").schedule["optimizer steps"] == 8


def test_what_fails_before_training_leaves_the_run_as_it_was(folder, monkeypatch, capsys):
    shutil.copytree(folder / "whole", folder / "failed")
    before = json.loads((folder / "failed" / "run.json").read_text())

    def fail(*arguments):
        raise ValueError("no such device")

    with monkeypatch.context() as patch:
        patch.setattr(pretrain_command.PreTrainingTrainer, "_load_from_checkpoint", fail)
        with pytest.raises(ValueError, match="no such device"):  # of this file, so with a traceback
            pretrain(folder, "failed", "--max_steps", "8")
    assert json.loads((folder / "failed" / "run.json").read_text()) == before
    assert pretrain(folder, "failed") == 0
    assert "This run is finished" in capsys.readouterr().out


def test_a_run_goes_on_under_another_spelling_of_its_text_and_other_settings_that_shape_nothing(
    folder, capsys, monkeypatch
):
    token = "hf_" + "aB3" * 12
    recipe = {**TINY, "training": {**TINY["training"], "hub_token": token, "logging_steps": 2}}
    (folder / "kept_token.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "respelled", recipe="kept_token.yaml") == 0
    for file in ("run.json", "tokenizer/recipe.json"):
        assert token not in (folder / "respelled" / file).read_text()
    capsys.readouterr()
    monkeypatch.chdir(folder)
    words = ["--output", "respelled", "--validation-share", "0.2", "--disable_tqdm", "True"]
    assert main(["pretrain", "tiny.yaml", "--corpus", "./text.txt", *words, "--save_steps", "3"]) == 0
    assert "This run is finished" in capsys.readouterr().out
    recipe["training"]["weight_decay"] = 0.02
    (folder / "kept_token.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert pretrain(folder, "respelled", recipe="kept_token.yaml") == 2
    assert "holds a run with another training (weight_decay)" in capsys.readouterr().err


def test_a_resumed_run_is_saved_as_often_as_it_is_told(folder):
    """transformers keeps the intervals of the checkpoint."""
    stopped_after(folder, "whole", "saved", 2)
    assert pretrain(folder, "saved", "--save_steps", "1", "--save_total_limit", "9", "--eval_steps", "3") == 0
    assert all((folder / "saved" / f"checkpoint-{step}").is_dir() for step in range(2, 7))
    log = json.loads((folder / "saved" / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in log if "eval_loss" in entry and entry["step"] > 2] == [3, 6]


def with_entry(value, *path):
    """The content of `run.json` with another value of an entry, or without it."""

    def changed(noted):
        *parents, last = path
        inner = noted
        for name in parents:
            inner = inner[name]
        inner[last] = value
        if value is None:
            del inner[last]
        return json.dumps(noted).encode()

    return changed


def test_a_damaged_run_file_is_told_with_the_remedy(folder, capsys):
    damaged = folder / "damaged"
    shutil.copytree(folder / "whole", damaged)
    whole = (damaged / "run.json").read_text()
    for content, words in (
        (b'{"recipe": {"pha', ("--plan",)),
        (b"[]", ("--max_steps", "9")),
        (b'{"recipe": {"phases": [{"steps": 1}]}}', ()),
        (b"\xff", ()),
        (with_entry(None, "training"), ()),
        (with_entry([], "recipe", "phases"), ()),
        (with_entry([5], "recipe", "phases"), ()),
    ):
        (damaged / "run.json").write_bytes(content(json.loads(whole)) if callable(content) else content)
        assert pretrain(folder, "damaged", *words) == 2
        error = capsys.readouterr().err
        assert re.search(r"damaged/run.json is damaged \(.*restore it, or start from scratch with --overwrite", error)
        assert error.count("\n") == 1
    (damaged / "run.json").write_text(whole)
    (damaged / "tokenizer" / "recipe.json").write_text("{")
    assert pretrain(folder, "damaged") == 2
    assert "tokenizer/recipe.json is damaged" in capsys.readouterr().err


def test_an_entry_that_is_missing_or_another_is_that_of_another_run(folder, capsys):
    changed = folder / "changed"
    shutil.copytree(folder / "whole", changed)
    whole = (changed / "run.json").read_text()
    for content, words, entry in (
        (with_entry(None, "recipe", "masking"), ("--max_steps", "9"), r"recipe \(masking\)"),
        (with_entry(None, "training", "adam_beta1"), ("--max_steps", "9"), r"training \(adam_beta1\)"),
        (with_entry(None, "seed"), (), "seed"),
        (with_entry(5, "corpus"), (), "corpus"),
    ):
        (changed / "run.json").write_bytes(content(json.loads(whole)))
        assert pretrain(folder, "changed", *words) == 2
        assert re.search(f"changed holds a run with another {entry}: .*--overwrite", capsys.readouterr().err)


@pytest.mark.parametrize("corpus", ["text.txt", "broken/_corpus"])
def test_a_damaged_corpus_file_is_told_with_the_remedy(folder, corpus, capsys):
    shutil.copytree(folder / "whole", folder / "broken", dirs_exist_ok=True)
    noted = json.loads((folder / "whole" / "_corpus" / "corpus.json").read_text())
    settings = {**noted, "settings": {**noted["settings"], "tokenizer": 5}}
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer")) if corpus != "text.txt" else ()
    for content in ("{", '{"statistics": 5}', json.dumps(settings)):
        (folder / "broken" / "_corpus" / "corpus.json").write_text(content)
        assert pretrain(folder, "broken", *tokenizer, corpus=corpus) == 2
        error = capsys.readouterr().err
        assert re.search(r"_corpus/corpus.json is damaged \(.*\): restore it, or prepare the corpus again", error)
        assert error.count("\n") == 1


def test_a_model_stays_until_the_next_one_is_whole(folder, monkeypatch):
    shutil.copytree(folder / "whole", folder / "replaced")
    (folder / "replaced" / "model" / "modeling_of_another_family.py").write_text("")
    before = {path.name: path.read_bytes() for path in (folder / "replaced" / "model").iterdir()}

    def full_disk(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hf_encoders.runs.train.draw_runs", full_disk)
        assert pretrain(folder, "replaced", "--overwrite", "--seed", "7", "--max_steps", "2") == 2
    assert {path.name: path.read_bytes() for path in (folder / "replaced" / "model").iterdir()} == before
    assert not (folder / "replaced" / "_model").exists()
    assert pretrain(folder, "replaced", "--seed", "7", "--max_steps", "2") == 0
    assert TrainingRecord.load(folder / "replaced" / "model").schedule["seed"] == 7
    assert not (folder / "replaced" / "model" / "modeling_of_another_family.py").exists()
    assert not list((folder / "replaced").glob("_*model*"))
