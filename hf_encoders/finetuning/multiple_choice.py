"""The best of several endings of a prompt, as in SWAG (BERT, section 4.4).

Every ending is a pair with its prompt; the head scores each pair, with a softmax over the endings of a row.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import datasets
    import numpy as np
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from hf_encoders.finetuning.task import PredictedRow, PreparedTask


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
    from scipy.special import softmax
    from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

    from hf_encoders.finetuning.task import (
        PredictedRow,
        PreparedTask,
        constant_metrics,
        describe_lengths,
        encode_texts,
        most_frequent,
        require_columns,
        require_text,
    )

    for column in ending_columns:
        require_columns(data, prompt_column=prompt_column, ending_columns=column, label_column=label_column)
    require_text(data, prompt_column)
    choices = {split: read_choices(rows, ending_columns, split) for split, rows in data.items()}
    num_choices = len(choices["train"][0])
    encoded, plan = {}, []
    for split, rows in data.items():
        for row, (endings, label) in enumerate(zip(choices[split], rows[label_column], strict=True)):
            where = f"{split} data, row {row}"
            if len(endings) != num_choices or num_choices < 2:
                raise ValueError(
                    f"{where}: {len(endings)} endings, but train row 0 has {num_choices}: every row needs the same "
                    "number, at least 2."
                )
            if str(label) not in map(str, range(num_choices)):
                raise ValueError(
                    f"{where}: label {label!r} must be the number of an ending, from 0 to {num_choices - 1}."
                )
        labels = list(map(int, rows[label_column][:]))
        prompts = [prompt for prompt in rows[prompt_column][:] for _ in range(num_choices)]
        endings = [ending for row in choices[split] for ending in row]
        columns, truncated = encode_texts(prompts, endings, tokenizer, max_length)
        plan.append(describe_lengths(f"{split}, each ending", columns["input_ids"], truncated))
        starts = range(0, len(prompts), num_choices)
        rows_of = {name: [values[i : i + num_choices] for i in starts] for name, values in columns.items()}
        encoded[split] = datasets.Dataset.from_dict({**rows_of, "labels": labels})
    train_set = encoded.pop("train")
    baselines = {}
    for split, rows in encoded.items():
        labels = rows["labels"][:]
        baselines[split] = constant_metrics(choice_accuracy, most_frequent(labels, num_choices), labels)

    def predicted_rows(split: str, predictions: np.ndarray) -> Iterator[PredictedRow]:
        prompts, labels = data[split][prompt_column], encoded[split]["labels"]
        for prompt, endings, label, scores in zip(prompts, choices[split], labels, predictions, strict=True):
            inputs = {prompt_column: prompt, "endings": "\n".join(endings)}
            predicted = int(scores.argmax())
            probability = float(softmax(scores)[predicted])
            yield PredictedRow(inputs, [endings[label]], [(endings[predicted], probability)], predicted == label)

    return PreparedTask(
        auto_class=AutoModelForMultipleChoice,
        config_fields={},
        train_set=train_set,
        eval_sets=encoded,
        data_collator=DataCollatorForMultipleChoice(tokenizer),
        compute_metrics=lambda split: choice_accuracy,
        main_metric="accuracy",
        baseline="most frequent ending",
        baseline_metrics=baselines,
        input_columns=(prompt_column, *ending_columns),
        predicted_rows=predicted_rows,
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


def choice_accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Compute the share of rows whose right ending has the highest score."""
    from hf_encoders.evaluation.metrics.accuracy import Accuracy

    chosen = prediction.predictions.argmax(axis=-1)
    return Accuracy(keep_in_memory=True).compute(predictions=chosen, references=prediction.label_ids)
