"""Ctrl-C and SIGTERM: the step is finished and saved, and the user is told how to go on."""

import signal

import pytest

from tests import processes
from tests.training import injected
from tests.training.saved_state import good_steps, is_as_if_never_stopped, is_untouched, newest, resumed


pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_stops_after_the_step_and_goes_on(untouched, tmp_path, number, name):
    """In step 3, which would not have been saved."""
    run = tmp_path / "run"
    ended = processes.run(injected.signalled, run, 3, number)
    assert ended.status == 128 + number, ended.told
    assert f"\n{name}: finishing the step and saving; Ctrl-C again stops without saving.\n" in ended.told
    assert (
        f"Stopped by {name} after step 3 of 8; saved in {run}, nothing is lost. To resume, run with the same "
        "settings and trainer.train(resume_from_checkpoint=True).\n" in ended.told
    )
    assert "went on after train" not in ended.told
    assert good_steps(run) == [2, 3] and newest(run) == ("checkpoint-3", [])
    ended = resumed(run)
    assert ended.status == 0, ended.told
    assert is_as_if_never_stopped(run, untouched)


def test_with_workers_that_get_the_key_press_too(tmp_path):
    ended = processes.run(injected.signalled, tmp_path / "run", 3, signal.SIGINT, workers=2)
    assert ended.status == 130, ended.told
    assert ended.told.count("Ctrl-C: finishing the step") == 1
    assert newest(tmp_path / "run") == ("checkpoint-3", [])
    assert "Error" not in ended.told


def test_in_the_last_step(untouched, tmp_path):
    ended = processes.run(injected.signalled, tmp_path / "run", 8, signal.SIGTERM)
    assert ended.status == 143
    assert "Stopped by SIGTERM after step 8 of 8: training was complete." in ended.told
    assert is_as_if_never_stopped(tmp_path / "run", untouched)


def test_where_nothing_is_to_be_saved(tmp_path):
    ended = processes.run(injected.signalled, tmp_path / "run", 3, signal.SIGINT, save_strategy="no")
    assert ended.status == 130, ended.told
    assert 'Stopped by Ctrl-C after step 3 of 8; nothing was saved, because save_strategy="no".' in ended.told
    assert good_steps(tmp_path / "run") == []


def test_a_second_ctrl_c_stops_at_once(untouched, tmp_path):
    """What was saved before stays; nothing is written."""
    run = tmp_path / "run"
    ended = processes.run(injected.signalled_twice, run, 4)
    assert ended.status == 1 and "KeyboardInterrupt" in ended.told
    assert "went on" not in ended.told
    assert good_steps(run) == [2] and is_untouched(run, untouched, (2,))


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_stop_after_the_same_step(tmp_path, rank):
    run = tmp_path / "run"
    both = processes.run_all(injected.signalled, 2, run, 3, signal.SIGTERM, rank=rank)
    assert [one.status for one in both] == [143, 143], both
    assert good_steps(run) == [2, 3] and newest(run) == ("checkpoint-3", [])
    assert (run / "checkpoint-3" / "rng_state_0.pth").exists() and (run / "checkpoint-3" / "rng_state_1.pth").exists()
    assert [one.told.count("Stopped by SIGTERM after step 3 of 8") for one in both] == [1, 0]


def test_both_end_where_one_gets_the_signal_after_the_last_step(tmp_path):
    both = processes.run_all(injected.signalled_after_the_last_step, 2, tmp_path / "run", signal.SIGTERM)
    assert [one.status for one in both] == [143, 143], both
    assert [one.told.count("Stopped by SIGTERM after step 8 of 8: training was complete.") for one in both] == [1, 0]
