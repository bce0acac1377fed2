"""Configurations of new models: from a recipe's fields, and what tokenizer and text decide."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase

from hf_encoders.models.encoder_configuration import EncoderConfig


def tokenizer_fields(
    config_class: type[EncoderConfig], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, Any]:
    """Fields of the family that the tokenizer and the longest example decide, except the vocabulary size."""
    fields = {
        "max_position_embeddings": config_class.position_rows(max_length, tokenizer.pad_token_id),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    known = {one.name for one in dataclasses.fields(config_class)}
    return {name: value for name, value in fields.items() if name in known}  # XLNet has no table of positions


def reads_languages(config_class: type[EncoderConfig], given: Mapping[str, Any] | None = None) -> bool:
    """Whether models with `given` fields, or by default those of several languages, have embeddings of languages."""
    if given:
        return "langs" in config_of_fields(config_class, given).extra_ids
    return "lang2id" in {one.name for one in dataclasses.fields(config_class)}


def language_fields(config_class: type[EncoderConfig], languages: Iterable[str]) -> dict[str, Any]:
    """Fields of a family with language embeddings, for the languages of the text; others have none."""
    names = sorted(set(languages))
    if not names or not reads_languages(config_class):
        return {}
    return {"n_langs": len(names), "lang2id": {name: number for number, name in enumerate(names)}}


def config_of_fields(config_class: type[EncoderConfig], fields: Mapping[str, Any]) -> EncoderConfig:
    """A configuration from its fields and optionally `size`, one of the family's named sizes.

    Raises:
        ValueError: naming an unknown size or field, or an invalid value.
    """
    fields = dict(fields)
    size = fields.pop("size", None)
    # Named sizes are class methods of the family itself; `from_pretrained` and the like are inherited.
    if size is not None and not isinstance(vars(config_class).get(str(size)), classmethod):
        raise ValueError(f"size {size!r} is not a named size of {config_class.model_type}, such as base.")
    known = {one.name for one in dataclasses.fields(config_class)}
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(f"{config_class.__name__} has no field {unknown[0]!r}.")
    try:
        return (config_class if size is None else getattr(config_class, size))(**fields)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
