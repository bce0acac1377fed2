"""Pairs of sentences that translate each other, for translation language modelling (TLM; XLM, section 3.4).

TLM is masked language modelling of such examples: a masked word is found in the sentence around it or in its
translation. Source: `ParallelDataset` and `concat_batches` of facebookresearch/XLM (https://arxiv.org/abs/1901.07291).
"""

from collections.abc import Sequence

import datasets
import numpy as np
from transformers.utils import logging

from hf_encoders.corpus.parallel import SIDES, check_languages
from hf_encoders.corpus.randomness import RandomStream, example_keys, uniforms
from hf_encoders.objectives.batches import Segments
from hf_encoders.objectives.examples import CorpusDataset, TextExamples


logger = logging.get_logger(__name__)

MANY_LEFT_OUT = 0.1  # share of the pairs above which it is warned of; this package's choice
SPECIAL_TOKENS_OF_A_SIDE = 2  # [CLS] x [SEP]
SPECIAL_TOKENS_OF_PARALLEL_PAIR = SIDES * SPECIAL_TOKENS_OF_A_SIDE


class ParallelPairs(CorpusDataset):
    """Pairs of a sentence and its translation, `[CLS] x [SEP] [CLS] y [SEP]`; positions begin again at each side.

    Both sides are masked by `DataCollatorForMaskedLM`, and every token attends to both. Which side comes first is
    drawn for each pair and epoch; the original code counts the two orders as two objectives and draws one per step.

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

    >>> from hf_encoders.objectives.collators import DataCollatorForMaskedLM
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
        if self.num_left_out > MANY_LEFT_OUT * self.store.num_documents:
            logger.warning_once(
                f"{self.num_left_out:,} of {self.store.num_documents:,} pairs of {'-'.join(self.languages)} are left "
                f"out at max_length={self.max_length}: both sides together do not fit, or one has more than "
                f"{self.max_sentence_length} tokens."
            )

    def __len__(self) -> int:
        return len(self.first_sentences)

    @property
    def num_left_out(self) -> int:
        """Pairs that are too long, or of which the tokenizer left a side without a token."""
        return self.store.num_documents - len(self)

    def left_out(self) -> str:
        """Pairs that are too long, in words."""
        return f"{self.num_left_out:,} of {self.store.num_documents:,} pairs, too long" * bool(self.num_left_out)

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        left_out = f", {self.num_left_out:,} left out" if self.num_left_out else ""
        return [f"{len(self):,} pairs of {'-'.join(self.languages)}{left_out}", f"max_length={self.max_length}"]

    def examples(self, indices: np.ndarray) -> TextExamples:
        """References to pairs; no text is read."""
        keys = example_keys(self.seed, self.draw, indices)
        second_first = uniforms(keys, RandomStream.SIDE_ORDER, 0) < 0.5
        # Column 0 is the side that comes first.
        sides = np.stack([second_first, ~second_first], axis=1).astype(np.int64)
        sentences = (self.first_sentences[indices][:, None] + sides).ravel()
        begin, end = self.corpus.sentence_offsets[sentences], self.corpus.sentence_offsets[sentences + 1]
        counts = np.full(len(indices), SIDES)
        segments = Segments(self.corpus.tokens, self.corpus.word_starts, begin, end, counts)
        return TextExamples(segments, keys, languages=np.array(self.languages)[sides.ravel()], restarts=True)

    def _fitting_pairs(self) -> np.ndarray:
        """The first sentence of every pair that fits, `(pairs,)`."""
        sizes = np.diff(self.corpus.document_offsets)
        if sizes.max(initial=0) > SIDES:
            raise ValueError(
                f"documents: document {sizes.argmax()} has {sizes.max()} sentences, and a pair has two: prepare the "
                "text with hf-encoders corpus --parallel (prepare_parallel_corpus)."
            )
        first = self.corpus.document_offsets[:-1][sizes == SIDES]
        lengths = np.diff(self.corpus.sentence_offsets)
        lengths = np.stack([lengths[first], lengths[first + 1]], axis=1)
        fits = lengths.sum(axis=1) + SPECIAL_TOKENS_OF_PARALLEL_PAIR <= self.max_length
        if self.max_sentence_length is not None:
            fits &= lengths.max(axis=1, initial=0) <= self.max_sentence_length
        if not fits.any():
            raise ValueError(
                f"max_length={self.max_length} and max_sentence_length={self.max_sentence_length} leave out all "
                f"{self.store.num_documents:,} pairs of documents: raise them, or give more text."
            )
        return first[fits]
