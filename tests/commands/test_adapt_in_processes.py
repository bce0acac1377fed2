"""`hf-encoders adapt` in two processes: the losses and parameters of one, before, alone with new heads, and after."""

import json
import re
import shutil

import pytest
import torch

from tests import processes
from tests.commands.adapt_runs import adapt, checkpoint, write_texts
from tests.commands.pretrain_runs import same_weights, stopped_after, weights


pytestmark = pytest.mark.processes

RUNS = {
    "sentence pairs, with a new head": ("bert", ["--objective", "nsp", "--head-steps", "2"]),
    "with general text": ("roberta", ["--keep", "general.txt", "--replay", "0.4"]),
    "longer, sharing layers": ("albert", ["--max-length", "80", "--positions", "interpolate"]),
}


def adapt_all(folder, names) -> None:
    """In each of the processes."""
    torch.set_num_threads(1)
    for name in names:
        family, words = RUNS[name]
        words = [folder / word if word.endswith(".txt") else word for word in words]
        assert adapt(folder, folder / family, name.replace(" ", "-"), *words, "--logging_steps", "1") == 0
    if torch.distributed.is_initialized():
        processes.end_together()


def figures(run) -> tuple[list[float], dict[str, float], dict[str, torch.Tensor]]:
    """Losses and gradient norms of every step, losses of every evaluation, parameters."""
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    before = json.loads((run / "run.json").read_text())["before"]
    logged = [entry[name] for entry in history for name in ("loss", "grad_norm") if name in entry]
    evaluated = {
        f"{name} {number}": value
        for number, entry in enumerate([before, *history])
        for name, value in entry.items()
        if re.fullmatch("eval_.*(loss|accuracy)", name)
    }
    return logged, evaluated, weights(run / "model")


@pytest.fixture(scope="module")
def folders(tmp_path_factory, one_thread):
    alone, both = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("both")
    write_texts(alone)
    for family, _ in RUNS.values():
        checkpoint(alone, family, "AutoModelForMaskedLM", name=family)
    shutil.copytree(alone, both, dirs_exist_ok=True)
    adapt_all(alone, RUNS)
    for ended in processes.run_all(adapt_all, 2, both, list(RUNS)):
        assert ended.status == 0, ended.told
    return alone, both


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_adapt_as_one_does(folders, name):
    alone, both = (figures(folder / name.replace(" ", "-")) for folder in folders)
    assert len(alone[0]) == 8 and len(alone[1]) >= 6
    assert both[0] == pytest.approx(alone[0], abs=1e-5, rel=1e-5)
    assert both[1] == pytest.approx(alone[1], abs=1e-5, rel=1e-5)
    assert both[2].keys() == alone[2].keys()
    for parameter, value in alone[2].items():
        torch.testing.assert_close(both[2][parameter], value, atol=1e-5, rtol=0)


def test_records_tell_how_many_processes_there_were(folders):
    name = next(iter(RUNS)).replace(" ", "-")
    alone, both = (json.loads((folder / name / "model" / "training_record.json").read_text()) for folder in folders)
    assert re.fullmatch(r"CPU \(\w+\), 1 thread", alone["hardware"])
    assert re.fullmatch(r"CPU \(\w+\), 2 processes of \d+ threads?", both["hardware"])  # accelerate sets the threads


def test_two_processes_resume_where_they_were_killed(folders):
    _, both = folders
    name = "sentence pairs, with a new head"
    run = name.replace(" ", "-")
    shutil.move(both / run, both / "whole")
    stopped_after(both, "whole", run, 2)
    ended = processes.run_all(adapt_all, 2, both, [name])
    assert [process.status for process in ended] == [0, 0], ended
    assert "checkpoint-2" in ended[0].told and same_weights(both, "whole", run)
