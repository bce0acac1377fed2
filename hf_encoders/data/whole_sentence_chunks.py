"""Chunks of whole sentences that fit an example: in an epoch every token of the corpus is in exactly one of them.

Nothing is truncated. A sentence that does not fit begins the next chunk; only one longer than an example is split.
BERT's and ALBERT's own procedure, which truncates, is in `original_chunks.py`.

Three things keep the lengths of the segments from predicting a pair's label:

- A chunk that is filled from its front begins with a sentence that did not fit before, so with a long one. Runs of a
  document are therefore cut from the front or from the back, with probability 1/2 each.
- Negatives of next-sentence prediction exchange second segments of about the same length. Both labels then have the
  same segments, and no text is lost or repeated.
- What is left in sentence-order prediction is the text's own (headings are short, for example). Where one order of two
  lengths is more frequent than the other, the surplus gets no label.
"""

import numpy as np

from hf_encoders.data.chunk_examples import (
    NEGATIVE_STREAM,
    SPLIT_STREAM,
    TARGET_STREAM,
    ChunkExamples,
    ChunkRule,
    KeysOf,
    inner_boundaries,
)
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.ragged import offsets_of, ranges
from hf_encoders.data.randomness import integers_below, random_bits, uniforms


EXAMPLES_A_RUN = 16  # a document is cut in runs of about that many examples, each from its front or from its back
SEGMENTS_A_BLOCK = 64  # that are exchanged: few enough to be of one length, enough for several documents
LABELS_A_CELL = 20  # of two lengths, in which both orders are made equally frequent; fewer cost more labels

RUN_STREAM, EXCHANGE_STREAM, BALANCE_STREAM = range(13, 16)  # of random numbers; others are in other modules


def whole_sentence_chunks(corpus: FlatCorpus, max_tokens: int, rule: ChunkRule, keys_of: KeysOf) -> ChunkExamples:
    """All chunks of an epoch, in the order of the text.

    Args:
        corpus (`FlatCorpus`): without empty documents and sentences.
        max_tokens (`int`): most tokens of a chunk.
        rule (`ChunkRule`): `segments` and `short_sequence_probability`.
        keys_of (`Callable`): the epoch's keys of places in the corpus, counted in tokens.
    """
    run_begin, run_end = _runs(corpus, EXAMPLES_A_RUN * max_tokens, keys_of)
    from_back = uniforms(keys_of(run_begin), RUN_STREAM, 1) < 0.5
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
    split = first + integers_below(keys, SPLIT_STREAM, 0, last - first)  # any sentence inside alike
    middle = np.where(has_second, offsets[split], end)
    random_begin, random_end = _exchanged(corpus, begin, middle, end, keys, keys_of)
    # Part of a sentence would tell the order: it stands at the outer end of a pair in order.
    has_order = has_second & (offsets[first - 1] == begin) & (offsets[last] == end)
    has_order[has_order] = _balanced((middle - begin)[has_order], (end - middle)[has_order], keys[has_order])
    return ChunkExamples(corpus, begin, middle, end, random_begin, random_end, has_order, keys, max_tokens, rule)


def _runs(corpus: FlatCorpus, num_tokens: int, keys_of: KeysOf) -> tuple[np.ndarray, np.ndarray]:
    """Documents in runs of about `num_tokens`, from a random place on: first tokens of the runs, and their ends."""
    offsets = corpus.sentence_offsets
    bounds = offsets[corpus.document_offsets]
    first = bounds[:-1] + num_tokens // 2 + integers_below(keys_of(bounds[:-1]), RUN_STREAM, 0, num_tokens)
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
            is_short = uniforms(keys, TARGET_STREAM, counter) < rule.short_sequence_probability
            short = 2 + integers_below(keys, TARGET_STREAM, counter + 1, max_tokens - 1)
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
    return least + integers_below(keys, RUN_STREAM, counter + 2, max_tokens - least + 1)


def _exchanged(
    corpus: FlatCorpus, begin: np.ndarray, middle: np.ndarray, end: np.ndarray, keys: np.ndarray, keys_of: KeysOf
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of chunks from two documents exchange their second segments, each pair with probability 1/2.

    Returns:
        The segments that chunks get, empty for those that keep their own; two arrays of shape `(B,)`.
    """
    chunks = np.flatnonzero(middle < end)
    bounds = corpus.sentence_offsets[corpus.document_offsets]
    own = bounds[np.searchsorted(bounds, begin[chunks], "right") - 1]
    documents, draws = random_bits(keys_of(own), EXCHANGE_STREAM, 0), random_bits(keys[chunks], EXCHANGE_STREAM, 1)
    first, second = (chunks[members] for members in partners((end - middle)[chunks], documents, draws))
    is_exchanged = uniforms(keys[first], NEGATIVE_STREAM, 0) < 0.5
    first, second = first[is_exchanged], second[is_exchanged]
    random_begin, random_end = np.zeros_like(begin), np.zeros_like(begin)
    random_begin[first], random_end[first] = middle[second], end[second]
    random_begin[second], random_end[second] = middle[first], end[first]
    return random_begin, random_end


def partners(lengths: np.ndarray, documents: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of segments of about the same length from two documents; each segment is in one pair, few are in none.

    Segments are sorted by length and divided into blocks. In a block they are sorted by document, and each is paired
    with the one half a block further on: another document's, unless one document has more than half of the block.
    The surplus of such a document has no partner; neither has one segment of an odd number.

    Args:
        lengths (`np.ndarray` of `int64`, shape `(B,)`): tokens of each segment.
        documents (`np.ndarray` of `uint64`, shape `(B,)`): a number of each segment's document, drawn at random.
        draws (`np.ndarray` of `uint64`, shape `(B,)`): decide between segments of one length, or one document.

    Returns:
        Indices of the first and of the second segment of each pair, `int64` of shape `(P,)`, P at most B / 2.

    >>> draws = np.arange(5, dtype=np.uint64)
    >>> partners(np.array([4, 2, 4, 2, 3]), documents=np.array([7, 7, 1, 1, 1]), draws=draws)
    (array([3, 4]), array([0, 1]))
    """
    if len(lengths) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    num_blocks = max(1, len(lengths) // SEGMENTS_A_BLOCK)
    blocks = np.empty(len(lengths), dtype=np.int64)
    blocks[np.lexsort((draws, lengths))] = np.minimum(np.arange(len(lengths)) // SEGMENTS_A_BLOCK, num_blocks - 1)
    order = np.lexsort((draws, documents, blocks))
    blocks, documents = blocks[order], documents[order]

    firsts = np.flatnonzero(np.append(True, (documents[1:] != documents[:-1]) | (blocks[1:] != blocks[:-1])))
    counts = np.diff(np.append(firsts, len(order)))  # segments of each document in each block
    sizes, most = np.bincount(blocks), np.zeros(num_blocks, dtype=np.int64)
    np.maximum.at(most, blocks[firsts], counts)
    surplus = np.maximum(2 * most - sizes, 0)
    places = np.arange(len(order)) - np.repeat(firsts, counts)
    is_left = (np.repeat(counts < most[blocks[firsts]], counts)) | (places >= surplus[blocks])
    is_left[(np.cumsum(sizes) - 1)[(sizes - surplus) % 2 == 1]] = False

    order, blocks = order[is_left], blocks[is_left]
    halves = np.bincount(blocks, minlength=num_blocks) // 2
    is_first = np.arange(len(order)) - 2 * offsets_of(halves)[blocks] < halves[blocks]
    return order[is_first], order[~is_first]


def _balanced(first: np.ndarray, second: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which pairs of lengths keep a label of order, so that `(a, b)` is as frequent among them as `(b, a)`.

    Lengths are counted in quantiles, and a pair of the more frequent order is kept with the quotient of both counts.
    """
    bins = max(1, int(np.sqrt(len(first) / LABELS_A_CELL)))
    edges = np.quantile(np.concatenate([first, second]), np.arange(1, bins) / bins) if bins > 1 else first[:0]
    rows, columns = np.searchsorted(edges, first, "right"), np.searchsorted(edges, second, "right")
    longer = np.sign(second - first)
    cells = (rows * bins + columns) * 3 + 1 + longer
    mirrored = (columns * bins + rows) * 3 + 1 - longer
    counts = np.bincount(cells, minlength=3 * bins**2)
    return uniforms(keys, BALANCE_STREAM, 0) * counts[cells] < counts[mirrored]
