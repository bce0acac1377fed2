"""Masks the flat tokens of a batch: which are predicted, as `Masking` says, vectorised over all examples."""

from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.ragged import offsets_of, ranges
from hf_encoders.corpus.randomness import RandomStream, as_uniforms, integers_below, random_uint32_in_runs, uniforms
from hf_encoders.corpus.similar_words import SimilarWords
from hf_encoders.corpus.special_tokens import never_masked
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.objectives.batches import IGNORED
from hf_encoders.objectives.mask_replacement import TokenReplacement
from hf_encoders.objectives.mask_units import (
    choose_by_weight,
    choose_in_window,
    choose_runs,
    choose_units,
    sample_tokens,
)
from hf_encoders.objectives.masking import Masking


# Options of `hf-encoders corpus` that mark units longer than words.
PREPARED_BY = {"phrase": "--phrases", "entity": "--lexicon FILE"}


class MaskedTokens(NamedTuple):
    """N flat tokens after masking; the P predicted ones come in no particular order."""

    ids: np.ndarray  # with replacements, (N,)
    rows: np.ndarray  # example of each predicted token, int64 of shape (P,)
    positions: np.ndarray  # of the predicted tokens among the flat tokens, (P,)
    originals: np.ndarray  # their ids before masking, (P,)

    @property
    def labels(self) -> np.ndarray:
        """The original id where a token is predicted, -100 elsewhere; `int64` of shape `(N,)`."""
        labels = np.full(len(self.ids), IGNORED, dtype=np.int64)
        labels[self.positions] = self.originals
        return labels


class TokenMasker:
    """Masks flat tokens of a batch.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives vocabulary and words.
        token_counts (`np.ndarray` of integers, shape `(V,)`, *optional*): Of each token in the corpus, at least 0;
            for `frequency_power`. `hf_encoders.corpus.report.token_counts` counts them.
        similar_words (`SimilarWords`, *optional*): For `similar_replace_probability`.
        options: Those of `Masking`.

    Raises:
        ValueError: as `Masking`; and if the options need counts or similar words that are missing, or these are of
            another tokenizer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        token_counts: np.ndarray | None = None,
        similar_words: SimilarWords | None = None,
        **options: Any,
    ):
        self.masking = Masking(**options)
        ids = np.array(sorted(tokenizer.get_vocab().values()))
        self.is_ordinary = np.zeros(ids[-1] + 1, dtype=bool)  # vocabularies may have gaps
        self.is_ordinary[ids] = True
        self.is_ordinary[never_masked(tokenizer)] = False
        self.replacement = TokenReplacement(tokenizer, self.masking, similar_words)
        # A column of the corpus comes before the tokenizer's words; it alone has longer units.
        has_words = "word" in self.masking.levels or self.masking.replacement_per == "word"
        self.word_starts = self.masking.word_starts(tokenizer) if has_words else None
        self.run_sizes = np.cumsum(self.masking.run_size_probabilities())[:-1]
        self.rarities = None
        if self.masking.frequency_power is not None:
            self.rarities = self._rarities(token_counts) ** self.masking.frequency_power

    def __call__(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        word_starts: np.ndarray | None = None,
        mask_probability: float | None = None,
    ) -> MaskedTokens:
        """Choose tokens to predict and replace them.

        Args:
            ids (`np.ndarray` of integers, shape `(N,)`): Token ids of all examples, concatenated.
            lengths (`np.ndarray` of `int64`, shape `(B,)`): Tokens of each example.
            keys (`np.ndarray` of `uint64`, shape `(B,)`): Key of each example.
            word_starts (`np.ndarray` of `uint8`, shape `(N,)`, *optional*): Bits of `UnitStart`: what each token
                begins; values at special tokens do not matter.
            mask_probability (`float`, *optional*): Instead of that of `Masking`. A lower one predicts the first tokens
                of the same random order.

        Raises:
            ValueError: for ids of another tokenizer, and for units that the corpus does not have.
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self.is_ordinary):
            raise ValueError(
                f"input_ids: ids from {ids.min()} to {ids.max()}, but those of the tokenizer go from 0 to "
                f"{len(self.is_ordinary) - 1}: give the collator the tokenizer that the corpus was made with."
            )
        rate = self.masking.mask_probability if mask_probability is None else mask_probability
        is_candidate = np.ones(len(ids), bool) if self.masking.mask_special_tokens else self.is_ordinary.take(ids)
        if self.masking.levels == {"token": 1.0}:
            chosen = self._choose_tokens(ids, is_candidate, lengths, keys, rate)
        else:
            units = self._units(ids, np.flatnonzero(is_candidate), lengths, keys, word_starts)
            chosen = self._choose_units(units, lengths, keys, rate)
        originals = ids[chosen.positions]
        masked = ids.copy()
        row_begins = offsets_of(lengths)[chosen.rows]
        places, decided_at = chosen.positions - row_begins, chosen.decided_at - row_begins
        masked[chosen.positions] = self.replacement(originals, chosen.rows, places, decided_at, keys)
        return MaskedTokens(masked, chosen.rows, chosen.positions, originals)

    def _rarities(self, token_counts: np.ndarray | None) -> np.ndarray:
        """Counts of all ids, at least 1."""
        size = len(self.is_ordinary)
        counts = None if token_counts is None else np.asarray(token_counts)
        is_fit = counts is not None and counts.dtype.kind in "iuf" and counts.ndim == 1 and len(counts) >= size
        if not is_fit or not np.all(counts >= 0):
            what = "missing" if counts is None else f"{counts.dtype} of shape {counts.shape}"
            raise ValueError(
                f"token_counts is {what}: frequency_power={self.masking.frequency_power} needs a count of at least 0 "
                f"for each of the {size} ids, from hf_encoders.corpus.report.token_counts(corpus, {size})."
            )
        return np.maximum(counts, 1).astype(np.float64)

    def _choose_tokens(
        self, ids: np.ndarray, is_candidate: np.ndarray, lengths: np.ndarray, keys: np.ndarray, rate: float
    ) -> "Chosen":
        counts = np.add.reduceat(is_candidate, offsets_of(lengths)[:-1], dtype=np.int64)
        if self.masking.num_masked == "bernoulli":
            draws = random_uint32_in_runs(keys, RandomStream.MASK_CHOICE, lengths)
            limits = self._bounded(_num_below(draws, rate, lengths, is_candidate), lengths)
            runs = choose_units(draws, lengths, limits, allowed=is_candidate)
        else:
            limits = np.minimum(self._num_to_mask(rate, counts, counts, lengths, keys), counts)
            if self.rarities is None:
                runs = sample_tokens(keys, lengths, limits, is_candidate)
            else:
                draws = random_uint32_in_runs(keys, RandomStream.MASK_CHOICE, lengths)
                runs = choose_by_weight(draws, self.rarities.take(ids), lengths, limits, is_candidate)
        return Chosen(runs.rows, runs.first, runs.first)

    def _choose_units(self, units: "Units", lengths: np.ndarray, keys: np.ndarray, rate: float) -> "Chosen":
        """Words and longer units, n-grams or spans."""
        masking, first_tokens = self.masking, units.positions[units.first]
        draws = random_uint32_in_runs(keys, RandomStream.MASK_CHOICE, lengths)[first_tokens]
        if masking.num_masked == "bernoulli":
            limits = self._bounded(_num_below(draws, rate, units.counts), lengths)
        else:
            limits = self._num_to_mask(rate, units.counts, units.token_counts, lengths, keys)
        if masking.unit in ("ngram", "span"):
            unit_lengths = np.ones_like(units.first) if masking.counts_words else units.lengths
            sizes = as_uniforms(random_uint32_in_runs(keys, RandomStream.MASK_RUN_LENGTH, lengths)[first_tokens])
            sizes = 1 + np.searchsorted(self.run_sizes, sizes, "right")
            runs = choose_runs(draws, units.counts, limits, unit_lengths, sizes, units.text_ends())
        elif masking.counts_words:
            runs = choose_units(draws, units.counts, limits)
        elif masking.pass_over_long_words or masking.max_predictions is not None:
            runs = choose_units(draws, units.counts, limits, units.lengths)
        else:
            starts = integers_below(keys, RandomStream.MASK_WINDOW, 0, units.token_counts)
            runs = choose_in_window(draws, units.counts, limits, units.lengths, starts)
        bounds = np.append(units.first, len(units.positions))
        begin, end = bounds[runs.first], bounds[runs.end]
        chosen, sizes = ranges(begin, end), end - begin
        if units.word_of is None:
            decided_at = np.repeat(units.positions[begin], sizes)
        else:
            decided_at = units.positions[units.word_of[chosen]]
        return Chosen(np.repeat(runs.rows, sizes), units.positions[chosen], decided_at)

    def _units(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        word_starts: np.ndarray | None,
    ) -> "Units":
        of_rows = np.searchsorted(positions, offsets_of(lengths))
        begins_text = np.zeros(len(positions) + 1, dtype=bool)
        begins_text[of_rows] = True
        begins_text = begins_text[:-1]
        if not self.masking.units_cross_separators:
            begins_text[1:] |= np.diff(positions) > 1
        token_ids = ids[positions]
        column = None if word_starts is None else word_starts[positions]
        levels = self.masking.levels
        if len(levels) == 1:
            starts = self._starts(*levels, token_ids, begins_text, column)
        else:
            draws = uniforms(keys, RandomStream.MASK_LEVEL, 0)
            drawn = np.searchsorted(np.cumsum(list(levels.values()))[:-1], draws, "right")
            of_tokens = np.repeat(drawn, np.diff(of_rows))
            of_levels = [self._starts(level, token_ids, begins_text, column) for level in levels]
            starts = np.choose(of_tokens, of_levels)
        word_of = None
        if self.masking.replacement_per == "word":
            is_word = starts if "word" in levels else starts | self._starts("word", token_ids, begins_text, column)
            word_of = np.maximum.accumulate(np.where(is_word, np.arange(len(positions)), 0))
        first = np.flatnonzero(starts)
        counts = np.diff(np.searchsorted(first, of_rows))
        return Units(positions, first, counts, np.diff(of_rows), np.flatnonzero(begins_text), word_of)

    def _starts(self, level: str, ids: np.ndarray, begins_text: np.ndarray, column: np.ndarray | None) -> np.ndarray:
        """Where tokens begin a unit of a level, `bool` of shape `(C,)`; `column` has the corpus's bits."""
        if level == "token":
            return np.ones(len(ids), dtype=bool)
        if level == "word" and column is None:
            return self.word_starts(ids, begins_text)
        bit = UnitStart[level.upper()]
        starts = np.zeros(len(ids), dtype=bool) if column is None else (column & bit) != 0
        if level in PREPARED_BY and len(ids) and not starts.any():
            raise ValueError(
                f"unit={level!r}: the corpus does not say where one begins: prepare it with `hf-encoders corpus "
                f"{PREPARED_BY[level]}`, or choose words."
            )
        # A special token that is predicted is a unit of its own.
        return starts | begins_text | ~self.is_ordinary.take(ids)

    def _num_to_mask(
        self, rate: float, num_words: np.ndarray, num_tokens: np.ndarray, lengths: np.ndarray, keys: np.ndarray
    ) -> np.ndarray:
        """Number of tokens or words to mask in each example."""
        masking = self.masking
        counted = num_words if masking.share_of_words else lengths if masking.count_special_tokens else num_tokens
        if masking.num_masked == "nearest":
            return self._bounded(np.rint(counted * rate), lengths)
        return self._bounded(np.floor(counted * rate + uniforms(keys, RandomStream.MASK_COUNT, 0)), lengths)

    def _bounded(self, numbers: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        numbers = np.maximum(numbers, int(self.masking.at_least_one))
        return np.minimum(numbers, self.masking.max_predictions or np.inf).clip(max=lengths).astype(np.int64)


def _num_below(draws: np.ndarray, rate: float, counts: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """How many of each example's `counts` draws are below `rate`, of those allowed."""
    is_below = as_uniforms(draws) < rate
    found = np.flatnonzero(is_below if allowed is None else is_below & allowed)
    return np.diff(np.searchsorted(found, offsets_of(counts)))


class Units(NamedTuple):
    """U units of all B examples, concatenated: words, or what is chosen instead; all `int64`."""

    positions: np.ndarray  # in the batch, of the C tokens that may be predicted, (C,)
    first: np.ndarray  # index in `positions` of each unit's first token, (U,)
    counts: np.ndarray  # units of each example, (B,)
    token_counts: np.ndarray  # tokens in them, (B,)
    texts: np.ndarray  # indices in `positions` that a run of units may not cross
    word_of: np.ndarray | None  # index in `positions` of the first token of each token's word, (C,); None: not needed

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each unit, `(U,)`."""
        return np.diff(np.append(self.first, len(self.positions)))

    def text_ends(self) -> np.ndarray:
        """The unit before which a run that begins at each unit ends, `(U,)`."""
        begins = np.append(np.searchsorted(self.first, self.texts), len(self.first))
        return begins[np.searchsorted(begins, np.arange(len(self.first)), "right")]


class Chosen(NamedTuple):
    """Predicted tokens: example, position in the batch, position of the token that decides what becomes of them."""

    rows: np.ndarray
    positions: np.ndarray
    decided_at: np.ndarray
