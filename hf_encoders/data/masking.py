"""Masking for the MLM objective, vectorised over a batch of flat tokens.

15 % of the tokens are predicted; of those, 80 % are replaced by the mask token, 10 % by a random token and 10 % stay
(BERT, section 3.1). By default special tokens are neither counted, masked nor used as random tokens; the number to
mask is rounded up or down at random, so that its mean is the rate in short examples too; and long words are chosen as
often as short ones. Each deviation of the papers' code is an option; `presets.py` combines them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.batches import IGNORED
from hf_encoders.data.mask_units import choose_runs, choose_units, sample_tokens
from hf_encoders.data.ragged import offsets_of, ranges
from hf_encoders.data.randomness import RandomStream, as_uniforms, random_bits_of_rows, random_uint32_in_runs, uniforms
from hf_encoders.data.special_tokens import mask_and_padding, never_masked
from hf_encoders.data.word_starts import WordStarts


SAME_RATE = 0.005  # difference of two mask rates that is rounding, and sampling of few examples


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen and replaced.

    Args:
        mask_probability (`float`, *optional*, defaults to 0.15): Share of the tokens to predict, in (0, 1].
        mask_replace_probability (`float`, *optional*, defaults to 0.8): Share of those that become the mask token.
        random_replace_probability (`float`, *optional*, defaults to 0.1): Share that becomes a random token; the rest
            stays.
        unit (`str`, *optional*, defaults to `"token"`): What is chosen as a whole: `"token"`; `"word"` (all tokens of
            a word: BERT's whole-word masking); `"ngram"` (n consecutive words with probability proportional to 1/n:
            ALBERT, section 3.1); `"span"` (a geometrically distributed number of words: SpanBERT, section 3.1).
        num_masked (`str`, *optional*, defaults to `"rounded"`): Number to mask in an example: `"rounded"`, the share,
            rounded up or down at random so that it is right on average; `"nearest"`, rounded half to even;
            `"bernoulli"`, each token or word independently.
        at_least_one (`bool`, *optional*, defaults to `True`): Whether that number is at least one.
        max_predictions (`int`, *optional*): Most predicted tokens in an example.
        pass_over_long_words (`bool`, *optional*, defaults to `False`): False chooses a word longer than what is left
            with a probability of what is left over its length, as the last one: the number is right on average, and
            words of all lengths are equally frequent. True chooses shorter words instead: the number is never exceeded
            (the original code; always with `max_predictions`). N-grams and spans are shortened to what is left.
        replacement_per (`str`, *optional*, defaults to `"token"`): `"token"` decides for every token what becomes of
            it (BERT, ALBERT), `"unit"` once for the whole unit (fairseq, SpanBERT).
        max_ngram (`int`, *optional*, defaults to 3): Most words in an n-gram. N-grams and spans do not overlap, so
            shares above a half are not reached.
        span_end_probability (`float`, *optional*, defaults to 0.2): Probability in (0, 1) that a span ends after a
            word.
        max_span (`int`, *optional*, defaults to 10): Most words in a span; the mean length is 3.8.
        word_starts (`Callable`, *optional*): Makes of the tokenizer a function that finds the first tokens of words;
            see `WordStarts`. Not used for a corpus with a column `word_starts`.
        units_cross_separators (`bool`, *optional*, defaults to `False`): Whether words and n-grams continue behind a
            special token.
        count_special_tokens (`bool`, *optional*, defaults to `False`): Whether `mask_probability` is a share of all
            tokens, special ones included.
        mask_special_tokens (`bool`, *optional*, defaults to `False`): Whether special tokens are predicted too.
        share_of_words (`bool`, *optional*, defaults to `False`): Whether `mask_probability` is a share of the words.
        random_tokens (`str`, *optional*, defaults to `"ordinary"`): Vocabulary of random tokens: `"ordinary"`, all
            but special ones and the unknown token; `"ordinary_and_mask"`; `"any"`.

    Options that exclude each other are refused (`_check_combinations`).
    """

    mask_probability: float = 0.15
    mask_replace_probability: float = 0.8
    random_replace_probability: float = 0.1
    unit: str = "token"
    num_masked: str = "rounded"
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
    share_of_words: bool = False
    random_tokens: str = "ordinary"

    def __post_init__(self):
        for name, choices in (
            ("unit", ("token", "word", "ngram", "span")),
            ("num_masked", ("rounded", "nearest", "bernoulli")),
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
        if self.unit != "ngram" and self.max_ngram != 3:
            raise ValueError(f"max_ngram={self.max_ngram} needs unit='ngram'.")
        if self.unit != "span" and (self.max_span, self.span_end_probability) != (10, 0.2):
            raise ValueError(
                f"max_span={self.max_span} and span_end_probability={self.span_end_probability} need unit='span'."
            )
        if self.unit == "token" and self.share_of_words:
            raise ValueError("share_of_words=True needs unit='word', 'ngram' or 'span': set it, or leave it out.")
        if self.unit in ("ngram", "span") and self.num_masked == "bernoulli":
            raise ValueError(f"num_masked='bernoulli' samples tokens or words, not unit={self.unit!r}.")
        if self.unit != "token" and self.counts_words and self.max_predictions is not None:
            raise ValueError(
                f"max_predictions={self.max_predictions} counts tokens, but share_of_words=True and "
                "num_masked='bernoulli' count words: leave one of them out."
            )

    @property
    def counts_words(self) -> bool:
        """Whether the number to mask counts words, for units of words."""
        return self.share_of_words or self.num_masked == "bernoulli"

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
    """Masks flat tokens of a batch; the tokenizer gives vocabulary and words, `options` are those of `Masking`."""

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
            ids (`np.ndarray` of integers, shape `(N,)`): Token ids of all examples, concatenated.
            lengths (`np.ndarray` of `int64`, shape `(B,)`): Tokens of each example.
            keys (`np.ndarray` of `uint64`, shape `(B,)`): Key of each example.
            word_starts (`np.ndarray` of `uint8`, shape `(N,)`, *optional*): 1 where a token begins a word; values at
                special tokens do not matter.
            mask_probability (`float`, *optional*): Instead of that of `Masking`. A lower one predicts the first tokens
                of the same random order.
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
        if self.masking.num_masked == "bernoulli":
            draws = random_uint32_in_runs(keys, RandomStream.MASK_CHOICE, lengths)
            limits = self._bounded(_num_below(draws, rate, lengths, is_candidate), lengths)
            runs = choose_units(draws, lengths, limits, allowed=is_candidate)
        else:
            limits = np.minimum(self._num_to_mask(rate, counts, counts, lengths, keys), counts)
            runs = sample_tokens(keys, lengths, limits, is_candidate)
        return Chosen(runs.rows, runs.first, runs.first)

    def _choose_words(self, words: "Words", lengths: np.ndarray, keys: np.ndarray, rate: float) -> "Chosen":
        """Words, n-grams or spans."""
        masking, first_tokens = self.masking, words.positions[words.first]
        draws = random_uint32_in_runs(keys, RandomStream.MASK_CHOICE, lengths)[first_tokens]
        if masking.num_masked == "bernoulli":
            limits = self._bounded(_num_below(draws, rate, words.counts), lengths)
        else:
            limits = self._num_to_mask(rate, words.counts, words.token_counts, lengths, keys)
        word_lengths = np.ones_like(words.first) if masking.counts_words else words.lengths
        if masking.unit == "word":
            passes_over = masking.pass_over_long_words or masking.max_predictions is not None
            coins = None if passes_over else uniforms(keys, RandomStream.MASK_LAST_WORD, 0)
            runs = choose_units(draws, words.counts, limits, word_lengths, coins=coins)
        else:
            sizes = as_uniforms(random_uint32_in_runs(keys, RandomStream.MASK_RUN_LENGTH, lengths)[first_tokens])
            sizes = 1 + np.searchsorted(self.run_sizes, sizes, "right")
            runs = choose_runs(draws, words.counts, limits, word_lengths, sizes, words.text_ends())
        bounds = np.append(words.first, len(words.positions))
        begin, end = bounds[runs.first], bounds[runs.end]
        positions, sizes = words.positions[ranges(begin, end)], end - begin
        return Chosen(np.repeat(runs.rows, sizes), positions, np.repeat(words.positions[begin], sizes))

    def _words(
        self, ids: np.ndarray, positions: np.ndarray, lengths: np.ndarray, word_starts: np.ndarray | None
    ) -> "Words":
        of_rows = np.searchsorted(positions, offsets_of(lengths))
        begins_text = np.zeros(len(positions) + 1, dtype=bool)
        begins_text[of_rows] = True
        begins_text = begins_text[:-1]
        if not self.masking.units_cross_separators:
            begins_text[1:] |= np.diff(positions) > 1
        if word_starts is None:
            starts = self.word_starts(ids[positions], begins_text)
        else:
            starts = (word_starts[positions] != 0) | begins_text
        first = np.flatnonzero(starts)
        counts = np.diff(np.searchsorted(first, of_rows))
        return Words(positions, first, counts, np.diff(of_rows), np.flatnonzero(begins_text))

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

    def _replace(self, ids: np.ndarray, chosen: "Chosen", lengths: np.ndarray, keys: np.ndarray) -> MaskedTokens:
        """80/10/10, for each predicted token or for each unit."""
        masking = self.masking
        rows, positions = chosen.rows, chosen.positions
        row_begin = offsets_of(lengths)[rows]
        # The upper 32 bits decide what becomes of a token, the lower ones sample a random token.
        bits = random_bits_of_rows(keys, RandomStream.REPLACEMENT, rows, positions - row_begin)
        decided_by = bits
        if masking.replacement_per == "unit":
            first = chosen.unit_positions - row_begin
            decided_by = random_bits_of_rows(keys, RandomStream.UNIT_REPLACEMENT, rows, first)
        decision = as_uniforms((decided_by >> np.uint64(32)).astype(np.uint32))
        becomes_mask = decision < masking.mask_replace_probability
        changes = decision < masking.mask_replace_probability + masking.random_replace_probability
        becomes_random = np.flatnonzero(changes & ~becomes_mask)
        random_index = as_uniforms(bits[becomes_random].astype(np.uint32)) * len(self.random_ids)

        masked = ids.copy()
        originals = masked[positions]
        replacements = np.where(becomes_mask, self.mask_id, originals)
        replacements[becomes_random] = self.random_ids[random_index.astype(np.int64)]
        masked[positions] = replacements
        return MaskedTokens(masked, rows, positions, originals)


def _num_below(draws: np.ndarray, rate: float, counts: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """How many of each example's `counts` draws are below `rate`, of those allowed."""
    is_below = as_uniforms(draws) < rate
    found = np.flatnonzero(is_below if allowed is None else is_below & allowed)
    return np.diff(np.searchsorted(found, offsets_of(counts)))


class Words(NamedTuple):
    """U words of all B examples, concatenated; all `int64`."""

    positions: np.ndarray  # in the batch, of the C tokens that may be predicted, (C,)
    first: np.ndarray  # index in `positions` of each word's first token, (U,)
    counts: np.ndarray  # words of each example, (B,)
    token_counts: np.ndarray  # tokens in them, (B,)
    texts: np.ndarray  # indices in `positions` that a run of words may not cross

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each word, `(U,)`."""
        return np.diff(np.append(self.first, len(self.positions)))

    def text_ends(self) -> np.ndarray:
        """The word before which a run that begins at each word ends, `(U,)`."""
        begins = np.append(np.searchsorted(self.first, self.texts), len(self.first))
        return begins[np.searchsorted(begins, np.arange(len(self.first)), "right")]


class Chosen(NamedTuple):
    """Predicted tokens: example, position in the batch, position of the first token of the same unit."""

    rows: np.ndarray
    positions: np.ndarray
    unit_positions: np.ndarray


def describe_masking(masking: Masking, rates: Sequence[float], logged: float | None) -> str:
    """How tokens were masked, in words, for the model card.

    Args:
        masking (`Masking`): The options.
        rates (`Sequence[float]`): First and last rate of a schedule; empty for that of `masking`.
        logged (`float`, *optional*): Share of the tokens that were predicted. A limit, and special tokens that count,
            make it differ from the option.

    >>> describe_masking(Masking(max_predictions=20, unit="ngram"), (), 0.043)  # doctest: +NORMALIZE_WHITESPACE
    '4.3 % of the tokens (15 %, but at most 20 per example), chosen by ngram, of those 80 % [MASK], 10 % random,
    10 % kept'
    """
    replaced, random = 100 * masking.mask_replace_probability, 100 * masking.random_replace_probability
    kept = 100 - replaced - random
    rates = rates or [masking.mask_probability]
    rate = f"{' to '.join(f'{100 * one:.0f}' for one in rates)} %"
    limit = "" if masking.max_predictions is None else f"at most {masking.max_predictions} per example"
    special = ", special ones included" if masking.mask_special_tokens else ""
    if logged is None or min(rates) - SAME_RATE <= logged <= max(rates) + SAME_RATE:
        share = f"{rate} of the tokens{special}{limit and f', {limit}'}"
    else:
        meant = f"{rate}, but {limit}" if limit else f"{rate} requested"
        share = f"{100 * logged:.1f} % of the tokens{special} ({meant})"
    units = "" if masking.unit == "token" else f", chosen by {masking.unit}"
    return f"{share}{units}, of those {replaced:.0f} % [MASK], {random:.0f} % random, {kept:.0f} % kept"
