"""Texts and pairs of texts to token ids, for the tasks with one label, or one number, per row."""

import copy
from collections.abc import Sequence
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from hf_encoders.finetuning.data_files import require_columns


def text_columns(
    data: datasets.DatasetDict, text_column: str, text_pair_column: str | None, label_column: str
) -> tuple[str, ...]:
    """The columns that the encoder reads; refuses data without them, and rows whose text is not text."""
    require_columns(data, text_column=text_column, text_pair_column=text_pair_column, label_column=label_column)
    columns = (text_column,) if text_pair_column is None else (text_column, text_pair_column)
    for column in columns:
        require_text(data, column)
    return columns


def require_text(data: datasets.DatasetDict, column: str) -> None:
    """Refuse rows whose `column` is not text."""
    for split, rows in data.items():
        for row, text in enumerate(rows[column]):
            if not isinstance(text, str):
                raise ValueError(f"{split} data, row {row}: {column} is {text!r}, not text.")


def encode_texts(
    texts: list[str], pairs: list[str] | None, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[dict[str, list], int]:
    """Token ids of texts or of pairs, at most `max_length`, and the number of truncated rows.

    The longer text of a pair is truncated first. Token types are asked for, since tokenizers of ALBERT and XLNet may
    return them only on request, and left out where none is above 0: to XLM a token type of 0 is not the same as none.
    XLNet's `<cls>` has one of its own.

    >>> encode_texts(["w5", "w6 w7 w8"], None, doctest_tokenizer(), 4)[0]["input_ids"]
    [[5], [6, 7, 8]]
    >>> encoded, truncated = encode_texts(["w5 w6"], ["w7 w8 w9"], doctest_tokenizer(), 4)
    >>> encoded["input_ids"], encoded["token_type_ids"], truncated
    ([[5, 6, 7, 8]], [[0, 0, 1, 1]], 1)
    """
    encoded = tokenizer(texts, pairs, truncation="longest_first", max_length=max_length, return_token_type_ids=True)
    if encoded.encodings is None:  # a tokenizer written in Python does not say what it cut off
        whole = tokenizer(texts, pairs, truncation=False, verbose=False)["input_ids"]
        truncated = sum(len(ids) > max_length for ids in whole)
    else:
        truncated = sum(bool(encoding.overflowing) for encoding in encoded.encodings)
    if not any(map(any, encoded["token_type_ids"])):
        del encoded["token_type_ids"]
    return dict(encoded), truncated


def encode_splits(
    data: datasets.DatasetDict,
    text_columns: tuple[str, ...],
    labels: dict[str, list],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> tuple[dict[str, datasets.Dataset], list[str]]:
    """Tokenized rows with `labels`, and a line about each split for the plan."""
    encoded, plan = {}, []
    for split, rows in data.items():
        texts, *pairs = (rows[column][:] for column in text_columns)
        columns, truncated = encode_texts(texts, pairs[0] if pairs else None, tokenizer, max_length)
        encoded[split] = datasets.Dataset.from_dict({**columns, "labels": labels[split]})
        plan.append(describe_lengths(split, columns["input_ids"], truncated))
    return encoded, plan


def describe_lengths(split: str, input_ids: Sequence[Sequence[Any]], truncated: int) -> str:
    """A line about a tokenized split, for the plan."""
    lengths = [len(ids) for ids in input_ids]
    return (
        f"{split}: {len(lengths):,} examples of {sum(lengths) / len(lengths):.0f} tokens on average, {max(lengths)} "
        f"at most; {truncated / len(lengths):.1%} are truncated"
    )


def right_padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy of the tokenizer that pads on the right, for labels that are positions."""
    copied = copy.copy(tokenizer)
    copied.padding_side = "right"
    return copied
