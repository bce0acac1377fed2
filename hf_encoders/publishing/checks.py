"""What has to hold of a saved directory before it is published: files, configuration, tokenizer, card, loading.

Every check looks at the directory alone and says what to do. Only `check_loading` computes anything.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from safetensors import SafetensorError, safe_open

from hf_encoders.errors import first_line
from hf_encoders.loading import load_tokenizer, read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.card_metadata import metadata_problems
from hf_encoders.publishing.fresh_process import WAYS, Load, load_elsewhere, problem_of
from hf_encoders.publishing.model_card import missing_facts
from hf_encoders.publishing.probing import outputs_of, probe_batch
from hf_encoders.publishing.saved_model import load_source, pooler_arguments, saved_head
from hf_encoders.records.run_files import RECORD_FILE
from hf_encoders.records.training_record import TrainingRecord
from hf_encoders.saved_files import (
    CARD_FILE,
    code_files,
    foreign_code,
    leads_out,
    published_files,
    secrets_of_files,
    weight_files,
)


LINKED_FILE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)")


class Finding(NamedTuple):
    """Something a check has to say.

    Attributes:
        is_error (`bool`): whether it keeps the directory from being published; otherwise it is worth knowing.
        text (`str`): what is wrong, and what to do.
    """

    is_error: bool
    text: str

    def __str__(self) -> str:
        return f"{'error' if self.is_error else 'warning'}: {self.text}"


def check_directory(directory: str | Path, trust_remote_code: bool = False) -> list[Finding]:
    """All checks of a saved directory but those of its card, which publishing writes itself.

    Args:
        directory: what `save_pretrained` wrote, tokenizer included.
        trust_remote_code (`bool`): whether code of the directory may run that is not this package's own.

    Returns:
        What was found, errors first; the model is loaded in other processes only if the files are in order.
    """
    directory = Path(directory)
    found = check_files(directory)
    if not any(finding.is_error for finding in found):
        found += check_loading([directory], trust_remote_code)
    return sorted(found, key=lambda finding: not finding.is_error)


def check_files(directory: Path) -> list[Finding]:
    """The checks that need no process of their own: weights, configuration, code, tokenizer."""
    if not directory.is_dir():
        return [_error(f"{directory} is no folder: give one that save_pretrained wrote.")]
    try:
        config = read_config(directory)
        saved_head(config)
        code_files(directory, _written_config(directory))  # refuses references that are none
    except ValueError as error:
        return [_error(str(error))]
    try:
        links = [name for name in sorted(published_files(directory)) if leads_out(directory, name)]
    except ValueError as error:  # of the weights; what else is missing is said with it
        found = [_error(str(error))]
    else:
        if links:
            return [_error(f"{', '.join(links)}: links out of {directory}: put the files themselves there.")]
        found = check_weights(directory)
    return [*found, *check_code(directory, config), *check_tokenizer(directory, config)]


def check_weights(directory: Path) -> list[Finding]:
    """Weights are safetensors, all shards are there, each can be opened, and every number is finite."""
    found = []
    for name in weight_files(directory):
        path = directory / name
        if not path.exists():
            found.append(_error(f"{name} is missing, and the index of shards names it: save the model again."))
            continue
        try:
            with safe_open(path, framework="pt") as file:
                broken = [key for key in file.keys() if not _is_finite(file.get_tensor(key))]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            found.append(_error(f"{name} is no safetensors file ({first_line(error)}): save the model again."))
            continue
        if broken:
            names = ", ".join(broken[:3]) + " ..." * (len(broken) > 3)
            found.append(_error(f"{name} has NaN or infinite numbers in {names}: save a checkpoint from before that."))
    return found


def _is_finite(value: torch.Tensor) -> bool:
    # Numbers of one byte have no `isfinite`.
    return bool((value.float() if value.element_size() == 1 else value).isfinite().all())


def check_code(directory: Path, config: EncoderConfig) -> list[Finding]:
    """`auto_map` names every class of the family, and the files of all of them lie in the directory."""
    # What the file says, not the configuration: that completes `auto_map` by itself.
    written = _written_config(directory)
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
    """There is a tokenizer, it loads, and the model has a row for each of its ids."""
    try:
        tokenizer = load_tokenizer(directory, config=config)
    except ValueError as error:
        return [_error(str(error))]
    ids = tokenizer("The text, which may be of any kind.")["input_ids"]
    found = []
    largest = max([*tokenizer.get_vocab().values(), *ids])
    if largest >= config.vocab_size:
        found.append(
            _error(
                f"the tokenizer has id {largest}, and vocab_size={config.vocab_size}: save the model's own tokenizer, "
                "or call model.resize_token_embeddings(len(tokenizer)) and train on."
            )
        )
    if tokenizer.pad_token_id != config.pad_token_id:
        found.append(
            _warning(
                f"the tokenizer pads with id {tokenizer.pad_token_id}, and pad_token_id={config.pad_token_id}: set it "
                "in the configuration, if this is the model's own tokenizer."
            )
        )
    return found


def check_card(text: str, record: TrainingRecord, files: list[str]) -> list[Finding]:
    """The card's metadata is what the Hub takes, its pictures are there, and what was not recorded is said.

    Args:
        text (`str`): the card.
        record (`TrainingRecord`): what it was made of.
        files: names of the files that go with it.
    """
    found = []
    try:
        ModelCard(text, ignore_metadata_errors=True)
        # Not what huggingface_hub keeps of it: that leaves out a model-index which it cannot read.
        block = REGEX_YAML_BLOCK.search(text)
        metadata = (yaml.safe_load(block.group(2)) if block else None) or {}
    except Exception as error:  # of PyYAML, through huggingface_hub, which adds none of its own
        return [_error(f"{CARD_FILE} has no readable metadata ({first_line(error)}): mend the YAML between the ---.")]
    found += [_error(f"{CARD_FILE}: {problem}") for problem in metadata_problems(metadata)]
    if not metadata.get("license"):
        found.append(_warning("no licence is stated, so nobody may use the model: give --license."))
    for link in sorted(shown_files(text) - set(files)):
        remedy = "put the picture into the directory, or remove it"
        found.append(_error(f"{CARD_FILE} shows {link}, which does not go with it: {remedy}."))
    missing = missing_facts(record)
    if missing:
        found.append(_warning(f'the card says "not recorded" of {", ".join(missing)}: add them to {RECORD_FILE}.'))
    return found


def shown_files(card: str) -> set[str]:
    """Names of the pictures that a card shows, without those from elsewhere.

    >>> sorted(shown_files("![a](loss_curve.png) ![b](https://host/b.png) ![](data:image/png;base64,A) ![c](d/e.png)"))
    ['d/e.png', 'loss_curve.png']
    """
    return {link for link in LINKED_FILE.findall(card) if "://" not in link and not link.startswith("data:")}


def check_secrets(directory: Path, names: set[str], texts: dict[str, str]) -> list[Finding]:
    """No file has what looks like a token, or names the home folder of this user.

    Args:
        directory, names: what is to be published.
        texts (`dict`): what some of the files will hold, by name.
    """
    remedies = {
        True: "take it out, here and wherever it is used, for it may have been read",
        False: "write what means something to others",
    }
    return [
        Finding(leak.is_error, f"{leak.text}: {remedies[leak.is_secret]}.")
        for leak in secrets_of_files(directory, names, texts)
    ]


def check_loading(directories: list[Path], trust_remote_code: bool = False) -> list[Finding]:
    """Each directory loads where this package cannot be imported, and computes what it computes here.

    With `trust_remote_code=True`, and with plain transformers where that can express the configuration; all in one
    other process. Outputs may differ by `FP32_TOLERANCE` of the largest. Code that is not this package's own, byte for
    byte, runs with `trust_remote_code` alone; without it is an error.
    """
    found, loads, expected = [], [], []
    for directory in directories:
        if (foreign := foreign_code(directory)) and not trust_remote_code:
            found.append(
                _error(
                    f"{directory}: {', '.join(foreign)}: not this package's own code, of which nothing was run: "
                    "load the model with hf_encoders and call save_pretrained again, or give --trust-remote-code to "
                    "run and publish the code as it is, if you know what it does."
                )
            )
            continue
        config = read_config(directory)
        head = saved_head(config)
        try:
            model = load_source(directory, head)
        except (ValueError, OSError, RuntimeError) as error:
            found.append(_error(f"{directory} does not load: {error}"))
            continue
        batch = probe_batch(config, head, model.base_model.longest_row())
        ways = ["remote", "plain"] if config.is_native else ["remote"]
        arguments = pooler_arguments(model, head)
        if arguments:
            found.append(
                _warning(
                    f"{directory} has no pooler: it must be loaded with add_pooling_layer=False, as the card says, or "
                    "pooler_output is made of random numbers."
                )
            )
        loads += [Load(directory, way, head, batch, arguments) for way in ways]
        expected += [outputs_of(model, batch)] * len(ways)
    for load, loaded, outputs in zip(loads, load_elsewhere(loads, trust_remote_code), expected, strict=True):
        if problem := problem_of(loaded, outputs, load.batch):
            found.append(
                _error(f"{load.directory}, loaded {WAYS[load.way]}: {problem}. Save the model again with hf_encoders.")
            )
    return found


def _written_config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text(encoding="utf-8"))


def _error(text: str) -> Finding:
    return Finding(True, text)


def _warning(text: str) -> Finding:
    return Finding(False, text)
