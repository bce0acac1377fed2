"""Configuration of ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663), of Ettin and mmBERT.

Differs from BERT in: names of its own, rotary positions, layers that attend to a window, gated feed-forward parts, no
table of token types, no biases.
"""

from typing import Any, ClassVar

from .encoder_configuration import EncoderConfig, auto_map, strict


FULL, SLIDING = "full_attention", "sliding_attention"
THETAS = {FULL: 160_000.0, SLIDING: 10_000.0}
THETA_FIELDS = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}  # in files of before transformers 5
SAME_AS_GLOBAL = (None, -1)  # of `local_rope_theta` in FlexBERT's files
GLOBAL_EVERY = 3  # each third layer attends to all tokens, from the first on
# In published files, without effect here.
IGNORED_FIELDS = ("reference_compile", "gradient_checkpointing")
TYPES = 1
ETTIN = {"rope_parameters": {SLIDING: {"rope_theta": 160_000.0}}}  # after the extension of its context, in all layers
SPECIAL_IDS = ("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id")


@strict
class HfeModernBertConfig(EncoderConfig):
    r"""ModernBERT; the defaults are [answerdotai/ModernBERT-base](https://huggingface.co/answerdotai/ModernBERT-base).

    Fields as in `EncoderConfig`, and of `ModernBertConfig`:

    Args:
        pad_token_id, eos_token_id, bos_token_id, cls_token_id, sep_token_id (`int`, *optional*): special ids; None
            where the default is not below `vocab_size`.
        hidden_size, num_hidden_layers, num_attention_heads (`int`): D, layers and A.
        intermediate_size (`int`): I, width inside the feed-forward part, half of its first projection's.
        hidden_activation (`str`): activation of one half, by which the other is multiplied.
        initializer_range (`float`): standard deviation of the truncated normal initialisation.
        initializer_cutoff_factor (`float`, *optional*): standard deviations at which it is cut; None means 3.
        norm_eps (`float`): epsilon of every LayerNorm.
        norm_bias, attention_bias, mlp_bias, classifier_bias, decoder_bias (`bool`): whether these parts have biases.
        layer_types (`list[str]`, *optional*): `full_attention` or `sliding_attention` for each layer; None means
            that each third one is full, from the first on. Older files say `global_attn_every_n_layers`.
        rope_parameters (`dict`, *optional*): `rope_theta` and `rope_type` for each type of layer; older files say
            `global_rope_theta` and `local_rope_theta`.
        local_attention (`int`): width of the window: a token sees half of it to each side, and itself.
        attention_dropout (`float`): probability in [0, 1) on attention weights, and after the projection of attention.
        attention_output_dropout (`float`, *optional*): instead after the projection. transformers' class does not
            have it, and trains without. The published models were trained with 0.1 there and 0 on the weights.
        embedding_dropout, mlp_dropout, classifier_dropout (`float`): probabilities in [0, 1).
        classifier_pooling (`str`): `cls`, a sequence's first token, or `mean`, of all its tokens.
        classifier_activation (`str`): activation in the heads.
        deterministic_flash_attn, sparse_prediction, sparse_pred_ignore_index: without effect; kept for other readers.
    """

    model_type = "modernbert"
    attribute_map = {
        "hidden_act": "hidden_activation",
        "attention_probs_dropout_prob": "attention_dropout",
        "hidden_dropout_prob": "mlp_dropout",
    }
    TOKENIZER_CLASS: ClassVar[str] = "PreTrainedTokenizerFast"
    HEAD_DROPOUT_FIELD: ClassVar[str] = "classifier_dropout"
    VOCABULARY_KIND: ClassVar[str] = "bpe"
    FIRST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ()
    LAST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("unk", "cls", "sep", "pad", "mask")
    LIMITS_LENGTH: ClassVar[bool] = False  # rotations have no last position
    PHASE_FIELDS: ClassVar[tuple[str, ...]] = ("rope_parameters", "local_attention")
    ABSENT: ClassVar[dict[str, str]] = {
        "layer_norm_eps": "that of ModernBERT is norm_eps",
        "position_embedding_type": "positions are rotations",
        "type_vocab_size": "there are no token types",
    }
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("modernbert", "HfeModernBert", pretraining="MaskedLM")

    vocab_size: int = 50368
    hidden_size: int = 768
    intermediate_size: int = 1152
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 8192
    initializer_range: float = 0.02
    initializer_cutoff_factor: float | None = 2.0
    norm_eps: float = 1e-5
    norm_bias: bool = False
    pad_token_id: int | None = 50283
    eos_token_id: int | list[int] | None = 50282
    bos_token_id: int | None = 50281
    cls_token_id: int | None = 50281
    sep_token_id: int | None = 50282
    attention_bias: bool = False
    attention_dropout: float | int = 0.0
    attention_output_dropout: float | int | None = None
    layer_types: list[str] | None = None
    rope_parameters: dict[str, Any] | None = None
    local_attention: int = 128
    embedding_dropout: float | int = 0.0
    mlp_bias: bool = False
    mlp_dropout: float | int = 0.0
    decoder_bias: bool = True
    classifier_pooling: str = "cls"
    classifier_dropout: float | int = 0.0
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    deterministic_flash_attn: bool = False
    sparse_prediction: bool = False
    sparse_pred_ignore_index: int = -100
    # Not fields, unlike in other families.
    layer_norm_eps: ClassVar[float] = property(
        lambda self: self.norm_eps, lambda self, value: setattr(self, "norm_eps", value)
    )
    position_embedding_type: ClassVar[str] = property(lambda self: "absolute")  # no table of distances
    type_vocab_size: ClassVar[int] = property(lambda self: TYPES)

    def __post_init__(self, **kwargs: Any):
        """Check the fields, and derive what None stands for."""
        for name in IGNORED_FIELDS:
            kwargs.pop(name, None)
        for name in SPECIAL_IDS:  # those of the published vocabulary, which a smaller one has not
            if getattr(self, name) == getattr(type(self), name) and getattr(self, name) >= self.vocab_size:
                setattr(self, name, None)
        global_every = kwargs.pop("global_attn_every_n_layers", GLOBAL_EVERY)
        if self.layer_types is None:
            self._require_field("global_attn_every_n_layers", global_every, global_every >= 1, "must be at least 1")
            self.layer_types = [SLIDING if i % global_every else FULL for i in range(self.num_hidden_layers)]
        thetas = {name: kwargs.pop(field, THETAS[name]) for name, field in THETA_FIELDS.items()}
        if thetas[SLIDING] in SAME_AS_GLOBAL:
            thetas[SLIDING] = thetas[FULL]
        self._complete_rope_parameters(thetas)
        super().__post_init__(**kwargs)

    def _complete_rope_parameters(self, thetas: dict[str, float]) -> None:
        """Add what is not set of `rope_parameters`; ValueError for what is wrong in them."""
        parameters, example = self.rope_parameters or {}, f"{{{FULL!r}: {{'rope_theta': 160000}}, {SLIDING!r}: ...}}"
        is_by_type = all(name in thetas and isinstance(value, dict) for name, value in parameters.items())
        self._require_field("rope_parameters", parameters, is_by_type, f"must be those of types of layers, {example}")
        self.rope_parameters = {
            name: {"rope_type": "default", "rope_theta": float(theta), **parameters.get(name, {})}
            for name, theta in thetas.items()
        }
        for name, values in self.rope_parameters.items():
            theta = values["rope_theta"]
            is_above = isinstance(theta, int | float) and theta > 0
            self._require_field(f"rope_parameters: {name}: rope_theta", theta, is_above, "must be a number above 0")

    @staticmethod
    def _require_field(name: str, value: Any, condition: bool, rule: str) -> None:
        if not condition:
            raise ValueError(f"{name}={value!r} {rule}.")

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Leave `rope_parameters` as they are: transformers would complete them."""
        return kwargs

    def _check(self) -> None:
        super()._check()
        known = f"must be a list of {FULL!r} and {SLIDING!r}, one for each of {self.num_hidden_layers} layers"
        is_complete = len(self.layer_types) == self.num_hidden_layers and set(self.layer_types) <= {FULL, SLIDING}
        self._require("layer_types", is_complete, known)
        is_even = self.hidden_size // self.num_attention_heads % 2 == 0
        self._require("num_attention_heads", is_even, f"of hidden_size={self.hidden_size} must be of even width")
        self._require("local_attention", self.local_attention >= 2, "must be at least 2")
        self._require("classifier_pooling", self.classifier_pooling in ("cls", "mean"), "must be 'cls' or 'mean'")
        for name in ("embedding_dropout", "attention_output_dropout"):
            value = getattr(self, name)
            self._require(name, value is None or 0 <= value < 1, "must be a probability in [0, 1)")

    @property
    def sliding_window(self) -> int:
        """Tokens that are seen to each side in a layer with a window; transformers' masks read it."""
        return self.local_attention // 2

    @sliding_window.setter
    def sliding_window(self, value: int) -> None:
        self.local_attention = 2 * value

    @property
    def residual_range(self) -> float:
        """Standard deviation of the initial weights of what is added to the residual stream, and in heads."""
        return self.initializer_range / (2 * self.num_hidden_layers) ** 0.5

    @property
    def output_dropout(self) -> float:
        """Dropout after the projection of attention."""
        dropout = self.attention_output_dropout
        return self.attention_dropout if dropout is None else dropout

    @property
    def has_position_table(self) -> bool:
        """Return False: positions are rotations."""
        return False

    def fields_of_layers(self, layers: list[int]) -> dict[str, Any]:
        """Return the types of some layers; ValueError where the first is not in its place, or elsewhere too."""
        if layers[0] != 0 or 0 in layers[1:]:
            raise ValueError(
                f"layers: {' '.join(map(str, layers))} must begin with 0 and not repeat it: ModernBERT's first layer "
                "has no LayerNorm before its attention."
            )
        return {"layer_types": [self.layer_types[layer] for layer in layers]}

    @property
    def extra_ids(self) -> dict[str, int]:
        """Return none: there are no token types."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return as in `EncoderConfig`, without a field that transformers' class does not have unless it is used."""
        output = super().to_dict()
        if self.attention_output_dropout is None:
            del output["attention_output_dropout"]
        return output

    @classmethod
    def sized(cls, layers: int, width: int, inner: int, **fields: Any) -> "HfeModernBertConfig":
        """Return a size with heads of width 64, as all published ones."""
        sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner}
        return cls(**{**sizes, "num_attention_heads": width // 64, **fields})

    @classmethod
    def base(cls, **overrides: Any) -> "HfeModernBertConfig":
        """ModernBERT-base, Ettin's 150 M too: 22 layers, width 768; 149,014,272 parameters."""
        return cls(**overrides)

    @classmethod
    def large(cls, **overrides: Any) -> "HfeModernBertConfig":
        """ModernBERT-large, Ettin's 400 M too: 28 layers, width 1024; 394,781,696 parameters."""
        return cls.sized(28, 1024, 2624, **overrides)

    @classmethod
    def ettin_17m(cls, **overrides: Any) -> "HfeModernBertConfig":
        """Ettin (Weller et al. 2025, https://arxiv.org/abs/2507.11412), 17 M: 7 layers, width 256; 16,797,440."""
        return cls.sized(7, 256, 384, **{**ETTIN, **overrides})

    @classmethod
    def ettin_32m(cls, **overrides: Any) -> "HfeModernBertConfig":
        """Ettin, 32 M: 10 layers, width 384; 31,883,136 parameters."""
        return cls.sized(10, 384, 576, **{**ETTIN, **overrides})

    @classmethod
    def ettin_68m(cls, **overrides: Any) -> "HfeModernBertConfig":
        """Ettin, 68 M: 19 layers, width 512; 68,144,640 parameters."""
        return cls.sized(19, 512, 768, **{**ETTIN, **overrides})

    @classmethod
    def ettin_1b(cls, **overrides: Any) -> "HfeModernBertConfig":
        """Ettin, 1 B: 28 layers, width 1792; 1,028,050,688 parameters."""
        return cls.sized(28, 1792, 3840, **{**ETTIN, **overrides})

    @classmethod
    def mmbert_small(cls, **overrides: Any) -> "HfeModernBertConfig":
        """Small mmBERT (Marone et al. 2025, https://arxiv.org/abs/2509.06888): width 384; 140,493,696 parameters."""
        return cls.sized(22, 384, 1152, **{"vocab_size": 256_000, **overrides})

    @classmethod
    def mmbert_base(cls, **overrides: Any) -> "HfeModernBertConfig":
        """Base mmBERT: 22 layers, width 768; 306,939,648 parameters."""
        return cls(**{"vocab_size": 256_000, **overrides})
