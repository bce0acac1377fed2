"""Chunks: runs of consecutive sentences of one document that sentence pairs are made of."""

from typing import Any

import datasets
import numpy as np

from hf_encoders.data.chunk_examples import SPECIAL_TOKENS_OF_A_PAIR, ChunkExamples, ChunkRule
from hf_encoders.data.collator_options import refuse_unknown_options, with_options_of
from hf_encoders.data.corpus.sentence_store import SentenceStore
from hf_encoders.data.examples import EpochDataset
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.original_chunks import original_chunks
from hf_encoders.data.randomness import RandomStream, example_keys, integers_below, uniforms
from hf_encoders.data.whole_sentence_chunks import whole_sentence_chunks


class DocumentChunks(EpochDataset):
    """Runs of consecutive sentences of one document that fit an example; the input of the pair collators.

    Every epoch cuts all of the text, at other places, and nothing is truncated: a sentence that does not fit begins
    the next chunk, and only one longer than an example is split. Nine chunks in ten take as many sentences as fit;
    the target of the others is uniform between 2 tokens and that, so that the model meets short inputs too (BERT,
    `short_seq_prob`). A chunk of a single sentence has no second segment and no pair label: few where an example has
    room for several sentences, half of all or more where it has not (docs/data.md).

    The length of the data set is the number of chunks of epoch 0. Other epochs have some more or less (a few per mille
    with ten thousand chunks): those beyond the length, from a random place on, are left out of that epoch, and missing
    ones are filled with others a second time. `TokenBudget` takes all of them.

    Args:
        documents (`datasets.Dataset`): tokenised documents, column `input_ids` of lists of sentences of ids.
        max_length (`int`): longest example in tokens, special tokens included.
        seed (`int`): seed of all draws.
        redraw, epochs_per_draw, dupe_factor: as in `EpochDataset`.
        rule: arguments of `ChunkRule`; `**paper_modes.BERT_CHUNKS` for the original code's chunks.

    Raises:
        ValueError: if no document has two sentences, no two neighbours fit into an example, or `max_length` leaves no
            room for a pair.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12], [13, 14, 15], [16]], [[20, 21], [22]]]})
    >>> chunks = DocumentChunks(documents, max_length=6, redraw=False)  # room for three tokens beside the special ones
    >>> [[sentence.tolist() for sentence in chunks[i].sentences(0)] for i in range(len(chunks))]
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
        refuse_unknown_options(self, rule, ChunkRule.__dataclass_fields__)
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
        if not (self._chunks(0).middle < self._chunks(0).end).any():
            raise ValueError(
                f"max_length={max_length} leaves no room for two neighbouring sentences of documents, which are "
                f"{self.store.sentence_lengths.mean():.0f} tokens long on average: raise it, or train without a pair "
                "objective (mlm)."
            )

    def _open(self) -> None:
        self.corpus = FlatCorpus.of(self.store)
        self._epoch_chunks = (0, self._cut(0))
        self.num_chunks = len(self._epoch_chunks[1])

    def __getstate__(self) -> dict[str, Any]:
        # For workers that are not forked: the corpus is a file, which they open themselves.
        return {name: value for name, value in vars(self).items() if name not in ("corpus", "_epoch_chunks")}

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

    def num_in_epoch(self) -> int:
        """Chunks that the announced epoch has, which may be more or fewer than the data set's length.

        `examples` counts round and round all of them, so those below this number are each of them once.
        """
        return len(self._chunks(self.draw))

    def examples(self, indices: np.ndarray) -> ChunkExamples:
        """References to chunks; nothing of the text is read."""
        draw = self.draw
        chunks = self._chunks(draw)
        if len(chunks) != self.num_chunks:
            rotation = integers_below(example_keys(self.seed, draw, 0), RandomStream.CHUNK_ROTATION, 0, len(chunks))
            indices = (indices + rotation) % len(chunks)
        return chunks.take(indices)

    def _chunks(self, draw: int) -> ChunkExamples:
        """Every chunk of a draw, in the order of the text."""
        if self._epoch_chunks[0] != draw:
            self._epoch_chunks = (draw, self._cut(draw))
        return self._epoch_chunks[1]

    def _cut(self, draw: int) -> ChunkExamples:
        return cut_corpus(self.corpus, self.max_tokens, self.rule, self.seed, draw)


def cut_corpus(
    corpus: FlatCorpus, max_tokens: int, rule: ChunkRule, seed: int, draw: int, first_place: int = 0
) -> ChunkExamples:
    """All chunks of a draw, in the order of the text.

    Args:
        corpus (`FlatCorpus`): without empty documents and sentences.
        max_tokens (`int`): most tokens of a pair, special tokens not counted.
        rule (`ChunkRule`): how to cut.
        seed, draw (`int`): of all draws.
        first_place (`int`): added to all numbers that draws are keyed by; not 0 for a window of a stream.
    """
    cut = original_chunks if rule.original_code else whole_sentence_chunks
    return cut(corpus, max_tokens, rule, lambda numbers: example_keys(seed, draw, numbers + first_place))


def rows_as_chunks(rows: list[list[np.ndarray]], keys: np.ndarray, max_tokens: int) -> ChunkExamples:
    """Examples from rows of sentences: as many sentences as fit, from a random place of each on, or up to it.

    Only a sentence that is longer than an example is truncated.

    Args:
        rows (`list[list[np.ndarray]]`): non-empty sentences of token ids, one or more a row.
        keys (`np.ndarray` of `uint64`, shape `(B,)`): key of each row's draws.
        max_tokens (`int`): most tokens of a pair, special tokens not counted.
    """
    sizes = np.array([len(row) for row in rows])
    sentences = [sentence for row in rows for sentence in row]
    lengths = np.array([len(sentence) for sentence in sentences])
    corpus = FlatCorpus.from_lengths(np.concatenate(sentences), lengths, sizes)
    offsets, row_first, row_end = corpus.sentence_offsets, corpus.document_offsets[:-1], corpus.document_offsets[1:]
    # From a random sentence on, or up to one, so that the longer segment is as often the first as the second.
    place = integers_below(keys, RandomStream.CHUNK_TARGET, 0, np.maximum(sizes - 1, 1))
    from_back = uniforms(keys, RandomStream.CHUNK_TARGET, 1) < 0.5
    first, end = row_first + place, row_end - place
    last_fitting = np.searchsorted(offsets, offsets[first] + max_tokens, "right") - 1
    first_fitting = np.searchsorted(offsets, offsets[end] - max_tokens)
    first, end = (
        np.where(from_back, np.maximum(np.minimum(first_fitting, end - 1), row_first), first),
        np.where(from_back, end, np.minimum(np.maximum(last_fitting, first + 1), row_end)),
    )
    split = first + 1 + integers_below(keys, RandomStream.SEGMENT_SPLIT, 0, np.maximum(end - first - 1, 1))
    begin, middle, end = offsets[first], offsets[np.minimum(split, end)], offsets[end]
    none, nothing = np.zeros_like(begin), np.zeros(len(begin), dtype=bool)
    arrays = (begin, middle, end, none, none, nothing, middle < end, keys)
    return ChunkExamples(corpus, *arrays, max_tokens, ChunkRule(), is_whole_corpus=False)


def check_pair_length(max_length: int) -> None:
    """Refuse a length without room for a token in each segment."""
    if not isinstance(max_length, (int, np.integer)):
        raise ValueError(f"max_length={max_length} must be a whole number of tokens.")
    if max_length < SPECIAL_TOKENS_OF_A_PAIR + 2:
        raise ValueError(f"max_length={max_length} leaves no room for a pair of sentences: use at least 5.")
