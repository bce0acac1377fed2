"""Compare the curves of runs with each other and with the reference of a shipped recipe.

Draws a panel for each loss term and one for the speed. Prints a table of last values, the health warnings, and each
run's difference from the reference at the same number of tokens. docs/health.md says how to read it.
"""

import argparse

from hf_encoders.inputs import check_exists
from hf_encoders.options.names import AXES
from hf_encoders.writing import check_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="output folder of a run, one of its checkpoints, or a file with its log (trainer_state.json)",
    )
    parser.add_argument("--reference", metavar="NAME", help="a shipped curve, or a .json file of --save-reference")
    parser.add_argument(
        "--output", metavar="FILE", help="picture to write: .png, .svg, .pdf ... (default: only the table is printed)"
    )
    parser.add_argument("--against", choices=AXES, default="steps", help="horizontal axis (default: steps)")
    parser.add_argument("--title", default="", help="title of the picture")
    parser.add_argument(
        "--save-reference",
        metavar="NAME",
        help="write the curve of a single RUN as a reference: a name, to keep it in the package, or a .json file",
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong."""
    for path in arguments.runs:
        check_exists(path, "RUN")
    if arguments.save_reference and len(arguments.runs) > 1:
        raise ValueError(f"--save-reference is for one run, but {len(arguments.runs)} were given: give one.")
    if arguments.output:
        check_file(arguments.output, "--output")
