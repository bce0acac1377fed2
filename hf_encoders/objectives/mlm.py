"""Masked language modelling alone (RoBERTa, section 4.1)."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import groupby, pairwise
from typing import Any, ClassVar

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from hf_encoders.corpus.flat_corpus import offsets_of
from hf_encoders.corpus.similar_word_table import SimilarWords
from hf_encoders.corpus.special_tokens import mask_and_padding, sequence_ends
from hf_encoders.inputs import SIDES, check_languages
from hf_encoders.objectives.batch import IGNORED, Row, batch
from hf_encoders.objectives.dataset import (
    CorpusDataset,
    Example,
    refuse_unknown_options,
    with_options_of,
)
from hf_encoders.objectives.masking import Masker, Masking, describe_masking
from hf_encoders.objectives.objective import LossTerm, Objective
from hf_encoders.objectives.randomness import Key, RandomStream, generator


logger = logging.get_logger(__name__)

SPECIAL_TOKENS_OF_A_BLOCK = 2  # [CLS] ... [SEP]
SPECIAL_TOKENS_OF_PARALLEL_PAIR = 2 * SIDES  # [CLS] x [SEP] of each
MANY_LEFT_OUT = 0.1  # share of the pairs above which it is warned of; this package's choice


class SentenceBlocks(CorpusDataset):
    """Blocks of as many consecutive sentences as fit: the same blocks every epoch, with dynamic masking.

    Source: FULL-SENTENCES and DOC-SENTENCES of RoBERTa, section 4.2 (https://arxiv.org/abs/1907.11692); fairseq's
    `complete` and `complete_doc`. Differs from fairseq in: a sentence longer than a block is cut instead of making the
    block longer, and separators stand between documents only, inside a block. With `sentence_separators` and without
    `cut_long_sentences` blocks are exactly those of fairseq, for a file with an empty line between documents and none
    at its end.

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
            raise ValueError(
                "cut_long_sentences=False keeps sentences whole, and whole_sentences=False cuts them: leave out one."
            )
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
        """Contents and options for `repr`."""
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
        texts = [self.text(first, last) for first, last in pairwise(sorted(cuts))]
        starts = None if self.corpus.word_starts is None else [starts for _, starts in texts]
        return Example([tokens for tokens, _ in texts], self.key(index), starts)

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
        """First tokens of the units that blocks are filled with, and N at the end; and which begin a document.

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
        if not isinstance(max_length, (int, np.integer)) or max_length < SPECIAL_TOKENS_OF_PARALLEL_PAIR + SIDES:
            raise ValueError(
                f"max_length={max_length} must be a whole number of at least {SPECIAL_TOKENS_OF_PARALLEL_PAIR + SIDES}"
                ", which leaves room for a token of each side."
            )
        if max_sentence_length is not None and not (isinstance(max_sentence_length, int) and max_sentence_length >= 1):
            raise ValueError(
                f"max_sentence_length={max_sentence_length!r} must be a whole number of at least 1, or None."
            )
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
        """Pairs that are too long, in words."""
        return f"{self.num_left_out:,} of {self.num_documents:,} pairs, too long" * bool(self.num_left_out)

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        left_out = f", {self.num_left_out:,} left out" if self.num_left_out else ""
        return [f"{len(self):,} pairs of {'-'.join(self.languages)}{left_out}", f"max_length={self.max_length}"]

    def example(self, index: int) -> Example:
        """Return a pair, the side that comes first drawn for it."""
        key, first = self.key(index), int(self.first_sentences[index])
        sides = (1, 0) if generator(key, RandomStream.SIDE_ORDER).random() < 0.5 else (0, 1)
        bounds = self.corpus.sentence_offsets[first : first + SIDES + 1].tolist()
        texts = [self.text(bounds[side], bounds[side + 1]) for side in sides]
        return Example(
            [tokens for tokens, _ in texts],
            key,
            word_starts=None if self.corpus.word_starts is None else [starts for _, starts in texts],
            languages=[self.languages[side] for side in sides],
            restarts=True,
        )

    def _fitting_pairs(self) -> np.ndarray:
        """The first sentence of every pair that fits, `(pairs,)`."""
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


Feature = Example | Mapping[str, Any]

# The columns of a plain row that are read.
COLUMNS = ("input_ids", "attention_mask", "token_type_ids", "word_starts", "position_ids", "langs")


class DataCollatorForMaskedLM:
    """Masks tokens dynamically, and pads the batch to its longest row, or packs it into one row.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        pad_to_multiple_of (`int`, *optional*): Pad rows to a multiple of this length; not for packed batches.
        packed (`bool`, *optional*, defaults to `False`): Whether all examples come back to back in one row, without
            padding. The models of this package keep them apart exactly.
        first_position (`int`, *optional*): Position of each example's first token, to write `position_ids`: 0, or
            `pad_token_id + 1` for RoBERTa's. Needed for packed batches by the models of transformers, and where
            positions restart inside an example (`ParallelPairs`) by all models.
        token_counts (`np.ndarray` of integers, shape `(V,)`, *optional*): Of each token in the corpus, for
            `frequency_power`.
        similar_words (`SimilarWords`, *optional*): Of the corpus, for `similar_replace_probability`.
        phase_masking (`Sequence[Mapping[str, Any]]`, *optional*): Options that differ from `masking` in each phase of
            a run; for examples that name their phase (`RunExamples`).
        lang2id (`Mapping[str, int]`, *optional*): The model's id of each language, `config.lang2id`, to write `langs`
            for a model with language embeddings (XLM). All examples then need a language.
        masking: Arguments of `Masking`: `mask_probability` (0.15), `unit` ("token", "word", "ngram", "span"), and so
            on; `**presets.ROBERTA_MASKING` for those of the original code.

    Input: `Example`s of this package's datasets, which get their special tokens here; or rows whose `input_ids` have
        them already (and perhaps `token_type_ids`, `langs`, or `position_ids` counted from 0), as a tokenizer returns
        them, with random numbers from torch's generator.

    Output: `input_ids`, `attention_mask` and `labels`, each `(B, T)` `int64`; `token_type_ids` if rows have them,
        `position_ids` with `first_position`, `langs` with `lang2id`. Packed, what `batch` returns.

    A subclass overrides `prepare` (which segments of an example are read, and its labels), `arguments` (what the model
    takes of each example), and names its `label_arguments`.

    Example, with ids 1 = [CLS], 2 = [SEP], 4 = [MASK] and half of the tokens predicted:

    >>> collator = DataCollatorForMaskedLM(doctest_tokenizer(), mask_probability=0.5)
    >>> text = Example([np.array([10, 11, 12, 13])], key=Key(seed=0, epoch=0, example=5))
    >>> batch = collator([text])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 4, 11, 4, 13, 2]], [[-100, 10, -100, 12, -100, -100]])
    """

    label_arguments: ClassVar[Mapping[str, str]] = {}  # name of a label of examples -> argument of the model

    @with_options_of(Masking)
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        pad_to_multiple_of: int | None = None,
        packed: bool = False,
        first_position: int | None = None,
        token_counts: np.ndarray | None = None,
        similar_words: SimilarWords | None = None,
        phase_masking: Sequence[Mapping[str, Any]] = (),
        lang2id: Mapping[str, int] | None = None,
        **masking: Any,
    ):
        if not all(isinstance(changed, Mapping) for changed in phase_masking):
            raise ValueError(
                f"phase_masking={phase_masking!r} must be the options of each phase, such as "
                "[{}, {'unit': 'word'}]."
            )
        for options in (masking, *phase_masking):
            refuse_unknown_options(self, dict(options), (field.name for field in fields(Masking)))
        begin, end = sequence_ends(tokenizer)
        self.begin, self.end = np.array([begin]), np.array([end])
        self.masker = Masker(tokenizer, token_counts, similar_words, **masking)
        self.phase_maskers = [
            Masker(tokenizer, token_counts, similar_words, **{**masking, **changed}) if changed else self.masker
            for changed in phase_masking
        ]
        self._check_data(token_counts, similar_words)
        if pad_to_multiple_of is not None and not (isinstance(pad_to_multiple_of, int) and pad_to_multiple_of >= 1):
            raise ValueError(f"pad_to_multiple_of={pad_to_multiple_of} must be a whole number of at least 1.")
        if packed and pad_to_multiple_of is not None:
            raise ValueError(
                f"pad_to_multiple_of={pad_to_multiple_of}: a packed batch has no padding; leave out one of them."
            )
        if first_position is not None and not (isinstance(first_position, int) and first_position >= 0):
            raise ValueError(
                f"first_position={first_position} must be a whole number of at least 0: 0, or pad_token_id + 1 for "
                "RoBERTa's."
            )
        if lang2id is not None and not (isinstance(lang2id, Mapping) and lang2id):
            raise ValueError(
                f"lang2id={lang2id!r} must name each language's id: give the model's, config.lang2id, or leave it out."
            )
        self.lang2id = None if lang2id is None else dict(lang2id)
        self.pad_to_multiple_of, self.packed, self.first_position = pad_to_multiple_of, packed, first_position
        # RoBERTa's position of padding is the one before the first.
        self.padding = {
            "input_ids": mask_and_padding(tokenizer)[1],
            "labels": IGNORED,
            "position_ids": max((first_position or 0) - 1, 0),
        }

    def _check_data(self, token_counts: np.ndarray | None, similar_words: SimilarWords | None) -> None:
        """Refuse data that no masking uses: its option was forgotten."""
        used = [masker.masking for masker in (self.masker, *self.phase_maskers)]
        if token_counts is not None and all(masking.frequency_power is None for masking in used):
            raise ValueError("token_counts is for frequency_power: set it, such as 0.7, or leave token_counts out.")
        if similar_words is not None and not any(masking.similar_replace_probability for masking in used):
            raise ValueError(
                "similar_words is for similar_replace_probability: set it, as presets.MACBERT_MASKING does, or leave "
                "similar_words out."
            )

    def __repr__(self) -> str:
        masking = self.masker.masking
        names = ("max_length", "packed", "pad_to_multiple_of", "first_position")
        shown = {name: value for name in names if (value := vars(self).get(name))}
        shown |= {"mask_probability": masking.mask_probability, "unit": masking.unit}
        shown |= {f.name: getattr(masking, f.name) for f in fields(masking) if getattr(masking, f.name) != f.default}
        options = (f"{name}={getattr(value, '__name__', None) or repr(value)}" for name, value in shown.items())
        return f"{type(self).__name__}({', '.join(options)})"

    def __call__(self, features: Sequence[Feature], return_tensors: str = "pt") -> dict[str, torch.Tensor | int]:
        """Make a batch of all examples in `features`; `return_tensors` is there for callers of other collators."""
        if return_tensors != "pt":
            raise ValueError(f"return_tensors={return_tensors!r}: batches are torch tensors ('pt'); leave it out.")
        examples, rows = [], []
        for is_plain, group in groupby(features, lambda feature: isinstance(feature, Mapping)):
            if is_plain:
                made, tokens = self.plain(list(group))
            else:
                made = [self.prepare(example) for example in group]
                tokens = [self.tokens(example) for example in made]
            examples, rows = examples + made, rows + tokens
        rows = [self.arguments(example, row) for example, row in zip(examples, rows, strict=True)]
        labels = {
            argument: torch.tensor([example.labels[name] for example in examples])
            for name, argument in self.label_arguments.items()
        }
        return {**batch(rows, self.padding, self.packed, self.pad_to_multiple_of), **labels}

    def prepare(self, example: Example) -> Example:
        """Return the example as the objective reads it: here as one text."""
        return example.as_text()

    def tokens(self, example: Example) -> Row:
        """Return the tokens of an example with the special ones: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, and so on.

        Returns:
            `Row`: `input_ids`; `token_type_ids`, `langs` and `word_starts` if the example has them; `position_ids`,
            counted from 0, if they restart inside the example.
        """
        sizes, pieces = [], []
        for i, segment in enumerate(example.segments):
            begins = i == 0 or example.restarts
            pieces += [self.begin, segment, self.end] if begins else [segment, self.end]
            sizes.append(len(segment) + 1 + begins)
        row = {"input_ids": np.concatenate(pieces)}
        if example.token_types is not None:
            row["token_type_ids"] = np.repeat(example.token_types, sizes)
        if example.restarts:
            row["position_ids"] = np.concatenate([np.arange(size) for size in sizes])
        if self.lang2id is not None and example.languages is not None:
            row["langs"] = np.repeat([self._language_id(name) for name in example.languages], sizes)
        if example.word_starts is not None:
            row["word_starts"] = np.ones(len(row["input_ids"]), dtype=np.uint8)
            ends = np.cumsum(sizes) - 1
            for starts, end in zip(example.word_starts, ends.tolist(), strict=True):
                row["word_starts"][end - len(starts) : end] = starts
        return row

    def _language_id(self, name: str) -> int:
        if name not in self.lang2id:
            raise ValueError(
                f"language {name!r} of the examples is not one of the model's, {', '.join(self.lang2id)}: name it as "
                "there, or add it to lang2id."
            )
        return self.lang2id[name]

    def arguments(self, example: Example, row: Row) -> Row:
        """Return the arguments of the model for one example, from its tokens: masked, with labels and positions."""
        word_starts = row.pop("word_starts", None)
        masker = self.masker_of(example.phase)
        ids, labels = masker(row["input_ids"], example.key, word_starts, example.mask_rate)
        if self.first_position is not None:
            positions = row.get("position_ids", np.arange(len(ids)))
            row["position_ids"] = positions + self.first_position
        elif "position_ids" in row:
            raise ValueError(
                "first_position is missing: positions restart inside an example, so the batch needs position_ids. "
                "Give the data collator first_position=0, or pad_token_id + 1 for RoBERTa's "
                "(model.base_model.embeddings.first_position)."
            )
        if self.lang2id is not None and "langs" not in row:
            raise ValueError(
                f"lang2id={self.lang2id}: the examples have no language. Give the dataset the languages of its text "
                "(MixedExamples, ParallelPairs), or rows a column langs."
            )
        return {**row, "input_ids": ids, "labels": labels}

    def masker_of(self, phase: int) -> Masker:
        """The masker of a run's phase, from 1; 0 for examples outside of phases."""
        if not 0 <= phase <= len(self.phase_maskers):
            raise ValueError(
                f"examples of phase {phase}, but phase_masking of the data collator has {len(self.phase_maskers)} "
                "phases: give it the masking of each phase of the run."
            )
        return self.phase_maskers[phase - 1] if phase else self.masker

    def plain(self, features: Sequence[Mapping[str, Any]]) -> tuple[list[Example], list[Row]]:
        """Return what stands for the examples of plain rows, with keys from torch's generator, and their tokens."""
        if differing := {name for name in COLUMNS[1:] if len({name in feature for feature in features}) > 1}:
            raise ValueError(f"{', '.join(sorted(differing))} is in some rows only: train on datasets prepared alike.")
        ids = torch.randint(2**56, (len(features),)).tolist()
        examples = [Example([], Key(seed=0, epoch=0, example=number)) for number in ids]
        return examples, [plain_row(number, feature) for number, feature in enumerate(features)]


def plain_row(number: int, feature: Mapping[str, Any]) -> Row:
    """Return the tokens of a row of a plain dataset, special tokens included, without the tokenizer's padding.

    Raises:
        ValueError: for a row without a token, columns of different lengths, or values that are not integers; `number`
            is the row's in the batch.
    """
    if "input_ids" not in feature:
        raise ValueError(
            f"input_ids is missing, row {number} of the batch has {list(feature)}: tokenize the dataset first, and "
            "keep the column (remove_unused_columns drops those that the model does not take)."
        )
    row = {name: _integers(name, feature[name], number) for name in COLUMNS if name in feature}
    for name, values in row.items():
        if len(values) != len(row["input_ids"]):
            raise ValueError(
                f"{name} of row {number} of the batch has {len(values)} values, input_ids {len(row['input_ids'])}: "
                "it needs one per token; tokenize the row again, or remove the column."
            )
    is_real = row.pop("attention_mask", np.ones(1)).astype(bool)
    if is_real.all():
        return row
    if not is_real.any():
        raise ValueError(
            f"attention_mask of row {number} of the batch is all zero, which leaves no token: remove rows without "
            "text from the dataset."
        )
    return {name: values[is_real] for name, values in row.items()}


def _integers(name: str, values: Any, number: int) -> np.ndarray:
    """A column of a plain row, `int64`."""
    try:
        integers = np.asarray(values)
        if integers.ndim == 1 and integers.dtype.kind in "iub" and len(integers):
            return integers.astype(np.int64, copy=False)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(
        f"{name} must be a non-empty list of integers, one per token, for this collator, and row {number} of the "
        f"batch is {' '.join(repr(values).split()):.80}; for lists of sentences wrap the dataset in "
        "SentenceBlocks (MLM) or use a pair collator."
    )


MASKED_TOKENS = LossTerm("mlm", "masked tokens")


class MaskedLanguageModelling(Objective):
    """Predict masked tokens of blocks of sentences; of parallel text, also from the translation (XLM, section 3.4)."""

    name = "mlm"
    terms = (MASKED_TOKENS,)
    token_term = MASKED_TOKENS  # whose baseline is the unigram distribution
    auto_class = "AutoModelForMaskedLM"
    dataset_class = SentenceBlocks
    collator_class = DataCollatorForMaskedLM
    parallel_class = ParallelPairs

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """How tokens were masked."""
        own = {i + 1: masker for i, masker in enumerate(collator.phase_maskers) if masker is not collator.masker}
        # The share that was logged is over all phases, so it is that of no masking where some have their own.
        described = describe_masking(collator.masker.masking, mask_rates, None if own else logged.get("mask_rate"))
        of_phases = [f"phase {i}: {describe_masking(masker.masking, mask_rates, None)}" for i, masker in own.items()]
        is_of_evaluation_only = len(own) == len(collator.phase_maskers) > 0
        described = [*of_phases, f"evaluation: {described}"] if is_of_evaluation_only else [described, *of_phases]
        return {"masked language modelling": "; ".join(described)}

    def describe_parallel(self, sources: Sequence[str]) -> dict[str, str]:
        """Translation language modelling."""
        words = f"the same in pairs of {', '.join(sources)}: both sides masked, positions begin again at the second"
        return {"translation language modelling": words}

    def results(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> list[dict[str, Any]]:
        """Perplexity beside that of the unigram distribution, and accuracies."""
        baseline = f"unigram {math.exp(unigram_cross_entropy):.1f}"
        value = round(metrics["eval_perplexity"], 2)
        perplexity = {"task": self.token_term.task, "metric": "perplexity", "value": value, "baseline": baseline}
        return [perplexity, *super().results(metrics, unigram_cross_entropy)]

    def loss_baselines(self, unigram_cross_entropy: float) -> dict[str, tuple[str, float]]:
        """The unigram cross-entropy."""
        return {f"{self.token_term.name}_loss": ("unigram cross-entropy", unigram_cross_entropy)}

    def summary(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> str:
        """As the base class, with the perplexity."""
        perplexity = f"{metrics['eval_perplexity']:.1f} (unigram {math.exp(unigram_cross_entropy):.1f})"
        tokens, separator, others = super().summary(metrics, unigram_cross_entropy).partition("; ")
        return f"{tokens}, perplexity {perplexity}{separator}{others}"
