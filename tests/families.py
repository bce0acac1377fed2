"""The registered families as the tests see them. A family with sizes of its own adds a line to `OWN_SIZES`."""

from typing import Any

from transformers import PreTrainedConfig

from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import configurations, family_classes


# Small and uneven, for the fields that not every configuration has.
OWN_SIZES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 10, "num_hidden_groups": 2, "inner_group_num": 2},
    "electra": {"embedding_size": 14},
    # Language embeddings, which inputs without `langs` take as the default's.
}


def fields_of(config_class: type[EncoderConfig], fields: dict[str, Any]) -> dict[str, Any]:
    """Fields under BERT's names without those that the family derives from others."""
    return {name: value for name, value in fields.items() if not is_derived(config_class, name)}


def is_derived(config_class: type, name: str) -> bool:
    return isinstance(getattr(config_class, name, None), property) and not hasattr(PreTrainedConfig, name)


def has_field(config_class: type[EncoderConfig], name: str) -> bool:
    """Whether a field is the family's own: XLNet has no position table and no choice of positions."""
    return not is_derived(config_class, name)


def own_sizes(config_class: type[EncoderConfig]) -> dict[str, Any]:
    return OWN_SIZES.get(config_class.model_type, {})


def model_class(config_class: type[EncoderConfig], auto_class: str) -> type:
    return family_classes()[config_class.AUTO_MAP[auto_class].rpartition(".")[2]]


def model_classes(auto_class: str) -> tuple[type, ...]:
    """The classes behind an Auto class, of all families that have one."""
    return tuple(model_class(one, auto_class) for one in configurations() if auto_class in one.AUTO_MAP)
