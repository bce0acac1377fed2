"""Random numbers that are a function of (seed, epoch, example id) and nothing else.

A draw does not depend on the process, the worker, the batch an example lands in, or on what was drawn before; so
training that was killed and resumed draws what it would have drawn. An example has a key, a decision about it has a
stream of numbers, and a number of a stream is that of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators") at some place: a hash of stream and place, which numpy computes for whole batches at
once. numpy's own counter-based generators take one key at a time.
"""

from functools import lru_cache

import numpy as np


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# Numbers hashed at once: two arrays of that many stay in the first levels of the cache, which makes it 2.5 times
# faster than whole batches.
_NUMBERS_A_STEP = 8192


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, in place; `values` is one-dimensional and contiguous."""
    for start in range(0, len(values), _NUMBERS_A_STEP):
        part = values[start : start + _NUMBERS_A_STEP]
        shifted = part >> np.uint64(30)
        part ^= shifted
        part *= _FIRST
        np.right_shift(part, np.uint64(27), out=shifted)
        part ^= shifted
        part *= _SECOND
        np.right_shift(part, np.uint64(31), out=shifted)
        part ^= shifted
    return values


def _absorb(state: np.ndarray, values: np.ndarray | int) -> np.ndarray:
    """Keys made of keys and one more number each, broadcast against each other."""
    values = np.asarray(values).astype(np.uint64)  # negative numbers wrap around
    hashed = _mix(np.atleast_1d(values * _GOLDEN + _FIRST).ravel()).reshape(values.shape)
    mixed = np.asarray((state + _GOLDEN) ^ hashed)
    return _mix(np.array(mixed).ravel()).reshape(mixed.shape)


def example_keys(seed: int, epoch: int, examples: np.ndarray | int) -> np.ndarray:
    """One 64-bit key an example.

    Args:
        seed, epoch (`int`): any integers of 64 bits.
        examples (`np.ndarray` of `int64`): example ids, any shape.

    Returns:
        `np.ndarray` of `uint64`, of the shape of `examples`.

    >>> example_keys(0, 1, [7, 8]).tolist() == [int(example_keys(0, 1, 7)), int(example_keys(0, 1, 8))]
    True
    """
    with np.errstate(over="ignore"):
        return _absorb(_epoch_state(int(seed), int(epoch)), examples)


@lru_cache(maxsize=16)
def _epoch_state(seed: int, epoch: int) -> np.ndarray:
    return _absorb(_absorb(np.zeros((), dtype=np.uint64), seed), epoch)


def random_bits(keys: np.ndarray, stream: int, counters: np.ndarray | int) -> np.ndarray:
    """64 random bits for each pair of key and counter.

    Args:
        keys (`np.ndarray` of `uint64`): from `example_keys`.
        stream (`int`): which decision the numbers are for, so that decisions do not share numbers.
        counters (`np.ndarray` of `int64`): which number of the stream; broadcast against `keys`.

    Returns:
        `np.ndarray` of `uint64`.
    """
    with np.errstate(over="ignore"):
        states = _absorb(np.asarray(keys, dtype=np.uint64), stream)
        states = np.asarray(states + _GOLDEN * (np.asarray(counters).astype(np.uint64) + np.uint64(1)))
        return _mix(states.ravel()).reshape(states.shape)


def random_bits_of_rows(keys: np.ndarray, stream: int, rows: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """The same numbers as `random_bits(keys[rows], stream, counters)`, in a third of the time where rows repeat."""
    with np.errstate(over="ignore"):
        states = _absorb(np.asarray(keys, dtype=np.uint64), stream).take(rows)
        states += _GOLDEN * (counters.astype(np.uint64) + np.uint64(1))
        return _mix(states)


def random_words_in_runs(keys: np.ndarray, stream: int, lengths: np.ndarray) -> np.ndarray:
    """`random_bits_in_runs` with 32 bits a number, `uint32`: number j of a run is half of number `j // 2` of 64 bits.

    >>> keys = example_keys(0, 0, [7, 8])
    >>> runs = random_words_in_runs(keys, 3, np.array([3, 1]))
    >>> runs[:3].tolist() == random_bits(keys[:1], 3, [0, 1]).view(np.uint32)[:3].tolist()
    True
    """
    halves = random_bits_in_runs(keys, stream, (lengths + 1) // 2).view(np.uint32)
    is_odd = lengths % 2 == 1
    return np.delete(halves, np.cumsum(lengths + is_odd)[is_odd] - 1) if is_odd.any() else halves


def random_bits_in_runs(keys: np.ndarray, stream: int, lengths: np.ndarray) -> np.ndarray:
    """The first numbers of a stream for every key: `lengths[i]` of them for `keys[i]`, one run after the other.

    The same numbers as those of `random_bits`, in less time.

    Args:
        keys (`np.ndarray` of `uint64`, shape `(B,)`): from `example_keys`.
        stream (`int`): which decision the numbers are for.
        lengths (`np.ndarray` of `int64`, shape `(B,)`): how many numbers a key.

    Returns:
        `np.ndarray` of `uint64`, shape `(sum(lengths),)`.

    >>> keys = example_keys(0, 0, [7, 8])
    >>> runs = random_bits_in_runs(keys, 3, np.array([2, 1]))
    >>> runs.tolist() == random_bits(keys[[0, 0, 1]], 3, [0, 1, 0]).tolist()
    True
    """
    with np.errstate(over="ignore"):
        ends = np.cumsum(lengths)
        # Counters run on through all runs; what they are too high by is taken off the keys.
        starts = (ends - lengths).astype(np.uint64)
        states = np.repeat(_absorb(np.asarray(keys, dtype=np.uint64), stream) - _GOLDEN * starts, lengths)
        states += np.arange(1, len(states) + 1, dtype=np.uint64) * _GOLDEN
        return _mix(states)


def high_words(bits: np.ndarray) -> np.ndarray:
    """The upper halves of 64 random bits, `uint32`."""
    return (bits >> np.uint64(32)).astype(np.uint32)


def low_words(bits: np.ndarray) -> np.ndarray:
    """The lower halves of 64 random bits, `uint32`."""
    return bits.astype(np.uint32)


def as_uniforms(bits: np.ndarray) -> np.ndarray:
    """32 or 64 random bits -> `float64` uniform in [0, 1), multiples of 2**-32 or 2**-53."""
    if bits.dtype == np.uint32:
        return bits * 2.0**-32
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniforms(keys: np.ndarray, stream: int, counters: np.ndarray | int) -> np.ndarray:
    """Numbers uniform in [0, 1), one for each pair of key and counter; arguments as in `random_bits`.

    >>> u = uniforms(example_keys(0, 0, [[1], [2]]), stream=3, counters=[0, 1, 2])
    >>> u.shape, bool((u >= 0).all() and (u < 1).all())
    ((2, 3), True)
    """
    return as_uniforms(random_bits(keys, stream, counters))


def integers_below(keys: np.ndarray, stream: int, counters: np.ndarray | int, bounds: np.ndarray | int) -> np.ndarray:
    """Integers uniform in [0, bound), `int64`; the other arguments as in `random_bits`."""
    return (uniforms(keys, stream, counters) * bounds).astype(np.int64)
