"""The sentence pairs of BERT's and ALBERT's objectives, made from chunks, for a whole batch at once.

Sources: `create_pretraining_data.py` of google-research/bert and google-research/albert.
"""

from typing import NamedTuple

import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.randomness import RandomStream, random_bits_in_runs, uniforms
from hf_encoders.objectives.batches import IGNORED, Segments, TokenRows, rows_of_segments
from hf_encoders.objectives.chunk_examples import SPECIAL_TOKENS_OF_A_PAIR, ChunkExamples


class Pairs(NamedTuple):
    """Pairs of segments, each a range of tokens of the corpus; the second is empty for a single-sentence example."""

    begin: np.ndarray  # of both segments, int64, (B, 2)
    end: np.ndarray  # excluded, int64, (B, 2)
    labels: np.ndarray  # of the objective, -100 without one, int64, (B,)


def next_sentence_pairs(chunks: ChunkExamples) -> Pairs:
    """A segment and, with probability 1/2 each, what follows it (0) or one from elsewhere (1) (BERT, section 3.1).

    Chunks without a label keep what follows.
    """
    if not chunks.is_whole_corpus:
        raise ValueError(
            "next-sentence prediction takes random segments from the corpus, which rows of a plain dataset do not "
            "have: train on DocumentChunks(documents, max_length)."
        )
    if chunks.corpus.num_documents < 2 and not chunks.rule.original_code:
        raise ValueError(
            "documents holds one document, and next-sentence prediction takes random segments from others: separate "
            "documents by blank lines, or use sop or mlm."
        )
    is_random = chunks.random_begin < chunks.random_end
    begin, end = _with_random_segments(chunks, is_random)
    return Pairs(begin, end, np.where(chunks.has_next, is_random, IGNORED))


def sentence_order_pairs(chunks: ChunkExamples) -> Pairs:
    """Two consecutive segments, swapped with probability 1/2: 0 = in order, 1 = swapped (ALBERT, section 3.1).

    Chunks without a label stay in order.
    """
    if chunks.rule.put_back:
        raise ValueError(
            "put_back=True cuts chunks for next-sentence prediction, and parts of them would be seen twice: leave it "
            "out of DocumentChunks for sentence-order prediction."
        )
    # In the original code a single sentence gets a random second segment and label 1.
    is_single = (chunks.middle == chunks.end) & chunks.rule.original_code
    begin, end = _with_random_segments(chunks, is_single)
    is_swapped = chunks.has_order & (uniforms(chunks.keys, RandomStream.SEGMENT_SWAP, 0) < 0.5)
    begin[is_swapped], end[is_swapped] = begin[is_swapped, ::-1], end[is_swapped, ::-1]
    return Pairs(begin, end, np.where(chunks.has_order | is_single, is_swapped | is_single, IGNORED))


def _with_random_segments(chunks: ChunkExamples, is_random: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of both segments, `(B, 2)` each; the second is the random one where `is_random`."""
    second_begin = np.where(is_random, chunks.random_begin, chunks.middle)
    second_end = np.where(is_random, chunks.random_end, chunks.end)
    return np.stack([chunks.begin, second_begin], axis=1), np.stack([chunks.middle, second_end], axis=1)


def truncate_pairs(pairs: Pairs, max_length: int, keys: np.ndarray) -> Pairs:
    """Remove tokens until pairs fit: from the longer segment, and from its front or back with probability 1/2 each.

    The rule of `truncate_seq_pair`, which removes one token at a time (from the second of two equally long segments),
    in closed form.

    >>> pairs = Pairs(np.array([[0, 10]]), np.array([[6, 13]]), np.array([0]))
    >>> cut = truncate_pairs(pairs, max_length=10, keys=np.array([5], dtype=np.uint64))
    >>> (cut.end - cut.begin).tolist()
    [[4, 3]]
    """
    lengths = pairs.end - pairs.begin
    removed = lengths - truncated_lengths(lengths, max_length)
    if not removed.any():
        return pairs
    streams = RandomStream.TRUNCATE_FIRST, RandomStream.TRUNCATE_SECOND
    from_front = [coin_tosses(keys, stream, tosses) for stream, tosses in zip(streams, removed.T, strict=True)]
    from_front = np.stack(from_front, axis=1)
    return pairs._replace(begin=pairs.begin + from_front, end=pairs.end - (removed - from_front))


def rows_of_pairs(corpus: FlatCorpus, pairs: Pairs, keys: np.ndarray, ends: tuple[int, int]) -> TokenRows:
    """`[CLS] A [SEP] B [SEP]` with token types 0 up to the first `[SEP]`, then 1; `[CLS] A [SEP]` without B."""
    is_present = pairs.begin < pairs.end
    is_present[:, 0] = True
    counts = is_present.sum(axis=1)
    segments = Segments(corpus.tokens, corpus.word_starts, pairs.begin[is_present], pairs.end[is_present], counts)
    rows = rows_of_segments(segments, keys, ends)
    first_lengths = pairs.end[:, 0] - pairs.begin[:, 0] + 2
    lengths = np.stack([first_lengths, rows.lengths - first_lengths], axis=1)
    types = np.tile(np.array([0, 1], dtype=np.int8), len(lengths))
    return rows._replace(token_type_ids=np.repeat(types, lengths.ravel()))


def truncated_lengths(lengths: np.ndarray, max_length: int) -> np.ndarray:
    """Lengths of two segments, `(B, 2)`, after `truncate_pairs`.

    >>> truncated_lengths(np.array([[5, 5], [2, 9], [3, 3]]), max_length=12).tolist()
    [[5, 4], [2, 7], [3, 3]]
    """
    capacity = max_length - SPECIAL_TOKENS_OF_A_PAIR
    shorter = np.minimum(lengths, lengths[:, ::-1])
    # A segment keeps half, or what the shorter one leaves; of an odd number of tokens the first keeps one more.
    halves = np.array([capacity - capacity // 2, capacity // 2])
    room = np.maximum(capacity - shorter, halves)
    return np.where(lengths.sum(axis=1, keepdims=True) > capacity, np.minimum(lengths, room), lengths)


def coin_tosses(keys: np.ndarray, stream: RandomStream, tosses: np.ndarray) -> np.ndarray:
    """How many of `tosses` fair coins land on heads, `int64` of shape `(B,)`: the set bits of as many random bits."""
    words = -(-tosses // 64)
    bits = random_bits_in_runs(keys, stream, words)
    last = np.cumsum(words)[tosses > 0] - 1
    bits[last] >>= (-tosses[tosses > 0] % 64).astype(np.uint64)
    return np.bincount(np.repeat(np.arange(len(keys)), words), np.bitwise_count(bits), len(keys)).astype(np.int64)
