"""What a batch consists of, counted where the batch is: on a GPU nothing waits for the figures."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from hf_encoders.data.batches import IGNORED


@dataclass
class TokenCounts:
    """Sums over batches.

    Args:
        tokens (`int`): real tokens, special ones included.
        cells (`int`): tokens and padding, B * T of each batch.
        squared_lengths (`int`): sum of L^2 over the sequences, which attention costs.
        predicted (`int`): tokens with a label.
        maskable (`int`): real tokens that could have been predicted, special ones left out.
        pairs (`int`): sentence pairs that are judged.
        label_1_pairs (`int`): of these, those whose label is 1.
        pair_examples (`int`): examples of a pair objective, with or without a label.
    """

    tokens: int = 0
    cells: int = 0
    squared_lengths: int = 0
    predicted: int = 0
    maskable: int = 0
    pairs: int = 0
    label_1_pairs: int = 0
    pair_examples: int = 0

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        return TokenCounts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def count_tokens(
    batch: Mapping[str, Any], special_ids: torch.Tensor, pair_label_name: str | None = None
) -> torch.Tensor:
    """Count one batch: `int64` of shape `(8,)` on its device, in the order of `TokenCounts`.

    Args:
        batch: arguments of `forward`: `input_ids` `(B, T)`, or `(B, choices, T)`; `attention_mask` of the same shape
            or, of packed rows, `cu_seq_lens_q` `(S + 1,)`; without both, nothing is padding. `labels` of the same
            shape where tokens are predicted; others are not looked at.
        special_ids (`torch.LongTensor` of shape `(K,)`): ids that are never predicted, on the batch's device.
        pair_label_name (`str`, *optional*): what the batch calls the labels of sentence pairs, `(S,)`.

    Two rows of three and two tokens, ids 1 and 2 special, one of the three others predicted:

    >>> ids, mask = torch.tensor([[1, 7, 2], [1, 8, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> labels = torch.tensor([[-100, 7, -100], [-100, -100, -100]])
    >>> batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    >>> TokenCounts(*count_tokens(batch, torch.tensor([1, 2])).tolist())  # doctest: +NORMALIZE_WHITESPACE
    TokenCounts(tokens=5, cells=6, squared_lengths=13, predicted=1, maskable=2, pairs=0, label_1_pairs=0,
    pair_examples=0)
    """
    ids, mask, bounds = batch["input_ids"], batch.get("attention_mask"), batch.get("cu_seq_lens_q")
    has_padding = bounds is None and mask is not None and mask.shape == ids.shape
    real = mask.bool() if has_padding else torch.ones_like(ids, dtype=torch.bool)
    lengths = real.sum(dim=-1).flatten() if bounds is None else bounds.diff().to(torch.int64)
    labels = token_labels(batch)
    if labels is not None:
        is_predicted = labels != IGNORED
        maskable = real & (is_predicted | ~torch.isin(ids, special_ids))
    else:
        is_predicted = maskable = torch.zeros_like(real)
    pairs = batch.get(pair_label_name)
    pairs = lengths.new_empty((0,)) if pairs is None else pairs
    return torch.stack(
        [
            lengths.sum(),
            lengths.new_full((), ids.numel()),
            lengths.square().sum(),
            is_predicted.sum(),
            maskable.sum(),
            (pairs != IGNORED).sum(),
            (pairs == 1).sum(),
            lengths.new_full((), pairs.numel()),
        ]
    )


def token_labels(batch: Mapping[str, Any]) -> torch.Tensor | None:
    """The labels of a batch if there is a class for each token; None for classes or numbers of sequences."""
    labels, ids = batch.get("labels"), batch["input_ids"]
    is_one_a_token = torch.is_tensor(labels) and labels.shape == ids.shape and not labels.is_floating_point()
    return labels if is_one_a_token else None


class LabelFrequencies:
    """How often each token has been a label, for the cross-entropy of a model that knows nothing but that.

    Args:
        vocab_size (`int`): V.
    """

    # So many labels an entry of the vocabulary must have been seen: with fewer, the estimate for rare tokens and
    # with it the sum is off by more than the thresholds of `health_warnings.py`.
    LABELS_AN_ENTRY = 10

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self._counts: torch.Tensor | None = None

    def add(self, labels: torch.Tensor) -> None:
        """Count labels of any shape, those that are ignored left out; does not wait for a GPU."""
        if self._counts is None:
            self._counts = torch.zeros(self.vocab_size + 1, dtype=torch.int64, device=labels.device)
        # Place 0 is for what is ignored: to pick the others out would have to wait for their number.
        places = torch.where(labels == IGNORED, 0, labels + 1).flatten()
        self._counts.scatter_add_(0, places, torch.ones_like(places))

    def cross_entropy(self) -> float | None:
        """Nats a label under the labels' own frequencies, one added to each; None before there are enough.

        >>> frequencies = LabelFrequencies(vocab_size=2)
        >>> frequencies.add(torch.tensor([0, 1, -100] * 9)); print(frequencies.cross_entropy())
        None
        >>> frequencies.add(torch.tensor([0, 1])); round(frequencies.cross_entropy(), 4)
        0.6931
        """
        if self._counts is None:
            return None
        counts = self._counts[1:].double().cpu()
        total = counts.sum()
        if total < self.LABELS_AN_ENTRY * self.vocab_size:
            return None
        log_probabilities = ((counts + 1) / (total + self.vocab_size)).log()
        return float(-(counts * log_probabilities).sum() / total)
