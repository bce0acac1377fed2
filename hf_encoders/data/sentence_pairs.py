"""The sentence pairs of BERT's and ALBERT's objectives, made of chunks, for a whole batch at once.

Sources: `create_pretraining_data.py` of google-research/bert and google-research/albert.
"""

from typing import NamedTuple

import numpy as np

from hf_encoders.data.batches import IGNORED, Segments, TokenRows, rows_of_segments
from hf_encoders.data.chunk_examples import ChunkExamples
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.randomness import RandomStream, random_bits_in_runs, uniforms


TRUNCATION_STREAMS = (RandomStream.TRUNCATE_FIRST, RandomStream.TRUNCATE_SECOND)  # of the two segments


class Pairs(NamedTuple):
    """Pairs of segments, each a range of tokens of the corpus.

    Args:
        begin, end (`np.ndarray` of `int64`, shape `(B, 2)`): tokens of both segments, `end` excluded; the second
            segment is empty where there is no pair to be made.
        labels (`np.ndarray` of `int64`, shape `(B,)`): of the objective, -100 where there is no pair.
    """

    begin: np.ndarray
    end: np.ndarray
    labels: np.ndarray


def next_sentence_pairs(chunks: ChunkExamples) -> Pairs:
    """A segment and, with probability 1/2 each, what follows it (0) or a run from elsewhere (1) (BERT, section 3.1).

    Chunks without a label have what follows.

    Raises:
        ValueError: if there are no segments from elsewhere, because the corpus is not known or has a single document.
    """
    _check_negatives(chunks)
    is_random = chunks.random_begin < chunks.random_end
    pairs = _with_second_segment(
        chunks,
        np.where(is_random, chunks.random_begin, chunks.middle),
        np.where(is_random, chunks.random_end, chunks.end),
    )
    return pairs._replace(labels=np.where(chunks.has_next, is_random.astype(np.int64), IGNORED))


def sentence_order_pairs(chunks: ChunkExamples) -> Pairs:
    """Two consecutive segments, swapped with probability 1/2: 0 = in order, 1 = swapped (ALBERT, section 3.1).

    Chunks without a label stand in order.

    Raises:
        ValueError: if the chunks put back what random segments replace, which there are none of here.
    """
    if chunks.rule.put_back:
        raise ValueError(
            "put_back=True cuts chunks for next-sentence prediction, and parts of them would be seen twice: leave it "
            "out of DocumentChunks for sentence-order prediction."
        )
    if chunks.rule.original_code:
        # A lone sentence gets a random second segment and label 1.
        is_lone = chunks.middle == chunks.end
        pairs = _with_second_segment(
            chunks,
            np.where(is_lone, chunks.random_begin, chunks.middle),
            np.where(is_lone, chunks.random_end, chunks.end),
        )
    else:
        is_lone = np.zeros(len(chunks), dtype=bool)
        pairs = _with_second_segment(chunks, chunks.middle, chunks.end)
    swapped = chunks.has_order & (uniforms(chunks.keys, RandomStream.SEGMENT_SWAP, 0) < 0.5)
    begin, end = (np.where(swapped[:, None], bounds[:, ::-1], bounds) for bounds in (pairs.begin, pairs.end))
    return Pairs(begin, end, np.where(chunks.has_order | is_lone, (swapped | is_lone).astype(np.int64), IGNORED))


def _with_second_segment(chunks: ChunkExamples, begin: np.ndarray, end: np.ndarray) -> Pairs:
    """The first segments with others behind them; without labels."""
    return Pairs(
        np.stack([chunks.begin, begin], axis=1),
        np.stack([chunks.middle, end], axis=1),
        np.full(len(chunks), IGNORED),
    )


def _check_negatives(chunks: ChunkExamples) -> None:
    if not chunks.is_whole_corpus:
        raise ValueError(
            "the corpus of the examples is not known, and next-sentence prediction takes random segments from it: "
            "train on DocumentChunks(documents, max_length), not on the rows of a plain data set."
        )
    if chunks.corpus.num_documents < 2 and not chunks.rule.original_code:
        raise ValueError(
            "documents holds one document, and next-sentence prediction takes random segments from others: separate "
            "documents by blank lines, or use sop or mlm."
        )


def truncate_pairs(pairs: Pairs, max_tokens: int, keys: np.ndarray) -> Pairs:
    """Shorten the longer segment, then both alike, until they fit; each token leaves from the front or the back.

    The rule of `truncate_seq_pair`: a token at a time from the longer segment (the second when they are equally long),
    from either end with probability 1/2; here in closed form.

    >>> pairs = Pairs(np.array([[0, 10]]), np.array([[6, 13]]), np.array([0]))
    >>> cut = truncate_pairs(pairs, 7, keys=np.array([5], dtype=np.uint64))
    >>> (cut.end - cut.begin).tolist()
    [[4, 3]]
    """
    lengths = pairs.end - pairs.begin
    removed = lengths - kept_lengths(lengths, max_tokens)
    if not removed.any():
        return pairs
    tosses = zip(TRUNCATION_STREAMS, removed.T, strict=True)
    from_front = np.stack([heads(keys, stream, count) for stream, count in tosses], axis=1)
    return pairs._replace(begin=pairs.begin + from_front, end=pairs.end - (removed - from_front))


def rows_of_pairs(corpus: FlatCorpus, pairs: Pairs, keys: np.ndarray, ends: tuple[int, int]) -> TokenRows:
    """`[CLS] A [SEP] B [SEP]` with token types 0 up to the first `[SEP]`, then 1; `[CLS] A [SEP]` without B."""
    is_there = pairs.begin < pairs.end
    is_there[:, 0] = True
    counts = is_there.sum(axis=1)
    segments = Segments(corpus.tokens, corpus.word_starts, pairs.begin[is_there], pairs.end[is_there], counts)
    rows = rows_of_segments(segments, keys, ends)
    return rows._replace(second_segments=pairs.end[:, 0] - pairs.begin[:, 0] + 2)


def kept_lengths(lengths: np.ndarray, max_tokens: int) -> np.ndarray:
    """Lengths of two segments, `(B, 2)`, after `truncate_pairs`.

    >>> kept_lengths(np.array([[5, 5], [2, 9], [3, 3]]), 9).tolist()
    [[5, 4], [2, 7], [3, 3]]
    """
    shorter = np.minimum(lengths, lengths[:, ::-1])
    # A segment keeps half, or what the shorter one leaves it; of an odd number of tokens the first keeps one more.
    halves = np.array([max_tokens - max_tokens // 2, max_tokens // 2])
    room = np.maximum(max_tokens - shorter, halves)
    return np.where(lengths.sum(axis=1, keepdims=True) > max_tokens, np.minimum(lengths, room), lengths)


def heads(keys: np.ndarray, stream: RandomStream, tosses: np.ndarray) -> np.ndarray:
    """How many of `tosses` coins show heads, `int64` of shape `(B,)`: set bits of as many random bits."""
    words = -(-tosses // 64)
    bits = random_bits_in_runs(keys, stream, words)
    last = np.cumsum(words)[tosses > 0] - 1
    bits[last] >>= (-tosses[tosses > 0] % 64).astype(np.uint64)
    return np.bincount(np.repeat(np.arange(len(keys)), words), np.bitwise_count(bits), len(keys)).astype(np.int64)
