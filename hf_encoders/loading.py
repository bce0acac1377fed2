"""Load configurations and weights from a folder or the Hub, for the command line.

Anything missing, damaged or of another kind is a `ValueError` that names the option, its value and the remedy.
"""

import functools
import hashlib
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    StrictDataclassError,
)
from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, logging
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file, find_adapter_config_file

from hf_encoders.inputs import REMEDY, check_checkpoint, check_model, first_line
from hf_encoders.models.encoder_checkpoints import refuse_shards_elsewhere
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import configurations, family_classes


CLASSES = ("hf_encoders", "transformers")
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model")  # one is downloaded
NOT_HERE = "is not a folder here, has not been downloaded, and the Hub cannot be reached"
SECONDS_TO_ANSWER = 10  # timeout for the Hub


def hide_bars_of_weights() -> None:
    """Hide transformers' progress bars, but not those of downloads and uploads, which it hides with them."""
    are_shown = not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if are_shown:
        enable_progress_bars()


def load_config(name: str, classes: str = "hf_encoders") -> PreTrainedConfig:
    """Return the configuration of the checkpoint `--model`, of one of `CLASSES`; code in the checkpoint is not run.

    ValueError for one that cannot do without inputs that no command has, such as languages.
    """
    if classes not in CLASSES:
        raise ValueError(f"--classes {classes!r} must be one of {', '.join(CLASSES)}.")
    if classes == "hf_encoders":
        config = read_config(name, "--model", other_family="use --classes transformers")
        for inputs, field in config.required_ids.items():
            raise ValueError(
                f"--model {name!r} needs {inputs} for every token, which the data of this command does not have: in a "
                f"copy of the model, set {field} in config.json to one of {', '.join(config.languages or ())}."
            )
        return config
    _config_fields(name, "--model")
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=is_local(name, "--model"))
    except (OSError, ValueError, StrictDataclassError) as error:
        raise ValueError(f"--model {name!r} cannot be loaded ({first_line(error)}): {REMEDY}") from error


def read_config(
    source: str | Path, option: str | None = None, other_family: str = "choose a model of one of these"
) -> EncoderConfig:
    """Return the configuration in a directory, or of a repository on the Hub, as this package's own.

    Errors name the option that named it, and `other_family` is their remedy for a model of another family.
    """
    what, fields = name_for_errors(source, option), _config_fields(source, option)
    for name in ("auto_map", "custom_pipelines"):
        if not isinstance(fields.get(name) or {}, dict):
            raise ValueError(f"{what}: config.json has {name}={fields[name]!r}, which is not an object: {REMEDY}")
    model_type = fields.get("model_type") or _unwritten_model_type(source, fields)
    known = ", ".join(config_class.model_type for config_class in configurations())
    if model_type is None:
        raise ValueError(
            f'{what}: config.json has no model_type: add the line "model_type": "bert", or what it is of {known}, to '
            "the file (in a copy, for a model on the Hub)."
        )
    for config_class in configurations():
        if model_type in config_class.model_types():
            try:
                return config_class.from_pretrained(str(source), local_files_only=is_local(source, option))
            except StrictDataclassError as error:
                problem = " ".join(str(error).split())
                raise ValueError(f"{what}: config.json is not of this kind of model ({problem}): {REMEDY}") from error
    raise ValueError(f"{what}: config.json has model_type={model_type!r}; this package has {known}: {other_family}.")


def _unwritten_model_type(source: str | Path, fields: dict[str, Any]) -> str | None:
    """Return the `model_type` of a config.json of before 2020, which has none; None if that is ambiguous.

    It is that of the class in `architectures`, or of the only family whose parameters have names like those in the
    safetensors file.
    """
    for config_class in configurations():
        prefix = config_class.__name__.removeprefix("Hfe").removesuffix("Config")
        named = re.compile(rf"{prefix}(Model|For[A-Z]\w+|(With)?LMHeadModel)")
        if any(named.fullmatch(str(name)) for name in fields.get("architectures") or ()):
            return config_class.model_type
    names, families = weight_names(source), []
    for config_class in configurations():
        base_model = family_classes()[config_class.AUTO_MAP["AutoModel"].rpartition(".")[2]]
        if any(name.startswith(f"{base_model.base_model_prefix}.") for name in names):
            families.append(config_class.model_type)
    return families[0] if len(families) == 1 else None


def weight_names(source: str | Path) -> list[str]:
    """Return the names of the weights in a safetensors file or an index of shards; none without either."""
    try:
        if file := optional_file(source, SAFE_WEIGHTS_NAME):
            with safe_open(file, framework="pt") as weights:
                return list(weights.keys())
        if index := optional_file(source, SAFE_WEIGHTS_INDEX_NAME):
            return list(json.loads(index.read_bytes())["weight_map"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        pass  # loading says what is wrong with the file
    return []


def _config_fields(source: str | Path, option: str | None) -> dict:
    """Return the content of config.json."""
    what, local = name_for_errors(source, option), is_local(source, option)
    check_model(source, what)
    try:
        # Loaders look for an adapter before the model's own weights.
        adapter = find_adapter_config_file(str(source), local_files_only=local)
        fields = {} if adapter else PreTrainedConfig.get_config_dict(str(source), local_files_only=local)[0]
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} has no readable config.json ({first_line(error)}): {REMEDY}") from error
    if adapter:
        raise ValueError(
            f"{what} holds a PEFT adapter ({Path(adapter).name}): merge the adapter first "
            "(model.merge_and_unload()), and save the result, with the tokenizer, to another folder."
        )
    if not isinstance(fields, dict):
        raise ValueError(f"{what}: config.json holds a {type(fields).__name__}, not an object: {REMEDY}")
    return fields


def optional_file(source: str | Path, name: str) -> Path | None:
    """Return a file that a checkpoint need not have, in its folder or downloaded; None if it has none."""
    if Path(source).is_dir():
        file = Path(source, name)
        return file if file.is_file() else None
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    file = cached_file(str(source), name, local_files_only=is_local(source), **quiet)
    return None if file is None else Path(file)


def is_local(source: str | Path, option: str | None = None) -> bool:
    """Return whether to look on this machine only: for a folder, or for a name while the Hub cannot be reached.

    Without a network transformers would retry for a minute. ValueError for a file, a path or name that does not exist,
    and a name that has not been downloaded while the Hub cannot be reached.
    """
    what, name = name_for_errors(source, option), str(source)
    if Path(name).is_dir():
        return True
    check_checkpoint(source, what)
    reason = why_unreachable(name, what)
    if reason and not any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES):
        raise ValueError(f"{what} {NOT_HERE} ({reason}): check the spelling and the connection.")
    return reason is not None


def why_unreachable(name: str, what: str, repo_type: str | None = None) -> str | None:
    """Return why the Hub cannot be asked for a repository, by one request a minute; None if it answers."""
    try:
        return _failed_request(name, repo_type, minute=int(time.monotonic() / 60))
    except HFValidationError as error:
        raise ValueError(f"{what} is neither a folder nor a valid Hub name ({first_line(error)}): {REMEDY}") from error
    except GatedRepoError:
        return None
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"{what} is not a folder here, and the Hub has no such repository that you can read: check the spelling; "
            "for a private one, log in (hf auth login)."
        ) from error


@functools.lru_cache
def _failed_request(name: str, repo_type: str | None, minute: int) -> str | None:
    """Return why the Hub does not answer; cached, as many files are asked for at once, until the next minute."""
    try:
        get_hf_file_metadata(hf_hub_url(name, "README.md", repo_type=repo_type), timeout=SECONDS_TO_ANSWER)
    except (HFValidationError, RepositoryNotFoundError):
        raise
    except HfHubHTTPError:
        return None  # it answers: no such file, or an error that transformers retries
    except Exception as error:  # offline mode, and whatever the HTTP library in use calls a failed connection
        return first_line(error)
    return None


def load_own_weights(model: PreTrainedModel, folder: Path) -> None:
    """Load the weights of a folder that this model was saved in; ValueError for those of another model."""
    missing = set(model.load_state_dict(load_file(folder / SAFE_WEIGHTS_NAME), strict=False).missing_keys)
    if missing := missing - set(model.all_tied_weights_keys):
        raise ValueError(f"{folder} lacks {min(missing)} of this model: resume the run that wrote it.")


def load_weights(
    name: str, auto_class: type, config: PreTrainedConfig, option: str = "--model", new_head: bool | None = None
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """Load the checkpoint `option` in float32, the names of weights that it lacks, and of those that only it has.

    Those that it lacks are initialised randomly, and with `new_head` those of a head of another size. If it is False,
    the error names the option `--new-head`; None is for commands that do not have it.
    """
    cannot = f"{option} {name!r} cannot be loaded as {auto_class.__name__}"
    _check_layers(name, config, option)
    try:
        refuse_shards_elsewhere(name)
        model, info = auto_class.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below
            trust_remote_code=False,
            local_files_only=is_local(name, option),
        )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ValueError(f"{cannot} ({first_line(error)}): give a complete checkpoint.") from error
    for key, saved, expected in sorted(info["mismatched_keys"]):
        is_of_head = not key.startswith(f"{model.base_model_prefix}.")
        if not (new_head and is_of_head):
            remedy = "give one whose weights fit its config.json"
            if is_of_head:
                remedy = "give the encoder that it was fine-tuned from" + ", or use --new-head" * (new_head is False)
            raise ValueError(f"{cannot} ({key} has the shape {tuple(saved)}, not {tuple(expected)}): {remedy}.")
    check_loaded(model, info["unexpected_keys"], f"{option} {name!r}")
    return model, sorted(info["missing_keys"]), sorted(info["unexpected_keys"])


def _check_layers(name: str, config: PreTrainedConfig, option: str) -> None:
    """Refuse a number of layers that the weights do not have, before any is built."""
    # ALBERT's groups of layers, whose weights all its layers share.
    num_layers = getattr(config, "num_hidden_groups", config.num_hidden_layers)
    numbers = [int(number) for key in weight_names(name) for number in re.findall(r"\.(\d+)\.", key)]
    if numbers and num_layers > max(numbers) + 1:
        raise ValueError(
            f"{option} {name!r}: config.json asks for {num_layers} layers, and the weights are of {max(numbers) + 1}: "
            "correct the number there."
        )


def check_loaded(model: PreTrainedModel, unexpected: Iterable[str], what: str) -> None:
    """Raise ValueError for weights that are not finite, or `unexpected` ones of layers beyond the configuration's."""
    weights, prefix = model.state_dict(), f"{model.base_model_prefix}."
    for name, value in weights.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"{what}: weight {name} is not finite: give a checkpoint from before it was damaged.")
    for name in sorted(unexpected):
        first = re.sub(r"(?<=\.)\d+(?=\.)", "0", name)  # of the first layer
        if first != name and {first, prefix + first, first.removeprefix(prefix)} & weights.keys():
            raise ValueError(
                f"{what} has {name}, of a layer that its config.json does not have: correct the number there."
            )


def fingerprint(model: PreTrainedModel) -> str:
    """Return 16 hexadecimal digits that differ where a weight does; the same for every file format and device."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def name_for_errors(source: str | Path, option: str | None) -> str:
    """Return how messages name a source: `--model 'path'`."""
    return f"{option} {str(source)!r}" if option else str(source)
