"""Ctrl-C and SIGTERM: the step is finished and saved, and the message says how to resume."""

import signal

import pytest

from tests import processes
from tests.training import injected, tiny_run
from tests.training.tiny_run import AtStep, is_as_if_never_stopped, is_untouched, make_trainer, newest


@pytest.mark.processes
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_stops_after_the_step_and_resumes(untouched, tmp_path, number, name, one_thread):
    """In step 3, which would not have been saved; data loader workers get the Ctrl-C too."""
    run, workers = tmp_path / "run", 2 if number == signal.SIGINT else 0
    ended = processes.run(injected.signalled, run, 3, number, workers=workers)
    assert ended.status == 128 + number, ended.told
    assert ended.told.count(f"\n{name}: finishing the step and saving; Ctrl-C again stops without saving.\n") == 1
    assert (
        f"Stopped by {name} after step 3 of 8; saved in {run}, nothing is lost. To resume, run with the same "
        "settings and trainer.train(resume_from_checkpoint=True).\n" in ended.told
    )
    assert "continued after train" not in ended.told and "Error" not in ended.told
    assert newest(run) == ("checkpoint-3", []) and sorted(path.name[-1] for path in run.glob("*-*")) == ["2", "3"]
    tiny_run.train(run, True)
    assert is_as_if_never_stopped(run, untouched)


@pytest.mark.parametrize(
    ("step", "save_strategy", "expected"),
    [
        (8, "steps", "Stopped by SIGTERM after step 8 of 8: training was complete."),
        (3, "no", 'Stopped by SIGTERM after step 3 of 8; nothing was saved, because save_strategy="no".'),
    ],
)
def test_the_message_says_what_is_there(tmp_path, capfd, one_thread, step, save_strategy, expected):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    trainer = make_trainer(tmp_path, save_strategy=save_strategy)
    trainer.add_callback(AtStep(step, lambda: signal.raise_signal(signal.SIGTERM)))
    with pytest.raises(SystemExit) as ended:
        trainer.train()
    assert ended.value.code == 143 and expected in capfd.readouterr().out
    assert newest(tmp_path)[0] == ("checkpoint-8" if save_strategy == "steps" else None)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.processes
def test_a_second_ctrl_c_stops_at_once(untouched, tmp_path):
    """What was saved before stays; nothing is written."""
    run = tmp_path / "run"
    ended = processes.run(injected.signalled_twice, run, 4)
    assert ended.status == 1 and "KeyboardInterrupt" in ended.told
    assert "continued" not in ended.told
    assert is_untouched(run, untouched, [2])


@pytest.mark.processes
def test_two_processes_stop_after_the_same_step(tmp_path):
    """Where the second one gets the signal."""
    run = tmp_path / "run"
    both = processes.run_all(injected.signalled, 2, run, 3, signal.SIGTERM, rank=1)
    assert [ended.status for ended in both] == [143, 143], both
    assert newest(run) == ("checkpoint-3", [])
    assert (run / "checkpoint-3" / "rng_state_0.pth").exists() and (run / "checkpoint-3" / "rng_state_1.pth").exists()
    assert [ended.told.count("Stopped by SIGTERM after step 3 of 8") for ended in both] == [1, 0]


@pytest.mark.processes
def test_both_end_where_one_gets_the_signal_after_the_last_step(tmp_path):
    both = processes.run_all(injected.signalled_after_the_last_step, 2, tmp_path / "run", signal.SIGTERM)
    assert [ended.status for ended in both] == [143, 143], both
    told = [ended.told.count("Stopped by SIGTERM after step 8 of 8: training was complete.") for ended in both]
    assert told == [1, 0]
