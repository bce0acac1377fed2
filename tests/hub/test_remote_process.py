"""The helper really takes the package away, with caches of its own and no network."""

from pathlib import Path

import pytest

import hf_encoders
from tests.hub.remote_process import offline_environment, run_with_package, run_without_package


pytestmark = pytest.mark.processes


SEE = """
import importlib, sys
from huggingface_hub import constants

result = {"before": "hf_encoders" in sys.modules, "on path": argument in sys.path}
result["caches"] = [constants.HF_HOME, constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE, constants.ENDPOINT]
for name in ("hf_encoders", "hf_encoders.models.configuration_bert"):
    try:
        result[name] = importlib.import_module(name).__file__
    except ModuleNotFoundError as error:
        result[name] = str(error)
"""


def test_package_cannot_be_imported_where_it_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_MODULES_CACHE", "HF_ENDPOINT"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    source, home = str(Path(hf_encoders.__file__).parents[1]), tmp_path / "home"
    expected = {"before": False, "on path": True}
    expected["caches"] = [str(home), f"{home}/hub", True, "https://huggingface.co"]
    without = run_without_package(SEE, home, source, offline_environment(home) | {"PYTHONPATH": source})
    absent = dict.fromkeys(("hf_encoders", "hf_encoders.models.configuration_bert"), "No module named 'hf_encoders'")
    # The path was there, and the checks before and after the snippet passed all the same.
    assert without == expected | absent
    found = run_with_package(SEE, home, source)
    assert found | absent == without and found["hf_encoders"] == hf_encoders.__file__


def test_process_that_gets_the_package_by_a_trick_is_refused(tmp_path: Path) -> None:
    trick = "import sys, types\nsys.modules['hf_encoders'] = types.ModuleType('hf_encoders')"
    with pytest.raises(AssertionError, match=r"not a process without the package: it has \['hf_encoders'\]"):
        run_without_package(trick, tmp_path)
