"""Checkpoints that were damaged after they were saved: the newest good one is taken, and said so."""

import os
import shutil

import pytest

from hf_encoders.training.checkpoints import check_checkpoint, newest_good_checkpoint, problem_of_checkpoint
from tests import processes
from tests.training import injected, tiny_run
from tests.training.saved_state import is_as_if_never_stopped, newest, resumed


pytestmark = pytest.mark.processes


def cut_short(path):
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def remove(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


DAMAGES = [
    ("model.safetensors", cut_short, "has 10272 bytes instead of 20544: it was truncated or changed"),
    ("model.safetensors", flip_a_bit, "is not what was saved (checksum "),
    ("model.safetensors", remove, "is missing"),
    ("optimizer.pt", cut_short, "it was truncated or changed"),
    ("optimizer.pt", remove, "is missing"),
    ("scheduler.pt", cut_short, "it was truncated or changed"),
    ("rng_state.pth", remove, "is missing"),
    ("trainer_state.json", remove, "is missing"),
    ("trainer_state.json", empty, "has 0 bytes instead of "),
    ("trainer_state.json", cut_short, "it was truncated or changed"),
]


@pytest.mark.parametrize(("name", "damage", "expected"), DAMAGES)
def test_what_is_said_of_a_damaged_file(saved, name, damage, expected):
    checkpoint = saved / "checkpoint-4"
    damage(checkpoint / name)
    found, (skipped, used) = newest(saved)
    assert found == "checkpoint-2"
    assert skipped.startswith(f"skipped: {checkpoint}/{name} ") and expected in skipped
    assert used == f"used instead: {saved}/checkpoint-2"
    with pytest.raises(ValueError) as error:
        check_checkpoint(checkpoint)
    assert f"resume_from_checkpoint: {checkpoint}/{name} " in str(error.value) and expected in str(error.value)
    assert str(error.value).endswith(f" Newest intact one: {saved}/checkpoint-2.")


def test_a_checkpoint_of_the_stock_trainer_is_trusted_if_it_was_finished(saved):
    """It has no list of files; `trainer_state.json` is written last."""
    checkpoint = saved / "checkpoint-4"
    (checkpoint / "checkpoint_files.json").unlink()
    assert newest(saved) == ("checkpoint-4", [])
    (checkpoint / "trainer_state.json").unlink()
    found, (skipped, _) = newest(saved)
    assert found == "checkpoint-2"
    assert skipped.endswith("trainer_state.json is missing: the process ended while saving the checkpoint.")


def test_two_processes_that_name_a_complete_checkpoint_at_once(saved, monkeypatch):
    """The other one is quicker, between the look and the renaming."""
    aside = saved / "_unfinished"
    aside.mkdir(exist_ok=True)
    (saved / "checkpoint-4").rename(aside / "checkpoint-4")
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *paths: (rename(*paths), rename(*paths)))
    assert newest(saved) == ("checkpoint-4", [])


@pytest.mark.parametrize(
    ("name", "damage"),
    [("model.safetensors", flip_a_bit), ("optimizer.pt", cut_short), ("trainer_state.json", remove)],
)
def test_the_run_goes_on_from_the_newest_good_one(untouched, saved, name, damage):
    """And the damaged one is replaced when step 4 is reached again."""
    damage(saved / "checkpoint-4" / name)
    ended = resumed(saved)
    assert ended.status == 0, ended.told
    assert f"skipped: {saved}/checkpoint-4/{name} " in ended.told
    assert f"used instead: {saved}/checkpoint-2\nResuming from {saved}/checkpoint-2\n" in ended.told
    assert is_as_if_never_stopped(saved, untouched)
    assert problem_of_checkpoint(saved / "checkpoint-4") is None


def test_a_named_damaged_checkpoint_is_refused(saved):
    flip_a_bit(saved / "checkpoint-4" / "model.safetensors")
    ended = processes.run(tiny_run.train, saved, str(saved / "checkpoint-4"))
    assert ended.status == 1
    assert (
        f"DamagedCheckpointError: resume_from_checkpoint: {saved}/checkpoint-4/model.safetensors is not" in ended.told
    )
    assert f"Newest intact one: {saved}/checkpoint-2." in ended.told
    assert "train_runtime" not in ended.told


def test_no_checkpoint_at_all(tmp_path):
    """Also where save_steps was more than the steps that were done."""
    ended = resumed(tmp_path / "run")
    assert ended.status == 1
    assert (
        f"ValueError: resume_from_checkpoint=True: there is no intact checkpoint in output_dir='{tmp_path}/run'. "
        "Start from scratch without it; a lower save_steps saves more often." in ended.told
    )
    assert newest_good_checkpoint(tmp_path / "nowhere") is None


def test_the_only_checkpoint_is_damaged(saved):
    shutil.rmtree(saved / "checkpoint-2")
    flip_a_bit(saved / "checkpoint-4" / "optimizer.pt")
    name, (said,) = newest(saved)
    assert name is None and "optimizer.pt is not what was saved" in said
    with pytest.raises(ValueError, match="No other checkpoint is intact: start from scratch"):
        check_checkpoint(saved / "checkpoint-4")


def test_a_wrong_clock(saved):
    """Steps tell which is newest, not times."""
    os.utime(saved / "checkpoint-4", (0, 0))
    assert newest(saved) == ("checkpoint-4", [])


def test_a_disk_that_cannot_read_a_file(untouched, saved):
    ended = processes.run(injected.unreadable_files, saved, "/run/checkpoint-4/optimizer.pt")
    assert ended.status == 0, ended.told
    assert "checkpoint-4/optimizer.pt cannot be read ([Errno 5] Input/output error)." in ended.told
    assert is_as_if_never_stopped(saved, untouched)


def test_fewer_steps_than_save_steps(tmp_path):
    """Trainer saves at the end."""
    ended = processes.run(tiny_run.train, tmp_path / "run", save_steps=100)
    assert ended.status == 0, ended.told
    assert newest(tmp_path / "run") == ("checkpoint-8", [])
