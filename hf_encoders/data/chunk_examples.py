"""What `DocumentChunks` gives to the collators: chunks of a corpus by reference, and the rule they were cut by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from hf_encoders.data.flat_corpus import FlatCorpus


SPECIAL_TOKENS_OF_A_PAIR = 3  # [CLS] A [SEP] B [SEP]

KeysOf = Callable[[np.ndarray], np.ndarray]  # an epoch's keys, `uint64`, of example ids, `int64` of the same shape


@dataclass(frozen=True)
class ChunkRule:
    """How chunks are cut and negatives are found.

    Args:
        segments (`str`): `"runs"`, a chunk has as many sentences as fit and each segment is one or more of them
            (SEGMENT-PAIR of the RoBERTa paper, section 4.2; BERT, ALBERT); `"sentences"`, a chunk is two sentences
            and each segment is one (SENTENCE-PAIR).
        short_sequence_probability (`float`): probability in [0, 1] that a chunk is filled up to a shorter target,
            drawn uniformly; BERT's `short_seq_prob`.
        original_code (`bool`): whether chunks are cut, truncated and given random segments as in google-research/bert
            and albert (`original_chunks.py`), artefacts included, instead of as in `whole_sentence_chunks.py`.
        put_back (`bool`): whether the segment that a random one replaced begins the next chunk (BERT, not ALBERT).
            With `original_code` and for next-sentence prediction only.

    Raises:
        ValueError: for a value out of range, and for options that exclude each other.
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
                "put_back=True belongs to original_code=True, as in paper_modes.BERT_CHUNKS: leave it out, since "
                "without it negatives exchange their second segments and no text is lost."
            )
        if self.segments == "sentences":
            changed = [
                name
                for name in ("short_sequence_probability", "original_code", "put_back")
                if getattr(self, name) != getattr(ChunkRule, name)
            ]
            if changed:
                raise ValueError(f"{', '.join(changed)}: no effect with segments='sentences'; leave it out.")


@dataclass(frozen=True)
class ChunkExamples:
    """References to chunks of a corpus, everything drawn that depends on other chunks.

    All arrays count tokens of the corpus.

    Args:
        corpus (`FlatCorpus`): where the tokens are.
        begin, end (`np.ndarray` of `int64`, shape `(B,)`): the tokens of each chunk, `end` excluded.
        middle (`np.ndarray` of `int64`, shape `(B,)`): where the second segment begins; `end` for a chunk of a single
            sentence, which has none.
        random_begin, random_end (`np.ndarray` of `int64`, shape `(B,)`): the segment from elsewhere that follows the
            first one in a negative of next-sentence prediction; empty in a positive.
        has_next (`np.ndarray` of `bool`, shape `(B,)`): whether next-sentence prediction has a label for the chunk.
        has_order (`np.ndarray` of `bool`, shape `(B,)`): whether sentence-order prediction has a label for the chunk.
        keys (`np.ndarray` of `uint64`, shape `(B,)`): from `example_keys`; decide the other draws for each example.
        max_tokens (`int`): most tokens of a pair, special tokens not counted.
        rule (`ChunkRule`): how they were cut.
        is_whole_corpus (`bool`): False for rows of a plain data set, which have no segments from elsewhere.
        mask_rate (`float`, *optional*): share of their tokens to predict, instead of the collator's.
    """

    corpus: FlatCorpus
    begin: np.ndarray
    middle: np.ndarray
    end: np.ndarray
    random_begin: np.ndarray
    random_end: np.ndarray
    has_next: np.ndarray
    has_order: np.ndarray
    keys: np.ndarray
    max_tokens: int
    rule: ChunkRule
    is_whole_corpus: bool = True
    mask_rate: float | None = None

    ARRAYS = ("begin", "middle", "end", "random_begin", "random_end", "has_next", "has_order", "keys")

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        tokens, longest = int((self.end - self.begin).sum()), self.max_tokens + SPECIAL_TOKENS_OF_A_PAIR
        return f"{type(self).__name__}({len(self):,} chunks, {tokens:,} tokens, max_length={longest})"

    def take(self, chosen: np.ndarray | slice) -> "ChunkExamples":
        """Some of the chunks."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.ARRAYS})

    def sentences(self, i: int) -> list[np.ndarray]:
        """Token ids of each sentence of chunk `i`, or of the part of it that is in the chunk; to look at."""
        inner = inner_boundaries(self.corpus, self.begin[i : i + 1], self.end[i : i + 1])
        boundaries = self.corpus.sentence_offsets[inner[0][0] : inner[1][0]]
        return np.split(self.corpus.tokens[self.begin[i] : self.end[i]], boundaries - self.begin[i])


def inner_boundaries(corpus: FlatCorpus, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sentences that begin inside of chunks, behind their first token: numbers `[first, last)`, each `(B,)`.

    >>> corpus = FlatCorpus.from_lengths(np.arange(9), np.array([2, 3, 4]), np.array([3]))
    >>> inner_boundaries(corpus, begin=np.array([0, 2]), end=np.array([5, 9]))
    (array([1, 2]), array([2, 3]))
    """
    return np.searchsorted(corpus.sentence_offsets, begin, "right"), np.searchsorted(corpus.sentence_offsets, end)


def join_chunks(parts: Sequence[ChunkExamples]) -> list[ChunkExamples]:
    """Neighbouring examples of one corpus together."""
    joined = []
    for _, group in groupby(parts, key=lambda part: (id(part.corpus), part.rule, part.max_tokens, part.mask_rate)):
        group = list(group)
        arrays = {name: np.concatenate([getattr(part, name) for part in group]) for name in ChunkExamples.ARRAYS}
        joined.append(replace(group[0], **arrays) if len(group) > 1 else group[0])
    return joined
