"""Runs on the device: repeated, resumed, in 16 bits, recomputed, compiled, out of memory, in several processes.

Sums over many threads are not added in the same order twice, so runs that are equal bit for bit on a CPU are equal to
a tolerance here. Heads are of 8, so that padded and packed batches in 16 bits take flash attention.
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
from torch._dynamo.utils import counters
from transformers import TrainerCallback

from hf_encoders import PreTrainingTrainer
from hf_encoders.cli import main
from hf_encoders.models.encoder_attention import EncoderSelfAttention
from tests.training import launched_steps
from tests.training.launched_steps import CASES, STEPS, whole_parameters
from tests.training.test_launched import ROOT, SCRIPT, largest_difference


# Of losses and parameters, between equal runs, in 16 bits or not. Noise in all gradients of 1e-6 of their largest
# element gave 6e-5, and in 16 bits, where it changes what is rounded, 2e-3.
SAME = {False: 1e-4, True: 1e-2}
IN_16_BITS = 3e-2
PACKED = "dialogue packed accumulated"  # with absolute positions; those of "mlm packed" are relative
EACH_RUN = [("nsp", False), ("nsp", True), ("mlm packed", False), (PACKED, True)]
each_run = pytest.mark.parametrize(("case", "bf16"), EACH_RUN)
# AdamW's own 1e-8 would make steps of the size of the learning rate out of rounding, where a gradient is zero in
# theory: that of a key's bias.
ADAMW = {"optim": "adamw_torch", "adam_epsilon": 1e-4}


def make_trainer(folder: Path, case: str = "nsp", dropout: float = 0.0, **arguments) -> PreTrainingTrainer:
    trainer = launched_steps.make_trainer(case, "alone", folder, **{**ADAMW, **arguments})
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


def check_same(one: PreTrainingTrainer, other: PreTrainingTrainer, tolerance: float) -> None:
    assert losses(one) == pytest.approx(losses(other), rel=tolerance)
    expected = whole_parameters(other.model)
    for name, value in whole_parameters(one.model).items():
        torch.testing.assert_close(value, expected[name], rtol=tolerance, atol=tolerance, msg=name)


@each_run
def test_two_runs_of_one_seed_are_equal(device, tmp_path, case, bf16):
    """With dropout, without which they are others."""
    runs = [trained(tmp_path / name, device, case, 0.1, learning_rate=0.01, bf16=bf16) for name in "ab"]
    check_same(*runs, SAME[bf16])
    assert len(set(losses(runs[0]))) == STEPS
    with pytest.raises(AssertionError):
        check_same(runs[0], trained(tmp_path, device, case, learning_rate=0.01, bf16=bf16), SAME[bf16])


@each_run
def test_a_resumed_run_goes_on_as_if_it_had_not_ended(device, tmp_path, case, bf16):
    """With dropout: the device's generator is in the checkpoint."""
    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.01, "bf16": bf16}
    whole = trained(tmp_path, device, case, 0.1, **settings)
    resumed = trained(tmp_path, device, case, 0.1, resume=str(tmp_path / "checkpoint-2"), **settings)
    check_same(whole, resumed, SAME[bf16])


def test_losses_are_those_of_a_cpu(device, tmp_path, monkeypatch):
    for case in ("nsp", "sop packed accumulated", PACKED, "mlm packed"):
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


@pytest.mark.only_cuda
@each_run
def test_no_step_waits_for_the_device(device, tmp_path, case, bf16):
    """By torch's own warnings; `tests/training/test_synchronisations.py` counts what a CPU can show."""

    class Count(TrainerCallback):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_step_end(self, *args, **kwargs) -> None:
            self.steps.append(len(caught))

    count = Count()
    trainer = make_trainer(tmp_path, case, logging_strategy="no", bf16=bf16)
    trainer.add_callback(count)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            trainer.train()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    told = [f"{one.filename}:{one.lineno}: {one.message}" for one in caught[count.steps[1] : count.steps[2]]]
    assert not [message for message in told if "synchroniz" in message]


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


@each_run
def test_recomputed_layers_drop_the_same_elements(device, tmp_path, case, bf16):
    runs = [
        trained(tmp_path, device, case, 0.1, learning_rate=0.01, bf16=bf16, activation_checkpointing=recomputes)
        for recomputes in (False, True)
    ]
    check_same(*runs, SAME[bf16])


@pytest.mark.processes
@pytest.mark.parametrize("case", ["nsp", PACKED])
def test_a_compiled_run_has_the_same_losses(device, tmp_path, case):
    """In 16 bits, without which no layer is compiled on CUDA."""
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    settings = {"learning_rate": 0.01, "bf16": True}
    eager = trained(tmp_path, device, case, **settings)
    torch._dynamo.reset()
    counters.clear()
    compiled = trained(tmp_path, device, case, **settings, torch_compile=True, torch_compile_backend=backend)
    assert counters["stats"]["unique_graphs"] >= 1
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-2)


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
    """DDP and FSDP2 on as many GPUs as there are, two to eight; on the stand-in two processes."""
    available = torch.cuda.device_count() if device.type == "cuda" else 2
    if available < 2:
        pytest.skip("needs two GPUs")
    processes = max(count for count in (2, 4, 8) if count <= available)
    cases = [case for case in CASES if "streamed" not in case and (processes < 8 or "accumulated" not in case)]
    alone = {case: launched_steps.run(case, "alone", tmp_path / "alone") for case in cases}
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for mode in ("ddp", "fsdp"):
        done = subprocess.run(
            [*command, str(SCRIPT), str(tmp_path), mode, *cases],
            capture_output=True, text=True, timeout=110, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = torch.load(tmp_path / f"{mode}.pt", weights_only=True)
        for case in cases:
            assert found[case]["processes"] == processes
            assert found[case]["are_sharded"] == (mode == "fsdp")
            most = IN_16_BITS if "bf16" in case else SAME[False]
            assert largest_difference(alone[case], found[case]) < most, (mode, case)
        if mode == "fsdp":
            whole, resumed = found["resumed"]
            for name, value in whole.items():
                torch.testing.assert_close(resumed[name], value, rtol=SAME[False], atol=SAME[False])


def test_the_benchmark_runs(device, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(" ".join(f"w{i * j % 40}" for j in range(1, 15)) + "." for i in range(60)))
    arguments = ["--text", text, "--device", device.type, "--vocab-size", "200", "--length", "16", "--batch-size", "2"]
    arguments += [
        "--size",
        "small",
        "--rounds",
        "1",
        "--steps",
        "1",
        "--dtype",
        "float32",
        "bfloat16",
        "--against",
        "grouped",
    ]
    assert main(["benchmark", *map(str, arguments)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\nhf_encoders ") == 2 and f", bfloat16, {device.type}" in printed
