"""Which tokens XLNet predicts, and in which order: the choice and the permutation of a batch, vectorised.

Source: `_sample_mask` and `_local_perm` in `data_utils.py` of zihangdai/xlnet; sections 2.2 to 2.5 of the paper
(https://arxiv.org/abs/1906.08237). As there:

- Spans of 1 to 5 tokens, n with probability proportional to 1/n, each within a context of 6n tokens: a part of the
  context before it, uniform in [0, 6n), then on to the next beginning of a word, then the span. The paper speaks of n
  words; the loop of the code counts tokens, and its authors left it so (pull request 16). Spans do not reach the last
  token. What is missing to a sixth of the tokens is filled with single tokens anywhere.
- One rank for each token that is chosen, and for each separator and `<cls>`: a uniform permutation of them. All other
  tokens come before these. Separators and `<cls>` are in the order, but never predicted.
- A row of two parts has a permutation in each: the second part comes after all of the first.
- Some examples are read in reverse: spans are chosen on the reversed text, so they end at the first token of a word.

Differs in: every example has its own random numbers; the original reverses the second half of each batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.ragged import offsets_of, ranges
from hf_encoders.corpus.randomness import RandomStream, random_uint32_in_runs, uniforms
from hf_encoders.corpus.special_tokens import sequence_ends
from hf_encoders.corpus.word_starts import UnitStart, WordStarts
from hf_encoders.objectives.mask_units import choose_units, sort_by_draws


@dataclass(frozen=True)
class Permutation:
    """How tokens are chosen and permuted.

    Args:
        predicted_one_in (`int`, *optional*, defaults to 6): One of so many tokens is predicted, the paper's K: a span
            of n stands in a context of K * n.
        max_span (`int`, *optional*, defaults to 5): Most tokens of a span.
        fill_up (`bool`, *optional*, defaults to `True`): Whether single tokens fill up what the spans leave of
            1/K of a row. Without it 14 % are predicted at K = 6.
        reversed_share (`float`, *optional*, defaults to 0.5): Share of the examples in [0, 1] that are read in reverse
            (`bi_data` of the original code).
        word_starts (`Callable`, *optional*): Makes of the tokenizer a function that finds the first tokens of words;
            see `WordStarts`. Not used for a corpus with a column `word_starts`.
    """

    predicted_one_in: int = 6
    max_span: int = 5
    fill_up: bool = True
    reversed_share: float = 0.5
    word_starts: Callable[[PreTrainedTokenizerBase], Callable[[np.ndarray, np.ndarray], np.ndarray]] = WordStarts

    def __post_init__(self):
        for name, least in (("predicted_one_in", 2), ("max_span", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")
        if not isinstance(self.fill_up, bool):
            raise ValueError(f"fill_up={self.fill_up!r} must be true or false.")
        share = self.reversed_share
        if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share <= 1:
            raise ValueError(f"reversed_share={share!r} must be in [0, 1]; XLNet uses 0.5.")


class PermutedTokens(NamedTuple):
    """The order of N flat tokens of B rows, and the P predicted ones, ascending."""

    order: np.ndarray  # 0 for what all see; a token sees those with at most its own number; int64, (N,)
    rows: np.ndarray  # example of each predicted token, int64, (P,)
    positions: np.ndarray  # of the predicted tokens among the flat tokens, int64, (P,)
    is_reversed: np.ndarray  # whether an example is read in reverse, bool, (B,)


class TokenPermuter:
    """Chooses and permutes flat tokens of a batch.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives words and special tokens.
        options: Those of `Permutation`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, **options: Any):
        self.options = Permutation(**options)
        self.functional_ids = np.array(sequence_ends(tokenizer))
        self.num_ids = max(tokenizer.get_vocab().values()) + 1
        self.word_starts = self.options.word_starts(tokenizer)
        shares = 1 / np.arange(1, self.options.max_span + 1)
        self.span_bounds = np.cumsum(shares / shares.sum())[:-1]

    def __call__(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        first_lengths: np.ndarray | None = None,
        word_starts: np.ndarray | None = None,
    ) -> PermutedTokens:
        """Choose tokens to predict, and permute them.

        Args:
            ids (`np.ndarray` of integers, shape `(N,)`): Token ids of all examples, concatenated.
            lengths (`np.ndarray` of `int64`, shape `(B,)`): Tokens of each example.
            keys (`np.ndarray` of `uint64`, shape `(B,)`): Key of each example.
            first_lengths (`np.ndarray` of `int64`, shape `(B,)`, *optional*): Tokens of the first of two parts of each
                example; 0, or None, where it has one part only.
            word_starts (`np.ndarray` of `uint8`, shape `(N,)`, *optional*): Bits of `UnitStart`.

        Raises:
            ValueError: for ids of another tokenizer.
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_ids:
            raise ValueError(
                f"input_ids: ids from {ids.min()} to {ids.max()}, but those of the tokenizer go from 0 to "
                f"{self.num_ids - 1}: give the collator the tokenizer that the corpus was made with."
            )
        parts = _parts(lengths, first_lengths)
        is_reversed = uniforms(keys, RandomStream.READING_DIRECTION, 0) < self.options.reversed_share
        is_functional = np.isin(ids, self.functional_ids)
        if word_starts is None:
            begins_text = np.zeros(len(ids), dtype=bool)
            begins_text[offsets_of(lengths)[:-1]] = True
            is_start = self.word_starts(ids, begins_text)
        else:
            is_start = (word_starts & UnitStart.WORD) != 0
        # Places in the direction of reading; the same map leads back.
        mirrored = np.arange(len(ids))
        flipped = np.repeat(is_reversed[parts.rows], parts.lengths)
        mirrored[flipped] = (np.repeat(parts.starts + parts.ends - 1, parts.lengths) - mirrored)[flipped]
        goals = parts.goals(lengths, self.options.predicted_one_in) if self.options.fill_up else None
        begin, end, chosen_of = self._spans(parts, goals, keys, is_start[mirrored])
        is_chosen = np.zeros(len(ids), dtype=bool)
        is_chosen[mirrored[ranges(begin, end)]] = True
        if goals is not None:
            draws = random_uint32_in_runs(keys, RandomStream.SINGLE_TARGET, lengths)
            missing = np.minimum(goals - chosen_of, parts.lengths - chosen_of)
            singles = choose_units(draws, parts.lengths, missing, allowed=~is_chosen).first
            is_chosen[singles] = True
        order = self._order(parts, lengths, keys, is_chosen | is_functional)
        positions = np.flatnonzero(is_chosen & ~is_functional)
        rows = np.searchsorted(offsets_of(lengths), positions, "right") - 1
        return PermutedTokens(order, rows, positions, is_reversed)

    def _spans(
        self, parts: "Parts", goals: np.ndarray | None, keys: np.ndarray, is_start: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Begin and end of the spans in all parts, and the number of chosen tokens of each part, `(G,)`.

        Places are those in the direction of reading. Each round makes a span in every part that has room for one.
        """
        places = np.where(is_start, np.arange(len(is_start)), len(is_start))
        next_start = np.append(np.minimum.accumulate(places[::-1])[::-1], len(is_start))
        at, counts = parts.starts.copy(), np.zeros(len(parts.starts), dtype=np.int64)
        going, found, slot = np.arange(len(at)), [np.empty((2, 0), dtype=np.int64)], 0
        while len(going):
            if goals is not None:
                going = going[counts[going] < goals[going]]
            # Two numbers for each span; those of the second part are the odd ones.
            key, counters = keys[parts.rows[going]], 2 * slot + parts.is_second[going]
            sizes = uniforms(key, RandomStream.SPAN_LENGTH, counters)
            sizes = 1 + np.searchsorted(self.span_bounds, sizes, "right")
            if goals is not None:
                sizes = np.minimum(sizes, goals[going] - counts[going])
            context = self.options.predicted_one_in * sizes
            before = (uniforms(key, RandomStream.SPAN_CONTEXT, counters) * context).astype(np.int64)
            begin = next_start[np.minimum(at[going] + before, len(is_start))]
            end = begin + sizes
            fits = end < parts.ends[going]
            going, begin, end = going[fits], begin[fits], end[fits]
            found.append(np.stack([begin, end]))
            counts[going] += end - begin
            at[going] = end + (context - before)[fits]
            going, slot = going[at[going] < parts.ends[going]], slot + 1
        begin, end = np.concatenate(found, axis=1)
        return begin, end, counts

    def _order(self, parts: "Parts", lengths: np.ndarray, keys: np.ndarray, is_ranked: np.ndarray) -> np.ndarray:
        """0 for what all see, then ranks from 1; a second part begins 1 above the highest of the first."""
        draws = random_uint32_in_runs(keys, RandomStream.FACTORISATION_ORDER, lengths)
        ranked = np.flatnonzero(is_ranked)
        per_part = np.diff(np.searchsorted(ranked, offsets_of(parts.lengths)))
        order = np.zeros(len(is_ranked), dtype=np.int64)
        order[sort_by_draws(ranked, draws, per_part)] = ranges(np.ones_like(per_part), per_part + 1)
        before = np.where(parts.is_second, np.roll(per_part, 1) + 1, 0)
        return order + np.repeat(before, parts.lengths)


class Parts(NamedTuple):
    """The parts of all rows, one or two each, in the order of the tokens; all of shape `(G,)`."""

    rows: np.ndarray  # example of each part, int64
    starts: np.ndarray  # first flat token, int64
    ends: np.ndarray  # excluded, int64
    is_second: np.ndarray  # bool

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each part."""
        return self.ends - self.starts

    def goals(self, row_lengths: np.ndarray, one_in: int) -> np.ndarray:
        """Tokens to choose in each part: 1/K of the row, divided by the lengths of its parts.

        85 of 512, 43 and 42 in the halves, as `num_predict` of the original for its length; other lengths likewise,
        at least one.

        >>> _parts(np.array([512, 30]), np.array([256, 0])).goals(np.array([512, 30]), 6)
        array([43, 42,  5])
        """
        totals = np.maximum(row_lengths // one_in, 1)[self.rows]
        of_second = totals * self.lengths // row_lengths[self.rows]
        has_second = np.append(self.is_second[1:], False)
        of_first = totals - np.where(has_second, np.roll(of_second, -1), 0)
        return np.where(self.is_second, of_second, of_first)


def _parts(lengths: np.ndarray, first_lengths: np.ndarray | None) -> Parts:
    """Rows as parts; those whose first part is empty, or the whole row, are one."""
    starts = offsets_of(lengths)[:-1]
    if first_lengths is None:
        return Parts(np.arange(len(lengths)), starts, starts + lengths, np.zeros(len(lengths), dtype=bool))
    has_two = (first_lengths > 0) & (first_lengths < lengths)
    rows = np.repeat(np.arange(len(lengths)), 1 + has_two)
    is_second = np.append(False, np.diff(rows) == 0)
    begin = np.where(is_second, (starts + first_lengths)[rows], starts[rows])
    return Parts(rows, begin, np.append(begin[1:], lengths.sum()), is_second)
