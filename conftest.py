"""Fixtures for the tests and for the examples in docstrings."""

import os
from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


if "PYTEST_XDIST_WORKER" in os.environ:
    # A core for each worker, and for the processes that its tests start: more threads than cores are slow.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def word_tokenizer(num_words: int = 60) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words: ids 0-4 are [PAD], [CLS], [SEP], [UNK], [MASK]; then w5, w6, ..."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    vocabulary = {token: i for i, token in enumerate([*special, *(f"w{i}" for i in range(5, num_words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ("pad_token", "cls_token", "sep_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, special, strict=True)))


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of `word_tokenizer`."""
    return word_tokenizer()


@pytest.fixture
def make_tokenizer() -> Callable[[int], PreTrainedTokenizerFast]:
    """`word_tokenizer` itself, for a vocabulary of another size."""
    return word_tokenizer


@pytest.fixture(autouse=True)
def _names_in_docstring_examples(doctest_namespace: dict) -> None:
    doctest_namespace["doctest_tokenizer"] = word_tokenizer
