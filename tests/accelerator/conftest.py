"""Tests of what runs on a GPU only: skipped without CUDA, or run on a CPU by HFE_TEST_DEVICE=cpu as far as it goes."""

import os
from pathlib import Path

import pytest
import torch


HERE = Path(__file__).parent
NO_CUDA = "no CUDA device here; HFE_TEST_DEVICE=cpu runs what a CPU can stand in for"
NEEDS_CUDA = "a CPU cannot stand in for this"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_cuda: a CPU cannot stand in for the device")
    config.addinivalue_line("markers", "stand_in: runs on a CPU only, with tensors that say they are on CUDA")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where the device is missing."""
    asked = os.environ.get("HFE_TEST_DEVICE")
    for item in items:
        if HERE not in item.path.parents or item.get_closest_marker("stand_in"):
            continue
        if not torch.cuda.is_available() and asked != "cpu":
            item.add_marker(pytest.mark.skip(reason=NO_CUDA))
        elif asked == "cpu" and item.get_closest_marker("only_cuda"):
            item.add_marker(pytest.mark.skip(reason=NEEDS_CUDA))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device; `tests/training/tiny.py` trains on it, in processes that are started too."""
    name = os.environ.get("HFE_TEST_DEVICE", "cuda")
    monkeypatch.setenv("HFE_TEST_DEVICE", name)
    return torch.device(name)
