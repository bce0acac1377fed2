"""Chunks of whole sentences that fit an example: in an epoch every token of the corpus is in exactly one of them.

Nothing is truncated. A sentence that does not fit begins the next chunk; only one longer than an example is split.
BERT's and ALBERT's own procedure, which truncates, is in `original_chunks.py`.

Three rules keep the lengths of the segments from predicting a pair's label:

- A chunk that is filled from its front begins with a sentence that did not fit before, so with a long one. Runs of a
  document are therefore cut from the front or from the back, with probability 1/2 each.
- Negatives of next-sentence prediction exchange second segments of about the same length, where both fit. Both labels
  then have the same segments, and no text is lost or repeated. A chunk without such a partner gets no label.
- In sentence-order prediction the text itself favours some orders of lengths (headings are short). A chunk gets a
  label if there is another one for it, whose segments have about the same lengths in the other order.

A pair that is word for word the same whatever its label gets none: second segments that are equal are not exchanged,
and a chunk of two equal segments has no order.
"""

from collections.abc import Callable

import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.ragged import are_equal, ranges
from hf_encoders.corpus.randomness import RandomStream, integers_below, random_bits, uniforms
from hf_encoders.objectives.chunk_examples import (
    SPECIAL_TOKENS_OF_A_PAIR,
    ChunkExamples,
    ChunkRule,
    KeysOf,
    inner_boundaries,
)


EXAMPLES_PER_RUN = 16  # a document is cut in runs of about this many examples, each from its front or from its back
ROUNDS = 16  # of pairing: all but one chunk in a thousand find a partner where no document is most of the text
# Lengths of second segments that may be exchanged differ by at most this share of an example; in a small text, by what
# this many chunks differ on average.
LENGTH_TOLERANCE, CHUNKS_APART = 1 / 100, 4
# Lengths of two chunks of opposite orders may differ by this share: with less there are fewer labels (at 0.05 by 12 %,
# in 1.5 MB of text), with more the lengths tell the order. In a small text, by this number over that of its chunks.
ORDER_TOLERANCE, FEW_CHUNKS = 0.1, 200


def whole_sentence_chunks(corpus: FlatCorpus, max_length: int, rule: ChunkRule, keys_of: KeysOf) -> ChunkExamples:
    """All chunks of a sample, in the order of the text; `keys_of` makes keys of positions of tokens."""
    capacity = max_length - SPECIAL_TOKENS_OF_A_PAIR
    run_begin, run_end = _runs(corpus, EXAMPLES_PER_RUN * capacity, keys_of)
    from_back = uniforms(keys_of(run_begin), RandomStream.RUN_BOUNDARY, 1) < 0.5
    offsets, num_tokens = corpus.sentence_offsets, len(corpus.tokens)
    forward = _filled(offsets, run_begin[~from_back], run_end[~from_back], capacity, rule, keys_of, 0)
    # Cutting from the back is cutting the reversed text from the front.
    mirrored = _filled(
        (num_tokens - offsets)[::-1],
        num_tokens - run_end[from_back],
        num_tokens - run_begin[from_back],
        capacity,
        rule,
        lambda positions: keys_of(num_tokens - positions),
        2,
    )
    begin = np.sort(np.concatenate([forward[0], num_tokens - mirrored[1]]))
    end = np.append(begin[1:], num_tokens)
    keys = keys_of(begin)
    first, last = inner_boundaries(corpus, begin, end)
    has_second = first < last
    split = first + integers_below(keys, RandomStream.SEGMENT_SPLIT, 0, last - first)
    middle = np.where(has_second, offsets[split], end)
    exchanged = _exchanged(corpus, np.flatnonzero(has_second), (begin, middle, end), keys, capacity)
    # A chunk that begins or ends inside a sentence would give its order away.
    has_order = has_second & (offsets[first - 1] == begin) & (offsets[last] == end)
    has_order &= ~are_equal(corpus.tokens, (begin, middle), (middle, end))
    has_order[has_order] = _balanced((middle - begin)[has_order], (end - middle)[has_order], keys[has_order])
    return ChunkExamples(corpus, begin, middle, end, *exchanged, has_order, keys, max_length, rule)


def _runs(corpus: FlatCorpus, num_tokens: int, keys_of: KeysOf) -> tuple[np.ndarray, np.ndarray]:
    """Documents cut into runs of about `num_tokens`, at random positions: first tokens of the runs, and their ends."""
    offsets = corpus.sentence_offsets
    bounds = offsets[corpus.document_offsets]
    first = bounds[:-1] + num_tokens // 2
    first += integers_below(keys_of(bounds[:-1]), RandomStream.RUN_BOUNDARY, 0, num_tokens)
    counts = np.maximum(-(-(bounds[1:] - num_tokens // 2 - first) // num_tokens), 0)
    inside = np.repeat(first, counts) + num_tokens * ranges(np.zeros_like(counts), counts)
    inside = offsets[np.searchsorted(offsets, inside, "right") - 1]
    begin = np.union1d(bounds[:-1], inside)
    return begin, np.append(begin[1:], bounds[-1])


def _filled(
    offsets: np.ndarray,
    begin: np.ndarray,
    stop: np.ndarray,
    capacity: int,
    rule: ChunkRule,
    keys_of: KeysOf,
    counter: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Cut runs `[begin, stop)` from their fronts: first tokens of the chunks and their ends, in no order.

    All runs are cut side by side: each round takes the next chunk of every run that has one left.
    """
    begins, ends = [begin[:0]], [begin[:0]]
    while len(begin):
        keys = keys_of(begin)
        next_sentence = np.searchsorted(offsets, begin, "right")
        one = offsets[next_sentence]
        two = np.minimum(offsets[np.minimum(next_sentence + 1, len(offsets) - 1)], stop)
        # Two sentences where they fit, however short the target; else one; else a part of one.
        end = np.where(two - begin <= capacity, two, one)
        end = np.where(one - begin > capacity, begin + _part(one - begin, capacity, keys, counter), end)
        if rule.segments == "runs":
            is_short = uniforms(keys, RandomStream.CHUNK_TARGET, counter) < rule.short_sequence_probability
            short = 2 + integers_below(keys, RandomStream.CHUNK_TARGET, counter + 1, capacity - 1)
            target = np.where(is_short, short, capacity)
            reached = offsets[np.searchsorted(offsets, begin + target, "right") - 1]
            end = np.maximum(end, np.minimum(reached, stop))
        begins.append(begin)
        ends.append(end)
        is_left = end < stop
        begin, stop = end[is_left], stop[is_left]
    return np.concatenate(begins), np.concatenate(ends)


def _part(lengths: np.ndarray, capacity: int, keys: np.ndarray, counter: int) -> np.ndarray:
    """Tokens of the first part of sentences longer than a chunk: random, but with no more parts than needed."""
    parts = -(-lengths // capacity)
    least = np.maximum(lengths - (parts - 1) * capacity, capacity // 2)
    return least + integers_below(keys, RandomStream.RUN_BOUNDARY, counter + 2, capacity - least + 1)


def _exchanged(
    corpus: FlatCorpus, chunks: np.ndarray, bounds: tuple[np.ndarray, ...], keys: np.ndarray, capacity: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Partners from two documents exchange their second segments, each pair with probability 1/2.

    `chunks` are those that have a second segment, `bounds` begin, middle and end of all. Returns begin and end of the
    second segment that each chunk gets, empty for those that keep their own, and whether it has a partner; `(B,)`.
    """
    begin, middle, end = bounds
    documents = np.searchsorted(corpus.document_starts, begin[chunks], "right")
    lengths = np.stack([middle - begin, end - middle], axis=1)[chunks]
    order = random_bits(keys[chunks], RandomStream.PARTNER_ORDER, 0)
    pairs = partners(lengths, documents, order, capacity, corpus.tokens, middle[chunks])
    first, second = (chunks[members] for members in pairs)
    has_partner = np.zeros(len(begin), dtype=bool)
    has_partner[first] = has_partner[second] = True
    is_exchanged = uniforms(keys[first], RandomStream.NEGATIVE_PAIR, 0) < 0.5
    first, second = first[is_exchanged], second[is_exchanged]
    random_begin, random_end = np.zeros_like(begin), np.zeros_like(begin)
    random_begin[first], random_end[first] = middle[second], end[second]
    random_begin[second], random_end[second] = middle[first], end[first]
    return random_begin, random_end, has_partner


def partners(
    lengths: np.ndarray,
    documents: np.ndarray,
    order: np.ndarray,
    capacity: int,
    tokens: np.ndarray,
    middle: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of chunks of two documents whose second segments differ, are about as long, and fit into the other chunk.

    Neighbours by the length of the second segment (`lengths` is `(B, 2)`; `order` decides between equal ones), which
    begins at `middle` of `tokens`. Returns the indices of the first and of the second chunk of each pair.

    >>> lengths = np.array([[1, 4], [3, 2], [2, 4], [1, 2], [5, 3]])
    >>> documents, middle = np.array([7, 7, 1, 1, 1]), np.array([0, 4, 6, 10, 12])
    >>> partners(lengths, documents, np.arange(5, dtype=np.uint64), 8, tokens=np.arange(15), middle=middle)
    (array([1, 0]), array([3, 2]))
    """
    candidates = np.lexsort((order, lengths[:, 1]))
    end = middle + lengths[:, 1]
    tolerance = max(1, int(capacity * max(LENGTH_TOLERANCE, min(1, CHUNKS_APART / max(len(candidates), 1)))))

    def fit(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        is_pair = documents[first] != documents[second]
        is_pair &= abs(lengths[first, 1] - lengths[second, 1]) <= tolerance
        for one, other in ((first, second), (second, first)):
            is_pair &= lengths[one, 0] + lengths[other, 1] <= capacity
        return is_pair & ~are_equal(tokens, (middle[first], end[first]), (middle[second], end[second]))

    return _paired_neighbours(candidates, fit)


def _balanced(first: np.ndarray, second: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which pairs of lengths keep an order label: for each `(a, b)` another one of about `(b, a)`; and equal lengths.

    >>> _balanced(np.array([1, 1, 1, 9, 5]), np.array([9, 9, 4, 1, 5]), np.arange(5, dtype=np.uint64))
    array([False,  True, False,  True,  True])
    """
    is_kept = first == second
    shorter, longer = np.minimum(first, second), np.maximum(first, second)
    tolerance = max(ORDER_TOLERANCE, FEW_CHUNKS / max(len(first), 1))
    # Except in a small text, only equal lengths up to 10 share a bin: that is where headings are.
    bins = np.floor(np.log(shorter) / np.log1p(tolerance))
    candidates = np.lexsort((random_bits(keys, RandomStream.ORDER_BALANCE, 0), longer, bins))
    candidates = candidates[~is_kept[candidates]]

    def fit(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        is_pair = (bins[one] == bins[other]) & ((first < second)[one] != (first < second)[other])
        return is_pair & (longer[other] - longer[one] <= tolerance * longer[one])

    is_kept[np.concatenate(_paired_neighbours(candidates, fit))] = True
    return is_kept


def _paired_neighbours(
    left: np.ndarray, fit: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of neighbours in `left` `(B,)` that fit; those left over are neighbours in the next round.

    `fit` says whether they do, of the first and the second ones of candidate pairs. Returns both of all pairs.
    """
    found = [(left[:0], left[:0])]
    for number in range(ROUNDS):
        first, second = left[number % 2 : -1 : 2], left[1 + number % 2 :: 2]
        is_pair = fit(first, second)
        found.append((first[is_pair], second[is_pair]))
        paired = number % 2 + 2 * np.flatnonzero(is_pair)
        left = np.delete(left, np.append(paired, paired + 1))
    first, second = (np.concatenate(members) for members in zip(*found, strict=True))
    return first, second
