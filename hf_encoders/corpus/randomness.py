"""Counter-based random numbers: each is a function of (seed, epoch, example id), random stream and counter.

They do not depend on the process, the worker, the batch, or on what was sampled before, so resumed training samples
what uninterrupted training would have sampled. The generator is SplitMix64 (Steele, Lea and Flood 2014, "Fast
splittable pseudorandom number generators"), computed for whole batches at once; numpy's own counter-based generators
take one key at a time.
"""

from enum import IntEnum, unique
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.random.bit_generator import ISeedSequence


@unique
class RandomStream(IntEnum):
    """One random stream per decision, so that no two decisions share random numbers.

    The values are part of the data: changing one changes the examples of every seed. New streams get new values.
    """

    # Chunks, both ways of cutting
    CHUNK_TARGET = 1
    SEGMENT_SPLIT = 2
    NEGATIVE_PAIR = 3
    CHUNK_ROTATION = 4
    # Order of examples
    PHASE_SHUFFLE = 7
    # Random segments of the original code
    RANDOM_DOCUMENT = 8
    RANDOM_SENTENCE = 9
    # Sentence pairs
    SEGMENT_SWAP = 10
    TRUNCATE_FIRST = 11
    TRUNCATE_SECOND = 12
    # Chunks of whole sentences
    RUN_BOUNDARY = 13
    PARTNER_ORDER = 14
    ORDER_BALANCE = 15
    # Masking
    MASK_CHOICE = 16
    MASK_POSITION = 17
    MASK_COUNT = 18
    MASK_RUN_LENGTH = 19
    MASK_WINDOW = 20
    REPLACEMENT = 21
    UNIT_REPLACEMENT = 22
    WORD_REPLACEMENT = 23
    SIMILAR_WORD = 24
    MASK_LEVEL = 25
    # Permutation language modelling
    SPAN_LENGTH = 29
    SPAN_CONTEXT = 30
    SINGLE_TARGET = 31
    FACTORISATION_ORDER = 34
    READING_DIRECTION = 35
    # Mixtures of sources
    SOURCE_SEED = 32
    PASS_ORDER = 33
    # Parallel text
    SIDE_ORDER = 36
    # Tokens in place of predicted ones
    GENERATOR_SAMPLE = 37
    # Dialogues
    FAKE_DIALOGUE = 40
    CHUNKS = 43
    TRUNCATION = 44
    REPLACED_TURN = 41
    TURN_REPLACEMENT = 42


class Key(NamedTuple):
    """What the random choices of an example are functions of."""

    seed: int
    epoch: int
    example: int  # its id in the dataset, in [0, 2**56)


def generator(key: Key, stream: RandomStream) -> np.random.Generator:
    """Return the random numbers of one decision for one example.

    They are those of numpy's Philox, whose 128-bit key is (seed and epoch, example and stream). They depend on no
    other example, decision, process, worker or restart.

    >>> key = Key(seed=0, epoch=3, example=7)
    >>> a, b = (generator(key, RandomStream.MASK_CHOICE).integers(100, size=3).tolist() for _ in range(2))
    >>> a == b, a == generator(key, RandomStream.MASK_COUNT).integers(100, size=3).tolist()
    (True, False)
    """
    keys = np.array([_epoch_key(key.seed, key.epoch), key.example << 8 | stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(_PhiloxKey(keys)))


class _PhiloxKey(ISeedSequence):
    """A key that Philox takes as it is, in a third of the time of `Philox(key=key)`, which collects entropy first."""

    def __init__(self, key: np.ndarray):
        self.key = key

    def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
        return self.key


@lru_cache(maxsize=64)
def _epoch_key(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# Numbers hashed at once: two arrays of this size fit into the CPU's cache, 2.5 times as fast as whole batches.
_BLOCK_SIZE = 8192


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, in place; `values` is one-dimensional and contiguous."""
    for start in range(0, len(values), _BLOCK_SIZE):
        part = values[start : start + _BLOCK_SIZE]
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
    """Hash one more number into each state; the two are broadcast against each other."""
    values = np.asarray(values).astype(np.uint64)  # negative numbers wrap around
    hashed = _mix(np.atleast_1d(values * _GOLDEN + _FIRST).ravel()).reshape(values.shape)
    mixed = np.asarray((state + _GOLDEN) ^ hashed)
    return _mix(np.array(mixed).ravel()).reshape(mixed.shape)


def example_keys(seed: int, epoch: int, examples: np.ndarray | int) -> np.ndarray:
    """One 64-bit key per example, `uint64` of the shape of `examples` (`int64` example ids).

    >>> example_keys(0, 1, [7, 8]).tolist() == [int(example_keys(0, 1, 7)), int(example_keys(0, 1, 8))]
    True
    """
    with np.errstate(over="ignore"):
        return _absorb(_epoch_state(int(seed), int(epoch)), examples)


@lru_cache(maxsize=16)
def _epoch_state(seed: int, epoch: int) -> np.ndarray:
    return _absorb(_absorb(np.zeros((), dtype=np.uint64), seed), epoch)


def random_bits(keys: np.ndarray, stream: RandomStream, counters: np.ndarray | int) -> np.ndarray:
    """64 random bits for each pair of key and counter (from 0), which are broadcast against each other; `uint64`."""
    with np.errstate(over="ignore"):
        states = _absorb(np.asarray(keys, dtype=np.uint64), stream)
        states = np.asarray(states + _GOLDEN * (np.asarray(counters).astype(np.uint64) + np.uint64(1)))
        return _mix(states.ravel()).reshape(states.shape)


def random_bits_of_rows(keys: np.ndarray, stream: RandomStream, rows: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """The same numbers as `random_bits(keys[rows], stream, counters)`, in a third of the time where rows repeat."""
    with np.errstate(over="ignore"):
        states = _absorb(np.asarray(keys, dtype=np.uint64), stream).take(rows)
        states += _GOLDEN * (counters.astype(np.uint64) + np.uint64(1))
        return _mix(states)


def random_bits_in_runs(keys: np.ndarray, stream: RandomStream, lengths: np.ndarray) -> np.ndarray:
    """The first `lengths[i]` numbers of the stream of each key, concatenated; `uint64` of shape `(sum(lengths),)`.

    >>> keys = example_keys(0, 0, [7, 8])
    >>> runs = random_bits_in_runs(keys, RandomStream.SEGMENT_SPLIT, np.array([2, 1]))
    >>> runs.tolist() == random_bits(keys[[0, 0, 1]], RandomStream.SEGMENT_SPLIT, [0, 1, 0]).tolist()
    True
    """
    with np.errstate(over="ignore"):
        starts = (np.cumsum(lengths) - lengths).astype(np.uint64)
        # Counters run on through all runs; each key makes up for the counter that its run starts at.
        states = np.repeat(_absorb(np.asarray(keys, dtype=np.uint64), stream) - _GOLDEN * starts, lengths)
        states += np.arange(1, len(states) + 1, dtype=np.uint64) * _GOLDEN
        return _mix(states)


def random_uint32_in_runs(keys: np.ndarray, stream: RandomStream, lengths: np.ndarray) -> np.ndarray:
    """As `random_bits_in_runs` with 32 bits per number: number j of a run is half of 64-bit number `j // 2`.

    >>> keys = example_keys(0, 0, [7, 8])
    >>> runs = random_uint32_in_runs(keys, RandomStream.SEGMENT_SPLIT, np.array([3, 1]))
    >>> runs[:3].tolist() == random_bits(keys[:1], RandomStream.SEGMENT_SPLIT, [0, 1]).view(np.uint32)[:3].tolist()
    True
    """
    halves = random_bits_in_runs(keys, stream, (lengths + 1) // 2).view(np.uint32)
    is_odd = lengths % 2 == 1
    return np.delete(halves, np.cumsum(lengths + is_odd)[is_odd] - 1) if is_odd.any() else halves


def as_uniforms(bits: np.ndarray) -> np.ndarray:
    """32 or 64 random bits -> `float64` uniform in [0, 1), multiples of 2**-32 or 2**-53."""
    if bits.dtype == np.uint32:
        return bits * 2.0**-32
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniforms(keys: np.ndarray, stream: RandomStream, counters: np.ndarray | int) -> np.ndarray:
    """Numbers uniform in [0, 1), `float64`; arguments as in `random_bits`.

    >>> u = uniforms(example_keys(0, 0, [[1], [2]]), RandomStream.NEGATIVE_PAIR, counters=[0, 1, 2])
    >>> u.shape, bool((u >= 0).all() and (u < 1).all())
    ((2, 3), True)
    """
    return as_uniforms(random_bits(keys, stream, counters))


def integers_below(
    keys: np.ndarray, stream: RandomStream, counters: np.ndarray | int, bounds: np.ndarray | int
) -> np.ndarray:
    """Integers uniform in [0, bound), `int64`; the other arguments as in `random_bits`."""
    return (uniforms(keys, stream, counters) * bounds).astype(np.int64)
