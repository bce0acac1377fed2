"""Random numbers that are a function of (seed, epoch, example id) and nothing else.

A draw does not depend on the process, the worker, the batch an example lands in, or on what was drawn before; so
training that was killed and resumed draws what it would have drawn. Each number is a hash of a key and a counter: the
finaliser of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"), which numpy
computes for whole batches at once. numpy's own counter-based generators take one key at a time.
"""

import numpy as np


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
        return values ^ (values >> np.uint64(31))


def _absorb(state: np.ndarray, value: np.ndarray | int) -> np.ndarray:
    with np.errstate(over="ignore"):
        return _mix((state + _GOLDEN) ^ _mix(np.asarray(value, dtype=np.int64).astype(np.uint64) * _GOLDEN + _FIRST))


def example_keys(seed: int, epoch: int, examples: np.ndarray | int) -> np.ndarray:
    """One 64-bit key an example.

    Args:
        seed, epoch (`int`): any integers.
        examples (`np.ndarray` of `int64`): example ids, any shape.

    Returns:
        `np.ndarray` of `uint64`, of the shape of `examples`.

    >>> example_keys(0, 1, [7, 8]).tolist() == [int(example_keys(0, 1, 7)), int(example_keys(0, 1, 8))]
    True
    """
    return _absorb(_absorb(_absorb(np.zeros((), dtype=np.uint64), seed), epoch), examples)


def uniforms(keys: np.ndarray, stream: int, counters: np.ndarray | int) -> np.ndarray:
    """Numbers uniform in [0, 1), one for each pair of key and counter.

    Args:
        keys (`np.ndarray` of `uint64`): from `example_keys`.
        stream (`int`): which decision the numbers are for, so that decisions do not share numbers.
        counters (`np.ndarray` of `int64`): which number of the stream; broadcast against `keys`.

    Returns:
        `np.ndarray` of `float64`, multiples of 2**-53.

    >>> u = uniforms(example_keys(0, 0, [[1], [2]]), stream=3, counters=[0, 1, 2])
    >>> u.shape, bool((u >= 0).all() and (u < 1).all())
    ((2, 3), True)
    """
    bits = _absorb(_absorb(np.asarray(keys, dtype=np.uint64), stream), counters)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
