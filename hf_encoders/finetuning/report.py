"""Print and write the results of fine-tuning: plan, table, `results.json`, and a record next to each model."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from hf_encoders.finetuning.data import DataSource
from hf_encoders.finetuning.runs import RunResult, RunSettings, num_steps
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.objectives.batch import IGNORED
from hf_encoders.publishing.files import EXAMPLES_FILE, save_tokenizer
from hf_encoders.publishing.record import TrainingRecord, facts_of_this_process, name_of_checkpoint
from hf_encoders.publishing.secrets import published, published_path
from hf_encoders.writing import mean_and_deviation, text_table, write_whole


RESULTS_FILE = "results.json"
DIGITS = 4  # of a metric
EXAMPLES, EXAMPLE_CHARACTERS = 8, 400  # rows in the report, and characters of each of their texts
COUNTS = ("_number", "total", "_thresh")  # endings of metrics that do not measure quality
# Standard errors above the baseline from which on a metric is more than chance: about 2 in 100 exceed them by chance.
STANDARD_ERRORS = 2.0
CORRELATIONS = ("pearsonr", "spearmanr", "matthews_correlation")


def print_plan(
    task: PreparedTask,
    settings: RunSettings,
    user_fields: dict[str, Any],
    config: PreTrainedConfig,
    max_length: int,
    seeds: list[int],
) -> None:
    """Print what the runs will do, which defaults were chosen, and warnings."""
    training, examples = settings.training, len(task.train_set)
    rows = training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    steps, rate = num_steps(training, examples), training["learning_rate"]
    lines = [f"model: {settings.model}, classes of {settings.classes}{', from scratch' * settings.from_scratch}"]
    lines += [f"longest input: {max_length} tokens", *task.plan]
    lines.append(f"{steps:,} steps of {rows} rows per device, learning rate {rate:g}, seeds {seeds}")
    if settings.layer_decay != 1:
        lines.append(f"learning rate of each layer: {settings.layer_decay:g} times the next one's")
    if settings.class_weights is not None:
        weights = zip(task.label_names, settings.class_weights, strict=True)
        lines.append(f"class weights: {', '.join(f'{name} {weight:.3g}' for name, weight in weights)}")
    chosen = [] if "learning_rate" in user_fields else [f"learning rate {rate:g}"]
    if training["max_steps"] == -1 and "num_train_epochs" not in user_fields:
        chosen.append(f"epochs {training['num_train_epochs']:g}")
    if chosen:
        lines.append(f"chosen for width {config.hidden_size} and {examples:,} training examples: {', '.join(chosen)}")
    print("\n  ".join(lines))
    for warning in task.warnings:
        print(f"WARNING: {warning}")


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
    rows[0].append(f"baseline: {task.baseline}" if task.baseline else "")
    for name in results[0].metrics:
        baseline = task.baseline_metrics.get(name, {})
        for metric, values in over_seeds(results, name).items():
            shown = [f"{value:.{DIGITS}f}" for value in values] + [mean_and_deviation(values, DIGITS)]
            rows.append([name, metric, *shown, f"{baseline[metric]:.{DIGITS}f}" if metric in baseline else ""])
    return text_table(rows)


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
        rows = task.eval_sets[name]
        items = len(rows)
        if "labels" in rows.column_names:  # a metric averages over labels of rows, or of words
            items = int(sum((np.asarray(labels) != IGNORED).sum() for labels in rows["labels"]))
        value, least = metrics[task.main_metric], task.baseline_metrics.get(name, {}).get(task.main_metric)
        fault = None if least is None else near_baseline(task.main_metric, value, least, items)
        if fault is not None:
            warnings.append(
                f"{name}: {task.main_metric} {value:.4f} is {fault} ({task.baseline}). The model may have learned "
                "nothing: try a higher learning rate, more epochs, more rows, or another encoder."
            )
    return warnings


def near_baseline(metric: str, value: float, baseline: float, items: int) -> str | None:
    """Return how a metric over `items` items fails to exceed its baseline; None if it does.

    A share, or a correlation of 0, may exceed it by `STANDARD_ERRORS` by chance; other metrics have no simple rule.
    """
    chance = 0.0
    if metric == "accuracy":
        chance = STANDARD_ERRORS * (baseline * (1 - baseline) / items) ** 0.5
    elif metric in CORRELATIONS:
        chance = STANDARD_ERRORS / items**0.5
    if value > baseline + chance:
        return None
    if value > baseline:
        return f"not clearly better than the baseline of {baseline:.4f}: {items:,} items leave ±{chance:.3f} to chance"
    return f"no better than the baseline of {baseline:.4f}"


def repeated_rows(data: datasets.DatasetDict, columns: Sequence[str]) -> dict[str, int]:
    r"""Count the rows of each evaluation set that equal a training row in `columns`; sets without any are left out.

    White space is normalised. Labels may differ.
    """

    def normalised(value: Any) -> Any:
        return tuple(map(normalised, value)) if isinstance(value, list | tuple) else " ".join(str(value).split())

    inputs = {
        split: list(zip(*(map(normalised, rows[column][:]) for column in columns), strict=True))
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
) -> None:
    """Write `results.json`; `repeated` counts the rows of each evaluation set that are training rows too."""
    summary: dict[str, dict[str, Any]] = {name: {} for name in results[0].metrics}
    for name in summary:
        for metric, values in over_seeds(results, name).items():
            deviation = statistics.stdev(values) if len(values) > 1 else None
            summary[name][metric] = {"mean": statistics.fmean(values), "standard_deviation": deviation}
    data = {key: value for key, value in vars(source).items() if value is not None}
    for name in {"train", "validation", "test", "dataset"} & set(data):
        # Files are called `data_name` if there is one; paths outside of the working directory lose their folders.
        is_named = source.data_name is not None and Path(data[name]).exists()
        data[name] = source.data_name if is_named else published_path(data[name])
    content = {
        "main_metric": task.main_metric,
        "summary": summary,
        "baseline": task.baseline_metrics,
        "repeated_rows": repeated,
        "warnings": {result.seed: baseline_warnings(result, task) for result in results},
        "seeds": [{f.name: getattr(result, f.name) for f in fields(result) if f.repr} for result in results],
        "data": data,
        "settings": {key: value for key, value in vars(settings).items() if value is not None},
    }
    write_whole(folder / RESULTS_FILE, json.dumps(published(content), indent=2, default=str) + "\n")


def write_examples(result: RunResult, task: PreparedTask, folder: Path) -> None:
    """Write some rows of the test set, or else of the validation set, with a seed's predictions, for the report.

    They are drawn at random, half of them among the wrong ones, as far as there are.
    """
    (folder / EXAMPLES_FILE).unlink(missing_ok=True)  # of an earlier run
    split = next((name for name in ("test", "validation") if name in task.eval_sets), None)
    if split is None or task.predicted_rows is None:
        return
    rows = list(task.predicted_rows(split, result.predictions[split]))
    order = np.random.default_rng(result.seed).permutation(len(rows))
    wrong = [rows[number] for number in order if rows[number].is_right is False]
    right = [rows[number] for number in order if rows[number].is_right is not False]
    wrong_shown = wrong[: max(EXAMPLES // 2, EXAMPLES - len(right))]
    shown = [*wrong_shown, *right[: EXAMPLES - len(wrong_shown)]]
    content = {
        "seed": result.seed,
        "split": split,
        "rows": len(rows),
        "wrong": None if shown[0].is_right is None else len(wrong),
        "shown": [shortened(row._asdict()) for row in shown],
    }
    write_whole(folder / EXAMPLES_FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def shortened(value: Any) -> Any:
    """Return a value whose texts, also inside of it, have at most `EXAMPLE_CHARACTERS`."""
    if isinstance(value, Mapping):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(shortened, value))
    return (
        value[: EXAMPLE_CHARACTERS - 1] + "…" if isinstance(value, str) and len(value) > EXAMPLE_CHARACTERS else value
    )


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
) -> TrainingRecord:
    """Return the facts of one seed's model, for its card; `results` are of all seeds."""
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
        evaluation=list(_evaluation(result, results, task, {"task": hub_task, "dataset": source.name})),
        command=command,
        base_model=None if settings.from_scratch else name_of_checkpoint(settings.model),
        dataset_ids=[source.dataset] if is_on_hub else [],
        warnings=[*task.warnings, *baseline_warnings(result, task)],
    )


def _evaluation(
    result: RunResult, results: list[RunResult], task: PreparedTask, names: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield an entry of the card for each metric of each evaluation set; `names` begin it."""
    for split in result.metrics:
        baseline = task.baseline_metrics.get(split, {})
        for metric, values in over_seeds(results, split).items():
            if metric == "loss" or metric.endswith(COUNTS):
                continue
            value = round(result.metrics[split][metric], DIGITS)
            entry = {**names, "split": split, "metric": metric, "value": value}
            if metric in baseline:
                entry["baseline"] = f"{task.baseline} {baseline[metric]:.3f}"
            if len(results) > 1:
                of_seeds = zip(results, values, strict=True)
                entry["seeds"] = {str(of_seed.seed): round(value, DIGITS) for of_seed, value in of_seeds}
            yield entry
