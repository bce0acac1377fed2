"""Loads saved directories where this package cannot be imported, and compares what comes out."""

import json
import os
import site
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hf_encoders
from hf_encoders.loading import read_config
from hf_encoders.publishing.probing import FP32_TOLERANCE, Difference, difference, outputs_of, probe_batch
from hf_encoders.publishing.saved_model import pooler_arguments, saved_head
from hf_encoders.redaction import is_secret, without_tokens
from hf_encoders.saved_files import foreign_code


WAYS = {
    "package": "with hf_encoders",
    "remote": "without hf_encoders, trust_remote_code=True",
    "plain": "without hf_encoders, plain transformers",
}
# Of the environment, what Python, torch and transformers need to begin; a token may be called anything.
KEPT_VARIABLES = (
    "PATH", "LANG", "LC_", "TMP", "TEMP", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "NUMBER_OF_PROCESSORS",
    "PROCESSOR_", "LD_", "DYLD_", "PYTHON", "VIRTUAL_ENV", "CONDA", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_",
    "CUDA", "NVIDIA_", "ROCR_", "HIP_", "HSA_", "TORCH", "PYTORCH_", "TRANSFORMERS_", "HF_", "COVERAGE_",
)  # fmt: skip
# Text, because it runs where the package is not: any import of `hf_encoders` fails in that process.
LOAD = """
import importlib.util, json, sys
given, answer, tensors = sys.argv[1:]
request = json.load(open(given, encoding="utf-8"))
if request["is_blocked"]:
    sys.modules["hf_encoders"] = None
else:
    # By its file: its folder, perhaps the current directory, may hold other modules.
    found = importlib.util.spec_from_file_location("hf_encoders", request["package"])
    sys.modules["hf_encoders"] = importlib.util.module_from_spec(found)
    found.loader.exec_module(sys.modules["hf_encoders"])
import torch, transformers
from safetensors.torch import load_file, save_file
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(request["threads"])
results, outputs = [], {}
for number, load in enumerate(request["loads"]):
    arguments = load["arguments"] | ({"trust_remote_code": True} if load["way"] == "remote" else {})
    kind = getattr(transformers, load["auto_class"])
    if load["way"] == "package":
        import hf_encoders
        kind = getattr(hf_encoders, load["class_name"])
    try:
        model, found = kind.from_pretrained(
            load["directory"], dtype=torch.float32, output_loading_info=True, **arguments
        )
        with torch.no_grad():
            computed = model.eval()(**load_file(load["batch"]))
    except Exception as error:
        results.append({"error": f"{type(error).__name__}: {error}"})
        continue
    results.append({"class": type(model).__name__, "missing": sorted(found["missing_keys"])})
    for name, value in computed.items():
        if isinstance(value, torch.Tensor):
            outputs[f"{number}/{name}"] = value.contiguous()
save_file(outputs, tensors)
json.dump(results, open(answer, "w", encoding="utf-8"))
"""


class Load(NamedTuple):
    """A directory, how to load it (`package`, `remote` or `plain`), and what to give to the model.

    Attributes:
        directory: a saved directory.
        way (`str`): a key of `WAYS`.
        auto_class (`str`): the head.
        batch: inputs of the model.
        arguments (`dict`): more of `from_pretrained`.
    """

    directory: Path
    way: str
    auto_class: str
    batch: dict[str, torch.Tensor]
    arguments: dict[str, bool] = {}


class Loaded(NamedTuple):
    """What another process made of a `Load`.

    Attributes:
        error (`str`): why it failed; empty if it did not.
        class_name (`str`): class of the model.
        missing (`list` of `str`): parameters that were not in the weights.
        outputs: float32 tensors by field.
    """

    error: str
    class_name: str
    missing: list[str]
    outputs: dict[str, torch.Tensor]


def load_elsewhere(loads: list[Load], trust_remote_code: bool = False) -> list[Loaded]:
    """Do all loads in fresh processes, offline, those without the package in one that cannot import it.

    The processes get no tokens: neither variables that may hold one, nor the file of `hf auth login`; and they import
    nothing from the current directory.

    Args:
        loads: what to load.
        trust_remote_code (`bool`): whether code of a directory may run that is not this package's own, byte for byte.

    Raises:
        RuntimeError: if a process cannot even begin.
    """
    answers: dict[int, Loaded] = {}
    for number, load in enumerate(loads):
        if load.way == "remote" and not trust_remote_code and (foreign := foreign_code(load.directory)):
            error = f"{', '.join(foreign)}: not this package's own code, of which nothing was run"
            answers[number] = Loaded(error, "", [], {})
    for is_blocked in (True, False):
        numbers = [
            number
            for number, load in enumerate(loads)
            if (load.way != "package") == is_blocked and number not in answers
        ]
        if numbers:
            answers |= dict(zip(numbers, _ask([loads[number] for number in numbers], is_blocked), strict=True))
    return [answers[number] for number in range(len(loads))]


def _ask(loads: list[Load], is_blocked: bool) -> list[Loaded]:
    with tempfile.TemporaryDirectory() as folder:
        given, answer, tensors = (str(Path(folder, name)) for name in ("given", "answer", "tensors"))
        requests: list[dict[str, Any]] = []
        for number, load in enumerate(loads):
            batch = str(Path(folder, f"batch-{number}"))
            save_file({name: value.contiguous() for name, value in load.batch.items()}, batch)
            reference = read_config(load.directory).AUTO_MAP[load.auto_class] if load.way == "package" else ""
            requests.append(
                {**load._asdict(), "directory": str(Path(load.directory).absolute()), "batch": batch}
                | {"class_name": reference.rpartition(".")[2]}
            )
        request = {
            "is_blocked": is_blocked,
            "package": str(Path(hf_encoders.__file__).absolute()),
            "threads": torch.get_num_threads(),
            "loads": requests,
        }
        Path(given).write_text(json.dumps(request), encoding="utf-8")
        # Python 3.10 has no -P: there the first place to import from is `folder`, in which there is no code.
        safe_path = ["-P"] if sys.version_info >= (3, 11) else []
        child = subprocess.run(
            [sys.executable, *safe_path, "-c", LOAD, given, answer, tensors],
            env=environment_without_secrets(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode != 0:
            raise RuntimeError(f"a process to load {loads[0].directory} failed:\n{child.stderr}")
        results = json.loads(Path(answer).read_text(encoding="utf-8"))
        outputs = load_file(tensors)
    return [
        Loaded(
            result.get("error", ""),
            result.get("class", ""),
            result.get("missing", []),
            {name.split("/")[1]: value for name, value in outputs.items() if name.split("/")[0] == str(number)},
        )
        for number, result in enumerate(results)
    ]


def environment_without_secrets(home: str) -> dict[str, str]:
    """Variables of a process that is to load a directory: no tokens, and homes and caches of its own.

    Args:
        home (`str`): an empty folder. A cache of modules there, because code of an earlier version must not answer for
            the files in the directory.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(KEPT_VARIABLES) and not is_secret(name, value) and without_tokens(value) == value
    }
    own = {
        "HOME": home,
        "USERPROFILE": home,
        "HF_HOME": str(Path(home, "hf")),
        "HF_MODULES_CACHE": str(Path(home, "modules")),
        "HF_TOKEN_PATH": str(Path(home, "no-token")),
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_OFFLINE": "1",
        # Packages that were installed with `pip install --user` lie in the real home.
        "PYTHONUSERBASE": site.getuserbase(),
    }
    return kept | own


def verify_loading(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Load the directory in other processes, compare what comes out with a model, and print what was seen.

    Raises:
        RuntimeError: if a process fails or computes something else.
    """
    config = read_config(directory)
    head = saved_head(config)
    batch = probe_batch(config, head, model.base_model.longest_row())
    expected = outputs_of(model.eval(), batch)
    ways = list(WAYS) if config.is_native else ["package", "remote"]
    loads = [Load(directory, way, head, batch, pooler_arguments(model, head)) for way in ways]
    for way, loaded in zip(ways, load_elsewhere(loads), strict=True):
        if problem := problem_of(loaded, expected, batch):
            raise RuntimeError(f"{directory}, loaded {WAYS[way]}: {problem}.")
        largest = compared(loaded, expected, batch).largest
        print(f"  {WAYS[way]}: {loaded.class_name}, largest difference of logits {largest:.1e}")
    ids = tokenizer("The documentation says what the function returns.")["input_ids"]
    if max(ids) >= config.vocab_size:
        raise RuntimeError(f"{directory}: the tokenizer makes id {max(ids)}, and vocab_size is {config.vocab_size}.")


def problem_of(loaded: Loaded, expected: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> str:
    """What is wrong with what another process loaded; empty if nothing is."""
    if loaded.error:
        return loaded.error
    if loaded.missing:
        return f"parameters are new: {', '.join(loaded.missing)}"
    seen = compared(loaded, expected, batch)
    if not seen.is_within(FP32_TOLERANCE):
        return f"outputs differ by up to {seen.largest:.2g}, of at most {seen.scale:.2g}"
    return ""


def compared(loaded: Loaded, expected: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> Difference:
    """How far the outputs from elsewhere are from the expected ones."""
    return difference(loaded.outputs, expected, batch["attention_mask"])
