"""Next-sentence prediction (BERT) and sentence-order prediction (ALBERT): chunks, pairs, collators, objectives.

Documents are cut into chunks, runs of consecutive sentences, for a whole epoch at once; each chunk is divided into two
segments; a pair is made of each, with another second segment or swapped; data collators mask its tokens.

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
Papers: https://arxiv.org/abs/1810.04805 and https://arxiv.org/abs/1909.11942, section 3.1 of both.
"""

import inspect
import math
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import torch
from datasets.fingerprint import get_temporary_cache_files_directory
from filelock import FileLock
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.inputs import is_number
from hf_encoders.objectives.batch import IGNORED, Row
from hf_encoders.objectives.dataset import CorpusDataset, Example, Segment, refuse_unknown_options, with_options_of
from hf_encoders.objectives.mlm import MASKED_TOKENS, DataCollatorForMaskedLM, MaskedLanguageModelling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.randomness import Key, RandomStream, generator
from hf_encoders.writing import with_bar


SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
RUN_LENGTH = 16  # examples: documents are cut in runs of about as many, each from its front or from its back
BAR = "Cutting sentence pairs"
WAITING = 16  # chunks that wait for a partner: all but one in a thousand find one where documents are many
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
        share = self.short_sequence_probability
        if self.segments not in ("runs", "sentences"):
            raise ValueError(f"segments={self.segments!r} is not known: use 'runs' or 'sentences'.")
        if not (is_number(share) and 0 <= share <= 1):
            raise ValueError(f"short_sequence_probability={share!r} must be in [0, 1]; BERT uses 0.1.")
        if self.put_back and not self.original_code:
            raise ValueError("put_back=True needs original_code=True, as in presets.BERT_CHUNKS: leave it out.")
        if self.segments == "sentences" and (share, self.original_code) != (0.1, False):
            raise ValueError("short_sequence_probability, original_code: no effect with segments='sentences'.")


# A row for each chunk of an epoch, in the order of the text; positions count the corpus's tokens.
CHUNK = np.dtype(
    [
        ("begin", np.int64),
        ("middle", np.int64),  # where the second segment begins; `end` for a chunk of one sentence, which has none
        ("end", np.int64),  # excluded
        ("other_begin", np.int64),  # segment in place of the second one of a negative, from another document
        ("other_end", np.int64),  # equal to `other_begin` for positives
        ("has_next", bool),  # whether it has a label in next-sentence prediction
        ("has_order", bool),  # whether it has one in sentence-order prediction
    ]
)


@dataclass(slots=True, kw_only=True, repr=False)
class ChunkExample(Example):
    """A chunk, before a pair is made of it: its two segments, or one for a chunk of a single sentence."""

    has_next: bool  # whether it has a label in next-sentence prediction
    has_order: bool  # whether it has one in sentence-order prediction
    replacement: Segment | None = None  # second segment of a negative of next-sentence prediction, from elsewhere
    begin: int = 0  # its first token in the corpus
    reused: Segment | None = None  # text before it, for XLNet
    num_documents: int = 0  # of the corpus; 0 for a row of a plain dataset, which has no others
    max_length: int  # of an example in tokens, special tokens included; original chunks may be longer
    rule: ChunkRule  # how it was cut

    def with_segments(self, texts: Sequence[Segment], **options: Any) -> Example:
        """Return an example of other segments; `options` are arguments of `Example`."""
        languages = self.languages and self.languages[:1] * len(texts)
        return Example.of(texts, self.key, languages=languages, mask_rate=self.mask_rate, phase=self.phase, **options)

    def as_text(self) -> Example:
        """Return the chunk as one text, for masked language modelling alone."""
        self.refuse_put_back("masked language modelling alone")
        most = self.max_length - SPECIAL_TOKENS + 1  # a separator fewer than a pair
        starts = None if self.word_starts is None else np.concatenate(self.word_starts)[:most]
        return self.with_segments([(np.concatenate(self.segments)[:most], starts)])

    def refuse_put_back(self, objective: str) -> None:
        """Raise ValueError for a chunk that is cut for next-sentence prediction."""
        if self.rule.put_back:
            raise ValueError(
                "put_back=True cuts chunks for next-sentence prediction, and parts of them would be seen twice: leave "
                f"it out of DocumentChunks for {objective}."
            )


def whole_sentence_chunks(
    corpus: FlatCorpus, capacity: int, rule: ChunkRule, random: np.random.Generator
) -> np.recarray:
    """Cut documents into chunks of at most `capacity` tokens, by the three rules above; rows of `CHUNK`."""
    lengths, sizes = np.diff(corpus.sentence_offsets), []
    for first, last in with_bar(list(pairwise(corpus.document_offsets.tolist())), BAR):
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
    return np.rec.fromarrays([begin, middle, end, other_begin, other_end, has_next, has_order], dtype=CHUNK)


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
    """Find chunks of two documents whose second segments differ, are about as long, and fit if exchanged."""
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
    for candidate in with_bar(candidates, BAR):
        for other in reversed(waiting):
            if fit(other, candidate):
                waiting.remove(other)
                pairs.append((other, candidate))
                break
        else:
            waiting.append(candidate)
    return pairs


def original_chunks(corpus: FlatCorpus, capacity: int, rule: ChunkRule, random: np.random.Generator) -> np.recarray:
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
        """Return the sentence before which those from `first` on hold as many tokens, or `last`; one at least."""
        end = first + 1
        while end < last and offsets[end] - offsets[first] < wanted:
            end += 1
        return end

    for document, (sentence, last) in enumerate(with_bar(documents, BAR)):
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
    return np.rec.fromarrays([*bounds, np.ones(len(chunks), dtype=bool), bounds[1] < bounds[2]], dtype=CHUNK)


class DocumentChunks(CorpusDataset):
    """Runs of consecutive sentences of one document that fit an example; the input of the pair collators.

    Every epoch cuts all of the text, at other positions. Nine chunks in ten take as many sentences as fit; the others
    are filled to a length that is uniform between 2 tokens and that, so that the model sees short inputs too (BERT,
    `short_seq_prob`). A chunk of a single sentence has no second segment and no pair label; docs/measurements.md has
    the share of such chunks.

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
        refuse_unknown_options(type(self).__name__, rule, inspect.signature(DocumentChunks).parameters)
        check_pair_length(max_length)
        self.rule, self.max_length = ChunkRule(**rule), max_length
        super().__init__(documents, seed, redraw, epochs_per_draw, dupe_factor)
        if self.corpus.document_lengths.max(initial=0) < 2:
            raise ValueError(
                "documents holds no document of two sentences, and a sentence pair needs one: separate documents by "
                "blank lines and put several sentences into each, or train without a pair objective (mlm)."
            )
        self.plans = Path(get_temporary_cache_files_directory(), f"chunks-{uuid.uuid4().hex}")
        self._plan: tuple[int, np.recarray, int] | None = None
        chunks = self.plan(0)
        self.num_chunks = len(chunks)
        if not (chunks.middle < chunks.end).any():
            raise ValueError(
                f"max_length={max_length} leaves no room for two neighbouring sentences of documents, which are "
                f"{self.corpus.sentence_lengths.mean():.0f} tokens long on average: raise it, or train without a pair "
                "objective (mlm)."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_plan": None}

    def __len__(self) -> int:
        return self.num_chunks

    def facts(self) -> list[str]:
        """Return contents and options for `repr`."""
        return [f"{len(self):,} chunks of {self.corpus!r}", f"max_length={self.max_length}"]

    def with_seed(self, seed: int) -> "DocumentChunks":
        """Return a copy with another seed, whose epoch is not set, with the chunks of that seed."""
        other = super().with_seed(seed)
        other._plan = None
        other.num_chunks = len(other.plan(0))
        return other

    def plan(self, draw: int) -> np.recarray:
        """Return all chunks of a sample, in the order of the text.

        Whoever of the process and its workers needs them first cuts them, into a file that all map into memory.
        """
        if self._plan is None or self._plan[0] != draw:
            key = Key(self.seed, draw, 0)
            self.plans.mkdir(parents=True, exist_ok=True)
            file, outdated = (self.plans / f"{self.seed}-{number}.npy" for number in (draw, draw - 2))
            with FileLock(self.plans / "lock"):
                if not file.exists():
                    cut = original_chunks if self.rule.original_code else whole_sentence_chunks
                    capacity, random = self.max_length - SPECIAL_TOKENS, generator(key, RandomStream.CHUNKS)
                    unfinished = file.with_name(f"unfinished-{file.name}")
                    np.save(unfinished, cut(self.corpus, capacity, self.rule, random))
                    unfinished.rename(file)
                    outdated.unlink(missing_ok=True)
                chunks = np.load(file, mmap_mode="r").view(np.recarray)
            rotation = generator(key, RandomStream.CHUNK_ROTATION).integers(max(len(chunks), 1))
            self._plan = draw, chunks, int(rotation)
        return self._plan[1]

    def example(self, index: int) -> ChunkExample:
        """Return chunk `index` of the current epoch."""
        draw = self.draw
        chunks = self.plan(draw)
        if len(chunks) != self.num_chunks:
            index = (index + self._plan[2]) % len(chunks)
        begin, middle, end, other, other_end, has_next, has_order = chunks[index].item()
        return ChunkExample.of(
            [self.text(begin, middle), self.text(middle, end)] if middle < end else [self.text(begin, end)],
            Key(self.seed, draw, index),
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
    least = SPECIAL_TOKENS + 2
    if not isinstance(max_length, (int, np.integer)) or max_length < least:
        raise ValueError(f"max_length={max_length} must be a whole number of at least {least}, for a pair of tokens.")


def next_sentence_pair(chunk: ChunkExample) -> Example:
    """Make a pair of next-sentence prediction: 0 with the segment that follows, 1 with one from elsewhere.

    A chunk without a label keeps what follows.
    """
    if chunk.num_documents == 0:
        raise ValueError(
            "next-sentence prediction takes random segments from the corpus, which rows of a plain dataset do not "
            "have: train on DocumentChunks(documents, max_length)."
        )
    if chunk.num_documents == 1 and not chunk.rule.original_code:
        raise ValueError(
            "documents holds one document, and next-sentence prediction takes random segments from others: separate "
            "documents by blank lines, or use sop or mlm."
        )
    if not chunk.has_next:
        return make_pair(chunk, chunk.texts, IGNORED)
    if chunk.replacement is None:
        return make_pair(chunk, chunk.texts, 0)
    return make_pair(chunk, [chunk.texts[0], chunk.replacement], 1)


def sentence_order_pair(chunk: ChunkExample) -> Example:
    """Make a pair of sentence-order prediction: 0 in order, 1 swapped, with probability 1/2 each.

    A chunk without a label stays in order. In the original code a single sentence gets a random second segment and
    label 1.
    """
    chunk.refuse_put_back("sentence-order prediction")
    if chunk.rule.original_code and len(chunk.segments) == 1:
        return make_pair(chunk, [*chunk.texts, chunk.replacement], 1)
    if not chunk.has_order:
        return make_pair(chunk, chunk.texts, IGNORED)
    if generator(chunk.key, RandomStream.SEGMENT_SWAP).random() < 0.5:
        return make_pair(chunk, chunk.texts[::-1], 1)
    return make_pair(chunk, chunk.texts, 0)


def make_pair(chunk: ChunkExample, texts: list[Segment], label: int) -> Example:
    """Make an example of one or two segments that fits, as `truncate_seq_pair` does.

    Tokens are removed until it fits, one at a time, from the longer segment (the second of two equally long ones),
    from its front or back with probability 1/2 each.
    """
    begin, end = [0] * len(texts), [len(ids) for ids, _ in texts]
    excess = sum(end) - (chunk.max_length - SPECIAL_TOKENS)
    if excess > 0:
        for from_front in generator(chunk.key, RandomStream.TRUNCATION).random(excess) < 0.5:
            longer = 0 if len(texts) == 1 or end[0] - begin[0] > end[1] - begin[1] else 1
            if from_front:
                begin[longer] += 1
            else:
                end[longer] -= 1
        for i, (ids, starts) in enumerate(texts):
            kept = slice(begin[i], end[i])
            texts[i] = ids[kept], None if starts is None else starts[kept]
    return chunk.with_segments(texts, token_types=[0, 1][: len(texts)], labels={"pair": label})


def chunk_of_sentences(sentences: list[np.ndarray], key: Key, max_length: int) -> ChunkExample:
    """Make a chunk of the sentences of a plain row: as many as fit, from a random one on, or up to it."""
    random = generator(key, RandomStream.CHUNKS)
    # Up to a sentence as often as from one on, so that the longer segment is as often the first as the second.
    backwards = random.random() < 0.5
    taken = sentences[::-1] if backwards else sentences
    taken = taken[random.integers(max(len(taken) - 1, 1)) :]
    count, size = 1, len(taken[0])
    while count < len(taken) and size + len(taken[count]) <= max_length - SPECIAL_TOKENS:
        size += len(taken[count])
        count += 1
    taken = taken[:count][::-1] if backwards else taken[:count]
    split = random.integers(1, max(count, 2))
    segments = [np.concatenate(part) for part in (taken[:split], taken[split:]) if part]
    has_order = count > 1 and not np.array_equal(*segments)  # two equal segments have no order
    return ChunkExample(segments, key, has_next=False, has_order=has_order, max_length=max_length, rule=ChunkRule())


class SentencePairCollator(DataCollatorForMaskedLM):
    """Mask sentence pairs and make a batch: `[CLS] A [SEP] B [SEP]`, token types, one label per pair.

    Token types are 0 up to the first `[SEP]`, then 1. A subclass sets `pair_of` and `LABEL_NAME`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        max_length (`int`, *optional*): Longest example in tokens, special tokens included; longer pairs are truncated.
            `None` takes that of the dataset; rows of a plain dataset need it.
        label_name (`str`, *optional*, defaults to `LABEL_NAME`): Argument of the model's `forward` for the pair label.
        options: `packed`, `mask_probability` and the other arguments of `DataCollatorForMaskedLM`.
    """

    LABEL_NAME: ClassVar[str]
    pair_of: ClassVar[Callable[[ChunkExample], Example]]

    needs_whole_texts = True

    @with_options_of(DataCollatorForMaskedLM)
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        label_name: str | None = None,
        **options: Any,
    ):
        super().__init__(tokenizer, **options)
        if max_length is not None:
            check_pair_length(max_length)
        self.max_length, self.label_name = max_length, label_name or self.LABEL_NAME
        self.label_arguments = {"pair": self.label_name}

    def prepare(self, example: Example) -> Example:
        """Return the pair of a chunk."""
        if not isinstance(example, ChunkExample):
            raise ValueError(
                f"features hold a {type(example).__name__}, and sentence pairs are made of examples of DocumentChunks "
                "or of rows of sentences: SentenceBlocks is for DataCollatorForMaskedLM."
            )
        if self.max_length not in (None, example.max_length):
            raise ValueError(
                f"max_length={self.max_length} is not the dataset's, {example.max_length}: leave it out here."
            )
        return self.pair_of(example)

    def plain(self, features: Sequence[Mapping[str, Any]]) -> tuple[list[Example], list[Row]]:
        """Return the pairs of rows of sentences, with keys from torch's generator, and their tokens."""
        if self.max_length is None:
            raise ValueError("max_length is needed for rows of a plain dataset: give it to the data collator.")
        examples = []
        for number, feature in zip(torch.randint(2**56, (len(features),)).tolist(), features, strict=True):
            if "input_ids" not in feature:
                raise ValueError(
                    f"input_ids is missing, a row of the batch has {list(feature)}: make a corpus of text with "
                    "prepare_corpus or tokenize_documents, and DocumentChunks of it."
                )
            sentences = [np.asarray(ids, dtype=np.int64) for ids in feature["input_ids"] if np.size(ids)]
            if not sentences or sentences[0].ndim != 1:
                raise ValueError(
                    "input_ids must be a list of sentences, each a list of token ids without special tokens, for a "
                    "pair objective: see hf_encoders.tokenize_documents."
                )
            examples.append(self.prepare(chunk_of_sentences(sentences, Key(0, 0, number), self.max_length)))
        return examples, [self.tokens(example) for example in examples]


class DataCollatorForNextSentencePrediction(SentencePairCollator):
    """MLM and next-sentence prediction (BERT): half of the pairs follow each other, half are random.

    `next_sentence_label` is 0 where B follows A and 1 where B comes from another document; -100 for a chunk of a
    single sentence, which makes no pair. Negatives exchange their second segments, so every token of the text is in
    exactly one example of an epoch (`whole_sentence_chunks`).

    Input: examples of `DocumentChunks`; rows of a plain dataset have no other documents, and are refused.

    Output: as `DataCollatorForMaskedLM`, with `token_type_ids` and `next_sentence_label` `(B,)`.

    Example, with ids 1 = [CLS], 2 = [SEP], and nothing masked; document 0 is [[10, 11], [12]]:

    >>> from datasets import Dataset
    >>> documents = Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> chunks = DocumentChunks(documents, max_length=16, seed=1)
    >>> collator = DataCollatorForNextSentencePrediction(
    ...     doctest_tokenizer(), max_length=16, mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> for epoch in (0, 2):
    ...     chunks.set_epoch(epoch)
    ...     batch = collator([chunks[0]])
    ...     print(batch["input_ids"].tolist(), batch["token_type_ids"].tolist(), batch["next_sentence_label"].tolist())
    [[1, 10, 11, 2, 22, 23, 24, 2]] [[0, 0, 0, 0, 1, 1, 1, 1]] [1]
    [[1, 10, 11, 2, 12, 2]] [[0, 0, 0, 0, 1, 1]] [0]
    """

    LABEL_NAME = "next_sentence_label"
    pair_of = staticmethod(next_sentence_pair)


class DataCollatorForSentenceOrderPrediction(SentencePairCollator):
    """MLM and sentence-order prediction (ALBERT): half of the pairs are in order, half are swapped.

    `sentence_order_label` is 0 for pairs in order and 1 for swapped ones; -100 for a chunk of a single sentence or
    with a part of one, and where the lengths of the segments would predict the label (`whole_sentence_chunks`).

    Input: examples of `DocumentChunks`; or rows whose `input_ids` are the sentences of a document, of which as many as
        fit are taken from a random one on.

    Output: as `DataCollatorForMaskedLM`, with `token_type_ids` and `sentence_order_label` `(B,)`.

    Example: "I love you." (10, 11) and "Because you are wonderful." (12), in order and swapped, and nothing masked:

    >>> collator = DataCollatorForSentenceOrderPrediction(
    ...     doctest_tokenizer(), max_length=16, mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> _ = torch.manual_seed(2)
    >>> batch = collator([{"input_ids": [[10, 11], [12]]}] * 2)
    >>> batch["input_ids"].tolist(), batch["sentence_order_label"].tolist()
    ([[1, 10, 11, 2, 12, 2], [1, 12, 2, 10, 11, 2]], [0, 1])
    """

    LABEL_NAME = "sentence_order_label"
    pair_of = staticmethod(sentence_order_pair)


SENTENCE_PAIRS = LossTerm("pair", "sentence pairs", task="text-classification", is_per_example=True, chance=0.5)
SAME_HALF = 0.02  # difference from one half that is rounding, and sampling of few examples


class SentencePairObjective(MaskedLanguageModelling):
    """Masked tokens and one binary label per sentence pair."""

    title: ClassVar[str]  # the pair task, for the card
    label_1: ClassVar[str]  # which pairs have label 1, for the card, after the share that has it
    single_label_1: ClassVar[str] = ""  # added if chunks of one sentence get a random second segment and label 1
    terms = (MASKED_TOKENS, SENTENCE_PAIRS)
    auto_class = "AutoModelForPreTraining"
    dataset_class = DocumentChunks
    parallel_class = None
    example_options = ChunkRule
    collator_class: ClassVar[type[DataCollatorForMaskedLM]]

    def make_collator(
        self, tokenizer: PreTrainedTokenizerBase, model_class: type[PreTrainedModel], **options: Any
    ) -> DataCollatorForMaskedLM:
        """Return the data collator, with the model's name for the pair label."""
        label_name = model_class.loss_terms[SENTENCE_PAIRS.name]
        return self.collator_class(tokenizer, label_name=label_name, **options)

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Say how tokens were masked, and which pairs had label 1, or that there were none."""
        share = logged.get("pair_label_1_share", 0.5)
        words = "half" if abs(share - 0.5) <= SAME_HALF else f"{100 * share:.0f} %"
        pairs = f"{words} {self.label_1}{self.single_label_1 if examples.get('original_code') else ''} (label 1)"
        if logged.get("pair_share") == 0:
            pairs = "not trained, because no example had two segments"
        return {**super().describe(collator, mask_rates, examples, logged), self.title: pairs}


class NextSentencePrediction(SentencePairObjective):
    """Classify whether segment B follows segment A (label 0) or is from another document (label 1)."""

    name = "nsp"
    title = "next-sentence prediction"
    label_1 = "of the second segments from another document"
    single_label_1 = ", including all after a chunk of one sentence"
    collator_class = DataCollatorForNextSentencePrediction
    least_documents = 2  # random second segments are from another document of the same part


class SentenceOrderPrediction(SentencePairObjective):
    """Classify whether two consecutive segments are in order (label 0) or swapped (label 1)."""

    name = "sop"
    title = "sentence-order prediction"
    label_1 = "of the pairs swapped"
    single_label_1 = ", or a single sentence with one from elsewhere"
    collator_class = DataCollatorForSentenceOrderPrediction
