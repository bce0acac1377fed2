"""Configuration of XLM-R (Conneau et al. 2019, https://arxiv.org/abs/1911.02116).

Differs from RoBERTa in the vocabulary alone: SentencePiece's unigram pieces of 100 languages.
"""

from typing import Any, ClassVar

from .configuration_roberta import HfeRobertaConfig
from .encoder_configuration import auto_map, strict


@strict
class HfeXLMRobertaConfig(HfeRobertaConfig):
    r"""XLM-R; the defaults are [FacebookAI/xlm-roberta-base](https://huggingface.co/FacebookAI/xlm-roberta-base).

    Fields as in `HfeRobertaConfig`.

    transformers' own `XLMRobertaConfig()` has 30,522 entries, 512 positions, epsilon 1e-12 and 2 token types, unlike
    the released models.
    """

    model_type = "xlm-roberta"
    OTHER_MODEL_TYPES: ClassVar[dict[str, str]] = {}
    TOKENIZER_CLASS: ClassVar[str] = "XLMRobertaTokenizer"
    VOCABULARY_KIND: ClassVar[str] = "unigram"
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("xlm_roberta", "HfeXLMRoberta", pretraining="MaskedLM")

    vocab_size: int = 250002

    @classmethod
    def base(cls, **overrides: Any) -> "HfeXLMRobertaConfig":
        """XLM-R base: 12 layers, width 768; 278,043,648 parameters with pooler (the paper's "270M", table 6)."""
        return cls(**overrides)

    @classmethod
    def large(cls, **overrides: Any) -> "HfeXLMRobertaConfig":
        """XLM-R large: 24 layers, width 1024; 559,890,432 parameters with pooler (the paper's "550M", section 4)."""
        sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        return cls(**{**sizes, **overrides})
