"""Configuration of ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555).

Differs from BERT in: embeddings of a smaller width projected to the model's, a summary in the head for choices, and
the size of the generator that is trained with it.
"""

from copy import deepcopy
from typing import Any, ClassVar

from .encoder_configuration import BertFieldsConfig, auto_map, strict


@strict
class HfeElectraConfig(BertFieldsConfig):
    r"""ELECTRA; the defaults are those of the released small model.

    [google/electra-small-discriminator](https://huggingface.co/google/electra-small-discriminator).
    Fields as in `BertFieldsConfig`, and:

    Args:
        embedding_size (`int`): E, width of the embedding tables.
        generator_size (`float`): width of the generator as a share of the discriminator's, in (0, 1]; its depth is the
            same. Read where both are trained (`generator_config()`); transformers does not know the field.
        summary_type (`str`): how the choice head summarises a sequence: `first` only.
        summary_use_proj (`bool`): its projection, which must be true.
        summary_activation (`str`): activation after it; an empty one is none.
        summary_last_dropout (`float`): dropout probability after that.
        classifier_dropout (`float`, *optional*): dropout probability before the classifier of sequences and tokens;
            None means `hidden_dropout_prob`.

    Use `small()`, `base()` or `large()` for the sizes of the paper's table 6, `generator_config()` for a generator's.
    """

    model_type = "electra"
    TOKENIZER_CLASS: ClassVar[str] = "BertTokenizer"
    SUBMODELS: ClassVar[tuple[str, ...]] = ("generator",)
    HEAD_DROPOUT_FIELD: ClassVar[str] = "classifier_dropout"
    VOCABULARY_KIND: ClassVar[str] = "wordpiece"
    EMBEDDING_SHARING: ClassVar[str] = "all"  # with the generator
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("electra", "HfeElectra")
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["mlm", "rtd"]

    embedding_size: int = 128
    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    generator_size: float | int = 0.25
    summary_type: str = "first"
    summary_use_proj: bool = True
    summary_activation: str = "gelu"
    summary_last_dropout: float | int = 0.1
    classifier_dropout: float | int | None = None

    def _check(self) -> None:
        self._require("embedding_size", self.embedding_size > 0, "must be at least 1")
        super()._check()
        # Of transformers' ways to summarise a sequence the only one that does not depend on padding.
        for name, needed in (("summary_type", "first"), ("summary_use_proj", True)):
            self._require(name, getattr(self, name) == needed, f"is not built, only {needed!r} is: leave it out")
        self._require("generator_size", 0 < self.generator_size <= 1, "must be a share of the width, in (0, 1]")
        self._require("summary_last_dropout", 0 <= self.summary_last_dropout < 1, "must be a probability in [0, 1)")

    def set_generator(self, config: "HfeElectraConfig") -> None:
        """Note the size of a generator that was trained with it."""
        self.generator_size = config.hidden_size / self.hidden_size

    def generator_config(self) -> "HfeElectraConfig":
        """Return the generator's configuration: the same depth and embeddings, `generator_size` of the width.

        The feed-forward part is as many times wider than the model as the discriminator's; heads are of 64 numbers
        (`get_generator_config` in `run_pretraining.py`), or of the next larger width that divides the model's.
        """
        width = max(1, round(self.hidden_size * self.generator_size))
        heads = next(heads for heads in range(max(1, width // 64), 0, -1) if width % heads == 0)
        config = deepcopy(self)
        config.intermediate_size = max(1, round(self.intermediate_size * width / self.hidden_size))
        config.hidden_size, config.num_attention_heads = width, heads
        return config

    @classmethod
    def small(cls, **overrides: Any) -> "HfeElectraConfig":
        """ELECTRA-small: 12 layers, width 256; 13,483,008 parameters, the generator's width 64."""
        return cls(**overrides)

    @classmethod
    def base(cls, **overrides: Any) -> "HfeElectraConfig":
        """ELECTRA-base: 12 layers, width 768; 108,891,648 parameters, the generator's width 256."""
        sizes = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
        return cls(**{**sizes, "generator_size": 1 / 3, **overrides})

    @classmethod
    def large(cls, **overrides: Any) -> "HfeElectraConfig":
        """ELECTRA-large: 24 layers, width 1024; 334,092,288 parameters, the generator's width 256."""
        sizes = {"embedding_size": 1024, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
        return cls(**{**sizes, "num_hidden_layers": 24, **overrides})
