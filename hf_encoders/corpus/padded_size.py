"""`vocab_size` of a model for a tokenizer."""

from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import check_tokenizer


# Tensor cores are fastest with dimensions that are multiples of 8 to 64 (NVIDIA's guide to matrix multiplication,
# "Requirements to use Tensor Cores": 128 bytes on an A100, 64 values of 16 bits).
MULTIPLE = 64


def padded_vocab_size(tokenizer: PreTrainedTokenizerBase, multiple_of: int = MULTIPLE) -> int:
    """`vocab_size` of a configuration: the tokenizer's ids rounded up, for fast products with the vocabulary.

    The model is padded, not the tokenizer: no text gives the extra ids, and collators never sample them. They stay in
    the softmax, as in transformers' models. At first they take their share of the probability,
    (V - len(tokenizer)) / V, which adds as much to the loss in nats (0.0002 for 30,522 in 30,528); as they are never
    correct, their biases fall and the share vanishes.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Its largest id counts, so that gaps between ids are allowed.
        multiple_of (`int`, *optional*, defaults to 64): At least 1, which pads nothing.

    >>> len(doctest_tokenizer()), padded_vocab_size(doctest_tokenizer())
    (60, 64)
    """
    check_tokenizer(tokenizer)
    if multiple_of < 1:
        raise ValueError(f"multiple_of={multiple_of}: must be at least 1, which pads nothing.")
    least = max(tokenizer.get_vocab().values()) + 1
    return -(-least // multiple_of) * multiple_of
