"""Options of masking for the MLM objective, and how they read on a card.

15 % of the tokens are predicted; of those, 80 % are replaced by the mask token, 10 % by a random token and 10 % stay
(BERT, section 3.1). By default special tokens are neither counted, masked nor used as random tokens; the number to
mask is rounded up or down at random, so that its mean is the rate in short examples too; and words of all lengths are
chosen equally often (but not in n-grams and spans). Each deviation of the papers' code is an option; `presets.py`
combines them, `masker.py` masks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.word_starts import WordStarts


SAME_RATE = 0.005  # difference of two mask rates that is rounding, and sampling of few examples
# Units that partition a text, and so may be mixed; n-grams and spans are runs of words.
LEVELS = ("token", "word", "phrase", "entity")


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen and replaced.

    Args:
        mask_probability (`float`, *optional*, defaults to 0.15): Share of the tokens to predict, in (0, 1].
        mask_replace_probability (`float`, *optional*, defaults to 0.8): Share of those that become the mask token.
        random_replace_probability (`float`, *optional*, defaults to 0.1): Share that becomes a random token; the rest
            stays.
        similar_replace_probability (`float`, *optional*, defaults to 0.0): Share of the words that become a similar
            word of as many tokens, each of the table's as likely (MacBERT, section 3.2). A word without one becomes a
            random word: any of the table with as many tokens, each as likely, or else random tokens. Needs
            `replacement_per="word"` and the collator's `similar_words`.
        unit (`str`, *optional*, defaults to `"token"`): What is chosen as a whole: `"token"`; `"word"` (all tokens of
            a word: BERT's whole-word masking); `"phrase"` and `"entity"` (those of a corpus prepared with them, and
            every other word: ERNIE, section 3.2); `"ngram"` (n consecutive words with probability proportional to 1/n:
            ALBERT, section 3.1); `"span"` (a geometrically distributed number of words: SpanBERT, section 3.1).
        units (`Mapping[str, float]`, *optional*): Instead of `unit`, probabilities of `"token"`, `"word"`, `"phrase"`
            and `"entity"`, drawn for each example: `{"word": 0.5, "entity": 0.5}`.
        num_masked (`str`, *optional*, defaults to `"rounded"`): Number to mask in an example: `"rounded"`, the share,
            rounded up or down at random so that it is right on average; `"nearest"`, rounded half to even;
            `"bernoulli"`, each token or word independently.
        at_least_one (`bool`, *optional*, defaults to `True`): Whether that number is at least one.
        max_predictions (`int`, *optional*): Most predicted tokens in an example.
        pass_over_long_words (`bool`, *optional*, defaults to `False`): False chooses every word with the same
            probability, whatever its length, that of phrases and entities too; the number to mask is met on average,
            and an example of few tokens and long words may have no prediction (`choose_in_window`). True never exceeds
            the number: it passes over a word longer than what is left, so that long words are rarer (the original
            code; always with `max_predictions`). No effect on n-grams and spans, which are shortened to what is left:
            long words are rarer in them.
        frequency_power (`float`, *optional*): In (0, 2]: tokens are sampled without replacement within an example with
            weights `max(count, 1) ** -frequency_power`, where count is that of the token in the corpus: rare ones more
            often (DistilBERT's `mlm_smoothing` 0.7, XLM's `sample_alpha` 0.5). With `unit="token"`; needs the
            collator's `token_counts`.
        replacement_per (`str`, *optional*, defaults to `"token"`): `"token"` decides for every token what becomes of
            it (BERT, ALBERT), `"word"` once for each word of the unit (MacBERT), `"unit"` once for the whole unit
            (fairseq, SpanBERT).
        max_ngram (`int`, *optional*, defaults to 3): Most words in an n-gram. N-grams and spans do not overlap, so
            shares above a half are not reached.
        ngram_probabilities (`Sequence[float]`, *optional*): Instead of 1/n up to `max_ngram`, probabilities of n-grams
            of 1, 2, ... words, with a sum of 1: `[0.4, 0.3, 0.2, 0.1]` (MacBERT, section 3.2).
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
            but special ones and the unknown token; `"ordinary_and_mask"`; `"any"`. It may be the original one, as in
            the papers' code.

    Options that exclude each other are refused (`_check_combinations`).
    """

    mask_probability: float = 0.15
    mask_replace_probability: float = 0.8
    random_replace_probability: float = 0.1
    similar_replace_probability: float = 0.0
    unit: str = "token"
    units: Mapping[str, float] | None = None
    num_masked: str = "rounded"
    at_least_one: bool = True
    max_predictions: int | None = None
    pass_over_long_words: bool = False
    frequency_power: float | None = None
    replacement_per: str = "token"
    max_ngram: int = 3
    ngram_probabilities: Sequence[float] | None = None
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
            ("unit", (*LEVELS, "ngram", "span")),
            ("num_masked", ("rounded", "nearest", "bernoulli")),
            ("replacement_per", ("token", "word", "unit")),
            ("random_tokens", ("ordinary", "ordinary_and_mask", "any")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known: use one of {', '.join(choices)}.")
        if not (_is_number(self.mask_probability) and 0 < self.mask_probability <= 1):
            raise ValueError(f"mask_probability={self.mask_probability!r} must be in (0, 1]; the papers use 0.15.")
        for name in ("max_predictions", "max_ngram", "max_span"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name}={value} must be a whole number of at least 1.")
        if not (_is_number(self.span_end_probability) and 0 < self.span_end_probability < 1):
            raise ValueError(
                f"span_end_probability={self.span_end_probability!r} must be in (0, 1); SpanBERT uses 0.2."
            )
        power = self.frequency_power
        if power is not None and not (_is_number(power) and 0 < power <= 2):
            raise ValueError(f"frequency_power={power!r} must be above 0 and at most 2; DistilBERT uses 0.7.")
        self._check_probabilities()
        self._check_combinations()

    def _check_probabilities(self) -> None:
        replaced = self.mask_replace_probability, self.random_replace_probability, self.similar_replace_probability
        if not (all(_is_number(one) and one >= 0 for one in replaced) and sum(replaced) <= 1 + 1e-9):
            similar = f", similar_replace_probability={replaced[2]!r}" if replaced[2] != 0 else ""
            raise ValueError(
                f"mask_replace_probability={replaced[0]!r}{similar} and random_replace_probability={replaced[1]!r} "
                "must be probabilities with a sum of at most 1; the papers use 0.8 and 0.1."
            )
        if self.ngram_probabilities is not None and not _are_probabilities(self.ngram_probabilities):
            raise ValueError(
                f"ngram_probabilities={self.ngram_probabilities} must be probabilities of 1, 2, ... words with a sum "
                "of 1; MacBERT uses [0.4, 0.3, 0.2, 0.1]."
            )
        units = self.units
        if units is not None and not (
            isinstance(units, Mapping) and set(units) <= set(LEVELS) and _are_probabilities(units.values())
        ):
            raise ValueError(
                f"units={units!r} must be probabilities of {', '.join(LEVELS)} with a sum of 1, such as "
                "{'word': 0.5, 'entity': 0.5}."
            )

    def _check_combinations(self) -> None:
        if self.units is not None and self.unit != "token":
            raise ValueError(f"unit={self.unit!r} and units={self.units}: leave one of them out (or unit='token').")
        if self.unit != "ngram" and self.max_ngram != 3:
            raise ValueError(f"max_ngram={self.max_ngram} needs unit='ngram'.")
        if self.ngram_probabilities is not None and (self.unit != "ngram" or self.max_ngram != 3):
            raise ValueError(
                f"ngram_probabilities={self.ngram_probabilities} needs unit='ngram', and gives the most words in an "
                "n-gram: leave max_ngram out."
            )
        if self.unit != "span" and (self.max_span, self.span_end_probability) != (10, 0.2):
            raise ValueError(
                f"max_span={self.max_span} and span_end_probability={self.span_end_probability} need unit='span'."
            )
        if self.unit == "token" and self.units is None and self.share_of_words:
            raise ValueError("share_of_words=True needs unit='word', 'ngram' or 'span': set it, or leave it out.")
        if self.unit in ("ngram", "span") and self.num_masked == "bernoulli":
            raise ValueError(f"num_masked='bernoulli' samples tokens or words, not unit={self.unit!r}.")
        if self.levels != {"token": 1.0} and self.counts_words and self.max_predictions is not None:
            raise ValueError(
                f"max_predictions={self.max_predictions} counts tokens, but share_of_words=True and "
                "num_masked='bernoulli' count words: leave one of them out."
            )
        if self.replacement_per == "word" and "token" in self.levels:
            raise ValueError(
                "replacement_per='word' needs units of words: set unit='word' or 'ngram', or units without 'token'."
            )
        if self.similar_replace_probability and self.replacement_per != "word":
            raise ValueError(
                f"similar_replace_probability={self.similar_replace_probability} replaces words: set "
                "replacement_per='word', and unit='word' or 'ngram'."
            )
        if self.frequency_power is not None and (
            self.levels != {"token": 1.0} or self.num_masked == "bernoulli" or self.mask_special_tokens
        ):
            raise ValueError(
                f"frequency_power={self.frequency_power} samples a number of ordinary tokens: it needs unit='token', "
                "num_masked='rounded' or 'nearest', and no mask_special_tokens."
            )

    @property
    def levels(self) -> dict[str, float]:
        """Probabilities of the units that an example's text is divided into.

        >>> Masking(unit="ngram").levels, Masking(units={"word": 1, "entity": 0}).levels
        ({'word': 1.0}, {'word': 1.0})
        """
        if self.units is not None:
            return {name: float(share) for name, share in self.units.items() if share}
        return {self.unit if self.unit in LEVELS else "word": 1.0}

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
        if self.ngram_probabilities is not None:
            weights = np.array(self.ngram_probabilities, dtype=float)
        elif self.unit == "ngram":
            weights = 1 / np.arange(1, self.max_ngram + 1)
        elif self.unit == "span":
            weights = (1 - self.span_end_probability) ** np.arange(self.max_span)
        else:
            weights = np.ones(1)
        return weights / weights.sum()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _are_probabilities(values: object) -> bool:
    """Whether values are numbers of at least 0 with a sum of 1."""
    try:
        values = [] if isinstance(values, str) else list(values)
    except TypeError:
        return False
    return all(_is_number(one) and one >= 0 for one in values) and abs(sum(values) - 1) < 1e-6


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
    rates = rates or [masking.mask_probability]
    rate = f"{' to '.join(f'{100 * one:.0f}' for one in rates)} %"
    limit = "" if masking.max_predictions is None else f"at most {masking.max_predictions} per example"
    special = ", special ones included" if masking.mask_special_tokens else ""
    if logged is None or min(rates) - SAME_RATE <= logged <= max(rates) + SAME_RATE:
        share = f"{rate} of the tokens{special}{limit and f', {limit}'}"
    else:
        meant = f"{rate}, but {limit}" if limit else f"{rate} requested"
        share = f"{100 * logged:.1f} % of the tokens{special} ({meant})"
    return f"{share}{describe_units(masking)}, of those {describe_replacement(masking)}"


def describe_units(masking: Masking) -> str:
    """What is chosen as a whole, in words; empty for tokens, each as likely.

    >>> describe_units(Masking(unit="ngram", ngram_probabilities=[0.6, 0.4]))
    ', chosen by ngram (60/40 % of 1/2 words)'
    >>> describe_units(Masking(units={"word": 0.5, "entity": 0.5}))
    ', chosen by word (50 % of the examples) or entity (50 %)'
    >>> describe_units(Masking(frequency_power=0.7))
    ', rare ones more often (frequency to the power -0.7)'
    """
    if masking.frequency_power is not None:
        return f", rare ones more often (frequency to the power -{masking.frequency_power:g})"
    if len(masking.levels) > 1:
        (first, share), *others = masking.levels.items()
        more = "".join(f" or {name} ({100 * one:.0f} %)" for name, one in others)
        return f", chosen by {first} ({100 * share:.0f} % of the examples){more}"
    unit = masking.unit if masking.units is None else next(iter(masking.levels))
    if masking.ngram_probabilities is not None:
        shares = "/".join(f"{100 * share:.0f}" for share in masking.ngram_probabilities)
        unit += f" ({shares} % of {'/'.join(str(1 + i) for i in range(len(masking.ngram_probabilities)))} words)"
    return "" if unit == "token" else f", chosen by {unit}"


def describe_replacement(masking: Masking) -> str:
    """What becomes of chosen tokens, in words.

    >>> describe_replacement(Masking())
    '80 % [MASK], 10 % random, 10 % kept'
    """
    replaced, random, similar = (
        100 * share
        for share in (
            masking.mask_replace_probability,
            masking.random_replace_probability,
            masking.similar_replace_probability,
        )
    )
    first = f"{replaced:.0f} % [MASK]" if replaced or not similar else "none [MASK]"
    of_words = f", {similar:.0f} % similar words" if similar else ""
    return f"{first}{of_words}, {random:.0f} % random, {100 - replaced - random - similar:.0f} % kept"
