"""Two processes of accelerate launch, DDP and FSDP2: the losses and parameters of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_encoders import HfeAlbertForPreTraining, HfeBertForPreTraining, HfeRobertaForMaskedLM
from hf_encoders.training.distributed import check_launch
from tests.training.launched_steps import CASES, make_trainer, run


pytestmark = pytest.mark.processes


SCRIPT = Path(__file__).with_name("launched_steps.py")
ROOT = SCRIPT.parents[2]
ACCELERATE = ["-m", "accelerate.commands.launch", "--num_processes=2", "--main_process_port=0"]
EXACT = [case for case in CASES if case != "mlm bf16"]
MODELS = {"nsp": HfeBertForPreTraining, "sop": HfeAlbertForPreTraining, "mlm": HfeRobertaForMaskedLM}


def launch(launcher: list[str], *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *launcher, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def shipped(name: str) -> list[str]:
    """The launcher with a configuration of examples/launch, in two processes and without 16 bits."""
    return [*ACCELERATE, f"--config_file={ROOT / 'examples' / 'launch' / name}", "--mixed_precision=no"]


@pytest.fixture(scope="module")
def found(tmp_path_factory, one_thread):
    """What this process and two others found, and the folder they saved in."""
    folder = tmp_path_factory.mktemp("launched")
    alone = {case: run(case, "alone", folder / "alone") for case in CASES}
    done = launch(shipped("ddp.yaml"), str(folder), "ddp+fsdp")
    assert done.returncode == 0, done.stderr
    both = {mode: torch.load(folder / f"{mode}.pt", weights_only=True) for mode in ("ddp", "fsdp")}
    return folder, {"alone": alone, **both}


def largest_difference(one: dict, other: dict) -> float:
    """Of parameters absolutely; of losses, accuracies and gradient norms relatively where they are above 1."""
    assert one["parameters"].keys() == other["parameters"].keys()
    differences = [(value - other["parameters"][name]).abs().max().item() for name, value in one["parameters"].items()]
    pairs = list(zip([*one["logs"], one["evaluation"]], [*other["logs"], other["evaluation"]], strict=True))
    assert len(pairs) == 5
    for first, second in pairs:
        names = [name for name in first if any(word in name for word in ("loss", "accuracy", "norm", "perplexity"))]
        assert len(names) >= 3
        differences += [abs(first[name] - second[name]) / max(1, abs(first[name])) for name in names]
    return max(differences)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
@pytest.mark.parametrize("case", EXACT)
def test_two_processes_train_as_one_does(found, case, mode):
    _, of = found
    alone, both = of["alone"][case], of[mode][case]
    assert (alone["processes"], both["processes"]) == (1, 2)
    assert both["are_sharded"] == (mode == "fsdp")
    assert largest_difference(alone, both) < 1e-5
    # The steps did something: this would not hold for a model that stands still.
    assert len({log["loss"] for log in alone["logs"]}) == 4


def test_sharding_rounds_where_ddp_does(found):
    """Under autocast: with the rounding that differs from one process, whose batches are others, but not from DDP.

    The first step is the same. A sum in another order moves weights by a last bit, and a number next to a tie of
    bfloat16 then rounds the other way, in later steps of one seed in three.
    """
    _, of = found
    ddp, fsdp, alone = of["ddp"]["mlm bf16"], of["fsdp"]["mlm bf16"], of["alone"]["mlm packed"]
    for name in ("loss", "mlm_loss", "grad_norm"):
        assert ddp["logs"][0][name] == pytest.approx(fsdp["logs"][0][name], rel=1e-6)
        assert ddp["logs"][0][name] != pytest.approx(alone["logs"][0][name], rel=1e-5)
    assert largest_difference(ddp, fsdp) < 1e-3 < largest_difference(alone, fsdp)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
@pytest.mark.parametrize("case", ["nsp", "sop recomputed", "mlm packed"])
def test_what_two_processes_save_loads_anywhere(found, case, mode):
    folder, of = found
    saved, model_class = folder / mode / case / "saved", MODELS[case[:3]]
    model = model_class.from_pretrained(saved)
    parameters = dict(model.named_parameters())
    assert all(torch.equal(parameters[name], value) for name, value in of[mode][case]["parameters"].items())
    auto_map = json.loads((saved / "config.json").read_text(encoding="utf-8"))["auto_map"]
    for name in set(auto_map.values()):
        module, class_name = name.split(".")
        assert class_name.startswith("Hfe") and (saved / f"{module}.py").exists()


def test_a_sharded_run_resumes_where_it_was(found):
    _, of = found
    whole, resumed = of["fsdp"]["resumed"]
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_accelerate_launch_alone_asks_for_sharding(found, tmp_path):
    _, of = found
    done = launch(shipped("fsdp2.yaml"), str(tmp_path), "launched", "nsp")
    assert done.returncode == 0, done.stderr
    both = torch.load(tmp_path / "launched.pt", weights_only=True)["nsp"]
    assert both["processes"] == 2 and both["are_sharded"]
    assert largest_difference(of["alone"]["nsp"], both) < 1e-5


def test_sharding_that_would_not_happen_is_refused(found):
    _, of = found
    assert "MULTI_CPU with 2 process(es)" in of["ddp"]["refusal"] and "use_cpu" in of["ddp"]["refusal"]


def test_a_launcher_that_starts_one_process_for_two_is_refused(tmp_path):
    done = launch([*ACCELERATE, "--cpu"], str(tmp_path), "alone", "nsp")
    assert done.returncode != 0
    assert "ValueError: accelerate launch was given num_processes above 1" in done.stderr


def test_a_process_that_misses_its_rank_is_refused(tmp_path, monkeypatch):
    trainer = make_trainer("nsp", "alone", tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match=r"WORLD_SIZE=4.*LOCAL_RANK, MASTER_ADDR not set.*torchrun"):
        check_launch(trainer.args, trainer.accelerator)


def test_copies_that_srun_started_are_warned_of(tmp_path, monkeypatch):
    trainer = make_trainer("nsp", "alone", tmp_path)
    warnings = []
    monkeypatch.setattr("hf_encoders.training.distributed.logger.warning", warnings.append)
    check_launch(trainer.args, trainer.accelerator)
    assert warnings == []
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    check_launch(trainer.args, trainer.accelerator)
    assert len(warnings) == 1 and "srun started 2 tasks" in warnings[0]
