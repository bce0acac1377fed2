"""Chunks of documents, and the sentence pairs of BERT's and ALBERT's objectives made of them.

Sources: `create_pretraining_data.py` of google-research/bert and google-research/albert. Differs from them in: a chunk
holds at least two sentences wherever its document does, so that a chunk of one sentence is not forced to be a
negative; a negative never comes from the same document, and is about as long as the segment it replaces, which is not
used elsewhere in that epoch; every draw is keyed by the example (see `randomness.py`).
"""

import bisect
from typing import NamedTuple

import datasets
import numpy as np

from hf_encoders.data.examples import EpochDataset, Example
from hf_encoders.data.randomness import example_keys, uniforms
from hf_encoders.data.sentence_store import SentenceStore


SPECIAL_TOKENS_OF_A_PAIR = 3  # [CLS] A [SEP] B [SEP]
SHORT_SEQUENCE_PROBABILITY = 0.1  # BERT and ALBERT, `short_seq_prob`

# Streams of random numbers, one a decision.
TARGET_STREAM, SPLIT_STREAM, NEGATIVE_STREAM, ORDER_STREAM, TRUNCATION_STREAM = range(1, 6)


class DocumentChunks(EpochDataset):
    """Runs of consecutive sentences of one document, about as long as an example; the input of the pair collators.

    A document is cut greedily: sentences are added until the target length is reached. The target is `max_length` less
    the special tokens; for one document in ten (drawn anew every epoch) it is uniform between 2 and that, so that the
    model meets short inputs too (BERT, `short_seq_prob`).

    The length of the data set is the number of chunks of epoch 0. Other epochs, cut differently, have a few chunks
    more or less; those beyond the length are left out of that epoch, missing ones are filled from its beginning.

    Args:
        documents (`datasets.Dataset`): tokenised documents, column `input_ids` of lists of sentences of ids.
        max_length (`int`): longest example in tokens, special tokens included.
        seed (`int`): seed of all draws.
        short_sequence_probability (`float`): probability in [0, 1] that a document is cut shorter.
        redraw (`bool`): False gives every epoch the draws of epoch 0; for evaluation.

    Raises:
        ValueError: if no document has two sentences, or `max_length` leaves no room for a pair.
    """

    def __init__(
        self,
        documents: datasets.Dataset,
        max_length: int,
        seed: int = 0,
        short_sequence_probability: float = SHORT_SEQUENCE_PROBABILITY,
        redraw: bool = True,
    ):
        super().__init__(seed, redraw)
        if max_length < SPECIAL_TOKENS_OF_A_PAIR + 2:
            raise ValueError(f"max_length={max_length} leaves no room for a pair of sentences: use at least 5.")
        self.store = SentenceStore.from_dataset(documents)
        self.target_tokens = max_length - SPECIAL_TOKENS_OF_A_PAIR
        self.short_sequence_probability = short_sequence_probability
        if self.store.num_documents == 0 or np.diff(self.store.document_offsets).max() < 2:
            raise ValueError(
                "documents holds no document of two sentences, and a sentence pair needs one: separate documents by "
                "blank lines and put several sentences into each, or train without a pair objective (mlm)."
            )
        self._plan: tuple[int, np.ndarray] | None = None
        self.num_chunks = len(self._chunks(0))

    def __len__(self) -> int:
        return self.num_chunks

    def __getitem__(self, index: int) -> Example:
        epoch = self.epoch
        chunks = self._chunks(epoch)
        first, end, document, target = chunks[index % len(chunks)].tolist()
        sentences = [self.store.sentence(i) for i in range(first, end)]
        return Example(sentences, int(example_keys(self.seed, epoch, index)), document, target, self.store)

    def _chunks(self, epoch: int) -> np.ndarray:
        """The epoch's plan, `(chunks, 4)`: first sentence, end, document, target length in tokens."""
        if self._plan is None or self._plan[0] != epoch:
            targets = self._targets(epoch)
            token_offsets = self.store.sentence_offsets
            bounds = self.store.document_offsets.tolist()
            plan = []
            for document, target in enumerate(targets.tolist()):
                starts = cut_document(token_offsets, bounds[document], bounds[document + 1], target)
                ends = [*starts[1:], bounds[document + 1]]
                plan.extend((start, end, document, target) for start, end in zip(starts, ends, strict=False))
            self._plan = (epoch, np.array(plan, dtype=np.int64).reshape(-1, 4))
        return self._plan[1]

    def _targets(self, epoch: int) -> np.ndarray:
        """Target length of every document, drawn once a document and epoch."""
        keys = example_keys(self.seed, epoch, np.arange(self.store.num_documents))
        is_short = uniforms(keys, TARGET_STREAM, 0) < self.short_sequence_probability
        short = 2 + np.floor(uniforms(keys, TARGET_STREAM, 1) * (self.target_tokens - 1)).astype(np.int64)
        return np.where(is_short, short, self.target_tokens)


def cut_document(token_offsets: np.ndarray, first: int, end: int, target_tokens: int) -> list[int]:
    """First sentences of the chunks of one document.

    Args:
        token_offsets (`np.ndarray` of shape `(S + 1,)`): where each sentence starts among the tokens.
        first, end (`int`): the document's sentences, `end` excluded.
        target_tokens (`int`): a chunk is closed once it has that many tokens and two sentences.

    Sentences of 3, 4, 5, 2 and 1 tokens and a target of 6:

    >>> cut_document(np.array([0, 3, 7, 12, 14, 15]), 0, 5, 6)
    [0, 2]
    """
    starts, start = [], first
    while start < end:
        starts.append(start)
        reached = bisect.bisect_left(token_offsets, token_offsets[start] + target_tokens, start + 1, end)
        start = max(reached, start + 2)
    # A single last sentence makes no pair: it gets company from the chunk before, or joins it.
    if len(starts) > 1 and end - starts[-1] == 1:
        if starts[-1] - starts[-2] > 2:
            starts[-1] -= 1
        else:
            starts.pop()
    return starts


def random_window(sentences: list[np.ndarray], key: int, target_tokens: int) -> Example:
    """An example of consecutive sentences from a random place, two at least where there are two, up to the target."""
    offsets = np.cumsum([0, *map(len, sentences)])
    first = int(uniforms(key, TARGET_STREAM, 0) * max(len(sentences) - 1, 1))
    end = bisect.bisect_left(offsets, offsets[first] + target_tokens, first + 1, len(sentences))
    return Example(sentences[first : max(end, first + 2)], key, -1, target_tokens)


class Pair(NamedTuple):
    """Segments of a pair before truncation.

    Args:
        first, second (`np.ndarray`): token ids; `second` is empty when there is no pair to be made.
        label (`int`): of the objective, -100 when there is no pair.
    """

    first: np.ndarray
    second: np.ndarray
    label: int


def split_chunk(example: Example) -> tuple[np.ndarray, np.ndarray]:
    """Cut a chunk into two segments at a sentence boundary drawn uniformly."""
    boundary = 1 + int(uniforms(example.key, SPLIT_STREAM, 0) * (len(example.sentences) - 1))
    return np.concatenate(example.sentences[:boundary]), np.concatenate(example.sentences[boundary:])


def without_pair(example: Example) -> Pair:
    """A chunk of one sentence: tokens to be masked, but no pair to be judged."""
    return Pair(np.concatenate(example.sentences), np.empty(0, dtype=np.int32), -100)


def sentence_order_pair(example: Example) -> Pair:
    """Two consecutive segments, swapped with probability 1/2: 0 = in order, 1 = swapped (ALBERT, section 3.1)."""
    if len(example.sentences) < 2:
        return without_pair(example)
    first, second = split_chunk(example)
    if uniforms(example.key, ORDER_STREAM, 0) < 0.5:
        return Pair(second, first, 1)
    return Pair(first, second, 0)


def next_sentence_pair(example: Example) -> Pair:
    """A segment and, with probability 1/2 each, what follows it (0) or a run from another document (1) (BERT, 3.1).

    Raises:
        ValueError: if the example does not say which corpus it is from, or that corpus has a single document.
    """
    if example.source is None:
        raise ValueError(
            "source of the example is not known, and next-sentence prediction draws random segments from it: train on "
            "DocumentChunks(documents, max_length), not on the rows of a plain data set."
        )
    if example.source.num_documents < 2:
        raise ValueError(
            "documents holds one document, and next-sentence prediction draws random segments from others: separate "
            "documents by blank lines, or use sop or mlm."
        )
    if len(example.sentences) < 2:
        return without_pair(example)
    first, second = split_chunk(example)
    if uniforms(example.key, NEGATIVE_STREAM, 0) >= 0.5:
        return Pair(first, second, 0)
    # As long as what it replaces: a random segment filled up to the target would be told by its length alone.
    return Pair(first, random_segment(example, len(second)), 1)


def random_segment(example: Example, wanted_tokens: int) -> np.ndarray:
    """Whole sentences from a random place of another document, at least one and until `wanted_tokens` are reached."""
    store = example.source
    from_documents, from_sentences = (float(u) for u in uniforms(example.key, NEGATIVE_STREAM, np.array([1, 2])))
    # One document fewer to choose from; those after the example's own move up.
    document = int(from_documents * (store.num_documents - 1))
    document += document >= example.document
    first, end = store.document_offsets[document : document + 2].tolist()
    start = first + int(from_sentences * (end - first))
    reached = bisect.bisect_left(
        store.sentence_offsets, store.sentence_offsets[start] + max(wanted_tokens, 1), start + 1, end
    )
    return store.tokens_between(start, reached)


def truncate_pair(pair: Pair, max_tokens: int, key: int) -> Pair:
    """Shorten the longer segment, then both alike, until they fit; each token leaves from the front or the back.

    The rule of `truncate_seq_pair`: a token at a time from the longer segment (the second when they are equally long),
    from either end with probability 1/2; here in closed form.

    >>> cut = truncate_pair(Pair(np.arange(6), np.arange(3), 0), 7, key=5)
    >>> len(cut.first), len(cut.second)
    (4, 3)
    """
    lengths = kept_lengths(len(pair.first), len(pair.second), max_tokens)
    segments = []
    for which, (segment, kept) in enumerate(zip(pair[:2], lengths, strict=True)):
        removed = len(segment) - kept
        from_front = int((uniforms(key, TRUNCATION_STREAM + which, np.arange(removed)) < 0.5).sum())
        segments.append(segment[from_front : from_front + kept])
    return Pair(*segments, pair.label)


def kept_lengths(first: int, second: int, max_tokens: int) -> tuple[int, int]:
    """Lengths of two segments after `truncate_pair`, both in tokens.

    >>> kept_lengths(5, 5, 9), kept_lengths(2, 9, 6), kept_lengths(3, 3, 6)
    ((5, 4), (2, 4), (3, 3))
    """
    if first + second <= max_tokens:
        return first, second
    if min(first, second) <= max_tokens // 2:
        shorter = min(first, second)
        return (first, max_tokens - shorter) if first == shorter else (max_tokens - shorter, second)
    return max_tokens - max_tokens // 2, max_tokens // 2
