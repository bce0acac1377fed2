"""Compare the outputs of models, also of saved directories in a process that cannot import this package."""

import json
import os
import site
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from hf_encoders.loading import read_config
from hf_encoders.publishing.files import is_native_model, pooler_arguments, saved_head
from hf_encoders.publishing.secrets import is_secret, without_tokens
from hf_encoders.tokenizer_loading import DEFAULT_LENGTH, UNLIMITED, load_tokenizer


Tensors = dict[str, torch.Tensor]
# fp32 rounds to 6e-8; sums in another order over a dozen layers differ by up to 1e-5 of the largest output, a wrong
# weight or layer by 1e-2 and more.
FP32_TOLERANCE = 1e-4
CHOICES = "AutoModelForMultipleChoice"
WAYS = {
    "remote": "without hf_encoders, trust_remote_code=True",
    "plain": "without hf_encoders, plain transformers",
}
# Prefixes of the variables that Python, torch and transformers need; a token may have any name.
KEPT_VARIABLES = (
    "PATH", "LANG", "LC_", "TMP", "TEMP", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "NUMBER_OF_PROCESSORS",
    "PROCESSOR_", "LD_", "DYLD_", "PYTHON", "VIRTUAL_ENV", "CONDA", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_",
    "CUDA", "NVIDIA_", "ROCR_", "HIP_", "HSA_", "TORCH", "PYTORCH_", "TRANSFORMERS_", "HF_", "COVERAGE_",
)  # fmt: skip
# Accents, capitals, letters of other scripts, signs and an unknown word: what tokenizers treat differently.
PROBED_TEXT = "The Café's naïve ÉLAN, 北京 и Москва: 3.5 % (x_y)\tzqxjk!"
# The script of the process, in which an import of `hf_encoders` fails.
LOAD = """
import json, sys
sys.modules["hf_encoders"] = None
import torch, transformers
from safetensors.torch import load_file, save_file
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
threads, text, loads = json.load(open("request", encoding="utf-8"))
torch.set_num_threads(threads)
results = []
for number, (directory, auto_class, arguments, trust, has_tokenizer) in enumerate(loads):
    try:
        model, keys = getattr(transformers, auto_class).from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True, trust_remote_code=trust, **arguments
        )
        with torch.no_grad():
            outputs = model.eval()(**load_file(f"batch-{number}"))
        tokens = None
        if has_tokenizer:
            tokenizer = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=trust)
            tokens = tokenizer(text)["input_ids"]
    except Exception as error:
        results.append([f"{type(error).__name__}: {error}"])
        continue
    outputs = {name: value.contiguous() for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    save_file(outputs, f"outputs-{number}")
    results.append(["", type(model).__name__, sorted(keys["missing_keys"]), tokens])
json.dump(results, open("answer", "w", encoding="utf-8"))
"""


class Difference(NamedTuple):
    """Hold the largest absolute difference of two models' outputs, and the largest absolute output, at least 1."""

    largest: float
    scale: float

    @property
    def is_rounding(self) -> bool:
        """Return whether the largest difference is at most `FP32_TOLERANCE` times the scale; False for NaN."""
        return self.largest <= FP32_TOLERANCE * self.scale


def probe_batch(model: PreTrainedModel, auto_class: str, lengths: tuple[int, ...] = (13, 5, 8)) -> Tensors:
    """Make padded rows of random ids: `input_ids`, `attention_mask`, and two halves by `token_type_ids` and the like.

    Lengths are cut to the model's longest row, or to `DEFAULT_LENGTH` where there is none. Padding is on the side of
    the family's tokenizer, since transformers' XLNet summarises the last column. For multiple choice, the rows are the
    choices of one example, `(1, rows, T)`.
    """
    config, longest = model.config, model.base_model.longest_row()
    real = torch.tensor(lengths).clamp(max=longest if longest < UNLIMITED else DEFAULT_LENGTH)
    shape, padding = (len(real), int(real.max())), config.pad_token_id or 0
    ids = torch.randint(config.vocab_size - 1, shape, generator=torch.Generator().manual_seed(0))
    columns = torch.arange(shape[1]).expand(shape)
    if getattr(transformers, config.TOKENIZER_CLASS).padding_side == "left":
        columns = columns - (shape[1] - real[:, None])
    mask = ((columns >= 0) & (columns < real[:, None])).long()
    batch = {"input_ids": (ids + (ids >= padding)).where(mask == 1, padding), "attention_mask": mask}
    second_half = (columns >= real[:, None] // 2).long() * mask
    batch |= {name: second_half for name, size in config.extra_ids.items() if size > 1}
    return {name: value[None] for name, value in batch.items()} if auto_class == CHOICES else batch


def outputs_of(model: PreTrainedModel, batch: Tensors) -> Tensors:
    """Return the tensors that a model computes, by field, in float32 on the CPU."""
    with torch.no_grad():
        outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
    return {name: value.float().cpu() for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def difference(outputs: Tensors, expected: Tensors, attention_mask: torch.Tensor) -> Difference:
    """Compare outputs at real tokens; at padding they have no meaning. ValueError if names or shapes differ."""
    shapes = [{name: tuple(value.shape) for name, value in tensors.items()} for tensors in (outputs, expected)]
    if shapes[0] != shapes[1] or not expected:
        raise ValueError(f"the outputs are {shapes[0]}, but should be {shapes[1]}.")
    largest, scale = torch.tensor(0.0), torch.tensor(1.0)
    for name, value in expected.items():
        # As many classes as there are columns look like tokens; the longest row has all of them.
        real = attention_mask.bool() if value.shape[:2] == attention_mask.shape else ...
        largest = torch.maximum(largest, (outputs[name] - value)[real].abs().max())  # NaN stays
        scale = torch.maximum(scale, value[real].abs().max())
    return Difference(largest.item(), scale.item())


class Load(NamedTuple):
    """Describe how to load a directory (a way of `WAYS`), its inputs, and outputs and ids of `PROBED_TEXT` to expect.

    The ids are None for a folder without a tokenizer; `arguments` are further ones of `from_pretrained`.
    """

    directory: Path
    way: str
    auto_class: str
    batch: Tensors
    expected: Tensors = {}
    tokens: list[int] | None = None
    arguments: dict[str, bool] = {}


class Loaded(NamedTuple):
    """Hold the result of a load: error (or empty), class, missing parameters, ids of `PROBED_TEXT`, and outputs."""

    error: str
    class_name: str = ""
    missing: list[str] = []
    tokens: list[int] | None = None
    outputs: Tensors = {}

    def problem(self, load: Load) -> str:
        """Return how this is not what is expected; empty if it is."""
        if self.error:
            return self.error
        if self.missing:
            return f"parameters are not in the weights: {', '.join(self.missing)}"
        if self.tokens != load.tokens:
            return f"its tokenizer gives the ids {self.tokens} for {PROBED_TEXT!r}, not {load.tokens}"
        measured = difference(self.outputs, load.expected, load.batch["attention_mask"])
        if not measured.is_rounding:
            return f"outputs differ by up to {measured.largest:.2g}, of at most {measured.scale:.2g}"
        return ""


def loads_of(directory: Path, model: PreTrainedModel, head: str) -> list[Load]:
    """Return the loads that a directory with this model must pass, with the same random tokens for each."""
    batch = probe_batch(model, head)
    has_tokenizer = (directory / "tokenizer_config.json").exists()
    tokens = load_tokenizer(directory)(PROBED_TEXT)["input_ids"] if has_tokenizer else None
    expected, arguments = outputs_of(model, batch), pooler_arguments(model, head)
    ways = ["remote", "plain"] if is_native_model(model) else ["remote"]
    return [Load(directory, way, head, batch, expected, tokens, arguments) for way in ways]


def load_elsewhere(loads: list[Load]) -> list[Loaded]:
    """Do all loads in a fresh process, offline and without this package, in which code of the directories runs.

    It gets no tokens, of variables or of the file of `hf auth login`, and imports nothing from the current directory.
    """
    if not loads:
        return []
    with tempfile.TemporaryDirectory() as name:
        folder, requests = Path(name), []
        for number, load in enumerate(loads):
            save_file({name: value.contiguous() for name, value in load.batch.items()}, folder / f"batch-{number}")
            trust, has_tokenizer = load.way == "remote", load.tokens is not None
            requests.append((str(load.directory.absolute()), load.auto_class, load.arguments, trust, has_tokenizer))
        (folder / "request").write_text(json.dumps([torch.get_num_threads(), PROBED_TEXT, requests]), encoding="utf-8")
        child = subprocess.run(
            [sys.executable, "-P", "-c", LOAD],
            env=environment_without_secrets(name),
            cwd=name,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode != 0:
            raise RuntimeError(f"a process to load {loads[0].directory} failed:\n{child.stderr}")
        results = [Loaded(*result) for result in json.loads((folder / "answer").read_text(encoding="utf-8"))]
        return [
            loaded if loaded.error else loaded._replace(outputs=load_file(folder / f"outputs-{number}"))
            for number, loaded in enumerate(results)
        ]


def environment_without_secrets(home: str) -> dict[str, str]:
    """Return the environment of a process that loads a directory: no tokens, its homes and caches in an empty folder.

    The cache of modules is there too: a cached earlier version of the code must not be loaded.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(KEPT_VARIABLES) and not is_secret(name, value) and without_tokens(value) == value
    }
    return kept | {
        "HOME": home,
        "USERPROFILE": home,
        "HF_HOME": str(Path(home, "hf")),
        "HF_MODULES_CACHE": str(Path(home, "modules")),
        "HF_TOKEN_PATH": str(Path(home, "no-token")),
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUSERBASE": site.getuserbase(),  # packages installed by `pip install --user` are in the real home
    }


def verify_loading(directory: Path, model: PreTrainedModel) -> None:
    """Load a directory in a fresh process and print the differences of outputs; RuntimeError for others."""
    loads = loads_of(directory, model.eval(), saved_head(read_config(directory)))
    for load, loaded in zip(loads, load_elsewhere(loads), strict=True):
        if problem := loaded.problem(load):
            raise RuntimeError(f"{directory}, loaded {WAYS[load.way]}: {problem}.")
        largest = difference(loaded.outputs, load.expected, load.batch["attention_mask"]).largest
        print(f"  {WAYS[load.way]}: {loaded.class_name}, largest difference of logits {largest:.1e}")
