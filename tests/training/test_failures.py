"""Out of memory, data that is not what it was, workers, pushes and other processes that fail."""

import errno
import re
import shutil
import signal

import datasets
import pytest
import torch
from safetensors.numpy import load_file
from transformers import Trainer

from hf_encoders.training import fault_tolerance
from hf_encoders.training.fault_tolerance import CheckpointNotSavedError, is_out_of_memory, what_to_lower
from tests import processes
from tests.training import injected, tiny_run
from tests.training.killed_run import make_documents
from tests.training.tiny_run import AtStep, is_untouched, make_trainer, newest


pytestmark = pytest.mark.usefixtures("one_thread")


def use_all_memory() -> None:
    """More than any machine has: the CPU allocator's own error."""
    torch.empty(1 << 60, dtype=torch.uint8)


def test_out_of_memory_names_the_setting_to_lower_which_resumes_the_run(untouched, tmp_path, caplog):
    run = tmp_path / "run"
    trainer = make_trainer(run)
    trainer.add_callback(AtStep(4, use_all_memory))
    with pytest.raises(MemoryError, match="out of memory .*DefaultCPUAllocator: can't allocate memory") as error:
        trainer.train()
    remedy = "Lower per_device_train_batch_size=4 to 2 and raise gradient_accumulation_steps=1 to 2, which trains on"
    assert remedy in str(error.value) and "activation_checkpointing=True" in str(error.value)
    assert f"Training ended after step 3 with RuntimeError. {run}/checkpoint-2 is complete. To resume" in caplog.text
    assert is_untouched(run, untouched, [2])
    # The same rows a step, so there is no warning; of other rows there is one.
    shutil.copytree(run, tmp_path / "other")
    caplog.clear()
    tiny_run.train(run, True, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    assert "rows of the dataset" not in caplog.text
    tiny_run.train(tmp_path / "other", True, per_device_train_batch_size=2)
    assert "an optimizer step had 4 rows of the dataset and now has 2" in caplog.text


def test_the_advice_keeps_the_rows_of_a_step(tmp_path):
    advice = what_to_lower(make_trainer(tmp_path, per_device_train_batch_size=3).args)
    assert advice.startswith("Lower per_device_train_batch_size=3 to 1 and raise gradient_accumulation_steps=1 to 3,")


def test_trainer_finds_the_size_itself(tmp_path):
    trainer, rows = make_trainer(tmp_path, auto_find_batch_size=True), []

    def check(_, inputs, kwargs):
        rows.append(kwargs["input_ids"].shape[0])
        if rows[-1] > 2:
            use_all_memory()

    trainer.model.register_forward_pre_hook(check, with_kwargs=True)
    trainer.train()
    assert rows[-1] == 2 and newest(tmp_path) == ("checkpoint-8", [])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("Allocation on device"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("shapes cannot be multiplied"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


@pytest.mark.processes
def test_a_killed_worker_of_the_data_loader(untouched, tmp_path):
    """What the system does to workers when memory is short."""
    run = tmp_path / "run"
    ended = processes.run(injected.worker_killed, run, 6)  # the epoch's last batch, made two or three steps ahead
    assert ended.status == 1
    # Which error it is, and whether of a step or of a save, depends on what the process does at that moment.
    assert re.search(r"^RuntimeError: DataLoader worker \(pid|^ConnectionResetError|CheckpointNot", ended.told, re.M)
    assert re.search(f"{run}/checkpoint-[24] is complete. To resume from it, run with the same settings", ended.told)


def test_another_corpus_is_refused_wherever_it_is(untouched, saved, tmp_path):
    """A document less; other tokens of the same number; the same in another folder is the same."""
    documents = make_documents()

    def other(document):
        return {"input_ids": [[token - 1 if token > 40 else token for token in one] for one in document["input_ids"]]}

    then = r"checkpoint-4 was trained on: 24 documents with 432 tokens \(checksum ca98eb74\) then, "
    for changed, now in ((documents.select(range(23)), "23 documents with 414"), (documents.map(other), "24 .* 432")):
        with pytest.raises(ValueError, match=rf"{then}{now} tokens \(checksum .* from_pretrained\("):
            make_trainer(saved, documents=changed).train(resume_from_checkpoint=True)
    assert is_untouched(saved, untouched, [2, 4])
    documents.save_to_disk(tmp_path / "corpus")
    tiny_run.train(saved, True, documents=datasets.load_from_disk(str(tmp_path / "corpus")), max_steps=4)


@pytest.mark.processes
def test_one_of_two_processes_killed(tmp_path):
    """The other ends with an error that says how to resume; it does not wait for ever."""
    run = tmp_path / "run"
    first, second = processes.run_all(injected.one_process_killed, 2, run, 4)
    assert second.status == -signal.SIGKILL and first.status not in (0, None)
    assert f"{run}/checkpoint-2 is complete. To resume from it, " in first.told
    assert newest(run) == ("checkpoint-2", [])


@pytest.mark.processes
def test_another_number_of_processes_is_warned_of(tmp_path, caplog):
    """Without dropout the run is the same, by accumulation in place of the other process."""
    # The gradient of a key's bias is nothing but rounding errors: with a larger epsilon they stay small.
    settings = {"per_device_train_batch_size": 2, "dropout": 0.0, "adam_epsilon": 1e-4}
    both = processes.run_all(tiny_run.train, 2, tmp_path / "whole", **settings)
    assert [ended.status for ended in both] == [0, 0], both
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", run / "checkpoint-4")
    tiny_run.train(run, True, gradient_accumulation_steps=2, **settings)
    assert "it was written by 2 process(es) and is resumed by 1: examples and masks are those of the" in caplog.text
    assert "rows of the dataset" not in caplog.text
    mine, whole = (load_file(path / "checkpoint-8" / "model.safetensors") for path in (run, tmp_path / "whole"))
    assert max(abs(mine[name] - whole[name]).max() for name in mine) < 1e-6


@pytest.mark.parametrize("rank_fails", [True, False])
def test_a_push_that_fails_in_one_process_fails_in_all(tmp_path, monkeypatch, rank_fails):
    def push(trainer, folder):
        if rank_fails:
            raise OSError(errno.ENOSPC, "No space left on device")

    trainer = make_trainer(tmp_path)
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", push)
    save, flags = Trainer._save_checkpoint, []

    def save_and_push(trainer, *args):
        save(trainer, *args)
        trainer._push_from_checkpoint(trainer._get_output_dir(None))

    def any_process(flag, device):
        flags.append(flag)
        return len(flags) == 3 or flag  # after the output folder and the writing of a checkpoint

    monkeypatch.setattr(Trainer, "_save_checkpoint", save_and_push)
    monkeypatch.setattr(fault_tolerance, "any_process", any_process)
    reason = "No space left on device" if rank_fails else "another process failed"
    with pytest.raises(CheckpointNotSavedError, match=rf"checkpoint-2 could not be saved or pushed \(.*{reason}\)"):
        trainer.train()
    assert flags == [False, False, rank_fails] and newest(tmp_path) == ("checkpoint-2", [])
