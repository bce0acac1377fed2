"""Chunks: runs of consecutive sentences of one document that sentence pairs are made of."""

from typing import Any

import datasets
import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.ragged import are_equal
from hf_encoders.corpus.randomness import RandomStream, example_keys, integers_below, uniforms
from hf_encoders.objectives.chunk_examples import SPECIAL_TOKENS_OF_A_PAIR, ChunkExamples, ChunkRule, check_pair_length
from hf_encoders.objectives.collator_options import refuse_unknown_options, with_options_of
from hf_encoders.objectives.examples import CorpusDataset
from hf_encoders.objectives.original_chunks import original_chunks
from hf_encoders.objectives.whole_sentence_chunks import whole_sentence_chunks


class DocumentChunks(CorpusDataset):
    """Runs of consecutive sentences of one document that fit an example; the input of the pair collators.

    Every epoch cuts all of the text, at other positions, and nothing is truncated: a sentence that does not fit begins
    the next chunk, and only one longer than an example is split. Nine chunks in ten take as many sentences as fit; the
    others are filled to a length that is uniform between 2 tokens and that, so that the model sees short inputs too
    (BERT, `short_seq_prob`). A chunk of a single sentence has no second segment and no pair label; docs/data.md has
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
    >>> chunks = DocumentChunks(documents, max_length=6, redraw=False)  # room for three tokens beside the special ones
    >>> [[sentence.tolist() for sentence in chunks[i].sentences(0)] for i in range(len(chunks))]
    [[[10, 11], [12]], [[13, 14, 15]], [[16]], [[20, 21], [22]]]
    """

    num_reused = 0  # tokens of other text that a subclass puts into an example beside its chunk
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
        self.rule = ChunkRule(**rule)
        self.chunk_length = max_length - self.num_reused
        self.max_length = max_length
        super().__init__(documents, seed, redraw, epochs_per_draw, dupe_factor)
        if np.diff(self.corpus.document_offsets).max(initial=0) < 2:
            raise ValueError(
                "documents holds no document of two sentences, and a sentence pair needs one: separate documents by "
                "blank lines and put several sentences into each, or train without a pair objective (mlm)."
            )
        self._epoch_chunks: tuple[int, ChunkExamples] | None = None
        chunks = self._chunks(0)
        self.num_chunks = len(chunks)
        if not (chunks.middle < chunks.end).any():
            raise ValueError(
                f"max_length={self.max_length} leaves no room for two neighbouring sentences of documents, which are "
                f"{self.store.sentence_lengths.mean():.0f} tokens long on average: raise it, or {self.if_no_room}."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_epoch_chunks": None}

    def __len__(self) -> int:
        return self.num_chunks

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        return [f"{len(self):,} chunks of {self.store!r}", f"max_length={self.max_length}"]

    def with_seed(self, seed: int) -> "DocumentChunks":
        """A copy with another seed, an epoch of its own, and the chunks of that seed."""
        other = super().with_seed(seed)
        other._epoch_chunks = None
        other.num_chunks = len(other._chunks(0))
        return other

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, and cut its chunks, so that workers started later do not each have to."""
        super().set_epoch(epoch)
        self._chunks(self.draw)

    def num_in_epoch(self) -> int:
        """Number of chunks of the current epoch; `examples` below it are all of them, each once."""
        return len(self._chunks(self.draw))

    def examples(self, indices: np.ndarray) -> ChunkExamples:
        """References to chunks; no text is read."""
        draw = self.draw
        chunks = self._chunks(draw)
        if len(chunks) != self.num_chunks:
            keys = example_keys(self.seed, draw, 0)
            indices = (indices + integers_below(keys, RandomStream.CHUNK_ROTATION, 0, len(chunks))) % len(chunks)
        return chunks.take(indices)

    def _chunks(self, draw: int) -> ChunkExamples:
        """All chunks of a sample, in the order of the text."""
        if self._epoch_chunks is None or self._epoch_chunks[0] != draw:
            self._epoch_chunks = draw, cut_corpus(self.corpus, self.chunk_length, self.rule, self.seed, draw)
        return self._epoch_chunks[1]


def cut_corpus(
    corpus: FlatCorpus, max_length: int, rule: ChunkRule, seed: int, draw: int, first_position: int = 0
) -> ChunkExamples:
    """All chunks of a sample, in the order of the text, of a corpus without empty documents and sentences.

    `first_position` is added to the positions that keys are made of, for windows of a stream.
    """
    cut = original_chunks if rule.original_code else whole_sentence_chunks
    return cut(corpus, max_length, rule, lambda positions: example_keys(seed, draw, positions + first_position))


def rows_as_chunks(rows: list[list[np.ndarray]], keys: np.ndarray, max_length: int) -> ChunkExamples:
    """Examples from rows of non-empty sentences: as many of each row as fit, from a random one on, or up to it."""
    sizes = np.array([len(row) for row in rows])
    sentences = [sentence for row in rows for sentence in row]
    lengths = np.array([len(sentence) for sentence in sentences])
    corpus = FlatCorpus.from_lengths(np.concatenate(sentences), lengths, sizes)
    offsets, row_first, row_end = corpus.sentence_offsets, corpus.document_offsets[:-1], corpus.document_offsets[1:]
    capacity = max_length - SPECIAL_TOKENS_OF_A_PAIR
    # From a random sentence on, or up to one, so that the longer segment is as often the first as the second.
    skipped = integers_below(keys, RandomStream.CHUNK_TARGET, 0, np.maximum(sizes - 1, 1))
    from_back = uniforms(keys, RandomStream.CHUNK_TARGET, 1) < 0.5
    first, end = row_first + skipped, row_end - skipped
    last_fitting = np.searchsorted(offsets, offsets[first] + capacity, "right") - 1
    first_fitting = np.searchsorted(offsets, offsets[end] - capacity)
    first, end = (
        np.where(from_back, np.maximum(np.minimum(first_fitting, end - 1), row_first), first),
        np.where(from_back, end, np.minimum(np.maximum(last_fitting, first + 1), row_end)),
    )
    split = first + 1 + integers_below(keys, RandomStream.SEGMENT_SPLIT, 0, np.maximum(end - first - 1, 1))
    begin, middle, end = offsets[first], offsets[np.minimum(split, end)], offsets[end]
    # Two equal segments have no order.
    has_order = (middle < end) & ~are_equal(corpus.tokens, (begin, middle), (middle, end))
    empty, has_no_next = np.zeros_like(begin), np.zeros(len(begin), dtype=bool)
    arrays = (begin, middle, end, empty, empty, has_no_next, has_order, keys)
    return ChunkExamples(corpus, *arrays, max_length, ChunkRule(), is_whole_corpus=False)
