"""Minimal pairs: two sentences that differ in one aspect, one of them acceptable (BLiMP, Warstadt et al. 2020).

A model is right if it gives the acceptable sentence the higher score (https://arxiv.org/abs/1912.00582, section 4.1).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hf_encoders.corpus.labelled_files import read_file


class MinimalPair(NamedTuple):
    """Two sentences, and the linguistic paradigm of their difference."""

    sentence_good: str
    sentence_bad: str
    paradigm: str


def read_minimal_pairs(paths: Sequence[str | Path], most_per_file: int | None = None) -> list[MinimalPair]:
    """Read pairs from JSON lines files in BLiMP's format: `sentence_good`, `sentence_bad` and optionally `UID`.

    The paradigm of a pair is the `UID`, or the file's name without its ending.

    Args:
        paths (`Sequence`): Files, or folders whose `*.jsonl` are read in the order of their names.
        most_per_file (`int`, *optional*): Read only the first pairs of each file.
    """
    files = []
    for path in map(Path, paths):
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            raise ValueError(f"{path}: {'has no *.jsonl file' if path.is_dir() else 'is not a file'}: name the files.")
        files += found
    pairs = []
    for file in files:
        for number, row in enumerate(read_file(file, "jsonl"), 1):
            if most_per_file is not None and number > most_per_file:
                break
            for name in ("sentence_good", "sentence_bad"):
                if not isinstance(row.get(name), str):
                    raise ValueError(f"{file}, row {number}: {name} is {row.get(name)!r}: it must be a sentence.")
            pairs.append(MinimalPair(row["sentence_good"], row["sentence_bad"], str(row.get("UID") or file.stem)))
    return pairs


class PairResult(NamedTuple):
    """Result over pairs."""

    accuracy: float  # share of pairs whose acceptable sentence has the higher score, in [0, 1]
    pairs: int
    ties: int  # pairs with equal scores, which count as wrong: their sentences have the same tokens


def compare_pairs(
    good: np.ndarray, bad: np.ndarray, paradigms: Sequence[str]
) -> tuple[PairResult, dict[str, PairResult]]:
    """The result of all pairs, and those by paradigm, sorted by name.

    Args:
        good, bad (`np.ndarray` of shape `(pairs,)`): Scores of the acceptable and of the other sentences.
        paradigms (`Sequence` of `str`): Of each pair.

    >>> overall, by_paradigm = compare_pairs(np.array([-1., -2., -3.]), np.array([-2., -2., -4.]), ["a", "a", "b"])
    >>> overall
    PairResult(accuracy=0.6666666666666666, pairs=3, ties=1)
    >>> by_paradigm["a"].accuracy, by_paradigm["b"].accuracy
    (0.5, 1.0)
    """

    def result(chosen: np.ndarray) -> PairResult:
        is_right, is_tie = good[chosen] > bad[chosen], good[chosen] == bad[chosen]
        return PairResult(float(is_right.mean()), len(is_right), int(is_tie.sum()))

    names = np.array(paradigms)
    by_paradigm = {str(name): result(names == name) for name in sorted(set(paradigms))}
    return result(np.ones(len(names), dtype=bool)), by_paradigm
