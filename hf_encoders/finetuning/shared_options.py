"""Options of all fine-tuning tasks: data and training; nothing here imports torch."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_encoders.options import SET_BY_FINETUNING, add_training_options
from hf_encoders.source_literals import constant


FORMS = constant("corpus.labelled_files", "FORMS")
SPLITS = ("train", "validation", "test")
NO_SPLIT = "none"  # instead of a split's name: do not use one
HELD_OUT_SHARE = 0.1  # without evaluation files
# Batch size, epochs and learning rate are within the ranges of BERT, appendix A.3; 10 % of warm-up as there. Learning
# rate and epochs are those for the papers' width; `defaults` raises both for narrower encoders.
BASE_WIDTH = 768
BASE_RATE = 5e-5
BASE_EPOCHS = 3.0
HIGHEST_RATE = 1e-3
LEAST_STEPS = 500
MOST_EPOCHS = 50
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "max_steps": -1,
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "gradient_accumulation_steps": 1,
    "optim": "adamw",
    "bf16": False,
    "fp16": False,
}


def rate_of_width(width: int, base: float = BASE_RATE) -> float:
    """Return the learning rate for an encoder's hidden size, from that for 768: narrower ones take a higher rate.

    >>> rate_of_width(1024), rate_of_width(384), rate_of_width(128)
    (5e-05, 0.0002, 0.001)
    """
    return min(HIGHEST_RATE, float(f"{base * max(1, BASE_WIDTH / width) ** 2:.1e}"))


@dataclass(frozen=True)
class DataSource:
    """Where the labelled rows come from: the options of `add_data_arguments`."""

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


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `DataSource`."""
    data = parser.add_argument_group("data")
    add = data.add_argument
    add("--train", metavar="FILE", help=f"{', '.join(FORMS)} file to train on, by its suffix")
    add("--validation", metavar="FILE", help="file to choose the best checkpoint on")
    add("--test", metavar="FILE", help="file for the final metrics only")
    add("--dataset", metavar="NAME", help="instead: dataset on the Hub, or a folder that datasets reads")
    add("--dataset-config", metavar="NAME", help="its configuration (default: its only one)")
    add("--train-split", metavar="NAME", help="split of --dataset (default: train)")
    for split in SPLITS[1:]:
        add(
            f"--{split}-split",
            metavar="NAME",
            help=f"split of --dataset (default: {split}, if it exists; {NO_SPLIT}: skip it)",
        )
    add("--format", choices=FORMS, help="format of the files (default: by their suffix)")
    add("--columns", metavar="A,B,...", help="column names of CSV or TSV files without a header row")
    add(
        "--conll-columns",
        metavar="WORD,TAG",
        default=DataSource.conll_columns,
        help="columns of the word and of its tag in CoNLL files, from 0; -1 is the last (default: %(default)s)",
    )
    add("--quotes", action=argparse.BooleanOptionalAction, help="quoted fields (default: in CSV yes, in TSV no)")
    add(
        "--held-out",
        type=float,
        metavar="SHARE",
        help=f"share of the training rows to validate on instead of a file (default: {HELD_OUT_SHARE} without "
        "--validation and --test, else 0)",
    )
    add("--held-out-seed", type=int, default=DataSource.held_out_seed, metavar="N", help="seed of it (default: 0)")
    add("--data-name", metavar="NAME", help="name of the data in the record (default: the file's name)")


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the fields of `TrainingArguments`."""
    rate = f"{BASE_RATE:g} from width {BASE_WIDTH}, up to {HIGHEST_RATE:g} below"
    epochs = f"{BASE_EPOCHS:g}; below that width enough for {LEAST_STEPS} steps, at most {MOST_EPOCHS}"
    shown = {}
    for name, metavar, text, default, *names in (
        ("learning_rate", "RATE", "peak; linear to 0 after warm-up", rate),
        ("per_device_train_batch_size", "ROWS", "rows per forward pass on each device", None, "--batch-size"),
        ("gradient_accumulation_steps", "N", "forward passes per optimizer step", None, "--accumulation"),
        ("per_device_eval_batch_size", "ROWS", "rows per forward pass in evaluation", None, "--eval-batch-size"),
        ("num_train_epochs", "N", "passes over the training rows", epochs, "--epochs"),
        ("max_steps", "N", "optimizer steps, instead of --epochs; -1: by --epochs", None),
        ("warmup_steps", "N", "optimizer steps of warm-up, or below 1 their share", None, "--warmup"),
        ("weight_decay", "X", "not on biases and LayerNorms", None),
        ("eval_steps", "N", "evaluate every N optimizer steps", "after every epoch"),
    ):
        shown[name] = metavar, f"{text} (default: {default or DEFAULTS[name]})", names
    add_training_options(parser, SET_BY_FINETUNING, shown)


def add_text_columns(parser: argparse.ArgumentParser, label: str) -> None:
    """Add options for the columns; `label` describes the label column."""
    add = parser.add_argument
    add("--text-column", default="text", metavar="NAME", help="column of the text (default: text)")
    add("--text-pair-column", metavar="NAME", help="column of the second text of a pair (default: none)")
    add("--label-column", default="label", metavar="NAME", help=f"{label} (default: label)")
