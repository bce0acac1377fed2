"""Which units of an example are predicted: tokens, words or runs of words, drawn without order until a quota is full.

Everything here works on flat arrays of units. Units stand in the order of the text, those of one example together;
`counts[i]` of them belong to example i. A unit has a length in tokens.
"""

from typing import NamedTuple

import numpy as np

from hf_encoders.data.ragged import offsets_of
from hf_encoders.data.randomness import RandomStream, random_uint32_in_runs


class ChosenRuns(NamedTuple):
    """Runs of consecutive units that are predicted, in no particular order.

    Args:
        rows (`np.ndarray` of `int64`, shape `(R,)`): example of each run.
        first, end (`np.ndarray` of `int64`, shape `(R,)`): units of each run, `end` excluded.
    """

    rows: np.ndarray
    first: np.ndarray
    end: np.ndarray


_NOTHING = ChosenRuns(*np.empty((3, 0), dtype=np.int64))


def draw_tokens(keys: np.ndarray, lengths: np.ndarray, quotas: np.ndarray, allowed: np.ndarray) -> ChosenRuns:
    """Tokens one after the other, each place as likely as any other, without those drawn before, up to the quota.

    The same distribution as `choose_units` with units of one token, in less time: it draws places, about as many as
    are wanted, instead of a number for every place.

    Args:
        keys (`np.ndarray` of `uint64`, shape `(B,)`): from `example_keys`.
        lengths (`np.ndarray` of `int64`, shape `(B,)`): tokens of each example.
        quotas (`np.ndarray` of `int64`, shape `(B,)`): most tokens to choose in each example.
        allowed (`np.ndarray` of `bool`, shape `(N,)`): which tokens may be chosen.
    """
    begins, tries = offsets_of(lengths)[:-1], _tries(lengths, quotas)
    drawn = random_uint32_in_runs(keys, RandomStream.MASK_POSITION, tries).astype(np.uint64)
    drawn *= np.repeat(lengths.astype(np.uint64), tries)
    drawn >>= np.uint64(32)
    places = drawn.view(np.int64)
    places += np.repeat(begins, tries)

    is_new = allowed[places] & _is_first(places, len(allowed))
    rank = offsets_of(is_new)
    rank_begin = rank[offsets_of(tries)]
    filled = rank[1:] - np.repeat(rank_begin[:-1], tries)
    chosen = np.flatnonzero(is_new & (filled <= np.repeat(quotas, tries)))
    reached = np.minimum(np.diff(rank_begin), quotas)
    first = places[chosen]
    found = ChosenRuns(np.repeat(np.arange(len(keys)), reached), first, first + 1)

    too_few = reached < quotas
    if not too_few.any():
        return found
    found = ChosenRuns(*(array[~too_few[found.rows]] for array in found))
    others = np.repeat(too_few, lengths)
    draws = random_uint32_in_runs(keys[too_few], RandomStream.MASK_CHOICE, lengths[too_few])
    again = choose_units(draws, lengths[too_few], quotas[too_few], allowed=allowed[others])
    first = np.flatnonzero(others)[again.first]
    again = ChosenRuns(np.flatnonzero(too_few)[again.rows], first, first + 1)
    return ChosenRuns(*map(np.concatenate, zip(found, again, strict=True)))


def _tries(lengths: np.ndarray, quotas: np.ndarray) -> np.ndarray:
    """How many places to draw so that as many as wanted are different; none where that is more than half of them.

    Mean and variance of the coupon collector's tries. Four standard errors more, and a few for tokens that are not
    allowed, make it rarely too few.
    """
    share = np.where(2 * quotas <= lengths, quotas / np.maximum(lengths, 1), 0)
    mean = -lengths * np.log1p(-share)
    variance = np.maximum(lengths * (share / (1 - share) + np.log1p(-share)), 0)
    return np.ceil((mean + 4 * np.sqrt(variance) + 3) * (share > 0)).astype(np.int64)


def _is_first(places: np.ndarray, length: int) -> np.ndarray:
    """Which of the places, in `[0, length)`, did not come before.

    >>> _is_first(np.array([7, 3, 7, 3, 5]), 8).tolist()
    [True, True, False, False, True]
    """
    numbers = np.arange(len(places), dtype=np.int32)
    first_at = np.empty(length, dtype=np.int32)
    first_at[places[::-1]] = numbers[::-1]  # of several assignments to a place the last one stays
    return first_at[places] == numbers


def choose_units(
    draws: np.ndarray,
    counts: np.ndarray,
    quotas: np.ndarray,
    lengths: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    coins: np.ndarray | None = None,
) -> ChosenRuns:
    """Single units in ascending order of their draws, until the quota is full.

    What becomes of a unit too long for what is left of the quota: without `coins` it is passed over, and shorter ones
    come (the original BERT and ALBERT), which makes long units rare. With `coins` it is chosen with a probability of
    what is left over its length, and is the last one: so on average quotas are met and units of all lengths are alike.

    Args:
        draws (`np.ndarray` of `uint32`, shape `(U,)`): one random number a unit.
        counts (`np.ndarray` of `int64`, shape `(B,)`): units of each example.
        quotas (`np.ndarray` of `int64`, shape `(B,)`): units of length to choose in each example.
        lengths (`np.ndarray` of `int64`, shape `(U,)`, *optional*): length of each unit, 1 or more; all 1 if left out.
        allowed (`np.ndarray` of `bool`, shape `(U,)`, *optional*): which units may be chosen; all if left out.
        coins (`np.ndarray` of `float64`, shape `(B,)`, *optional*): a number in [0, 1) for each example.

    >>> draws = np.array([50, 10, 40, 20, 30], dtype=np.uint32)  # units 1, 3, 4, 2, 0 in this order; 3 does not fit
    >>> counts, quotas, lengths = np.array([5]), np.array([4]), np.array([1, 2, 1, 3, 2])
    >>> choose_units(draws, counts, quotas, lengths).first.tolist()
    [1, 4]
    >>> [choose_units(draws, counts, quotas, lengths, coins=np.array([coin])).first.tolist() for coin in (0.6, 0.7)]
    [[1, 3], [1]]
    """
    # Sorting is most of the work, and a unit is rarely chosen whose draw is far above the quota's share.
    totals = counts if lengths is None else np.diff(offsets_of(lengths)[offsets_of(counts)])
    share = quotas / np.maximum(totals, 1)
    roots = np.sqrt(np.maximum(counts, 1))
    likely = np.minimum(share + (4 * np.sqrt(share) + 4 / roots) / roots, 1)  # four standard errors more
    is_likely = draws <= np.repeat((likely * (2**32 - 1)).astype(np.uint32), counts)
    if allowed is not None:
        is_likely &= allowed
    units = np.flatnonzero(is_likely)
    chosen, is_full = _fill(units, draws, counts, quotas, lengths, coins)

    too_few = ~is_full & (likely < 1)
    if not too_few.any():
        return chosen
    others = np.repeat(too_few, counts)
    kept = ~too_few[chosen.rows]
    units = np.flatnonzero(others if allowed is None else others & allowed)
    again, _ = _fill(units, draws, counts, quotas, lengths, coins)
    return ChosenRuns(*(np.concatenate([one[kept], other]) for one, other in zip(chosen, again, strict=True)))


def choose_runs(
    draws: np.ndarray,
    counts: np.ndarray,
    quotas: np.ndarray,
    lengths: np.ndarray,
    sizes: np.ndarray,
    limits: np.ndarray,
) -> ChosenRuns:
    """Runs of units, begun at units in ascending order of their draws.

    A run too long for what is left of the quota is shortened until it fits; one that meets a unit chosen before is
    left out. This is the order of the checks in ALBERT's `create_masked_lm_predictions`.

    Args:
        draws, counts, quotas, lengths: as in `choose_units`.
        sizes (`np.ndarray` of `int64`, shape `(U,)`): how many units a run has that begins at this one.
        limits (`np.ndarray` of `int64`, shape `(U,)`): unit that a run which begins at this one ends before.

    >>> draws = np.array([50, 10, 40, 20, 30], dtype=np.uint32)
    >>> two = np.full(5, 2)
    >>> runs = choose_runs(draws, np.array([5]), np.array([3]), np.ones(5, int), two, np.full(5, 5))
    >>> runs.first.tolist(), runs.end.tolist()
    ([1, 3], [3, 4])
    """
    order = _order(np.arange(len(draws)), draws, counts)
    starts, before = offsets_of(counts)[:-1], offsets_of(lengths)
    steps = np.arange(int(sizes.max(initial=1)))
    is_taken = np.zeros(len(draws), dtype=bool)
    filled = np.zeros(len(counts), dtype=np.int64)
    found = []
    rows, tried = np.flatnonzero((quotas > 0) & (counts > 0)), 0
    while len(rows):  # all examples at once, a candidate of each: about as many rounds as an example has runs
        first = order[starts[rows] + tried]
        fitting = np.searchsorted(before, before[first] + quotas[rows] - filled[rows], "right") - 1
        end = np.minimum(np.minimum(first + sizes[first], limits[first]), fitting)
        members = first[:, None] + steps
        is_member = members < end[:, None]
        members = np.minimum(members, len(draws) - 1)
        accepted = (end > first) & ~(is_taken[members] & is_member).any(axis=1)
        is_taken[members[accepted][is_member[accepted]]] = True
        first, end, of_rows = first[accepted], end[accepted], rows[accepted]
        run_lengths = before[end] - before[first]
        found.append((of_rows, first, end))
        filled[of_rows] += run_lengths
        tried += 1
        rows = rows[(filled[rows] < quotas[rows]) & (tried < counts[rows])]
    return ChosenRuns(*map(np.concatenate, zip(*found, strict=True))) if found else _NOTHING


def _fill(
    units: np.ndarray,
    draws: np.ndarray,
    counts: np.ndarray,
    quotas: np.ndarray,
    lengths: np.ndarray | None,
    coins: np.ndarray | None,
) -> tuple[ChosenRuns, np.ndarray]:
    """Choose among `units` only, which ascend; and which quotas these were enough for."""
    of_rows = _counts_of(units, counts)
    units = _order(units, draws, of_rows)
    left, found, is_full = quotas, [], np.zeros(len(quotas), dtype=bool)
    while len(units):
        starts = offsets_of(of_rows)
        before = np.arange(len(units) + 1) if lengths is None else offsets_of(lengths[units])
        filled = before[1:] - np.repeat(before[starts[:-1]], of_rows)
        fitting = filled
        if coins is not None and lengths is not None:
            # Less than the quota if the coin, a share of the unit's length, falls into what is left.
            fitting = filled - lengths[units] + np.floor(np.repeat(coins, of_rows) * lengths[units]) + 1
        accepted = fitting <= np.repeat(left, of_rows)
        accepted_of_rows = np.diff(offsets_of(accepted)[starts])
        rows = np.repeat(np.arange(len(quotas)), accepted_of_rows)
        units_accepted = units[accepted]
        found.append((rows, units_accepted, units_accepted + 1))
        if lengths is None or coins is not None:
            is_full |= before[starts[1:]] - before[starts[:-1]] >= left
            break
        left = left - np.diff(offsets_of(lengths[units] * accepted)[starts])
        is_full |= left == 0
        # Accepted were those up to the first that was too long; of the others, the ones that still fit come next.
        remaining = ~accepted & (lengths[units] <= np.repeat(left, of_rows))
        units, of_rows = units[remaining], np.diff(offsets_of(remaining)[starts])
    return ChosenRuns(*map(np.concatenate, zip(*found, strict=True))) if found else _NOTHING, is_full | (quotas == 0)


def _counts_of(units: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How many of `units`, which ascend, each example has."""
    return np.diff(np.searchsorted(units, offsets_of(counts)))


def _order(units: np.ndarray, draws: np.ndarray, of_rows: np.ndarray) -> np.ndarray:
    """`units`, of which each example has `of_rows`, in ascending order of the draws within their example.

    One sort of numbers that are made of example, draw and place; ten times faster than `np.lexsort`, which sorts
    batches of millions of tokens, whose numbers would be too long.
    """
    row_bits, place_bits = len(of_rows).bit_length(), len(units).bit_length()
    if row_bits + 32 + place_bits > 64:
        return units[np.lexsort((draws[units], np.repeat(np.arange(len(of_rows)), of_rows)))]
    packed = np.repeat(np.arange(len(of_rows), dtype=np.uint64) << np.uint64(64 - row_bits), of_rows)
    packed |= draws[units].astype(np.uint64) << np.uint64(place_bits)
    packed |= np.arange(len(units), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << place_bits) - 1)
    return units[packed.view(np.int64)]
