"""P3 and P4 of distillation: the split of a batch changes nothing; stopped and resumed is never stopped."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import Trainer

from tests import processes
from tests.objectives import distilled_steps
from tests.objectives.distilled_steps import STEPS, make_trainer, train
from tests.training.three_steps import ONE_PROCESS, TWO_PROCESSES


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What two processes found, by soft targets and split."""
    folder = tmp_path_factory.mktemp("two")
    for ended in processes.run_all(distilled_steps.train_in_each_split, 2, folder):
        assert ended.status == 0, ended.told
    return torch.load(folder / "found.pt", weights_only=False)


def largest_difference(one: dict, other: dict) -> float:
    assert one["metrics"].keys() == other["metrics"].keys()
    terms = {"loss", "ce_loss", "mlm_loss", "cos_loss", "mlm_accuracy"}
    assert {f"{term} {step}" for term in terms for step in range(STEPS)} <= one["metrics"].keys()
    assert {f"eval_{term}" for term in terms} <= one["metrics"].keys()
    differences = [abs(value - other["metrics"][name]) for name, value in one["metrics"].items()]
    for name, parameter in one["parameters"].items():
        differences.append((other["parameters"][name] - parameter).abs().max().item())
    return max(differences)


@pytest.mark.processes
@pytest.mark.parametrize("soft_targets", ["predicted", "all"])
def test_the_split_of_a_batch_changes_nothing(in_two_processes: dict, soft_targets: str, tmp_path: Path) -> None:
    found = {name: train(soft_targets, split, tmp_path) for name, split in ONE_PROCESS.items()}
    found |= in_two_processes[soft_targets]
    assert len(found) == len(ONE_PROCESS) + len(TWO_PROCESSES)
    whole = found.pop("whole")
    assert {name: largest_difference(whole, other) for name, other in found.items()} == pytest.approx(
        dict.fromkeys(found, 0), abs=2e-5
    )
    for step in range(STEPS):
        terms = [whole["metrics"][f"{term}_loss {step}"] for term in ("ce", "mlm", "cos")]
        expected = 5 * terms[0] + 2 * terms[1] + terms[2]  # each over its own items
        assert whole["metrics"][f"loss {step}"] == pytest.approx(expected, abs=1e-4)
    # The steps did something: this would not hold for a model that stands still.
    assert whole["metrics"]["loss 0"] - whole["metrics"][f"loss {STEPS - 1}"] > 1e-2


def test_the_stock_trainer_is_exact_for_predicted_tokens_and_close_for_all(tmp_path: Path) -> None:
    """It counts labels: the cosine of a micro-batch has the weight of its labels."""
    exact = train("predicted", ONE_PROCESS["whole"], tmp_path)
    whole, accumulated = (
        train("predicted", ONE_PROCESS[name], tmp_path, Trainer) for name in ("whole", "accumulated")
    )
    assert whole["metrics"]["loss 0"] == pytest.approx(exact["metrics"]["loss 0"], abs=1e-5)
    assert accumulated["metrics"]["loss 0"] == pytest.approx(exact["metrics"]["loss 0"], rel=0.01)


def test_the_stock_trainer_predicts_without_the_sums_of_the_losses(tmp_path: Path) -> None:
    trainer = make_trainer("predicted", ONE_PROCESS["whole"], tmp_path, Trainer)
    scores = trainer.predict(trainer.train_dataset).predictions
    assert not isinstance(scores, tuple) and len(scores)


def test_stopped_and_resumed_is_never_stopped_bit_for_bit(tmp_path: Path) -> None:
    split = ONE_PROCESS["accumulated"]
    options = {
        "max_steps": 4,
        "optim": "adamw_torch",
        "learning_rate": 0.01,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    whole = make_trainer("all", split, tmp_path / "whole", **options)
    whole.train()
    first = make_trainer("all", split, tmp_path / "stopped", **options)
    first.train()
    saved = tmp_path / "stopped" / "checkpoint-2"
    shutil.rmtree(tmp_path / "stopped" / "checkpoint-4")
    names = json.loads((saved / "config.json").read_text())["architectures"]
    assert names == ["DistilBertForMaskedLM"]
    resumed = make_trainer("all", split, tmp_path / "stopped", **options)
    resumed.train(resume_from_checkpoint=str(saved))
    assert resumed.state.global_step == 4
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(parameter, resumed.model.get_parameter(name)), name
    optimizers = [trainer.optimizer.state_dict()["state"] for trainer in (whole, resumed)]
    assert len(optimizers[0]) == len(list(whole.model.parameters()))
    for key, state in optimizers[0].items():
        assert torch.equal(state["exp_avg"], optimizers[1][key]["exp_avg"])
