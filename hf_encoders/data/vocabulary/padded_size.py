"""How many rows a model's embedding table and MLM decoder have for a tokenizer."""

from transformers import PreTrainedTokenizerBase

from hf_encoders.data.special_tokens import check_tokenizer


# Tensor cores want the sizes of a product to be multiples of 8 (16-bit) to 64 (NVIDIA's guide to matrix products,
# "Requirements to use Tensor Cores": 128 bytes on an A100, so 64 values of 16 bits).
MULTIPLE = 64


def padded_vocab_size(tokenizer: PreTrainedTokenizerBase, multiple_of: int = MULTIPLE) -> int:
    """`vocab_size` of a configuration: the tokenizer's ids rounded up, so that products with the vocabulary are quick.

    The model is padded, not the tokenizer: no text gives the ids from `len(tokenizer)` on, and no replacement token of
    the collators is drawn from them. Their rows stay in the softmax, as in transformers' own models. At the start they
    take their share of the probability, (V - len(tokenizer)) / V, which adds that much to the loss in nats at first
    (0.0002 for 30,522 in 30,528); as they are never right, their biases fall and the share goes to nothing.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): its largest id counts, so that gaps between ids are no harm.
        multiple_of (`int`): at least 1, which pads nothing.

    Returns:
        `int`: V, above every id of the tokenizer.

    Raises:
        ValueError: if `multiple_of` is below 1.

    >>> len(doctest_tokenizer()), padded_vocab_size(doctest_tokenizer())
    (60, 64)
    """
    check_tokenizer(tokenizer)
    if multiple_of < 1:
        raise ValueError(f"multiple_of={multiple_of}: must be at least 1, which pads nothing.")
    least = max(tokenizer.get_vocab().values()) + 1
    return -(-least // multiple_of) * multiple_of
