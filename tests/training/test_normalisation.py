"""P3: a batch of 32 = 4 accumulated batches of 8 = 2 processes of 16 = packed, in losses, metrics and parameters."""

import pytest
import torch
from transformers import Trainer

from tests import processes
from tests.training import three_steps
from tests.training.three_steps import PAIR_LABELS, SPLITS_OF_ONE_PROCESS, SPLITS_OF_TWO_PROCESSES, train


# Metrics of a log that the split of a batch does not change, beside losses and accuracies.
SAME_IN_ALL = ("grad_norm", "eval_perplexity", "tokens_seen", "mask_rate")


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory):
    """What two processes found, by objective and split."""
    folder = tmp_path_factory.mktemp("two")
    for ended in processes.run_all(three_steps.train_in_each_split, 2, folder):
        assert ended.status == 0, ended.told
    return torch.load(folder / "found.pt", weights_only=False)


def largest_difference(one: dict, other: dict) -> float:
    differences = [
        (one["parameters"][name] - parameter).abs().max().item() for name, parameter in other["parameters"].items()
    ]
    for first, second in zip([*one["logs"], one["evaluation"]], [*other["logs"], other["evaluation"]], strict=True):
        names = [name for name in first if "loss" in name or "accuracy" in name or name in SAME_IN_ALL]
        assert [name for name in names if name not in second] == [] and len(names) >= 2
        assert "tokens_seen" in names or "eval_loss" in names
        differences += [abs(first[name] - second[name]) / max(1, abs(first[name])) for name in names]
    return max(differences)


@pytest.mark.processes
@pytest.mark.parametrize("objective", PAIR_LABELS)
def test_the_split_of_a_batch_changes_nothing(in_two_processes, objective, tmp_path):
    found = {name: train(objective, split, tmp_path) for name, split in SPLITS_OF_ONE_PROCESS.items()}
    found |= in_two_processes[objective]
    assert len(found) == len(SPLITS_OF_ONE_PROCESS) + len(SPLITS_OF_TWO_PROCESSES)
    whole = found.pop("whole")
    assert {name: largest_difference(whole, other) for name, other in found.items()} == pytest.approx(
        dict.fromkeys(found, 0), abs=1e-5
    )
    # The steps did something: this would not hold for a model that stands still.
    assert whole["logs"][0]["loss"] - whole["logs"][2]["loss"] > 1e-3


def test_mlm_needs_no_trainer_of_ours(tmp_path):
    whole, accumulated = (
        train("mlm", SPLITS_OF_ONE_PROCESS[name], tmp_path, Trainer) for name in ("whole", "accumulated")
    )
    for name, parameter in whole["parameters"].items():
        assert (parameter - accumulated["parameters"][name]).abs().max() < 1e-5
    for one, other in zip(whole["logs"], accumulated["logs"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)


@pytest.mark.slow
def test_pairs_in_the_stock_trainer_have_the_right_scale(tmp_path):
    """Not exact there, but an average: within a few percent, where a plain sum would be four times the loss."""
    whole, accumulated = (
        train("nsp", SPLITS_OF_ONE_PROCESS[name], tmp_path, Trainer) for name in ("whole", "accumulated")
    )
    assert accumulated["logs"][0]["loss"] == pytest.approx(whole["logs"][0]["loss"], rel=0.03)
