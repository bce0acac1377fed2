"""Print and write the results of fine-tuning: plan, table, `results.json`, and a record next to each model."""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from hf_encoders.finetuning.runs import RunResult, RunSettings, defaults
from hf_encoders.finetuning.shared_options import DataSource
from hf_encoders.finetuning.task import PreparedTask, compared
from hf_encoders.objectives.batch import IGNORED
from hf_encoders.publishing.files import save_tokenizer
from hf_encoders.publishing.record import TrainingRecord, facts_of_this_process, name_of_checkpoint
from hf_encoders.publishing.secrets import published, published_path
from hf_encoders.writing import mean_and_deviation, text_table, write_whole


RESULTS_FILE = "results.json"
DIGITS = 4  # of a metric
FAR_ABOVE = 30  # multiple of the default learning rate above which a warning is printed
COUNTS = ("_number", "total", "_thresh")  # endings of metrics that do not measure quality


def print_plan(task: PreparedTask, settings: RunSettings, max_length: int, steps: int, seeds: list[int]) -> None:
    """Print what the runs will do."""
    training = settings.training
    rows = training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    print(f"model: {settings.model}, classes of {settings.classes}{', from scratch' * settings.from_scratch}")
    for line in (f"longest input: {max_length} tokens", *task.plan):
        print(f"  {line}")
    print(f"  {steps:,} steps of {rows} rows per device, learning rate {training['learning_rate']:g}, seeds {seeds}")
    if settings.layer_decay != 1:
        print(f"  learning rate of each layer: {settings.layer_decay:g} times the next one's")
    if settings.class_weights is not None:
        weights = zip(task.label_names, settings.class_weights, strict=True)
        print(f"  class weights: {', '.join(f'{name} {weight:.3g}' for name, weight in weights)}")


def print_choices(
    user_fields: dict[str, Any], training: dict[str, Any], config: PreTrainedConfig, examples: int
) -> None:
    """Print the learning rate and epochs if they are defaults, and a warning if the rate is unusually high."""
    usual = defaults(config, examples, training)
    names = {"learning_rate": "learning rate"} | (
        {"num_train_epochs": "epochs"} if training["max_steps"] == -1 else {}
    )
    chosen = [f"{name} {training[field]:g}" for field, name in names.items() if field not in user_fields]
    if chosen:
        print(f"  chosen for width {config.hidden_size} and {examples:,} training examples: {', '.join(chosen)}")
    if training["learning_rate"] > FAR_ABOVE * usual["learning_rate"]:
        print(
            f"WARNING: --learning-rate {training['learning_rate']:g} is far above {usual['learning_rate']:g}, the "
            "default for an encoder of this width: training may diverge."
        )


def print_outcome(results: list[RunResult], task: PreparedTask, path: Path) -> None:
    """Print the table, and what limits its meaning."""
    print(f"\n{format_table(results, task)}")
    if "validation" in task.eval_sets and results[0].best_step is not None:
        print("the validation set chose the weights: its metrics are better than those on new data")
    for result in results:
        for warning in baseline_warnings(result, task):
            print(f"WARNING: seed {result.seed}, {warning}")
    seconds = sum(result.seconds for result in results)
    print(f"{seconds:.0f} s of training, {results[0].tokens_per_second:,.0f} tokens/s; {path}")


def format_table(results: list[RunResult], task: PreparedTask) -> str:
    """Format a row for each metric of each set: all seeds, mean ± standard deviation, and the task's baseline."""
    rows = [["set", "metric", *(f"seed {result.seed}" for result in results), "mean ± standard deviation"]]
    if task.baseline is not None:
        rows[0].append(f"baseline: {task.baseline.name}")
    for name in results[0].metrics:
        baseline = baseline_metrics(task, name)
        for metric, values in over_seeds(results, name).items():
            rows.append([name, metric, *(f"{value:.{DIGITS}f}" for value in values)])
            rows[-1].append(mean_and_deviation(values, DIGITS))
            if task.baseline is not None:
                rows[-1].append(f"{baseline[metric]:.{DIGITS}f}" if metric in baseline else "")
    return text_table(rows)


def baseline_metrics(task: PreparedTask, name: str) -> dict[str, float]:
    """Return the baseline's metrics on an evaluation set; empty for a task without a baseline."""
    return {} if task.baseline is None else task.baseline.metrics(name)


def over_seeds(results: list[RunResult], name: str) -> dict[str, list[float]]:
    """Return the values of all seeds for each metric of an evaluation set that every seed has."""
    metrics = [result.metrics[name] for result in results]
    shared = [metric for metric in metrics[0] if all(metric in of_seed for of_seed in metrics)]
    return {metric: [of_seed[metric] for of_seed in metrics] for metric in shared}


def baseline_warnings(result: RunResult, task: PreparedTask) -> list[str]:
    """Warn of evaluation sets whose predictions are all one class, or whose main metric is near the baseline."""
    warnings = []
    for name, metrics in result.metrics.items():
        if name in result.only_class:
            warnings.append(f"{name}: all predictions are {result.only_class[name]!r}, whatever the input.")
        if task.baseline is not None:
            rows = task.eval_sets[name]
            items = len(rows)
            if "labels" in rows.column_names:  # a metric averages over labels of rows, or of words
                items = int(sum((np.asarray(labels) != IGNORED).sum() for labels in rows["labels"]))
            warning = compared(task.main_metric, metrics[task.main_metric], task.baseline, name, items)
            warnings += [] if warning is None else [warning]
    return warnings


def repeated_rows(data: datasets.DatasetDict, columns: Sequence[str]) -> dict[str, int]:
    r"""Count the rows of each evaluation set that equal a training row in `columns`; sets without any are left out.

    White space is normalised. Labels may differ.

    >>> rows = {name: datasets.Dataset.from_dict({"text": texts})
    ...         for name, texts in (("train", ["a  b", "c"]), ("test", ["a b\n", "B", "c"]))}
    >>> repeated_rows(datasets.DatasetDict(rows), ["text"])
    {'test': 2}
    """

    def normalised(value: Any) -> Any:
        return tuple(map(normalised, value)) if isinstance(value, list | tuple) else " ".join(str(value).split())

    if not columns:
        return {}
    inputs = {
        split: list(zip(*(map(normalised, rows[column]) for column in columns), strict=True))
        for split, rows in data.items()
    }
    trained = set(inputs.pop("train"))
    counts = {split: sum(row in trained for row in rows) for split, rows in inputs.items()}
    return {split: count for split, count in counts.items() if count > 0}


def describe_repeated(repeated: dict[str, int], data: datasets.DatasetDict, columns: Sequence[str]) -> list[str]:
    """Return a warning for each evaluation set with training rows."""
    return [
        f"{split}: {count:,} of {len(data[split]):,} rows are in the training data too, with the same "
        f"{', '.join(columns)}: metrics on them say little about new data. Remove them from one of the two."
        for split, count in repeated.items()
    ]


def write_results(
    results: list[RunResult],
    task: PreparedTask,
    settings: RunSettings,
    source: DataSource,
    folder: Path,
    repeated: dict[str, int],
) -> Path:
    """Write `results.json`; `repeated` counts the rows of each evaluation set that are training rows too."""

    def summary(values: list[float]) -> dict[str, float | None]:
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return {"mean": statistics.fmean(values), "standard_deviation": deviation}

    summaries = {
        name: {metric: summary(values) for metric, values in over_seeds(results, name).items()}
        for name in results[0].metrics
    }
    warnings = {result.seed: baseline_warnings(result, task) for result in results}
    content = {
        "main_metric": task.main_metric,
        "summary": summaries,
        "baseline": {name: baseline_metrics(task, name) for name in task.eval_sets},
        "repeated_rows": repeated,
        "warnings": {seed: of_seed for seed, of_seed in warnings.items() if of_seed},
        "seeds": [{f.name: getattr(result, f.name) for f in fields(result) if f.repr} for result in results],
        "data": _public_source(source),
        "settings": {key: value for key, value in vars(settings).items() if value is not None},
    }
    path = folder / RESULTS_FILE
    write_whole(path, json.dumps(_finite(published(content)), indent=2, default=str) + "\n")
    return path


def _public_source(source: DataSource) -> dict[str, Any]:
    """Replace paths outside of the working directory by base names, and files by `data_name` if there is one."""
    values = {key: value for key, value in vars(source).items() if value is not None}
    for name in {"train", "validation", "test", "dataset"} & set(values):
        is_named = source.data_name is not None and Path(values[name]).exists()
        values[name] = source.data_name if is_named else published_path(values[name])
    return values


def _finite(value: Any) -> Any:
    """Replace NaN by null: JSON does not have it."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_run(result: RunResult, task: PreparedTask, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write model, code, tokenizer and, if the task has a format for them, predictions."""
    result.model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    if task.write_predictions is not None:
        for name, predictions in result.predictions.items():
            task.write_predictions(folder / f"predictions-{name}", name, predictions)


def make_record(
    result: RunResult,
    results: list[RunResult],
    task: PreparedTask,
    settings: RunSettings,
    source: DataSource,
    hub_task: str,
    command: str,
    warnings: Sequence[str] = (),
) -> TrainingRecord:
    """Return the facts of one seed's model, for its card; `results` are of all seeds, `warnings` about the data."""
    schedule = {
        "optimizer steps": result.steps,
        "epochs": result.epochs,
        **result.optimization,
        "kept weights": f"those after step {result.best_step or result.steps}",
        "seed": result.seed,
    }
    if settings.class_weights is not None:
        schedule["class weights"] = [round(weight, DIGITS) for weight in settings.class_weights]
    if settings.from_scratch:
        schedule["initial weights"] = "random, not pre-trained"
    held_out = {name: round(metrics["loss"], DIGITS) for name, metrics in result.metrics.items() if "loss" in metrics}
    is_on_hub = source.dataset is not None and not Path(source.dataset).exists()
    return TrainingRecord(
        objectives={hub_task: task.plan[-1] if task.plan else task.main_metric},
        corpus={"name": source.name, "training examples": len(task.train_set)},
        schedule=schedule,
        losses={"training, mean over the run": round(result.training_loss, DIGITS), **held_out},
        **facts_of_this_process(),
        seconds=result.seconds,
        tokens_per_second=result.tokens_per_second,
        evaluation=list(_evaluation(result, results, task, source, hub_task)),
        command=command,
        base_model=None if settings.from_scratch else name_of_checkpoint(settings.model),
        dataset_ids=[source.dataset] if is_on_hub else [],
        warnings=[*warnings, *baseline_warnings(result, task)],
    )


def _evaluation(
    result: RunResult, results: list[RunResult], task: PreparedTask, source: DataSource, hub_task: str
) -> Iterator[dict[str, Any]]:
    """Yield an entry of the card for each metric of each evaluation set."""
    for name in result.metrics:
        baseline = baseline_metrics(task, name)
        for metric, values in over_seeds(results, name).items():
            if metric == "loss" or metric.endswith(COUNTS) or not all(map(math.isfinite, values)):
                continue
            entry = {
                "task": hub_task,
                "dataset": source.name,
                "split": name,
                "metric": metric,
                "value": round(result.metrics[name][metric], DIGITS),
            }
            if metric in baseline:
                entry["baseline"] = f"{task.baseline.name} {baseline[metric]:.3f}"
            if len(results) > 1:
                of_seeds = zip(results, values, strict=True)
                entry["seeds"] = {str(of_seed.seed): round(value, DIGITS) for of_seed, value in of_seeds}
            yield entry
