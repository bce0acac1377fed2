"""Write one HTML page on a run, to look at: before and after, plan and run, curves, predictions, links.

The page is one file, without anything from elsewhere. RUN may still be training.
"""

import argparse
from pathlib import Path

from hf_encoders.inputs import check_exists
from hf_encoders.source_literals import constant
from hf_encoders.writing import check_file


PAGE = "report.html"
RUN = "output folder of pretrain, adapt, distil, quickstart or finetune"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("run_folder", metavar="RUN", help=RUN)
    parser.add_argument("--output", metavar="FILE", help=f"the page to write (default: RUN/{PAGE})")


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong."""
    check_exists(arguments.run_folder, "RUN")
    files = constant("publishing.files", "RUN_FILE"), constant("publishing.report", "RESULTS_FILE")
    if not any((Path(arguments.run_folder) / name).is_file() for name in files):
        raise ValueError(f"{arguments.run_folder} holds no run, no {' and no '.join(files)}: give the {RUN}.")
    arguments.output = arguments.output or str(Path(arguments.run_folder) / PAGE)
    check_file(arguments.output, "--output")


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    from hf_encoders.publishing.report import write_report

    print(f"report: {write_report(Path(arguments.run_folder), Path(arguments.output))}")
    return 0
