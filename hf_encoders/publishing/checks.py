"""Checks of a saved directory before it is published: files, configuration, tokenizer, card, loading."""

import re
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from safetensors import SafetensorError, safe_open

from hf_encoders.errors import first_line
from hf_encoders.inputs import is_language_code
from hf_encoders.loading import load_tokenizer, read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.card import is_repo_id
from hf_encoders.publishing.files import (
    CARD_FILE,
    GENERATOR_FOLDER,
    RECORD_FILE,
    Finding,
    code_files,
    has_generator,
    leads_out,
    load_source,
    published_files,
    saved_head,
    tokenizer_code,
    weight_files,
    written_config,
)
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.publishing.verification import WAYS, load_elsewhere, loads_of, outputs_of, problem_of


LINKED_FILE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)")
LICENSE_ID = re.compile(r"[a-z0-9][a-z0-9.+-]*")


def check_directory(directory: str | Path, trust_remote_code: bool = False) -> list[Finding]:
    """Run all checks except those of the card, which publishing writes; errors come first.

    The model is loaded in another process only if there are no errors in the files.
    """
    directories = [Path(directory)]
    found = check_files(directories[0])
    if has_generator(directories[0]):
        directories.append(directories[0] / GENERATOR_FOLDER)
        # It shares the tokenizer of the folder that it is in.
        found += [
            Finding(one.is_error, f"{GENERATOR_FOLDER}: {one.text}")
            for one in check_files(directories[1], directories[0])
        ]
    if not any(finding.is_error for finding in found):
        found += check_loading(directories, trust_remote_code)
    return sorted(found, key=lambda finding: not finding.is_error)


def check_files(directory: Path, tokenizer: Path | None = None) -> list[Finding]:
    """Check weights, configuration, code and tokenizer, that of the directory unless another is given."""
    if not directory.is_dir():
        return [_error(f"{directory} is not a folder: give one written by save_pretrained.")]
    try:
        config = read_config(directory)
        saved_head(config)
        code_files(directory, written_config(directory))  # raises for invalid references
    except ValueError as error:
        return [_error(str(error))]
    try:
        links = [name for name in sorted(published_files(directory)) if leads_out(directory, name)]
        if links:
            return [_error(f"{', '.join(links)}: links out of {directory}: put the files themselves there.")]
        found = check_weights(directory)
        if code := ", ".join(tokenizer_code(directory)):
            found.append(_error(f"auto_map names code of a tokenizer, which needs none, in {code}: remove it there."))
    except ValueError as error:
        found = [_error(str(error))]
    return [*found, *check_code(directory, config), *check_tokenizer(tokenizer or directory, config)]


def check_weights(directory: Path) -> list[Finding]:
    """Check that all weights are there, are readable safetensors, and are finite."""
    found = []
    for name in weight_files(directory):
        try:
            with safe_open(directory / name, framework="pt") as file:
                broken = [key for key in file.keys() if not _is_finite(file.get_tensor(key))]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            found.append(_error(f"{name} cannot be read as safetensors ({first_line(error)}): save the model again."))
            continue
        if broken:
            names = ", ".join(broken[:3]) + " ..." * (len(broken) > 3)
            found.append(_error(f"{name} has NaN or infinite numbers in {names}: save an earlier checkpoint."))
    return found


def _is_finite(value: torch.Tensor) -> bool:
    # `isfinite` is not implemented for 8-bit types.
    return bool((value.float() if value.element_size() == 1 else value).isfinite().all())


def check_code(directory: Path, config: EncoderConfig) -> list[Finding]:
    """Check that `auto_map` in config.json names every class of the family, and that their code is there."""
    written = written_config(directory)
    auto_map = written.get("auto_map") or {}
    absent = sorted(name for name, code in type(config).AUTO_MAP.items() if auto_map.get(name) != code)
    remedy = "load it with hf_encoders and call save_pretrained again."
    if absent:
        return [_error(f"config.json: auto_map does not name this package's class for {', '.join(absent)}: {remedy}")]
    missing = [name for name in code_files(directory, written) if not (directory / name).exists()]
    if missing:
        return [_error(f"{', '.join(missing)}: code that config.json names is not in the directory: {remedy}")]
    return []


def check_tokenizer(directory: Path, config: EncoderConfig) -> list[Finding]:
    """Check that the tokenizer loads and that the model has an embedding for each of its ids."""
    try:
        tokenizer = load_tokenizer(directory, config=config)
    except ValueError as error:
        return [_error(str(error))]
    found = []
    largest = max(tokenizer.get_vocab().values())
    if largest >= config.vocab_size:
        found.append(
            _error(
                f"the tokenizer has id {largest}, but vocab_size={config.vocab_size}: save the model's own tokenizer, "
                f"or call model.resize_token_embeddings({largest + 1}) and train on."
            )
        )
    if tokenizer.pad_token_id != config.pad_token_id:
        found.append(
            _warning(
                f"the tokenizer pads with id {tokenizer.pad_token_id}, but pad_token_id={config.pad_token_id}: set it "
                "in the configuration, if this is the model's own tokenizer."
            )
        )
    return found


def check_card(text: str, record: TrainingRecord, files: list[str]) -> list[Finding]:
    """Check a card's metadata, and that its pictures are in `files`; list facts that were not recorded."""
    try:
        ModelCard(text, ignore_metadata_errors=True)
        # `ModelCard` drops a model-index that it cannot read.
        block = REGEX_YAML_BLOCK.search(text)
        metadata = (yaml.safe_load(block.group(2)) if block else None) or {}
    except Exception as error:  # PyYAML's, through huggingface_hub
        return [_error(f"{CARD_FILE} has no readable metadata ({first_line(error)}): correct the YAML between ---.")]
    found = [_error(f"{CARD_FILE}: {problem}") for problem in metadata_problems(metadata)]
    if not metadata.get("license"):
        found.append(_warning("no licence is stated, so nobody may use the model: give --license."))
    for link in sorted(shown_files(text) - set(files)):
        remedy = "copy the picture into the directory, or remove it from the card"
        found.append(_error(f"{CARD_FILE} shows {link}, which is not published with it: {remedy}."))
    if missing := record.missing_facts():
        found.append(_warning(f'the card says "not recorded" of {", ".join(missing)}: add them to {RECORD_FILE}.'))
    return found


def metadata_problems(metadata: dict[str, Any]) -> list[str]:
    """Values in a card's metadata that the Hub certainly refuses; it validates all of them before a commit."""

    def values(name: str) -> list[Any]:
        value = metadata.get(name) or []
        return value if isinstance(value, list) else [value]

    problems = [
        f"license {name!r} is not an identifier of the Hub: use one such as 'apache-2.0', or 'other' and license_name."
        for name in values("license")
        if not LICENSE_ID.fullmatch(str(name))
    ]
    if metadata.get("license") == "other" and not metadata.get("license_name"):
        problems.append("license 'other' needs license_name: add it, and the text as a LICENSE file.")
    problems += [
        f"language {code!r} is not an ISO 639 code: use one in lower case such as 'en', or 'multilingual'."
        for code in values("language")
        if code not in ("multilingual", "code") and not is_language_code(str(code))
    ]
    for name in ("datasets", "base_model"):
        problems += [
            f"{name} has {value!r}, which is not a name on the Hub: use 'owner/name', or leave it out."
            for value in values(name)
            if not is_repo_id(value)
        ]
    return problems


def shown_files(card: str) -> set[str]:
    """Names of the pictures on a card, except remote ones.

    >>> sorted(shown_files("![a](loss_curve.png) ![b](https://host/b.png) ![](data:image/png;base64,A) ![c](d/e.png)"))
    ['d/e.png', 'loss_curve.png']
    """
    return {link for link in LINKED_FILE.findall(card) if "://" not in link and not link.startswith("data:")}


def check_loading(directories: list[Path], trust_remote_code: bool = False) -> list[Finding]:
    """Check that each directory loads in a process without this package and gives the same outputs as here.

    It is loaded with `trust_remote_code=True` and, if the configuration is native, by plain transformers. Outputs may
    differ by `FP32_TOLERANCE` of the largest. See `load_elsewhere` for `trust_remote_code`.
    """
    found, loads, expected = [], [], []
    for directory in directories:
        head = saved_head(read_config(directory))
        try:
            model = load_source(directory, head)
        except (ValueError, OSError, RuntimeError) as error:
            found.append(_error(f"{directory} does not load: {error}"))
            continue
        loads += (ways := loads_of(directory, model, head))
        expected += [outputs_of(model, ways[0].batch)] * len(ways)
        if ways[0].arguments:
            found.append(
                _warning(
                    f"{directory} has no pooler: load it with add_pooling_layer=False, as the card says, or "
                    "pooler_output comes from randomly initialised weights."
                )
            )
    for load, loaded, outputs in zip(loads, load_elsewhere(loads, trust_remote_code), expected, strict=True):
        if problem := problem_of(loaded, outputs, load.batch):
            remedy = (
                "load the model with hf_encoders and call save_pretrained again, or, for the tokenizer, "
                "hf_encoders.publishing.files.save_tokenizer(hf_encoders.loading.load_tokenizer(folder), folder)"
            )
            found.append(_error(f"{load.directory}, loaded {WAYS[load.way]}: {problem}: {remedy}."))
    return found


def _error(text: str) -> Finding:
    return Finding(True, text)


def _warning(text: str) -> Finding:
    return Finding(False, text)
