"""Samples the units of an example to predict: tokens, words or runs of words, without replacement.

Everything works on flat arrays of units. Units are in the order of the text, those of an example together; `counts[i]`
of them belong to example i, of which `limits[i]` (tokens or words) are to be masked.
"""

from typing import NamedTuple

import numpy as np

from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.randomness import RandomStream, as_uniforms, random_uint32_in_runs


class ChosenRuns(NamedTuple):
    """Runs of consecutive units to predict, in no particular order; all `int64` of shape `(R,)`."""

    rows: np.ndarray  # example of each run
    first: np.ndarray
    end: np.ndarray  # excluded


def sample_tokens(keys: np.ndarray, lengths: np.ndarray, limits: np.ndarray, allowed: np.ndarray) -> ChosenRuns:
    """Tokens sampled uniformly without replacement, up to the limit.

    The same distribution as `choose_units` with units of one token, in less time: it samples about as many positions
    as needed, instead of a number for every position.

    Args:
        keys (`np.ndarray` of `uint64`, shape `(B,)`): From `example_keys`.
        lengths, limits (`np.ndarray` of `int64`, shape `(B,)`): Tokens of each example, and how many to mask.
        allowed (`np.ndarray` of `bool`, shape `(N,)`): Tokens that may be chosen.
    """
    begins, tries = offsets_of(lengths)[:-1], _tries(lengths, limits)
    sampled = random_uint32_in_runs(keys, RandomStream.MASK_POSITION, tries).astype(np.uint64)
    sampled *= np.repeat(lengths.astype(np.uint64), tries)
    sampled >>= np.uint64(32)
    positions = sampled.view(np.int64)
    positions += np.repeat(begins, tries)

    is_new = allowed[positions] & _is_first(positions, len(allowed))
    rank = offsets_of(is_new)
    rank_begin = rank[offsets_of(tries)]
    filled = rank[1:] - np.repeat(rank_begin[:-1], tries)
    first = positions[is_new & (filled <= np.repeat(limits, tries))]
    reached = np.minimum(np.diff(rank_begin), limits)
    found = ChosenRuns(np.repeat(np.arange(len(keys)), reached), first, first + 1)

    too_few = reached < limits
    if not too_few.any():
        return found
    others = np.repeat(too_few, lengths)
    draws = random_uint32_in_runs(keys[too_few], RandomStream.MASK_CHOICE, lengths[too_few])
    again = choose_units(draws, lengths[too_few], limits[too_few], allowed=allowed[others])
    first = np.flatnonzero(others)[again.first]
    again = ChosenRuns(np.flatnonzero(too_few)[again.rows], first, first + 1)
    return _replaced(found, too_few, again)


def _tries(lengths: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Positions to sample so that enough are different; none where that is more than half of them.

    Mean and variance of the coupon collector's tries. Four standard errors more, and a few for tokens that are not
    allowed, make it rarely too few.
    """
    share = np.where(2 * limits <= lengths, limits / np.maximum(lengths, 1), 0)
    mean = -lengths * np.log1p(-share)
    variance = np.maximum(lengths * (share / (1 - share) + np.log1p(-share)), 0)
    return np.ceil((mean + 4 * np.sqrt(variance) + 3) * (share > 0)).astype(np.int64)


def _is_first(positions: np.ndarray, length: int) -> np.ndarray:
    """Which of the positions, in `[0, length)`, occur for the first time.

    >>> _is_first(np.array([7, 3, 7, 3, 5]), 8).tolist()
    [True, True, False, False, True]
    """
    numbers = np.arange(len(positions), dtype=np.int32)
    first_at = np.empty(length, dtype=np.int32)
    first_at[positions[::-1]] = numbers[::-1]  # the last of several assignments stays
    return first_at[positions] == numbers


def choose_units(
    draws: np.ndarray,
    counts: np.ndarray,
    limits: np.ndarray,
    lengths: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    up_to_middle: bool = False,
) -> ChosenRuns:
    """Choose single units in ascending order of their draws, up to the limit.

    A unit that is longer than what is left is skipped, and shorter ones follow (the original BERT and ALBERT), which
    makes long units rare. With `up_to_middle` it is chosen if its middle token is within the limit, and is the last.

    Args:
        draws (`np.ndarray` of `uint32`, shape `(U,)`): A random number per unit.
        counts (`np.ndarray` of `int64`, shape `(B,)`): Units of each example.
        limits (`np.ndarray` of `int64`, shape `(B,)`): Total length of the units to choose in each example.
        lengths (`np.ndarray` of `int64`, shape `(U,)`, *optional*): Length of each unit, at least 1; `None`: all 1.
        allowed (`np.ndarray` of `bool`, shape `(U,)`, *optional*): Units that may be chosen; `None`: all.
        up_to_middle (`bool`, *optional*, defaults to `False`): What becomes of a unit that the limit cuts.

    >>> draws = np.array([50, 10, 40, 20, 30], dtype=np.uint32)  # units 1, 3, 4, 2, 0 in this order; 3 does not fit
    >>> counts, limits, lengths = np.array([5]), np.array([4]), np.array([1, 2, 1, 3, 2])
    >>> choose_units(draws, counts, limits, lengths).first.tolist()
    [1, 4]
    >>> [choose_units(draws, counts, np.array([n]), lengths, up_to_middle=True).first.tolist() for n in (3, 4)]
    [[1], [1, 3]]
    """
    # Sorting is most of the work, so units with draws far above the share are left out at first.
    totals = counts if lengths is None else np.diff(offsets_of(lengths)[offsets_of(counts)])
    share = limits / np.maximum(totals, 1)
    roots = np.sqrt(np.maximum(counts, 1))
    likely = np.minimum(share + (4 * np.sqrt(share) + 4 / roots) / roots, 1)  # four standard errors more
    is_likely = draws <= np.repeat((likely * (2**32 - 1)).astype(np.uint32), counts)
    if allowed is not None:
        is_likely &= allowed
    chosen, is_full = _fill(np.flatnonzero(is_likely), draws, counts, limits, lengths, up_to_middle)

    too_few = ~is_full & (likely < 1)
    if not too_few.any():
        return chosen
    others = np.repeat(too_few, counts)
    units = np.flatnonzero(others if allowed is None else others & allowed)
    return _replaced(chosen, too_few, _fill(units, draws, counts, limits, lengths, up_to_middle)[0])


def choose_in_window(
    draws: np.ndarray, counts: np.ndarray, limits: np.ndarray, lengths: np.ndarray, starts: np.ndarray
) -> ChosenRuns:
    """Choose units so that each is as likely, whatever its length: limit over the tokens of the example.

    The units of an example are laid around a circle in random order, a window of as many tokens as the limit begins at
    a random token, and the units are chosen whose middle token is in it. Every token is in the window with the same
    probability, so every unit is chosen with it, and the mean number of chosen tokens is the limit. Each end of the
    window adds or leaves out half a unit at most: an example of long units may choose none. A lower limit chooses some
    of the same units.

    Args:
        draws, counts, limits, lengths: As in `choose_units`.
        starts (`np.ndarray` of `int64`, shape `(B,)`): The token of each example, from 0, that the window begins at,
            uniform below the number of its tokens.

    The circle is rotated so that the unit which the window begins in is the first; the others keep their random order.

    >>> draws = np.array([50, 10, 40, 20, 30], dtype=np.uint32)  # units 1, 3, 4, 2, 0 in this order
    >>> counts, lengths = np.array([5]), np.array([1, 2, 1, 3, 2])
    >>> start = np.array([4])  # the first token of unit 3, whose middle token is the second
    >>> [choose_in_window(draws, counts, np.array([n]), lengths, start).first.tolist() for n in (1, 2, 5)]
    [[], [3], [3, 1]]
    """
    bounds = offsets_of(lengths)
    row_bounds = bounds[offsets_of(counts)]
    rows = np.flatnonzero(counts)
    starts = row_bounds[rows] + starts[rows]
    first = np.searchsorted(bounds, starts, "right") - 1
    # Places around the circle, from where the window begins.
    middle = (bounds[first] + lengths[first] // 2 - starts) % np.diff(row_bounds)[rows]
    is_chosen = middle < limits[rows]
    begins = ChosenRuns(rows[is_chosen], first[is_chosen], first[is_chosen] + 1)
    left = limits.copy()
    left[rows] = np.maximum(limits[rows] - (bounds[first + 1] - starts), 0)
    allowed = np.ones(len(draws), dtype=bool)
    allowed[first] = False
    more = choose_units(draws, counts, left, lengths, allowed, up_to_middle=True)
    return ChosenRuns(*map(np.concatenate, zip(begins, more, strict=True)))


def choose_by_weight(
    draws: np.ndarray, rarities: np.ndarray, lengths: np.ndarray, limits: np.ndarray, allowed: np.ndarray
) -> ChosenRuns:
    """Tokens sampled without replacement with weights `1 / rarity`, up to the limit of each example.

    An exponentially distributed number at the rate of its weight for each token, the smallest first (Efraimidis and
    Spirakis 2006, "Weighted random sampling with a reservoir"): each next one is drawn in proportion to the weights of
    those that are left, as `torch.multinomial` does.

    Args:
        draws (`np.ndarray` of `uint32`, shape `(N,)`): A random number per token.
        rarities (`np.ndarray` of `float64`, shape `(N,)`): Above 0.
        lengths, limits, allowed: As in `sample_tokens`; limits are at most the number of allowed tokens.

    >>> draws = np.array([2**31, 2**31, 2**30, 0], dtype=np.uint32)  # 1/2, 1/2, 1/4, 0
    >>> rarities = np.array([1.0, 3.0, 3.0, 1.0])  # exponential numbers: 0.69, 2.08, 0.86, 0
    >>> choose_by_weight(draws, rarities, np.array([4]), np.array([2]), np.array([True] * 3 + [False])).first.tolist()
    [0, 2]
    """
    numbers = -np.log1p(-as_uniforms(draws)) * rarities
    # Positive floats are in the order of their bits.
    bits = numbers.astype(np.float32).view(np.uint32)
    return _fill(np.flatnonzero(allowed), bits, lengths, limits, None, False)[0]


def choose_runs(
    draws: np.ndarray, counts: np.ndarray, limits: np.ndarray, lengths: np.ndarray, sizes: np.ndarray, ends: np.ndarray
) -> ChosenRuns:
    """Runs of units, begun at units in ascending order of their draws.

    A run that is longer than what is left is shortened until it fits; one that meets a chosen unit is left out. This
    is the order of the checks in ALBERT's `create_masked_lm_predictions`.

    Args:
        draws, counts, limits, lengths: As in `choose_units`.
        sizes (`np.ndarray` of `int64`, shape `(U,)`): Units of a run that begins at this one.
        ends (`np.ndarray` of `int64`, shape `(U,)`): Unit before which a run that begins at this one ends.

    >>> draws = np.array([50, 10, 40, 20, 30], dtype=np.uint32)
    >>> two = np.full(5, 2)
    >>> runs = choose_runs(draws, np.array([5]), np.array([3]), np.ones(5, int), two, np.full(5, 5))
    >>> runs.first.tolist(), runs.end.tolist()
    ([1, 3], [3, 4])
    """
    order = sort_by_draws(np.arange(len(draws)), draws, counts)
    starts, before = offsets_of(counts)[:-1], offsets_of(lengths)
    steps = np.arange(int(sizes.max(initial=1)))
    is_taken = np.zeros(len(draws), dtype=bool)
    filled = np.zeros(len(counts), dtype=np.int64)
    found = [np.empty((3, 0), dtype=np.int64)]
    rows, tried = np.flatnonzero((limits > 0) & (counts > 0)), 0
    while len(rows):  # a candidate of every example at once: about as many rounds as an example has runs
        first = order[starts[rows] + tried]
        fitting = np.searchsorted(before, before[first] + limits[rows] - filled[rows], "right") - 1
        end = np.minimum(np.minimum(first + sizes[first], ends[first]), fitting)
        members = first[:, None] + steps
        is_member = members < end[:, None]
        members = np.minimum(members, len(draws) - 1)
        accepted = (end > first) & ~(is_taken[members] & is_member).any(axis=1)
        is_taken[members[accepted][is_member[accepted]]] = True
        first, end, accepted_rows = first[accepted], end[accepted], rows[accepted]
        found.append((accepted_rows, first, end))
        filled[accepted_rows] += before[end] - before[first]
        tried += 1
        rows = rows[(filled[rows] < limits[rows]) & (tried < counts[rows])]
    return ChosenRuns(*map(np.concatenate, zip(*found, strict=True)))


def _fill(
    units: np.ndarray,
    draws: np.ndarray,
    counts: np.ndarray,
    limits: np.ndarray,
    lengths: np.ndarray | None,
    up_to_middle: bool,
) -> tuple[ChosenRuns, np.ndarray]:
    """Choose among `units` only, which ascend; and in which examples these were enough."""
    per_row = np.diff(np.searchsorted(units, offsets_of(counts)))
    units = sort_by_draws(units, draws, per_row)
    left, is_full = limits, limits == 0
    found = [np.empty((3, 0), dtype=np.int64)]
    while len(units):
        starts = offsets_of(per_row)
        before = np.arange(len(units) + 1) if lengths is None else offsets_of(lengths[units])
        filled = before[1:] - np.repeat(before[starts[:-1]], per_row)
        if up_to_middle:
            filled -= (lengths[units] - 1) // 2  # the tokens behind the middle one
        accepted = filled <= np.repeat(left, per_row)
        rows = np.repeat(np.arange(len(limits)), np.diff(offsets_of(accepted)[starts]))
        found.append((rows, units[accepted], units[accepted] + 1))
        if lengths is None or up_to_middle:
            is_full |= before[starts[1:]] - before[starts[:-1]] >= left
            break
        left = left - np.diff(offsets_of(lengths[units] * accepted)[starts])
        is_full |= left == 0
        # Accepted were those before the first that was too long; those that still fit come next.
        remaining = ~accepted & (lengths[units] <= np.repeat(left, per_row))
        units, per_row = units[remaining], np.diff(offsets_of(remaining)[starts])
    return ChosenRuns(*map(np.concatenate, zip(*found, strict=True))), is_full


def _replaced(runs: ChosenRuns, is_replaced: np.ndarray, others: ChosenRuns) -> ChosenRuns:
    """`runs`, with those of some examples replaced by `others`."""
    kept = ~is_replaced[runs.rows]
    return ChosenRuns(*(np.concatenate([values[kept], other]) for values, other in zip(runs, others, strict=True)))


def sort_by_draws(units: np.ndarray, draws: np.ndarray, per_row: np.ndarray) -> np.ndarray:
    """`units`, of which each example has `per_row`, in ascending order of the draws within their example.

    One sort of integers that hold example, draw and position is ten times as fast as `np.lexsort`, which is left for
    batches of millions of tokens, whose integers would be too long.
    """
    row_bits, position_bits = len(per_row).bit_length(), len(units).bit_length()
    if row_bits + 32 + position_bits > 64:
        return units[np.lexsort((draws[units], np.repeat(np.arange(len(per_row)), per_row)))]
    packed = np.repeat(np.arange(len(per_row), dtype=np.uint64) << np.uint64(64 - row_bits), per_row)
    packed |= draws[units].astype(np.uint64) << np.uint64(position_bits)
    packed |= np.arange(len(units), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << position_bits) - 1)
    return units[packed.view(np.int64)]
