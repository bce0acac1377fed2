"""Configuration of ALBERT (Lan et al. 2019, https://arxiv.org/abs/1909.11942).

Differs from BERT in: embeddings of a smaller width projected to the model's, layers shared across depth, tanh GELU.
"""

from typing import Any, ClassVar

from .encoder_configuration import BertFieldsConfig, auto_map, strict


# The parts of a layer, each with the LayerNorm after it.
LAYER_PARTS = ("attention", "feed_forward")


@strict
class HfeAlbertConfig(BertFieldsConfig):
    r"""ALBERT; the defaults are [albert/albert-xxlarge-v2](https://huggingface.co/albert/albert-xxlarge-v2).

    Fields as in `BertFieldsConfig`, and:

    Args:
        embedding_size (`int`): E, width of the embedding tables.
        num_hidden_groups (`int`): number of groups of layers with parameters of their own; 1 shares one group
            everywhere.
        inner_group_num (`int`): layers in a group. A token passes `num_hidden_layers` groups of `inner_group_num`
            layers.
        shared_between_groups (`str`, *optional*): part of a layer that all groups share, `attention` or
            `feed_forward`, each with the LayerNorm after it; with as many groups as layers these are the paper's
            "shared-attention" and "shared-FFN" (section 3.1, table 4). None shares nothing between groups, as in
            transformers' ALBERT: one group is then the paper's "all-shared", as many groups as layers its
            "not-shared". With a shared part the saved `model_type` differs, as with relative positions.
        classifier_dropout_prob (`float`): dropout probability before a task's classifier.

    Use `base()`, `large()`, `xlarge()` or `xxlarge()` for the sizes of the paper's table 1.
    """

    model_type = "albert"
    TOKENIZER_CLASS: ClassVar[str] = "AlbertTokenizer"
    HEAD_DROPOUT_FIELD: ClassVar[str] = "classifier_dropout_prob"
    VOCABULARY_KIND: ClassVar[str] = "unigram"
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("albert", "HfeAlbert")

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 4096
    num_hidden_groups: int = 1
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    inner_group_num: int = 1
    shared_between_groups: str | None = None
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    classifier_dropout_prob: float | int = 0.1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    @property
    def num_layers_passed(self) -> int:
        """Number of layers that a token passes through."""
        return self.num_hidden_layers * self.inner_group_num

    @property
    def fields_beyond_native(self) -> dict[str, Any]:
        """As in `EncoderConfig`, and a shared part: transformers' ALBERT shares whole layers only."""
        fields = super().fields_beyond_native
        if self.shared_between_groups is not None:
            fields["shared_between_groups"] = self.shared_between_groups
        return fields

    def _check(self) -> None:
        for name in ("embedding_size", "num_hidden_groups", "inner_group_num"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        super()._check()
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ValueError(
                f"num_hidden_groups={self.num_hidden_groups} is more than num_hidden_layers={self.num_hidden_layers}: "
                "some groups would never run. Lower it."
            )
        if self.shared_between_groups is None:
            return
        if self.shared_between_groups not in LAYER_PARTS:
            raise ValueError(
                f"shared_between_groups={self.shared_between_groups!r} must be one of {', '.join(LAYER_PARTS)}, or "
                "None."
            )
        if self.num_hidden_groups == 1:
            raise ValueError(
                f"shared_between_groups={self.shared_between_groups!r} with num_hidden_groups=1, which shares whole "
                f"layers: set num_hidden_groups={self.num_hidden_layers} to share that part alone, or leave it out."
            )

    @classmethod
    def base(cls, **overrides: Any) -> "HfeAlbertConfig":
        """ALBERT-base: 12 layers, width 768; 11,683,584 parameters with pooler."""
        return cls(**{**_sizes(768, 12, 12), **overrides})

    @classmethod
    def large(cls, **overrides: Any) -> "HfeAlbertConfig":
        """ALBERT-large: 24 layers, width 1024; 17,683,968 parameters with pooler."""
        return cls(**{**_sizes(1024, 24, 16), **overrides})

    @classmethod
    def xlarge(cls, **overrides: Any) -> "HfeAlbertConfig":
        """ALBERT-xlarge: 24 layers, width 2048; 58,724,864 parameters with pooler."""
        return cls(**{**_sizes(2048, 24, 16), **overrides})

    @classmethod
    def xxlarge(cls, **overrides: Any) -> "HfeAlbertConfig":
        """ALBERT-xxlarge: 12 layers, width 4096; 222,595,584 parameters with pooler."""
        return cls(**{**_sizes(4096, 12, 64), **overrides})


def _sizes(hidden_size: int, num_hidden_layers: int, num_attention_heads: int) -> dict[str, int]:
    """A row of the paper's table 1."""
    return {
        "hidden_size": hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads,
        "intermediate_size": 4 * hidden_size,
    }
