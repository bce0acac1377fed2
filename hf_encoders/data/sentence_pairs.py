"""The sentence pairs of BERT's and ALBERT's objectives, made of chunks, for a whole batch at once.

Sources: `create_pretraining_data.py` of google-research/bert and google-research/albert. Where they differ from what
is done here by default, there is an option of `ChunkRule` (`chunks.py`).
"""

from typing import NamedTuple

import numpy as np

from hf_encoders.data.batches import Segments, TokenRows, rows_of_segments
from hf_encoders.data.chunks import ChunkExamples, is_negative, split_places
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.randomness import integers_below, random_bits_in_runs, uniforms


NO_PAIR = -100
TRIES = 10  # draws of a document; in the original code too

# Streams of random numbers, one a decision; `chunks` uses those below, `masking` those from 16 on.
DOCUMENT_STREAM, SENTENCE_STREAM, ORDER_STREAM, TRUNCATION_STREAM = range(8, 12)


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

    Raises:
        ValueError: if random segments cannot be drawn, because the corpus is not known or has a single document.
    """
    _check_negatives(chunks)
    sizes = chunks.end - chunks.first
    middle = chunks.first + split_places(chunks.keys, sizes)
    pairs = _consecutive(chunks, middle)
    is_lone = sizes == 1
    negative = np.where(is_lone, chunks.rule.lone_sentence_is_negative, is_negative(chunks.keys))
    labels = np.where(is_lone & ~negative, NO_PAIR, negative.astype(np.int64))
    return _with_random_segments(chunks, pairs._replace(labels=labels), np.flatnonzero(negative))


def sentence_order_pairs(chunks: ChunkExamples) -> Pairs:
    """Two consecutive segments, swapped with probability 1/2: 0 = in order, 1 = swapped (ALBERT, section 3.1).

    Raises:
        ValueError: if the chunks put back what random segments replace, which there are none of here.
    """
    if chunks.rule.put_back:
        raise ValueError(
            "put_back=True cuts chunks for next-sentence prediction, and parts of them would be seen twice: leave it "
            "out of DocumentChunks for sentence-order prediction."
        )
    sizes = chunks.end - chunks.first
    pairs = _consecutive(chunks, chunks.first + split_places(chunks.keys, sizes))
    swapped = (sizes > 1) & (uniforms(chunks.keys, ORDER_STREAM, 0) < 0.5)
    begin, end = (np.where(swapped[:, None], bounds[:, ::-1], bounds) for bounds in (pairs.begin, pairs.end))
    pairs = Pairs(begin, end, np.where(sizes > 1, swapped.astype(np.int64), NO_PAIR))
    if chunks.rule.lone_sentence_is_negative and (sizes == 1).any():
        _check_negatives(chunks)
        pairs = _with_random_segments(chunks, pairs, np.flatnonzero(sizes == 1))
    return pairs


def _consecutive(chunks: ChunkExamples, middle: np.ndarray) -> Pairs:
    """Chunks cut in two before sentence `middle`; the second part of a lone sentence is empty."""
    bounds = chunks.corpus.sentence_offsets[np.stack([chunks.first, middle, chunks.end], axis=1)]
    return Pairs(bounds[:, :2], bounds[:, 1:], np.full(len(bounds), NO_PAIR))


def _check_negatives(chunks: ChunkExamples) -> None:
    if not chunks.is_whole_corpus:
        raise ValueError(
            "the corpus of the examples is not known, and next-sentence prediction draws random segments from it: "
            "train on DocumentChunks(documents, max_length), not on the rows of a plain data set."
        )
    if chunks.corpus.num_documents < 2 and not chunks.rule.negatives_from_own_document:
        raise ValueError(
            "documents holds one document, and next-sentence prediction draws random segments from others: separate "
            "documents by blank lines, or use sop or mlm."
        )


def _with_random_segments(chunks: ChunkExamples, pairs: Pairs, rows: np.ndarray) -> Pairs:
    """Replace the second segments of `rows` by whole sentences from random places, and label them 1."""
    begin, end, labels = pairs.begin.copy(), pairs.end.copy(), pairs.labels.copy()
    draw = _as_in_the_original_code if chunks.rule.negatives_fill_up else _as_long_as_true_ones
    first, last = draw(chunks, Pairs(begin[rows], end[rows], labels[rows]), rows)
    begin[rows, 1], end[rows, 1] = chunks.corpus.sentence_offsets[first], chunks.corpus.sentence_offsets[last]
    labels[rows] = 1
    return Pairs(begin, end, labels)


def _as_in_the_original_code(chunks: ChunkExamples, pairs: Pairs, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sentences `[first, last)`: from any sentence of a document up to the target, or the document's end."""
    corpus, keys = chunks.corpus, chunks.keys[rows]
    document = _document(chunks, keys, chunks.documents[rows])
    document_first, document_end = corpus.document_offsets[document], corpus.document_offsets[document + 1]
    first = document_first + integers_below(keys, SENTENCE_STREAM, 0, document_end - document_first)
    wanted = chunks.targets[rows] - (pairs.end - pairs.begin)[:, 0]
    return first, _end_with(corpus, first, document_end, wanted)


def _as_long_as_true_ones(chunks: ChunkExamples, pairs: Pairs, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sentences `[first, last)` whose lengths are distributed like those of the segments they replace.

    Where a chunk reached its target, they end with the sentence that reaches it too. Where the document ended before,
    they are as many sentences and do not reach it either. Ten places are drawn, any sentence of other documents, moved
    to the front until enough is behind it; the one is taken whose tokens are nearest in number to the true segment's.
    """
    corpus, keys = chunks.corpus, chunks.keys[rows]
    offsets, lengths = corpus.sentence_offsets, pairs.end - pairs.begin
    wanted = (chunks.targets[rows] - lengths[:, 0])[:, None]
    sizes = (np.searchsorted(offsets, pairs.end[:, 1]) - np.searchsorted(offsets, pairs.begin[:, 1]))[:, None]
    sizes = np.maximum(sizes, 1)
    reached = (lengths.sum(axis=1) >= chunks.targets[rows])[:, None] & (chunks.rule.segments == "runs")

    drawn, documents = _candidates(chunks, keys, chunks.documents[rows])
    document_first, document_end = corpus.document_offsets[documents], corpus.document_offsets[documents + 1]
    latest = np.where(
        reached, np.searchsorted(offsets, offsets[document_end] - wanted, "right") - 1, document_end - sizes
    )
    first = np.maximum(np.minimum(drawn, latest), document_first)
    last = np.where(reached, _end_with(corpus, first, document_end, wanted), np.minimum(first + sizes, document_end))
    drawn_lengths = offsets[last] - offsets[first]
    is_alike = (latest >= document_first) & ((drawn_lengths >= wanted) == reached)
    distance = abs(drawn_lengths - lengths[:, 1:]) + np.where(is_alike, 0, 2**32)
    chosen = np.arange(len(rows)), distance.argmin(axis=1)
    return first[chosen], last[chosen]


def _end_with(corpus: FlatCorpus, first: np.ndarray, document_end: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where sentences from `first` on have the tokens wanted, or their document ends; one sentence at least."""
    reached = np.searchsorted(corpus.sentence_offsets, corpus.sentence_offsets[first] + wanted)
    return np.minimum(np.maximum(reached, first + 1), document_end)


def _candidates(chunks: ChunkExamples, keys: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ten sentences for each chunk and their documents, `(R, TRIES)`: all sentences of other documents alike."""
    offsets, tries = chunks.corpus.document_offsets, np.arange(TRIES)
    if chunks.rule.negatives_from_own_document:
        documents = np.repeat(_document(chunks, keys, own)[:, None], TRIES, axis=1)
        sizes = offsets[documents + 1] - offsets[documents]
        return offsets[documents] + integers_below(keys[:, None], SENTENCE_STREAM, tries, sizes), documents
    own_first, own_end = offsets[own, None], offsets[own + 1, None]
    drawn = integers_below(keys[:, None], SENTENCE_STREAM, tries, offsets[-1] - (own_end - own_first))
    drawn += np.where(drawn >= own_first, own_end - own_first, 0)
    return drawn, np.searchsorted(offsets, drawn, "right") - 1


def _document(chunks: ChunkExamples, keys: np.ndarray, own: np.ndarray) -> np.ndarray:
    """A document, all alike; another one than the chunk's own, or the first of ten tries that is."""
    if not chunks.rule.negatives_from_own_document:
        document = integers_below(keys, DOCUMENT_STREAM, 0, chunks.corpus.num_documents - 1)
        return document + (document >= own)  # those behind its own move up
    drawn = integers_below(keys[:, None], DOCUMENT_STREAM, np.arange(TRIES), chunks.corpus.num_documents)
    is_other = drawn != own[:, None]
    chosen = np.where(is_other.any(axis=1), is_other.argmax(axis=1), TRIES - 1)
    return drawn[np.arange(len(own)), chosen]


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
    from_front = np.stack([heads(keys, TRUNCATION_STREAM + side, removed[:, side]) for side in (0, 1)], axis=1)
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


def heads(keys: np.ndarray, stream: int, tosses: np.ndarray) -> np.ndarray:
    """How many of `tosses` coins show heads, `int64` of shape `(B,)`: set bits of as many random bits."""
    words = -(-tosses // 64)
    bits = random_bits_in_runs(keys, stream, words)
    last = np.cumsum(words)[tosses > 0] - 1
    bits[last] >>= (-tosses[tosses > 0] % 64).astype(np.uint64)
    return np.bincount(np.repeat(np.arange(len(keys)), words), np.bitwise_count(bits), len(keys)).astype(np.int64)
