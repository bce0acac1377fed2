"""`hf-encoders recipe`: list the shipped recipes; `hf-encoders recipe NAME --output my.yaml` copies one to edit.

The copy keeps the comments, which say where each number is from. `hf-encoders pretrain my.yaml` trains from it, also
`adapt` and `distil` with --recipe my.yaml. To change a number or two, `--set KEY=VALUE` of these commands is enough.
"""

import argparse
import shutil
from pathlib import Path

from hf_encoders.runs.options import recipe_file, recipe_names, recipes_for_help
from hf_encoders.writing import check_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a shipped recipe (default: list them)")
    parser.add_argument("--output", metavar="FILE", help="file to write (default: print the recipe)")


def check(arguments: argparse.Namespace) -> None:
    """Refuse an unknown name, and a file that cannot be written or is there."""
    if arguments.name is not None:
        recipe_file(arguments.name)
    if arguments.output is None:
        return
    if arguments.name is None:
        raise ValueError("--output is for a copy: name the recipe, such as bert-minutes.")
    check_file(arguments.output, "--output")
    if Path(arguments.output).exists():
        raise ValueError(f"--output {arguments.output} exists: name another file.")


def run(arguments: argparse.Namespace) -> int:
    """List, print or copy."""
    if arguments.name is None:
        print(recipes_for_help(recipe_names()))
    elif arguments.output is None:
        print(recipe_file(arguments.name).read_text(encoding="utf-8"), end="")
    else:
        shutil.copyfile(recipe_file(arguments.name), arguments.output)
        print(f"{arguments.output}: a copy of {arguments.name}, to edit")
    return 0
