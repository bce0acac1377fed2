"""Configuration of XLNet (Yang et al. 2019, https://arxiv.org/abs/1906.08237).

Differs from BERT in: names of its own, distances instead of positions, no table of token types, one dropout for all
places. Leaves out: memory (`mems`), the decoder of `attn_type="uni"`.
"""

from typing import Any, ClassVar

from .encoder_configuration import EncoderConfig, auto_map, strict


NO_LIMIT = 2**31 - 1  # on lengths of rows and on token types: they have no tables
SEGMENTS = 4  # token types that the tokenizer gives: first text, second text, <cls>, padding

# Fields of what is not built: field -> the only value, what others are.
FIXED = {
    "attn_type": ("bi", "is a decoder's"),
    "same_length": (False, "is a decoder's"),
    "untie_r": (True, "shares biases between layers, which is not built"),
    "bi_data": (False, "is is_reversed of forward here, one flag per sequence"),
    "use_mems_train": (False, "is memory, which is not built"),
    "summary_type": ("last", "is not built, only 'last' is"),
}


@strict
class HfeXLNetConfig(EncoderConfig):
    r"""XLNet; the defaults are [xlnet/xlnet-large-cased](https://huggingface.co/xlnet/xlnet-large-cased).

    Fields as in `EncoderConfig`, and of `XLNetConfig`:

    Args:
        d_model (`int`): D, width of the model, even and a multiple of `n_head`.
        n_layer, n_head (`int`): layers and A.
        d_inner (`int`): width inside the feed-forward part.
        d_head (`int`, *optional*): width of a head; always `d_model / n_head`, which None means.
        ff_activation (`str`): activation; `gelu` is the erf form, as in transformers, `gelu_new` the tanh form of the
            original code.
        dropout (`float`): probability in [0, 1) after embeddings, on the encoding of distances, on attention weights,
            inside the feed-forward part and after each sub-layer.
        initializer_range (`float`): standard deviation of the normal initialisation.
        clamp_len (`int`): longest distance, longer ones count as this one; -1 for none.
        summary_type (`str`): how the sequence and choice heads summarise a sequence: `last` only, its last token.
        summary_use_proj (`bool`): whether a projection of width D follows.
        summary_activation (`str`): activation after it; empty for none.
        summary_last_dropout (`float`): probability in [0, 1) after that.
        attn_type (`str`), same_length (`bool`): `bi` and false; others are a decoder's and refused.
        untie_r (`bool`): true: every layer has biases of its own; what files of before transformers 5 say.
        bi_data (`bool`): false; reading half of a batch in reverse is `is_reversed` of `forward` here.
        use_mems_train (`bool`): false; memory is not built.
        mem_len, reuse_len, use_mems_eval: of that memory; without effect on inputs without it, kept for other readers.
        start_n_top, end_n_top: not used; kept for other readers.
    """

    model_type = "xlnet"
    attribute_map = {
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "hidden_dropout_prob": "dropout",
    }
    TOKENIZER_CLASS: ClassVar[str] = "XLNetTokenizer"
    HEAD_DROPOUT_FIELD: ClassVar[str] = "summary_last_dropout"
    VOCABULARY_KIND: ClassVar[str] = "unigram"
    # `data_utils.py` of zihangdai/xlnet.
    FIRST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = (
        *("unk", "bos", "eos", "cls", "sep", "pad", "mask"),
        *("<eod>", "<eop>"),
    )
    ABSENT: ClassVar[dict[str, str]] = {
        "max_position_embeddings": "XLNet reads rows of any length",
        "position_embedding_type": "XLNet has relative positions of its own",
        "type_vocab_size": "XLNet only asks whether two tokens have the same type",
        "attention_probs_dropout_prob": "XLNet has one probability, dropout",
    }
    AUTO_MAP: ClassVar[dict[str, str]] = {
        name: reference for name, reference in auto_map("xlnet", "HfeXLNet").items() if name != "AutoModelForMaskedLM"
    } | {
        "AutoModelForPreTraining": "modeling_xlnet.HfeXLNetLMHeadModel",
        "AutoModelForQuestionAnswering": "modeling_xlnet.HfeXLNetForQuestionAnsweringSimple",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["plm"]

    vocab_size: int = 32000
    d_model: int = 1024
    n_layer: int = 24
    n_head: int = 16
    d_inner: int = 4096
    d_head: int | None = None
    ff_activation: str = "gelu"
    attn_type: str = "bi"
    initializer_range: float = 0.02
    dropout: float | int = 0.1
    mem_len: int | None = 512
    reuse_len: int | None = None
    use_mems_eval: bool = True
    use_mems_train: bool = False
    bi_data: bool = False
    clamp_len: int = -1
    same_length: bool = False
    untie_r: bool = True
    summary_type: str = "last"
    summary_use_proj: bool = True
    summary_activation: str = "tanh"
    summary_last_dropout: float | int = 0.1
    start_n_top: int = 5
    end_n_top: int = 5
    pad_token_id: int | None = 5
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    # Not fields, unlike in other families: transformers' XLNet refuses a file that has the first one.
    max_position_embeddings: ClassVar[int] = property(lambda self: NO_LIMIT)
    position_embedding_type: ClassVar[str] = property(lambda self: "absolute")  # no table of distances
    type_vocab_size: ClassVar[int] = property(lambda self: NO_LIMIT)

    def _check(self) -> None:
        super()._check()
        if self.d_head is None:
            self.d_head = self.d_model // self.n_head
        is_whole = self.d_head == self.d_model // self.n_head
        self._require("d_head", is_whole, f"must be d_model / n_head = {self.d_model // self.n_head}: leave it out")
        self._require("d_model", self.d_model % 2 == 0, "must be even: half are sines of distances, half cosines")
        self._require("clamp_len", self.clamp_len == -1 or self.clamp_len > 0, "must be at least 1, or -1 for none")
        for name, (needed, rule) in FIXED.items():
            self._require(name, getattr(self, name) == needed, f"{rule}: leave it out, or use transformers' own class")

    @property
    def attention_probs_dropout_prob(self) -> float | int:
        """Dropout on attention weights."""
        return self.dropout

    @attention_probs_dropout_prob.setter
    def attention_probs_dropout_prob(self, value: float) -> None:
        self.dropout = value

    @property
    def has_position_table(self) -> bool:
        """Never: distances are sinusoids."""
        return False

    @property
    def extra_ids(self) -> dict[str, int]:
        """Token types that the tokenizer gives."""
        return {"token_type_ids": SEGMENTS}

    @classmethod
    def base(cls, **overrides: Any) -> "HfeXLNetConfig":
        """Return the sizes of xlnet-base-cased: 12 layers, width 768; 116,718,336 parameters."""
        return cls(**{"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072, **overrides})

    @classmethod
    def large(cls, **overrides: Any) -> "HfeXLNetConfig":
        """Return the sizes of xlnet-large-cased: 24 layers, width 1024; 360,268,800 parameters."""
        return cls(**overrides)
