"""The registered families as the tests see them. A family with sizes of its own adds a line to `OWN_SIZES`."""

from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import configurations, family_classes


# Small and uneven, for the fields that not every configuration has.
OWN_SIZES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 10, "num_hidden_groups": 2, "inner_group_num": 2},
    "electra": {"embedding_size": 14},
    "modernbert": {"local_attention": 4},  # two tokens to each side
    "deberta-v2": {"position_buckets": 8},  # logarithmic from the fifth token on
}
HEADS_OF_OURS_ALONE = ("HfeDebertaV2ForPreTraining",)  # transformers has DeBERTa without its discriminator's head


def stock_class(our_class: type) -> type | None:
    """transformers' own class of the same name; None for a family that transformers lacks: there is no parity then."""
    return getattr(transformers, our_class.__name__.removeprefix("Hfe"), None)


def needed_stock_class(our_class: type) -> type:
    """The same, or the test is skipped: only a family or a head that transformers lacks may have none."""
    stock = stock_class(our_class)
    if stock is None:
        config_class = getattr(our_class, "config_class", our_class)
        is_known_head = our_class.__name__ in HEADS_OF_OURS_ALONE
        assert is_known_head or config_class.model_type not in CONFIG_MAPPING_NAMES, our_class.__name__
        pytest.skip(f"transformers has no class like {our_class.__name__}")
    return stock


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
    return tuple(model_class(family, auto_class) for family in configurations() if auto_class in family.AUTO_MAP)
