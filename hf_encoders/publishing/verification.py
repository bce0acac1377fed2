"""Loads saved directories in a process that cannot import this package, and compares the outputs."""

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

from hf_encoders.loading import load_tokenizer, read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.files import foreign_code, load_source, pooler_arguments, saved_head
from hf_encoders.publishing.secrets import is_secret, without_tokens


# fp32 rounds to 6e-8; sums in another order over a dozen layers differ by up to 1e-5 of the largest output, a wrong
# weight or layer by 1e-2 and more.
FP32_TOLERANCE = 1e-4
CHOICES = "AutoModelForMultipleChoice"
# Outputs of shape `(B, T)`. Other two-dimensional outputs are of whole rows.
ANSWERS = ("start_logits", "end_logits")
# From this longest row on there is none, and a row is long enough to probe with.
UNLIMITED, LONG_ROW = 2**20, 512


class Difference(NamedTuple):
    """Difference between the outputs of two models at real tokens.

    Attributes:
        largest (`float`): Largest absolute difference.
        scale (`float`): Largest absolute output, at least 1.
        of_rms (`float`): Root mean square of the differences over that of the outputs.
    """

    largest: float
    scale: float
    of_rms: float

    def is_within(self, tolerance: float) -> bool:
        """Whether the largest difference is at most `tolerance` times the scale; False for NaN."""
        return self.largest <= tolerance * self.scale


def probe_batch(
    config: EncoderConfig, auto_class: str, longest_row: int, lengths: tuple[int, ...] = (13, 5, 8)
) -> dict[str, torch.Tensor]:
    """Padded rows of random ids: `input_ids`, `attention_mask`, and the two halves by `token_type_ids` and the like.

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
    if auto_class == CHOICES:
        return {name: value[None] for name, value in batch.items()}
    return batch


def outputs_of(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that a model returns, by field, in float32 on the CPU."""
    with torch.no_grad():
        outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
    return {name: value.float().cpu() for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def difference(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], attention_mask: torch.Tensor
) -> Difference:
    """Compare outputs at real tokens.

    Raises:
        ValueError: If names or shapes differ.
    """
    shapes = [{name: tuple(value.shape) for name, value in outputs.items()} for outputs in (found, expected)]
    if shapes[0] != shapes[1] or not expected:
        raise ValueError(f"the outputs are {shapes[0]}, but should be {shapes[1]}.")
    is_real = attention_mask.bool()
    values, differences = [], []
    for name, value in expected.items():
        pair = (value, found[name])
        # A discriminator has one score per token: at padding all are zero here, and none in transformers. A classifier
        # may have as many scores as there are tokens.
        at_padding = [one[~is_real] for one in pair] if value.shape == is_real.shape else []
        is_of_tokens = any(not one.any() and other.all() for one, other in permutations(at_padding, 2))
        if value.shape[:2] == is_real.shape and (value.ndim > 2 or name in ANSWERS or is_of_tokens):
            pair = (value[is_real], found[name][is_real])
        values.append(pair[0].flatten())
        differences.append((pair[1] - pair[0]).flatten())
    all_values, all_differences = torch.cat(values), torch.cat(differences)
    rms = all_values.square().mean().sqrt().item()
    return Difference(
        largest=all_differences.abs().max().item(),
        scale=max(1.0, all_values.abs().max().item()),
        of_rms=all_differences.square().mean().sqrt().item() / max(rms, 1e-30),
    )


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
given, answer, tensors = sys.argv[1:]
request = json.load(open(given, encoding="utf-8"))
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
        model, found = getattr(transformers, load["auto_class"]).from_pretrained(
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
    results.append(["", type(model).__name__, sorted(found["missing_keys"]), tokens])
    for name, value in computed.items():
        if isinstance(value, torch.Tensor):
            outputs[f"{number}/{name}"] = value.contiguous()
save_file(outputs, tensors)
json.dump(results, open(answer, "w", encoding="utf-8"))
"""


class Load(NamedTuple):
    """A directory, a way of `WAYS`, the Auto class, the inputs and further arguments of `from_pretrained`."""

    directory: Path
    way: str
    auto_class: str
    batch: dict[str, torch.Tensor]
    arguments: dict[str, bool] = {}


class Loaded(NamedTuple):
    """A load: error (empty if none), and what was loaded.

    Attributes:
        class_name (`str`): Of the model.
        missing (`list[str]`): Parameters not in the weights.
        tokens (`list[int]`, *optional*): Ids of `PROBED_TEXT`; None for a folder without a tokenizer.
        outputs (`dict`): In float32 by field.
    """

    error: str
    class_name: str = ""
    missing: list[str] = []
    tokens: list[int] | None = None
    outputs: dict[str, torch.Tensor] = {}


def load_elsewhere(loads: list[Load], trust_remote_code: bool = False) -> list[Loaded]:
    """Do all loads in a fresh process, offline and without this package.

    The process gets no tokens, neither from variables nor from the file of `hf auth login`, and imports nothing from
    the current directory. Code that is not identical to this package's runs with `trust_remote_code` only; otherwise
    the load has an error.

    Raises:
        RuntimeError: If the process cannot start.
    """
    errors = []
    for load in loads:
        foreign = ", ".join(foreign_code(load.directory)) if load.way == "remote" and not trust_remote_code else ""
        refusal = f"{foreign} is not this package's own code and was not run (--trust-remote-code runs it)"
        errors.append(refusal if foreign else "")
    allowed = [load for load, error in zip(loads, errors, strict=True) if not error]
    answers = iter(_ask(allowed) if allowed else [])
    return [
        Loaded(error) if error else _with_tokens_compared(next(answers), load.directory)
        for load, error in zip(loads, errors, strict=True)
    ]


def _with_tokens_compared(loaded: Loaded, directory: Path) -> Loaded:
    """A load, with an error if its tokenizer gives other ids than the one that is loaded here."""
    if loaded.error or loaded.tokens is None:
        return loaded
    expected = load_tokenizer(directory)(PROBED_TEXT)["input_ids"]
    if loaded.tokens == expected:
        return loaded
    return loaded._replace(error=f"its tokenizer gives the ids {loaded.tokens} for {PROBED_TEXT!r}, not {expected}")


def _ask(loads: list[Load]) -> list[Loaded]:
    with tempfile.TemporaryDirectory() as folder:
        given, answer, tensors = (str(Path(folder, name)) for name in ("given", "answer", "tensors"))
        requests = []
        for number, load in enumerate(loads):
            batch = str(Path(folder, f"batch-{number}"))
            save_file({name: value.contiguous() for name, value in load.batch.items()}, batch)
            requests.append({**load._asdict(), "directory": str(Path(load.directory).absolute()), "batch": batch})
        request = {"threads": torch.get_num_threads(), "text": PROBED_TEXT, "loads": requests}
        Path(given).write_text(json.dumps(request), encoding="utf-8")
        child = subprocess.run(
            [sys.executable, "-P", "-c", LOAD, given, answer, tensors],
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
    fields: list[dict[str, torch.Tensor]] = [{} for _ in results]
    for name, value in outputs.items():
        number, _, field = name.partition("/")
        fields[int(number)][field] = value
    return [Loaded(*result, found) for result, found in zip(results, fields, strict=True)]


def environment_without_secrets(home: str) -> dict[str, str]:
    """Environment of a process that loads a directory: no tokens, and its own homes and caches in an empty folder.

    The cache of modules is there too: a cached earlier version of the code must not be loaded.
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
        # Packages installed by `pip install --user` are in the real home.
        "PYTHONUSERBASE": site.getuserbase(),
    }
    return kept | own


def loads_of(directory: Path, model: PreTrainedModel, head: str) -> list[Load]:
    """The loads that a directory with this model must pass, with the same random tokens for each."""
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
    expected = outputs_of(model, batch)
    own = load_source(directory, head)
    results = {"package": Loaded("", type(own).__name__, outputs=outputs_of(own, batch))}
    results |= {load.way: loaded for load, loaded in zip(loads, load_elsewhere(loads), strict=True)}
    for way, loaded in results.items():
        if problem := problem_of(loaded, expected, batch):
            raise RuntimeError(f"{directory}, loaded {WAYS[way]}: {problem}.")
        largest = difference(loaded.outputs, expected, batch["attention_mask"]).largest
        print(f"  {WAYS[way]}: {loaded.class_name}, largest difference of logits {largest:.1e}")


def problem_of(loaded: Loaded, expected: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> str:
    """The problem of a load; empty if there is none."""
    if loaded.error:
        return loaded.error
    if loaded.missing:
        return f"parameters are not in the weights: {', '.join(loaded.missing)}"
    seen = difference(loaded.outputs, expected, batch["attention_mask"])
    if not seen.is_within(FP32_TOLERANCE):
        return f"outputs differ by up to {seen.largest:.2g}, of at most {seen.scale:.2g}"
    return ""
