"""The vectorised choices against loops that take one unit at a time."""

from itertools import permutations

import numpy as np
import pytest

from hf_encoders.corpus.randomness import example_keys
from hf_encoders.objectives.mask_units import _tries, choose_in_window, choose_runs, choose_units, sample_tokens


def batch(seed, examples=40, most_units=60, longest=4):
    random = np.random.default_rng(seed)
    counts = random.integers(0, most_units, examples)
    lengths = random.integers(1, longest + 1, counts.sum())
    draws = random.integers(0, 2**32, counts.sum()).astype(np.uint32)
    limits = random.integers(0, 25, examples)
    return random, counts, lengths, draws, limits


def rows_of(counts):
    ends = np.cumsum(counts)
    return [range(end - count, end) for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("longest", [1, 4])
def test_units_are_taken_in_order_and_passed_over_where_they_do_not_fit(seed, longest):
    _, counts, lengths, draws, limits = batch(seed, longest=longest)
    expected = []
    for row, limit in zip(rows_of(counts), limits.tolist(), strict=True):
        filled = 0
        for unit in sorted(row, key=lambda u: draws[u]):
            if filled + lengths[unit] <= limit:
                filled += lengths[unit]
                expected.append(unit)
    runs = choose_units(draws, counts, limits, lengths)
    assert sorted(runs.first.tolist()) == sorted(expected)
    assert (runs.end == runs.first + 1).all()


@pytest.mark.parametrize("sizes", [(1, 9), (1, 1, 2), (1, 2, 3, 8), (4, 4, 4), (7,), (1, 5, 2, 2, 6)])
def test_every_unit_is_as_likely_whatever_its_length(sizes):
    """All orders and all beginnings of the window, counted: exactly limit / tokens, so the mean total is the limit."""
    lengths, orders = np.array(sizes), np.array(list(permutations(range(len(sizes)))))
    total = lengths.sum()
    draws = np.repeat(orders, total, axis=0).astype(np.uint32).ravel()
    starts = np.tile(np.arange(total), len(orders))
    counts = np.full(len(starts), len(sizes))
    for limit in range(total + 1):
        runs = choose_in_window(draws, counts, np.full(len(starts), limit), np.tile(lengths, len(starts)), starts)
        times = np.bincount(runs.first % len(sizes), minlength=len(sizes))
        assert times.tolist() == [limit * len(orders)] * len(sizes)


@pytest.mark.parametrize("seed", range(5))
def test_units_are_those_whose_middle_is_in_a_window_of_the_circle(seed):
    random, counts, lengths, draws, limits = batch(seed)
    totals = [int(lengths[row].sum()) for row in rows_of(counts)]
    starts = np.array([random.integers(total) if total else 0 for total in totals])
    expected = []
    for row, limit, start in zip(rows_of(counts), limits.tolist(), starts.tolist(), strict=True):
        tokens = [(unit, place) for unit in row for place in range(lengths[unit])]
        circle = [pair for unit in sorted(row, key=lambda u: draws[u]) for pair in tokens if pair[0] == unit]
        # The window begins at the same token; the unit that holds it comes first, and the others in their order.
        first = tokens[start][0] if tokens else None
        circle = [pair for pair in circle if pair[0] == first] + [pair for pair in circle if pair[0] != first]
        begin = circle.index(tokens[start]) if tokens else 0
        window = (circle[begin:] + circle[:begin])[:limit]
        expected += [unit for unit, place in window if place == lengths[unit] // 2]
    found = choose_in_window(draws, counts, limits, lengths, starts)
    assert sorted(found.first.tolist()) == sorted(expected)
    assert (found.end == found.first + 1).all()
    assert (np.searchsorted(np.cumsum(counts), found.first, "right") == found.rows).all()
    fewer = choose_in_window(draws, counts, limits // 2, lengths, starts)
    assert set(fewer.first.tolist()) <= set(expected)


@pytest.mark.parametrize("seed", range(5))
def test_tokens_are_units_of_one_and_not_all_are_allowed(seed):
    random, counts, _, draws, limits = batch(seed)
    allowed = random.random(len(draws)) < 0.7
    expected = []
    for row, limit in zip(rows_of(counts), limits.tolist(), strict=True):
        expected += sorted((u for u in row if allowed[u]), key=lambda u: draws[u])[:limit]
    assert sorted(choose_units(draws, counts, limits, allowed=allowed).first.tolist()) == sorted(expected)


def test_a_first_look_at_too_few_units_is_mended():
    """All units but the last are too long, so that those with small draws do not fill the limit."""
    draws = np.arange(1000, dtype=np.uint32) << np.uint32(22)
    lengths = np.append(np.full(999, 9), 1)
    runs = choose_units(draws, np.array([1000]), np.array([10]), lengths)
    assert runs.first.tolist() == [0, 999]


@pytest.mark.parametrize("seed", range(5))
def test_runs_are_shortened_to_fit_and_left_out_where_they_overlap(seed):
    random, counts, lengths, draws, limits = batch(seed)
    sizes = random.integers(1, 5, len(draws))
    # Texts inside of the examples, which runs do not cross.
    is_start = random.random(len(draws)) < 0.1
    is_start[[row[0] for row in rows_of(counts) if len(row)]] = True
    starts = np.append(np.flatnonzero(is_start), len(draws))
    ends = starts[np.searchsorted(starts, np.arange(len(draws)), "right")]
    expected = {}
    for row, limit in zip(rows_of(counts), limits.tolist(), strict=True):
        taken, filled = set(), 0
        for unit in sorted(row, key=lambda u: draws[u]):
            if filled >= limit:
                break
            size = int(min(sizes[unit], ends[unit] - unit))
            while size and filled + lengths[unit : unit + size].sum() > limit:
                size -= 1
            run = range(unit, unit + size)
            if size and not taken & set(run):
                taken |= set(run)
                filled += int(lengths[unit : unit + size].sum())
                expected[unit] = unit + size
    runs = choose_runs(draws, counts, limits, lengths, sizes, ends)
    assert dict(zip(runs.first.tolist(), runs.end.tolist(), strict=True)) == expected


def test_batches_without_units_choose_nothing():
    empty = np.empty(0, dtype=np.int64)
    counts, limits = np.array([0, 0]), np.array([3, 3])
    assert len(choose_units(empty.astype(np.uint32), counts, limits, empty).first) == 0
    assert len(choose_in_window(empty.astype(np.uint32), counts, limits, empty, np.zeros(2, int)).first) == 0
    assert len(choose_runs(empty.astype(np.uint32), counts, limits, empty, empty, empty).first) == 0


@pytest.mark.parametrize(
    ("length", "limit"), [(1, 1), (3, 1), (12, 5), (12, 6), (12, 7), (12, 12), (40, 6), (500, 75)]
)
def test_positions_are_sampled_uniformly_without_replacement(length, limit):
    """Also where the second stream is needed: more than half of the places, or too many repetitions."""
    number = 6000
    allowed = np.ones(number * length, dtype=bool)
    if length > 12:
        allowed.reshape(number, length)[:, ::4] = False  # many repetitions of the others
    available = int(allowed[:length].sum())
    lengths, limits = np.full(number, length), np.full(number, limit)
    runs = sample_tokens(example_keys(0, 0, np.arange(number)), lengths, limits, allowed)
    assert (runs.rows == runs.first // length).all()
    assert len(np.unique(runs.first)) == len(runs.first) == number * limit
    counts = np.bincount(runs.first % length, minlength=length)
    assert (counts[~allowed[:length]] == 0).all()
    share = limit / available
    deviation = abs(counts[allowed[:length]] - number * share).max()
    assert deviation <= 5 * np.sqrt(number * share * (1 - share))


def test_tries_are_enough_nearly_always():
    lengths = np.repeat([8, 40, 128, 512], 2000)
    limits = np.maximum(lengths * 15 // 100, 1)
    drawn = np.split(
        np.random.default_rng(0).random(_tries(lengths, limits).sum()), np.cumsum(_tries(lengths, limits))
    )
    enough = [len(set((row * n).astype(int))) >= q for row, n, q in zip(drawn, lengths, limits, strict=False)]
    assert np.mean(enough) > 0.999
    assert 4 <= _tries(np.array([10**9]), np.array([1])) <= 6  # no rounding error below zero
