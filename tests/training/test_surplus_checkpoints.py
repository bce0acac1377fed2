"""Old checkpoints that cannot be removed, and pushes that fail: no process goes on or ends without the others."""

import errno
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest
from transformers import Trainer
from transformers.utils import PushInProgress

from hf_encoders.training import checkpoints, fault_tolerance
from hf_encoders.training.fault_tolerance import CheckpointNotSavedError, what_to_lower
from tests.training.tiny_run import make_trainer


def steps_in(folder):
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))


@pytest.fixture
def warnings(monkeypatch):
    found = []
    for module in (checkpoints, fault_tolerance):
        monkeypatch.setattr(module.logger, "warning", found.append)
    return found


@pytest.mark.parametrize("error", [errno.EACCES, errno.EBUSY, errno.ENOTEMPTY])
def test_a_checkpoint_that_cannot_be_moved_aside_stays_and_the_run_goes_on(tmp_path, monkeypatch, warnings, error):
    rename = os.rename

    def refusing(source, target):
        if os.path.basename(target) == "removed-checkpoint-2":
            raise OSError(error, os.strerror(error))
        rename(source, target)

    monkeypatch.setattr(checkpoints.os, "rename", refusing)
    trainer = make_trainer(tmp_path, save_total_limit=1)
    trainer.train()
    assert trainer.state.global_step == 8
    assert steps_in(tmp_path) == [2, 8]  # the others were removed all the same
    assert len(warnings) == 3 and "checkpoint-2 exceeds save_total_limit and could not be removed" in warnings[0]
    assert os.strerror(error) in warnings[0]


def test_a_folder_that_cannot_be_looked_through_ends_nothing(tmp_path, monkeypatch, warnings):
    def vanished(*_, **__):
        raise FileNotFoundError(errno.ENOENT, "gone")

    monkeypatch.setattr(fault_tolerance, "sort_checkpoints", vanished)
    make_trainer(tmp_path, save_total_limit=1).train()
    assert steps_in(tmp_path) == [2, 4, 6, 8] and "could not be searched" in warnings[0]


@pytest.mark.parametrize("rank_fails", [True, False])
def test_a_push_that_fails_in_one_process_fails_in_all(tmp_path, monkeypatch, rank_fails):
    def push(trainer, folder):
        if rank_fails:
            raise OSError(errno.ENOSPC, "No space left on device")

    trainer = make_trainer(tmp_path)
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", push)
    save, asked = Trainer._save_checkpoint, []

    def save_and_push(trainer, *args):
        save(trainer, *args)
        trainer._push_from_checkpoint(trainer._get_output_dir(None))

    def any_process(flag, device):
        asked.append(flag)
        return len(asked) == 5 or flag  # the fifth question of a save: behind the output folder and its three steps

    monkeypatch.setattr(Trainer, "_save_checkpoint", save_and_push)
    monkeypatch.setattr(fault_tolerance, "any_process", any_process)
    reason = "No space left on device" if rank_fails else "another process failed"
    with pytest.raises(CheckpointNotSavedError, match=rf"checkpoint-2 could not be pushed \(.*{reason}\)"):
        trainer.train()
    assert asked == [False] * 4 + [rank_fails] and steps_in(tmp_path) == [2]


@pytest.mark.parametrize("always", [False, True])
def test_a_push_under_way_keeps_the_files_it_reads(tmp_path, monkeypatch, always):
    """Also a generator's. With `hub_always_push` the next push waits for it; without, there is none."""
    trainer = make_trainer(tmp_path, hub_always_push=always)
    upload, order = Future(), []
    upload.add_done_callback(lambda _: order.append("uploaded"))
    trainer.push_in_progress = PushInProgress([upload])
    monkeypatch.setattr(fault_tolerance, "copy_subfolders", lambda source, target: order.append("replaced"))
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", lambda trainer, folder: order.append("pushed"))
    with ThreadPoolExecutor() as pool:
        pushed = pool.submit(trainer._push_from_checkpoint, str(tmp_path / "checkpoint-2"))
        if not always:
            pushed.result(timeout=60)
        wait([pushed], timeout=0.2)
        assert order == [] and pushed.done() is not always
        upload.set_result(None)
    assert pushed.result(timeout=60) is None
    assert order == ["uploaded", *(["replaced", "pushed"] if always else [])]


def test_three_rows_are_lowered_to_three_times_one(tmp_path):
    """The advice for an odd number, taken at its word, trains on the same rows a step."""
    args = make_trainer(tmp_path, per_device_train_batch_size=3).args
    assert what_to_lower(args).startswith(
        "Lower per_device_train_batch_size=3 to 1 and raise gradient_accumulation_steps=1 to 3, which trains on the "
        "same batches; or set activation_checkpointing=True"
    )
    losses = []
    for rows, accumulation in ((3, 1), (1, 3)):
        trainer = make_trainer(
            tmp_path / str(rows), dropout=0.0, per_device_train_batch_size=rows, max_steps=4, save_strategy="no",
            gradient_accumulation_steps=accumulation, logging_strategy="steps", logging_steps=1,
        )  # fmt: skip
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and len(losses[0]) == 4
