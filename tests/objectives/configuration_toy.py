"""A family from outside of the package: its configuration."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from hf_encoders.models.encoder_configuration import BertFieldsConfig


@strict
class ToyConfig(BertFieldsConfig):
    """An embedding, a matrix and two heads."""

    model_type = "toy"
    AUTO_MAP: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_toy.ToyConfig",
        "AutoModelForPreTraining": "modeling_toy.ToyForPreTraining",
    }
    TOKENIZER_CLASS: ClassVar[str] = "BertTokenizer"
    VOCABULARY_KIND: ClassVar[str] = "wordpiece"

    hidden_size: int = 16
    num_hidden_layers: int = 1
    num_attention_heads: int = 1
    intermediate_size: int = 16
