"""One HTML page on a run, for a person: before and after, the plan and what happened, curves, predictions, links."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment

from hf_encoders.publishing.curves import UNIGRAM, UNIGRAM_LOSSES, Curve, draw_runs, read_run
from hf_encoders.publishing.files import CARD_FILE, EXAMPLES_FILE, RECORD_FILE, RUN_FILE
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.writing import duration, read_json, write_whole


TEMPLATE = Path(__file__).with_name("report_template.html")
RESULTS_FILE = "results.json"  # of fine-tuning
SHOWN_METRICS = ("loss", "accuracy", "perplexity")  # endings of those that the page shows


def write_report(folder: Path, file: Path) -> Path:
    """Write the page on a run of `pretrain`, `adapt`, `distil`, `quickstart` or `finetune`; it needs no other file.

    Args:
        folder (`Path`): Output folder of the run, finished or not.
        file (`Path`): The page, replaced if it exists.

    Raises:
        ValueError: If the folder holds no run, or one whose files are damaged.
    """
    content = _finetuning(folder) if (folder / RESULTS_FILE).is_file() else _pretraining(folder)
    known = [(label, folder / path) for label, path in content.pop("files")]
    links = [(label, os.path.relpath(path, file.parent)) for label, path in known if path.exists()]
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        TEMPLATE.read_text(encoding="utf-8")
    )
    write_whole(file, page.render(name=folder.resolve().name, files=links, **content))
    return file


def _pretraining(folder: Path) -> dict[str, Any]:
    """Return what the page says of a run with a `run.json`."""
    run, curve = read_json(folder / RUN_FILE, "give another run."), read_run(folder)
    recipe, record_file = run["recipe"], folder / "model" / RECORD_FILE
    record = TrainingRecord.load(folder / "model") if record_file.is_file() else None
    facts = [recipe["name"], recipe["family"], recipe["objective"]]
    facts += [
        f"finished after {duration(record.seconds)} of training, {record.hardware}" if record else "not finished"
    ]
    return {
        "facts": facts,
        "tables": [table for table in (_before_and_after(run), _plan_and_run(run, curve)) if len(table[1]) > 1],
        "curve": _picture(curve, run),
        "predictions": run.get("predictions"),
        "files": [
            ("model card", f"model/{CARD_FILE}"),
            ("training record", f"model/{RECORD_FILE}"),
            ("settings of the run", RUN_FILE),
        ],
    }


def _before_and_after(run: Mapping[str, Any]) -> tuple[str, list[list[str]]]:
    before, after = run.get("before") or {}, run.get("after") or {}
    rows = [["held-out text", "before", "after", "to compare with"]]
    for name, value in after.items():
        short = name.removeprefix("eval_")
        if not short.endswith(SHOWN_METRICS):
            continue
        form = ".1%" if short.endswith("accuracy") else ",.1f" if short == "perplexity" else ".3f"
        compared = ""
        if short in UNIGRAM_LOSSES and run.get(UNIGRAM):
            compared = f"{run[UNIGRAM]:.3f}: frequencies of tokens alone"
        rows.append(
            [
                short.replace("_", " "),
                format(before[name], form) if name in before else "",
                format(value, form),
                compared,
            ]
        )
    return "Before and after", rows


def _plan_and_run(run: Mapping[str, Any], curve: Curve) -> tuple[str, list[list[str]]]:
    plan, rows = run.get("plan") or {}, [["", "plan", "what happened"]]
    steps = sum(phase["steps"] for phase in run["recipe"]["phases"])
    done = {name: curve.last(name) for name in ("step", "tokens_seen", "training_seconds", "tokens_per_second")}
    rows.append(["steps", f"{steps:,}", f"{done['step'] or 0:,.0f}"])
    if done["tokens_seen"]:
        rows.append(["tokens", f"{plan['tokens']:,.0f}" if plan else "", f"{done['tokens_seen']:,.0f}"])
        rows.append(["time", duration(plan["seconds"]) if plan else "", duration(done["training_seconds"])])
        rows.append(["tokens per second", "", f"{done['tokens_per_second']:,.0f}"])
    if plan:
        rows.append(["memory", f"{plan['bytes'] / 2**30:,.2f} GiB", ""])
    for warning in dict.fromkeys(curve.warnings()):
        rows.append(["warning", "", warning])
    return "Plan and run", rows


def _picture(curve: Curve, run: Mapping[str, Any]) -> str:
    """Return the curves as SVG, without what is before its first tag."""
    phases = [(phase["steps"], f"{phase['length']} tokens") for phase in run["recipe"]["phases"]]
    unigram = run.get(UNIGRAM)
    baselines = dict.fromkeys(UNIGRAM_LOSSES, ("unigram", unigram)) if unigram else {}
    runs = [replace(curve, name="training")]
    with tempfile.TemporaryDirectory() as folder:
        file = draw_runs(runs, Path(folder) / "curve.svg", baselines=baselines, phases=phases)
        text = file.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def _finetuning(folder: Path) -> dict[str, Any]:
    """Return what the page says of a fine-tuning, from its results."""
    results = read_json(folder / RESULTS_FILE, "give another run.")
    examples = folder / EXAMPLES_FILE
    settings, seeds = results["settings"], results["seeds"]
    seconds = sum(seed["seconds"] for seed in seeds)
    tables = []
    for split, metrics in results["summary"].items():
        rows, baseline = [[split, "mean", "standard deviation", "without reading"]], results["baseline"].get(split, {})
        for name, value in metrics.items():
            cells = value["mean"], value["standard_deviation"], baseline.get(name)
            rows.append([name.replace("_", " "), *("" if cell is None else f"{cell:.3f}" for cell in cells)])
        tables.append((f"Scores, {split}", rows))
    warnings = [
        f"{name}: {number:,} rows are in the training data too" for name, number in results["repeated_rows"].items()
    ]
    warnings += [f"seed {seed}, {text}" for seed, texts in results["warnings"].items() for text in texts]
    return {
        "examples": read_json(examples, "remove it.") if examples.is_file() else None,
        "facts": [
            f"fine-tuned from {settings['model']}",
            f"{len(seeds)} seed{'s' * (len(seeds) > 1)}",
            f"{duration(seconds)} of training",
        ],
        "tables": tables,
        "warnings": warnings,
        "files": [
            ("results", RESULTS_FILE),
            *((f"model of seed {seed['seed']}", f"seed-{seed['seed']}") for seed in seeds),
        ],
    }
