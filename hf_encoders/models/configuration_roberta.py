"""Configuration of RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692).

Differs from BERT in: vocabulary, ids of the special tokens, one token type, positions that start at
`pad_token_id + 1`.
"""

from typing import Any, ClassVar

from .encoder_configuration import BertFieldsConfig, auto_map, strict


@strict
class HfeRobertaConfig(BertFieldsConfig):
    r"""RoBERTa; the defaults are [FacebookAI/roberta-base](https://huggingface.co/FacebookAI/roberta-base).

    Fields as in `BertFieldsConfig`, and:

    Args:
        max_position_embeddings (`int`): rows of the position table. Rows up to `pad_token_id` are unused, so the
            longest sequence is `max_position_embeddings - pad_token_id - 1`: 514 rows for 512 tokens.
        classifier_dropout (`float`, *optional*): dropout probability in a task's classifier; None means
            `hidden_dropout_prob`.

    The released models have 514 positions, epsilon 1e-5 and one token type; transformers' own `RobertaConfig()` has
    512, 1e-12 and 2.
    """

    model_type = "roberta"
    OTHER_MODEL_TYPES: ClassVar[dict[str, str]] = {"camembert": "CamembertTokenizer"}
    TOKENIZER_CLASS: ClassVar[str] = "RobertaTokenizer"
    HEAD_DROPOUT_FIELD: ClassVar[str] = "classifier_dropout"
    VOCABULARY_KIND: ClassVar[str] = "bpe"
    # fairseq's dictionary begins with these four, and the masked LM task adds the mask at the end.
    FIRST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("cls", "pad", "sep", "unk")
    LAST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("mask",)
    # RoBERTa has no pair objective: its pre-training head is the MLM head, as in transformers.
    AUTO_MAP: ClassVar[dict[str, str]] = auto_map("roberta", "HfeRoberta", pretraining="MaskedLM")

    vocab_size: int = 50265
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    classifier_dropout: float | int | None = None

    def _check(self) -> None:
        super()._check()
        if self.pad_token_id is None:
            raise ValueError("pad_token_id=None: RoBERTa counts positions from it; set the tokenizer's pad id.")
        if self.position_embedding_type == "absolute" and self.max_position_embeddings <= self.pad_token_id + 1:
            raise ValueError(
                f"max_position_embeddings={self.max_position_embeddings} leaves no position after pad_token_id="
                f"{self.pad_token_id}: set it to the longest sequence + pad_token_id + 1."
            )

    @classmethod
    def position_rows(cls, max_length: int, pad_token_id: int) -> int:
        """`max_position_embeddings` for sequences of `max_length` tokens: positions begin after `pad_token_id`."""
        return max_length + pad_token_id + 1

    @classmethod
    def base(cls, **overrides: Any) -> "HfeRobertaConfig":
        """RoBERTa-base: 12 layers, width 768; 124,645,632 parameters with pooler (paper, section 3.1)."""
        return cls(**overrides)

    @classmethod
    def large(cls, **overrides: Any) -> "HfeRobertaConfig":
        """RoBERTa-large: 24 layers, width 1024; 355,359,744 parameters with pooler (paper, section 5)."""
        sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        return cls(**{**sizes, **overrides})
