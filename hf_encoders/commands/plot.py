"""Lay the curves of runs over each other and over the reference of a shipped recipe.

Draws a panel for each objective's loss and one for the speed, prints a table of last values, the warnings
that were given, and where each run is beside the reference at the same tokens. docs/health.md tells how to read it.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from hf_encoders.records.curves import Curve, compare, read_reference, read_run, reference_file, save_reference
from hf_encoders.records.hardware import describe_hardware, describe_software
from hf_encoders.records.plots import AXES, check_picture, draw_runs
from hf_encoders.writing import check_folder


# Figure of the log, heading, form.
COLUMNS = (
    ("step", "steps", ",.0f"),
    ("tokens_seen", "tokens", ",.0f"),
    ("training_seconds", "minutes", ".1f"),
    ("loss", "loss", ".3f"),
    ("mlm_loss", "MLM loss", ".3f"),
    ("mlm_accuracy", "accuracy", ".1%"),
    ("eval_mlm_loss", "held-out", ".3f"),
    ("pair_loss", "pair loss", ".3f"),
    ("pair_accuracy", "accuracy", ".1%"),
    ("tokens_per_second", "tokens/s", ",.0f"),
    ("mfu", "MFU", ".1%"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="output folder of a run, one of its checkpoints, or a file with its log (trainer_state.json)",
    )
    parser.add_argument("--reference", metavar="NAME", help="a shipped curve, or a .json file of --save-reference")
    parser.add_argument(
        "--output", metavar="FILE", help="picture to write: .png, .svg, .pdf ...; without, only the table is printed"
    )
    parser.add_argument("--against", choices=list(AXES), default="steps", help="horizontal axis (default: steps)")
    parser.add_argument("--title", default="", help="heading of the picture")
    parser.add_argument(
        "--save-reference",
        metavar="NAME",
        help="write the only RUN's curve as a reference: a name, for the package's own, or a .json file",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, draw, print."""
    if arguments.save_reference and len(arguments.runs) > 1:
        raise ValueError(f"--save-reference is for one run, and {len(arguments.runs)} were given: give one.")
    if arguments.output:
        check_picture(arguments.output, "--output")
    if arguments.save_reference:
        check_folder(reference_file(arguments.save_reference).parent, "--save-reference")
    runs = [read_run(Path(path)) for path in arguments.runs]
    reference = read_reference(arguments.reference) if arguments.reference else None
    if arguments.output:
        draw_runs(runs, reference, Path(arguments.output), arguments.title, arguments.against)
    print(format_table([*runs, *([] if reference is None else [reference])]))
    for one in runs:
        if one.warnings():
            print(f"{one.name}: warned of {', '.join(one.warnings())}")
        for sentence in [] if reference is None else compare(one, reference):
            print(sentence)
    if arguments.output:
        print(f"picture: {arguments.output}")
    if arguments.save_reference:
        # A run without a record is taken to be this machine's.
        here = {"hardware": describe_hardware(), "software": describe_software()}
        known = replace(runs[0], about={**here, **runs[0].about})
        print(f"reference: {save_reference(known, arguments.save_reference)}")
    return 0


def format_table(curves: list[Curve]) -> str:
    """Last values, a row a run; figures that no run has are left out.

    >>> print(format_table([Curve("a", [{"step": 1000, "mlm_loss": 5.5, "training_seconds": 90}]), Curve("bb", [])]))
        steps  minutes  MLM loss
    a   1,000      1.5     5.500
    bb      -        -         -
    """
    columns = [["", *(curve.name for curve in curves)]]
    for figure, heading, form in COLUMNS:
        values = [curve.last(figure) for curve in curves]
        if any(value is not None for value in values):
            scale = 60 if figure == "training_seconds" else 1
            columns.append([heading, *("-" if value is None else format(value / scale, form) for value in values)])
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for name, *cells in zip(*columns, strict=True):
        right = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        lines.append(f"{name:<{widths[0]}}{right}".rstrip())
    return "\n".join(lines)
