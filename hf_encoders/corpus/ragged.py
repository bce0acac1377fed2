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


def are_equal(
    values: np.ndarray, first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return whether two ranges of `values` hold the same numbers, for each of n pairs of ranges; `bool`, `(n,)`.

    `first` and `second` are where the ranges begin and end, `int64` of shape `(n,)` each.

    >>> values, begin = np.array([5, 6, 5, 7, 5, 6]), np.array([0, 0, 0])
    >>> are_equal(values, (begin, begin + 2), (np.array([2, 4, 4]), np.array([4, 6, 5]))).tolist()
    [False, True, False]
    """
    (begin, end), (other_begin, other_end) = first, second
    equal = end - begin == other_end - other_begin
    left = np.flatnonzero(equal & (begin < end) & (begin != other_begin))
    equal[left] = values[begin[left]] == values[other_begin[left]]
    left = left[equal[left]]  # few begin alike, so few are read to their ends
    differs = values[ranges(begin[left], end[left])] != values[ranges(other_begin[left], other_end[left])]
    equal[left] = np.diff(offsets_of(differs)[offsets_of((end - begin)[left])]) == 0
    return equal
