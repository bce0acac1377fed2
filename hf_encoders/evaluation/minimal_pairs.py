"""Minimal pairs: two sentences that differ in one thing, one acceptable and one not (BLiMP, Warstadt et al. 2020).

A model is right if it gives the acceptable sentence the greater score (https://arxiv.org/abs/1912.00582, section 4.1).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hf_encoders.data.labelled_files import read_file


class MinimalPair(NamedTuple):
    """Two sentences, and what the difference is about."""

    sentence_good: str
    sentence_bad: str
    paradigm: str


def read_minimal_pairs(paths: Sequence[str | Path], most_per_file: int | None = None) -> list[MinimalPair]:
    """Pairs of JSON lines files in BLiMP's form: `sentence_good`, `sentence_bad` and perhaps `UID`, the paradigm.

    Args:
        paths: files, or folders of which all `*.jsonl` are read, sorted by name.
        most_per_file (`int`, *optional*): read that many pairs from the top of each file.

    Returns:
        All pairs in order; without `UID` the paradigm is the file's name without its ending.

    Raises:
        ValueError: for a path that does not exist, a folder without such files, a row without the two sentences.
    """
    files = []
    for path in map(Path, paths):
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            raise ValueError(f"{path}: {'holds no *.jsonl file' if path.is_dir() else 'is no file'}: name the files.")
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


class PairFigures(NamedTuple):
    """How many pairs are right.

    Args:
        accuracy (`float`): share of the pairs whose acceptable sentence has the greater score, in [0, 1].
        pairs (`int`): how many there are.
        ties (`int`): pairs with two equal scores, which count as wrong: sentences that are the same to the tokenizer.
    """

    accuracy: float
    pairs: int
    ties: int


def compare_pairs(
    good: np.ndarray, bad: np.ndarray, paradigms: Sequence[str]
) -> tuple[PairFigures, dict[str, PairFigures]]:
    """Figures of all pairs together and of each paradigm.

    Args:
        good, bad (`np.ndarray` of shape `(pairs,)`): scores of the acceptable and of the other sentences.
        paradigms (`Sequence` of `str`): one a pair.

    Returns:
        Figures of all pairs, each counting the same, and by paradigm, sorted by name.

    >>> overall, by_paradigm = compare_pairs(np.array([-1., -2., -3.]), np.array([-2., -2., -4.]), ["a", "a", "b"])
    >>> overall
    PairFigures(accuracy=0.6666666666666666, pairs=3, ties=1)
    >>> by_paradigm["a"].accuracy, by_paradigm["b"].accuracy
    (0.5, 1.0)
    """

    def figures(chosen: np.ndarray) -> PairFigures:
        is_right, is_tie = good[chosen] > bad[chosen], good[chosen] == bad[chosen]
        return PairFigures(float(is_right.mean()), len(is_right), int(is_tie.sum()))

    names = np.array(paradigms)
    by_paradigm = {str(name): figures(names == name) for name in sorted(set(paradigms))}
    return figures(np.ones(len(names), dtype=bool)), by_paradigm
