"""The encoder that a fine-tuning begins from, with the classes of this package or with transformers' own."""

from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import CONFIGURATIONS


CLASSES = ("hf_encoders", "transformers")


def load_config(name: str, classes: str = "hf_encoders") -> PreTrainedConfig:
    """The configuration of a checkpoint, of this package or of transformers.

    Args:
        name (`str`): folder, or name on the Hub.
        classes (`str`): one of `CLASSES`. Code that lies beside the weights is not run.

    Raises:
        ValueError: if there is no configuration, or none of the family's kinds.
    """
    if classes not in CLASSES:
        raise ValueError(f"--classes {classes!r} must be one of {', '.join(CLASSES)}.")
    try:
        fields, _ = PreTrainedConfig.get_config_dict(name)
        if "model_type" not in fields:
            raise ValueError("there is no config.json with a model_type")
        if classes == "transformers":
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"--model {name!r} cannot be loaded ({reason}): give a folder that save_pretrained wrote, or the name of "
            "a model on the Hub."
        ) from error
    model_type = fields["model_type"]
    for config_class in CONFIGURATIONS:
        if model_type.removeprefix("hfe_") == config_class.model_type:
            return config_class.from_pretrained(name)
    raise ValueError(
        f"--model {name!r} has model_type {model_type!r}; this package has "
        f"{', '.join(config.model_type for config in CONFIGURATIONS)}: use --classes transformers."
    )


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside the weights.

    Raises:
        ValueError: if there is none.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        # Without files transformers 5 makes one that knows its special tokens alone, and all words are unknown to it.
        if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
            raise ValueError("its vocabulary has no words")
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"--model {name!r} has no tokenizer that can be used ({reason}): save it into the same folder."
        ) from error
    return tokenizer


def longest_input(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens of the longest sequence that model and tokenizer take, special tokens counted."""
    rows_before_first = {c.model_type: c.position_rows(0, config.pad_token_id or 0) for c in CONFIGURATIONS}
    positions = config.max_position_embeddings - rows_before_first.get(config.model_type, 0)
    return min(positions, tokenizer.model_max_length)


def load_weights(name: str, auto_class: type, config: PreTrainedConfig) -> tuple[PreTrainedModel, list[str]]:
    """A checkpoint in float32, and the names of weights that it lacks, which are drawn anew.

    Args:
        name (`str`): folder, or name on the Hub.
        auto_class (`type`): `transformers.AutoModelFor...`.
        config: from `load_config`.

    Raises:
        ValueError: for files that are missing or damaged, and weights of other shapes.
    """
    try:
        model, found = auto_class.from_pretrained(name, config=config, dtype=torch.float32, output_loading_info=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"--model {name!r} cannot be loaded as {auto_class.__name__} ({reason}): give a complete checkpoint; "
            "for a head of another size, the encoder that it was fine-tuned from."
        ) from error
    return model, sorted(found["missing_keys"])


def load_model(
    name: str, auto_class: type, config: PreTrainedConfig, fields: dict[str, Any], from_scratch: bool = False
) -> PreTrainedModel:
    """The encoder with a new head, in float32.

    Args:
        name (`str`): folder, or name on the Hub.
        auto_class (`type`): `transformers.AutoModelFor...`.
        config: from `load_config`; its class decides whose classes are used.
        fields (`dict`): of the head's configuration.
        from_scratch (`bool`): whether all weights are drawn anew instead of loaded.

    Raises:
        ValueError: for fields that transformers' configuration does not have, and weights that cannot be read or do
            not fit.
    """
    unknown = [field for field in fields if not hasattr(config, field)]
    if unknown:
        raise ValueError(
            f"{type(config).__name__} has no {', '.join(unknown)}: leave the option out, or --classes transformers."
        )
    config = type(config).from_dict({**config.to_dict(), **fields, "model_type": config.model_type})
    if from_scratch:
        model = auto_class.from_config(config, dtype=torch.float32)
    else:
        model, missing = load_weights(name, auto_class, config)
        prefix = f"{model.base_model_prefix}."
        # A masked language model is saved without the pooler, which is new then, as the head is.
        if absent := [key for key in missing if key.startswith(prefix) and "pooler" not in key]:
            raise ValueError(
                f"--model {name!r} has no weights for {absent[0]} and {len(absent) - 1} others of the encoder: give "
                "one of this architecture, or --from-scratch."
            )
    if not isinstance(config, EncoderConfig):
        # transformers' heads take Trainer's count of items and do not divide by it, so that accumulated micro-batches
        # would add up instead of being averaged.
        model.accepts_loss_kwargs = False
    return model
