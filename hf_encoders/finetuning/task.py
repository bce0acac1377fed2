"""The interface between the modules of the tasks and the training loop in `runs.py`, and what the tasks share.

A task is a module with a docstring, the help of its command, and two functions. `add_arguments(group)` adds the task's
options, such as `--text-column`; those that all tasks share, such as `--model` and `--max-length`, belong to the
command. `prepare(data, tokenizer, *, max_length, ...)` returns a `PreparedTask`; its other keyword-only parameters
are the options under the same names, with the same defaults. `data` is a `datasets.DatasetDict` of raw rows with
`train` and optionally `validation` and `test`, in the formats of `labelled_files.py`; `tokenizer` is the encoder's.
`max_length` is the longest input in tokens, with special tokens, at most what model and tokenizer take.

The module is imported for its options and its help: it imports transformers, datasets and numpy inside of functions.

Errors in the user's data are `ValueError`s of `prepare` that name column, row or label.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
)

from hf_encoders.writing import with_bar


TEXTS_AT_ONCE = 1000  # tokenized
ComputeMetrics = Callable[[EvalPrediction], dict[str, float]]


class PredictedRow(NamedTuple):
    """A row of an evaluation set with its prediction, as a person reads it."""

    inputs: Mapping[str, str]  # column -> text
    labels: Sequence[str]
    predictions: Sequence[tuple[str, float | None]]  # each with its probability, if it has one
    is_right: bool | None  # None for numbers


@dataclass
class PreparedTask:
    """A task for the training loop.

    The baseline is the best that one answer to all items can be, without reading the input. For labels this is the
    most frequent one of the evaluation set itself: a model that always predicts it has learned nothing, also where it
    exceeds the most frequent label of the training set.
    """

    auto_class: type  # the head, `transformers.AutoModelFor...`
    config_fields: dict[str, Any]  # of the head: `id2label` and `label2id`, or `num_labels`, `problem_type` ...
    train_set: datasets.Dataset  # tokenized rows, unpadded; `Trainer` removes columns that `forward` does not have
    eval_sets: dict[str, datasets.Dataset]  # `validation` and `test`, as far as they exist, with labels
    data_collator: Callable[[list[dict[str, Any]]], dict[str, Any]]
    # Name of an evaluation set -> `compute_metrics` of `Trainer` for it; metric names without the prefix `eval_`.
    compute_metrics: Callable[[str], ComputeMetrics]
    main_metric: str  # chooses the best checkpoint; greater is better
    label_names: list[str] | None = None  # names of the classes by id, for class weights and the record
    # Called with a path, an evaluation set and the predictions of `Trainer.predict`; writes the task's usual format.
    write_predictions: Callable[[Path, str, Any], None] | None = None
    # Called with an evaluation set and its predictions; yields its rows, from which the report takes examples.
    predicted_rows: Callable[[str, Any], Iterator[PredictedRow]] | None = None
    baseline: str = ""  # in words, `most frequent label`; empty without one
    baseline_metrics: dict[str, dict[str, float]] = field(default_factory=dict)  # evaluation set -> some metrics of it
    input_columns: tuple[str, ...] = ()  # columns of raw rows: rows that are equal in them are the same example
    plan: list[str] = field(default_factory=list)  # about the data, printed before training: lengths, windows, labels
    warnings: list[str] = field(default_factory=list)  # about the data, printed and on the card


def constant_metrics(compute: ComputeMetrics, scores: Sequence[float], labels: Any) -> dict[str, float]:
    """Return the metrics of the same `scores` (of C classes, or one number) for every one of N rows with `labels`."""
    labels = np.asarray(labels)
    return compute(EvalPrediction(np.tile(np.asarray(scores, dtype=float), (len(labels), 1)), labels))


def most_frequent(labels: Sequence[int], num_classes: int) -> list[float]:
    """Return scores that are highest for the most frequent label."""
    first = Counter(labels).most_common(1)[0][0]
    return [float(number == first) for number in range(num_classes)]


def require_columns(data: datasets.DatasetDict, **columns: str | None) -> None:
    """Refuse data without a column; each is a value of its option, such as `text_column`."""
    for split, rows in data.items():
        for option, column in columns.items():
            if column is not None and column not in rows.column_names:
                raise ValueError(
                    f"--{option.replace('_', '-')} {column}: the {split} data has no such column; it has "
                    f"{', '.join(rows.column_names)}. For CSV without a header row, name them: --columns "
                    f"{','.join(filter(None, columns.values()))}."
                )


def require_text(data: datasets.DatasetDict, column: str) -> None:
    """Refuse rows whose `column` is not text."""
    for split, rows in data.items():
        for row, text in enumerate(rows[column][:]):  # not one by one from the table
            if not isinstance(text, str):
                raise ValueError(f"{split} data, row {row}: {column} is {text!r}, not text.")


def text_columns(
    data: datasets.DatasetDict, text_column: str, text_pair_column: str | None, label_column: str
) -> tuple[str, ...]:
    """Return the columns that the encoder reads; refuse data without them, and rows whose text is not text."""
    require_columns(data, text_column=text_column, text_pair_column=text_pair_column, label_column=label_column)
    columns = (text_column,) if text_pair_column is None else (text_column, text_pair_column)
    for column in columns:
        require_text(data, column)
    return columns


def text_task(
    data: datasets.DatasetDict,
    columns: tuple[str, ...],
    labels: dict[str, list],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    metrics: ComputeMetrics,
    constant: Callable[[list], Sequence[float]],
    in_words: Callable[[Any, np.ndarray], tuple[Sequence[str], Sequence[tuple[str, float | None]], bool | None]],
    **fields: Any,
) -> PreparedTask:
    """Prepare a task with a label for the text, or pair of texts, in each row.

    `constant` gives the baseline's scores for the labels of an evaluation set; `in_words` turns label and scores of a
    row into the last three fields of `PredictedRow`; `fields` are further ones of the task.
    """

    def predicted_rows(split: str, predictions: np.ndarray) -> Iterator[PredictedRow]:
        inputs = data[split].select_columns(list(columns))
        for texts, label, scores in zip(inputs, labels[split], predictions, strict=True):
            yield PredictedRow(texts, *in_words(label, scores))

    encoded, plan = {}, []
    for split, rows in data.items():
        texts, pairs = rows[columns[0]][:], rows[columns[1]][:] if len(columns) > 1 else None
        tokenized, truncated = encode_texts(texts, pairs, tokenizer, max_length)
        encoded[split] = datasets.Dataset.from_dict({**tokenized, "labels": labels[split]})
        plan.append(describe_lengths(split, tokenized["input_ids"], truncated))
    return PreparedTask(
        auto_class=AutoModelForSequenceClassification,
        train_set=encoded.pop("train"),
        eval_sets=encoded,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda split: metrics,
        baseline_metrics={
            split: constant_metrics(metrics, constant(labels[split]), labels[split]) for split in encoded
        },
        input_columns=columns,
        predicted_rows=predicted_rows,
        plan=plan,
        **fields,
    )


def encode_texts(
    texts: list[str], pairs: list[str] | None, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[dict[str, list], int]:
    """Return token ids of texts or of pairs, at most `max_length`, and the number of truncated rows.

    The longer text of a pair is truncated first. Token types are asked for, since tokenizers of ALBERT and XLNet may
    return them only on request, and left out where none is above 0: to XLM a token type of 0 is not the same as none.
    XLNet's `<cls>` has one of its own.

    >>> encode_texts(["w5", "w6 w7 w8"], None, doctest_tokenizer(), 4)[0]["input_ids"]
    [[5], [6, 7, 8]]
    >>> encoded, truncated = encode_texts(["w5 w6"], ["w7 w8 w9"], doctest_tokenizer(), 4)
    >>> encoded["input_ids"], encoded["token_type_ids"], truncated
    ([[5, 6, 7, 8]], [[0, 0, 1, 1]], 1)
    """
    columns: dict[str, list] = {}
    truncated = 0
    options = {"truncation": "longest_first", "max_length": max_length, "return_token_type_ids": True}
    for start in with_bar(range(0, len(texts), TEXTS_AT_ONCE), "Tokenizing"):
        rows = slice(start, start + TEXTS_AT_ONCE)
        inputs = texts[rows], None if pairs is None else pairs[rows]
        encoded = tokenizer(*inputs, **options)
        if encoded.encodings is None:  # a tokenizer written in Python does not say what it cut off
            whole = tokenizer(*inputs, truncation=False, verbose=False)["input_ids"]
            truncated += sum(len(ids) > max_length for ids in whole)
        else:
            truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings)
        for name, values in encoded.items():
            columns.setdefault(name, []).extend(values)
    if not any(map(any, columns["token_type_ids"])):
        del columns["token_type_ids"]
    return columns, truncated


def describe_lengths(split: str, input_ids: Sequence[Sequence[Any]], truncated: int) -> str:
    """Return a line about a tokenized split, for the plan."""
    lengths = list(map(len, input_ids))
    return (
        f"{split}: {len(lengths):,} examples of {sum(lengths) / len(lengths):.0f} tokens on average, {max(lengths)} "
        f"at most; {truncated / len(lengths):.1%} are truncated"
    )


def right_padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of the tokenizer that pads on the right, for labels that are positions."""
    copied = copy.copy(tokenizer)
    copied.padding_side = "right"
    return copied
