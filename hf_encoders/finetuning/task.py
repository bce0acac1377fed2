"""The interface between the modules of the tasks and the training loop in `runs.py`.

A task is a module with a docstring, the help of its command, and two functions:

- `add_arguments(parser)` adds the task's own options, such as `--text-column`; those that all tasks share, such as
  `--model`, `--train` and `--max-length`, belong to the command.
- `prepare(data, tokenizer, *, max_length, ...)` returns a `PreparedTask`. `data` is a `datasets.DatasetDict` of raw
  rows with `train` and optionally `validation` and `test`, in the formats of `labelled_files.py`; `tokenizer` is the
  encoder's. `max_length` is the longest input in tokens, with special tokens, at most what model and tokenizer take.
  All other keyword-only parameters are the task's options under the same names, with the same defaults.

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
    """What a task passes to the training loop.

    Args:
        auto_class (`type`): The head, `transformers.AutoModelFor...`.
        config_fields (`dict`): Fields of the head's configuration: `id2label` and `label2id`, or `num_labels`,
            `problem_type` ...
        train_set (`datasets.Dataset`): Tokenized rows, unpadded. `Trainer` removes columns that the model's `forward`
            does not have.
        eval_sets (`dict` of `datasets.Dataset`): `validation` and `test`, as far as they exist, in the same format.
            Labels are required: without them `Trainer` does not call `compute_metrics`.
        data_collator (`Callable`): Rows to a padded batch.
        compute_metrics (`Callable`): Name of an evaluation set -> the function that `Trainer` calls with its
            predictions; metric names without the prefix `eval_`.
        main_metric (`str`): The metric that chooses the best checkpoint; greater is better.
        label_names (`list` of `str`, *optional*): Names of the classes by id, for class weights and the record.
        write_predictions (`Callable`, *optional*): Called with a path, the name of an evaluation set and the
            predictions of `Trainer.predict`; writes them in the task's usual format.
        baseline (`Baseline`, *optional*): The result without reading the input.
        input_columns (`tuple` of `str`): The columns of raw rows that the encoder reads: rows that are equal in them
            are the same example.
        plan (`list` of `str`): Lines about the data, printed before training: the share of truncated examples, the
            number of windows, the labels.
    """

    auto_class: type
    config_fields: dict[str, Any]
    train_set: datasets.Dataset
    eval_sets: dict[str, datasets.Dataset]
    data_collator: Callable[[list[dict[str, Any]]], dict[str, Any]]
    compute_metrics: Callable[[str], Callable[[EvalPrediction], dict[str, float]]]
    main_metric: str
    label_names: list[str] | None = None
    write_predictions: Callable[[Path, str, Any], None] | None = None
    baseline: Baseline | None = None
    input_columns: tuple[str, ...] = ()
    plan: list[str] = field(default_factory=list)
