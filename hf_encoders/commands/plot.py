"""Compare the curves of runs with each other and with the reference of a shipped recipe.

Draws a panel for each loss term and one for the speed. Prints a table of last values, the health warnings, and each
run's difference from the reference at the same number of tokens. docs/health.md says how to read it.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hf_encoders.inputs import check_exists
from hf_encoders.source_literals import constant
from hf_encoders.writing import check_file, check_folder, text_table


if TYPE_CHECKING:
    from hf_encoders.publishing.curves import Curve


# Metric, heading and format of the columns around those of losses and accuracies.
FIRST = (("step", "steps", ",.0f"), ("tokens_seen", "tokens", ",.0f"), ("training_seconds", "minutes", ".1f"))
LAST = (("tokens_per_second", "tokens/s", ",.0f"), ("mfu", "MFU", ".1%"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    runs = "output folder of a run, one of its checkpoints, or a file with its log (trainer_state.json)"
    add("runs", nargs="+", metavar="RUN", help=runs)
    add("--reference", metavar="NAME", help="a shipped curve, or a .json file of --save-reference")
    output = "picture to write: .png, .svg, .pdf ... (default: only the table is printed)"
    add("--output", metavar="FILE", help=output)
    axes = list(constant("publishing.curves", "AXES"))
    add("--against", choices=axes, default="steps", help="horizontal axis (default: steps)")
    add("--title", default="", help="title of the picture")
    reference = "write the curve of a single RUN as a reference: a name, to keep it in the package, or a .json file"
    add("--save-reference", metavar="NAME", help=reference)


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong."""
    for path in arguments.runs:
        check_exists(path, "RUN")
    if arguments.save_reference and len(arguments.runs) > 1:
        raise ValueError(f"--save-reference is for one run, but {len(arguments.runs)} were given: give one.")
    if arguments.output:
        check_file(arguments.output, "--output")


def run(arguments: argparse.Namespace) -> int:
    """Draw the runs, and print table and comparisons."""
    from hf_encoders.publishing.curves import (
        check_picture,
        compare,
        draw_runs,
        read_reference,
        read_run,
        reference_file,
        save_reference,
    )
    from hf_encoders.publishing.hardware import describe_hardware, describe_software

    if arguments.output:
        check_picture(arguments.output)
    if arguments.save_reference:
        check_folder(reference_file(arguments.save_reference).parent, "--save-reference")
    runs = [read_run(Path(path)) for path in arguments.runs]
    reference = read_reference(arguments.reference) if arguments.reference else None
    if arguments.output:
        draw_runs(runs, Path(arguments.output), arguments.title, arguments.against, reference)
    print(format_table([*runs, *([] if reference is None else [reference])]))
    for curve in runs:
        if curve.warnings():
            print(f"{curve.name}: health warnings: {', '.join(curve.warnings())}")
        for sentence in [] if reference is None else compare(curve, reference):
            print(sentence)
    if arguments.output:
        print(f"picture: {arguments.output}")
    if arguments.save_reference:
        # A run without a record is assumed to be this machine's.
        here = {"hardware": describe_hardware(), "software": describe_software()}
        known = replace(runs[0], about={**here, **runs[0].about})
        print(f"reference: {save_reference(known, arguments.save_reference)}")
    return 0


def format_table(curves: "list[Curve]") -> str:
    """Return the last values with a row per run, without metrics that no run logged.

    >>> from hf_encoders.publishing.curves import Curve
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
