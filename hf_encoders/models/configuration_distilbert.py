"""Configuration of DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108).

Differs from BERT in: no token types, names of its own, dropout of its own in the heads.
"""

from typing import Any, ClassVar

from .encoder_configuration import EncoderConfig, auto_map, strict


NATIVE_EPS = 1e-12  # a constant in transformers' class
TYPES = 1  # all tokens are of type 0, whose embedding a student of BERT has in its positions


@strict
class HfeDistilBertConfig(EncoderConfig):
    r"""DistilBERT; the defaults are those of the released base model.

    [distilbert/distilbert-base-uncased](https://huggingface.co/distilbert/distilbert-base-uncased).
    Fields as in `EncoderConfig`, and of `DistilBertConfig`:

    Args:
        dim (`int`): D, width of the model, a multiple of `n_heads`.
        n_layers, n_heads (`int`): layers and A.
        hidden_dim (`int`): width inside the feed-forward part.
        activation (`str`): activation of the feed-forward part and of the MLM head.
        dropout, attention_dropout (`float`): probabilities in [0, 1): after embeddings and the feed-forward part, and
            before the classifier of tokens; on attention weights.
        seq_classif_dropout, qa_dropout (`float`): probabilities in [0, 1) before the classifiers of sequences and
            choices; before that of answers.
        sinusoidal_pos_embds (`bool`): positions begin as sine and cosine, and are trained. The released models' are
            BERT's.
        layer_norm_eps (`float`): transformers' class has 1e-12; `model_type` is another on disk for another value.
        initializer_range (`float`): standard deviation of the normal initialisation.
    """

    model_type = "distilbert"
    attribute_map = {
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }
    TOKENIZER_CLASS: ClassVar[str] = "DistilBertTokenizer"
    HEAD_DROPOUT_FIELD: ClassVar[str] = "dropout"
    VOCABULARY_KIND: ClassVar[str] = "wordpiece"
    STUDENT_OF: ClassVar[tuple[str, ...]] = ("bert",)  # families whose students are of this one
    # DistilBERT has no pair objective: its pre-training head is the MLM head, as in transformers.
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("distilbert", "HfeDistilBert", pretraining="MaskedLM")

    dim: int = 768
    n_layers: int = 6
    n_heads: int = 12
    hidden_dim: int = 3072
    activation: str = "gelu"
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.1
    seq_classif_dropout: float | int = 0.2
    qa_dropout: float | int = 0.1
    sinusoidal_pos_embds: bool = False
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs: Any):
        """Check the fields."""
        types = kwargs.pop("type_vocab_size", TYPES)
        if types != TYPES:
            raise ValueError(f"type_vocab_size={types}: DistilBERT has no token types: leave it out.")
        super().__post_init__(**kwargs)

    def _check(self) -> None:
        super()._check()
        for name in ("seq_classif_dropout", "qa_dropout"):
            self._require(name, 0 <= getattr(self, name) < 1, "must be a probability in [0, 1)")
        is_plain = self.position_embedding_type == "absolute" or not self.sinusoidal_pos_embds
        self._require("sinusoidal_pos_embds", is_plain, "has no effect on relative positions: leave it out")

    @property
    def type_vocab_size(self) -> int:
        """1: `token_type_ids` may be 0."""
        return TYPES

    @property
    def extra_ids(self) -> dict[str, int]:
        """None: there are no token types."""
        return {}

    @property
    def fields_beyond_native(self) -> dict[str, Any]:
        """As in `EncoderConfig`, and another epsilon."""
        more_fields = {} if self.layer_norm_eps == NATIVE_EPS else {"layer_norm_eps": self.layer_norm_eps}
        return super().fields_beyond_native | more_fields

    @classmethod
    def base(cls, **overrides: Any) -> "HfeDistilBertConfig":
        """DistilBERT: 6 layers, width 768; 66,362,880 parameters (paper, section 3)."""
        return cls(**overrides)
