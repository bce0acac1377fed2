"""Rows to evaluate on that were trained on."""

from collections.abc import Sequence
from typing import Any

import datasets


def repeated_rows(data: datasets.DatasetDict, columns: Sequence[str]) -> dict[str, int]:
    r"""How many rows of each evaluation set are equal to a training row in `columns`; sets without one are left out.

    White space counts for nothing at the ends of a text, and elsewhere for one space. Labels may differ.

    >>> rows = {name: datasets.Dataset.from_dict({"text": texts})
    ...         for name, texts in (("train", ["a  b", "c"]), ("test", ["a b\n", "B", "c"]))}
    >>> repeated_rows(datasets.DatasetDict(rows), ["text"])
    {'test': 2}
    """
    if not columns:
        return {}
    trained = set(_inputs(data["train"], columns))
    counts = {
        split: sum(row in trained for row in _inputs(rows, columns))
        for split, rows in data.items()
        if split != "train"
    }
    return {split: count for split, count in counts.items() if count > 0}


def describe_repeated(repeated: dict[str, int], data: datasets.DatasetDict, columns: Sequence[str]) -> list[str]:
    """A warning for each evaluation set that has rows of the training data."""
    return [
        f"{split}: {count:,} of {len(data[split]):,} rows are in the training data too, with the same "
        f"{', '.join(columns)}: what is measured on them says little of new data. Remove them from one of the two."
        for split, count in repeated.items()
    ]


def _inputs(rows: datasets.Dataset, columns: Sequence[str]) -> list[tuple]:
    return list(zip(*([_normalised(value) for value in rows[column]] for column in columns), strict=True))


def _normalised(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_normalised, value))
    return " ".join(str(value).split())
