"""P3: a batch of 32 = 4 accumulated batches of 8 = 2 processes of 16 = packed, in losses, metrics and parameters."""

import pytest
import torch
from transformers import Trainer

from tests import processes
from tests.training import three_steps
from tests.training.three_steps import OBJECTIVES, PAIR_LABELS, SPLITS, STEPS, make_trainer, splits_of, train


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory, one_thread):
    """What two processes computed, by objective and split."""
    folder = tmp_path_factory.mktemp("two") / "results"
    for ended in processes.run_all(three_steps.train_in_each_split, 2, folder):
        assert ended.status == 0, ended.told
    return torch.load(folder / "results.pt", weights_only=False)


def largest_difference(whole: dict, split: dict) -> float:
    """Of parameters and metrics absolutely; of figures that are no loss relatively where they are above 1."""
    assert whole["metrics"].keys() == split["metrics"].keys()
    pairs = ((whole["parameters"][name], value) for name, value in split["parameters"].items())
    differences = [(expected - value).abs().max().item() for expected, value in pairs]
    for name, value in whole["metrics"].items():
        scale = 1 if "loss" in name else max(1, abs(value))
        differences.append(abs(value - split["metrics"][name]) / scale)
    return max(differences)


@pytest.mark.processes
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_split_of_a_batch_changes_nothing(in_two_processes, objective, tmp_path):
    splits = {name: split for name, split in splits_of(objective).items() if split.processes == 1}
    results = {name: train(objective, split, tmp_path) for name, split in splits.items()} | in_two_processes[objective]
    assert results.keys() == splits_of(objective).keys()
    whole = results.pop("whole")
    tolerance = 1e-5 if objective in (*PAIR_LABELS, "translations") else 2e-5
    assert {name: largest_difference(whole, split) for name, split in results.items()} == pytest.approx(
        dict.fromkeys(results, 0), abs=tolerance
    )
    # The steps did something: this would not hold for a model that stands still.
    metrics = whole["metrics"]
    assert abs(metrics["loss 0"] - metrics[f"loss {STEPS - 1}"]) > (1e-3 if objective in PAIR_LABELS else 1e-2)
    assert {"tokens_seen 0", "mask_rate 0", "grad_norm 0", "eval_loss", "eval_perplexity"} <= metrics.keys()
    if objective.startswith("distilled"):  # each term over its own items
        for step in range(STEPS):
            ce, mlm, cos = (metrics[f"{term}_loss {step}"] for term in ("ce", "mlm", "cos"))
            assert metrics[f"loss {step}"] == pytest.approx(5 * ce + 2 * mlm + cos, abs=1e-4)


@pytest.mark.parametrize("objective", ["mlm", "distilled: predicted"])
def test_predicted_tokens_need_no_trainer_of_ours(objective, tmp_path):
    """The cosine of a micro-batch has the weight of its labels there."""
    ours = train(objective, SPLITS["whole"], tmp_path)
    whole, accumulated = (train(objective, SPLITS[name], tmp_path, Trainer) for name in ("whole", "accumulated"))
    assert whole["metrics"]["loss 0"] == pytest.approx(ours["metrics"]["loss 0"], abs=1e-5)
    tolerance = {"abs": 1e-5} if objective == "mlm" else {"rel": 0.01}
    assert accumulated["metrics"]["loss 0"] == pytest.approx(whole["metrics"]["loss 0"], **tolerance)
    if objective == "mlm":
        for name, parameter in whole["parameters"].items():
            assert (parameter - accumulated["parameters"][name]).abs().max() < 1e-5


@pytest.mark.slow
def test_pairs_in_the_stock_trainer_have_the_right_scale(tmp_path):
    """Not exact there, but an average: within a few percent, where a plain sum would be four times the loss."""
    whole, accumulated = (train("nsp", SPLITS[name], tmp_path, Trainer) for name in ("whole", "accumulated"))
    assert accumulated["metrics"]["loss 0"] == pytest.approx(whole["metrics"]["loss 0"], rel=0.03)


def test_batches_of_translations_hold_both_kinds(tmp_path):
    trainer = make_trainer("translations", SPLITS["packed"], tmp_path)
    trainer.train_dataset.set_epoch(0)
    batch = next(iter(trainer.get_train_dataloader()))
    restarts = (batch["position_ids"][0] == batch["position_ids"].min()).sum() - (len(batch["cu_seq_lens_q"]) - 1)
    assert 4 <= int(restarts) <= 12  # 8 of 16 on average
