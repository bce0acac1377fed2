"""What every test starts from."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    """No test depends on which tests ran before it."""
    torch.manual_seed(0)
