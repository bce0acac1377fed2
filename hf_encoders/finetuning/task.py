"""What a fine-tuning task is: the interface between the tasks' modules and the one training loop in `runs.py`.

A task is a module with a docstring, which is its command's help, and two functions:

- `add_arguments(parser)` adds the task's own options, `--text-column` for example. Files, model, length, seeds and
  training belong to the command, so no task names an option of its own `--model`, `--train` or `--max-length`.
- `prepare(data, tokenizer, *, max_length, ...)` returns a `PreparedTask`. `data` is a `datasets.DatasetDict` with
  `train` and, where there are such files, `validation` and `test`: raw rows, in the forms of `labelled_files.py`.
  `max_length` is the longest input in tokens, special tokens counted, already no more than model and tokenizer take.
  All other keyword-only parameters of the function are the task's options: the command passes the parsed
  `--text-column` as `text_column`, each by its own name, and nothing else. So `prepare` is a plain function for
  everyone who does not use the command, with the options' defaults as the parameters' defaults.

Errors in the user's data are `ValueError`s that name column, row or label, and come from `prepare`, before any model
is loaded.
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
    """What a task hands to the one training loop in `runs.py`.

    Args:
        auto_class (`type`): the head, `transformers.AutoModelFor...`.
        config_fields (`dict`): fields of the head's configuration: `id2label` and `label2id`, or `num_labels`,
            `problem_type` ...
        train_set (`datasets.Dataset`): tokenised rows, unpadded. Columns that the model's `forward` does not name are
            dropped by `Trainer`.
        eval_sets (`dict` of `datasets.Dataset`): `validation` and `test`, those of the two that there are, in the
            same form. They need the labels that `forward` names, too: `Trainer` calls no `compute_metrics` without.
        data_collator (`Callable`): rows to a padded batch.
        compute_metrics (`Callable`): gives, for the name of an evaluation set, the function that `Trainer` calls with
            that set's predictions; figures without the prefix `eval_`.
        main_metric (`str`): the name among these figures that chooses the best checkpoint; greater is better.
        label_names (`list` of `str`, *optional*): names of the classes in the order of their ids, where there are
            classes: for class weights and the record.
        write_predictions (`Callable`, *optional*): called with a path, the name of the evaluation set and
            `Trainer.predict`'s predictions; writes them in the task's usual form.
        baseline (`Baseline`, *optional*): what is reached without reading the input, where the task has such a figure.
        input_columns (`tuple` of `str`): of the raw rows, what the encoder reads: rows that are equal in them are the
            same example.
        plan (`list` of `str`): lines about the prepared data, printed before training starts: the share of truncated
            examples, the number of windows, the labels.
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
