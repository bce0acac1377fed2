"""Compare the outputs of models, also of saved directories in a process that cannot import this package."""

import json
import os
import site
import subprocess
import sys
import tempfile
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from hf_encoders.loading import read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.files import foreign_code, load_source, pooler_arguments, saved_head
from hf_encoders.publishing.secrets import is_secret, without_tokens
from hf_encoders.tokenizer_loading import load_tokenizer


Tensors = dict[str, torch.Tensor]
# fp32 rounds to 6e-8; sums in another order over a dozen layers differ by up to 1e-5 of the largest output, a wrong
# weight or layer by 1e-2 and more.
FP32_TOLERANCE = 1e-4
CHOICES = "AutoModelForMultipleChoice"
# Outputs of shape `(B, T)`. Other two-dimensional outputs are of whole rows.
ANSWERS = ("start_logits", "end_logits")
UNLIMITED, LONG_ROW = 2**20, 512  # a longest row that means none, and one that is long enough to probe with
WAYS = {
    "package": "with hf_encoders",
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
import json, os, sys
request_file, answer, tensors = sys.argv[1:]
request = json.load(open(request_file, encoding="utf-8"))
sys.modules["hf_encoders"] = None
import torch, transformers
from safetensors.torch import load_file, save_file
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(request["threads"])
results, outputs = [], {}
for number, load in enumerate(request["loads"]):
    arguments = load["arguments"] | ({"trust_remote_code": True} if load["way"] == "remote" else {})
    try:
        model, keys = getattr(transformers, load["auto_class"]).from_pretrained(
            load["directory"], dtype=torch.float32, output_loading_info=True, **arguments
        )
        with torch.no_grad():
            computed = model.eval()(**load_file(load["batch"]))
        tokens = None
        if os.path.exists(os.path.join(load["directory"], "tokenizer_config.json")):
            trust = {"trust_remote_code": load["way"] == "remote"}
            tokenizer = transformers.AutoTokenizer.from_pretrained(load["directory"], **trust)
            tokens = tokenizer(request["text"])["input_ids"]
    except Exception as error:
        results.append([f"{type(error).__name__}: {error}", "", [], None])
        continue
    results.append(["", type(model).__name__, sorted(keys["missing_keys"]), tokens])
    for name, value in computed.items():
        if isinstance(value, torch.Tensor):
            outputs[f"{number}/{name}"] = value.contiguous()
save_file(outputs, tensors)
json.dump(results, open(answer, "w", encoding="utf-8"))
"""


class Difference(NamedTuple):
    """Measure how the outputs of two models differ at real tokens.

    Attributes:
        largest (`float`): Largest absolute difference.
        scale (`float`): Largest absolute output, at least 1.
        of_rms (`float`): Root mean square of the differences over that of the outputs.
    """

    largest: float
    scale: float
    of_rms: float

    @property
    def is_rounding(self) -> bool:
        """Whether the largest difference is at most `FP32_TOLERANCE` times the scale; False for NaN."""
        return self.largest <= FP32_TOLERANCE * self.scale


def probe_batch(
    config: EncoderConfig, auto_class: str, longest_row: int, lengths: tuple[int, ...] = (13, 5, 8)
) -> Tensors:
    """Make padded rows of random ids: `input_ids`, `attention_mask`, and two halves by `token_type_ids` and the like.

    Lengths are cut to `longest_row`, or `LONG_ROW` where there is no longest. Padding is on the side where the
    family's tokenizer puts it, since transformers' XLNet summarises the last column. For multiple choice, the rows are
    the choices of one example, `(1, rows, T)`.
    """
    generator = torch.Generator().manual_seed(0)
    real = torch.tensor(lengths).clamp(max=longest_row if longest_row < UNLIMITED else LONG_ROW)
    shape = (len(real), int(real.max()))
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    if config.pad_token_id is not None and config.vocab_size > 1:
        ids = torch.where(ids == config.pad_token_id, (config.pad_token_id + 1) % config.vocab_size, ids)
    columns = torch.arange(shape[1]).expand(shape)
    if getattr(transformers, config.TOKENIZER_CLASS).padding_side == "left":
        columns = columns - (shape[1] - real[:, None])
    mask = ((columns >= 0) & (columns < real[:, None])).long()
    padding = 0 if config.pad_token_id is None else config.pad_token_id
    batch = {"input_ids": ids.masked_fill(mask == 0, padding), "attention_mask": mask}
    second_half = columns >= real[:, None] // 2
    for name, size in config.extra_ids.items():
        if size > 1:
            batch[name] = (second_half & (mask == 1)).long()
    return {name: value[None] for name, value in batch.items()} if auto_class == CHOICES else batch


def outputs_of(model: PreTrainedModel, batch: Tensors) -> Tensors:
    """Return the tensors that a model computes, by field, in float32 on the CPU."""
    with torch.no_grad():
        outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
    return {name: value.float().cpu() for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def difference(outputs: Tensors, expected: Tensors, attention_mask: torch.Tensor) -> Difference:
    """Compare outputs at real tokens.

    Raises:
        ValueError: If names or shapes differ.
    """
    shapes = [{name: tuple(value.shape) for name, value in tensors.items()} for tensors in (outputs, expected)]
    if shapes[0] != shapes[1] or not expected:
        raise ValueError(f"the outputs are {shapes[0]}, but should be {shapes[1]}.")
    is_real = attention_mask.bool()
    values, differences = [], []
    for name, value in expected.items():
        pair = (value, outputs[name])
        # A discriminator has one score per token: at padding all are zero here, and none in transformers. A classifier
        # may have as many scores as there are tokens.
        at_padding = [tensor[~is_real] for tensor in pair] if value.shape == is_real.shape else []
        is_of_tokens = any(not first.any() and second.all() for first, second in permutations(at_padding, 2))
        if value.shape[:2] == is_real.shape and (value.ndim > 2 or name in ANSWERS or is_of_tokens):
            pair = (value[is_real], outputs[name][is_real])
        values.append(pair[0].flatten())
        differences.append((pair[1] - pair[0]).flatten())
    all_values, all_differences = torch.cat(values), torch.cat(differences)
    rms = all_values.square().mean().sqrt().item()
    return Difference(
        largest=all_differences.abs().max().item(),
        scale=max(1.0, all_values.abs().max().item()),
        of_rms=all_differences.square().mean().sqrt().item() / max(rms, 1e-30),
    )


class Load(NamedTuple):
    """Name a directory, a way of `WAYS`, the Auto class, the inputs and further arguments of `from_pretrained`."""

    directory: Path
    way: str
    auto_class: str
    batch: Tensors
    arguments: dict[str, bool] = {}


class Loaded(NamedTuple):
    """Hold the result of a load: error (or empty), class, missing parameters, ids of `PROBED_TEXT`, and outputs.

    The ids are None for a folder without a tokenizer; the outputs are in float32.
    """

    error: str
    class_name: str = ""
    missing: list[str] = []
    tokens: list[int] | None = None
    outputs: Tensors = {}


def load_elsewhere(loads: list[Load], trust_remote_code: bool = False) -> list[Loaded]:
    """Do all loads in a fresh process, offline and without this package.

    The process gets no tokens, neither from variables nor from the file of `hf auth login`, and imports nothing from
    the current directory. Code that is not identical to this package's runs with `trust_remote_code` only; otherwise
    the load has an error, as where its tokenizer gives other ids than the one that is loaded here.

    Raises:
        RuntimeError: If the process cannot start.
    """
    refused, allowed = {}, []
    for number, load in enumerate(loads):
        if load.way == "remote" and not trust_remote_code and (foreign := ", ".join(foreign_code(load.directory))):
            reason = "is not this package's own code and was not run (--trust-remote-code runs it)"
            refused[number] = Loaded(f"{foreign} {reason}")
        else:
            allowed.append(load)
    answers = iter(_ask(allowed) if allowed else [])
    results = [refused[number] if number in refused else next(answers) for number in range(len(loads))]
    for number, (load, loaded) in enumerate(zip(loads, results, strict=True)):
        if not loaded.error and loaded.tokens is not None:
            expected = load_tokenizer(load.directory)(PROBED_TEXT)["input_ids"]
            if loaded.tokens != expected:
                error = f"its tokenizer gives the ids {loaded.tokens} for {PROBED_TEXT!r}, not {expected}"
                results[number] = loaded._replace(error=error)
    return results


def _ask(loads: list[Load]) -> list[Loaded]:
    with tempfile.TemporaryDirectory() as folder:
        request_file, answer, tensors = (str(Path(folder, name)) for name in ("request", "answer", "tensors"))
        requests = []
        for number, load in enumerate(loads):
            batch = str(Path(folder, f"batch-{number}"))
            save_file({name: value.contiguous() for name, value in load.batch.items()}, batch)
            requests.append({**load._asdict(), "directory": str(Path(load.directory).absolute()), "batch": batch})
        request = {"threads": torch.get_num_threads(), "text": PROBED_TEXT, "loads": requests}
        Path(request_file).write_text(json.dumps(request), encoding="utf-8")
        child = subprocess.run(
            [sys.executable, "-P", "-c", LOAD, request_file, answer, tensors],
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
        outputs: list[Tensors] = [{} for _ in results]
        for name, value in load_file(tensors).items():
            number, _, field = name.partition("/")
            outputs[int(number)][field] = value
    return [Loaded(*result, computed) for result, computed in zip(results, outputs, strict=True)]


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


def loads_of(directory: Path, model: PreTrainedModel, head: str) -> list[Load]:
    """Return the loads that a directory with this model must pass, with the same random tokens for each."""
    batch = probe_batch(model.config, head, model.base_model.longest_row())
    ways = ["remote", "plain"] if model.config.is_native else ["remote"]
    return [Load(directory, way, head, batch, pooler_arguments(model, head)) for way in ways]


def verify_loading(directory: Path, model: PreTrainedModel) -> None:
    """Load a directory here and in a fresh process, compare the outputs with a model's, and print the differences.

    Raises:
        RuntimeError: If a load fails or gives other outputs.
    """
    head = saved_head(read_config(directory))
    loads = loads_of(directory, model.eval(), head)
    batch = loads[0].batch
    expected, loaded_here = outputs_of(model, batch), load_source(directory, head)
    results = {"package": Loaded("", type(loaded_here).__name__, outputs=outputs_of(loaded_here, batch))}
    results |= {load.way: loaded for load, loaded in zip(loads, load_elsewhere(loads), strict=True)}
    for way, loaded in results.items():
        if problem := problem_of(loaded, expected, batch):
            raise RuntimeError(f"{directory}, loaded {WAYS[way]}: {problem}.")
        largest = difference(loaded.outputs, expected, batch["attention_mask"]).largest
        print(f"  {WAYS[way]}: {loaded.class_name}, largest difference of logits {largest:.1e}")


def problem_of(loaded: Loaded, expected: Tensors, batch: Tensors) -> str:
    """Return the problem of a load; empty if there is none."""
    if loaded.error:
        return loaded.error
    if loaded.missing:
        return f"parameters are not in the weights: {', '.join(loaded.missing)}"
    measured = difference(loaded.outputs, expected, batch["attention_mask"])
    if not measured.is_rounding:
        return f"outputs differ by up to {measured.largest:.2g}, of at most {measured.scale:.2g}"
    return ""
