"""Runs Python snippets in processes of their own: with this package, or as on a machine that has never had it.

A snippet finds its input in `argument` and leaves its answer in `result`; both travel as JSON, tensors in files.

    run_without_package("result = argument + 1", tmp_path / "home", argument=1)    # 2

A process without the package can import neither `hf_encoders` nor anything below it, whatever is installed and
wherever it is started; each such process proves so before the snippet runs, and again after it.
"""

import json
import os
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import Any

import hf_encoders
from tests.forked_python import python_c


# Caches and modes of the parent that would let a child see more, or less, than the test put there.
FOREIGN_SETTINGS = (
    "HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_MODULES_CACHE", "HF_TOKEN", "HUGGINGFACE_HUB_CACHE",
    "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE",
)  # fmt: skip

BLOCK_PACKAGE = """
import sys


class PackageBlocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_encoders":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, PackageBlocker())


def check_package_is_absent():
    loaded = [name for name in sys.modules if name.partition(".")[0] == "hf_encoders"]
    if loaded:
        raise SystemExit(f"not a process without the package: it has {loaded}")
    for name in ("hf_encoders", "hf_encoders.models.modeling_bert"):
        try:
            __import__(name)
        except ModuleNotFoundError:
            continue
        raise SystemExit(f"not a process without the package: it can import {name}")


check_package_is_absent()
"""

READ_ARGUMENT = """
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    argument = json.load(file)
result = None
"""

WRITE_RESULT = """
import json
import sys

with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump(result, file)
"""


def run_without_package(
    snippet: str, home: Path, argument: Any = None, environment: dict[str, str] | None = None, timeout: float = 240
) -> Any:
    """Run `snippet`, which sets `result`, where `import hf_encoders` raises, in `home` and with caches there.

    `environment` is that of the process, such as `LoopbackHub.environment(home)`; None is this one, without network.
    An AssertionError has what the process wrote to stderr.
    """
    script = "\n".join([BLOCK_PACKAGE, READ_ARGUMENT, dedent(snippet), "check_package_is_absent()", WRITE_RESULT])
    return _run(script, home, argument, environment or offline_environment(home), timeout)


def run_with_package(
    snippet: str, home: Path, argument: Any = None, environment: dict[str, str] | None = None, timeout: float = 240
) -> Any:
    """Run `snippet` where `hf_encoders` can be imported, and is not yet; otherwise as `run_without_package`."""
    environment = dict(environment or offline_environment(home))
    folder = str(Path(hf_encoders.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, environment.get("PYTHONPATH")]))
    return _run("\n".join([READ_ARGUMENT, dedent(snippet), WRITE_RESULT]), home, argument, environment, timeout)


def offline_environment(home: Path) -> dict[str, str]:
    """Variables of this process, changed so that a child has no network and caches only under `home`."""
    inherited = {name: value for name, value in os.environ.items() if name not in FOREIGN_SETTINGS}
    return inherited | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def _run(script: str, home: Path, argument: Any, environment: dict[str, str], timeout: float) -> Any:
    home.mkdir(parents=True, exist_ok=True)
    exchange = Path(tempfile.mkdtemp(prefix="exchange-", dir=home))
    given, answer = exchange / "argument.json", exchange / "result.json"
    given.write_text(json.dumps(argument), encoding="utf-8")
    settings = {"HF_MODULES_CACHE": str(home / "modules"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = python_c(script, [str(given), str(answer)], environment | settings, home, timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text(encoding="utf-8"))
