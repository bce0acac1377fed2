"""kill -9: what was saved stays, and the run goes on as if it had not been killed."""

import os
import shutil
import signal

import pytest

from hf_encoders.training.checkpoints import FILE_LIST, finish_checkpoint, problem_of_checkpoint
from tests import processes
from tests.training import injected
from tests.training.saved_state import good_steps, is_as_if_never_stopped, is_untouched, newest, resumed


pytestmark = pytest.mark.processes


KILLED = -signal.SIGKILL


def test_in_the_middle_of_a_step(untouched, tmp_path):
    """In the sixth step, the last of the first epoch."""
    run = tmp_path / "run"
    ended = processes.run(injected.killed_in_a_forward_pass, run, 6)
    assert ended.status == KILLED, ended.told
    assert good_steps(run) == [2, 4] and is_untouched(run, untouched, (2, 4))
    ended = resumed(run)
    assert ended.status == 0, ended.told
    assert is_as_if_never_stopped(run, untouched)


@pytest.mark.parametrize(
    "method", ["_save_optimizer_and_scheduler", "_save_rng_state", "_note_best_checkpoint", "_remove_surplus"]
)
def test_between_the_files_of_a_checkpoint(untouched, saved, method):
    ended = processes.run(injected.killed_before, saved, method)
    assert ended.status == KILLED, ended.told
    assert is_untouched(saved, untouched, (2, 4))
    if method == "_remove_surplus":
        assert newest(saved) == ("checkpoint-6", []) and is_untouched(saved, untouched, (6,))
    else:
        name, (said,) = newest(saved)
        assert name == "checkpoint-4"
        assert said == (f"skipped: {saved}/_unfinished/checkpoint-6 is incomplete: the process ended while saving it.")


@pytest.mark.parametrize("limit", [1_200, 5_000, 20_000, 60_000])
def test_at_a_byte_of_a_file(untouched, saved, limit):
    """config.json is longer than 1,200 bytes, code than 5,000, the weights than 20,000, the optimizer than 60,000."""
    ended = processes.run(injected.killed_at_byte, saved, limit)
    assert ended.status == -signal.SIGXFSZ, ended.told
    assert good_steps(saved) == [2, 4] and is_untouched(saved, untouched, (2, 4))
    written = [path.stat().st_size for path in (saved / "_unfinished" / "checkpoint-6").rglob("*")]
    assert max(written) <= limit
    assert newest(saved)[0] == "checkpoint-4"


def test_after_a_half_written_checkpoint_the_run_goes_on(untouched, saved):
    processes.run(injected.killed_at_byte, saved, 60_000)
    ended = resumed(saved)
    assert ended.status == 0, ended.told
    assert "checkpoint-6 is incomplete: the process ended while saving it." in ended.told
    assert is_as_if_never_stopped(saved, untouched) and is_untouched(saved, untouched, (2, 4))
    assert not (saved / "_unfinished").exists()


def test_while_the_list_of_files_is_written(untouched, saved):
    ended = processes.run(injected.killed_writing_the_list, saved)
    assert ended.status == KILLED, ended.told
    assert good_steps(saved) == [2, 4] and is_untouched(saved, untouched, (2, 4))
    name, (said,) = newest(saved)
    assert name == "checkpoint-4"
    assert "_unfinished/checkpoint-6/checkpoint_files.json is damaged (JSONDecodeError" in said


def test_before_a_complete_checkpoint_has_its_place(untouched, saved):
    """It gets it with the next start."""
    ended = processes.run(injected.killed_at_rename, saved, 1)
    assert ended.status == KILLED, ended.told
    assert good_steps(saved) == [2, 4]
    assert newest(saved) == ("checkpoint-6", [])
    assert is_untouched(saved, untouched, (2, 4, 6))


def test_between_taking_away_a_checkpoint_and_putting_the_new_one_there(untouched, saved):
    """Resumed from step 2 where step 4 was saved before: at no moment both are lost."""
    ended = processes.run(injected.killed_at_rename, saved, 2, str(saved / "checkpoint-2"))
    assert ended.status == KILLED, ended.told
    assert good_steps(saved) == [2]
    assert newest(saved) == ("checkpoint-4", [])
    assert is_untouched(saved, untouched, (2, 4))


def test_all_is_on_the_disk_before_it_gets_its_name(saved, monkeypatch):
    """Against power cuts: each file and the folders, in this order; then the name, then the folder that has it."""
    unfinished, place = saved / "_unfinished" / "checkpoint-6", saved / "checkpoint-6"
    shutil.copytree(saved / "checkpoint-4", unfinished)
    (unfinished / FILE_LIST).unlink()
    (unfinished / "folder").mkdir()
    names = {path.stat().st_ino: path.name for path in (saved, unfinished, *unfinished.rglob("*"))}
    done, rename = [], os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(names.get(os.fstat(descriptor).st_ino, FILE_LIST)))
    monkeypatch.setattr(os, "rename", lambda *paths: (done.append("renamed"), rename(*paths)))
    finish_checkpoint(unfinished, place, {"step": 6})
    files = {path.name for path in place.iterdir()}
    assert set(done[:-4]) == files - {FILE_LIST} | {"checkpoint-6"}
    assert done[-5:] == ["checkpoint-6", FILE_LIST, "checkpoint-6", "renamed", "run"]
    assert problem_of_checkpoint(place) is None


def test_while_an_old_checkpoint_is_removed(untouched, saved):
    """save_total_limit=2: checkpoint-2 goes when checkpoint-6 is complete, and no checkpoint from then on."""
    ended = processes.run(injected.killed_while_an_old_checkpoint_is_removed, saved)
    assert ended.status == KILLED, ended.told
    assert good_steps(saved) == [4, 6] and is_untouched(saved, untouched, (4,))
    assert (saved / "_unfinished" / "removed-checkpoint-2").exists()
    assert newest(saved) == ("checkpoint-6", [])
    ended = resumed(saved, save_total_limit=2)
    assert ended.status == 0, ended.told
    assert good_steps(saved) == [6, 8] and not (saved / "_unfinished").exists()
    assert is_as_if_never_stopped(saved, untouched)
