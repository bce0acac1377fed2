"""The user's files, or a dataset by name, as the splits `train`, `validation` and `test`.

Without a validation and a test file, a random share of the training rows becomes `validation`; questions about one
context stay together.
"""

from pathlib import Path

import datasets
import numpy as np

from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.errors import first_line
from hf_encoders.finetuning.shared_options import HELD_OUT_SHARE, NO_SPLIT, SPLITS, DataSource


def load_data(source: DataSource, group_column: str = "context") -> tuple[datasets.DatasetDict, str | None]:
    """The splits that exist, `train` first, and a line for the plan if `validation` was held out of `train`.

    Rows with the same text in `group_column` are held out together.
    """
    if (source.train is None) == (source.dataset is None):
        raise ValueError("give either --train FILE or --dataset NAME to train on.")
    data = load_files(source) if source.dataset is None else load_named(source)
    share = source.held_out
    if share is None:
        share = HELD_OUT_SHARE if len(data) == 1 else 0.0
    if not 0 <= share < 1:
        raise ValueError(f"--held-out {share} must be a share in [0, 1), for example {HELD_OUT_SHARE}.")
    if share > 0 and "validation" in data:
        raise ValueError(f"--held-out {share}: there is a validation set already; leave one of the two out.")
    if share == 0:
        return data, None
    data = hold_out(data, share, source.held_out_seed, group_column)
    return data, (
        f"validation: {len(data['validation']):,} rows held out of the training data ({share:.0%}, seed "
        f"{source.held_out_seed})"
    )


def load_files(source: DataSource) -> datasets.DatasetDict:
    """The splits from `train`, `validation` and `test` files."""
    for name in ("dataset_config", *(f"{split}_split" for split in SPLITS)):
        if getattr(source, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for --dataset: leave it out.")
    try:
        word, tag = (int(number) for number in source.conll_columns.split(","))
    except ValueError:
        raise ValueError(f"--conll-columns {source.conll_columns!r} must be two numbers, for example 0,3.") from None
    columns = source.columns.split(",") if source.columns else None
    paths = {split: getattr(source, split) for split in SPLITS}
    return datasets.DatasetDict(
        {
            split: read_file(path, source.format, columns, (word, tag), source.quotes)
            for split, path in paths.items()
            if path is not None
        }
    )


def load_named(source: DataSource) -> datasets.DatasetDict:
    """The splits of a dataset on the Hub or in a folder."""
    for name in ("validation", "test", "columns", "format"):
        if getattr(source, name) is not None:
            raise ValueError(f"--{name} is for files: with --dataset leave it out; splits have --{SPLITS[1]}-split.")
    folder = Path(source.dataset)
    try:
        if (folder / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(folder)
        elif (folder / "state.json").is_file():  # a single split, which has no name on disk
            found = datasets.DatasetDict(train=datasets.load_from_disk(folder))
        else:
            found = datasets.load_dataset(source.dataset, source.dataset_config)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(
            f"--dataset {source.dataset!r} cannot be loaded ({first_line(error.__cause__ or error)}): check "
            "--dataset, --dataset-config and the connection."
        ) from error
    data = datasets.DatasetDict()
    for split in SPLITS:
        asked = getattr(source, f"{split}_split")
        name = asked or split
        if asked == NO_SPLIT and split != "train":
            continue
        if name in found:
            if len(found[name]) == 0:
                raise ValueError(f"--{split}-split {name}: it has no rows; name another, or {NO_SPLIT}.")
            data[split] = found[name]
        elif asked or split == "train":
            raise ValueError(
                f"--{split}-split {name}: --dataset {source.dataset!r} has the splits {', '.join(found)}: name one."
            )
    return data


def hold_out(
    data: datasets.DatasetDict, share: float, seed: int, group_column: str = "context"
) -> datasets.DatasetDict:
    """Move a share of `train`, rounded up, to `validation`; rows with the same `group_column` stay together."""
    if seed < 0:
        raise ValueError(f"--held-out-seed {seed}: must be at least 0.")
    train = data["train"]
    # Questions about a context that was trained on would measure less.
    groups = train[group_column][:] if group_column in train.column_names else []
    if not groups or not all(isinstance(group, str) for group in groups):
        groups = range(len(train))
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    order = np.random.default_rng(seed).permutation(len(numbers))
    held_out = set(order[: int(np.ceil(share * len(numbers)))].tolist())
    is_held_out = np.array([numbers[group] in held_out for group in groups])
    if is_held_out.all():
        rows = f"all {len(train)} rows" if len(train) > 1 else "the only row"
        raise ValueError(
            f"--held-out {share} takes {rows} of the training data, and none is left to train on: give more rows, or "
            "--held-out 0; for CSV without a header row, --columns text,label."
        )
    sides = {"train": np.flatnonzero(~is_held_out), "validation": np.flatnonzero(is_held_out)}
    return datasets.DatasetDict({**data, **{split: train.select(rows) for split, rows in sides.items()}})


def require_columns(data: datasets.DatasetDict, **columns: str | None) -> None:
    """Refuse data without a column; each is a value of its option, such as `text_column`."""
    for split, rows in data.items():
        for option, column in columns.items():
            if column is not None and column not in rows.column_names:
                raise ValueError(
                    f"--{option.replace('_', '-')} {column}: the {split} data has no such column; it has "
                    f"{', '.join(rows.column_names)}. For CSV without a header row, name them: --columns "
                    f"{','.join(filter(None, columns.values()))}."
                )
