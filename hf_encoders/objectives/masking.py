"""Masking of tokens for the MLM objective: its options, how they read on a card, units, and the masker.

15 % of the tokens are predicted; of those, 80 % are replaced by the mask token, 10 % by a random token and 10 % stay
(BERT, section 3.1). By default special tokens are neither counted, masked nor used as random tokens; the number to
mask is rounded up or down at random, so that its mean is the rate in short examples too; and words of all lengths are
chosen equally often (but not in n-grams and spans). Each deviation of the papers' code is an option; `presets.py`
combines them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import mask_and_padding, never_masked
from hf_encoders.corpus.word_starts import WordStarts
from hf_encoders.inputs import is_number
from hf_encoders.objectives.batch import IGNORED
from hf_encoders.objectives.randomness import Key, RandomStream, generator
from hf_encoders.objectives.units import PreparedUnits, Text, TokenUnits, WordUnits


if TYPE_CHECKING:
    from hf_encoders.corpus.similar_words import SimilarWords


SAME_RATE = 0.005  # difference of two mask rates that is rounding, and sampling of few examples

# Units that partition a text, and so may be mixed; n-grams and spans are runs of words. A class like those of
# `units.py` in a file of its own and a row here make a new one.
UNITS: dict[str, Callable[[PreTrainedTokenizerBase, "Masking"], Callable[[Text], np.ndarray]]] = {
    "token": TokenUnits,
    "word": WordUnits,
    "phrase": partial(PreparedUnits, "phrase"),
    "entity": partial(PreparedUnits, "entity"),
}
CHOICES = {
    "num_masked": ("rounded", "nearest", "bernoulli", "windows"),
    "replacement_per": ("token", "word", "unit"),
    "random_tokens": ("ordinary", "ordinary_and_mask", "any"),
}
# Options that say which tokens are predicted.
CHOICE_OPTIONS = {"mask_probability", "unit", "units", "num_masked", "at_least_one", "max_predictions"}
NOT_IN_WINDOWS = {"unit", "units", "at_least_one", "frequency_power", "count_special_tokens", "share_of_words"}
CHOICE_OPTIONS |= {"pass_over_long_words", "frequency_power", "share_of_words", "count_special_tokens"}


@dataclass(frozen=True)
class Masking:
    """Choose and replace tokens so; options that exclude each other are refused.

    Args:
        mask_probability (`float`, *optional*, defaults to 0.15): Share of the tokens to predict, in (0, 1].
        mask_replace_probability (`float`, *optional*, defaults to 0.8): Share of those that become the mask token.
        random_replace_probability (`float`, *optional*, defaults to 0.1): Share that becomes a random token; the rest
            stays.
        similar_replace_probability (`float`, *optional*, defaults to 0.0): Share of the words that become a similar
            word of as many tokens, each of the table's as likely (MacBERT, section 3.2). A word without one becomes a
            random word: any of the table with as many tokens, or else random tokens. Needs `replacement_per="word"`
            and the collator's `similar_words`.
        unit (`str`, *optional*, defaults to `"token"`): What is chosen as a whole: `"token"`; `"word"` (BERT's
            whole-word masking); `"phrase"` and `"entity"` (those of a corpus prepared with them, and every other word:
            ERNIE, section 3.2); `"ngram"` (n consecutive words with probability proportional to 1/n: ALBERT, section
            3.1); `"span"` (a geometrically distributed number of words: SpanBERT, section 3.1).
        units (`Mapping[str, float]`, *optional*): Instead of `unit`, probabilities of `"token"`, `"word"`, `"phrase"`
            and `"entity"`, drawn for each example: `{"word": 0.5, "entity": 0.5}`.
        num_masked (`str`, *optional*, defaults to `"rounded"`): Number to mask in an example: `"rounded"`, the share,
            rounded up or down at random so that it is right on average; `"nearest"`, rounded half to even;
            `"bernoulli"`, each token or word independently; `"windows"`, one token of each window of
            `1 / mask_probability` tokens, rounded down, from the first on until `max_predictions` (DeBERTa v3: of six,
            so that 0.15 predicts a sixth).
        at_least_one (`bool`, *optional*, defaults to `True`): Whether that number is at least one.
        max_predictions (`int`, *optional*): Most predicted tokens in an example.
        pass_over_long_words (`bool`, *optional*, defaults to `False`): False chooses every word, phrase or entity with
            the same probability, whatever its length; the number to mask is met on average, and an example of few
            tokens and long words may have no prediction (`choose_in_window`). True never exceeds the number: it passes
            over a word longer than what is left, so that long words are rarer (the original code; always with
            `max_predictions`). No effect on n-grams and spans, which are shortened to what is left.
        frequency_power (`float`, *optional*): In (0, 2]: tokens are sampled without replacement within an example with
            weights `max(count, 1) ** -frequency_power`, where count is that of the token in the corpus (DistilBERT's
            `mlm_smoothing` 0.7, XLM's `sample_alpha` 0.5). With `unit="token"`; needs the collator's `token_counts`.
        replacement_per (`str`, *optional*, defaults to `"token"`): `"token"` decides for every token what becomes of
            it (BERT, ALBERT), `"word"` once for each word of the unit (MacBERT), `"unit"` once for the whole unit
            (fairseq, SpanBERT).
        max_ngram (`int`, *optional*, defaults to 3): Most words in an n-gram. N-grams and spans do not overlap, so
            shares above a half are not reached.
        ngram_probabilities (`Sequence[float]`, *optional*): Instead of 1/n up to `max_ngram`, probabilities of n-grams
            of 1, 2, ... words, with a sum of 1: `[0.4, 0.3, 0.2, 0.1]` (MacBERT, section 3.2).
        span_end_probability (`float`, *optional*, defaults to 0.2): Probability in (0, 1] that a span ends after a
            word.
        max_span (`int`, *optional*, defaults to 10): Most words in a span; the mean length is 3.8.
        word_starts (`Callable`, *optional*): Makes of the tokenizer a function that finds the first tokens of words,
            as `WordStarts`. Not used for a corpus with a column `word_starts`.
        units_cross_separators (`bool`, *optional*, defaults to `False`): Whether words and n-grams continue after a
            special token.
        count_special_tokens (`bool`, *optional*, defaults to `False`): Whether `mask_probability` is a share of all
            tokens, special ones included.
        mask_special_tokens (`bool`, *optional*, defaults to `False`): Whether special tokens are predicted too.
        share_of_words (`bool`, *optional*, defaults to `False`): Whether `mask_probability` is a share of the words.
        random_tokens (`str`, *optional*, defaults to `"ordinary"`): Vocabulary of random tokens: `"ordinary"`, all
            but special ones and the unknown token; `"ordinary_and_mask"`; `"any"`.
        next_token (`bool`, *optional*, defaults to `False`): Whether each token predicts the next one instead, and
            sees itself and those before it only. Nothing is masked, and the other options have no effect. The last
            token of a text predicts nothing, so that nothing is predicted from another text.
        choose (`Callable`, *optional*): Your own choice instead of all of the above: a function of token ids `(T,)`,
            the positions of those that may be predicted `(C,)`, and a numpy generator, a function of seed, epoch and
            example; it returns some of these positions. What becomes of the tokens stays as above.
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
    next_token: bool = False
    choose: Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray] | None = None

    def __post_init__(self):
        for name, choices in {"unit": (*UNITS, "ngram", "span"), **CHOICES}.items():
            value = vars(self)[name]
            if value not in choices:
                raise ValueError(f"{name}={value!r} is not known: use one of {', '.join(choices)}.")
        for name, most, example in (
            ("mask_probability", 1, "the papers use 0.15"),
            ("span_end_probability", 1, "SpanBERT uses 0.2"),
            ("frequency_power", 2, "DistilBERT uses 0.7"),
        ):
            value = vars(self)[name]
            if not (is_number(value) and 0 < value <= most) and (name, value) != ("frequency_power", None):
                raise ValueError(f"{name}={value!r} must be above 0 and at most {most}; {example}.")
        for name in ("max_predictions", "max_ngram", "max_span"):
            value = vars(self)[name]
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name}={value} must be a whole number of at least 1.")
        if not (all(is_number(kind) and kind >= 0 for kind in self.kinds) and sum(self.kinds) <= 1 + 1e-9):
            raise ValueError(
                f"mask_replace_probability={self.kinds[0]!r}, random_replace_probability={self.kinds[1]!r} and "
                f"similar_replace_probability={self.kinds[2]!r} must be probabilities with a sum of at most 1."
            )
        if self.ngram_probabilities is not None and not _are_probabilities(self.ngram_probabilities):
            raise ValueError(
                f"ngram_probabilities={self.ngram_probabilities} must be probabilities of 1, 2, ... words with a sum "
                "of 1; MacBERT uses [0.4, 0.3, 0.2, 0.1]."
            )
        units = self.units
        if units is not None and not (
            isinstance(units, Mapping) and set(units) <= set(UNITS) and _are_probabilities(units.values())
        ):
            raise ValueError(f"units={units!r} must be probabilities of {', '.join(UNITS)} with a sum of 1.")
        self._check_combinations()

    def _check_combinations(self) -> None:
        is_bernoulli, power = self.num_masked == "bernoulli", self.frequency_power
        if self.choose is not None and (unused := sorted(self.changed.keys() & CHOICE_OPTIONS)):
            raise ValueError(f"{unused[0]} has no effect with choose, which says what is predicted: leave one out.")
        if self.units is not None and self.unit != "token":
            raise ValueError(f"unit={self.unit!r} and units={self.units}: leave one of them out (or unit='token').")
        if self.unit != "ngram" and (self.max_ngram != 3 or self.ngram_probabilities is not None):
            name = "ngram_probabilities" if self.max_ngram == 3 else "max_ngram"
            raise ValueError(f"{name}={vars(self)[name]} needs unit='ngram'.")
        if self.ngram_probabilities is not None and self.max_ngram != 3:
            raise ValueError("ngram_probabilities give the most words in an n-gram: leave max_ngram out.")
        if self.unit != "span" and (self.max_span, self.span_end_probability) != (10, 0.2):
            raise ValueError("max_span and span_end_probability need unit='span'.")
        if self.share_of_words and self.levels == {"token": 1.0}:
            raise ValueError("share_of_words=True needs unit='word', 'ngram' or 'span': set it, or leave it out.")
        if self.unit in ("ngram", "span") and is_bernoulli:
            raise ValueError(f"num_masked='bernoulli' samples tokens or words, not unit={self.unit!r}.")
        if self.levels != {"token": 1.0} and self.counts_words and self.max_predictions is not None:
            raise ValueError(
                f"max_predictions={self.max_predictions} counts tokens, but share_of_words=True and "
                "num_masked='bernoulli' count words: leave one of them out."
            )
        if self.replacement_per == "word" and "token" in self.levels:
            raise ValueError("replacement_per='word' needs units of words: set unit, or units without 'token'.")
        if self.similar_replace_probability and self.replacement_per != "word":
            raise ValueError("similar_replace_probability replaces words: set replacement_per='word' and unit='word'.")
        if self.num_masked == "windows":
            if unread := sorted(self.changed.keys() & NOT_IN_WINDOWS):
                raise ValueError(f"num_masked='windows' chooses tokens, each as likely: leave {unread[0]} out.")
            if self.mask_probability > 0.5:
                raise ValueError(
                    f"mask_probability={self.mask_probability} has windows of one token, which are all predicted: "
                    "num_masked='windows' takes at most 0.5."
                )
        if power is not None and (self.levels != {"token": 1.0} or is_bernoulli or self.mask_special_tokens):
            raise ValueError(
                f"frequency_power={power} samples a number of ordinary tokens: it needs unit='token', "
                "num_masked='rounded' or 'nearest', and no mask_special_tokens."
            )

    @property
    def kinds(self) -> tuple[float, float, float]:
        """Shares of the predicted tokens that become the mask token, a random token, and a similar word."""
        return self.mask_replace_probability, self.random_replace_probability, self.similar_replace_probability

    @property
    def changed(self) -> dict[str, Any]:
        """The options that are not the default ones."""
        return {f.name: vars(self)[f.name] for f in fields(self) if vars(self)[f.name] != f.default}

    @property
    def levels(self) -> dict[str, float]:
        """Probabilities of the units that an example's text is divided into.

        >>> Masking(unit="ngram").levels, Masking(units={"word": 1, "entity": 0}).levels
        ({'word': 1.0}, {'word': 1.0})
        """
        if self.units is not None:
            return {name: float(share) for name, share in self.units.items() if share}
        return {self.unit if self.unit in UNITS else "word": 1.0}

    @property
    def counts_words(self) -> bool:
        """Return whether the number to mask counts words, for units of words."""
        return self.share_of_words or self.num_masked == "bernoulli"

    def run_size_probabilities(self) -> np.ndarray:
        """Return the probabilities of runs of 1, 2, ... words.

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


def _are_probabilities(values: object) -> bool:
    """Return whether values are numbers of at least 0 with a sum of 1."""
    try:
        values = [] if isinstance(values, str) else list(values)
    except TypeError:
        return False
    return all(is_number(value) and value >= 0 for value in values) and abs(sum(values) - 1) < 1e-6


def describe_masking(masking: Masking, rates: Sequence[float], logged: float | None) -> str:
    """Describe how tokens were masked, for the model card.

    Args:
        masking (`Masking`): The options.
        rates (`Sequence[float]`): First and last rate of a schedule; empty for that of `masking`.
        logged (`float`, *optional*): Share of the tokens that were predicted. A limit, and special tokens that count,
            make it differ from the option.

    >>> describe_masking(Masking(max_predictions=20), (), 0.043)
    '4.3 % of the tokens (15 % requested), of those 80 % [MASK], 10 % random, 10 % kept; max_predictions=20'
    """
    if masking.next_token:
        return "the next token of each, from those before it"
    rates = rates or [masking.mask_probability]
    share = f"{' to '.join(f'{100 * rate:.0f}' for rate in rates)} %"
    if logged is not None and not min(rates) - SAME_RATE <= logged <= max(rates) + SAME_RATE:
        share, requested = f"{100 * logged:.1f} %", f" ({share} requested)"
    else:
        requested = ""
    masked, random, similar = (100 * kind for kind in masking.kinds)
    kinds = f"{masked:.0f} % [MASK]{f', {similar:.0f} % similar words' if similar else ''}, {random:.0f} % random"
    in_words = {"mask_probability", "mask_replace_probability", "random_replace_probability"}
    in_words |= {"similar_replace_probability", "word_starts"}
    shown = {name: value for name, value in masking.changed.items() if name not in in_words}
    # Of a path its last part alone: the card is published.
    shown = {name: value.rpartition("/")[2] if isinstance(value, str) else value for name, value in shown.items()}
    options = [f"{name}={value}" for name, value in shown.items()]
    kept = f"{100 - masked - random - similar:.0f} % kept"
    return f"{share} of the tokens{requested}, of those {kinds}, {kept}{'; ' * bool(options)}{', '.join(options)}"


# --- which tokens are predicted ---


def choose_in_window(order: np.ndarray, lengths: np.ndarray, limit: int, start: int) -> np.ndarray:
    """Choose units in a window of `limit` tokens, each unit with the same probability, however long it is.

    The units lie on a circle in random order. The window begins at a random token, and a unit is chosen if its middle
    token is in the window. A middle token is in the window with probability limit / tokens, so every unit is chosen
    with it, and the mean number of chosen tokens is the limit. Each end of the window adds or leaves out half a unit
    at most: an example of long units may choose none. A lower limit chooses some of the same units.

    Args:
        order (`np.ndarray` of `int64`, shape `(U,)`): Units in random order.
        lengths (`np.ndarray` of `int64`, shape `(U,)`): Tokens of each unit.
        limit (`int`): Number of tokens to choose.
        start (`int`): Token that the window begins at, in [0, tokens).

    >>> order, lengths = np.array([2, 0, 1]), np.array([2, 3, 1])  # on the circle 2 0 0 1 1 1, middles at 0, 2, 4
    >>> [choose_in_window(order, lengths, limit, start=4).tolist() for limit in (1, 2, 3, 5)]
    [[1], [1], [2, 1], [2, 0, 1]]
    """
    lengths = lengths[order]
    ends = lengths.cumsum()
    middles = ends - lengths + lengths // 2
    return order[(middles - start) % ends[-1] < limit]


def choose_in_windows(number: int, width: int, random: np.random.Generator) -> np.ndarray:
    """Choose one token of each window of `width` tokens, the last of which may be shorter.

    `mask_tokens` of `NGramMaskGenerator` in `DeBERTa/apps/tasks/mlm_task.py` of microsoft/DeBERTa, of single tokens.

    >>> choose_in_windows(14, 6, np.random.default_rng(0)).tolist()
    [3, 7, 12]
    """
    firsts = np.arange(0, number, width)
    sizes = np.minimum(width, number - firsts)
    return firsts + (random.random(len(firsts)) * sizes).astype(np.int64)


def choose_runs(order: np.ndarray, sizes: np.ndarray, lengths: np.ndarray, ends: np.ndarray, limit: int) -> list[int]:
    """Choose runs of consecutive units, begun at units in random order.

    A run that is longer than what is left of the limit is shortened until it fits, perhaps to nothing: it is passed
    over; one that meets a chosen unit is left out. This is the order of the checks in ALBERT's
    `create_masked_lm_predictions`.

    Args:
        order, lengths, limit: As in `choose_in_window`.
        sizes (`np.ndarray` of `int64`, shape `(U,)`): Units of a run that begins at this unit.
        ends (`np.ndarray` of `int64`, shape `(U,)`): Unit that no run which begins at this unit reaches.

    >>> choose_runs(np.array([1, 3, 2, 4, 0]), np.full(5, 2), np.ones(5, int), np.full(5, 5), limit=3)
    [1, 2, 3]
    >>> choose_runs(np.array([2, 0, 1]), np.ones(3, int), np.array([2, 3, 1]), np.full(3, 3), limit=4)
    [2, 0]
    """
    sizes, lengths, ends, chosen = sizes.tolist(), lengths.tolist(), ends.tolist(), []
    is_chosen = [False] * len(lengths)
    for first in order.tolist():
        end = min(first + sizes[first], ends[first])
        tokens = sum(lengths[first:end])
        while tokens > limit:
            end -= 1
            tokens -= lengths[end]
        if tokens and not any(is_chosen[first:end]):
            is_chosen[first:end] = [True] * (end - first)
            chosen += range(first, end)
            limit -= tokens
        if limit == 0:
            break
    return chosen


class Masker:
    """Choose the tokens of one example to predict, and replace them.

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
        similar_words: "SimilarWords | None" = None,
        **options: Any,
    ):
        self.masking = masking = Masking(**options)
        self.mask_id, _ = mask_and_padding(tokenizer)
        ids, special = np.array(sorted(tokenizer.get_vocab().values())), tokenizer.all_special_ids
        self.is_ordinary = np.zeros(ids[-1] + 1, dtype=bool)  # vocabularies may have gaps
        self.is_ordinary[ids] = True
        self.is_ordinary[never_masked(tokenizer)] = False
        self.random_ids = {
            "ordinary": np.setdiff1d(ids, special),
            "ordinary_and_mask": np.setdiff1d(ids, [i for i in special if i != self.mask_id]),
            "any": ids,
        }[masking.random_tokens]
        self.units = {name: UNITS[name](tokenizer, masking) for name in masking.levels}
        self.words = None
        if masking.replacement_per == "word":
            self.words = self.units.get("word") or WordUnits(tokenizer, masking)
        self.level_bounds = np.cumsum(list(masking.levels.values()))[:-1]
        self.run_bounds = np.cumsum(masking.run_size_probabilities())[:-1]
        masked, random, similar = masking.kinds
        self.kind_bounds = np.cumsum([masked, random, similar])
        self.rarities, self.similar_words = None, None
        if masking.frequency_power is not None:
            self.rarities = self._counts(token_counts) ** masking.frequency_power
        if similar:
            self.similar_words = _checked(similar_words)
            self.similar_words.check_tokenizer(tokenizer)

    def _counts(self, token_counts: np.ndarray | None) -> np.ndarray:
        """Return the counts of all ids, at least 1."""
        size, counts = len(self.is_ordinary), np.asarray(() if token_counts is None else token_counts)
        if not (counts.dtype.kind in "iuf" and counts.ndim == 1 and len(counts) >= size and np.all(counts >= 0)):
            what = "missing" if token_counts is None else f"{counts.dtype} of shape {counts.shape}"
            raise ValueError(
                f"token_counts is {what}: frequency_power={self.masking.frequency_power} needs a count of at least 0 "
                f"for each of the {size} ids, from hf_encoders.token_counts(corpus, {size})."
            )
        return np.maximum(counts, 1).astype(np.float64)

    def __call__(
        self,
        ids: np.ndarray,
        key: Key,
        word_starts: np.ndarray | None = None,
        mask_probability: float | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose tokens to predict and replace them.

        Args:
            ids (`np.ndarray` of integers, shape `(T,)`): Token ids of an example, with its special tokens.
            key (`Key`): The example's.
            word_starts (`np.ndarray` of `uint8`, shape `(T,)`, *optional*): Bits of `UnitStart`: what each token
                begins; values at special tokens do not matter.
            mask_probability (`float`, *optional*): Instead of that of `Masking`. A lower one predicts the first tokens
                of the same random order.

        Returns:
            The ids after masking, `(T,)`, and the labels: the original id where a token is predicted, -100 elsewhere,
            `int64` of shape `(T,)`.

        Raises:
            ValueError: for ids of another tokenizer, and for units that the corpus does not have.
        """
        rate = self.masking.mask_probability if mask_probability is None else mask_probability
        if ids.min() < 0 or ids.max() >= len(self.is_ordinary):
            raise ValueError(
                f"input_ids: ids from {ids.min()} to {ids.max()}, but those of the tokenizer go from 0 to "
                f"{len(self.is_ordinary) - 1}: give the collator the tokenizer that the corpus was made with."
            )
        is_candidate = self.is_ordinary.take(ids)
        random = generator(key, RandomStream.MASK_CHOICE)
        candidates = np.arange(len(ids)) if self.masking.mask_special_tokens else is_candidate.nonzero()[0]
        labels = np.full(len(ids), IGNORED, dtype=np.int64)
        if self.masking.next_token:
            labels[:-1] = np.where(is_candidate[:-1] | (np.arange(len(ids) - 1) == 0), ids[1:], IGNORED)
            return ids, labels
        if not len(candidates):
            return ids, labels
        if self.masking.choose is not None:
            positions = decided_at = self._chosen(ids, candidates, random)
        elif self.masking.levels == {"token": 1.0}:
            positions = decided_at = candidates[self._choose_tokens(ids[candidates], len(ids), rate, random)]
        else:
            text = self._text(ids, candidates, is_candidate, word_starts)
            positions, decided_at = self._choose_units(text, len(ids), rate, random)
        masked = ids.copy()
        labels[positions] = ids[positions]
        masked[positions] = self._replaced(ids[positions], positions, decided_at, len(ids), key)
        return masked, labels

    def unit_starts(self, ids: np.ndarray, word_starts: np.ndarray | None = None) -> np.ndarray:
        """Return whether each ordinary token of an example begins a unit, `(C,)` `bool`; arguments as of a call."""
        is_candidate = self.is_ordinary.take(ids)
        text = self._text(ids, is_candidate.nonzero()[0], is_candidate, word_starts)
        return next(iter(self.units.values()))(text)

    def _chosen(self, ids: np.ndarray, candidates: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return the positions that the user's function chooses."""
        positions = np.unique(np.asarray(self.masking.choose(ids, candidates, random), dtype=np.int64))
        if not np.isin(positions, candidates).all():
            raise ValueError(
                f"choose returned {positions.tolist()}: return some of the candidates, {candidates.tolist()}."
            )
        return positions

    def _number(self, rate: float, counted: int, length: int, random: np.random.Generator) -> int:
        """Return the number to predict of `counted` tokens or words."""
        exact = rate * (length if self.masking.count_special_tokens and not self.masking.share_of_words else counted)
        if self.masking.num_masked == "nearest":
            return self._bounded(round(exact), length)
        return self._bounded(int(exact + random.random()), length)

    def _bounded(self, number: int, length: int) -> int:
        return min(max(number, int(self.masking.at_least_one)), self.masking.max_predictions or length, length)

    def _choose_tokens(self, ids: np.ndarray, length: int, rate: float, random: np.random.Generator) -> np.ndarray:
        """Return the indices of the predicted ones of C candidates, `(P,)`: those with the lowest random numbers."""
        if self.masking.num_masked == "windows":
            return choose_in_windows(len(ids), int(1 / rate), random)[: self.masking.max_predictions]
        if self.masking.num_masked == "bernoulli":
            draws = random.random(len(ids))
            number = self._bounded(np.count_nonzero(draws < rate), length)
        else:
            number = self._number(rate, len(ids), length, random)
            draws = random.random(len(ids))
            if self.rarities is not None:
                # Exponentially distributed numbers at the rates of the weights, the smallest first: each next token is
                # drawn in proportion to the weights of those that are left (Efraimidis and Spirakis 2006, "Weighted
                # random sampling with a reservoir"), as by `torch.multinomial`.
                draws = -np.log1p(-draws) * self.rarities[ids]
        return draws.argsort()[:number]

    def _text(
        self, ids: np.ndarray, candidates: np.ndarray, is_ordinary: np.ndarray, word_starts: np.ndarray | None
    ) -> Text:
        begins = np.zeros(len(candidates), dtype=bool)
        begins[0] = True
        if not self.masking.units_cross_separators:
            begins[1:] = candidates[1:] - candidates[:-1] > 1
        column = None if word_starts is None else word_starts[candidates]
        return Text(ids[candidates], candidates, begins, ~is_ordinary[candidates], column)

    def _choose_units(
        self, text: Text, length: int, rate: float, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the predicted tokens, and of the token that decides what becomes of each, `(P,)`."""
        masking, names = self.masking, list(self.units)
        name = names[self.level_bounds.searchsorted(random.random(), "right")] if len(names) > 1 else names[0]
        starts = self.units[name](text)
        firsts = starts.nonzero()[0]
        bounds = np.append(firsts, len(text.ids))
        lengths = bounds[1:] - bounds[:-1]
        counted = len(firsts) if masking.share_of_words else len(text.ids)
        window_start = int(random.random() * len(text.ids))
        limit = 0 if masking.num_masked == "bernoulli" else self._number(rate, counted, length, random)
        draws = random.random(len(firsts))
        order = draws.argsort()
        if masking.num_masked == "bernoulli":
            limit = self._bounded(np.count_nonzero(draws < rate), length)
        is_run = masking.unit in ("ngram", "span")
        if not (is_run or masking.counts_words or masking.pass_over_long_words or masking.max_predictions):
            chosen = choose_in_window(order, lengths, limit, window_start)
        else:
            sizes, ends = np.ones_like(lengths), np.full_like(lengths, len(lengths))
            if is_run:
                sizes += self.run_bounds.searchsorted(random.random(len(firsts)), "right")
                # The unit before which the text ends that each unit is in.
                texts = np.append(firsts.searchsorted(text.begins.nonzero()[0]), len(firsts))
                ends = texts[texts.searchsorted(np.arange(len(firsts)), "right")]
            chosen = choose_runs(order, sizes, np.ones_like(lengths) if masking.counts_words else lengths, ends, limit)
        is_chosen = np.zeros(len(firsts), dtype=bool)
        is_chosen[chosen] = True
        indices = is_chosen.repeat(lengths).nonzero()[0]
        decides = starts if self.words is None or name == "word" else starts | self.words(text)
        decided_at = np.maximum.accumulate(np.where(decides, np.arange(len(text.ids)), 0))
        return text.positions[indices], text.positions[decided_at[indices]]

    # --- what becomes of them ---

    def _replaced(
        self, originals: np.ndarray, positions: np.ndarray, decided_at: np.ndarray, length: int, key: Key
    ) -> np.ndarray:
        """Draw new ids of the predicted tokens, `(P,)`; `decided_at` is the first token of each one's unit or word."""
        random = generator(key, RandomStream.REPLACEMENT)
        draws = random.random((length, 2))
        if self.masking.replacement_per == "token":
            decided_at = positions
        kinds = self.kind_bounds.searchsorted(draws[decided_at, 0], "right")  # 0 mask token, 1 random, 2 similar
        random_ids = self.random_ids[(draws[positions, 1] * len(self.random_ids)).astype(np.int64)]
        replaced = np.where(kinds == 0, self.mask_id, np.where(kinds == 1, random_ids, originals))
        if self.similar_words is not None:
            self._replace_words(replaced, originals, kinds, decided_at, random_ids, random)
        return replaced

    def _replace_words(
        self,
        replaced: np.ndarray,
        originals: np.ndarray,
        kinds: np.ndarray,
        decided_at: np.ndarray,
        random_ids: np.ndarray,
        random: np.random.Generator,
    ) -> None:
        """Put a similar word or a random word in the place of each word that becomes one, in `replaced`."""
        begins = np.append(0, np.diff(decided_at)).nonzero()[0]
        bounds = [0, *begins.tolist(), len(originals)]
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
            kind = kinds[begin : begin + 1]
            if kind in (1, 2):
                similar = self.similar_words.similar(originals[begin:end]) if kind == 2 else []
                if similar:
                    word = similar[random.integers(len(similar))]
                else:
                    word = self.similar_words.random_word(end - begin, random)
                # Random tokens where no word of the table has as many tokens.
                replaced[begin:end] = random_ids[begin:end] if word is None else word


def _checked(similar_words: object) -> "SimilarWords":
    from hf_encoders.corpus.similar_words import SimilarWords  # with scipy, which only this option needs

    if not isinstance(similar_words, SimilarWords) or not similar_words.table:
        what = "missing" if similar_words is None else repr(similar_words)
        raise ValueError(
            f"similar_words is {what}: similar_replace_probability needs the table of the corpus, "
            "SimilarWords.load(folder); `hf-encoders corpus --similar-words build` makes it."
        )
    return similar_words
