"""Check a saved directory before it is published: files, configuration, tokenizer, card, loading."""

import re
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from safetensors import SafetensorError, safe_open

from hf_encoders.inputs import first_line, is_language_code
from hf_encoders.loading import read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.card import is_repo_id
from hf_encoders.publishing.files import (
    CARD_FILE,
    RECORD_FILE,
    Finding,
    code_files,
    leads_out,
    load_source,
    published_files,
    saved_head,
    submodels,
    tokenizer_code,
    weight_files,
    written_config,
)
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.publishing.verification import WAYS, load_elsewhere, loads_of, outputs_of, problem_of
from hf_encoders.tokenizer_loading import load_tokenizer


PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)")
LICENSE_ID = re.compile(r"[a-z0-9][a-z0-9.+-]*")
RESAVE = "load it with hf_encoders and call save_pretrained again"


def check_directory(directory: str | Path, trust_remote_code: bool = False) -> list[Finding]:
    """Run all checks except those of the card, which publishing writes; errors come first.

    The model is loaded in another process only if there are no errors in the files.
    """
    directories = [Path(directory)]
    findings = check_files(directories[0])
    for folder in submodels(directories[0]):
        directories.append(directories[0] / folder)
        # It shares the tokenizer of the folder that it is in.
        for finding in check_files(directories[-1], directories[0]):
            findings.append(finding._replace(text=f"{folder}: {finding.text}"))
    if not any(finding.is_error for finding in findings):
        findings += check_loading(directories, trust_remote_code)
    return sorted(findings, key=lambda finding: not finding.is_error)


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
        findings = check_weights(directory)
        if code := ", ".join(tokenizer_code(directory)):
            findings.append(
                _error(f"auto_map names code of a tokenizer, which needs none, in {code}: remove it there.")
            )
    except ValueError as error:
        findings = [_error(str(error))]
    return [*findings, *check_code(directory, config), *check_tokenizer(tokenizer or directory, config)]


def check_weights(directory: Path) -> list[Finding]:
    """Check that all weights are there, are readable safetensors, and are finite."""
    findings = []
    for name in weight_files(directory):
        try:
            with safe_open(directory / name, framework="pt") as file:
                broken = [key for key in file.keys() if not _is_finite(file.get_tensor(key))]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            findings.append(
                _error(f"{name} cannot be read as safetensors ({first_line(error)}): save the model again.")
            )
            continue
        if broken:
            names = ", ".join(broken[:3]) + " ..." * (len(broken) > 3)
            findings.append(_error(f"{name} has NaN or infinite numbers in {names}: save an earlier checkpoint."))
    return findings


def _is_finite(value: torch.Tensor) -> bool:
    # `isfinite` is not implemented for 8-bit types.
    return bool((value.float() if value.element_size() == 1 else value).isfinite().all())


def check_code(directory: Path, config: EncoderConfig) -> list[Finding]:
    """Check that `auto_map` in config.json names every class of the family, and that their code is there."""
    written = written_config(directory)
    auto_map = written.get("auto_map") or {}
    absent = sorted(name for name, code in type(config).AUTO_MAP.items() if auto_map.get(name) != code)
    if absent:
        return [_error(f"config.json: auto_map does not name this package's class for {', '.join(absent)}: {RESAVE}.")]
    missing = [name for name in code_files(directory, written) if not (directory / name).exists()]
    if missing:
        return [_error(f"{', '.join(missing)}: code that config.json names is not in the directory: {RESAVE}.")]
    return []


def check_tokenizer(directory: Path, config: EncoderConfig) -> list[Finding]:
    """Check that the tokenizer loads and that the model has an embedding for each of its ids."""
    try:
        tokenizer = load_tokenizer(directory, config=config)
    except ValueError as error:
        return [_error(str(error))]
    findings = []
    largest = max(tokenizer.get_vocab().values())
    if largest >= config.vocab_size:
        problem = f"the tokenizer has id {largest}, but vocab_size={config.vocab_size}"
        remedy = f"save the model's own tokenizer, or call model.resize_token_embeddings({largest + 1}) and train on"
        findings.append(_error(f"{problem}: {remedy}."))
    if tokenizer.pad_token_id != config.pad_token_id:
        problem = f"the tokenizer pads with id {tokenizer.pad_token_id}, but pad_token_id={config.pad_token_id}"
        findings.append(_warning(f"{problem}: set it in the configuration, if this is the model's own tokenizer."))
    return findings


def check_card(text: str, record: TrainingRecord, files: list[str]) -> list[Finding]:
    """Check a card's metadata, and that its pictures are in `files`; list facts that were not recorded."""
    try:
        ModelCard(text, ignore_metadata_errors=True)
        # `ModelCard` drops a model-index that it cannot read.
        block = REGEX_YAML_BLOCK.search(text)
        metadata = (yaml.safe_load(block.group(2)) if block else None) or {}
    except Exception as error:  # PyYAML's, through huggingface_hub
        return [_error(f"{CARD_FILE} has no readable metadata ({first_line(error)}): correct the YAML between ---.")]
    findings = [_error(f"{CARD_FILE}: {problem}") for problem in metadata_problems(metadata)]
    if not metadata.get("license"):
        findings.append(_warning("no licence is stated, so nobody may use the model: give --license."))
    for link in sorted(shown_files(text) - set(files)):
        remedy = "copy the picture into the directory, or remove it from the card"
        findings.append(_error(f"{CARD_FILE} shows {link}, which is not published with it: {remedy}."))
    if missing := record.missing_facts():
        findings.append(_warning(f'the card says "not recorded" of {", ".join(missing)}: add them to {RECORD_FILE}.'))
    return findings


def metadata_problems(metadata: dict[str, Any]) -> list[str]:
    """Return problems of a card's metadata for which the Hub certainly refuses the commit."""
    name_on_hub = "a name on the Hub: use 'owner/name', or leave it out"
    rules = {
        "license": (is_license, "an identifier of the Hub: use one such as 'apache-2.0', or 'other'"),
        "language": (is_language, "an ISO 639 code: use one in lower case such as 'en', or 'multilingual'"),
        "datasets": (is_repo_id, name_on_hub),
        "base_model": (is_repo_id, name_on_hub),
    }
    problems = []
    for field, (is_valid, remedy) in rules.items():
        values = metadata.get(field) or []
        for value in values if isinstance(values, list) else [values]:
            if not is_valid(value):
                problems.append(f"{field} {value!r} is not {remedy}.")
    if metadata.get("license") == "other" and not metadata.get("license_name"):
        problems.append("license 'other' needs license_name: add it, and the text as a LICENSE file.")
    return problems


def is_license(name: Any) -> bool:
    """Return whether a name has the form of the Hub's identifiers of licences."""
    return LICENSE_ID.fullmatch(str(name)) is not None


def is_language(code: Any) -> bool:
    """Return whether a code may be the language of a card."""
    return code in ("multilingual", "code") or is_language_code(str(code))


def shown_files(card: str) -> set[str]:
    """Return the names of the pictures on a card, except remote ones.

    >>> sorted(shown_files("![a](loss_curve.png) ![b](https://host/b.png) ![](data:image/png;base64,A) ![c](d/e.png)"))
    ['d/e.png', 'loss_curve.png']
    """
    return {link for link in PICTURE.findall(card) if "://" not in link and not link.startswith("data:")}


def check_loading(directories: list[Path], trust_remote_code: bool = False) -> list[Finding]:
    """Check that each directory loads in a process without this package and gives the same outputs as here.

    It is loaded with `trust_remote_code=True` and, if the configuration is native, by plain transformers. Outputs may
    differ by `FP32_TOLERANCE` of the largest. See `load_elsewhere` for `trust_remote_code`.
    """
    findings, loads, expected = [], [], []
    for directory in directories:
        head = saved_head(read_config(directory))
        try:
            model = load_source(directory, head)
        except (ValueError, OSError, RuntimeError) as error:
            findings.append(_error(f"{directory} does not load: {error}"))
            continue
        loads += (ways := loads_of(directory, model, head))
        expected += [outputs_of(model, ways[0].batch)] * len(ways)
        if ways[0].arguments:
            remedy = "load it with add_pooling_layer=False, as the card says, or pooler_output is random"
            findings.append(_warning(f"{directory} has no pooler: {remedy}."))
    for load, loaded, outputs in zip(loads, load_elsewhere(loads, trust_remote_code), expected, strict=True):
        if problem := problem_of(loaded, outputs, load.batch):
            tokenizer = "hf_encoders.publishing.files.save_tokenizer(hf_encoders.load_tokenizer(folder), folder)"
            remedy = f"{RESAVE}, or, for the tokenizer, {tokenizer}"
            findings.append(_error(f"{load.directory}, loaded {WAYS[load.way]}: {problem}: {remedy}."))
    return findings


def _error(text: str) -> Finding:
    return Finding(True, text)


def _warning(text: str) -> Finding:
    return Finding(False, text)
