"""A full disk, a folder that cannot be written to: what was saved stays, and the user is told."""

import re

import pytest

from tests import processes
from tests.training import injected
from tests.training.saved_state import good_steps, is_as_if_never_stopped, is_untouched, resumed


pytestmark = pytest.mark.processes


def check_told(ended, run, reason):
    assert ended.status == 1, ended.told
    (line,) = (line for line in ended.told.splitlines() if "CheckpointNotSavedError: " in line)
    assert f"{run}/checkpoint-6 could not be saved ({reason}" in line
    assert re.search(r"; [\d,.]+ MB were free, [\d,.]+ MB after removing its files\. ", line)
    assert (
        f"{run}/checkpoint-4 is complete. To resume from it, run with the same settings and "
        "trainer.train(resume_from_checkpoint=True)." in line
    )


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth", "trainer_state.json", "config.json"])
def test_full_while_a_file_is_written(untouched, saved, name):
    ended = processes.run(injected.full_disk, saved, name)
    check_told(ended, saved, "[Errno 28] No space left on device" if name.endswith("json") else "")
    assert good_steps(saved) == [2, 4] and is_untouched(saved, untouched, (2, 4))
    assert not (saved / "_unfinished").exists()  # its room is free again


def test_full_while_the_weights_are_written(untouched, saved):
    ended = processes.run(injected.full_disk_in_the_weights, saved)
    check_told(ended, saved, "[Errno 28] No space left on device")
    assert good_steps(saved) == [2, 4] and is_untouched(saved, untouched, (2, 4))
    assert not (saved / "_unfinished").exists()


@pytest.mark.parametrize("limit", [20_000, 60_000])
def test_a_write_that_ends_early(untouched, saved, limit):
    """The weights, and the optimizer, get longer than what can be written of a file."""
    ended = processes.run(injected.limited_file_size, saved, limit)
    check_told(ended, saved, "")
    assert good_steps(saved) == [2, 4] and is_untouched(saved, untouched, (2, 4))


def test_after_room_was_made_the_run_goes_on(untouched, saved):
    processes.run(injected.full_disk, saved, "optimizer.pt")
    ended = resumed(saved)
    assert ended.status == 0, ended.told
    assert is_as_if_never_stopped(saved, untouched)


def test_a_folder_that_cannot_be_written_to(tmp_path):
    ended = processes.run(injected.folder_that_cannot_be_written_to, tmp_path / "run")
    assert ended.status == 1
    (line,) = (line for line in ended.told.splitlines() if line.startswith("ValueError: "))
    assert line.startswith(
        f"ValueError: output_dir='{tmp_path}/run' cannot be written to ([Errno 13] Permission denied"
    )
    assert line.endswith('give another folder, or save_strategy="no".')
    assert "computed" not in ended.told
