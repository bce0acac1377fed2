"""A run that nothing happened to, and copies of what it had saved by step 4."""

import os
import shutil

import pytest
import torch

from tests.training import tiny_run


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch):
    """No power is cut here, and the disk of a busy machine can take minutes; `test_kills` has what is synced when."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    """Folder of the run that was never stopped: checkpoints 2, 4, 6 and 8."""
    folder, threads = tmp_path_factory.mktemp("untouched") / "run", torch.get_num_threads()
    tiny_run.train(folder)
    torch.set_num_threads(threads)
    return folder


@pytest.fixture
def saved(untouched, tmp_path):
    """Folder of a run that got to step 4."""
    for step in (2, 4):
        shutil.copytree(untouched / f"checkpoint-{step}", tmp_path / "run" / f"checkpoint-{step}")
    return tmp_path / "run"
