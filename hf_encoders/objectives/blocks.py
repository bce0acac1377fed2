"""RoBERTa's input: runs of whole sentences up to the maximum length, from one document or across documents.

Source: FULL-SENTENCES and DOC-SENTENCES of the RoBERTa paper, section 4.2 (https://arxiv.org/abs/1907.11692);
fairseq's `complete` and `complete_doc`. Differs from fairseq in: a sentence longer than a block is cut instead of
making the block longer, and separators stand between documents only, inside a block. With `sentence_separators` and
without `cut_long_sentences` blocks are exactly those of fairseq, for a file with an empty line between documents and
none at its end.

XLM's streams (`StreamDataset` of facebookresearch/XLM; `none` in fairseq) are `whole_sentences=False`: blocks begin
and end anywhere. Differs from XLM in: a block has special tokens at both ends, where XLM's begins with the last token
of the block before, which is not predicted there, and ends without a mark; blocks are of the whole text, not of the
parts of it that are the rows of a batch.
"""

from array import array
from dataclasses import dataclass

import datasets
import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.ragged import offsets_of, ranges
from hf_encoders.corpus.randomness import example_keys
from hf_encoders.objectives.batches import Segments
from hf_encoders.objectives.examples import CorpusDataset, TextExamples


SPECIAL_TOKENS_OF_A_BLOCK = 2  # <s> ... </s>
SENTENCES_PER_STEP = 2**20  # whose block ends are computed at once


class SentenceBlocks(CorpusDataset):
    """Blocks of as many consecutive sentences as fit: the same blocks every epoch, with dynamic masking.

    Args:
        documents (`datasets.Dataset`): Tokenised documents; column `input_ids`, lists of sentences of token ids.
        max_length (`int`): Longest block in tokens, special tokens included.
        cross_documents, sentence_separators, cut_long_sentences, whole_sentences: As in `BlockLayout`.
        seed (`int`, *optional*, defaults to 0): Seed of all random choices.
        redraw, epochs_per_draw, dupe_factor: As in `EpochDataset`.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> blocks = SentenceBlocks(documents, max_length=8, redraw=False)
    >>> [[segment.tolist() for segment in blocks[i].token_ids(0)] for i in range(len(blocks))]
    [[[10, 11, 12], [20, 21]], [[22, 23, 24]]]
    """

    def __init__(
        self,
        documents: datasets.Dataset,
        max_length: int,
        cross_documents: bool = True,
        seed: int = 0,
        redraw: bool = True,
        epochs_per_draw: int = 1,
        dupe_factor: int | None = None,
        sentence_separators: bool = False,
        cut_long_sentences: bool = True,
        whole_sentences: bool = True,
    ):
        self.layout = BlockLayout(
            max_length, cross_documents, sentence_separators, cut_long_sentences, whole_sentences
        )
        super().__init__(documents, seed, redraw, epochs_per_draw, dupe_factor)
        if len(self.store.tokens) == 0:
            raise ValueError("documents holds no sentence: check the corpus files and the tokenizer.")
        self.blocks = self.layout.cut(self.corpus)

    def __len__(self) -> int:
        return len(self.blocks)

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        return [f"{len(self):,} blocks of {self.store!r}", *(f"{k}={v}" for k, v in vars(self.layout).items())]

    def examples(self, indices: np.ndarray) -> TextExamples:
        """References to blocks; no text is read."""
        segments = self.layout.segments(self.corpus, self.blocks[indices])
        return TextExamples(segments, example_keys(self.seed, self.draw, indices))


@dataclass(frozen=True)
class BlockLayout:
    """Where blocks begin and end, and where separators stand in them.

    Args:
        max_length (`int`): Longest block in tokens, special tokens included.
        cross_documents (`bool`, *optional*, defaults to `True`): True fills blocks across document ends, with a
            separator in between (FULL-SENTENCES); False ends a block with its document (DOC-SENTENCES).
        sentence_separators (`bool`, *optional*, defaults to `False`): Whether a separator ends every sentence, as in
            fairseq. With `cross_documents` there is another one between two documents, which is like a sentence: it
            ends a block where it fits, and begins the next one otherwise; not so without `whole_sentences`.
        cut_long_sentences (`bool`, *optional*, defaults to `True`): Whether sentences longer than a block are cut; in
            fairseq they make the block longer than `max_length`.
        whole_sentences (`bool`, *optional*, defaults to `True`): False fills every block to its last token, wherever
            sentences begin and end (XLM). A separator that falls between two blocks is the end of the first.
    """

    max_length: int
    cross_documents: bool = True
    sentence_separators: bool = False
    cut_long_sentences: bool = True
    whole_sentences: bool = True

    def __post_init__(self):
        if not (self.whole_sentences or self.cut_long_sentences):
            raise ValueError(
                "cut_long_sentences=False keeps sentences whole, and whole_sentences=False cuts them: leave out one."
            )
        if self.max_length <= SPECIAL_TOKENS_OF_A_BLOCK:
            raise ValueError(f"max_length={self.max_length} leaves no room for a token: use at least 3.")

    @property
    def capacity(self) -> int:
        """Most tokens between the special tokens at the ends of a block."""
        return self.max_length - SPECIAL_TOKENS_OF_A_BLOCK

    def cut(self, corpus: FlatCorpus) -> np.ndarray:
        """Where blocks begin and end: `int64` of shape `(blocks, 4)`.

        For each block its first token and the one after its last, and 1 where a separator between documents begins it
        or ends it.

        Documents of sentences of 3 and 2, and of 2 tokens; 8 tokens hold both documents but not the separator:

        >>> corpus = FlatCorpus(np.arange(7), np.array([0, 3, 5, 7]), np.array([0, 2, 3]))
        >>> [BlockLayout(length).cut(corpus)[:, :2].tolist() for length in (8, 10)]
        [[[0, 5], [5, 7]], [[0, 7]]]
        >>> BlockLayout(10, cross_documents=False).cut(corpus)[:, :2].tolist()
        [[0, 5], [5, 7]]

        With separators behind sentences, the one between the documents ends the first block where it has room for it:

        >>> [BlockLayout(length, sentence_separators=True).cut(corpus).tolist() for length in (8, 9)]
        [[[0, 5, 0, 0], [5, 7, 1, 0]], [[0, 5, 0, 1], [5, 7, 0, 0]]]

        Without whole sentences, a block is full wherever that is; 3 tokens, a separator and 2 tokens make 6:

        >>> BlockLayout(8, sentence_separators=True, whole_sentences=False).cut(corpus)[:, :2].tolist()
        [[0, 5], [5, 7]]
        >>> BlockLayout(6, sentence_separators=True, whole_sentences=False).cut(corpus)[:, :2].tolist()
        [[0, 3], [3, 6], [6, 7]]
        """
        if not self.whole_sentences:
            return self._cut_anywhere(corpus)
        units, begins_document = self._units(corpus)
        num_units = len(units) - 1
        # A block that begins at unit s ends where its units and the separators between them exceed the capacity:
        # cost_before[e] - cost_before[s] tokens, less the document separator that unit s would begin with.
        # With sentence separators, those between documents are units themselves.
        per_unit = int(self.sentence_separators)
        per_document = int(self.cross_documents and not self.sentence_separators)
        starts, first = array("q"), 0
        for step in range(0, num_units, SENTENCES_PER_STEP):
            stop = min(step + SENTENCES_PER_STEP + self.capacity + 1, num_units)
            separators = per_document * offsets_of(begins_document[step:stop])
            cost_before = units[step : stop + 1] + per_unit * np.arange(step, stop + 1) + separators
            begin = np.arange(min(SENTENCES_PER_STEP, num_units - step))
            budget = cost_before[begin] + self.capacity + per_unit
            budget += per_document * begins_document[step : step + len(begin)]
            ends = np.maximum(np.searchsorted(cost_before, budget, "right") - 1, begin + 1) + step
            if not self.cross_documents:
                document_starts = np.append(np.flatnonzero(begins_document[step:stop]) + step, stop)
                ends = np.minimum(ends, document_starts[np.searchsorted(document_starts, begin + step, "right")])
            while first < step + len(begin):
                starts.append(first)
                first = int(ends[first - step])
        begin = np.frombuffer(starts, dtype=np.int64)
        end = np.append(begin[1:], num_units)
        # No sentence is empty, so an empty unit is a separator.
        begins_with_one = units[begin] == units[begin + 1]
        ends_with_one = (units[end - 1] == units[end]) & (end - begin > 1)
        return np.stack([units[begin], units[end], begins_with_one, ends_with_one], axis=1)

    def _cut_anywhere(self, corpus: FlatCorpus) -> np.ndarray:
        """`cut` for blocks that are filled to their last token: each stream is cut at multiples of the capacity."""
        separators = corpus.sentence_offsets[1:-1] if self.sentence_separators else corpus.document_starts[1:]
        begin = corpus.document_starts if not self.cross_documents else corpus.document_starts[:1]
        end = np.append(begin[1:], len(corpus.tokens))
        # Places count tokens and separators from the first token of the corpus on.
        first = begin + np.searchsorted(separators, begin, "right")
        sizes = end + np.searchsorted(separators, end) - first
        counts = -(-sizes // self.capacity)
        places = np.repeat(first, counts) + self.capacity * ranges(np.zeros_like(counts), counts)
        # The first token at or behind a place, less the separators before it.
        starts = places - np.searchsorted(separators + np.arange(len(separators)), places)
        is_last = np.append(np.diff(np.repeat(np.arange(len(counts)), counts)) > 0, True)
        ends = np.append(starts[1:], 0)
        ends[is_last] = end
        holds_text = ends > starts  # not a separator alone
        none = np.zeros_like(starts)
        return np.stack([starts, ends, none, none], axis=1)[holds_text]

    def segments(self, corpus: FlatCorpus, blocks: np.ndarray) -> Segments:
        """The segments of blocks, `(B, 4)` from `cut`; a separator stands behind each."""
        begin, end, begins_with_one, ends_with_one = blocks.T
        cuts = [(begin, np.arange(len(blocks)))]
        if self.whole_sentences or not self.sentence_separators:
            cuts.append(_inside(corpus.document_starts, begin, end))
        if self.sentence_separators:
            # Behind each sentence; with whole sentences once more between documents: an empty segment.
            leading = np.flatnonzero(begins_with_one & (begin < end))
            trailing = np.flatnonzero(ends_with_one)
            cuts += [
                _inside(corpus.sentence_offsets, begin, end),
                (begin[leading], leading),
                (end[trailing], trailing),
            ]
        segment_begin, rows = map(np.concatenate, zip(*cuts, strict=True))
        order = np.lexsort((segment_begin, rows))
        segment_begin, rows = segment_begin[order], rows[order]
        is_last = np.append(np.diff(rows) > 0, True)
        segment_end = np.where(is_last, end[rows], np.append(segment_begin[1:], 0))
        counts = np.bincount(rows, minlength=len(blocks))
        return Segments(corpus.tokens, corpus.word_starts, segment_begin, segment_end, counts)

    def _units(self, corpus: FlatCorpus) -> tuple[np.ndarray, np.ndarray]:
        """Units that blocks are filled with: first tokens, and N at the end; and which of them begin a document.

        A unit is a sentence, a part of a long one, or (empty) a separator between documents that counts as a sentence.
        """
        offsets, document_starts = corpus.sentence_offsets, corpus.document_starts
        if self.cut_long_sentences:
            lengths = np.diff(offsets)
            long = np.flatnonzero(lengths > self.capacity)
            parts = -(-lengths[long] // self.capacity) - 1
            cuts = np.repeat(offsets[long], parts) + self.capacity * (ranges(np.zeros_like(parts), parts) + 1)
            if len(cuts):
                offsets = np.sort(np.concatenate([offsets, cuts]))
        if self.cross_documents and self.sentence_separators:
            offsets = np.insert(offsets, np.searchsorted(offsets, document_starts[1:]), document_starts[1:])
        begins_document = np.zeros(len(offsets) - 1, dtype=bool)
        begins_document[np.searchsorted(offsets, document_starts)] = True
        return offsets, begins_document


def _inside(bounds: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of ascending `bounds` that lie inside each range, ends excluded, and the index of the range."""
    first = np.searchsorted(bounds, begin, "right")
    last = np.maximum(np.searchsorted(bounds, end), first)
    return bounds[ranges(first, last)], np.repeat(np.arange(len(begin)), last - first)
