"""Counts of tokens and labels in a batch, on its device: on a GPU nothing waits for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hf_encoders.objectives.batches import IGNORED


@dataclass
class LabelCounts:
    """Numbers of examples of a loss term that has one label per example: all, with a label, with label 1."""

    examples: int = 0
    labelled: int = 0
    label_1: int = 0


@dataclass
class BatchCounts:
    """Sums over batches."""

    tokens: int = 0  # without padding
    positions: int = 0  # with padding, B * T of each batch
    squared_lengths: int = 0  # sum of L^2 over the sequences, the cost of attention
    predicted: int = 0  # tokens with a label
    maskable: int = 0  # tokens that could have been predicted: special ones are left out
    labels: dict[str, LabelCounts] = field(default_factory=dict)  # of each loss term with one label per example

    @classmethod
    def of(cls, counts: torch.Tensor, terms: Sequence[str]) -> "BatchCounts":
        """Counts from a sum of what `count_batch` returned for the same terms."""
        values = counts.tolist()
        labels = {term: LabelCounts(*values[5 + 3 * i : 8 + 3 * i]) for i, term in enumerate(terms)}
        return cls(*values[:5], labels)

    @property
    def labelled(self) -> int:
        """Labels of examples, of all terms."""
        return sum(counts.labelled for counts in self.labels.values())


def count_batch(batch: Mapping[str, Any], special_ids: torch.Tensor, terms: Mapping[str, str]) -> torch.Tensor:
    """Count one batch: `int64` of shape `(5 + 3 * terms,)` on its device, as `BatchCounts.of` takes it.

    Args:
        batch: Arguments of `forward`: `input_ids` `(B, T)` or `(B, choices, T)`; `attention_mask` of the same shape
            or, of packed rows, `cu_seq_lens_q` `(S + 1,)`; without both, nothing is padding. `labels` of the same
            shape where tokens are predicted; others are ignored.
        special_ids (`torch.LongTensor` of shape `(K,)`): Ids that are never predicted, on the batch's device.
        terms (`Mapping`): Loss terms of the model: name -> argument with its labels. Those with one label per example,
            `(S,)`, are counted.

    Two rows of three and two tokens, ids 1 and 2 special, one of the three others predicted:

    >>> ids, mask = torch.tensor([[1, 7, 2], [1, 8, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> labels = torch.tensor([[-100, 7, -100], [-100, -100, -100]])
    >>> batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    >>> BatchCounts.of(count_batch(batch, torch.tensor([1, 2]), {}), [])  # doctest: +NORMALIZE_WHITESPACE
    BatchCounts(tokens=5, positions=6, squared_lengths=13, predicted=1, maskable=2, labels={})
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
    counts = [lengths.sum(), lengths.new_full((), ids.numel()), lengths.square().sum()]
    counts += [is_predicted.sum(), maskable.sum()]
    for name in terms.values():
        labels = batch.get(name)
        if labels is None or labels.shape == ids.shape:
            labels = lengths.new_empty((0,))
        counts += [lengths.new_full((), labels.numel()), (labels != IGNORED).sum(), (labels == 1).sum()]
    return torch.stack(counts)


def token_labels(batch: Mapping[str, Any]) -> torch.Tensor | None:
    """The labels of a batch if there is one class per token, else None."""
    labels, ids = batch.get("labels"), batch["input_ids"]
    is_per_token = torch.is_tensor(labels) and labels.shape == ids.shape and not labels.is_floating_point()
    return labels if is_per_token else None


class LabelFrequencies:
    """Frequencies of the labels, for the cross-entropy of a unigram model.

    Args:
        vocab_size (`int`): V.
    """

    # Labels per vocabulary entry: with fewer, the estimate is off by more than the thresholds in `warnings.py`.
    LABELS_PER_ENTRY = 10

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self._counts: torch.Tensor | None = None

    def add(self, labels: torch.Tensor) -> None:
        """Count labels of any shape, except ignored ones; does not wait for a GPU."""
        if self._counts is None:
            self._counts = torch.zeros(self.vocab_size + 1, dtype=torch.int64, device=labels.device)
        # Place 0 is for ignored labels: selecting the others would wait for their number.
        places = torch.where(labels == IGNORED, 0, labels + 1).flatten()
        self._counts.scatter_add_(0, places, torch.ones_like(places))

    def cross_entropy(self) -> float | None:
        """Nats per label under the labels' own frequencies, each plus one; None before there are enough.

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
        if total < self.LABELS_PER_ENTRY * self.vocab_size:
            return None
        log_probabilities = ((counts + 1) / (total + self.vocab_size)).log()
        return float(-(counts * log_probabilities).sum() / total)
