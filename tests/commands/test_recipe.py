"""Fields of a recipe that the command line sets, and copies of shipped recipes."""

import json

import pytest
import yaml

from hf_encoders.cli import main
from hf_encoders.runs.options import recipe_file, recipe_names
from hf_encoders.runs.recipe import load_recipe
from tests.commands.pretrain_runs import TINY, pretrain
from tests.corpus.corpora import write_corpus


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    write_corpus(tmp_path / "text.txt", 60, "alpha")
    return tmp_path


def test_any_field_can_be_set():
    changes = ["mask_rate=null", "masking.mask_probability=0.3", "model.hidden_size=256", "phases.0.steps=100"]
    recipe = load_recipe("bert-minutes", [*changes, "training.lr_scheduler_kwargs={a: 1e-3}", "masking.unit=word"])
    assert recipe.masking == {"mask_probability": 0.3, "unit": "word"} and recipe.mask_rate is None
    assert recipe.model["hidden_size"] == 256 and recipe.model["num_hidden_layers"] == 2
    assert [phase.steps for phase in recipe.phases] == [100, 3000]
    assert recipe.training["lr_scheduler_kwargs"] == {"a": 1e-3}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("masking.mask_probability=1.5", "mask_probability"),
        ("model.hidden_sizes=4", "hidden_sizes"),
        ("optimiser=lamb", "'optimiser' is not a field"),
        ("phases.0.steps=many", "phases: steps='many'"),
    ],
)
def test_a_wrong_value_is_refused_as_in_the_file(change, key):
    with pytest.raises(ValueError, match=key):
        load_recipe("bert-base", [change])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("masking.unit", "give KEY=VALUE"),
        ("model={", "not YAML"),
        ("phases.2.steps=4", "'2' must be a number from 0 to 1"),
        ("family.size=base", "no field size"),
    ],
)
def test_a_key_that_leads_nowhere_is_refused_before_anything_is_read(change, message, folder, capsys):
    assert pretrain(folder, "run", "--set", change) == 2
    error = capsys.readouterr().err
    assert f"--set {change}" in error and message in error and error.count("\n") == 1
    assert not (folder / "run").exists()


def test_a_run_records_what_was_set_and_is_resumed_with_it_alone(folder, capsys):
    changes = ["--set", "masking.unit=token", "--set", "phases.1={steps: 1, length: 24, examples: 6}"]
    assert pretrain(folder, "run", *changes) == 0
    file = folder / "run" / "run.json"
    facts = json.loads(file.read_text())
    assert facts["recipe"]["masking"] == {"unit": "token"} and facts["recipe"]["phases"][1]["steps"] == 1
    assert "--set masking.unit=token" in (folder / "run" / "model" / "README.md").read_text()
    minor = facts["hf_encoders"].rpartition(".")[0]  # another patch resumes
    file.write_text(json.dumps({**facts, "hf_encoders": f"{minor}.99"}))
    capsys.readouterr()
    assert pretrain(folder, "run", *changes) == 0
    assert "is finished" in capsys.readouterr().out
    assert pretrain(folder, "run", "--set", "masking.unit=word", *changes[2:]) == 2
    assert "another recipe (masking)" in capsys.readouterr().err


@pytest.mark.parametrize("begun", [None, "0.1.4", "99.0.0"])
def test_a_run_of_another_minor_version_is_finished_with_that_version(begun, folder, capsys):
    (folder / "run").mkdir()
    facts = {"recipe": {"phases": TINY["phases"]}, "training": {}} | ({"hf_encoders": begun} if begun else {})
    (folder / "run" / "run.json").write_text(json.dumps(facts))
    assert pretrain(folder, "run") == 2
    minor = (begun or "0.1.0").rpartition(".")[0]
    assert f"finish it with pip install 'hf_encoders=={minor}.*'" in capsys.readouterr().err
    assert json.loads((folder / "run" / "run.json").read_text()) == facts


def test_shipped_recipes_are_listed_and_copied_with_their_comments(tmp_path, capsys):
    assert main(["recipe"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in recipe_names())
    copy = tmp_path / "my.yaml"
    assert main(["recipe", "roberta-base", "--output", str(copy)]) == 0
    assert copy.read_bytes() == recipe_file("roberta-base").read_bytes()
    assert load_recipe(copy).facts() | {"name": None} == load_recipe("roberta-base").facts() | {"name": None}
    capsys.readouterr()
    assert main(["recipe", "roberta-base"]) == 0 and capsys.readouterr().out == copy.read_text()
    for words, message in (
        (["roberta-bas"], "did you mean roberta-base?"),
        (["roberta-base", "--output", str(copy)], "exists"),
        (["--output", str(copy)], "name the recipe"),
    ):
        assert main(["recipe", *words]) == 2
        assert message in capsys.readouterr().err


def test_begins_from_says_which_command_a_recipe_is_for():
    kinds = {kind: set(recipe_names(kind)) for kind in ("scratch", "checkpoint", "teacher")}
    assert kinds["checkpoint"] == {"adapt", "adapt-minutes", "retromae"} and "distilbert-base" in kinds["teacher"]
    assert set.union(*kinds.values()) == set(recipe_names())
    assert all(load_recipe(name).model for name in kinds["scratch"])
