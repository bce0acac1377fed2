"""What an objective needs: a family that has its head, a model, a data set, a data collator."""

import dataclasses
import inspect
from typing import Any

import datasets
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.data.blocks import SentenceBlocks
from hf_encoders.data.chunk_examples import ChunkRule
from hf_encoders.data.chunks import DocumentChunks
from hf_encoders.data.collators import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
)
from hf_encoders.data.masking import Masking
from hf_encoders.data.word_starts import WordStarts
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import configurations


OBJECTIVES = ("mlm", "nsp", "sop")
GIVEN_BY_THE_RUN = ("documents", "max_length", "seed", "rule")  # arguments of data sets that are no options


def config_class_of(family: str) -> type[EncoderConfig]:
    """The family's configuration class.

    Raises:
        ValueError: if there is no such family.
    """
    for config in configurations():
        if config.model_type == family:
            return config
    raise ValueError(f"family {family!r}: it must be one of {', '.join(c.model_type for c in configurations())}.")


def has_pair_head(config_class: type[EncoderConfig]) -> bool:
    """Whether the family's pre-training head judges sentence pairs."""
    return config_class.AUTO_MAP["AutoModelForPreTraining"] != config_class.AUTO_MAP["AutoModelForMaskedLM"]


def pretraining_class(config_class: type[EncoderConfig]) -> type[PreTrainedModel]:
    """The family's class with all pre-training heads."""
    return transformers.AutoModelForPreTraining._model_mapping[config_class]


def check_objective(config_class: type[EncoderConfig], objective: str) -> None:
    """Refuse a pair objective for a family without a pair head.

    Raises:
        ValueError: for that, and for an objective that there is not.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r}: it must be one of {', '.join(OBJECTIVES)}.")
    if objective != "mlm" and not has_pair_head(config_class):
        able = [config.model_type for config in configurations() if has_pair_head(config)]
        raise ValueError(
            f"objective {objective}: {config_class.model_type} has no head for sentence pairs. Use mlm, or the family "
            f"{' or '.join(able)}."
        )


def pretraining_model(config: EncoderConfig, objective: str) -> PreTrainedModel:
    """A model with fresh weights and the heads that the objective trains."""
    auto = transformers.AutoModelForMaskedLM if objective == "mlm" else transformers.AutoModelForPreTraining
    return auto.from_config(config)


def config_of_size(
    config_class: type[EncoderConfig], size: Any, tokenizer: PreTrainedTokenizerBase, max_length: int, **fields: Any
) -> EncoderConfig:
    """A family's configuration with the tokenizer's ids, for rows of up to `max_length` tokens.

    Args:
        config_class: the family.
        size: has `num_hidden_layers`, `hidden_size` and `num_attention_heads`; the feed-forward part is four times as
            wide as the model.
        tokenizer: gives the special ids.
        max_length (`int`): longest row, special tokens included.
        fields: further fields, `vocab_size` among them.
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
    """A configuration of its fields and perhaps `size`, one of the family's named sizes.

    Raises:
        ValueError: naming what is no size or field of the family, or a value that cannot be.
    """
    fields = dict(fields)
    size = fields.pop("size", None)
    make = config_class if size is None else getattr(config_class, str(size), None)
    # Named sizes are class methods of the family itself; `from_pretrained` and its like are inherited.
    if make is None or (size is not None and str(size) not in vars(config_class)) or not callable(make):
        raise ValueError(f"size {size!r} is not a named size of {config_class.model_type}, such as base.")
    known = {one.name for one in dataclasses.fields(config_class)}
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(f"{config_class.__name__} has no field {unknown[0]!r}.")
    try:
        return make(**fields)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def check_options(objective: str, examples: dict[str, Any], masking: dict[str, Any]) -> None:
    """Refuse options that the objective's data set or its collator does not have, before there is text.

    Args:
        objective (`str`): in `OBJECTIVES`.
        examples, masking: what `examples_for` and `collator_for` are to get.

    Raises:
        ValueError: naming the option, and as `ChunkRule` and `Masking`.
    """
    data_set = SentenceBlocks if objective == "mlm" else DocumentChunks
    rule = () if objective == "mlm" else [one.name for one in dataclasses.fields(ChunkRule)]
    own = [name for name in inspect.signature(data_set).parameters if name not in GIVEN_BY_THE_RUN]
    for key, options, known in (
        ("examples", examples, [*own, *rule]),
        ("masking", masking, [one.name for one in dataclasses.fields(Masking)]),
    ):
        for name in options:
            if name not in known:
                raise ValueError(f"{key}: there is no option {name!r} for {objective}: it has {', '.join(known)}.")
    if not callable(masking.get("word_starts", WordStarts)):
        raise ValueError(f"masking: word_starts={masking['word_starts']!r} comes with a preset only: leave it out.")
    for key, kind, options in (
        ("examples", ChunkRule, {name: value for name, value in examples.items() if name in rule}),
        ("masking", Masking, masking),
    ):
        try:
            kind(**options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key}: {error}") from error


def tokenizer_fields(
    config_class: type[EncoderConfig], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, Any]:
    """Fields of a configuration that the tokenizer and the longest row decide, all but the vocabulary size."""
    return {
        "max_position_embeddings": config_class.position_rows(max_length, tokenizer.pad_token_id),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def examples_for(
    objective: str, documents: datasets.Dataset, max_length: int, **options: Any
) -> DocumentChunks | SentenceBlocks:
    """The data set that the objective's collator takes examples from; `options` are the data set's."""
    return (SentenceBlocks if objective == "mlm" else DocumentChunks)(documents, max_length, **options)


def collator_for(
    objective: str, tokenizer: PreTrainedTokenizerBase, config_class: type[EncoderConfig], **options: Any
) -> DataCollatorForMaskedLM:
    """The objective's collator for a family; `options` are the collator's."""
    if objective == "mlm":
        return DataCollatorForMaskedLM(tokenizer, **options)
    options["label_name"] = pretraining_class(config_class).pair_label_name
    if objective == "nsp":
        return DataCollatorForNextSentencePrediction(tokenizer, **options)
    return DataCollatorForSentenceOrderPrediction(tokenizer, **options)
