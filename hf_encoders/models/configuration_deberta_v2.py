"""Configuration of DeBERTa v3 (He et al. 2021, https://arxiv.org/abs/2111.09543), which has the architecture of v2.

Differs from BERT in: attention by content and distance, no positions and no token types among the embeddings, and the
generator that is trained with it.
"""

from copy import deepcopy
from typing import Any, ClassVar

from .encoder_configuration import BertFieldsConfig, auto_map, strict


TERMS = ("c2p", "p2c")  # of the scores by distance: content to position, position to content
# What transformers' class takes for fields that a file does not have. `legacy` is not among them: the published v3
# files, which do not have it, hold the other head.
ABSENT_MEANS = {
    "relative_attention": False,
    "position_buckets": -1,
    "norm_rel_ebd": "none",
    "share_att_key": False,
    "position_biased_input": True,
    "pos_att_type": None,
}
NOT_BUILT = {  # fields of v1 and v2
    "conv_kernel_size": "the convolution of v2",
    "embedding_size": "embeddings of another width",
    "attention_head_size": "heads of another width",
    "pooler_hidden_size": "a pooler of another width",
}


@strict
class HfeDebertaV2Config(BertFieldsConfig):
    r"""DeBERTa v3; the defaults are those of the released base model.

    [microsoft/deberta-v3-base](https://huggingface.co/microsoft/deberta-v3-base).
    Fields as in `BertFieldsConfig`, and of `DebertaV2Config`:

    Args:
        type_vocab_size (`int`): rows of the token type table; 0, as published, is no table: types are not read.
        relative_attention (`bool`): whether scores depend on the distance of two tokens.
        pos_att_type (`str` or `list[str]`, *optional*): how: `c2p`, content to position, and `p2c`, position to
            content; of several with `|` between them.
        share_att_key (`bool`): whether positions are projected by the weights of the content's queries and keys.
        max_relative_positions (`int`): distance from which on all are one; below 1, `max_position_embeddings`.
        position_buckets (`int`): half the number of buckets of distances: exact up to half of it, of logarithmic width
            from there on; below 1, each distance is its own.
        norm_rel_ebd (`str`): `layer_norm` of the table of distances, or `none`.
        position_biased_input (`bool`): whether absolute positions are added to the embeddings.
        pooler_dropout, pooler_hidden_act (`float`, `str`): of the pooler, which is a part of the heads for sequences.
        cls_dropout (`float`, *optional*): dropout probability before the classifier of sequences; None means
            `hidden_dropout_prob`.
        legacy (`bool`): whether the masked-LM head is that of v1, `cls.predictions`, instead of the published
            `lm_predictions`, whose projection is always the word embeddings, whatever `tie_word_embeddings` says.
            transformers' default is true, a head that is not in the published files.
        enhanced_mask_decoder (`bool`): whether masked tokens are predicted by the last layer from queries that know
            their absolute positions (section 3.2 of https://arxiv.org/abs/2006.03654), as generators of v3 do.
            transformers' class cannot, so `model_type` is another on disk.
        generator_depth (`float`): layers of the generator as a share of the discriminator's, in (0, 1]; its width is
            the same. Read where both are trained (`generator_config()`); transformers does not know the field.

    Use `xsmall()`, `small()`, `base()` or `large()` for the published sizes.
    """

    model_type = "deberta-v2"
    TOKENIZER_CLASS: ClassVar[str] = "DebertaV2Tokenizer"
    SUBMODELS: ClassVar[tuple[str, ...]] = ("generator",)
    HEAD_DROPOUT_FIELD: ClassVar[str] = "cls_dropout"
    VOCABULARY_KIND: ClassVar[str] = "unigram"
    FIRST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("pad", "cls", "sep", "unk")
    LAST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("mask",)
    LEAST_TYPES: ClassVar[int] = 0
    EMBEDDING_SHARING: ClassVar[str] = "gdes"  # with the generator
    ABSENT: ClassVar[dict[str, str]] = {"position_embedding_type": "distances are those of relative_attention"}
    UNDECLARED: ClassVar[tuple[str, ...]] = ("position_buckets", "norm_rel_ebd", "share_att_key", "cls_dropout")
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("deberta_v2", "HfeDebertaV2")
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["mlm", "rtd"]
    # Distances have no last one; a table of positions does.
    LIMITS_LENGTH: ClassVar[bool] = property(lambda self: self.position_biased_input or self.enhanced_mask_decoder)

    vocab_size: int = 128100
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = True
    pos_att_type: str | list[str] | None = "p2c|c2p"
    share_att_key: bool = True
    max_relative_positions: int = -1
    position_buckets: int = 256
    norm_rel_ebd: str = "layer_norm"
    position_biased_input: bool = False
    pooler_dropout: float | int = 0.0
    pooler_hidden_act: str = "gelu"
    cls_dropout: float | int | None = None
    legacy: bool = False
    enhanced_mask_decoder: bool = False
    generator_depth: float | int = 0.5
    position_embedding_type: ClassVar[str] = property(lambda self: "absolute")  # no table in each layer

    def __post_init__(self, **kwargs: Any):
        """Check the fields, and write what their values stand for."""
        neutral = dict.fromkeys(NOT_BUILT, self.hidden_size) | {"conv_kernel_size": 0}
        neutral["attention_head_size"] = self.hidden_size // max(self.num_attention_heads, 1)
        for name, part in NOT_BUILT.items():
            if (value := kwargs.pop(name, None)) not in (None, neutral[name]):
                raise ValueError(f"{name}={value}: {part} is not built: use transformers' own class.")
        if isinstance(self.pos_att_type, str):
            self.pos_att_type = [term.strip() for term in self.pos_att_type.lower().split("|")]
        if "layer_norm" in [part.strip() for part in self.norm_rel_ebd.lower().split("|")]:
            self.norm_rel_ebd = "layer_norm"
        if self.max_relative_positions < 1:  # as it was trained, also when more positions are read later
            self.max_relative_positions = self.max_position_embeddings
        super().__post_init__(**kwargs)

    def _check(self) -> None:
        super()._check()
        types = [term for term in self.pos_att_type or () if term not in ("", "none")]
        self._require("pos_att_type", set(types) <= set(TERMS), f"must be of {', '.join(TERMS)}")
        is_known = self.norm_rel_ebd in ("layer_norm", "none")
        self._require("norm_rel_ebd", is_known, "must be layer_norm or none")
        self._require("position_buckets", self.position_buckets != 1, "must be at least 2, or below 1 for none")
        self._require("pooler_dropout", 0 <= self.pooler_dropout < 1, "must be a probability in [0, 1)")
        is_possible = not (self.enhanced_mask_decoder and self.position_biased_input)
        remedy = "needs position_biased_input=False: its queries have the positions"
        self._require("enhanced_mask_decoder", is_possible, remedy)
        self._require("generator_depth", 0 < self.generator_depth <= 1, "must be a share of the layers, in (0, 1]")

    @property
    def distance_terms(self) -> list[str]:
        """Return which of `c2p` and `p2c` are among the scores."""
        return [term for term in TERMS if term in (self.pos_att_type or ())]

    @property
    def distance_span(self) -> int:
        """Return half the number of rows of the table of distances."""
        return self.position_buckets if self.position_buckets > 0 else self.max_relative_positions

    @property
    def has_position_table(self) -> bool:
        """Return whether positions are among the embeddings."""
        return self.position_biased_input

    @property
    def extra_ids(self) -> dict[str, int]:
        """Token types, where there are any."""
        return super().extra_ids if self.type_vocab_size else {}

    @property
    def fields_beyond_native(self) -> dict[str, Any]:
        """As in `EncoderConfig`, and the decoder of masked tokens."""
        decoder = {"enhanced_mask_decoder": True} if self.enhanced_mask_decoder else {}
        return super().fields_beyond_native | decoder

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers, also for fields that the file does not have."""
        # Saved by transformers before it had the field `legacy`.
        legacy = {"legacy": True} if "DebertaV2ForMaskedLM" in (config_dict.get("architectures") or ()) else {}
        return super().from_dict({**ABSENT_MEANS, **legacy, **config_dict}, **kwargs)

    def generator_config(self) -> "HfeDebertaV2Config":
        """Return the generator's configuration: the same width, `generator_depth` of the layers, and the decoder."""
        config = deepcopy(self)
        config.num_hidden_layers = max(1, round(self.num_hidden_layers * self.generator_depth))
        config.enhanced_mask_decoder = not self.position_biased_input
        return config

    def set_generator(self, config: "HfeDebertaV2Config") -> None:
        """Note the size of a generator that was trained with it."""
        self.generator_depth = config.num_hidden_layers / self.num_hidden_layers

    @classmethod
    def xsmall(cls, **overrides: Any) -> "HfeDebertaV2Config":
        """DeBERTa-v3-xsmall: 12 layers, width 384; 70,682,112 parameters."""
        sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
        return cls(**{**sizes, **overrides})

    @classmethod
    def small(cls, **overrides: Any) -> "HfeDebertaV2Config":
        """DeBERTa-v3-small: 6 layers, width 768; 141,304,320 parameters."""
        return cls(**{"num_hidden_layers": 6, **overrides})

    @classmethod
    def base(cls, **overrides: Any) -> "HfeDebertaV2Config":
        """DeBERTa-v3-base: 12 layers, width 768; 183,831,552 parameters."""
        return cls(**overrides)

    @classmethod
    def large(cls, **overrides: Any) -> "HfeDebertaV2Config":
        """DeBERTa-v3-large: 24 layers, width 1024; 434,012,160 parameters."""
        sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24}
        return cls(**{**sizes, **overrides})
