"""The branches for CUDA, run on a CPU with tensors that say they are on CUDA: devices, waits, kernels, gradients.

`stand_in/` says what that shows and what not.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families import model_classes


COMPILER = shutil.which("c++")
STAND_IN = Path(__file__).parent / "stand_in"
FAMILIES = [*(one.__name__ for one in model_classes("AutoModelForPreTraining")), "HfeElectraForMaskedLM"]
# Errors of the loss. Gradients may be off by twice what eager attention is in the same precision.
LARGEST = {"float32": 1e-6, "autocast": 1e-2, "bfloat16": 1e-2}
pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.stand_in,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has a CUDA of its own"),
]


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What `stand_in/passes.py` counted, by name of the class."""
    library, root = tmp_path_factory.mktemp("stand_in") / "guard.so", Path(torch.__file__).parent
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib"]
    subprocess.run([COMPILER, *flags, STAND_IN / "guard.cpp", "-ltorch_cpu", "-lc10", "-o", library], check=True)
    command = [sys.executable, "-m", "tests.accelerator.stand_in.passes", *FAMILIES]
    done = subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        found.setdefault(line["name"], []).append(line)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pass_mixes_no_devices_waits_for_none_and_equals_eager_attention(passes, name: str) -> None:
    """Padded, packed and full batches; heads of 64 and 6; without dropout and with, when nothing is equal."""
    assert len(passes[name]) == 3 * len(LARGEST) * 2 * 2
    for one in passes[name]:
        assert "error" not in one, one
        assert one["waits"] == {}, one
        _, precision, _, *dropout = one["case"]
        if not dropout:
            assert one["loss"] < LARGEST[precision], one
            assert one["gradients"] < max(1e-6, 2 * one["of_eager"]), one


def test_kernels_of_a_layer_under_autocast(passes) -> None:
    """Forward: 4 products, 10 casts, 2 joined parameters, 2 of each dropout, sum and LayerNorm, attention, GELU.

    Backward: 8 products, 12 casts, 4 sums for biases, the joined heads, 2 additions, GELU twice, and the others' own.
    """
    of_2, of_5 = passes["HfeBertForMaskedLM"]
    assert (of_5["forward"] - of_2["forward"]) / 3 <= 24
    assert (of_5["backward"] - of_2["backward"]) / 3 <= 34


def test_shared_weights_are_cast_once(passes) -> None:
    """More depth brings the casts of two sub-layers' inputs."""
    of_2, of_5 = passes["HfeAlbertForMaskedLM"]
    assert of_5["casts"] - of_2["casts"] == 3 * 2


def test_the_factor_of_a_gradient_scaler_overflows_nothing(passes) -> None:
    (found,) = passes["scaled float16"]
    assert found["gradients"] < 1e-2
