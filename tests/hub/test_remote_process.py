"""The helper really takes the package away, and says what went wrong in the other process."""

import os
from pathlib import Path

import pytest

import hf_encoders
from tests.hub.remote_process import run_with_package, run_without_package


pytestmark = pytest.mark.processes


IMPORT = """
import importlib

result = {}
for name in argument:
    try:
        result[name] = importlib.import_module(name).__name__
    except ModuleNotFoundError as error:
        result[name] = str(error)
"""


def test_package_cannot_be_imported_where_it_is_taken_away(tmp_path: Path) -> None:
    names = ["hf_encoders", "hf_encoders.models.configuration_bert", "json"]
    found = run_without_package(IMPORT, tmp_path / "without", names)
    assert found == {
        "hf_encoders": "No module named 'hf_encoders'",
        "hf_encoders.models.configuration_bert": "No module named 'hf_encoders'",
        "json": "json",
    }


def test_source_folder_on_the_path_does_not_bring_it_back(tmp_path: Path) -> None:
    source = str(Path(hf_encoders.__file__).parents[1])
    found = run_without_package(
        "import sys\nresult = argument in sys.path", tmp_path, source, environment=os.environ | {"PYTHONPATH": source}
    )
    assert found is True  # the path was there, and the checks before and after the snippet passed all the same


def test_process_that_gets_the_package_by_a_trick_is_refused(tmp_path: Path) -> None:
    trick = "import sys, types\nsys.modules['hf_encoders'] = types.ModuleType('hf_encoders')"
    with pytest.raises(AssertionError, match=r"not a process without the package: it has \['hf_encoders'\]"):
        run_without_package(trick, tmp_path)


def test_package_can_be_imported_otherwise(tmp_path: Path) -> None:
    snippet = """
        import sys
        before = "hf_encoders" in sys.modules
        import hf_encoders
        result = [before, hf_encoders.__file__]
    """
    assert run_with_package(snippet, tmp_path) == [False, hf_encoders.__file__]


def test_error_of_the_snippet_is_shown(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="KeyError: 'what was asked for'"):
        run_without_package("{}['what was asked for']", tmp_path)


def test_caches_are_below_home_and_the_network_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_MODULES_CACHE", "HF_ENDPOINT"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    snippet = """
        from huggingface_hub import constants
        result = [constants.HF_HOME, constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE, constants.ENDPOINT]
    """
    home = str(tmp_path / "home")
    found = run_without_package(snippet, tmp_path / "home")
    assert found == [home, f"{home}/hub", True, "https://huggingface.co"]
