"""Chunks: runs of consecutive sentences of one document that sentence pairs are made of.

Source: `create_instances_from_document` of google-research/bert and google-research/albert,
`create_pretraining_data.py`. Differs from them in what the options of `ChunkRule` name, each off by default; and in
that every draw is keyed by where the chunk begins (`randomness.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import datasets
import numpy as np

from hf_encoders.data.corpus.sentence_store import SentenceStore
from hf_encoders.data.examples import EpochDataset
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.randomness import example_keys, integers_below, uniforms


SPECIAL_TOKENS_OF_A_PAIR = 3  # [CLS] A [SEP] B [SEP]

# Streams of random numbers, one a decision; those of `sentence_pairs` and `masking` follow.
TARGET_STREAM, SPLIT_STREAM, NEGATIVE_STREAM, ROTATION_STREAM = range(1, 5)


@dataclass(frozen=True)
class ChunkRule:
    """How chunks are cut and negatives are drawn. The defaults are without the known artefacts of the original code.

    Args:
        segments (`str`): `"runs"`, a chunk has sentences up to the target length and each segment is one or more of
            them (SEGMENT-PAIR of the RoBERTa paper, section 4.2; BERT, ALBERT); `"sentences"`, a chunk is two
            sentences and each segment is one (SENTENCE-PAIR).
        short_sequence_probability (`float`): probability in [0, 1] that a document is cut into chunks of a shorter
            target, drawn uniformly; BERT's `short_seq_prob`.
        lone_sentences (`bool`): whether a chunk may be one sentence in a document that has more. In the original code
            a sentence as long as the target, and what is left at a document's end.
        lone_sentence_is_negative (`bool`): whether a chunk of one sentence gets a random second segment and label 1.
            In the original code: so 55 to 69 % of the pairs are negatives, and short inputs tell the label. By default
            it gets no second segment and label -100.
        negatives_from_own_document (`bool`): whether a random segment may come from the chunk's own document: in the
            original code after ten draws that hit it, so always where there is one document only.
        negatives_fill_up (`bool`): whether a random segment is filled up to the target length, from a place that may
            have less left. In the original code: so lengths tell part of the labels. By default it is filled up to
            the target where the true segment was, otherwise it is about as long, and its place has enough left.
        put_back (`bool`): whether the segment that a random one replaced begins the next chunk (BERT), so that no text
            is lost to negatives. For next-sentence prediction only.

    Raises:
        ValueError: for a value out of range.
    """

    segments: str = "runs"
    short_sequence_probability: float = 0.1
    lone_sentences: bool = False
    lone_sentence_is_negative: bool = False
    negatives_from_own_document: bool = False
    negatives_fill_up: bool = False
    put_back: bool = False

    def __post_init__(self):
        if self.segments not in ("runs", "sentences"):
            raise ValueError(f"segments={self.segments!r} is not known: use 'runs' or 'sentences'.")
        if not 0 <= self.short_sequence_probability <= 1:
            raise ValueError(
                f"short_sequence_probability={self.short_sequence_probability} must be in [0, 1]; BERT uses 0.1."
            )
        if self.put_back and not self.lone_sentences:
            raise ValueError(
                "put_back=True leaves single sentences at the ends of documents: set lone_sentences=True too, as "
                "paper_modes.BERT_CHUNKS does."
            )
        if self.segments == "sentences":
            of_runs = ("short_sequence_probability", "lone_sentences", "negatives_fill_up", "put_back")
            changed = [name for name in of_runs if getattr(self, name) != getattr(ChunkRule, name)]
            if changed:
                raise ValueError(f"{', '.join(changed)}: without effect on segments='sentences'; leave it out.")


@dataclass(frozen=True)
class ChunkExamples:
    """References to chunks of a corpus.

    Args:
        corpus (`FlatCorpus`): where the sentences are, and random segments come from.
        first, end (`np.ndarray` of `int64`, shape `(B,)`): sentences of each chunk, `end` excluded.
        documents (`np.ndarray` of `int64`, shape `(B,)`): document of each chunk.
        targets (`np.ndarray` of `int64`, shape `(B,)`): tokens that each chunk was filled up to.
        max_tokens (`int`): most tokens of a pair, special tokens not counted.
        keys (`np.ndarray` of `uint64`, shape `(B,)`): from `example_keys`; decide every draw for each example.
        rule (`ChunkRule`): how negatives are drawn.
        is_whole_corpus (`bool`): whether random segments may be drawn from `corpus`.
    """

    corpus: FlatCorpus
    first: np.ndarray
    end: np.ndarray
    documents: np.ndarray
    targets: np.ndarray
    max_tokens: int
    keys: np.ndarray
    rule: ChunkRule
    is_whole_corpus: bool = True

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        tokens = int((self.corpus.sentence_offsets[self.end] - self.corpus.sentence_offsets[self.first]).sum())
        longest = self.max_tokens + SPECIAL_TOKENS_OF_A_PAIR
        return f"{type(self).__name__}({len(self):,} chunks, {tokens:,} tokens, max_length={longest})"

    def sentences(self, i: int) -> list[np.ndarray]:
        """Token ids of each sentence of chunk `i`; to look at."""
        offsets = self.corpus.sentence_offsets
        return [self.corpus.tokens[offsets[s] : offsets[s + 1]] for s in range(self.first[i], self.end[i])]


class DocumentChunks(EpochDataset):
    """Runs of consecutive sentences of one document, about as long as an example; the input of the pair collators.

    A document is cut greedily: sentences are added until the target length is reached. The target is `max_length` less
    the special tokens; for one document in ten (drawn anew every epoch) it is uniform between 2 and that, so that the
    model meets short inputs too (BERT, `short_seq_prob`).

    The length of the data set is the number of chunks of epoch 0. Other epochs, cut differently, have some chunks more
    or less (a few per cent with a thousand documents, a few per mille with a hundred thousand); those beyond the
    length, from a random place on, are left out of that epoch, missing ones are filled with others a second time.

    Args:
        documents (`datasets.Dataset`): tokenised documents, column `input_ids` of lists of sentences of ids.
        max_length (`int`): longest example in tokens, special tokens included.
        seed (`int`): seed of all draws.
        redraw, epochs_per_draw, dupe_factor: as in `EpochDataset`.
        rule: arguments of `ChunkRule`; `**paper_modes.BERT_CHUNKS` for the original code's.

    Raises:
        ValueError: if no document has two sentences, or `max_length` leaves no room for a pair.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12], [13, 14, 15], [16]], [[20, 21], [22]]]})
    >>> chunks = DocumentChunks(documents, max_length=6, redraw=False)  # room for three tokens beside the special ones
    >>> [[sentence.tolist() for sentence in chunks[i].sentences(0)] for i in range(len(chunks))]
    [[[10, 11], [12]], [[13, 14, 15], [16]], [[20, 21], [22]]]
    """

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
        super().__init__(seed, redraw, epochs_per_draw, dupe_factor)
        check_pair_length(max_length)
        self.rule = ChunkRule(**rule)
        self.store = SentenceStore(documents)
        self.max_tokens = max_length - SPECIAL_TOKENS_OF_A_PAIR
        self._open()
        if np.diff(self.corpus.document_offsets).max(initial=0) < 2:
            raise ValueError(
                "documents holds no document of two sentences, and a sentence pair needs one: separate documents by "
                "blank lines and put several sentences into each, or train without a pair objective (mlm)."
            )

    def _open(self) -> None:
        self.corpus = FlatCorpus.of(self.store)
        self.cutter = ChunkCutter(self.corpus, self.max_tokens, self.seed, self.rule)
        self._plan = (0, self.cutter.first_sentences(0))
        self.num_chunks = len(self._plan[1])

    def __getstate__(self) -> dict[str, Any]:
        # For workers that are not forked: the corpus is a file, which they open themselves.
        return {name: value for name, value in vars(self).items() if name not in ("corpus", "cutter", "_plan")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return self.num_chunks

    def facts(self) -> list[str]:
        """What the data set is of, for its `repr`."""
        longest = self.max_tokens + SPECIAL_TOKENS_OF_A_PAIR
        return [f"{len(self):,} chunks of {self.store!r}", f"max_length={longest}"]

    def set_epoch(self, epoch: int) -> None:
        """Announce the epoch, from 0, and cut it here and now: workers that start later need not do it each."""
        super().set_epoch(epoch)
        self._chunks(self.draw)

    def examples(self, indices: np.ndarray) -> ChunkExamples:
        """References to chunks; nothing of the text is read."""
        draw = self.draw
        first = self._chunks(draw)
        if len(first) != self.num_chunks:
            rotation = integers_below(example_keys(self.seed, draw, 0), ROTATION_STREAM, 0, len(first))
            indices = (indices + rotation) % len(first)
        return self.cutter.chunks(first[indices], draw)

    def _chunks(self, draw: int) -> np.ndarray:
        """First sentence of every chunk of a draw, ascending."""
        if self._plan[0] != draw:
            self._plan = (draw, self.cutter.first_sentences(draw))
        return self._plan[1]


class ChunkCutter:
    """Cuts the documents of a corpus into chunks.

    Args:
        corpus (`FlatCorpus`): without empty documents and sentences.
        max_tokens (`int`): longest pair in tokens, special tokens not counted.
        seed (`int`): seed of all draws.
        rule (`ChunkRule`): how to cut.
        first_sentence, first_document (`int`): numbers of the corpus's first sentence and document in the draws; not 0
            where the corpus is a window of a longer one.
    """

    def __init__(
        self,
        corpus: FlatCorpus,
        max_tokens: int,
        seed: int,
        rule: ChunkRule,
        first_sentence: int = 0,
        first_document: int = 0,
    ):
        self.corpus, self.max_tokens, self.seed, self.rule = corpus, max_tokens, seed, rule
        self.first_sentence, self.first_document = first_sentence, first_document

    def first_sentences(self, draw: int) -> np.ndarray:
        """First sentence of every chunk of a draw, `int64`, ascending.

        All documents are cut side by side: each round takes the next chunk of every document that has one left.
        """
        first, document_ends = self.corpus.document_offsets[:-1], self.corpus.document_offsets[1:]
        documents = np.arange(len(first))
        if self.rule.segments == "sentences":
            first = first + self._skipped(documents, draw)
            is_left = document_ends - first >= 2
            first, document_ends, documents = first[is_left], document_ends[is_left], documents[is_left]
        targets = self._targets(documents, draw)
        found = [first]
        while len(first):
            end = self._ends(first, document_ends, targets)
            if self.rule.put_back:
                keys = self._keys(first, draw)
                unused = is_negative(keys) & (end - first > 1)
                end = np.where(unused, first + split_places(keys, end - first), end)
            is_left = document_ends - end >= (2 if self.rule.segments == "sentences" else 1)
            first, document_ends, targets = end[is_left], document_ends[is_left], targets[is_left]
            found.append(first)
        return np.sort(np.concatenate(found))

    def chunks(self, first: np.ndarray, draw: int) -> ChunkExamples:
        """The chunks that begin at sentences `first` in a draw."""
        documents = np.searchsorted(self.corpus.document_offsets, first, "right") - 1
        targets = self._targets(documents, draw)
        end = self._ends(first, self.corpus.document_offsets[documents + 1], targets)
        keys = self._keys(first, draw)
        return ChunkExamples(self.corpus, first, end, documents, targets, self.max_tokens, keys, self.rule)

    def _keys(self, first: np.ndarray, draw: int) -> np.ndarray:
        return example_keys(self.seed, draw, first + self.first_sentence)

    def _targets(self, documents: np.ndarray, draw: int) -> np.ndarray:
        """Target length of documents, drawn once a document and epoch: uniform in [2, most] for the short ones."""
        keys = example_keys(self.seed, draw, documents + self.first_document)
        is_short = uniforms(keys, TARGET_STREAM, 0) < self.rule.short_sequence_probability
        return np.where(is_short, 2 + integers_below(keys, TARGET_STREAM, 1, self.max_tokens - 1), self.max_tokens)

    def _skipped(self, documents: np.ndarray, draw: int) -> np.ndarray:
        """0 or 1: in a document of an odd number of sentences the last or the first one is in no pair, at random."""
        is_odd = np.diff(self.corpus.document_offsets)[documents] % 2
        keys = example_keys(self.seed, draw, documents + self.first_document)
        return is_odd * integers_below(keys, TARGET_STREAM, 2, 2)

    def _ends(self, first: np.ndarray, document_ends: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Sentence that each chunk ends before.

        A single last sentence makes no pair: it gets company from the chunk before, or joins it.
        """
        if self.rule.segments == "sentences":
            return np.minimum(first + 2, document_ends)
        offsets = self.corpus.sentence_offsets
        reached = np.searchsorted(offsets, offsets[first] + targets)
        end = np.minimum(np.maximum(reached, first + (1 if self.rule.lone_sentences else 2)), document_ends)
        if self.rule.lone_sentences:
            return end
        company = np.where(end - first > 2, end - 1, document_ends)
        return np.where(document_ends - end == 1, company, end)


def split_places(keys: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How many sentences of chunks of `sizes` sentences the first segment has: uniform in [1, size - 1], 1 of 1."""
    return 1 + integers_below(keys, SPLIT_STREAM, 0, np.maximum(sizes - 1, 1))


def is_negative(keys: np.ndarray) -> np.ndarray:
    """Which chunks of two sentences or more get a random second segment in next-sentence prediction: half of them."""
    return uniforms(keys, NEGATIVE_STREAM, 0) < 0.5


def rows_as_chunks(rows: list[list[np.ndarray]], keys: np.ndarray, max_tokens: int) -> ChunkExamples:
    """Examples from rows of sentences: a run from a random place of each, two sentences at least where there are two.

    Args:
        rows (`list[list[np.ndarray]]`): non-empty sentences of token ids, one or more a row.
        keys (`np.ndarray` of `uint64`, shape `(B,)`): key of each row's draws.
        max_tokens (`int`): most tokens of a pair, special tokens not counted.
    """
    sizes = np.array([len(row) for row in rows])
    sentences = [sentence for row in rows for sentence in row]
    corpus = FlatCorpus.from_lengths(
        np.concatenate(sentences), np.array([len(sentence) for sentence in sentences]), sizes
    )
    first = corpus.document_offsets[:-1] + integers_below(keys, TARGET_STREAM, 0, np.maximum(sizes - 1, 1))
    reached = np.searchsorted(corpus.sentence_offsets, corpus.sentence_offsets[first] + max_tokens)
    end = np.minimum(np.maximum(reached, first + 2), corpus.document_offsets[1:])
    documents, targets = np.arange(len(rows)), np.full(len(rows), max_tokens)
    return ChunkExamples(corpus, first, end, documents, targets, max_tokens, keys, ChunkRule(), False)


def join_chunks(parts: Sequence[ChunkExamples]) -> list[ChunkExamples]:
    """Neighbouring examples of one corpus together."""
    joined = []
    for _, group in groupby(parts, key=lambda part: (id(part.corpus), part.rule, part.max_tokens)):
        group = list(group)
        arrays = {
            name: np.concatenate([getattr(part, name) for part in group])
            for name in ("first", "end", "documents", "targets", "keys")
        }
        joined.append(replace(group[0], **arrays) if len(group) > 1 else group[0])
    return joined


def check_pair_length(max_length: int) -> None:
    """Refuse a length without room for a token in each segment."""
    if not isinstance(max_length, (int, np.integer)):
        raise ValueError(f"max_length={max_length} must be a whole number of tokens.")
    if max_length < SPECIAL_TOKENS_OF_A_PAIR + 2:
        raise ValueError(f"max_length={max_length} leaves no room for a pair of sentences: use at least 5.")
