"""Figures of several seeds as a table, as JSON, and as the record beside each model."""

import json
import math
import statistics
from dataclasses import fields
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from hf_encoders.data.batches import IGNORED
from hf_encoders.finetuning.baselines import compared
from hf_encoders.finetuning.data_files import DataSource
from hf_encoders.finetuning.runs import RunResult, RunSettings
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.records.hardware import describe_hardware, describe_software
from hf_encoders.records.training_record import TrainingRecord, name_of_checkpoint
from hf_encoders.redaction import published, published_path
from hf_encoders.writing import write_whole


RESULTS_FILE = "results.json"
DIGITS = 4  # of a figure
COUNTS = ("_number", "total", "_thresh")  # ends of the names of figures that say nothing about how good a model is


def mean_and_spread(values: list[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (divided by n - 1) of the seeds' figures; one seed has no spread.

    >>> mean_and_spread([1.0, 3.0]), mean_and_spread([2.0])
    ((2.0, 1.4142135623730951), (2.0, None))
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def shown_spread(values: list[float], digits: int = 3) -> str:
    """Mean and spread in a cell of a table.

    >>> shown_spread([0.5, 0.7]), shown_spread([0.5])
    ('0.600 ± 0.141', '0.500')
    """
    mean, spread = mean_and_spread(values)
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def format_table(results: list[RunResult], task: PreparedTask) -> str:
    """One row a figure of each evaluation set: every seed, mean ± standard deviation, and the task's baseline."""
    rows = [["set", "figure", *(f"seed {result.seed}" for result in results), "mean ± standard deviation"]]
    if task.baseline is not None:
        rows[0].append(f"baseline: {task.baseline.name}")
    for name in results[0].metrics:
        baseline = baseline_metrics(task, name)
        for figure in shared_metrics(results, name):
            values = [result.metrics[name][figure] for result in results]
            rows.append([name, figure, *(f"{value:.{DIGITS}f}" for value in values), shown_spread(values, DIGITS)])
            if task.baseline is not None:
                rows[-1].append(f"{baseline[figure]:.{DIGITS}f}" if figure in baseline else "")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def baseline_metrics(task: PreparedTask, name: str) -> dict[str, float]:
    """What is reached on an evaluation set without reading the input; empty for a task without such figures."""
    return {} if task.baseline is None else task.baseline.metrics(name)


def baseline_warnings(result: RunResult, task: PreparedTask) -> list[str]:
    """A warning for each evaluation set on which the task's main figure does not stand out from its baseline, and for
    each of which all items were predicted to be of one class.
    """
    found = []
    for name, figures in result.metrics.items():
        if name in result.only_class:
            found.append(f"{name}: all predictions are {result.only_class[name]!r}, whatever the input.")
        if task.baseline is not None:
            items = _num_items(task.eval_sets[name])
            found.append(compared(task.main_metric, figures[task.main_metric], task.baseline, name, items))
    return [warning for warning in found if warning is not None]


def _num_items(rows: datasets.Dataset) -> int:
    """Labels that a figure is a mean over: of rows, or of words."""
    if "labels" not in rows.column_names:
        return len(rows)
    return int(sum((np.asarray(labels) != IGNORED).sum() for labels in rows["labels"]))


def write_results(
    results: list[RunResult],
    task: PreparedTask,
    settings: RunSettings,
    source: DataSource,
    folder: Path,
    repeated: dict[str, int] | None = None,
) -> Path:
    """Write `results.json`: settings, each seed's figures, their mean and spread, and the baselines. Paths out of the
    working directory become base names, and with a `data_name` files are called by it.

    Args:
        results: of all seeds.
        task, settings, source: what the runs were made of.
        folder: to write to.
        repeated (*optional*): rows of each evaluation set that are training rows too.
    """
    summary = {
        name: {figure: _summary(_over_seeds(results, name, figure)) for figure in shared_metrics(results, name)}
        for name in results[0].metrics
    }
    content = {
        "main_metric": task.main_metric,
        "summary": summary,
        "baseline": {name: baseline_metrics(task, name) for name in task.eval_sets},
        "repeated_rows": repeated or {},
        "warnings": {result.seed: found for result in results if (found := baseline_warnings(result, task))},
        "seeds": [{f.name: getattr(result, f.name) for f in fields(result) if f.repr} for result in results],
        "data": _public_source(source),
        "settings": {key: value for key, value in vars(settings).items() if value is not None},
    }
    path = folder / RESULTS_FILE
    write_whole(path, json.dumps(_finite(published(content)), indent=2, default=str) + "\n")
    return path


def _public_source(source: DataSource) -> dict[str, Any]:
    given = {key: value for key, value in vars(source).items() if value is not None}
    for name in {"train", "validation", "test", "dataset"} & set(given):
        is_named = source.data_name is not None and Path(given[name]).exists()
        given[name] = source.data_name if is_named else published_path(given[name])
    return given


def _summary(values: list[float]) -> dict[str, float | None]:
    mean, spread = mean_and_spread(values)
    return {"mean": mean, "standard_deviation": spread}


def shared_metrics(results: list[RunResult], name: str) -> list[str]:
    """The figures of an evaluation set that every seed has, which alone have a mean over seeds."""
    return [figure for figure in results[0].metrics[name] if all(figure in one.metrics[name] for one in results)]


def _over_seeds(results: list[RunResult], name: str, figure: str) -> list[float]:
    return [result.metrics[name][figure] for result in results]


def _finite(value: Any) -> Any:
    """JSON knows no NaN: such a figure is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_record(
    result: RunResult,
    results: list[RunResult],
    task: PreparedTask,
    settings: RunSettings,
    source: DataSource,
    hub_task: str,
    command: str,
    warnings: list[str] | tuple[str, ...] = (),
) -> TrainingRecord:
    """The facts of one seed's model, for its card.

    Args:
        result: of this model.
        results: of all seeds; with several, the evaluation has their figures beside the model's own.
        task, settings, source: what the runs were made of.
        hub_task (`str`): the Hub's name of the task.
        command (`str`): what started the runs (`command_of`).
        warnings (`list` of `str`): what is known to be wrong with the data.
    """
    schedule = {
        "optimizer steps": result.steps,
        "epochs": result.epochs,
        **result.optimization,
        "kept weights": f"those after step {result.best_step or result.steps}",
        "seed": result.seed,
    }
    if settings.class_weights is not None:
        schedule["class weights"] = [round(weight, DIGITS) for weight in settings.class_weights]
    held_out = {name: round(found["loss"], DIGITS) for name, found in result.metrics.items() if "loss" in found}
    if settings.from_scratch:
        schedule["first weights"] = "drawn anew, not pre-trained"
    is_on_hub = source.dataset is not None and not Path(source.dataset).exists()
    return TrainingRecord(
        objectives={hub_task: task.plan[-1] if task.plan else task.main_metric},
        corpus={"name": source.name, "training examples": len(task.train_set)},
        schedule=schedule,
        losses={"training, mean over the run": round(result.training_loss, DIGITS), **held_out},
        hardware=describe_hardware(),
        software=describe_software(),
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
) -> Any:
    for name in result.metrics:
        baseline = baseline_metrics(task, name)
        for figure in shared_metrics(results, name):
            values = _over_seeds(results, name, figure)
            if figure == "loss" or figure.endswith(COUNTS) or not all(math.isfinite(value) for value in values):
                continue
            entry = {
                "task": hub_task,
                "dataset": source.name,
                "split": name,
                "metric": figure,
                "value": round(result.metrics[name][figure], DIGITS),
            }
            if figure in baseline:
                entry["baseline"] = f"{task.baseline.name} {baseline[figure]:.3f}"
            if len(results) > 1:
                entry["seeds"] = {
                    str(one.seed): round(value, DIGITS) for one, value in zip(results, values, strict=True)
                }
            yield entry
