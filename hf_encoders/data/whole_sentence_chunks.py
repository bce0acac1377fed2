"""Chunks of whole sentences that fit an example: in an epoch every token of the corpus is in exactly one of them.

Nothing is truncated. A sentence that does not fit begins the next chunk; only one longer than an example is split.
BERT's and ALBERT's own procedure, which truncates, is in `original_chunks.py`.

Three things keep the lengths of the segments from predicting a pair's label:

- A chunk that is filled from its front begins with a sentence that did not fit before, so with a long one. Runs of a
  document are therefore cut from the front or from the back, with probability 1/2 each.
- Negatives of next-sentence prediction exchange second segments of about the same length, where both fit. Both labels
  then have the same segments, and no text is lost or repeated. A chunk without such a partner gets no label.
- What is left in sentence-order prediction is the text's own (headings are short, for example). Where one order of two
  lengths is more frequent than the other, the surplus gets no label.
"""

import numpy as np

from hf_encoders.data.chunk_examples import ChunkExamples, ChunkRule, KeysOf, inner_boundaries
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.ragged import ranges
from hf_encoders.data.randomness import RandomStream, integers_below, random_bits, uniforms


EXAMPLES_A_RUN = 16  # a document is cut in runs of about that many examples, each from its front or from its back
ROUNDS = 16  # of looking for partners: all but one in a thousand find one where no document is most of the text
# Segments are as long as each other if they differ by no more than such a part of an example; in a small text, by no
# more than so many chunks of it are apart on average.
ALIKE, CHUNKS_APART = 1 / 100, 4
LABELS_A_CELL = 20  # of two lengths, in which both orders are made equally frequent; fewer cost more labels


def whole_sentence_chunks(corpus: FlatCorpus, max_tokens: int, rule: ChunkRule, keys_of: KeysOf) -> ChunkExamples:
    """All chunks of an epoch, in the order of the text.

    Args:
        corpus (`FlatCorpus`): without empty documents and sentences.
        max_tokens (`int`): most tokens of a chunk.
        rule (`ChunkRule`): `segments` and `short_sequence_probability`.
        keys_of (`Callable`): the epoch's keys of places in the corpus, counted in tokens.
    """
    run_begin, run_end = _runs(corpus, EXAMPLES_A_RUN * max_tokens, keys_of)
    from_back = uniforms(keys_of(run_begin), RandomStream.RUN_BOUNDARY, 1) < 0.5
    offsets, num_tokens = corpus.sentence_offsets, len(corpus.tokens)
    forward = _filled(offsets, run_begin[~from_back], run_end[~from_back], max_tokens, rule, keys_of, 0)
    # Cut from the back is cut from the front of the text in reverse.
    mirrored = _filled(
        (num_tokens - offsets)[::-1],
        num_tokens - run_end[from_back],
        num_tokens - run_begin[from_back],
        max_tokens,
        rule,
        lambda places: keys_of(num_tokens - places),
        2,
    )
    begin = np.sort(np.concatenate([forward[0], num_tokens - mirrored[1]]))
    end = np.append(begin[1:], num_tokens)
    keys = keys_of(begin)
    first, last = inner_boundaries(corpus, begin, end)
    has_second = first < last
    split = first + integers_below(keys, RandomStream.SEGMENT_SPLIT, 0, last - first)  # any sentence inside alike
    middle = np.where(has_second, offsets[split], end)
    random_begin, random_end, has_next = _exchanged(
        corpus, np.flatnonzero(has_second), (begin, middle, end), keys, max_tokens
    )
    # A chunk that begins or ends inside of a sentence would give its order away.
    has_order = has_second & (offsets[first - 1] == begin) & (offsets[last] == end)
    has_order[has_order] = _balanced((middle - begin)[has_order], (end - middle)[has_order], keys[has_order])
    return ChunkExamples(
        corpus, begin, middle, end, random_begin, random_end, has_next, has_order, keys, max_tokens, rule
    )


def _runs(corpus: FlatCorpus, num_tokens: int, keys_of: KeysOf) -> tuple[np.ndarray, np.ndarray]:
    """Documents in runs of about `num_tokens`, from a random place on: first tokens of the runs, and their ends."""
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
    max_tokens: int,
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
        # Two sentences where they fit, however short the target; one; or a part of one.
        end = np.where(two - begin <= max_tokens, two, one)
        end = np.where(one - begin > max_tokens, begin + _part(one - begin, max_tokens, keys, counter), end)
        if rule.segments == "runs":
            is_short = uniforms(keys, RandomStream.CHUNK_TARGET, counter) < rule.short_sequence_probability
            short = 2 + integers_below(keys, RandomStream.CHUNK_TARGET, counter + 1, max_tokens - 1)
            target = np.where(is_short, short, max_tokens)
            reached = offsets[np.searchsorted(offsets, begin + target, "right") - 1]
            end = np.maximum(end, np.minimum(reached, stop))
        begins.append(begin)
        ends.append(end)
        is_left = end < stop
        begin, stop = end[is_left], stop[is_left]
    return np.concatenate(begins), np.concatenate(ends)


def _part(lengths: np.ndarray, max_tokens: int, keys: np.ndarray, counter: int) -> np.ndarray:
    """How many tokens of sentences longer than a chunk come first: random, but no more parts than needed."""
    parts = -(-lengths // max_tokens)
    least = np.maximum(lengths - (parts - 1) * max_tokens, max_tokens // 2)
    return least + integers_below(keys, RandomStream.RUN_BOUNDARY, counter + 2, max_tokens - least + 1)


def _exchanged(
    corpus: FlatCorpus, chunks: np.ndarray, bounds: tuple[np.ndarray, ...], keys: np.ndarray, max_tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of chunks from two documents exchange their second segments, each pair with probability 1/2.

    Args:
        corpus: where the chunks are.
        chunks (`np.ndarray` of `int64`, shape `(P,)`): those that have a second segment.
        bounds (three `np.ndarray` of `int64`, shape `(B,)`): begin, middle and end of all chunks.
        keys (`np.ndarray` of `uint64`, shape `(B,)`): of all chunks.
        max_tokens (`int`): most tokens of a chunk.

    Returns:
        The segments that chunks get, empty for those that keep their own, and whether they have a partner: three
        arrays of shape `(B,)`.
    """
    begin, middle, end = bounds
    starts = corpus.sentence_offsets[corpus.document_offsets]
    documents = np.searchsorted(starts, begin[chunks], "right")
    lengths = np.stack([middle - begin, end - middle], axis=1)[chunks]
    draws = random_bits(keys[chunks], RandomStream.PARTNER_ORDER, 0)
    first, second = (chunks[members] for members in partners(lengths, documents, draws, max_tokens))
    has_partner = np.zeros(len(begin), dtype=bool)
    has_partner[first] = has_partner[second] = True
    is_exchanged = uniforms(keys[first], RandomStream.NEGATIVE_PAIR, 0) < 0.5
    first, second = first[is_exchanged], second[is_exchanged]
    random_begin, random_end = np.zeros_like(begin), np.zeros_like(begin)
    random_begin[first], random_end[first] = middle[second], end[second]
    random_begin[second], random_end[second] = middle[first], end[first]
    return random_begin, random_end, has_partner


def partners(
    lengths: np.ndarray, documents: np.ndarray, draws: np.ndarray, max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of chunks of two documents whose second segments are about as long, and fit in the other chunk.

    Chunks are sorted by the length of the second segment, and neighbours are paired where they may be; those that are
    left over are neighbours in the next round.

    Args:
        lengths (`np.ndarray` of `int64`, shape `(B, 2)`): tokens of both segments.
        documents (`np.ndarray` of `int64`, shape `(B,)`): number of each chunk's document.
        draws (`np.ndarray` of `uint64`, shape `(B,)`): decide between segments of one length.
        max_tokens (`int`): most tokens of two segments.

    Returns:
        Indices of the first and of the second chunk of each pair, `int64` of shape `(P,)`, P at most B / 2.

    >>> lengths = np.array([[1, 4], [3, 2], [2, 4], [1, 2], [5, 3]])
    >>> partners(lengths, documents=np.array([7, 7, 1, 1, 1]), draws=np.arange(5, dtype=np.uint64), max_tokens=8)
    (array([1, 0]), array([3, 2]))
    """
    left = np.lexsort((draws, lengths[:, 1]))
    furthest = max(1, int(max_tokens * max(ALIKE, min(1, CHUNKS_APART / max(len(left), 1)))))
    found = [(left[:0], left[:0])]
    for number in range(ROUNDS):
        first, second = left[number % 2 : -1 : 2], left[1 + number % 2 :: 2]
        may_be = documents[first] != documents[second]
        may_be &= abs(lengths[first, 1] - lengths[second, 1]) <= furthest
        for one, other in ((first, second), (second, first)):
            may_be &= lengths[one, 0] + lengths[other, 1] <= max_tokens
        found.append((first[may_be], second[may_be]))
        is_left = np.ones(len(left), dtype=bool)
        places = number % 2 + 2 * np.flatnonzero(may_be)
        is_left[places] = is_left[places + 1] = False
        left = left[is_left]
    first, second = (np.concatenate(members) for members in zip(*found, strict=True))
    return first, second


def _balanced(first: np.ndarray, second: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which pairs of lengths keep a label of order, so that `(a, b)` is as frequent among them as `(b, a)`.

    Both lengths are divided into the same bins (quantiles), which makes a square of cells; a cell and the one mirrored
    at the diagonal have the same lengths in two orders. Of the fuller one a share is kept that makes both alike.

    >>> is_kept = _balanced(np.array([1, 1, 1, 9]), np.array([9, 9, 9, 1]), np.arange(4, dtype=np.uint64))
    >>> bool(is_kept[3]), int(is_kept[:3].sum())
    (True, 1)
    """
    bins = max(1, int(np.sqrt(len(first) / LABELS_A_CELL)))
    edges = np.quantile(np.concatenate([first, second]), np.arange(1, bins) / bins) if bins > 1 else first[:0]
    rows, columns = np.searchsorted(edges, first, "right"), np.searchsorted(edges, second, "right")
    longer = np.sign(second - first)
    cells = (rows * bins + columns) * 3 + 1 + longer
    mirrored = (columns * bins + rows) * 3 + 1 - longer
    counts = np.bincount(cells, minlength=3 * bins**2)
    return uniforms(keys, RandomStream.ORDER_BALANCE, 0) * counts[cells] < counts[mirrored]
