"""`hf-encoders pretrain --push_to_hub`: the model goes to the Hub with its card; the text that it read does not."""

from pathlib import Path

import pytest
import yaml

import hf_encoders
from hf_encoders.publishing.publish import check_directory
from tests.corpus.corpora import write_corpus
from tests.forked_python import python_c
from tests.hub.loopback_hub import LoopbackHub


pytestmark = pytest.mark.processes


ROOT = str(Path(hf_encoders.__file__).parents[1])
RECIPE = {
    "family": "bert",
    "objective": "nsp",
    "model": {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20},
    "tokenizer": {"vocab_size": 150},
    "phases": [{"steps": 3, "length": 24, "examples": 4}],
    "training": {"learning_rate": 1e-3},
}


def pretrain(folder: Path, recipe: dict, *options: str) -> dict[str, bytes]:
    """The files on the Hub after a run that pushed."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    write_corpus(folder / "text.txt", 60, "alpha")
    command = ["pretrain", "tiny.yaml", "--corpus", "text.txt", "--output", "run", "--validation-share", "0.2"]
    command += ["--save_steps", "2", "--disable_tqdm", "True", "--push_to_hub", "True", "--hub_model_id", "user/tiny"]
    run = "import sys; from hf_encoders.cli import main; sys.exit(main(sys.argv[1:]))"
    with LoopbackHub() as hub:
        environment = hub.environment(folder / "home") | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ROOT}
        done = python_c(run, [*command, *options], environment, folder, timeout=240)
        assert done.returncode == 0, done.stderr
        return hub.files("user/tiny")


def test_the_text_stays_here_and_the_card_is_that_of_the_record(tmp_path):
    files = pretrain(tmp_path, RECIPE)
    assert not [name for name in files if "corpus" in name or name.endswith((".arrow", ".txt"))]
    model = tmp_path / "run" / "model"
    names = ("README.md", "training_record.json", "model.safetensors", "config.json", "loss_curve.png")
    assert all(files[name] == (model / name).read_bytes() for name in names)


def test_a_generator_goes_along_with_every_push(tmp_path, forked_loads):
    """With that of a checkpoint as with the last one; what is there is checked as it is before `publish`."""
    recipe = {**RECIPE, "family": "electra", "objective": "rtd"}
    files = pretrain(tmp_path, recipe, "--hub_strategy", "every_save")
    model = tmp_path / "run" / "model"
    names = ("model.safetensors", "generator/model.safetensors", "generator/config.json", "modeling_electra.py")
    assert all(files[name] == (model / name).read_bytes() for name in names)
    # Pushes of checkpoints are made in the output folder.
    assert (tmp_path / "run" / "generator" / "model.safetensors").is_file()
    assert not any(name.startswith("checkpoint-") for name in files)
    card = files["README.md"].decode()
    assert "pipeline_tag: feature-extraction" in card and "It fills no [MASK]" in card and "`generator`" in card
    assert [finding.text for finding in check_directory(model) if finding.is_error] == []
    (model / "generator" / "modeling_electra.py").unlink()
    assert any("generator: modeling_electra.py" in finding.text for finding in check_directory(model))
