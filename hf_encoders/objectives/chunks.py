"""Chunks: runs of consecutive sentences of one document, which pairs of segments are made of.

Documents are cut for a whole epoch at once, and each chunk is divided into two segments. Two ways:

`whole_sentence_chunks`: in an epoch every token of the corpus is in exactly one example, and nothing is truncated: a
sentence that does not fit begins the next chunk, and only one longer than an example is split. Three rules keep the
lengths of the segments from predicting a pair's label:

- A chunk that is filled from its front begins with a sentence that did not fit before, so with a long one. Runs of a
  document are therefore cut from the front or from the back, with probability 1/2 each.
- Negatives of next-sentence prediction exchange second segments of about the same length, where both fit. Both labels
  then have the same segments, and no text is lost or repeated. A chunk without a partner gets no label.
- In sentence-order prediction the text itself favours some orders of lengths (headings are short). A chunk gets a
  label if there is another one for it, whose segments have about the same lengths in the other order.

A pair that is word for word the same whatever its label gets none: second segments that are equal are not exchanged,
and a chunk of two equal segments has no order.

`original_chunks`: as `create_pretraining_data.py` of google-research/bert and google-research/albert, which truncate.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import datasets
import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.objectives.dataset import CorpusDataset, Example, refuse_unknown_options, with_options_of
from hf_encoders.objectives.randomness import Key, RandomStream, generator


SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
RUN_LENGTH = 16  # examples: documents are cut in runs of about as many, each from its front or from its back
WAITING = (
    16  # chunks that wait for a partner: all but one in a thousand find one where no document is most of the text
)
# Lengths of second segments that are exchanged differ by at most this share of an example; in a small text, by what
# this many chunks differ on average.
LENGTH_TOLERANCE, CHUNKS_APART = 1 / 100, 4
# Lengths of two chunks of opposite orders may differ by this share: with less there are fewer labels (at 0.05 by 12 %,
# in 1.5 MB of text), with more the lengths tell the order. In a small text, by this number over that of its chunks.
ORDER_TOLERANCE, FEW_CHUNKS = 0.1, 200
TRIES = 10  # documents that BERT samples until one is not the chunk's own


@dataclass(frozen=True)
class ChunkRule:
    """How documents are cut into chunks, and where negatives come from.

    Args:
        segments (`str`, *optional*, defaults to `"runs"`): `"runs"`: a chunk has as many sentences as fit, and each
            segment is one or more of them (SEGMENT-PAIR of the RoBERTa paper, section 4.2; BERT, ALBERT).
            `"sentences"`: a chunk is two sentences, and each segment is one (SENTENCE-PAIR).
        short_sequence_probability (`float`, *optional*, defaults to 0.1): Probability in [0, 1] that a chunk is filled
            to a shorter length, which is sampled uniformly; BERT's `short_seq_prob`.
        original_code (`bool`, *optional*, defaults to `False`): Whether chunks are cut, truncated and given random
            segments as in google-research/bert and albert (`original_chunks`), artefacts included.
        put_back (`bool`, *optional*, defaults to `False`): Whether the segment that a random one replaced begins the
            next chunk (BERT, not ALBERT). With `original_code` and for next-sentence prediction only.
    """

    segments: str = "runs"
    short_sequence_probability: float = 0.1
    original_code: bool = False
    put_back: bool = False

    def __post_init__(self):
        if self.segments not in ("runs", "sentences"):
            raise ValueError(f"segments={self.segments!r} is not known: use 'runs' or 'sentences'.")
        share = self.short_sequence_probability
        if not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ValueError(f"short_sequence_probability={share!r} must be in [0, 1]; BERT uses 0.1.")
        if self.put_back and not self.original_code:
            raise ValueError("put_back=True needs original_code=True, as in presets.BERT_CHUNKS: leave it out.")
        for name in ("short_sequence_probability", "original_code"):
            if self.segments == "sentences" and getattr(self, name) != getattr(ChunkRule, name):
                raise ValueError(f"{name}: no effect with segments='sentences'; leave it out.")


Text = tuple[np.ndarray, np.ndarray | None]  # token ids of a segment, and their bits of `UnitStart`


@dataclass(slots=True, kw_only=True, repr=False)
class ChunkExample(Example):
    """A chunk, before a pair is made of it: its two segments, or one for a chunk of a single sentence.

    Args:
        replacement (`Text`, *optional*): Segment from elsewhere that a negative of next-sentence prediction has in
            place of its second one; None for positives.
        has_next (`bool`): Whether it has a label in next-sentence prediction.
        has_order (`bool`): Whether it has one in sentence-order prediction.
        begin (`int`): Its first token in the corpus.
        reused (`Text`, *optional*): Text before it, for XLNet.
        num_documents (`int`): Documents of the corpus; 0 for a row of a plain dataset, which has no others.
        max_length (`int`): Longest example in tokens, special tokens included; original chunks may be longer.
        rule (`ChunkRule`): How it was cut.
    """

    replacement: Text | None = None
    has_next: bool
    has_order: bool
    begin: int = 0
    reused: Text | None = None
    num_documents: int = 0
    max_length: int
    rule: ChunkRule

    @property
    def texts(self) -> list[Text]:
        """Its segments."""
        return list(zip(self.segments, self.word_starts or [None] * len(self.segments), strict=True))

    def with_texts(self, texts: list[Text], **options: Any) -> Example:
        """Return an example of other segments; `options` are arguments of `Example`."""
        segments, starts = map(list, zip(*texts, strict=True))
        languages = self.languages and self.languages[:1] * len(texts)
        options = {"languages": languages, "mask_rate": self.mask_rate, "phase": self.phase, **options}
        return Example(segments, self.key, None if starts[0] is None else starts, **options)

    def as_text(self) -> Example:
        """Return the chunk as one text, for masked language modelling alone."""
        if self.rule.put_back:
            raise ValueError(
                "put_back=True cuts chunks for next-sentence prediction, and parts of them would be seen twice: leave "
                "it out of DocumentChunks for masked language modelling alone."
            )
        most = self.max_length - SPECIAL_TOKENS + 1  # a separator fewer than a pair
        starts = None if self.word_starts is None else np.concatenate(self.word_starts)[:most]
        return self.with_texts([(np.concatenate(self.segments)[:most], starts)])


class Chunks(NamedTuple):
    """All chunks of a corpus in an epoch, in the order of the text; positions count its tokens, arrays are `(C,)`."""

    begin: np.ndarray
    middle: np.ndarray  # where the second segment begins; `end` for a chunk of a single sentence, which has none
    end: np.ndarray  # excluded
    other_begin: np.ndarray  # segment in place of the second one of a negative, from another document
    other_end: np.ndarray  # equal to `other_begin` for positives
    has_next: np.ndarray  # whether a chunk has a label in next-sentence prediction
    has_order: np.ndarray  # whether it has one in sentence-order prediction


def cut_corpus(corpus: FlatCorpus, max_length: int, rule: ChunkRule, key: Key) -> Chunks:
    """Cut a corpus without empty documents and sentences for an epoch; `key` is that of its first chunk."""
    cut = original_chunks if rule.original_code else whole_sentence_chunks
    return cut(corpus, max_length - SPECIAL_TOKENS, rule, generator(key, RandomStream.CHUNKS))


def whole_sentence_chunks(corpus: FlatCorpus, capacity: int, rule: ChunkRule, random: np.random.Generator) -> Chunks:
    """Cut documents into chunks of at most `capacity` tokens, by the three rules above."""
    lengths, sizes = np.diff(corpus.sentence_offsets), []
    for first, last in pairwise(corpus.document_offsets.tolist()):
        for run in runs_of(lengths[first:last].tolist(), RUN_LENGTH * capacity, random):
            if random.random() < 0.5:
                sizes += filled(run, capacity, rule, random)
            else:  # from the back
                sizes += filled(run[::-1], capacity, rule, random)[::-1]
    end = np.cumsum(sizes)
    begin = end - sizes
    # Sentences that begin inside a chunk, after its first token; the second segment begins with any of them.
    offsets = corpus.sentence_offsets
    first, last = np.searchsorted(offsets, begin, "right"), np.searchsorted(offsets, end)
    has_two = first < last
    middle = np.where(has_two, offsets[random.integers(first, np.maximum(last, first + 1))], end)

    other_begin, other_end = np.zeros_like(begin), np.zeros_like(begin)
    has_next = np.zeros(len(begin), dtype=bool)
    for left, right in partners(corpus, begin, middle, end, capacity, random):
        has_next[left] = has_next[right] = True
        if random.random() < 0.5:
            other_begin[left], other_end[left] = middle[right], end[right]
            other_begin[right], other_end[right] = middle[left], end[left]

    # A chunk that begins or ends inside a sentence would give its order away.
    has_order = has_two & (offsets[first - 1] == begin) & (offsets[last] == end)
    for i in np.flatnonzero(has_order & (middle - begin == end - middle)):
        has_order[i] = (corpus.tokens[begin[i] : middle[i]] != corpus.tokens[middle[i] : end[i]]).any()
    has_order[has_order] = has_opposite((middle - begin)[has_order], (end - middle)[has_order], random)
    return Chunks(begin, middle, end, other_begin, other_end, has_next, has_order)


def runs_of(lengths: list[int], num_tokens: int, random: np.random.Generator) -> Iterator[list[int]]:
    """Divide the sentences of a document, of `lengths` tokens, into runs of about `num_tokens`."""
    run, size, limit = [], 0, num_tokens * (0.5 + random.random())
    for length in lengths:
        if size >= limit:
            yield run
            run, size, limit = [], 0, num_tokens * (0.5 + random.random())
        run.append(length)
        size += length
    yield run


def filled(lengths: list[int], capacity: int, rule: ChunkRule, random: np.random.Generator) -> list[int]:
    """Cut a run of sentences from its front; return the tokens of each chunk.

    >>> filled([3, 4, 5, 2, 1], 7, ChunkRule(short_sequence_probability=0.0), np.random.default_rng(0))
    [7, 7, 1]
    """
    sizes, i = [], 0
    while i < len(lengths):
        size = lengths[i]
        while size > capacity:  # a part of random length, with no more parts than needed
            num_parts = math.ceil(size / capacity)
            least = max(size - (num_parts - 1) * capacity, capacity // 2)
            sizes.append(least + int(random.random() * (capacity - least + 1)))
            size -= sizes[-1]
        i += 1
        target = capacity
        if rule.segments == "runs" and random.random() < rule.short_sequence_probability:
            target = 2 + int(random.random() * (capacity - 1))
        # Two sentences where they fit, however short the target; then up to the target.
        if i < len(lengths) and size + lengths[i] <= capacity:
            size += lengths[i]
            i += 1
            while rule.segments == "runs" and i < len(lengths) and size + lengths[i] <= target:
                size += lengths[i]
                i += 1
        sizes.append(size)
    return sizes


def partners(
    corpus: FlatCorpus,
    begin: np.ndarray,
    middle: np.ndarray,
    end: np.ndarray,
    capacity: int,
    random: np.random.Generator,
) -> list[tuple[int, int]]:
    """Find pairs of chunks of two documents whose second segments differ, are about as long, and fit if exchanged."""
    documents = np.searchsorted(corpus.document_starts, begin, "right").tolist()
    firsts, seconds = (middle - begin).tolist(), (end - middle).tolist()
    candidates = random.permutation(np.flatnonzero(middle < end))
    candidates = candidates[np.argsort((end - middle)[candidates], kind="stable")]
    share = max(LENGTH_TOLERANCE, min(1, CHUNKS_APART / max(len(candidates), 1)))
    tolerance = max(1, int(capacity * share))

    def text(chunk: int) -> bytes:
        return corpus.tokens[middle[chunk] : end[chunk]].tobytes()

    def fit(left: int, right: int) -> bool:
        return (
            documents[left] != documents[right]
            and seconds[right] - seconds[left] <= tolerance
            and firsts[left] + seconds[right] <= capacity
            and firsts[right] + seconds[left] <= capacity
            and text(left) != text(right)
        )

    return pair_up(candidates.tolist(), fit)


def has_opposite(first: np.ndarray, second: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return which pairs of lengths keep an order label: each `(a, b)` with another of about `(b, a)`; equal lengths.

    >>> has_opposite(np.array([1, 1, 9, 5]), np.array([9, 4, 1, 5]), np.random.default_rng(0))
    array([False,  True,  True,  True])
    """
    shorter, longer = np.minimum(first, second), np.maximum(first, second)
    tolerance = max(ORDER_TOLERANCE, FEW_CHUNKS / max(len(first), 1))
    # Except in a small text, only equal lengths up to 10 share a bin: that is where headings are.
    bins = np.floor(np.log(shorter) / np.log1p(tolerance))
    candidates = random.permutation(np.flatnonzero(first != second))
    candidates = candidates[np.lexsort((longer[candidates], bins[candidates]))]
    is_rising, bins, longer = (first < second).tolist(), bins.tolist(), longer.tolist()

    def fit(left: int, right: int) -> bool:
        is_opposite = is_rising[left] != is_rising[right] and bins[left] == bins[right]
        return is_opposite and longer[right] - longer[left] <= tolerance * longer[left]

    is_kept = first == second
    is_kept[[i for pair in pair_up(candidates.tolist(), fit) for i in pair]] = True
    return is_kept


def pair_up(candidates: list[int], fit: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """Pair each candidate with the nearest one before it that has no partner and fits, among the last `WAITING`.

    >>> pair_up([3, 5, 9, 4, 8], lambda left, right: abs(left - right) == 1)
    [(5, 4), (9, 8)]
    """
    waiting, pairs = deque(maxlen=WAITING), []
    for candidate in candidates:
        for other in reversed(waiting):
            if fit(other, candidate):
                waiting.remove(other)
                pairs.append((other, candidate))
                break
        else:
            waiting.append(candidate)
    return pairs


def original_chunks(corpus: FlatCorpus, capacity: int, rule: ChunkRule, random: np.random.Generator) -> Chunks:
    """Cut documents as BERT's and ALBERT's own code does (`create_instances_from_document`), artefacts included.

    - A chunk takes sentences until it reaches its target length, and the pair is truncated to `capacity`: the text cut
      off is in no example. One document in ten is cut into short chunks.
    - A sentence as long as the target, and the last one of a document, is a chunk by itself. It gets a random second
      segment and label 1: so 55 to 69 % of the pairs are negatives, and short inputs predict the label.
    - A random segment begins at any sentence of another document (of the chunk's own after ten samples that hit it),
      and is filled up to the target from there, which may be more than the document has left: so lengths predict part
      of the labels.
    - In BERT (`put_back`) the segment that was replaced begins the next chunk.

    Differs in: documents are not shuffled first.
    """
    offsets, chunks = corpus.sentence_offsets.tolist(), []
    documents = list(pairwise(corpus.document_offsets.tolist()))

    def integer(least: int, most: int) -> int:
        return least + int(random.random() * (most - least + 1))

    def reach(first: int, last: int, wanted: int) -> int:
        """Where sentences from `first` on reach as many tokens, or `last`; at least one sentence."""
        end = first + 1
        while end < last and offsets[end] - offsets[first] < wanted:
            end += 1
        return end

    for document, (sentence, last) in enumerate(documents):
        target = integer(2, capacity) if random.random() < rule.short_sequence_probability else capacity
        while sentence < last:
            end = reach(sentence, last, target)
            middle = integer(sentence + 1, end - 1) if end - sentence > 1 else end
            is_random = middle == end or random.random() < 0.5
            other, other_end = 0, 0
            if is_random:
                for _ in range(TRIES):
                    other_document = integer(0, len(documents) - 1)
                    if other_document != document:
                        break
                other_first, other_last = documents[other_document]
                other = integer(other_first, other_last - 1)
                other_end = reach(other, other_last, target - (offsets[middle] - offsets[sentence]))
            chunks.append((sentence, middle, end, other, other_end))
            sentence = middle if is_random and rule.put_back else end

    bounds = corpus.sentence_offsets[np.array(chunks).reshape(-1, 5).T]
    return Chunks(*bounds, has_next=np.ones(len(chunks), dtype=bool), has_order=bounds[1] < bounds[2])


class DocumentChunks(CorpusDataset):
    """Runs of consecutive sentences of one document that fit an example; the input of the pair collators.

    Every epoch cuts all of the text, at other positions. Nine chunks in ten take as many sentences as fit; the others
    are filled to a length that is uniform between 2 tokens and that, so that the model sees short inputs too (BERT,
    `short_seq_prob`). A chunk of a single sentence has no second segment and no pair label; docs/data.md has the share
    of such chunks.

    The length of the dataset is the number of chunks of epoch 0. Other epochs have a few more or less: surplus chunks,
    from a random one on, are left out of the epoch, and missing ones are filled with chunks a second time.

    Args:
        documents (`datasets.Dataset`): Tokenised documents; column `input_ids`, lists of sentences of token ids.
        max_length (`int`): Longest example in tokens, special tokens included.
        seed (`int`, *optional*, defaults to 0): Seed of all random choices.
        redraw, epochs_per_draw, dupe_factor: As in `EpochDataset`.
        rule: Arguments of `ChunkRule`; `**presets.BERT_CHUNKS` for the chunks of BERT's code.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12], [13, 14, 15], [16]], [[20, 21], [22]]]})
    >>> chunks = DocumentChunks(documents, max_length=6, redraw=False)  # room for three tokens and the special ones
    >>> [[segment.tolist() for segment in chunk.segments] for chunk in chunks]
    [[[10, 11], [12]], [[13, 14, 15]], [[16]], [[20, 21], [22]]]
    """

    num_reused = 0  # tokens of other text that a subclass puts into an example before its chunk
    if_no_room = "train without a pair objective (mlm)"

    @with_options_of(ChunkRule)
    def __init__(
        self,
        documents: datasets.Dataset,
        max_length: int,
        seed: int = 0,
        redraw: bool = True,
        epochs_per_draw: int = 1,
        dupe_factor: int | None = None,
        **rule: Any,
    ):
        refuse_unknown_options(self, rule, ChunkRule.__dataclass_fields__)
        check_pair_length(max_length - self.num_reused)
        self.rule, self.max_length = ChunkRule(**rule), max_length
        super().__init__(documents, seed, redraw, epochs_per_draw, dupe_factor)
        if np.diff(self.corpus.document_offsets).max(initial=0) < 2:
            raise ValueError(
                "documents holds no document of two sentences, and a sentence pair needs one: separate documents by "
                "blank lines and put several sentences into each, or train without a pair objective (mlm)."
            )
        self._plan: tuple[int, Chunks, int] | None = None
        chunks = self.plan(0)
        self.num_chunks = len(chunks.begin)
        if not (chunks.middle < chunks.end).any():
            raise ValueError(
                f"max_length={self.max_length} leaves no room for two neighbouring sentences of documents, which are "
                f"{np.diff(self.corpus.sentence_offsets).mean():.0f} tokens long on average: raise it, or "
                f"{self.if_no_room}."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plan": None}

    def __len__(self) -> int:
        return self.num_chunks

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        return [f"{len(self):,} chunks of {self.corpus!r}", f"max_length={self.max_length}"]

    def with_seed(self, seed: int) -> "DocumentChunks":
        """Return a copy with another seed, its own epoch, and the chunks of that seed."""
        other = super().with_seed(seed)
        other._plan = None
        other.num_chunks = len(other.plan(0).begin)
        return other

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, and cut its chunks, so that workers started later do not each have to."""
        super().set_epoch(epoch)
        self.plan(self.draw)

    def plan(self, draw: int) -> Chunks:
        """Return all chunks of a sample, in the order of the text."""
        if self._plan is None or self._plan[0] != draw:
            key = Key(self.seed, draw, 0)
            chunks = cut_corpus(self.corpus, self.max_length - self.num_reused, self.rule, key)
            rotation = generator(key, RandomStream.CHUNK_ROTATION).integers(max(len(chunks.begin), 1))
            self._plan = draw, chunks, int(rotation)
        return self._plan[1]

    def example(self, index: int) -> ChunkExample:
        """Return chunk `index` of the current epoch."""
        draw = self.draw
        chunks = self.plan(draw)
        if len(chunks.begin) != self.num_chunks:
            index = (index + self._plan[2]) % len(chunks.begin)
        begin, middle, end, other, other_end, has_next, has_order = (array[index].item() for array in chunks)
        texts = [self.text(begin, middle), self.text(middle, end)] if middle < end else [self.text(begin, end)]
        segments, starts = map(list, zip(*texts, strict=True))
        return ChunkExample(
            segments,
            Key(self.seed, draw, index),
            None if starts[0] is None else starts,
            replacement=self.text(other, other_end) if other < other_end else None,
            has_next=has_next,
            has_order=has_order,
            begin=begin,
            num_documents=self.corpus.num_documents,
            max_length=self.max_length,
            rule=self.rule,
        )


def check_pair_length(max_length: int) -> None:
    """Raise ValueError for a length without room for a token in each segment."""
    if not isinstance(max_length, (int, np.integer)) or max_length < SPECIAL_TOKENS + 2:
        raise ValueError(
            f"max_length={max_length} must be a whole number of at least {SPECIAL_TOKENS + 2}, which leaves room for "
            "a pair of sentences."
        )
