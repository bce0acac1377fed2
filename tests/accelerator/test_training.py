"""Runs on the device: repeated, resumed, in 16 bits, recomputed, compiled, out of memory, in several processes.

Sums over many threads are not added in the same order twice, so runs that are equal bit for bit on a CPU are equal to
a tolerance here.
"""

import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from hf_encoders.cli import main
from hf_encoders.models.encoder_attention import EncoderSelfAttention
from hf_encoders.training import PreTrainingTrainer
from tests.training import launched_steps
from tests.training.launched_steps import CASES, STEPS, whole_parameters
from tests.training.test_launched import ROOT, SCRIPT, largest_difference


SAME = 1e-4  # of losses and parameters, between equal runs
IN_16_BITS = 3e-2


def make_trainer(folder: Path, case: str = "nsp", dropout: float = 0.0, **arguments) -> PreTrainingTrainer:
    trainer = launched_steps.make_trainer(case, "alone", folder, **{"optim": "adamw_torch", **arguments})
    for module in trainer.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        elif isinstance(module, EncoderSelfAttention):
            module.dropout_prob = dropout
    return trainer


def losses(trainer: PreTrainingTrainer) -> list[float]:
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def trained(folder: Path, device: torch.device, *args, resume: str | None = None, **arguments) -> PreTrainingTrainer:
    trainer = make_trainer(folder, *args, **arguments)
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.model.device.type == device.type and len(losses(trainer)) == STEPS
    return trainer


def check_same(one: PreTrainingTrainer, other: PreTrainingTrainer, tolerance: float = SAME) -> None:
    assert losses(one) == pytest.approx(losses(other), rel=tolerance)
    expected = whole_parameters(other.model)
    for name, value in whole_parameters(one.model).items():
        torch.testing.assert_close(value, expected[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("case", ["nsp", "mlm packed"])
def test_two_runs_of_one_seed_are_equal(device, tmp_path, case):
    runs = [trained(tmp_path / name, device, case, 0.1, learning_rate=0.01) for name in "ab"]
    check_same(*runs)
    assert len(set(losses(runs[0]))) == STEPS


@pytest.mark.parametrize("case", ["nsp", "mlm packed"])
def test_a_resumed_run_goes_on_as_if_it_had_not_ended(device, tmp_path, case):
    """With dropout: the device's generator is in the checkpoint."""
    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.01}
    whole = trained(tmp_path, device, case, 0.1, **settings)
    resumed = trained(tmp_path, device, case, 0.1, resume=str(tmp_path / "checkpoint-2"), **settings)
    check_same(whole, resumed)


def test_losses_are_those_of_a_cpu(device, tmp_path, monkeypatch):
    for case in ("nsp", "sop packed accumulated", "mlm packed"):
        here = trained(tmp_path / "here", device, case, learning_rate=0.01)
        with monkeypatch.context() as patch:
            patch.setenv("HFE_TEST_DEVICE", "cpu")
            there = trained(tmp_path / "there", torch.device("cpu"), case, learning_rate=0.01)
        check_same(here, there, 1e-3)  # AdamW's first steps magnify what differs in small gradients


def test_figures_of_health_are_those_of_a_cpu(device, tmp_path, monkeypatch):
    here = trained(tmp_path / "here", device)
    monkeypatch.setenv("HFE_TEST_DEVICE", "cpu")
    there = trained(tmp_path / "there", torch.device("cpu"))
    logs = [[log for log in one.state.log_history if "loss" in log] for one in (here, there)]
    counted = ("padding_share", "mask_rate", "tokens_seen", "pair_share", "pair_label_1_share")
    for one, other in zip(*logs, strict=True):
        assert {name: one[name] for name in counted} == pytest.approx({name: other[name] for name in counted})
        assert one["tokens_per_second"] > 0 and 0 < one["mfu"] < 1


@pytest.mark.parametrize("case", ["nsp", "mlm packed"])
def test_bfloat16_is_close_to_float32(device, tmp_path, case):
    runs = [trained(tmp_path, device, case, learning_rate=0.01, bf16=bf16) for bf16 in (False, True)]
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=IN_16_BITS)


@pytest.mark.only_cuda
@pytest.mark.parametrize("case", ["nsp", "mlm packed"])
def test_a_step_waits_once_for_the_device(device, tmp_path, case):
    """By torch's own warnings; `tests/training/test_synchronisations.py` counts what a CPU can show."""

    class Count(TrainerCallback):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_step_end(self, *args, **kwargs) -> None:
            self.steps.append(len(caught))

    count = Count()
    trainer = make_trainer(tmp_path, case, logging_strategy="no")
    trainer.add_callback(count)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            trainer.train()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    told = [str(one.message) for one in caught[count.steps[1] : count.steps[2]]]
    assert sum("synchroniz" in message for message in told) <= 1, told


@pytest.mark.only_cuda
def test_float16_scales_its_gradients(device, tmp_path):
    exact = trained(tmp_path, device, learning_rate=0.01)
    scaled = trained(tmp_path, device, learning_rate=0.01, fp16=True)
    assert scaled.accelerator.scaler.get_scale() > 1
    assert losses(scaled) == pytest.approx(losses(exact), rel=IN_16_BITS)


@pytest.mark.only_cuda
def test_float16_skips_steps_whose_gradients_overflow(device, tmp_path):
    trainer = make_trainer(tmp_path, fp16=True)
    before = whole_parameters(trainer.model)
    trainer.accelerator.scaler = torch.amp.GradScaler(init_scale=2.0**60)
    trainer.train()
    assert trainer.accelerator.scaler.get_scale() == 2.0 ** (60 - STEPS)
    assert all(torch.equal(value, before[name]) for name, value in whole_parameters(trainer.model).items())
    assert all(math.isfinite(loss) for loss in losses(trainer))


@pytest.mark.parametrize("case", ["nsp", "mlm packed"])
def test_recomputed_layers_drop_the_same_elements(device, tmp_path, case):
    runs = [
        trained(tmp_path, device, case, 0.1, learning_rate=0.01, activation_checkpointing=recomputes)
        for recomputes in (False, True)
    ]
    check_same(*runs)


@pytest.mark.processes
@pytest.mark.parametrize("case", ["nsp", "mlm packed"])
def test_a_compiled_run_has_the_same_losses(device, tmp_path, case):
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    eager = trained(tmp_path, device, case, learning_rate=0.01)
    compiled = trained(tmp_path, device, case, learning_rate=0.01, torch_compile=True, torch_compile_backend=backend)
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-3)


def test_a_batch_that_does_not_fit_is_made_smaller(device, tmp_path):
    """By the allocator's own error, for more than any device has."""
    trainer, rows = make_trainer(tmp_path, auto_find_batch_size=True, logging_strategy="no"), []

    def check(_, inputs, kwargs):
        rows.append(kwargs["input_ids"].shape[0])
        if rows[-1] > 2:
            torch.empty(1 << 60, dtype=torch.uint8, device=device)

    trainer.model.register_forward_pre_hook(check, with_kwargs=True)
    trainer.train()
    assert rows[0] == 8 and rows[-1] <= 2 and trainer.state.global_step == STEPS


@pytest.mark.processes
def test_processes_train_as_one_does(device, tmp_path):
    """DDP and FSDP2 on as many GPUs as there are, up to eight; on the stand-in two processes."""
    available = torch.cuda.device_count() if device.type == "cuda" else 2
    processes = max(count for count in (1, 2, 4, 8) if count <= available)
    cases = [case for case in CASES if "streamed" not in case and (processes < 8 or "accumulated" not in case)]
    alone = {case: launched_steps.run(case, "alone", tmp_path / "alone") for case in cases}
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for mode in ("ddp", "fsdp"):
        done = subprocess.run(
            [*command, str(SCRIPT), str(tmp_path), mode, *cases],
            capture_output=True, text=True, timeout=600, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = torch.load(tmp_path / f"{mode}.pt", weights_only=True)
        for case in cases:
            assert found[case]["processes"] == processes
            assert found[case]["are_sharded"] == (mode == "fsdp")
            assert largest_difference(alone[case], found[case]) < (IN_16_BITS if "bf16" in case else SAME), (
                mode,
                case,
            )
        if mode == "fsdp":
            whole, resumed = found["resumed"]
            for name, value in whole.items():
                torch.testing.assert_close(resumed[name], value, rtol=SAME, atol=SAME)


def test_the_benchmark_runs(device, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(" ".join(f"w{i * j % 40}" for j in range(1, 15)) + "." for i in range(60)))
    arguments = ["--text", text, "--device", device.type, "--vocab-size", "200", "--length", "16", "--batch-size", "2"]
    arguments += ["--rounds", "1", "--steps", "1", "--dtype", "float32", "bfloat16", "--against", "grouped"]
    assert main(["benchmark", *map(str, arguments)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\nhf_encoders ") == 2 and f", bfloat16, {device.type}" in printed
