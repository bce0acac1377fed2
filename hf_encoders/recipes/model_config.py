"""Configurations of new models: from a recipe's fields, a named size, and what the tokenizer decides."""

import dataclasses
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase

from hf_encoders.models.encoder_configuration import EncoderConfig


def tokenizer_fields(
    config_class: type[EncoderConfig], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, Any]:
    """Fields that the tokenizer and the longest example decide, except the vocabulary size."""
    return {
        "max_position_embeddings": config_class.position_rows(max_length, tokenizer.pad_token_id),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def config_of_size(
    config_class: type[EncoderConfig], size: Any, tokenizer: PreTrainedTokenizerBase, max_length: int, **fields: Any
) -> EncoderConfig:
    """A configuration with the tokenizer's ids for examples of up to `max_length` tokens.

    Args:
        config_class (`type[EncoderConfig]`): The family.
        size: Has `num_hidden_layers`, `hidden_size` and `num_attention_heads`; the feed-forward part is four times as
            wide as the model.
        tokenizer (`PreTrainedTokenizerBase`): Gives the special ids.
        max_length (`int`): Longest example in tokens, special tokens included.
        fields: Further fields, such as `vocab_size`.
    """
    return config_class(
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_hidden_layers,
        num_attention_heads=size.num_attention_heads,
        intermediate_size=4 * size.hidden_size,
        **tokenizer_fields(config_class, tokenizer, max_length),
        **fields,
    )


def config_of_fields(config_class: type[EncoderConfig], fields: dict[str, Any]) -> EncoderConfig:
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
