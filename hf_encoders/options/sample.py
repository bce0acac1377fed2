"""`hf-encoders sample`: write text and labelled passages to try the other commands on, without a download.

    DIR/text/LIBRARY.txt     a docstring per line, a blank line between modules
    DIR/train.csv, test.csv  docstrings of modules that are not in text/, in columns text and label (the library)

They are the docstrings of Python's standard library and of the packages that this one requires, so they differ between
versions of these. Reading takes about a minute.
"""

import argparse
from pathlib import Path

from hf_encoders.writing import check_folder, holds_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--output", default="sample", metavar="DIR", help="folder to write (default: sample)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="which documents are held out of the text (default: 0)"
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse a folder that cannot be written or holds files."""
    output = Path(arguments.output)
    check_folder(output, "--output")
    if holds_files(output):
        raise ValueError(f"--output {output} holds files already: name another folder, or remove it first.")
