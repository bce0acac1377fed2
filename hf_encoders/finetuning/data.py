"""The labelled rows of fine-tuning: the options that say where they are, and their splits.

Without a validation and a test file, a random share of the training rows becomes `validation`; questions about one
context stay together. The module is imported for its options: it imports datasets and numpy inside of functions.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hf_encoders.corpus.text_files import check_is_text
from hf_encoders.inputs import check_exists, check_name_or_path, first_line
from hf_encoders.source_literals import constant


if TYPE_CHECKING:
    import datasets


FORMS = constant("corpus.labelled_files", "FORMS")
SPLITS = ("train", "validation", "test")
NO_SPLIT = "none"  # instead of a split's name: do not use one
HELD_OUT_SHARE = 0.1  # without evaluation files


@dataclass(frozen=True)
class DataSource:
    """Name the sources of the labelled rows: the options of `add_data_arguments`."""

    train: str | None = None
    validation: str | None = None
    test: str | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    train_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    format: str | None = None
    columns: str | None = None
    conll_columns: str = "0,-1"
    quotes: bool | None = None
    held_out: float | None = None
    held_out_seed: int = 0
    data_name: str | None = None

    @property
    def name(self) -> str:
        """Name of the data in the results."""
        if self.data_name is not None:
            return self.data_name
        if self.dataset is None:
            return Path(self.train).name
        return self.dataset if self.dataset_config is None else f"{self.dataset}, {self.dataset_config}"

    def check(self) -> None:
        """Refuse options that do not go together, and paths of nothing."""
        if (self.train is None) == (self.dataset is None):
            raise ValueError("give either --train FILE or --dataset NAME to train on.")
        of_files = ("validation", "test", "columns", "format")
        of_datasets = ("dataset_config", *(f"{split}_split" for split in SPLITS))
        for name in of_datasets if self.dataset is None else of_files:
            if getattr(self, name) is not None:
                needed = "--dataset" if self.dataset is None else "files; splits of --dataset have --validation-split"
                raise ValueError(f"--{name.replace('_', '-')} is for {needed}: leave it out.")
        if self.dataset is not None:
            check_name_or_path(self.dataset, f"--dataset {self.dataset!r}")
        for split in SPLITS:
            path = getattr(self, split)
            if path is not None:
                check_exists(path, f"--{split}")
                check_is_text(Path(path), f"--{split}: ")
        if self.held_out is not None and not 0 <= self.held_out < 1:
            raise ValueError(f"--held-out {self.held_out}: must be a share in [0, 1), for example {HELD_OUT_SHARE}.")
        if self.held_out_seed < 0:
            raise ValueError(f"--held-out-seed {self.held_out_seed}: must be at least 0.")


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `DataSource`."""
    add = parser.add_argument_group("data").add_argument
    add("--train", metavar="FILE", help=f"{', '.join(FORMS)} file to train on, by its suffix")
    add("--validation", metavar="FILE", help="file to choose the best checkpoint on")
    add("--test", metavar="FILE", help="file for the final metrics only")
    add("--dataset", metavar="NAME", help="instead: dataset on the Hub, or a folder that datasets reads")
    add("--dataset-config", metavar="NAME", help="its configuration (default: its only one)")
    add("--train-split", metavar="NAME", help="split of --dataset (default: train)")
    for split in SPLITS[1:]:
        text = f"split of --dataset (default: {split}, if it exists; {NO_SPLIT}: skip it)"
        add(f"--{split}-split", metavar="NAME", help=text)
    add("--format", choices=FORMS, help="format of the files (default: by their suffix)")
    add("--columns", metavar="A,B,...", help="column names of CSV or TSV files without a header row")
    text = "columns of the word and of its tag in CoNLL files, from 0; -1 is the last (default: %(default)s)"
    add("--conll-columns", metavar="WORD,TAG", default=DataSource.conll_columns, help=text)
    add("--quotes", action=argparse.BooleanOptionalAction, help="quoted fields (default: in CSV yes, in TSV no)")
    text = f"training rows to validate on instead (default: {HELD_OUT_SHARE} without --validation and --test, else 0)"
    add("--held-out", type=float, metavar="SHARE", help=text)
    add("--held-out-seed", type=int, default=DataSource.held_out_seed, metavar="N", help="seed of it (default: 0)")
    add("--data-name", metavar="NAME", help="name of the data in the record (default: the file's name)")


def add_text_columns(parser: argparse.ArgumentParser, label: str) -> None:
    """Add a task's options for the columns of a text, or a pair, with a label, which `label` describes."""
    add = parser.add_argument
    add("--text-column", default="text", metavar="NAME", help="column of the text (default: text)")
    add("--text-pair-column", metavar="NAME", help="column of the second text of a pair (default: none)")
    add("--label-column", default="label", metavar="NAME", help=f"{label} (default: label)")


def load_data(source: DataSource, group_column: str = "context") -> tuple[datasets.DatasetDict, str | None]:
    """Load the splits that exist, `train` first; the second value is a line for the plan if `validation` was held out.

    Rows with the same text in `group_column` are held out together.
    """
    data = load_files(source) if source.dataset is None else load_named(source)
    share = source.held_out
    if share is None:
        share = HELD_OUT_SHARE if len(data) == 1 else 0.0
    if share == 0:
        return data, None
    if "validation" in data:
        raise ValueError(f"--held-out {share}: there is a validation set already; leave one of the two out.")
    data = hold_out(data, share, source.held_out_seed, group_column)
    held_out = f"{len(data['validation']):,} rows held out of the training data"
    return data, f"validation: {held_out} ({share:.0%}, seed {source.held_out_seed})"


def load_files(source: DataSource) -> datasets.DatasetDict:
    """Load the splits from `train`, `validation` and `test` files."""
    import datasets

    from hf_encoders.corpus.labelled_files import read_file

    try:
        word, tag = map(int, source.conll_columns.split(","))
    except ValueError:
        raise ValueError(f"--conll-columns {source.conll_columns!r} must be two numbers, for example 0,3.") from None
    columns = source.columns.split(",") if source.columns else None
    paths = {split: getattr(source, split) for split in SPLITS if getattr(source, split) is not None}
    return datasets.DatasetDict(
        {split: read_file(path, source.format, columns, (word, tag), source.quotes) for split, path in paths.items()}
    )


def load_named(source: DataSource) -> datasets.DatasetDict:
    """Load the splits of a dataset on the Hub or in a folder."""
    import datasets

    folder = Path(source.dataset)
    try:
        if (folder / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(folder)
        elif (folder / "state.json").is_file():  # a single split, which has no name on disk
            loaded = datasets.DatasetDict(train=datasets.load_from_disk(folder))
        else:
            loaded = datasets.load_dataset(source.dataset, source.dataset_config)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(
            f"--dataset {source.dataset!r} cannot be loaded ({first_line(error.__cause__ or error)}): check "
            "--dataset, --dataset-config and the connection."
        ) from error
    data = datasets.DatasetDict()
    for split in SPLITS:
        wanted = getattr(source, f"{split}_split")
        name = wanted or split
        if wanted == NO_SPLIT and split != "train":
            continue
        if name in loaded:
            if len(loaded[name]) == 0:
                raise ValueError(f"--{split}-split {name}: it has no rows; name another, or {NO_SPLIT}.")
            data[split] = loaded[name]
        elif wanted or split == "train":
            raise ValueError(
                f"--{split}-split {name}: --dataset {source.dataset!r} has the splits {', '.join(loaded)}: name one."
            )
    return data


def hold_out(
    data: datasets.DatasetDict, share: float, seed: int, group_column: str = "context"
) -> datasets.DatasetDict:
    """Move a share of `train`, rounded up, to `validation`; rows with the same `group_column` stay together."""
    import datasets
    import numpy as np

    train = data["train"]
    # Questions about a context that was trained on would measure less.
    groups = train[group_column][:] if group_column in train.column_names else []
    if not groups or not all(isinstance(group, str) for group in groups):
        groups = range(len(train))
    distinct = list(dict.fromkeys(groups))
    order = np.random.default_rng(seed).permutation(len(distinct))
    held_out = {distinct[number] for number in order[: math.ceil(share * len(distinct))]}
    kept, moved = [], []
    for row, group in enumerate(groups):
        (moved if group in held_out else kept).append(row)
    if not kept:
        raise ValueError(
            f"--held-out {share} takes every row of the training data ({len(train)}): give more rows, or --held-out "
            "0; for CSV without a header row, --columns text,label."
        )
    return datasets.DatasetDict({**data, "train": train.select(kept), "validation": train.select(moved)})
