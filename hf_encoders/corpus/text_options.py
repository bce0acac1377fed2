"""Options of commands that read text: files or a dataset. A command imports them before it imports torch."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hf_encoders.corpus.named_sources import named_paths
from hf_encoders.corpus.text_files import check_text_files
from hf_encoders.inputs import check_name_or_path


if TYPE_CHECKING:
    import datasets


def add_text_arguments(
    parser: argparse.ArgumentParser, takes_names: bool = False
) -> "argparse._MutuallyExclusiveGroup":
    """Add the options that name the text, files or a dataset; returns the group of those of which one is needed.

    With `takes_names`, the text may be of several sources, `NAME=PATH`, and `--corpus` is another name of `--input`,
    as it is called where there are sources elsewhere.
    """
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        *(("--input", "--corpus") if takes_names else ("--input",)),
        action="extend",
        nargs="+",
        metavar="[NAME=]PATH" if takes_names else "PATH",
        help="text files (a blank line between documents), .jsonl files (one document per line) or folders of them"
        + "; with names, several sources (repeat a name for several paths)" * takes_names,
    )
    source.add_argument(
        "--dataset", metavar="NAME", help="dataset on the Hub, or a folder that datasets.load_dataset reads"
    )
    parser.add_argument("--config", metavar="NAME", help="configuration of --dataset (default: its only one)")
    parser.add_argument("--split", metavar="NAME", help="split of --dataset (default: train)")
    parser.add_argument(
        "--streaming",
        action="store_true",
        help="read --dataset while it is downloaded, without keeping it; a restart reads it again from the start",
    )
    parser.add_argument(
        "--text-column",
        default="text",
        metavar="NAME",
        help="column of --dataset, or field of .jsonl files, with the text of a document (default: %(default)s)",
    )
    parser.add_argument(
        "--sentences-column", metavar="NAME", help="column or field with a list of sentences, which replaces the text"
    )
    parser.add_argument(
        "--turns-column",
        metavar="NAME",
        help="column or field with the turns of a dialogue, for the objective dialogue: a list of str, query first, "
        "or of objects with role and text; in text files, a line is a turn",
    )
    return source


def check_text_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options of --dataset together with --input."""
    for name in ("config", "split", "streaming"):
        if arguments.input and getattr(arguments, name):
            raise ValueError(f"--{name} is for --dataset, not for --input: leave it out.")


def check_text(arguments: argparse.Namespace, takes_names: bool = False) -> None:
    """Refuse files, folders and options of the text that are wrong."""
    check_text_arguments(arguments)
    if arguments.dataset:
        check_name_or_path(arguments.dataset, f"--dataset {arguments.dataset!r}")
    sources = named_paths(arguments.input or (), "--input") if takes_names else {"": arguments.input or ()}
    for paths in sources.values():
        check_text_files(paths, "--input")


def load_split(arguments: argparse.Namespace) -> "datasets.Dataset | datasets.IterableDataset":
    """The split of --dataset."""
    import datasets

    from hf_encoders.inputs import first_line
    from hf_encoders.loading import NOT_HERE, why_unreachable

    name = arguments.dataset
    if not Path(name).exists():
        # datasets would retry several times before it looks into its cache.
        reason = why_unreachable(name, f"--dataset {name!r}", "dataset")
        if reason and not Path(datasets.config.HF_DATASETS_CACHE, name.replace("/", "___")).exists():
            raise ValueError(f"--dataset {name!r} {NOT_HERE} ({reason}): check the spelling and the connection.")
    try:
        return datasets.load_dataset(
            name, arguments.config, split=arguments.split or "train", streaming=arguments.streaming
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--dataset {name!r} cannot be loaded ({first_line(error)}): check --dataset, --config and --split, and "
            "the connection."
        ) from error
