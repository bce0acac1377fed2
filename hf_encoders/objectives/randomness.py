"""Random numbers that are a function of (seed, epoch, example id) and of the decision they are for.

They do not depend on the process, the worker, the batch, or on what was sampled before, so resumed training samples
what uninterrupted training would have sampled.
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

    # Order of examples
    PHASE_SHUFFLE = 7
    PASS_ORDER = 33
    SOURCE_SEED = 32
    # Masking
    MASK_CHOICE = 16
    REPLACEMENT = 21
    # Parallel text
    SIDE_ORDER = 36
    # Chunks and sentence pairs
    CHUNKS = 43
    CHUNK_ROTATION = 4
    SEGMENT_SWAP = 10
    TRUNCATION = 44
    # Dialogues
    FAKE_DIALOGUE = 40
    # Permutation language modelling
    FACTORISATION_ORDER = 34
    # Tokens in place of predicted ones
    GENERATOR_SAMPLE = 37
    # RetroMAE's decoder
    HIDDEN_SETS = 45


class Key(NamedTuple):
    """Identify the random choices of an example."""

    seed: int
    epoch: int
    example: int  # its id in the dataset, in [0, 2**56)


def generator(key: Key, stream: RandomStream) -> np.random.Generator:
    """Return the random numbers of one decision for one example.

    They are those of numpy's Philox, whose 128-bit key is (seed and epoch, example and stream). They depend on no
    other example, decision, process, worker or restart.

    >>> key = Key(seed=0, epoch=3, example=7)
    >>> a, b = (generator(key, RandomStream.MASK_CHOICE).integers(100, size=3).tolist() for _ in range(2))
    >>> a == b, a == generator(key, RandomStream.REPLACEMENT).integers(100, size=3).tolist()
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
