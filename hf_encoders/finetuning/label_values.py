"""Labels as they are in files, text or numbers, to class ids and back."""

import math
from collections.abc import Iterable
from typing import Any

import datasets


def class_names(labels: Iterable[Any]) -> list[str]:
    """The classes of training labels in the order of their ids: by value if all are whole numbers, else by name.

    >>> class_names(["10", "9", "9"]), class_names(["no", "yes", "3"]), class_names([True, False])
    (['9', '10'], ['3', 'no', 'yes'], ['0', '1'])
    """
    found = {class_name(label) for label in labels}
    is_whole = all(name.isascii() and name.removeprefix("-").isdigit() for name in found)
    return sorted(found, key=int if is_whole else None)


def class_name(label: Any) -> str:
    """A label as text; booleans as 0 and 1."""
    return str(int(label)) if isinstance(label, bool) else str(label)


def names_of_column(rows: datasets.Dataset, column: str) -> list[str] | None:
    """The names of a `ClassLabel` column, or of one with lists of class labels; None for other columns."""
    feature = rows.features[column]
    if isinstance(feature, datasets.List | datasets.LargeList):
        feature = feature.feature
    return list(feature.names) if isinstance(feature, datasets.ClassLabel) else None


def read_labels(data: datasets.DatasetDict, column: str) -> tuple[dict[str, list], list[str]]:
    """The labels of all splits as text, and the names of the classes.

    The column has one label per row, or a list of them. The classes are those of a `ClassLabel` column in its order,
    else those of the training rows.
    """
    known = names_of_column(data["train"], column)
    name = known.__getitem__ if known else class_name
    labels: dict[str, list] = {}
    for split, rows in data.items():
        labels[split] = []
        for row, label in enumerate(rows[column]):
            is_nan = isinstance(label, float) and math.isnan(label)
            if label is None or label == "" or is_nan or (known and label == -1):
                raise ValueError(
                    f"{split} data, row {row}: {column} is empty. Label the row or leave it out"
                    f"{'; --test-split none leaves a test set without labels out' * (split == 'test')}."
                )
            labels[split].append([name(one) for one in label] if isinstance(label, list) else name(label))
    found = {
        split: {one for label in values for one in (label if isinstance(label, list) else [label])}
        for split, values in labels.items()
    }
    names = known or class_names(found["train"])
    for split, values in found.items():
        unseen = sorted(values - set(names))
        if unseen:
            raise ValueError(
                f"{split} data: {column} has the labels {unseen}, which no training row has. There are {names[:20]}. "
                "Label those rows otherwise, or leave them out; if they were held out of the training rows, give "
                "another --held-out-seed, or --held-out 0."
            )
    return labels, names


def class_fields(names: list[str], column: str) -> dict[str, Any]:
    """The fields of a configuration for at least two classes."""
    if len(names) < 2:
        what = f"one class ({names[0]!r})" if names else "no class"
        raise ValueError(f"{column} has {what}; at least two are needed.")
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
