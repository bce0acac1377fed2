"""Rows of different lengths, concatenated in one array."""

import numpy as np


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Lengths `(n,)` -> where each row begins, and the end of the last one; `int64` of shape `(n + 1,)`.

    >>> offsets_of(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The integers of several ranges, concatenated; `int64`.

    >>> ranges(np.array([7, 3, 5]), np.array([9, 3, 8]))
    array([7, 8, 5, 6, 7])
    """
    before = offsets_of(ends - starts)
    numbers = np.arange(before[-1])
    numbers += np.repeat(starts - before[:-1], ends - starts)
    return numbers
