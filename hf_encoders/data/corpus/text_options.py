"""Options of commands that read text: files or a dataset."""

import argparse
from pathlib import Path

import datasets

from hf_encoders.errors import first_line
from hf_encoders.loading import NOT_HERE, why_unreachable


def load_split(arguments: argparse.Namespace) -> datasets.Dataset | datasets.IterableDataset:
    """The split of --dataset."""
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
