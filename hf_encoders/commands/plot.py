"""Run `hf-encoders plot`; its options are in `hf_encoders/options/plot.py`."""

import argparse
from dataclasses import replace
from pathlib import Path

from hf_encoders.records.curves import Curve, compare, read_reference, read_run, reference_file, save_reference
from hf_encoders.records.hardware import describe_hardware, describe_software
from hf_encoders.records.plots import check_picture, draw_runs
from hf_encoders.records.tables import text_table
from hf_encoders.writing import check_folder


# Metric, heading and format of the columns around those of losses and accuracies.
FIRST = (("step", "steps", ",.0f"), ("tokens_seen", "tokens", ",.0f"), ("training_seconds", "minutes", ".1f"))
LAST = (("tokens_per_second", "tokens/s", ",.0f"), ("mfu", "MFU", ".1%"))


def run(arguments: argparse.Namespace) -> int:
    """Draw the runs, and print table and comparisons."""
    if arguments.output:
        check_picture(arguments.output, "--output")
    if arguments.save_reference:
        check_folder(reference_file(arguments.save_reference).parent, "--save-reference")
    runs = [read_run(Path(path)) for path in arguments.runs]
    reference = read_reference(arguments.reference) if arguments.reference else None
    if arguments.output:
        draw_runs(runs, Path(arguments.output), arguments.title, arguments.against, reference)
    print(format_table([*runs, *([] if reference is None else [reference])]))
    for one in runs:
        if one.warnings():
            print(f"{one.name}: health warnings: {', '.join(one.warnings())}")
        for sentence in [] if reference is None else compare(one, reference):
            print(sentence)
    if arguments.output:
        print(f"picture: {arguments.output}")
    if arguments.save_reference:
        # A run without a record is assumed to be this machine's.
        here = {"hardware": describe_hardware(), "software": describe_software()}
        known = replace(runs[0], about={**here, **runs[0].about})
        print(f"reference: {save_reference(known, arguments.save_reference)}")
    return 0


def format_table(curves: list[Curve]) -> str:
    """Last values with a row per run, without metrics that no run logged.

    >>> print(format_table([Curve("a", [{"step": 1000, "mlm_loss": 5.5, "training_seconds": 90}]), Curve("bb", [])]))
        steps  minutes  mlm_loss
    a   1,000      1.5     5.500
    bb      -        -         -
    """
    logged = dict.fromkeys(name for curve in curves for entry in curve.entries for name in entry)
    # A source's sum of the terms is left out: its terms are there.
    left_out = {"train_loss", *(f"eval_{source}_loss" for curve in curves for source in curve.sources())}
    losses = [(name, name, ".3f") for name in logged if name.endswith("loss") and name not in left_out]
    accuracies = [(name, name, ".1%") for name in logged if name.endswith("_accuracy")]
    columns = [["", *(curve.name for curve in curves)]]
    for metric, heading, form in (*FIRST, *losses, *accuracies, *LAST):
        values = [curve.last(metric) for curve in curves]
        if any(value is not None for value in values):
            scale = 60 if metric == "training_seconds" else 1
            columns.append([heading, *("-" if value is None else format(value / scale, form) for value in values)])
    return text_table(list(zip(*columns, strict=True)), "<>")
