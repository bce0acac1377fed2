"""Batches padded at the end, whatever side a tokenizer prefers: labels that are columns must not move."""

import copy

from transformers import PreTrainedTokenizerBase


def padding_at_the_end(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, for a collator; the one given stays as it is.

    >>> padding_at_the_end(doctest_tokenizer()).padding_side
    'right'
    """
    copied = copy.copy(tokenizer)
    copied.padding_side = "right"
    return copied
