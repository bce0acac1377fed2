"""Kills, damaged checkpoints and full disks: what was saved stays, and the run resumes as if nothing had happened."""

import errno
import os
import shutil
import signal

import pytest

from hf_encoders.training import checkpoints
from hf_encoders.training.checkpoints import (
    FILE_LIST,
    DamagedCheckpointError,
    check_checkpoint,
    finish_checkpoint,
    newest_good_checkpoint,
    problem_of_checkpoint,
)
from hf_encoders.training.fault_tolerance import CheckpointNotSavedError
from tests import processes
from tests.training import injected, tiny_run
from tests.training.tiny_run import is_as_if_never_stopped, is_untouched, make_trainer, newest


pytestmark = pytest.mark.usefixtures("one_thread")


# --- kills ---


@pytest.mark.processes
def test_a_run_killed_in_the_middle_of_a_step_resumes(untouched, tmp_path):
    """In the sixth step, the last of the first epoch."""
    run = tmp_path / "run"
    ended = processes.run(injected.killed_in_a_forward_pass, run, 6)
    assert ended.status == -signal.SIGKILL, ended.told
    assert is_untouched(run, untouched, [2, 4])
    tiny_run.train(run, True)
    assert is_as_if_never_stopped(run, untouched)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("fault", "argument", "status"),
    [
        (injected.killed_before, "_save_rng_state", signal.SIGKILL),
        # The weights are longer than 20,000 bytes, the optimizer than 60,000.
        (injected.limited_file_size, 20_000, signal.SIGXFSZ),
        (injected.limited_file_size, 60_000, signal.SIGXFSZ),
        (injected.killed_at_rename, 1, signal.SIGKILL),
    ],
)
def test_a_run_killed_while_it_saves_resumes_from_the_checkpoint_before(untouched, saved, fault, argument, status):
    ended = processes.run(fault, saved, argument)
    assert ended.status == -status, ended.told
    assert (saved / "_unfinished" / "checkpoint-6").exists()
    assert is_untouched(saved, untouched, [2, 4]) and newest(saved) == ("checkpoint-4", [])
    if argument == 60_000:
        tiny_run.train(saved, True)
        assert is_as_if_never_stopped(saved, untouched)


@pytest.mark.processes
def test_a_kill_between_two_checkpoints_of_one_step_leaves_none_incomplete(untouched, saved):
    """Resumed from step 2 where step 4 was saved before."""
    ended = processes.run(injected.killed_at_rename, saved, 2, str(saved / "checkpoint-2"))
    assert ended.status == -signal.SIGKILL, ended.told
    assert is_untouched(saved, untouched, [2]) and newest(saved) == ("checkpoint-2", [])


def test_all_is_on_the_disk_before_it_gets_its_name(saved, monkeypatch):
    """Against power cuts: each file and the folders, in this order; then the name, then the folder that has it."""
    unfinished, target = saved / "_unfinished" / "checkpoint-6", saved / "checkpoint-6"
    shutil.copytree(saved / "checkpoint-4", unfinished)
    (unfinished / FILE_LIST).unlink()
    (unfinished / "folder").mkdir()
    names = {path.stat().st_ino: path.name for path in (saved, unfinished, *unfinished.rglob("*"))}
    done, rename = [], os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(names.get(os.fstat(descriptor).st_ino, FILE_LIST)))
    monkeypatch.setattr(os, "rename", lambda *paths: (done.append("renamed"), rename(*paths)))
    finish_checkpoint(unfinished, target, {"step": 6})
    assert set(done[:-4]) == {path.name for path in target.iterdir()} - {FILE_LIST}
    assert done[-4:] == [FILE_LIST, "checkpoint-6", "renamed", "run"]
    assert problem_of_checkpoint(target) is None


def test_surplus_checkpoints_are_removed_after_a_new_one_is_complete(tmp_path):
    tiny_run.train(tmp_path, save_total_limit=2)
    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["checkpoint-6", "checkpoint-8"]


def test_a_wrong_clock_removes_no_new_checkpoint(saved):
    for checkpoint in saved.glob("checkpoint-*"):
        os.utime(checkpoint, (2**32, 2**32))
    tiny_run.train(saved, resume=True, save_total_limit=2)
    assert sorted(path.name for path in saved.glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]


def test_a_run_of_fewer_steps_than_save_steps_is_saved_at_the_end(tmp_path):
    tiny_run.train(tmp_path, save_steps=100)
    assert newest(tmp_path) == ("checkpoint-8", [])


# --- damage ---


def cut_short(path):
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [
        ("model.safetensors", cut_short, "is not what was saved (checksum "),
        ("model.safetensors", flip_a_bit, "is not what was saved (checksum "),
        ("optimizer.pt", os.remove, "is missing"),
        ("trainer_state.json", os.remove, "is missing"),
        (FILE_LIST, cut_short, "cannot be read ("),
    ],
)
def test_a_damaged_file_is_named(saved, name, damage, expected):
    checkpoint = saved / "checkpoint-4"
    damage(checkpoint / name)
    good, (skipped, used) = newest(saved)
    assert good == "checkpoint-2" and used == f"used instead: {saved}/checkpoint-2"
    assert skipped.startswith(f"skipped: {checkpoint}/{name} {expected}")
    with pytest.raises(DamagedCheckpointError) as error:
        check_checkpoint(checkpoint)
    assert str(error.value).startswith(f"resume_from_checkpoint: {checkpoint}/{name} {expected}")
    assert str(error.value).endswith(f" Newest intact one: {saved}/checkpoint-2.")


def test_a_checkpoint_of_the_stock_trainer_is_trusted_if_it_was_finished(saved):
    """It has no list of files; `trainer_state.json` is written last."""
    (saved / "checkpoint-4" / FILE_LIST).unlink()
    assert newest(saved) == ("checkpoint-4", [])
    (saved / "checkpoint-4" / "trainer_state.json").unlink()
    good, (skipped, _) = newest(saved)
    assert good == "checkpoint-2"
    assert skipped.endswith("trainer_state.json is missing: the process ended while saving the checkpoint.")


def test_the_run_resumes_from_the_newest_good_one_and_replaces_the_damaged_one(untouched, saved, capfd):
    flip_a_bit(saved / "checkpoint-4" / "model.safetensors")
    tiny_run.train(saved, True)
    told = capfd.readouterr().out
    assert f"skipped: {saved}/checkpoint-4/model.safetensors " in told
    assert f"used instead: {saved}/checkpoint-2\nResuming from {saved}/checkpoint-2\n" in told
    assert is_as_if_never_stopped(saved, untouched) and problem_of_checkpoint(saved / "checkpoint-4") is None


def test_without_an_intact_checkpoint_nothing_is_resumed(saved, tmp_path):
    with pytest.raises(ValueError, match="there is no intact checkpoint in output_dir=.*lower save_steps"):
        tiny_run.train(tmp_path / "none", True)
    assert newest_good_checkpoint(tmp_path / "nowhere") is None
    flip_a_bit(saved / "checkpoint-4" / "optimizer.pt")
    with pytest.raises(DamagedCheckpointError, match="optimizer.pt is not what was saved .*checkpoint-2"):
        tiny_run.train(saved, str(saved / "checkpoint-4"))
    shutil.rmtree(saved / "checkpoint-2")
    assert newest(saved)[0] is None
    with pytest.raises(ValueError, match="No other checkpoint is intact: start from scratch"):
        check_checkpoint(saved / "checkpoint-4")


def test_the_step_decides_which_is_newest_and_not_the_clock(saved):
    os.utime(saved / "checkpoint-4", (0, 0))
    assert newest(saved) == ("checkpoint-4", [])


def test_a_file_that_the_disk_cannot_read_is_named(saved, monkeypatch):
    def fails(path, *args, **kwargs):
        if str(path).endswith("checkpoint-4/optimizer.pt"):
            raise OSError(errno.EIO, "Input/output error")
        return open(path, *args, **kwargs)

    monkeypatch.setattr(checkpoints, "open", fails, raising=False)
    good, (skipped, _) = newest(saved)
    assert good == "checkpoint-2" and "checkpoint-4/optimizer.pt cannot be read ([Errno 5]" in skipped


# --- full disks ---


def fill_disk(trainer, name, monkeypatch) -> None:
    """A file of the checkpoint is on a device that is always full: the system's ENOSPC, whoever writes it."""
    save = trainer.save_model

    def save_on_full_device(output_dir, _internal_call=False):
        os.makedirs(output_dir)
        if name == "model.safetensors":  # written next to it and renamed, so a full device in its place is not met
            raise OSError(errno.ENOSPC, "No space left on device")
        os.symlink("/dev/full", os.path.join(output_dir, name))
        save(output_dir, _internal_call=_internal_call)

    monkeypatch.setattr(trainer, "save_model", save_on_full_device)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_a_full_disk_ends_the_run_with_the_remedy(untouched, saved, name, monkeypatch):
    trainer = make_trainer(saved)
    fill_disk(trainer, name, monkeypatch)
    with pytest.raises(CheckpointNotSavedError) as error:
        trainer.train(resume_from_checkpoint=True)
    told = str(error.value)
    assert told.startswith(f"{saved}/checkpoint-6 could not be saved") and "MB are free" in told
    assert ("[Errno 28] No space left on device" in told) or name == "optimizer.pt"
    assert f"{saved}/checkpoint-4 is complete. To resume from it, run with the same settings and trainer.train" in told
    assert told.endswith("free space or lower save_total_limit.")
    assert is_untouched(saved, untouched, [2, 4]) and not (saved / "_unfinished").exists()  # its room is free again
    if name == "optimizer.pt":  # room was made
        tiny_run.train(saved, True)
        assert is_as_if_never_stopped(saved, untouched)


@pytest.mark.processes
def test_a_write_that_ends_early_is_no_checkpoint(untouched, saved):
    ended = processes.run(injected.limited_file_size, saved, 60_000, signal.SIG_IGN)
    assert ended.status == 1 and "CheckpointNotSavedError: " in ended.told, ended.told
    assert is_untouched(saved, untouched, [2, 4])


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_compute(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_encoders.writing._why_not_writable", lambda folder: "Permission denied")
    trainer = make_trainer(tmp_path)
    with pytest.raises(ValueError, match="output_dir .*Permission denied.*name another folder"):
        trainer.train()
    assert trainer.state.global_step == 0
