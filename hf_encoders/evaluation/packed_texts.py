"""Texts as flat token ids, cut into packed batches in their given order."""

import itertools
import reprlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.segmentation import replace_lone_surrogates
from hf_encoders.objectives.batches import to_device


TEXTS_AT_ONCE = 1024  # that the tokenizer gets: lists of Python integers exist for these only
PER_TOKEN = ("input_ids", "token_type_ids")  # what a tokenizer returns for each token, the mask apart


@dataclass
class PackedTexts:
    """Tokenized texts one after the other, special tokens included.

    Args:
        inputs (`dict`): `input_ids`, and other arguments of `forward` with one id per token; each `np.ndarray` of
            `int32` and shape `(N,)`.
        offsets (`np.ndarray` of `int64` and shape `(S + 1,)`): Where each text begins, and the end of the last one.
    """

    inputs: dict[str, np.ndarray]
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, `(S,)`."""
        return np.diff(self.offsets)

    def batches(self, max_tokens: int) -> Iterator[slice]:
        """Consecutive texts with at most `max_tokens` tokens, or one text that is longer than that.

        >>> texts = PackedTexts({}, offsets_of(np.array([4, 5, 2, 12, 3])))
        >>> [(batch.start, batch.stop) for batch in texts.batches(max_tokens=11)]
        [(0, 3), (3, 4), (4, 5)]
        """
        start, end = 0, len(self.offsets) - 1
        while start < end:
            stop = int(np.searchsorted(self.offsets, self.offsets[start] + max_tokens, "right")) - 1
            stop = max(stop, start + 1)
            yield slice(start, stop)
            start = stop

    def make_batch(self, texts: slice, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
        """Arguments of `forward`: a row `(1, n)` of each input, and `cu_seq_lens_q` of `(texts + 1,)`; all `int64`.

        >>> texts = PackedTexts({"input_ids": np.array([1, 7, 2, 1, 8, 9, 2, 1, 6, 2])}, np.array([0, 3, 7, 10]))
        >>> {name: tensor.tolist() for name, tensor in texts.make_batch(slice(1, 3)).items()}
        {'input_ids': [[1, 8, 9, 2, 1, 6, 2]], 'cu_seq_lens_q': [0, 4, 7]}
        """
        bounds = self.offsets[texts.start : texts.stop + 1]
        tokens = slice(bounds[0], bounds[-1])
        batch = {name: values[None, tokens].astype(np.int64) for name, values in self.inputs.items()}
        batch["cu_seq_lens_q"] = bounds - bounds[0]
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        device = torch.device(device)
        if device.type == "cuda":  # from pinned memory no copy waits for what is queued
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return to_device(tensors, device)


def tokenized(tokenizer: PreTrainedTokenizerBase, texts: Any, max_length: int | None = None) -> PackedTexts:
    """Tokenize texts, with special tokens, truncated to `max_length` tokens if given.

    Token types are left out where none is above 0, as everywhere here: XLM embeds a token type of 0.

    Raises:
        ValueError: If texts is not a list of strings, and for a text that has only special tokens.

    >>> packed = tokenized(doctest_tokenizer(), ["w5 w6", "w7"])
    >>> {name: ids.tolist() for name, ids in packed.inputs.items()}, packed.offsets.tolist()
    ({'input_ids': [5, 6, 7]}, [0, 2, 3])
    """
    texts = [replace_lone_surrogates(text) for text in list_of_strings("texts", texts)]  # as in a corpus
    options = {"truncation": max_length is not None, "max_length": max_length, "return_attention_mask": False}
    parts, lengths = [], []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        rows = tokenizer(texts[start : start + TEXTS_AT_ONCE], verbose=False, **options)
        lengths.extend(map(len, rows["input_ids"]))
        flat = {name: itertools.chain.from_iterable(rows[name]) for name in PER_TOKEN if name in rows}
        parts.append({name: np.fromiter(values, np.int32) for name, values in flat.items()})
    inputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if "token_type_ids" in inputs and not inputs["token_type_ids"].any():
        del inputs["token_type_ids"]
    is_empty = np.array(lengths) <= tokenizer.num_special_tokens_to_add()
    if is_empty.any():
        number = int(is_empty.argmax())
        raise ValueError(f"texts[{number}]={reprlib.repr(texts[number])} has no tokens: leave it out.")
    return PackedTexts(inputs, offsets_of(np.array(lengths)))


def list_of_strings(name: str, values: Any) -> list[str]:
    """The values of the argument `name` as a list; ValueError for anything but at least one string in a sequence."""
    # A set has no order, and a table of two dimensions gives the names of its columns.
    is_text_or_unordered = isinstance(values, (str, bytes, Mapping, Set))
    if is_text_or_unordered or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) != 1:
        raise ValueError(f"{name} is a {type(values).__name__}: pass a list of strings.")
    values = list(values)
    if not values:
        raise ValueError(f"{name} is empty: pass at least one.")
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(f"{name}[{number}] is a {type(value).__name__}: pass strings.")
    return values
