"""P3: a batch of 32 = 4 accumulated batches of 8 = 2 processes of 16 = packed, in losses, figures and parameters."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch


SCRIPT = Path(__file__).with_name("three_steps.py")
ALONE = [sys.executable]
TWO_PROCESSES = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
# Figures of a log that the cut of a batch does not change, beside losses and accuracies.
SAME_IN_ALL = ("grad_norm", "eval_perplexity", "tokens_seen", "mask_rate")


def three_steps(out: Path, launcher: list[str], objective: str, *cut: str) -> dict:
    command = [*launcher, str(SCRIPT), objective, *cut[:2], str(out), *cut[2:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(out, weights_only=False)


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


@pytest.mark.parametrize("objective", ["mlm", "nsp", "sop"])
def test_the_cut_of_a_batch_changes_nothing(objective, tmp_path):
    whole = three_steps(tmp_path / "whole.pt", ALONE, objective, "32", "1")
    accumulated = three_steps(tmp_path / "accumulated.pt", ALONE, objective, "8", "4")
    two_processes = three_steps(tmp_path / "two.pt", TWO_PROCESSES, objective, "16", "1")
    both = three_steps(tmp_path / "both.pt", TWO_PROCESSES, objective, "4", "4")
    # Evaluation is on 50 examples in batches of 7: two processes fill their last round up with examples that came.
    packed = three_steps(tmp_path / "packed.pt", ALONE, objective, "32", "1", "packed")
    packed_and_cut = three_steps(tmp_path / "packed_and_cut.pt", TWO_PROCESSES, objective, "4", "4", "packed")
    for cut in (accumulated, two_processes, both, packed, packed_and_cut):
        assert largest_difference(whole, cut) < 1e-5
    # The steps did something: this would not hold for a model that stands still.
    assert whole["logs"][0]["loss"] - whole["logs"][2]["loss"] > 1e-3


def test_mlm_needs_no_trainer_of_ours(tmp_path):
    whole = three_steps(tmp_path / "whole.pt", ALONE, "mlm", "32", "1", "stock")
    accumulated = three_steps(tmp_path / "accumulated.pt", ALONE, "mlm", "8", "4", "stock")
    for name, parameter in whole["parameters"].items():
        assert (parameter - accumulated["parameters"][name]).abs().max() < 1e-5
    for one, other in zip(whole["logs"], accumulated["logs"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)


def test_pairs_in_the_stock_trainer_have_the_right_scale(tmp_path):
    """Not exact there, but an average: within a few percent, where a plain sum would be four times the loss."""
    whole = three_steps(tmp_path / "whole.pt", ALONE, "nsp", "32", "1", "stock")
    accumulated = three_steps(tmp_path / "accumulated.pt", ALONE, "nsp", "8", "4", "stock")
    assert accumulated["logs"][0]["loss"] == pytest.approx(whole["logs"][0]["loss"], rel=0.03)
