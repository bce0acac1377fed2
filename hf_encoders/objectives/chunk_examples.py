"""What `DocumentChunks` gives to the collators: chunks of a corpus by reference, and how they were cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus


SPECIAL_TOKENS_OF_A_PAIR = 3  # [CLS] A [SEP] B [SEP]
SHORTEST_PAIR = SPECIAL_TOKENS_OF_A_PAIR + 2

KeysOf = Callable[[np.ndarray], np.ndarray]  # `int64` positions in the corpus -> their `uint64` keys in an epoch


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
            segments as in google-research/bert and albert (`original_chunks.py`), artefacts included.
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
        if not 0 <= self.short_sequence_probability <= 1:
            raise ValueError(
                f"short_sequence_probability={self.short_sequence_probability} must be in [0, 1]; BERT uses 0.1."
            )
        if self.put_back and not self.original_code:
            raise ValueError(
                "put_back=True needs original_code=True, as in presets.BERT_CHUNKS: leave it out. Without it "
                "negatives exchange their second segments, and no text is lost."
            )
        for name in ("short_sequence_probability", "original_code"):
            if self.segments == "sentences" and getattr(self, name) != getattr(ChunkRule, name):
                raise ValueError(f"{name}: no effect with segments='sentences'; leave it out.")


@dataclass(frozen=True)
class ChunkExamples:
    """Chunks of a corpus by reference, with all random choices that depend on other chunks.

    All positions count tokens of the corpus; arrays are `int64` of shape `(B,)` if not said otherwise.
    """

    corpus: FlatCorpus
    begin: np.ndarray
    middle: np.ndarray  # where the second segment begins; `end` for a chunk of a single sentence, which has none
    end: np.ndarray  # excluded
    # The second segment of a negative of next-sentence prediction, from another place; empty for positives.
    random_begin: np.ndarray
    random_end: np.ndarray
    has_next: np.ndarray  # whether the chunk has a label in next-sentence prediction, `bool`
    has_order: np.ndarray  # whether it has one in sentence-order prediction, `bool`
    keys: np.ndarray  # from `example_keys`; the other random choices depend on them; `uint64`
    max_length: int  # longest example in tokens, special tokens included
    rule: ChunkRule
    is_whole_corpus: bool = True  # False for rows of a plain dataset, which have no segments from elsewhere
    mask_rate: float | None = None  # share of the tokens to predict, instead of the collator's
    phase: int = 0  # number of the run's phase that they are for, from 1, whose masking applies; 0 outside of phases

    ARRAYS = ("begin", "middle", "end", "random_begin", "random_end", "has_next", "has_order", "keys")

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        tokens = int((self.end - self.begin).sum())
        return f"{type(self).__name__}({len(self):,} chunks, {tokens:,} tokens, max_length={self.max_length})"

    def take(self, chosen: np.ndarray | slice) -> "ChunkExamples":
        """Some of the chunks."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.ARRAYS})

    def sentences(self, i: int) -> list[np.ndarray]:
        """Token ids of each sentence of chunk `i`, or of the part of it that is in the chunk; for inspection."""
        inner = inner_boundaries(self.corpus, self.begin[i : i + 1], self.end[i : i + 1])
        boundaries = self.corpus.sentence_offsets[inner[0][0] : inner[1][0]]
        return np.split(self.corpus.tokens[self.begin[i] : self.end[i]], boundaries - self.begin[i])


def check_pair_length(max_length: int) -> None:
    """Raise ValueError for a length without room for a token in each segment."""
    if not isinstance(max_length, (int, np.integer)) or max_length < SHORTEST_PAIR:
        raise ValueError(
            f"max_length={max_length} must be a whole number of at least {SHORTEST_PAIR}, which leaves room for a "
            "pair of sentences."
        )


def inner_boundaries(corpus: FlatCorpus, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sentences that begin inside chunks, behind their first token: indices `[first, last)`, each `(B,)`.

    >>> corpus = FlatCorpus.from_lengths(np.arange(9), np.array([2, 3, 4]), np.array([3]))
    >>> inner_boundaries(corpus, begin=np.array([0, 2]), end=np.array([5, 9]))
    (array([1, 2]), array([2, 3]))
    """
    return np.searchsorted(corpus.sentence_offsets, begin, "right"), np.searchsorted(corpus.sentence_offsets, end)


def join_chunks(parts: Sequence[ChunkExamples]) -> list[ChunkExamples]:
    """Consecutive examples of one corpus, joined."""
    joined = []
    for _, group in groupby(
        parts, key=lambda part: (type(part), id(part.corpus), part.rule, part.max_length, part.mask_rate, part.phase)
    ):
        group = list(group)
        arrays = {name: np.concatenate([getattr(part, name) for part in group]) for name in group[0].ARRAYS}
        joined.append(replace(group[0], **arrays) if len(group) > 1 else group[0])
    return joined
