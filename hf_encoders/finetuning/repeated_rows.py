"""Evaluation rows that are also training rows."""

from collections.abc import Sequence
from typing import Any

import datasets


def repeated_rows(data: datasets.DatasetDict, columns: Sequence[str]) -> dict[str, int]:
    r"""Number of rows of each evaluation set that equal a training row in `columns`; sets without any are left out.

    White space is normalised. Labels may differ.

    >>> rows = {name: datasets.Dataset.from_dict({"text": texts})
    ...         for name, texts in (("train", ["a  b", "c"]), ("test", ["a b\n", "B", "c"]))}
    >>> repeated_rows(datasets.DatasetDict(rows), ["text"])
    {'test': 2}
    """
    if not columns:
        return {}
    inputs = {
        split: list(zip(*(map(_normalised, rows[column]) for column in columns), strict=True))
        for split, rows in data.items()
    }
    trained = set(inputs.pop("train"))
    counts = {split: sum(row in trained for row in rows) for split, rows in inputs.items()}
    return {split: count for split, count in counts.items() if count > 0}


def _normalised(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_normalised, value))
    return " ".join(str(value).split())


def describe_repeated(repeated: dict[str, int], data: datasets.DatasetDict, columns: Sequence[str]) -> list[str]:
    """A warning for each evaluation set with training rows."""
    return [
        f"{split}: {count:,} of {len(data[split]):,} rows are in the training data too, with the same "
        f"{', '.join(columns)}: metrics on them say little about new data. Remove them from one of the two."
        for split, count in repeated.items()
    ]
