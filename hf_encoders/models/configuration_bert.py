"""Configuration of BERT (Devlin et al. 2018, https://arxiv.org/abs/1810.04805)."""

from typing import Any, ClassVar

from .encoder_configuration import BertFieldsConfig, auto_map, strict


@strict
class HfeBertConfig(BertFieldsConfig):
    r"""BERT; the defaults are [google-bert/bert-base-uncased](https://huggingface.co/google-bert/bert-base-uncased).

    Fields as in `BertFieldsConfig`, and:

    Args:
        classifier_dropout (`float`, *optional*): dropout probability before a task's classifier; None means
            `hidden_dropout_prob`.

    Example: `HfeBertConfig(hidden_size=256, num_attention_heads=4, num_hidden_layers=4, intermediate_size=1024)`
    """

    model_type = "bert"
    TOKENIZER_CLASS: ClassVar[str] = "BertTokenizer"
    HEAD_DROPOUT_FIELD: ClassVar[str] = "classifier_dropout"
    VOCABULARY_KIND: ClassVar[str] = "wordpiece"
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("bert", "HfeBert", "NextSentencePrediction")

    classifier_dropout: float | int | None = None

    @classmethod
    def base(cls, **overrides: Any) -> "HfeBertConfig":
        """BERT-base: 12 layers, width 768; 109,482,240 parameters with pooler (paper, section 3)."""
        return cls(**overrides)

    @classmethod
    def large(cls, **overrides: Any) -> "HfeBertConfig":
        """BERT-large: 24 layers, width 1024; 335,141,888 parameters with pooler (paper, section 3)."""
        sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        return cls(**{**sizes, **overrides})
