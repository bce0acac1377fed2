"""Checkpoints that the user names, by folder or by name on the Hub: configuration, tokenizer and weights.

Whatever is missing, damaged or of another kind is a `ValueError` that names the option, its value and the remedy.
"""

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import find_adapter_config_file

from hf_encoders.errors import first_line
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import CONFIGURATIONS


CLASSES = ("hf_encoders", "transformers")
REMEDY = "give a folder that save_pretrained wrote, or the name of a model on the Hub."


def load_config(name: str, classes: str = "hf_encoders") -> PreTrainedConfig:
    """The configuration of the checkpoint `--model`, of this package or of transformers.

    Args:
        name (`str`): folder, or name on the Hub.
        classes (`str`): one of `CLASSES`. Code that lies beside the weights is not run.

    Raises:
        ValueError: if there is no configuration, or none of the family's kinds.
    """
    if classes not in CLASSES:
        raise ValueError(f"--classes {classes!r} must be one of {', '.join(CLASSES)}.")
    if classes == "hf_encoders":
        return read_config(name, "--model", other_family="use --classes transformers")
    _config_fields(name, "--model")
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise ValueError(f"--model {name!r} cannot be loaded ({first_line(error)}): {REMEDY}") from error


def read_config(
    source: str | Path, option: str | None = None, other_family: str = "choose a model of one of these"
) -> EncoderConfig:
    """The configuration in a directory, or of a repository on the Hub, as this package's own.

    Args:
        source: folder, or name on the Hub.
        option (`str`, *optional*): of the command line that named it, for errors.
        other_family (`str`): the remedy where the model is of another family.

    Raises:
        ValueError: if there is none, or it is that of another kind of model, or of an adapter.
    """
    what, fields = _named(source, option), _config_fields(source, option)
    for name in ("auto_map", "custom_pipelines"):
        if not isinstance(fields.get(name) or {}, dict):
            raise ValueError(f"{what}: config.json has {name}={fields[name]!r}, which is no object: {REMEDY}")
    model_type = str(fields.get("model_type"))
    for config_class in CONFIGURATIONS:
        if model_type in (config_class.model_type, f"hfe_{config_class.model_type}"):
            try:
                return config_class.from_pretrained(str(source))
            except StrictDataclassError as error:
                said = " ".join(str(error).split())
                raise ValueError(f"{what}: config.json is not of this kind of model ({said}): {REMEDY}") from error
    known = ", ".join(config_class.model_type for config_class in CONFIGURATIONS)
    raise ValueError(f"{what}: config.json has model_type={model_type!r}; this package has {known}: {other_family}.")


def _config_fields(source: str | Path, option: str | None) -> dict:
    """What config.json holds."""
    what = _named(source, option)
    try:
        # Loaders look for an adapter before the model's own weights.
        adapter = find_adapter_config_file(str(source))
        fields = {} if adapter else PreTrainedConfig.get_config_dict(str(source))[0]
    except (OSError, ValueError) as error:
        raise ValueError(f"{what} has no readable config.json ({first_line(error)}): {REMEDY}") from error
    if adapter:
        raise ValueError(
            f"{what} holds an adapter of PEFT ({Path(adapter).name}): merge the adapter first "
            "(model.merge_and_unload()), and save what comes out, with the tokenizer, to another folder."
        )
    if not fields:  # what transformers makes of a folder without the file
        raise ValueError(f"{what} has no config.json: {REMEDY}")
    if not isinstance(fields, dict):
        raise ValueError(f"{what}: config.json holds a {type(fields).__name__} and no object: {REMEDY}")
    return fields


def load_tokenizer(
    source: str | Path, option: str | None = None, config: PreTrainedConfig | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or repository. Code that lies beside it is not run.

    Args:
        source: folder, or name on the Hub.
        option (`str`, *optional*): of the command line that named it, for errors.
        config (*optional*): of the model beside it; transformers does not look for one then.

    Raises:
        ValueError: if there is none that loads, or one without words.
    """
    what = _named(source, option)
    remedy = f"save it there with tokenizer.save_pretrained({str(source)!r}), or give another folder or name."
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source), config=config, trust_remote_code=False)
    except Exception as error:  # those of the tokenizers library have no class of their own
        raise ValueError(f"{what} has no tokenizer that loads ({first_line(error)}): {remedy}") from error
    # Without files transformers 5 makes one that knows its special tokens alone, and all words are unknown to it.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError(f"{what} has no tokenizer, or one that knows no words: {remedy}")
    return tokenizer


def longest_input(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens of the longest sequence that model and tokenizer take, special tokens counted."""
    rows_before_first = {c.model_type: c.position_rows(0, config.pad_token_id or 0) for c in CONFIGURATIONS}
    positions = config.max_position_embeddings - rows_before_first.get(config.model_type, 0)
    return min(positions, tokenizer.model_max_length)


def load_weights(name: str, auto_class: type, config: PreTrainedConfig) -> tuple[PreTrainedModel, list[str]]:
    """The checkpoint `--model` in float32, and the names of weights that it lacks, which are drawn anew.

    Args:
        name (`str`): folder, or name on the Hub.
        auto_class (`type`): `transformers.AutoModelFor...`.
        config: from `load_config`.

    Raises:
        ValueError: for files that are missing or damaged, and weights of other shapes.
    """
    try:
        model, found = auto_class.from_pretrained(
            name, config=config, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"--model {name!r} cannot be loaded as {auto_class.__name__} ({first_line(error)}): give a complete "
            "checkpoint; for a head of another size, the encoder that it was fine-tuned from."
        ) from error
    return model, sorted(found["missing_keys"])


def _named(source: str | Path, option: str | None) -> str:
    return f"{option} {str(source)!r}" if option else str(source)
