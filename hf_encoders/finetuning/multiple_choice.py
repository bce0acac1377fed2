"""The best of several endings of a prompt, as in SWAG (BERT, section 4.4).

Every ending is a pair with its prompt; the head scores each pair, with a softmax over the endings of a row.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import datasets
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from hf_encoders.finetuning.task import PreparedTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the task's options: the keyword parameters of `prepare`."""
    add = parser.add_argument
    add("--prompt-column", default="prompt", metavar="NAME", help="column of the prompt or question (default: prompt)")
    add(
        "--ending-columns", nargs="+", default=["endings"], metavar="NAME", help="one of lists, or one for each ending"
    )
    add("--label-column", default="label", metavar="NAME", help="number of the right ending, from 0 (default: label)")


def prepare(
    data: datasets.DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    prompt_column: str = "prompt",
    ending_columns: Sequence[str] = ("endings",),
    label_column: str = "label",
) -> PreparedTask:
    """Tokenize pairs of prompt and ending, all endings of a row together.

    Args:
        data, tokenizer, max_length: See `task.py`; the longer text of a pair is truncated first.
        prompt_column, label_column (`str`, *optional*): Columns.
        ending_columns (`Sequence` of `str`, *optional*): A column for each ending, or one with lists of endings, the
            same number in every row.
    """
    import datasets
    from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

    from hf_encoders.finetuning.data import describe_lengths, encode_texts, require_columns, require_text
    from hf_encoders.finetuning.task import Baseline, PreparedTask, constant_metrics, most_frequent

    require_columns(data, prompt_column=prompt_column, label_column=label_column)
    for column in ending_columns:
        require_columns(data, ending_columns=column)
    require_text(data, prompt_column)
    choices = {split: read_choices(rows, ending_columns, split) for split, rows in data.items()}
    num_choices = len(choices["train"][0])
    encoded, plan = {}, []
    for split, rows in data.items():
        for row, endings in enumerate(choices[split]):
            if len(endings) != num_choices or num_choices < 2:
                raise ValueError(
                    f"{split} data, row {row}: {len(endings)} endings, but train row 0 has {num_choices}: every row "
                    "needs the same number, at least 2."
                )
        labels = [
            read_choice(label, num_choices, f"{split} data, row {i}") for i, label in enumerate(rows[label_column])
        ]
        prompts = [prompt for prompt in rows[prompt_column] for _ in range(num_choices)]
        endings = [ending for row in choices[split] for ending in row]
        columns, truncated = encode_texts(prompts, endings, tokenizer, max_length)
        plan.append(describe_lengths(f"{split}, each ending", columns["input_ids"], truncated))
        encoded[split] = datasets.Dataset.from_dict(
            {**{name: grouped(values, num_choices) for name, values in columns.items()}, "labels": labels}
        )
    train_set = encoded.pop("train")

    def baseline(split: str) -> dict[str, float]:
        labels = encoded[split]["labels"][:]
        return constant_metrics(choice_accuracy, most_frequent(labels, num_choices), labels)

    return PreparedTask(
        auto_class=AutoModelForMultipleChoice,
        config_fields={},
        train_set=train_set,
        eval_sets=encoded,
        data_collator=DataCollatorForMultipleChoice(tokenizer),
        compute_metrics=lambda split: choice_accuracy,
        main_metric="accuracy",
        baseline=Baseline("most frequent ending", baseline),
        input_columns=(prompt_column, *ending_columns),
        plan=[*plan, f"{num_choices} endings per row"],
    )


def read_choices(rows: datasets.Dataset, columns: Sequence[str], split: str) -> list[list[str]]:
    """Return the endings of every row; all must be text."""
    if len(columns) == 1:
        choices = rows[columns[0]][:]
    else:
        choices = [list(endings) for endings in zip(*(rows[column] for column in columns), strict=True)]
    for row, endings in enumerate(choices):
        if not isinstance(endings, list) or not all(isinstance(ending, str) for ending in endings):
            raise ValueError(f"{split} data, row {row}: {', '.join(columns)} is {endings!r}: endings must be text.")
    return choices


def read_choice(label: int | str, num_choices: int, where: str) -> int:
    """Return the number of the right ending, from 0 to `num_choices - 1`; also from text."""
    if str(label) not in map(str, range(num_choices)):
        raise ValueError(f"{where}: label {label!r} must be the number of an ending, from 0 to {num_choices - 1}.")
    return int(label)


def grouped(values: list, size: int) -> list[list]:
    """Return values in lists of `size`."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def choice_accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Compute the share of rows whose right ending has the highest score."""
    from hf_encoders.evaluation.metrics.accuracy import Accuracy

    chosen = prediction.predictions.argmax(axis=-1)
    return Accuracy(keep_in_memory=True).compute(predictions=chosen, references=prediction.label_ids)
