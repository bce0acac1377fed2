"""Runs a function in a process of its own, which may be killed or kill itself.

The processes are forked from one that has imported everything: a fault takes a second instead of ten.
"""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


LONGEST = 240  # seconds; nothing here takes more than a few, but on a machine with much else to do, or if it hangs
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.training.tiny_run"])


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status (negative: the signal) and all it wrote, errors included."""

    status: int
    told: str


class Running:
    def __init__(
        self, log: Path, function: Callable[..., None], args: tuple, kwargs: dict[str, Any], environment: dict
    ):
        self.log = log
        self.process = context.Process(target=_run, args=(log, environment, function, args, kwargs))
        self.process.start()

    def end(self) -> Ended:
        self.process.join(LONGEST)
        is_hanging = self.process.is_alive()
        if is_hanging:
            self.process.kill()
            self.process.join()
        told = self.log.read_text()
        assert not is_hanging, f"the process hangs:\n{told}"
        return Ended(self.process.exitcode, told)


def _run(log: Path, environment: dict[str, str], function: Callable[..., None], args: tuple, kwargs: dict) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    sys.stdout, sys.stderr = (open(i, "w", buffering=1, closefd=False) for i in (1, 2))  # noqa: SIM115
    os.environ.update(environment)
    # No power is cut here, and the disk of a busy machine can take minutes; `test_kills` has what is synced when.
    os.fsync = lambda descriptor: None
    multiprocessing.set_start_method("fork", force=True)  # of data loader workers: as in a process that was not forked
    try:
        function(*args, **kwargs)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def run(function: Callable[..., None], folder: Path, *args: Any, **kwargs: Any) -> Ended:
    """Call `function(folder, *args, **kwargs)` and wait for the end."""
    return run_all(function, 1, folder, *args, **kwargs)[0]


def run_all(function: Callable[..., None], processes: int, folder: Path, *args: Any, **kwargs: Any) -> list[Ended]:
    """The same in several processes of one run, as torchrun would start them but that nobody ends the others."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    numbers = [number for number in range(100) if not log_of(folder, number, 0).exists()]
    environments = [{}]
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
        environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    started = [
        Running(log_of(folder, numbers[0], rank), function, (folder, *args), kwargs, environment)
        for rank, environment in enumerate(environments)
    ]
    return [one.end() for one in started]


def log_of(folder: Path, number: int, rank: int) -> Path:
    return folder.parent / f"{folder.name}-{number}-{rank}.log"


def end_together() -> None:
    """A process that ends while its threads still talk to the other one is aborted now and then."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
