"""A run that nothing happened to, and copies of what it had saved by step 4."""

import shutil

import pytest

from tests import processes
from tests.training import tiny_run


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    """Folder of the run that was never stopped: checkpoints 2, 4, 6 and 8."""
    folder = tmp_path_factory.mktemp("untouched") / "run"
    ended = processes.run(tiny_run.train, folder)
    assert ended.status == 0, ended.told
    return folder


@pytest.fixture
def saved(untouched, tmp_path):
    """Folder of a run that got to step 4."""
    for step in (2, 4):
        shutil.copytree(untouched / f"checkpoint-{step}", tmp_path / "run" / f"checkpoint-{step}")
    return tmp_path / "run"
