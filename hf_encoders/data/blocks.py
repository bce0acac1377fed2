"""RoBERTa's input: runs of whole sentences up to the longest length, from one document or across documents.

Source: FULL-SENTENCES and DOC-SENTENCES of the RoBERTa paper, section 4.2 (https://arxiv.org/abs/1907.11692);
fairseq's `complete` and `complete_doc`. By default it differs from fairseq: a sentence longer than a block is cut
instead of making the block longer, and separators stand between documents only, inside of a block. With
`sentence_separators` and without `cut_long_sentences` blocks are exactly those of fairseq, from a file with an empty
line between documents and none at its end.
"""

from array import array

import datasets
import numpy as np

from hf_encoders.data.batches import Segments
from hf_encoders.data.corpus.sentence_store import SentenceStore
from hf_encoders.data.examples import EpochDataset, TextExamples
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.ragged import offsets_of, ranges
from hf_encoders.data.randomness import example_keys


SPECIAL_TOKENS_OF_A_BLOCK = 2  # <s> ... </s>
SENTENCES_A_STEP = 2**20  # sentences that block ends are computed for at once


class SentenceBlocks(EpochDataset):
    """Blocks of consecutive sentences, as many as fit; the same blocks every epoch, masked anew by the collator.

    Args:
        documents (`datasets.Dataset`): tokenised documents, column `input_ids` of lists of sentences of ids.
        max_length (`int`): longest block in tokens, special tokens included.
        cross_documents (`bool`): True fills blocks across document ends, with a separator in between (FULL-SENTENCES);
            False ends a block with its document (DOC-SENTENCES).
        sentence_separators (`bool`): whether a separator ends every sentence, as fairseq writes them. With
            `cross_documents` there is another one between two documents, which is like a sentence of its own: it ends
            a block where it fits, and begins the next one otherwise.
        cut_long_sentences (`bool`): whether sentences longer than a block are cut; in fairseq they make the block
            longer than `max_length`.
        seed (`int`): seed of all draws.
        redraw, epochs_per_draw, dupe_factor: as in `EpochDataset`.

    Raises:
        ValueError: if there is no sentence, or `max_length` leaves no room for a token.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> blocks = SentenceBlocks(documents, max_length=8, redraw=False)
    >>> [[piece.tolist() for piece in blocks[i].pieces(0)] for i in range(len(blocks))]
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
    ):
        super().__init__(seed, redraw, epochs_per_draw, dupe_factor)
        if max_length <= SPECIAL_TOKENS_OF_A_BLOCK:
            raise ValueError(f"max_length={max_length} leaves no room for a token: use at least 3.")
        self.store = SentenceStore(documents)
        if len(self.store.tokens) == 0:
            raise ValueError("documents holds no sentence: check the corpus files and the tokenizer.")
        self.layout = BlockLayout(
            max_length - SPECIAL_TOKENS_OF_A_BLOCK,
            cross_documents,
            sentence_separators,
            cut_long_sentences,
        )
        self._open()
        self.blocks = self.layout.cut(self.corpus)

    def _open(self) -> None:
        self.corpus = FlatCorpus.of(self.store)
        self.document_starts = self.corpus.sentence_offsets[self.corpus.document_offsets[:-1]]

    def __getstate__(self) -> dict:
        # For workers that are not forked: the corpus is a file, which they open themselves.
        return {name: value for name, value in vars(self).items() if name not in ("corpus", "document_starts")}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return len(self.blocks)

    def facts(self) -> list[str]:
        """What the data set is of, for its `repr`."""
        longest = self.layout.target_tokens + SPECIAL_TOKENS_OF_A_BLOCK
        options = ("cross_documents", "sentence_separators", "cut_long_sentences")
        given = [f"{name}={getattr(self.layout, name)}" for name in options]
        return [f"{len(self):,} blocks of {self.store!r}", f"max_length={longest}", *given]

    def examples(self, indices: np.ndarray) -> TextExamples:
        """References to blocks; nothing of the text is read."""
        segments = self.layout.segments(self.corpus, self.document_starts, self.blocks[indices])
        return TextExamples(segments, example_keys(self.seed, self.draw, indices))


class BlockLayout:
    """Where blocks begin and end, and what stands in them.

    Args:
        target_tokens (`int`): most tokens in a block, special tokens at its ends not counted.
        cross_documents, sentence_separators, cut_long_sentences: as in `SentenceBlocks`.
    """

    def __init__(
        self,
        target_tokens: int,
        cross_documents: bool,
        sentence_separators: bool,
        cut_long_sentences: bool,
    ):
        self.target_tokens, self.cross_documents = target_tokens, cross_documents
        self.sentence_separators, self.cut_long_sentences = sentence_separators, cut_long_sentences

    def cut(self, corpus: FlatCorpus) -> np.ndarray:
        """Where blocks begin and end: `int64` of shape `(blocks, 4)`.

        Of each block its first token and the one after its last, and 1 where a separator between documents begins it
        or ends it.

        Documents of sentences of 3 and 2, and of 2 tokens; blocks of 6 hold both documents less the separator's place:

        >>> corpus = FlatCorpus(np.arange(7), np.array([0, 3, 5, 7]), np.array([0, 2, 3]))
        >>> [BlockLayout(most, True, False, True).cut(corpus)[:, :2].tolist() for most in (6, 8)]
        [[[0, 5], [5, 7]], [[0, 7]]]
        >>> BlockLayout(8, False, False, True).cut(corpus)[:, :2].tolist()
        [[0, 5], [5, 7]]

        With separators behind sentences, the one between the documents ends the first block where it has room for it:

        >>> [BlockLayout(most, True, True, True).cut(corpus).tolist() for most in (6, 7)]
        [[[0, 5, 0, 0], [5, 7, 1, 0]], [[0, 5, 0, 1], [5, 7, 0, 0]]]
        """
        pieces, is_document = self._pieces(corpus)
        num_pieces = len(pieces) - 1
        # Where a block that begins at a piece has to end, so that pieces and separators in between fill at most the
        # target: cost_before[e] - cost_before[s] tokens, less the document separator that piece s would begin with.
        # Where sentences have separators, those between documents are pieces themselves.
        per_piece = int(self.sentence_separators)
        per_document = int(self.cross_documents and not self.sentence_separators)
        starts, first = array("q"), 0
        for step in range(0, num_pieces, SENTENCES_A_STEP):
            stop = min(step + SENTENCES_A_STEP + self.target_tokens + 1, num_pieces)
            window = np.arange(step, stop + 1)
            separators = per_document * offsets_of(is_document[step:stop])
            cost_before = pieces[step : stop + 1] + per_piece * window + separators
            begin = np.arange(min(SENTENCES_A_STEP, num_pieces - step))
            budget = cost_before[begin] + self.target_tokens + per_piece
            budget += per_document * is_document[step : step + len(begin)]
            ends = np.maximum(np.searchsorted(cost_before, budget, "right") - 1, begin + 1) + step
            if not self.cross_documents:
                document_starts = np.append(np.flatnonzero(is_document[step:stop]) + step, stop)
                ends = np.minimum(ends, document_starts[np.searchsorted(document_starts, begin + step, "right")])
            while first < step + len(begin):
                starts.append(first)
                first = int(ends[first - step])
        begin = np.frombuffer(starts, dtype=np.int64)
        end = np.append(begin[1:], num_pieces)
        # No sentence is empty, so an empty piece is a separator.
        begins_with_one = pieces[begin] == pieces[begin + 1]
        ends_with_one = (pieces[end - 1] == pieces[end]) & (end - begin > 1)
        return np.stack([pieces[begin], pieces[end], begins_with_one, ends_with_one], axis=1)

    def segments(self, corpus: FlatCorpus, document_starts: np.ndarray, blocks: np.ndarray) -> Segments:
        """The pieces of blocks, `(B, 4)` from `cut`, that separators stand behind.

        `document_starts` are the first tokens of the corpus's documents, which are too many to look up every time.
        """
        begin, end, begins_with_one, ends_with_one = blocks.T
        cuts = [(begin, np.arange(len(blocks))), _inside(document_starts, begin, end)]
        if self.sentence_separators:
            # Behind each sentence, and once more between documents: an empty piece.
            leading = np.flatnonzero(begins_with_one & (begin < end))
            trailing = np.flatnonzero(ends_with_one)
            cuts += [
                _inside(corpus.sentence_offsets, begin, end),
                (begin[leading], leading),
                (end[trailing], trailing),
            ]
        piece_begin, rows = map(np.concatenate, zip(*cuts, strict=True))
        order = np.lexsort((piece_begin, rows))
        piece_begin, rows = piece_begin[order], rows[order]
        is_last = np.append(np.diff(rows) > 0, True)
        piece_end = np.where(is_last, end[rows], np.append(piece_begin[1:], 0))
        counts = np.bincount(rows, minlength=len(blocks))
        return Segments(corpus.tokens, corpus.word_starts, piece_begin, piece_end, counts)

    def _pieces(self, corpus: FlatCorpus) -> tuple[np.ndarray, np.ndarray]:
        """Where sentences, parts of long ones and separators begin among the tokens, and N; which begin a document.

        Only separators between documents that count as sentences are pieces: empty ones, which begin a document each.
        """
        offsets = corpus.sentence_offsets
        document_starts = offsets[corpus.document_offsets[:-1]]
        if self.cut_long_sentences:
            lengths, longest = np.diff(offsets), self.target_tokens
            long = np.flatnonzero(lengths > longest)
            parts = -(-lengths[long] // longest) - 1
            cuts = np.repeat(offsets[long], parts) + longest * (ranges(np.zeros_like(parts), parts) + 1)
            if len(cuts):
                offsets = np.sort(np.concatenate([offsets, cuts]))
        if self.cross_documents and self.sentence_separators:
            offsets = np.insert(offsets, np.searchsorted(offsets, document_starts[1:]), document_starts[1:])
        is_document = np.zeros(len(offsets) - 1, dtype=bool)
        is_document[np.searchsorted(offsets, document_starts)] = True
        return offsets, is_document


def _inside(bounds: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of ascending `bounds` that lie inside of each range, ends excluded, and the number of the range."""
    first = np.searchsorted(bounds, begin, "right")
    last = np.maximum(np.searchsorted(bounds, end), first)
    return bounds[ranges(first, last)], np.repeat(np.arange(len(begin)), last - first)
