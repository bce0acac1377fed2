"""Masking for the MLM objective, vectorised over a batch of flat tokens.

15 % of the tokens are predicted; of those, 80 % are replaced by the mask token, 10 % by a random token and 10 % stay
(BERT, section 3.1). By default special tokens are neither counted, masked nor put in as random tokens; the number of
predictions is rounded at random, so that its mean is the rate in short examples too; and long words are chosen as
often as short ones. What the papers' code does instead is an option each; `paper_modes.py` puts them together.

Leaves out: which tokens begin a word (`word_starts.py`), and the drawing of units up to a quota (`mask_units.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.batches import IGNORED
from hf_encoders.data.mask_units import choose_runs, choose_units, draw_tokens
from hf_encoders.data.ragged import offsets_of, ranges
from hf_encoders.data.randomness import (
    RandomStream,
    as_uniforms,
    random_bits_of_rows,
    random_uint32_in_runs,
    uniforms,
)
from hf_encoders.data.special_tokens import mask_and_padding, never_masked
from hf_encoders.data.word_starts import WordStarts


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen and replaced.

    Args:
        mask_probability (`float`): share of the tokens that is predicted, in (0, 1].
        mask_replace_probability (`float`): share of those replaced by the mask token, in [0, 1].
        random_replace_probability (`float`): share of those replaced by a random token; the rest stays.
        unit (`str`): what is chosen as a whole: `"token"`; `"word"` (all pieces of a word: BERT's whole-word masking);
            `"ngram"` (n words in a row with probability proportional to 1/n: ALBERT, section 3.1); `"span"` (a
            geometrically distributed number of words in a row: SpanBERT, section 3.1).
        quota (`str`): how many tokens that is: `"rounded"`, the share rounded up or down at random, so that it is
            right on average; `"nearest"`, rounded to the nearest, halves to even; `"bernoulli"`, a coin is thrown for
            every token or word, so that an example may have any number.
        at_least_one (`bool`): whether the quota of an example is at least one token. (A word of several may not fit.)
        max_predictions (`int`, *optional*): most predictions in an example; `None` sets no limit.
        pass_over_long_words (`bool`): what becomes of a word longer than what is left of the quota. False chooses it
            with a probability of what is left over its length, and then ends: the quota is met on average, and words
            of all lengths are alike. True takes shorter words instead: the quota is never exceeded (the original
            code; always so with `max_predictions`). N-grams and spans are shortened to what is left.
        replacement_per (`str`): `"token"` decides for every token what becomes of it (BERT, ALBERT), `"unit"` once for
            the whole word, n-gram or span (fairseq, SpanBERT). Random tokens are drawn for each token either way.
        max_ngram (`int`): most words in an n-gram; 3 in ALBERT. N-grams and spans do not overlap, so that shares above
            a half are not reached with them.
        span_end_probability (`float`): probability in (0, 1) that a span ends after each word; 0.2 in SpanBERT.
        max_span (`int`): most words in a span; 10 in SpanBERT, which makes 3.8 on average.
        word_starts (`Callable`): called with the tokenizer, gives what tells word beginnings: see `WordStarts`. A
            corpus with a column `word_starts` has them already, and this is not asked.
        units_cross_separators (`bool`): whether a word or n-gram may go on behind a special token.
        count_special_tokens (`bool`): whether special tokens count in what the quota is a share of.
        mask_special_tokens (`bool`): whether special tokens are predicted like others.
        quota_in_units (`bool`): whether the quota is a share of the words, not of the tokens.
        random_tokens (`str`): what random tokens are drawn from: `"ordinary"`, all but special ones and the
            unknown token; `"ordinary_and_mask"`; `"any"`, the whole vocabulary.

    Raises:
        ValueError: for a value out of range, and for options that exclude each other.
    """

    mask_probability: float = 0.15
    mask_replace_probability: float = 0.8
    random_replace_probability: float = 0.1
    unit: str = "token"
    quota: str = "rounded"
    at_least_one: bool = True
    max_predictions: int | None = None
    pass_over_long_words: bool = False
    replacement_per: str = "token"
    max_ngram: int = 3
    span_end_probability: float = 0.2
    max_span: int = 10
    word_starts: Callable[[PreTrainedTokenizerBase], Callable[[np.ndarray, np.ndarray], np.ndarray]] = WordStarts
    units_cross_separators: bool = False
    count_special_tokens: bool = False
    mask_special_tokens: bool = False
    quota_in_units: bool = False
    random_tokens: str = "ordinary"

    def __post_init__(self):
        for name, choices in (
            ("unit", ("token", "word", "ngram", "span")),
            ("quota", ("rounded", "nearest", "bernoulli")),
            ("replacement_per", ("token", "unit")),
            ("random_tokens", ("ordinary", "ordinary_and_mask", "any")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known: use one of {', '.join(choices)}.")
        if not 0 < self.mask_probability <= 1:
            raise ValueError(f"mask_probability={self.mask_probability} must be in (0, 1]; the papers use 0.15.")
        replaced = self.mask_replace_probability, self.random_replace_probability
        if not (min(replaced) >= 0 and sum(replaced) <= 1 + 1e-9):
            raise ValueError(
                f"mask_replace_probability={replaced[0]} and random_replace_probability={replaced[1]} must be "
                "probabilities with a sum of at most 1; the papers use 0.8 and 0.1."
            )
        for name in ("max_predictions", "max_ngram", "max_span"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name}={value} must be a whole number of at least 1.")
        if not 0 < self.span_end_probability < 1:
            raise ValueError(f"span_end_probability={self.span_end_probability} must be in (0, 1); SpanBERT uses 0.2.")
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Refuse what would have no effect or contradict itself."""
        counts_words = self.quota_in_units or self.quota == "bernoulli"
        for is_wrong, message in (
            (
                self.quota == "bernoulli" and self.unit in ("ngram", "span"),
                f"quota='bernoulli' throws a coin for tokens or words, not for unit={self.unit!r}.",
            ),
            (
                self.max_predictions is not None and counts_words and self.unit != "token",
                f"max_predictions={self.max_predictions} counts tokens, and the quota counts words here: leave out "
                "max_predictions, or quota_in_units=True and quota='bernoulli'.",
            ),
            (
                self.quota_in_units and self.unit == "token",
                "quota_in_units=True counts words, and unit='token' knows none: use unit='word', or leave it out.",
            ),
            (self.max_ngram != 3 and self.unit != "ngram", f"max_ngram={self.max_ngram} needs unit='ngram'."),
            (
                (self.max_span, self.span_end_probability) != (10, 0.2) and self.unit != "span",
                f"max_span={self.max_span} and span_end_probability={self.span_end_probability} need unit='span'.",
            ),
        ):
            if is_wrong:
                raise ValueError(message)

    def run_size_probabilities(self) -> np.ndarray:
        """Probabilities of runs of 1, 2, ... words.

        >>> (Masking(unit="ngram").run_size_probabilities() * 11).round(6).tolist()
        [6.0, 3.0, 2.0]
        >>> float((Masking(unit="span").run_size_probabilities() * np.arange(1, 11)).sum().round(2))
        3.8
        """
        if self.unit == "ngram":
            weights = 1 / np.arange(1, self.max_ngram + 1)
        elif self.unit == "span":
            weights = (1 - self.span_end_probability) ** np.arange(self.max_span)
        else:
            weights = np.ones(1)
        return weights / weights.sum()


class MaskedTokens(NamedTuple):
    """Flat tokens after masking.

    Args:
        ids (`np.ndarray` of the type given, shape `(N,)`): with replacements.
        rows (`np.ndarray` of `int64`, shape `(P,)`): example of each predicted token; they are in no particular order.
        places (`np.ndarray` of `int64`, shape `(P,)`): where they stand among the flat tokens.
        originals (`np.ndarray` of `int64`, shape `(P,)`): what stood there.
    """

    ids: np.ndarray
    rows: np.ndarray
    places: np.ndarray
    originals: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """The original id where a token is predicted, -100 elsewhere; `int64` of shape `(N,)`."""
        labels = np.full(len(self.ids), IGNORED, dtype=np.int64)
        labels[self.places] = self.originals
        return labels


class TokenMasker:
    """Masks flat tokens of a batch.

    Args:
        tokenizer: gives the vocabulary, the special tokens and what a word is.
        options: the arguments of `Masking`.

    Raises:
        ValueError: as `Masking`; if the tokenizer has no mask token, or its words are not known for a unit of words.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, **options: Any):
        self.masking = Masking(**options)
        self.mask_id, _ = mask_and_padding(tokenizer)
        ids = np.array(sorted(tokenizer.get_vocab().values()))
        self.is_ordinary = np.zeros(ids[-1] + 1, dtype=bool)  # vocabularies may have gaps
        self.is_ordinary[ids] = True
        self.is_ordinary[never_masked(tokenizer)] = False
        special = tokenizer.all_special_ids
        self.random_ids = {
            "ordinary": np.setdiff1d(ids, special),
            "ordinary_and_mask": np.setdiff1d(ids, [i for i in special if i != self.mask_id]),
            "any": ids,
        }[self.masking.random_tokens]
        self.word_starts = self.masking.word_starts(tokenizer) if self.masking.unit != "token" else None
        self.run_sizes = np.cumsum(self.masking.run_size_probabilities())[:-1]

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
            ids (`np.ndarray` of integers, shape `(N,)`): token ids of all examples, one after the other.
            lengths (`np.ndarray` of `int64`, shape `(B,)`): tokens of each example.
            keys (`np.ndarray` of `uint64`, shape `(B,)`): key of each example's draws.
            word_starts (`np.ndarray` of `uint8`, shape `(N,)`, *optional*): 1 where a token begins a word; values at
                special tokens do not matter.
            mask_probability (`float`, *optional*): instead of that of `Masking`. A lower one predicts the first of the
                same random order.

        Raises:
            ValueError: if an id is not in the vocabulary.
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self.is_ordinary):
            raise ValueError(
                f"input_ids: ids from {ids.min()} to {ids.max()}, but those of the tokenizer go from 0 to "
                f"{len(self.is_ordinary) - 1}: give the collator the tokenizer that the corpus was made with."
            )
        rate = self.masking.mask_probability if mask_probability is None else mask_probability
        is_candidate = np.ones(len(ids), bool) if self.masking.mask_special_tokens else self.is_ordinary.take(ids)
        if self.masking.unit == "token":
            chosen = self._choose_tokens(is_candidate, lengths, keys, rate)
        else:
            words = self._words(ids, np.flatnonzero(is_candidate), lengths, word_starts)
            chosen = self._choose_words(words, lengths, keys, rate)
        return self._replace(ids, chosen, lengths, keys)

    def _choose_tokens(self, is_candidate: np.ndarray, lengths: np.ndarray, keys: np.ndarray, rate: float) -> "Chosen":
        counts = np.add.reduceat(is_candidate, offsets_of(lengths)[:-1], dtype=np.int64)
        if self.masking.quota == "bernoulli":
            draws = random_uint32_in_runs(keys, RandomStream.MASK_CHOICE, lengths)
            quotas = self._quotas(rate, counts, counts, lengths, keys, heads(draws, rate, lengths, is_candidate))
            runs = choose_units(draws, lengths, quotas, allowed=is_candidate)
        else:
            quotas = np.minimum(self._quotas(rate, counts, counts, lengths, keys), counts)
            runs = draw_tokens(keys, lengths, quotas, is_candidate)
        return Chosen(runs.rows, runs.first, runs.first)

    def _choose_words(self, words: "Words", lengths: np.ndarray, keys: np.ndarray, rate: float) -> "Chosen":
        """Words, n-grams or spans."""
        first_places = words.places[words.first]
        draws = random_uint32_in_runs(keys, RandomStream.MASK_CHOICE, lengths)[first_places]
        is_bernoulli = self.masking.quota == "bernoulli"
        tossed = heads(draws, rate, words.counts) if is_bernoulli else None
        quotas = self._quotas(rate, words.counts, words.token_counts, lengths, keys, tossed)
        counts_words = self.masking.quota_in_units or is_bernoulli
        word_lengths = np.ones_like(words.first) if counts_words else words.lengths
        if self.masking.unit == "word":
            passes_over = self.masking.pass_over_long_words or self.masking.max_predictions is not None
            coins = None if passes_over else uniforms(keys, RandomStream.MASK_LAST_WORD, 0)
            runs = choose_units(draws, words.counts, quotas, word_lengths, coins=coins)
        else:
            sizes = as_uniforms(random_uint32_in_runs(keys, RandomStream.MASK_RUN_LENGTH, lengths)[first_places])
            sizes = 1 + np.searchsorted(self.run_sizes, sizes, "right")
            runs = choose_runs(draws, words.counts, quotas, word_lengths, sizes, words.limits())
        bounds = np.append(words.first, len(words.places))
        begin, end = bounds[runs.first], bounds[runs.end]
        places, sizes = words.places[ranges(begin, end)], end - begin
        return Chosen(np.repeat(runs.rows, sizes), places, np.repeat(words.places[begin], sizes))

    def _words(
        self, ids: np.ndarray, places: np.ndarray, lengths: np.ndarray, word_starts: np.ndarray | None
    ) -> "Words":
        of_rows = np.searchsorted(places, offsets_of(lengths))
        begins_text = np.zeros(len(places) + 1, dtype=bool)
        begins_text[of_rows] = True
        begins_text = begins_text[:-1]
        if not self.masking.units_cross_separators:
            begins_text[1:] |= np.diff(places) > 1
        if word_starts is None:
            starts = self.word_starts(ids[places], begins_text)
        else:
            starts = (word_starts[places] != 0) | begins_text
        first = np.flatnonzero(starts)
        counts = np.diff(np.searchsorted(first, of_rows))
        return Words(places, first, counts, np.diff(of_rows), np.flatnonzero(begins_text))

    def _quotas(
        self,
        rate: float,
        num_units: np.ndarray,
        num_tokens: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        num_heads: np.ndarray | None = None,
    ) -> np.ndarray:
        """How many tokens or words to predict in each example; `num_heads` where a coin is tossed for each."""
        masking = self.masking
        counted = num_units if masking.quota_in_units else lengths if masking.count_special_tokens else num_tokens
        if num_heads is not None:
            most = num_heads
        elif masking.quota == "rounded":
            most = np.floor(counted * rate + uniforms(keys, RandomStream.MASK_COUNT, 0))
        else:
            most = np.rint(counted * rate)
        most = np.maximum(most, int(masking.at_least_one))
        return np.minimum(most, masking.max_predictions or np.inf).clip(max=lengths).astype(np.int64)

    def _replace(self, ids: np.ndarray, chosen: "Chosen", lengths: np.ndarray, keys: np.ndarray) -> MaskedTokens:
        """80/10/10, for each predicted token or for each run of them."""
        masking = self.masking
        rows, places = chosen.rows, chosen.places
        row_begin = offsets_of(lengths)[rows]
        # Half of the bits decide, the other half draws a token.
        bits = random_bits_of_rows(keys, RandomStream.REPLACEMENT, rows, places - row_begin)
        decided_by = bits
        if masking.replacement_per == "unit":
            decided_by = random_bits_of_rows(keys, RandomStream.UNIT_REPLACEMENT, rows, chosen.run_places - row_begin)
        decision = as_uniforms((decided_by >> np.uint64(32)).astype(np.uint32))
        becomes_mask = decision < masking.mask_replace_probability
        changes = decision < masking.mask_replace_probability + masking.random_replace_probability
        becomes_random = np.flatnonzero(changes & ~becomes_mask)
        drawn = as_uniforms(bits[becomes_random].astype(np.uint32)) * len(self.random_ids)

        masked = ids.copy()
        originals = masked[places]
        replacements = np.where(becomes_mask, self.mask_id, originals)
        replacements[becomes_random] = self.random_ids[drawn.astype(np.int64)]
        masked[places] = replacements
        return MaskedTokens(masked, rows, places, originals)


def heads(draws: np.ndarray, rate: float, counts: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """How many of each example's `counts` draws are below `rate`, of those allowed."""
    is_head = as_uniforms(draws) < rate
    found = np.flatnonzero(is_head if allowed is None else is_head & allowed)
    return np.diff(np.searchsorted(found, offsets_of(counts)))


class Words(NamedTuple):
    """Words of all examples, one after the other.

    Args:
        places (`np.ndarray` of `int64`, shape `(C,)`): where the tokens that may be predicted stand in the batch.
        first (`np.ndarray` of `int64`, shape `(U,)`): index in `places` of each word's first token.
        counts, token_counts (`np.ndarray` of `int64`, shape `(B,)`): words, and tokens in them, of each example.
        texts (`np.ndarray` of `int64`): indices in `places` where a run of words may not go on.
    """

    places: np.ndarray
    first: np.ndarray
    counts: np.ndarray
    token_counts: np.ndarray
    texts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each word, `(U,)`."""
        return np.diff(np.append(self.first, len(self.places)))

    def limits(self) -> np.ndarray:
        """The word that a run beginning at each word ends before, `(U,)`."""
        begins = np.append(np.searchsorted(self.first, self.texts), len(self.first))
        return begins[np.searchsorted(begins, np.arange(len(self.first)), "right")]


class Chosen(NamedTuple):
    """Predicted tokens: example, place in the batch, place of the first token of the same run."""

    rows: np.ndarray
    places: np.ndarray
    run_places: np.ndarray
