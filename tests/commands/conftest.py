"""A finished run that tests of several files resume, extend, replace and damage in copies."""

import pytest

from tests.commands.pretrain_runs import finished_run


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """A folder with recipe, text, and the run `whole` with all its checkpoints."""
    return finished_run(tmp_path_factory.mktemp("pretrained"))
