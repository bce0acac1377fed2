"""Labels as files hold them, text or numbers, to class numbers and back."""

import math
from collections.abc import Iterable
from typing import Any

import datasets


def class_names(labels: Iterable[Any]) -> list[str]:
    """The classes of training labels, in the order of their numbers: by value where all are numbers, else by name.

    >>> class_names(["10", "9", "9"]), class_names(["no", "yes", "3"]), class_names([True, False])
    (['9', '10'], ['3', 'no', 'yes'], ['0', '1'])
    """
    found = {class_name(label) for label in labels}
    return sorted(found, key=int) if all(_is_whole(name) for name in found) else sorted(found)


def class_name(label: Any) -> str:
    """A label as text; flags as 0 and 1."""
    return str(int(label)) if isinstance(label, bool) else str(label)


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isascii() and name.removeprefix("-").isdigit()


def read_labels(data: datasets.DatasetDict, column: str) -> tuple[dict[str, list], list[str]]:
    """The labels of all splits as text, and the names of the classes.

    The column holds one label a row, or a list of them. A `ClassLabel` column knows its names and their order; other
    classes are those of the training rows.

    Returns:
        `{split: labels}`, and the names by class number.

    Raises:
        ValueError: for a row without label, or a label of an evaluation set that no training row has.
    """
    feature = data["train"].features[column]
    feature = getattr(feature, "feature", feature)
    known = feature.names if isinstance(feature, datasets.ClassLabel) else None
    labels = {}
    for split, rows in data.items():
        labels[split] = rows[column][:]
        for row, label in enumerate(labels[split]):
            is_nan = isinstance(label, float) and math.isnan(label)
            if label is None or label == "" or is_nan or (known and label == -1):
                raise ValueError(f"{split} data, row {row}: {column} is empty. Label the row or leave it out.")
        if known:
            labels[split] = [_map_labels(label, lambda number: known[number]) for label in labels[split]]
        else:
            labels[split] = [_map_labels(label, class_name) for label in labels[split]]
    names = known or class_names(_all_labels(labels["train"]))
    for split, values in labels.items():
        unseen = sorted(set(_all_labels(values)) - set(names))
        if unseen:
            raise ValueError(
                f"{split} data: {column} has the labels {unseen}, but no training row has. There are {names[:20]}. "
                "Another --held-out-seed draws other rows to hold out."
            )
    return labels, list(names)


def _map_labels(label: Any, function: Any) -> Any:
    return [function(one) for one in label] if isinstance(label, list) else function(label)


def _all_labels(labels: list) -> Iterable[Any]:
    for label in labels:
        if isinstance(label, list):
            yield from label
        else:
            yield label


def class_fields(names: list[str]) -> dict[str, Any]:
    """What a configuration says of its classes.

    >>> class_fields(["no", "yes"])
    {'num_labels': 2, 'id2label': {0: 'no', 1: 'yes'}, 'label2id': {'no': 0, 'yes': 1}}
    """
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
