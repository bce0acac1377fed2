"""Configuration of XLM (Lample and Conneau 2019, https://arxiv.org/abs/1901.07291).

Differs from BERT in: an embedding of the language of each token instead of token types, names of its own, a
feed-forward part that is always 4 times as wide as the model.
"""

from typing import Any, ClassVar

from .encoder_configuration import EncoderConfig, auto_map, strict


# What other families set and XLM derives: property -> the field that decides it.
DERIVED = {"intermediate_size": "emb_dim", "hidden_act": "gelu_activation", "type_vocab_size": "vocab_size"}
# Fields of what is not built: field -> the only value, what others are. Of transformers' ways to summarise a sequence
# the first token alone does not depend on padding.
FIXED = {
    "causal": (False, "is a decoder's"),
    "is_encoder": (True, "is a decoder's"),
    "asm": (False, "is an adaptive softmax, which is not built"),
    "summary_type": ("first", "is not built, only 'first' is"),
    "summary_use_proj": (True, "is not built, only True is"),
    "summary_proj_to_labels": (True, "is not built, only True is"),
}


@strict
class HfeXLMConfig(EncoderConfig):
    r"""XLM; the defaults are [FacebookAI/xlm-mlm-en-2048](https://huggingface.co/FacebookAI/xlm-mlm-en-2048).

    Fields as in `EncoderConfig`, and those of `XLMConfig`:

    Args:
        emb_dim (`int`): D, width of the model, a multiple of `n_heads`; the feed-forward part is `4 * emb_dim` wide.
        n_layers, n_heads (`int`): layers and A.
        dropout, attention_dropout (`float`): probabilities in [0, 1): after embeddings and after each sub-layer; on
            attention weights.
        gelu_activation (`bool`): GELU (erf) instead of ReLU.
        sinusoidal_embeddings (`bool`): positions begin as sine and cosine. They are trained, as in transformers; the
            original code keeps them.
        n_langs (`int`): number of languages.
        use_lang_emb (`bool`): whether the language of each token has an embedding, if there are several.
        lang2id (`dict`, *optional*): name of each language -> its id in [0, n_langs).
        id2lang (`dict`, *optional*): the reverse, for readers of config.json; None derives it.
        default_lang (`str`, *optional*): name of the language of inputs without `langs`. None refuses them where the
            model has language embeddings. transformers does not know the field, and leaves the embedding out.
        embed_init_std (`float`, *optional*): standard deviation of the embeddings' normal initialisation; None means
            `emb_dim ** -0.5` (`Embedding` in `xlm/model/transformer.py`).
        init_std (`float`): of that of the matrices.
        summary_type (`str`): how the sequence and choice heads summarise a sequence: `first` only.
        summary_use_proj, summary_proj_to_labels (`bool`): their projection to the labels; both must be true.
        summary_activation (`str`, *optional*): activation after it.
        summary_first_dropout (`float`): probability in [0, 1) before it.
        causal, asm (`bool`), is_encoder (`bool`): a decoder and an adaptive softmax, which are refused.
        unk_index, mask_index, mask_token_id, lang_id, start_n_top, end_n_top: not used; kept for other readers.
    """

    model_type = "xlm"
    attribute_map = {
        "hidden_size": "emb_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "n_words": "vocab_size",
        "bos_index": "bos_token_id",
        "eos_index": "eos_token_id",
        "pad_index": "pad_token_id",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "initializer_range": "init_std",
    }
    TOKENIZER_CLASS: ClassVar[str] = "PreTrainedTokenizerFast"
    HEAD_DROPOUT_FIELD: ClassVar[str] = "dropout"
    VOCABULARY_KIND: ClassVar[str] = "suffix-bpe"
    # `Dictionary` in `xlm/data/dictionary.py`; the mask is `<special1>`.
    FIRST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = (
        *("bos", "sep", "pad", "unk", "<special0>", "mask"),
        *(f"<special{number}>" for number in range(2, 10)),
    )
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("xlm", "HfeXLM") | {
        "AutoModelForPreTraining": "modeling_xlm.HfeXLMWithLMHeadModel",
        "AutoModelForMaskedLM": "modeling_xlm.HfeXLMWithLMHeadModel",
        "AutoModelForQuestionAnswering": "modeling_xlm.HfeXLMForQuestionAnsweringSimple",
    }

    vocab_size: int = 30145
    emb_dim: int = 2048
    n_layers: int = 12
    n_heads: int = 16
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.1
    gelu_activation: bool = True
    sinusoidal_embeddings: bool = False
    causal: bool = False
    asm: bool = False
    n_langs: int = 1
    use_lang_emb: bool = True
    lang2id: dict[str, int] | None = None
    id2lang: dict[int, str] | dict[str, str] | None = None
    default_lang: str | None = None
    embed_init_std: float | None = None
    init_std: float = 0.02
    unk_index: int = 3
    mask_index: int = 5
    is_encoder: bool = True
    summary_type: str = "first"
    summary_use_proj: bool = True
    summary_activation: str | None = None
    summary_proj_to_labels: bool = True
    summary_first_dropout: float | int = 0.1
    start_n_top: int = 5
    end_n_top: int = 5
    mask_token_id: int | None = 0
    lang_id: int = 0
    pad_token_id: int | None = 2
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1

    def __post_init__(self, **kwargs: Any):
        """Check the fields and derive what None stands for."""
        derived = {name: kwargs.pop(name) for name in DERIVED if name in kwargs}
        super().__post_init__(**kwargs)
        for name, value in derived.items():
            if value != getattr(self, name):
                raise ValueError(
                    f"{name}={value!r}: XLM has {getattr(self, name)!r}, by {DERIVED[name]}: leave it out."
                )
        if self.embed_init_std is None:
            self.embed_init_std = self.emb_dim**-0.5
        names = self.id2lang or {number: name for name, number in (self.lang2id or {}).items()}
        self.id2lang = {int(number): name for number, name in names.items()} or None

    def _check(self) -> None:
        super()._check()
        self._require("n_langs", self.n_langs > 0, "must be at least 1")
        for name, (needed, rule) in FIXED.items():
            self._require(name, getattr(self, name) == needed, f"{rule}: leave it out, or use transformers' own class")
        self._require("summary_first_dropout", 0 <= self.summary_first_dropout < 1, "must be a probability in [0, 1)")
        is_plain = self.position_embedding_type == "absolute" or not self.sinusoidal_embeddings
        self._require("sinusoidal_embeddings", is_plain, "has no effect on relative positions: leave it out")
        ids = list((self.lang2id or {}).values())
        is_fit = len(set(ids)) == len(ids) and all(0 <= number < self.n_langs for number in ids)
        self._require("lang2id", is_fit, f"must give each language an id of its own below n_langs={self.n_langs}")
        if self.default_lang is not None:
            known = ", ".join(self.lang2id or {}) or "no language: set lang2id too"
            self._require("default_lang", self.default_lang in (self.lang2id or {}), f"is not in lang2id ({known})")
            reason = "has no effect without language embeddings (n_langs above 1, use_lang_emb): leave it out"
            self._require("default_lang", self.has_language_embeddings, reason)

    @property
    def has_language_embeddings(self) -> bool:
        """Return whether the model reads `langs`."""
        return self.n_langs > 1 and self.use_lang_emb

    @property
    def extra_ids(self) -> dict[str, int]:
        """Languages. No token types: even an id of 0 adds a word's embedding."""
        return {"langs": self.n_langs} if self.has_language_embeddings else {}

    @property
    def required_ids(self) -> dict[str, str]:
        """Languages, unless there is a default one."""
        return {"langs": "default_lang"} if self.has_language_embeddings and self.default_lang is None else {}

    @property
    def languages(self) -> dict[str, int] | None:
        """The field `lang2id` of a model with language embeddings."""
        return (self.lang2id or {}) if self.has_language_embeddings else None

    @classmethod
    def language_fields(cls, names: list[str]) -> dict[str, Any]:
        """Return the fields of a model of the languages `names`, with ids in their order."""
        return {"n_langs": len(names), "lang2id": {name: number for number, name in enumerate(names)}}

    @property
    def intermediate_size(self) -> int:
        """Width inside the feed-forward part."""
        return 4 * self.emb_dim

    @property
    def hidden_act(self) -> str:
        """Name of the activation."""
        return "gelu" if self.gelu_activation else "relu"

    @property
    def type_vocab_size(self) -> int:
        """Token types are words here, as in transformers: their embedding is the word's of that id."""
        return self.vocab_size

    @classmethod
    def mlm_en_2048(cls, **overrides: Any) -> "HfeXLMConfig":
        """English, 12 layers, width 2048; 667,088,896 parameters."""
        return cls(**overrides)

    @classmethod
    def mlm_xnli15_1024(cls, **overrides: Any) -> "HfeXLMConfig":
        """The 15 languages of XNLI, with language embeddings; 12 layers, width 1024; 248,976,384 parameters."""
        return cls(**{"vocab_size": 95000, "emb_dim": 1024, "n_heads": 8, "n_langs": 15, **overrides})

    @classmethod
    def mlm_17_1280(cls, **overrides: Any) -> "HfeXLMConfig":
        """17 languages, without language embeddings; 16 layers, width 1280; 571,496,960 parameters."""
        sizes = {"vocab_size": 200000, "emb_dim": 1280, "n_layers": 16, "n_langs": 17, "use_lang_emb": False}
        return cls(**{**sizes, **overrides})

    @classmethod
    def mlm_100_1280(cls, **overrides: Any) -> "HfeXLMConfig":
        """100 languages, without language embeddings; 16 layers, width 1280; 571,496,960 parameters."""
        return cls.mlm_17_1280(**{"n_langs": 100, **overrides})
