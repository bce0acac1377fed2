"""The interface between the modules of the tasks and the training loop in `runs.py`.

A task is a module with a docstring, the help of its command, and two functions. `add_arguments(group)` adds the task's
options, such as `--text-column`; those that all tasks share, such as `--model` and `--max-length`, belong to the
command. `prepare(data, tokenizer, *, max_length, ...)` returns a `PreparedTask`; its other keyword-only parameters
are the options under the same names, with the same defaults. `data` is a `datasets.DatasetDict` of raw rows with
`train` and optionally `validation` and `test`, in the formats of `labelled_files.py`; `tokenizer` is the encoder's.
`max_length` is the longest input in tokens, with special tokens, at most what model and tokenizer take.

The module is imported for its options and its help: it imports transformers, datasets and numpy inside of functions.

Errors in the user's data are `ValueError`s of `prepare` that name column, row or label.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from transformers import EvalPrediction

from hf_encoders.finetuning.baselines import Baseline


@dataclass
class PreparedTask:
    """What a task passes to the training loop."""

    auto_class: type  # the head, `transformers.AutoModelFor...`
    config_fields: dict[str, Any]  # of the head: `id2label` and `label2id`, or `num_labels`, `problem_type` ...
    train_set: datasets.Dataset  # tokenized rows, unpadded; `Trainer` removes columns that `forward` does not have
    eval_sets: dict[str, datasets.Dataset]  # `validation` and `test`, as far as they exist, with labels
    data_collator: Callable[[list[dict[str, Any]]], dict[str, Any]]
    # Name of an evaluation set -> `compute_metrics` of `Trainer` for it; metric names without the prefix `eval_`.
    compute_metrics: Callable[[str], Callable[[EvalPrediction], dict[str, float]]]
    main_metric: str  # chooses the best checkpoint; greater is better
    label_names: list[str] | None = None  # names of the classes by id, for class weights and the record
    # Called with a path, an evaluation set and the predictions of `Trainer.predict`; writes the task's usual format.
    write_predictions: Callable[[Path, str, Any], None] | None = None
    baseline: Baseline | None = None  # the result without reading the input
    input_columns: tuple[str, ...] = ()  # columns of raw rows: rows that are equal in them are the same example
    plan: list[str] = field(default_factory=list)  # about the data, printed before training: lengths, windows, labels
