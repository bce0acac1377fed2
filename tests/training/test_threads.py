"""The number of threads: the user's is left alone, a resumed run's stays, else the fastest by what passes took."""

import json
from types import SimpleNamespace

import pytest
import torch
import yaml

from hf_encoders.runs import command as pretrain_command
from hf_encoders.training import threads
from hf_encoders.training.threads import Work, fastest_threads, set_threads
from tests.commands.pretrain_runs import TINY, pretrain, weights
from tests.corpus.corpora import write_corpus


class Clock:
    """Time that passes only in passes, by the number of threads that is set."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds, self.set, self.ran = 0.0, seconds, 1, []
        clock = SimpleNamespace(perf_counter=lambda: self.now, process_time=lambda: self.now)
        monkeypatch.setattr(threads, "time", clock)
        monkeypatch.setattr(torch, "set_num_threads", lambda number: setattr(self, "set", number))
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.set)

    def work(self, examples=64, steps=1, share=1.0):
        def passes(number):
            return lambda: self.run(share * number / examples)

        return Work(passes, examples, steps)

    def run(self, share):
        self.ran.append(self.set)
        seconds = self.seconds[self.set]
        self.now += share * (seconds(len(self.ran)) if callable(seconds) else seconds)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({1: 0.10, 2: 0.06}, 2),
        ({1: 0.10, 2: 0.095}, 1),  # hardly faster: fewer are slowed down less by other work
        ({1: 0.10, 2: 2.0}, 1),
        ({1: 0.10, 2: 0.06, 4: 0.04, 6: 0.039}, 4),
        ({1: 0.10, 2: 0.10, 4: 0.05}, 4),
        # Fast at best and slow in one turn of three: it is not the best turn that counts.
        ({1: 0.10, 2: lambda turn: 0.5 if turn % 3 == 0 else 0.06}, 1),
    ],
)
def test_the_fastest_number_is_taken_and_fewer_where_it_makes_no_difference(monkeypatch, seconds, chosen):
    clock = Clock(monkeypatch, seconds)
    found, reason = fastest_threads([clock.work()], list(seconds))
    assert found == chosen
    assert reason.startswith("a step takes ") and f"as long with {2 if chosen == 1 else 1}" in reason


def test_measuring_ends_soon_and_what_is_hopeless_is_tried_once(monkeypatch):
    clock = Clock(monkeypatch, {1: 0.1, 2: 1.9, 4: 3.0})
    fastest_threads([clock.work()], [1, 2, 4])
    assert clock.ran.count(2) == clock.ran.count(4) == 1
    clock = Clock(monkeypatch, {1: 0.1, 2: 0.1})
    fastest_threads([clock.work()], [1, 2])
    assert clock.now < threads.MOST_SECONDS + 0.3


@pytest.mark.parametrize(("steps", "chosen"), [(100, 1), (1, 2)])
def test_phases_count_by_their_steps(monkeypatch, steps, chosen):
    """More threads halve the long passes and double the short ones, of which there may be many."""
    clock = Clock(monkeypatch, {1: 0.1, 2: 0.1})
    short = Work(lambda n: lambda: clock.run(2.0 if clock.set == 2 else 1.0), 1, steps)
    long = Work(lambda n: lambda: clock.run(2.0 if clock.set == 2 else 4.0), 1, 10)
    assert fastest_threads([short, long], [1, 2])[0] == chosen


def a_trainer(device="cpu", world_size=1, width=12):
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(hidden_size=width)
    return SimpleNamespace(args=SimpleNamespace(device=torch.device(device), world_size=world_size), model=model)


@pytest.fixture
def two_cores(monkeypatch):
    """torch takes two threads, nobody has set another number, and one is faster."""
    clock = Clock(monkeypatch, {1: 0.1, 2: 0.2})
    clock.set = 2
    for name in threads.SET_BY_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "THREADS_AT_IMPORT", 2)
    monkeypatch.setattr(threads, "_chosen", None)
    return clock


def test_it_is_measured_where_nobody_chose(two_cores):
    trainer = a_trainer()
    found, told = set_threads(trainer, lambda: [two_cores.work()])
    assert found == two_cores.set == 1
    assert told == "1 thread: a step takes 2 times as long with 2. (OMP_NUM_THREADS=N sets another number.)"
    assert trainer.model.weight.grad is None
    # Another run of the same process begins anew, or takes the same where it asks for it.
    assert threads.chosen_before() == 1
    two_cores.seconds = {1: 0.1, 2: 0.05}
    assert set_threads(trainer, lambda: [two_cores.work()], recorded=threads.chosen_before())[0] == 1
    assert set_threads(trainer, lambda: [two_cores.work()])[0] == two_cores.set == 2


@pytest.mark.parametrize("how", ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "set_num_threads", "processes", "accelerator"])
def test_what_the_user_or_a_launcher_chose_is_left_alone(two_cores, monkeypatch, how):
    trainer = a_trainer()
    if how == "set_num_threads":
        two_cores.set = 4
    elif how == "processes":
        trainer = a_trainer(world_size=2)
    elif how == "accelerator":
        trainer = a_trainer(device="meta")
    else:
        monkeypatch.setenv(how, "2")
    before = two_cores.set
    assert set_threads(trainer, None, recorded=1) == (before, None)
    assert two_cores.set == before and two_cores.ran == []


def test_a_resumed_run_has_the_threads_that_it_began_with(two_cores):
    found, told = set_threads(a_trainer(), None, recorded=1)
    assert found == two_cores.set == 1 and told == "1 thread, as at the start of this run."
    two_cores.set = 2
    assert set_threads(a_trainer(), lambda: [two_cores.work()], recorded=16)[0] == 1  # another machine


def test_a_large_model_has_all_threads_unmeasured(two_cores):
    assert set_threads(a_trainer(width=768), None)[0] == 2
    assert two_cores.ran == []


@pytest.mark.slow
def test_a_run_notes_its_threads_and_measuring_does_not_change_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    write_corpus(tmp_path / "text.txt", 60, "alpha")
    now = torch.get_num_threads()
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(threads, "THREADS_AT_IMPORT", 2)
    for name in threads.SET_BY_USER:
        monkeypatch.delenv(name, raising=False)
    try:
        torch.set_num_threads(2)
        assert pretrain(tmp_path, "measured") == 0
        told = capsys.readouterr().out
        chosen = json.loads((tmp_path / "measured" / "run.json").read_text())["threads"]
        assert f"{threads.in_words(chosen)}: a step takes" in told
        monkeypatch.setattr(pretrain_command, "choose_threads", lambda *arguments: torch.set_num_threads(chosen))
        assert pretrain(tmp_path, "unmeasured") == 0
    finally:
        torch.set_num_threads(now)
    one, other = weights(tmp_path / "measured" / "model"), weights(tmp_path / "unmeasured" / "model")
    assert all(torch.equal(one[name], other[name]) for name in one)
