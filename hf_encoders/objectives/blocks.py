"""Examples of masked language modelling: blocks of text, stored or streamed, and pairs of translations."""

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
from torch.utils.data import IterableDataset
from transformers.utils import logging

from hf_encoders.corpus.flat_corpus import offsets_of
from hf_encoders.inputs import SIDES, check_languages
from hf_encoders.objectives.dataset import CorpusDataset, EpochDataset, Example
from hf_encoders.objectives.randomness import Key, RandomStream, generator


logger = logging.get_logger(__name__)

SPECIAL_TOKENS_OF_A_BLOCK = 2  # [CLS] ... [SEP]
SPECIAL_TOKENS_OF_PARALLEL_PAIR = 2 * SIDES  # [CLS] x [SEP] of each
MANY_LEFT_OUT = 0.1  # share of the pairs above which it is warned of; this package's choice
DOCUMENTS_TO_CUT = 100  # of a stream at a time


class SentenceBlocks(CorpusDataset):
    """Blocks of as many consecutive sentences as fit: the same blocks every epoch, with dynamic masking.

    Source: FULL-SENTENCES and DOC-SENTENCES of RoBERTa, section 4.2 (https://arxiv.org/abs/1907.11692); fairseq's
    `complete` and `complete_doc`, whose blocks are exactly those with `sentence_separators` and without
    `cut_long_sentences`, for a file with an empty line between documents and none at its end. By default a sentence
    longer than a block is cut, and separators stand between documents only, inside a block.

    XLM's streams (`StreamDataset` of facebookresearch/XLM; `none` in fairseq) are `whole_sentences=False`: blocks
    begin and end anywhere. Differs from XLM in: a block has special tokens at both ends, where XLM's begins with the
    last token of the block before, which is not predicted there, and ends without a mark; blocks are of the whole
    text, not of the parts of it that are the rows of a batch.

    Args:
        documents (`datasets.Dataset`): Tokenised documents; column `input_ids`, lists of sentences of token ids.
        max_length (`int`): Longest block in tokens, special tokens included.
        cross_documents (`bool`, *optional*, defaults to `True`): True fills blocks across document ends, with a
            separator in between (FULL-SENTENCES); False ends a block with its document (DOC-SENTENCES).
        seed (`int`, *optional*, defaults to 0): Seed of all random choices.
        redraw, epochs_per_draw, dupe_factor: As in `EpochDataset`.
        sentence_separators (`bool`, *optional*, defaults to `False`): Whether a separator ends every sentence, as in
            fairseq. With `cross_documents` there is another one between two documents, which is like a sentence: it
            ends a block where it fits, and begins the next one otherwise; not so without `whole_sentences`.
        cut_long_sentences (`bool`, *optional*, defaults to `True`): Whether sentences longer than a block are cut; in
            fairseq they make the block longer than `max_length`.
        whole_sentences (`bool`, *optional*, defaults to `True`): False fills every block to its last token, wherever
            sentences begin and end (XLM). A separator that falls between two blocks is the end of the first.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> blocks = SentenceBlocks(documents, max_length=8, redraw=False)
    >>> [[segment.tolist() for segment in example.segments] for example in blocks[:]]
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
        if not (whole_sentences or cut_long_sentences):
            raise ValueError("cut_long_sentences=False and whole_sentences=False are at odds: leave out one.")
        if max_length <= SPECIAL_TOKENS_OF_A_BLOCK:
            raise ValueError(f"max_length={max_length} leaves no room for a token: use at least 3.")
        super().__init__(documents, seed, redraw, epochs_per_draw, dupe_factor)
        if len(self.corpus.tokens) == 0:
            raise ValueError("documents holds no sentence: check the corpus files and the tokenizer.")
        self.max_length, self.capacity = max_length, max_length - SPECIAL_TOKENS_OF_A_BLOCK
        self.cross_documents, self.sentence_separators = cross_documents, sentence_separators
        self.cut_long_sentences, self.whole_sentences = cut_long_sentences, whole_sentences
        # Where blocks begin and end in the corpus's tokens, and 1 where a separator between documents begins or ends
        # them: int64, (blocks, 4).
        self.blocks = self._whole_sentence_blocks() if whole_sentences else self._full_blocks()

    def __len__(self) -> int:
        return len(self.blocks)

    def facts(self) -> list[str]:
        """Return contents and options for `repr`."""
        names = ("max_length", "cross_documents", "sentence_separators", "cut_long_sentences", "whole_sentences")
        return [f"{len(self):,} blocks of {self.corpus!r}", *(f"{name}={vars(self)[name]}" for name in names)]

    def example(self, index: int) -> Example:
        """Return a block: the text between two separators is a segment."""
        begin, end, begins_with_separator, ends_with_separator = self.blocks[index].tolist()
        cuts = [begin, end]
        if self.sentence_separators:
            cuts += _inside(self.corpus.sentence_offsets, begin, end)
        if not self.sentence_separators or self.whole_sentences:  # once more between documents: an empty segment
            cuts += _inside(self.corpus.document_starts, begin, end)
        cuts += [begin] * (begins_with_separator and begin < end) + [end] * ends_with_separator
        return Example.of([self.text(first, last) for first, last in pairwise(sorted(cuts))], self.key(index))

    def _whole_sentence_blocks(self) -> np.ndarray:
        """Fill each block with as many units as fit: sentences, parts of long ones, separators between documents."""
        units, begins_document = self._units()
        num_units = len(units) - 1
        # A block that begins at unit s ends where its units and the separators between them exceed the capacity:
        # cost_before[e] - cost_before[s] tokens, less the document separator that unit s would begin with.
        # With sentence separators, those between documents are units themselves.
        per_unit = int(self.sentence_separators)
        per_document = int(self.cross_documents and not self.sentence_separators)
        cost_before = units + per_unit * np.arange(num_units + 1) + per_document * offsets_of(begins_document)
        document_ends = np.append(begins_document.nonzero()[0], num_units)
        firsts, first = array("q"), 0
        while first < num_units:
            firsts.append(first)
            budget = cost_before[first] + self.capacity + per_unit + per_document * begins_document[first]
            near = cost_before[first : first + self.capacity + 2]  # each unit costs a token at least
            end = first + max(int(near.searchsorted(budget, "right")) - 1, 1)
            if not self.cross_documents:
                end = min(end, int(document_ends[document_ends.searchsorted(first, "right")]))
            first = end
        begin = np.frombuffer(firsts, dtype=np.int64)
        end = np.append(begin[1:], num_units)
        # No sentence is empty, so an empty unit is a separator.
        begins_with_one = units[begin] == units[begin + 1]
        ends_with_one = (units[end - 1] == units[end]) & (end - begin > 1)
        return np.stack([units[begin], units[end], begins_with_one, ends_with_one], axis=1)

    def _units(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first tokens of the units that fill blocks, and N at the end; and which begin a document.

        A unit is a sentence, a part of a long one, or (empty) a separator between documents that counts as a sentence.
        """
        offsets, document_starts = self.corpus.sentence_offsets, self.corpus.document_starts
        if self.cut_long_sentences:
            lengths = np.diff(offsets)
            cuts = [
                np.arange(offsets[long] + self.capacity, offsets[long + 1], self.capacity)
                for long in (lengths > self.capacity).nonzero()[0]
            ]
            offsets = np.sort(np.concatenate([offsets, *cuts]))
        if self.cross_documents and self.sentence_separators:
            offsets = np.insert(offsets, np.searchsorted(offsets, document_starts[1:]), document_starts[1:])
        begins_document = np.zeros(len(offsets) - 1, dtype=bool)
        begins_document[np.searchsorted(offsets, document_starts)] = True
        return offsets, begins_document

    def _full_blocks(self) -> np.ndarray:
        """Cut the text, with its separators, at multiples of the capacity."""
        corpus = self.corpus
        separators = corpus.sentence_offsets[1:-1] if self.sentence_separators else corpus.document_starts[1:]
        # Positions count tokens and separators from the first token of the corpus on.
        positions = separators + np.arange(len(separators))
        begins = corpus.document_starts if not self.cross_documents else corpus.document_starts[:1]
        blocks = []
        for begin, end in pairwise([*begins.tolist(), len(corpus.tokens)]):
            first = begin + separators.searchsorted(begin, "right")
            cuts = np.arange(first, end + separators.searchsorted(end), self.capacity)
            # The first token at or after a position is as many tokens before it as there are separators before it.
            starts = np.append(cuts - positions.searchsorted(cuts), end)
            blocks.append(np.stack([starts[:-1], starts[1:]], axis=1))
        blocks = np.concatenate(blocks)
        blocks = blocks[blocks[:, 0] < blocks[:, 1]]  # not a separator alone
        return np.pad(blocks, ((0, 0), (0, 2)))


def _inside(bounds: np.ndarray, begin: int, end: int) -> list[int]:
    """Return the elements of ascending `bounds` that lie inside of a range, its ends excluded."""
    return bounds[bounds.searchsorted(begin, "right") : bounds.searchsorted(end)].tolist()


class StreamedBlocks(EpochDataset, IterableDataset):
    """Blocks of whole sentences of a stream of documents, for text that is not prepared first.

    They are those of `SentenceBlocks` with `cross_documents=False`: functions of their document alone, whatever the
    worker, shard or batch that reads it. The id of a block, from which its masks are drawn, is a hash of its tokens:
    equal blocks have equal masks within an epoch.

    Args:
        documents (`datasets.IterableDataset`): Tokenised documents (`DocumentTokenizer`); column `input_ids`, lists of
            sentences of token ids, and perhaps `word_starts`. Workers divide its shards among themselves.
        max_length (`int`): Longest block in tokens, special tokens included.
        seed, redraw, epochs_per_draw, dupe_factor: As in `SentenceBlocks`. The epoch also shuffles a shuffled stream.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> blocks = StreamedBlocks(documents.to_iterable_dataset(), max_length=5, redraw=False)
    >>> [example.segments[0].tolist() for example in blocks]
    [[10, 11, 12], [20, 21], [22, 23, 24]]
    """

    def __init__(
        self,
        documents: datasets.IterableDataset,
        max_length: int,
        seed: int = 0,
        redraw: bool = True,
        epochs_per_draw: int = 1,
        dupe_factor: int | None = None,
    ):
        super().__init__(seed, redraw, epochs_per_draw, dupe_factor)
        if not isinstance(documents, datasets.IterableDataset):
            raise ValueError(f"documents is a {type(documents).__name__}, not a stream: use SentenceBlocks.")
        if max_length <= SPECIAL_TOKENS_OF_A_BLOCK:
            raise ValueError(f"max_length={max_length} leaves no room for a token: use at least 3.")
        self.max_length = max_length
        self.stream = documents.map(
            _cut, batched=True, batch_size=DOCUMENTS_TO_CUT, fn_kwargs={"max_length": max_length}
        )

    def __iter__(self) -> Iterator[Example]:
        draw = self.draw
        for row in self.stream:
            tokens = np.array(row["input_ids"], dtype=np.int32)
            starts = [np.array(row["word_starts"], dtype=np.uint8)] if "word_starts" in row else None
            number = int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=7).digest())
            yield Example([tokens], Key(self.seed, draw, number), starts)

    def facts(self) -> list[str]:
        """Return contents and options for `repr`."""
        return [f"{self.stream.num_shards} shards", f"max_length={self.max_length}"]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, also of the stream, where it shuffles."""
        super().set_epoch(epoch)
        self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream, its epoch included."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position."""
        self.set_epoch(state["epoch"])
        self.stream.load_state_dict(state)


def _cut(documents: Mapping[str, list[Any]], max_length: int) -> dict[str, list[Any]]:
    """Cut a batch of documents into blocks, a row each; columns that are not read become empty."""
    columns = {name: values for name, values in documents.items() if name in ("input_ids", "word_starts")}
    corpus = datasets.Dataset.from_dict(columns)
    blocks = SentenceBlocks(corpus, max_length, cross_documents=False, redraw=False)[:]
    rows = dict.fromkeys(documents, [None] * len(blocks)) | {"input_ids": [block.segments[0] for block in blocks]}
    return rows if len(columns) == 1 else rows | {"word_starts": [block.word_starts[0] for block in blocks]}


class ParallelPairs(CorpusDataset):
    """Pairs of a sentence and its translation, `[CLS] x [SEP] [CLS] y [SEP]`; positions begin again at each side.

    For translation language modelling (TLM; XLM, section 3.4, https://arxiv.org/abs/1901.07291): a masked word is
    found in the sentence around it or in its translation. Both sides are masked by `DataCollatorForMaskedLM`, and
    every token attends to both. Which side comes first is drawn for each pair and epoch; the original code
    (`ParallelDataset` and `concat_batches` of facebookresearch/XLM) counts the two orders as two objectives and draws
    one per step.

    As in the original code, pairs with a side that is too long are left out, not truncated: the other side would
    translate what is not there. `num_left_out` is their number; a warning says so above a tenth.

    Args:
        documents (`datasets.Dataset`): A parallel corpus of `prepare_parallel_corpus`: documents of two sentences.
        max_length (`int`): Longest example in tokens, special tokens included; longer pairs are left out.
        languages (`Sequence[str]`): Names of the languages of the first and the second sentence, as in the model's
            `lang2id`.
        seed (`int`, *optional*, defaults to 0): Seed of all random choices.
        max_sentence_length (`int`, *optional*, defaults to 100): Most tokens of a side, without special tokens
            (`max_len`; the released models have 200); None leaves it to `max_length`.
        redraw, epochs_per_draw, dupe_factor: As in `EpochDataset`.

    Raises:
        ValueError: If no pair is left, or an argument is wrong.

    The pair (20, 21) and (40), where [CLS] and [SEP] are the same token 1, as in XLM; nothing is masked:

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[20, 21], [40]], [[30, 31], [41, 42]]]})
    >>> pairs = ParallelPairs(documents, max_length=16, languages=("en", "zh"), redraw=False, seed=2)
    >>> from hf_encoders import DataCollatorForMaskedLM
    >>> tokenizer = doctest_tokenizer()
    >>> tokenizer.sep_token = tokenizer.cls_token
    >>> collator = DataCollatorForMaskedLM(
    ...     tokenizer, first_position=0, lang2id={"en": 5, "zh": 6}, mask_replace_probability=0.0,
    ...     random_replace_probability=0.0
    ... )
    >>> batch = collator([pairs[0]])
    >>> for name in ("input_ids", "position_ids", "langs"):
    ...     print(name, batch[name].tolist())
    input_ids [[1, 20, 21, 1, 1, 40, 1]]
    position_ids [[0, 1, 2, 3, 0, 1, 2]]
    langs [[5, 5, 5, 5, 6, 6, 6]]
    """

    def __init__(
        self,
        documents: datasets.Dataset,
        max_length: int,
        languages: Sequence[str],
        seed: int = 0,
        max_sentence_length: int | None = 100,
        redraw: bool = True,
        epochs_per_draw: int = 1,
        dupe_factor: int | None = None,
    ):
        self.languages = check_languages(languages)
        for name, value, least in (
            ("max_length", max_length, SPECIAL_TOKENS_OF_PARALLEL_PAIR + SIDES),
            ("max_sentence_length", max_sentence_length, 1),
        ):
            is_whole = isinstance(value, (int, np.integer)) and value >= least
            if not is_whole and (name, value) != ("max_sentence_length", None):
                raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")
        super().__init__(documents, seed, redraw, epochs_per_draw, dupe_factor)
        self.max_length, self.max_sentence_length = int(max_length), max_sentence_length
        self.first_sentences = self._fitting_pairs()
        if self.num_left_out > MANY_LEFT_OUT * self.num_documents:
            logger.warning_once(
                f"{self.num_left_out:,} of {self.num_documents:,} pairs of {'-'.join(self.languages)} are left "
                f"out at max_length={self.max_length}: both sides together do not fit, or one has more than "
                f"{self.max_sentence_length} tokens."
            )

    def __len__(self) -> int:
        return len(self.first_sentences)

    @property
    def num_left_out(self) -> int:
        """Pairs that are too long, or of which the tokenizer left a side without a token."""
        return self.num_documents - len(self)

    def left_out(self) -> str:
        """Describe the pairs that are too long."""
        return f"{self.num_left_out:,} of {self.num_documents:,} pairs, too long" * bool(self.num_left_out)

    def facts(self) -> list[str]:
        """Return contents and options for `repr`."""
        left_out = f", {self.num_left_out:,} left out" if self.num_left_out else ""
        return [f"{len(self):,} pairs of {'-'.join(self.languages)}{left_out}", f"max_length={self.max_length}"]

    def example(self, index: int) -> Example:
        """Return a pair, the side that comes first drawn for it."""
        key, first = self.key(index), int(self.first_sentences[index])
        sides = (1, 0) if generator(key, RandomStream.SIDE_ORDER).random() < 0.5 else (0, 1)
        bounds = self.corpus.sentence_offsets[first : first + SIDES + 1].tolist()
        texts = [self.text(bounds[side], bounds[side + 1]) for side in sides]
        return Example.of(texts, key, languages=[self.languages[side] for side in sides], restarts=True)

    def _fitting_pairs(self) -> np.ndarray:
        """Return the first sentence of every pair that fits, `(pairs,)`."""
        sizes = self.corpus.document_lengths
        if sizes.max(initial=0) > SIDES:
            raise ValueError(
                f"documents: document {sizes.argmax()} has {sizes.max()} sentences, and a pair has two: prepare the "
                "text with hf-encoders corpus --parallel (prepare_parallel_corpus)."
            )
        first = self.corpus.document_offsets[:-1][sizes == SIDES]
        lengths = self.corpus.sentence_lengths
        lengths = np.stack([lengths[first], lengths[first + 1]], axis=1)
        fits = lengths.sum(axis=1) + SPECIAL_TOKENS_OF_PARALLEL_PAIR <= self.max_length
        if self.max_sentence_length is not None:
            fits &= lengths.max(axis=1, initial=0) <= self.max_sentence_length
        if not fits.any():
            raise ValueError(
                f"max_length={self.max_length} and max_sentence_length={self.max_sentence_length} leave out all "
                f"{self.num_documents:,} pairs of documents: raise them, or give more text."
            )
        return first[fits]
