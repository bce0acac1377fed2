"""What every test starts from; and that a test which starts Python processes is marked as such."""

import functools
import gc
import multiprocessing.popen_forkserver
import multiprocessing.popen_spawn_posix
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import _utils as data_loading

from hf_encoders.publishing import curves
from tests.forked_python import Forked, python_c


# Fixtures of several files that start Python processes: whatever uses one is marked.
STARTING_FIXTURES = {"all_saved"}
PYTHON_PROGRAMS = ("python", "torchrun", "accelerate", "hf-encoders")
# A loader that an exception holds waits so long for each worker when it is collected as garbage; the default is 5 s.
data_loading.MP_STATUS_CHECK_INTERVAL = data_loading.worker.MP_STATUS_CHECK_INTERVAL = 0.25  # seconds
_unmarked: str | None = None  # the running test, if it must not start a process


@pytest.fixture(autouse=True)
def _seed() -> None:
    """No test depends on which tests ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _pictures(request: pytest.FixtureRequest) -> Any:
    """Draw the first picture of a file of tests alone, unless it is about them (marker `pictures`).

    Every run ends with one, which takes a quarter of a second.
    """
    if request.node.get_closest_marker("pictures"):
        yield
        return
    draw, drawn = curves.draw, []

    def draw_first(panels: Any, path: Path, *args: Any, **kwargs: Any) -> Path:
        if drawn:
            path.write_bytes(drawn[0])
        else:
            drawn.append(draw(panels, path, *args, **kwargs).read_bytes())
        return path

    curves.draw = draw_first
    yield
    curves.draw = draw


@pytest.fixture(scope="module")
def one_thread():
    """Compute in this process as in those that are started, which have one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def forked_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of `load_elsewhere` is forked from one with torch, which saves three seconds, and is not started.

    `tests/publishing/` has tests of the process that is started.
    """

    def run(command: list[str], env: dict[str, str], cwd: str, **_: Any) -> subprocess.CompletedProcess:
        script, *arguments = command[command.index("-c") + 1 :]
        return python_c(script, arguments, env, cwd)

    monkeypatch.setattr(
        "hf_encoders.publishing.verification.subprocess", SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests whose fixtures start processes."""
    for item in items:
        if STARTING_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)


def pytest_collection_finish() -> None:
    """Leave what the imports made out of every later garbage collection.

    And omit those that accelerate makes when each training begins, for the memory of an accelerator: 20 ms.
    """
    gc.collect()
    gc.freeze()
    if memory := sys.modules.get("accelerate.utils.memory"):
        memory.gc = SimpleNamespace(collect=lambda: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Know which test runs, with its fixtures."""
    global _unmarked
    _unmarked = None if item.get_closest_marker("processes") else item.nodeid
    try:
        return (yield)
    finally:
        _unmarked = None


def pytest_configure() -> None:
    """Fail an unmarked test that starts a Python process: importing torch and transformers again takes seconds.

    Forks, such as the workers of a data loader, are cheap and may be anywhere.
    """
    os.fsync = lambda descriptor: None  # no test cuts the power
    if not torch.accelerator.is_available():
        # It formats the stack three times, for its error if there were an accelerator later: 1 ms, some 20,000 times.
        torch.manual_seed = torch.default_generator.manual_seed
    _guard(Forked, lambda *_, **__: True)
    _guard(subprocess.Popen, lambda self, args, *_, **__: _is_python(args))
    for module in (multiprocessing.popen_forkserver, multiprocessing.popen_spawn_posix):
        _guard(module.Popen, lambda *_: True)


def _is_python(command: Any) -> bool:
    program = command.split()[0] if isinstance(command, str) else command[0]
    return Path(program).name.startswith(PYTHON_PROGRAMS)


def _guard(kind: type, is_guarded: Any) -> None:
    start = kind.__init__

    @functools.wraps(start)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if _unmarked is not None and is_guarded(self, *(args or [kwargs["args"]])):
            pytest.fail(f"{_unmarked} starts a Python process: mark it with @pytest.mark.processes")
        start(self, *args, **kwargs)

    kind.__init__ = checked
