"""Many examples masked one by one, as flat arrays that statistics are made of."""

from typing import NamedTuple

import numpy as np

from hf_encoders.objectives.batch import IGNORED
from hf_encoders.objectives.randomness import Key


CLS, SEP, UNKNOWN, MASK = 1, 2, 3, 4


class Masked(NamedTuple):
    """Masked examples, concatenated."""

    ids: np.ndarray
    labels: np.ndarray
    originals: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        return self.labels != IGNORED

    @property
    def kinds(self) -> np.ndarray:
        """Shares of predicted tokens that are masked, random, and kept."""
        new, old = self.ids[self.predicted], self.originals[self.predicted]
        return np.array([(new == MASK).mean(), ((new != MASK) & (new != old)).mean(), (new == old).mean()])


def mask(masker, ids, lengths, word_starts=None, rate=None, epoch=0, first=0) -> Masked:
    """Mask examples of `lengths` tokens, of which the first has the id `first` in the dataset."""
    bounds = np.cumsum([0, *lengths])
    parts = []
    for i, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        starts = None if word_starts is None else word_starts[begin:end]
        parts.append(masker(ids[begin:end], Key(0, epoch, first + i), starts, rate))
    return Masked(*map(np.concatenate, zip(*parts, strict=True)), ids)


def texts(words, lengths):
    """A row of [CLS] ... [SEP], in which word w has tokens 3w, 3w + 1 and so on, as many as `lengths` says."""
    tokens = [3 * w + i for w, length in zip(words, lengths, strict=True) for i in range(length)]
    return np.array([CLS, *tokens, SEP])


class EveryThird:
    """Words of three tokens, by the ids of `texts`."""

    def __init__(self, tokenizer):
        pass

    def __call__(self, ids, begins_text):
        return (ids % 3 == 0) | begins_text
