"""Labels as they are in the user's data, text or numbers, to names of classes."""

import ast
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import datasets

from hf_encoders.finetuning.task import require_columns
from hf_encoders.objectives.batch import IGNORED


NO_LABEL = ("", str(IGNORED))
# A list, tuple or set as Python or JSON writes it; "(a)" and "{a}" are names.
LIST_IN_TEXT = re.compile(r"""\[.*\]|\(\s*['"].*\)|\{\s*['"].*\}|set\(\)""", re.DOTALL)
BINARY = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def class_names(labels: Iterable[Any]) -> list[str]:
    """Return the classes of labels in the order of their ids: by value if all are whole numbers, else by name."""
    names = {class_name(label) for label in labels}
    is_whole = all(name.isascii() and name.removeprefix("-").isdigit() for name in names)
    return sorted(names, key=int if is_whole else None)


def class_name(label: Any) -> str:
    """Return a label as text, without spaces at its ends; booleans as 0 and 1."""
    return str(int(label)) if isinstance(label, bool) else str(label).strip()


def names_of_column(rows: datasets.Dataset, column: str) -> list[str] | None:
    """Return the names of a `ClassLabel` column, or of one with lists of class labels; None for other columns."""
    feature = rows.features[column]
    if isinstance(feature, datasets.List | datasets.LargeList):
        feature = feature.feature
    return list(map(class_name, feature.names)) if isinstance(feature, datasets.ClassLabel) else None


def name_of(label: Any, known: list[str] | None) -> str | None:
    """Return the name of a label; None if there is none: `None`, NaN, no text, or -100.

    With the names `known` of a `ClassLabel` column, labels are their numbers, and -1 is none. Elsewhere it may be a
    class: bad, neutral, good.
    """
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return None
    if known is not None:
        return known[label] if 0 <= label < len(known) else None
    name = class_name(label)
    return None if name in NO_LABEL else name


def read_labels(data: datasets.DatasetDict, column: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the label of each row of all splits as text, and the names of the classes.

    The classes are those of a `ClassLabel` column in its order, else those of the training rows.
    """
    labels: dict[str, list[str]] = {}
    for split, rows in data.items():
        known, values = names_of_column(rows, column), rows[column][:]
        row = row_of_several(values)
        if row is not None:
            raise ValueError(
                f"{split} data, row {row}: {column} is {values[row]!r}: for several labels use --multi-label."
            )
        names = [name_of(label, known) for label in values]
        if None in names:
            row = names.index(None)
            raise ValueError(
                f"{split} data, row {row}: {column} is {values[row]!r}, which marks no label: give the row one, or "
                f"leave it out{'; --test-split none leaves out a test set without labels' * (split == 'test')}."
            )
        labels[split] = names
    return labels, classes_of(labels, data, column)


def row_of_several(labels: Sequence[Any]) -> int | None:
    """Return the first row of a column that has a list of labels, also in text; None without one.

    A text such as `[1, 5]` may be an interval, the name of a label, unless all rows are lists of 0 and 1.

    >>> row_of_several(["a", "['b', 'c']"]), row_of_several(["[1, 0]", "[0, 1]"]), row_of_several(["[1, 5]", "[5]"])
    (1, 0, None)
    """
    lists = [label if isinstance(label, list | dict) else list_in_text(str(label)) for label in labels]
    if None not in lists and are_binary(lists):
        return 0
    for row, (label, elements) in enumerate(zip(labels, lists, strict=True)):
        has_numbers = any(isinstance(element, int | float) for element in elements or ())
        if elements is not None and not (isinstance(label, str) and has_numbers):
            return row
    return None


def read_label_lists(
    data: datasets.DatasetDict, columns: Sequence[str], separator: str
) -> tuple[dict[str, list[list[str]]], list[str]]:
    """Return the labels of each row of all splits, and the names of the classes.

    A single column has lists, or text: a list as Python or JSON writes it, or labels between separators. Of several
    columns, each is a class, with 0 or 1 (false or true) in each row.
    """
    if len(columns) > 1:
        return {split: labels_of_columns(rows, columns, split) for split, rows in data.items()}, list(columns)
    [column] = columns
    labels: dict[str, list[list[str]]] = {}
    for split, rows in data.items():
        known, values = names_of_column(rows, column), rows[column][:]
        lists = [split_labels(value, separator, f"{split} data, row {i}: {column}") for i, value in enumerate(values)]
        if split == "train" and are_binary(lists):
            raise ValueError(
                f"train data, row 0: {column} is {values[0]!r}: rows of 0 and 1 do not name the labels. Give one "
                "column per label (--label-column pump,valve,fault), or the names of each row's labels."
            )
        # The number -1 fills up lists; as text it may be a class.
        labels[split] = [[None if label == -1 else name_of(label, known) for label in row] for row in lists]
        for row, names in enumerate(labels[split]):
            if None in names:
                raise ValueError(
                    f"{split} data, row {row}: {column} is {values[row]!r}, and {lists[row][names.index(None)]!r} is "
                    "no label: leave it out of the list; an empty list is a row without labels."
                )
    occurring = {split: list(chain.from_iterable(rows)) for split, rows in labels.items()}
    return labels, classes_of(occurring, data, column)


def label_columns(data: datasets.DatasetDict, column: str | Sequence[str], multi_label: bool) -> list[str]:
    """Return the columns of the labels: one, or several with `multi_label`, also from text with commas."""
    if isinstance(column, str):
        is_single = column in data["train"].column_names or "," not in column
        column = [column] if is_single else [name.strip() for name in column.split(",")]
    if len(column) > 1 and not multi_label:
        raise ValueError(f"--label-column {','.join(column)}: several columns are for --multi-label: add it.")
    for name in column:
        require_columns(data, label_column=name)
    return list(column)


def labels_of_columns(rows: datasets.Dataset, columns: Sequence[str], split: str) -> list[list[str]]:
    """Return the names of the columns that are 1, or true, in each row."""
    labels: list[list[str]] = [[] for _ in range(len(rows))]
    for column in columns:
        for row, value in enumerate(rows[column]):
            is_label = BINARY.get(str(value).strip().lower())
            if is_label is None:
                raise ValueError(
                    f"{split} data, row {row}: {column} is {value!r}: with one column per label each must be 0 or 1, "
                    "or false or true."
                )
            if is_label:
                labels[row].append(column)
    return labels


def split_labels(labels: Any, separator: str, where: str) -> list:
    """Return the labels of one row as a list; `where` names the row in messages."""
    if isinstance(labels, list):
        elements = labels
    elif not isinstance(labels, str):
        raise ValueError(f"{where} is {labels!r}: --multi-label needs a list, or text.")
    elif LIST_IN_TEXT.fullmatch(labels.strip()):
        elements = list_in_text(labels)
    else:
        elements = [label for label in labels.split(separator) if label.strip()]
    if elements is None or any(isinstance(element, list | dict) for element in elements):
        raise ValueError(
            f"{where} is {labels!r}, which is not a list of labels: write it as ['pump', 'fault'], or without "
            "brackets."
        )
    return elements


def list_in_text(text: str) -> list | None:
    """Return the list that a text is in Python or JSON; None for other text, such as that of a numpy array.

    >>> [list_in_text(text) for text in ("['a', 'b']", '["a", null]', "{'a'}", "['a' 'b']", "[a]", "a")]
    [['a', 'b'], ['a', None], ['a'], None, None, None]
    """
    text = text.strip()
    # Python would join strings without a comma between them.
    if not LIST_IN_TEXT.fullmatch(text) or re.search(r"""['"]\s+['"]""", text):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return list(parse(text))
        except (ValueError, SyntaxError):
            continue
    return None


def are_binary(rows: list[list]) -> bool:
    """Return whether rows have a 0 or 1 for each class, instead of the names of their classes.

    >>> are_binary([[1, 0, 1], [0, 1, 0]]), are_binary([["1", "0"], ["0", "1"]]), are_binary([[0, 1], [1], []])
    (True, True, False)
    """
    rows = [[str(element).strip().lower() for element in row] for row in rows]
    if not any(rows) or not all(element in BINARY for row in rows for element in row):
        return False
    lengths = set(map(len, rows))
    return any(len(set(row)) < len(row) for row in rows) or (len(lengths) == 1 and lengths != {1})


def classes_of(labels: dict[str, list[str]], data: datasets.DatasetDict, column: str) -> list[str]:
    """Return the names of the classes, each once; refuse labels of any split that are not among them."""
    names = list(dict.fromkeys(names_of_column(data["train"], column) or class_names(labels["train"])))
    for split, values in labels.items():
        unseen = sorted(set(values) - set(names))
        if unseen:
            raise ValueError(
                f"{split} data: {column} has the labels {unseen}, which no training row has. There are {names[:20]}. "
                "Label those rows otherwise, or leave them out; if they were held out of the training rows, give "
                "another --held-out-seed, or --held-out 0."
            )
    return names


def class_fields(names: list[str], column: str) -> dict[str, Any]:
    """Return the fields of a configuration for at least two classes."""
    if len(names) < 2:
        count = f"one class ({names[0]!r})" if names else "no class"
        raise ValueError(f"{column} has {count}; at least two are needed.")
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }


def describe_names(names: list[str], kind: str) -> list[str]:
    """Return lines about the names of classes for the plan, with a warning of those that differ in capitals only."""
    alike = defaultdict(list)
    for name in names:
        alike[name.casefold()].append(repr(name))
    shown = ", ".join(names[:10]) + " ..." * (len(names) > 10)
    warnings = [
        f"WARNING: the {kind} {', '.join(same)} differ in capitals only: write them alike if they mean the same."
        for same in alike.values()
        if len(same) > 1
    ]
    return [f"{len(names)} {kind}: {shown}", *warnings]
