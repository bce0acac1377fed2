"""Labelled rows of fine-tuning: the user's files or a dataset, and their texts as token ids.

Without a validation and a test file, a random share of the training rows becomes `validation`; questions about one
context stay together.
"""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.finetuning.shared_options import HELD_OUT_SHARE, NO_SPLIT, SPLITS, DataSource
from hf_encoders.inputs import first_line


def load_data(source: DataSource, group_column: str = "context") -> tuple[datasets.DatasetDict, str | None]:
    """Load the splits that exist, `train` first; the second value is a line for the plan if `validation` was held out.

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
    if share == 0:
        return data, None
    if "validation" in data:
        raise ValueError(f"--held-out {share}: there is a validation set already; leave one of the two out.")
    data = hold_out(data, share, source.held_out_seed, group_column)
    held_out = f"{len(data['validation']):,} rows held out of the training data"
    return data, f"validation: {held_out} ({share:.0%}, seed {source.held_out_seed})"


def load_files(source: DataSource) -> datasets.DatasetDict:
    """Load the splits from `train`, `validation` and `test` files."""
    for name in ("dataset_config", *(f"{split}_split" for split in SPLITS)):
        if getattr(source, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for --dataset: leave it out.")
    try:
        word, tag = map(int, source.conll_columns.split(","))
    except ValueError:
        raise ValueError(f"--conll-columns {source.conll_columns!r} must be two numbers, for example 0,3.") from None
    columns = source.columns.split(",") if source.columns else None
    data = datasets.DatasetDict()
    for split in SPLITS:
        path = getattr(source, split)
        if path is not None:
            data[split] = read_file(path, source.format, columns, (word, tag), source.quotes)
    return data


def load_named(source: DataSource) -> datasets.DatasetDict:
    """Load the splits of a dataset on the Hub or in a folder."""
    for name in ("validation", "test", "columns", "format"):
        if getattr(source, name) is not None:
            raise ValueError(f"--{name} is for files: with --dataset leave it out; splits have --{SPLITS[1]}-split.")
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
    if seed < 0:
        raise ValueError(f"--held-out-seed {seed}: must be at least 0.")
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
        rows = f"all {len(train)} rows" if len(train) > 1 else "the only row"
        raise ValueError(
            f"--held-out {share} takes {rows} of the training data, and none is left to train on: give more rows, or "
            "--held-out 0; for CSV without a header row, --columns text,label."
        )
    return datasets.DatasetDict({**data, "train": train.select(kept), "validation": train.select(moved)})


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


def require_text(data: datasets.DatasetDict, column: str) -> None:
    """Refuse rows whose `column` is not text."""
    for split, rows in data.items():
        for row, text in enumerate(rows[column]):
            if not isinstance(text, str):
                raise ValueError(f"{split} data, row {row}: {column} is {text!r}, not text.")


def text_columns(
    data: datasets.DatasetDict, text_column: str, text_pair_column: str | None, label_column: str
) -> tuple[str, ...]:
    """Return the columns that the encoder reads; refuse data without them, and rows whose text is not text."""
    require_columns(data, text_column=text_column, text_pair_column=text_pair_column, label_column=label_column)
    columns = (text_column,) if text_pair_column is None else (text_column, text_pair_column)
    for column in columns:
        require_text(data, column)
    return columns


def encode_texts(
    texts: list[str], pairs: list[str] | None, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[dict[str, list], int]:
    """Return token ids of texts or of pairs, at most `max_length`, and the number of truncated rows.

    The longer text of a pair is truncated first. Token types are asked for, since tokenizers of ALBERT and XLNet may
    return them only on request, and left out where none is above 0: to XLM a token type of 0 is not the same as none.
    XLNet's `<cls>` has one of its own.

    >>> encode_texts(["w5", "w6 w7 w8"], None, doctest_tokenizer(), 4)[0]["input_ids"]
    [[5], [6, 7, 8]]
    >>> encoded, truncated = encode_texts(["w5 w6"], ["w7 w8 w9"], doctest_tokenizer(), 4)
    >>> encoded["input_ids"], encoded["token_type_ids"], truncated
    ([[5, 6, 7, 8]], [[0, 0, 1, 1]], 1)
    """
    encoded = tokenizer(texts, pairs, truncation="longest_first", max_length=max_length, return_token_type_ids=True)
    if encoded.encodings is None:  # a tokenizer written in Python does not say what it cut off
        whole = tokenizer(texts, pairs, truncation=False, verbose=False)["input_ids"]
        truncated = sum(len(ids) > max_length for ids in whole)
    else:
        truncated = sum(bool(encoding.overflowing) for encoding in encoded.encodings)
    if not any(map(any, encoded["token_type_ids"])):
        del encoded["token_type_ids"]
    return dict(encoded), truncated


def encode_splits(
    data: datasets.DatasetDict,
    columns: tuple[str, ...],
    labels: dict[str, list],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> tuple[dict[str, datasets.Dataset], list[str]]:
    """Tokenize the text `columns`, and add `labels`; returns the splits, and a line about each for the plan."""
    encoded, plan = {}, []
    for split, rows in data.items():
        texts, pairs = rows[columns[0]][:], rows[columns[1]][:] if len(columns) > 1 else None
        tokenized, truncated = encode_texts(texts, pairs, tokenizer, max_length)
        encoded[split] = datasets.Dataset.from_dict({**tokenized, "labels": labels[split]})
        plan.append(describe_lengths(split, tokenized["input_ids"], truncated))
    return encoded, plan


def describe_lengths(split: str, input_ids: Sequence[Sequence[Any]], truncated: int) -> str:
    """Return a line about a tokenized split, for the plan."""
    lengths = list(map(len, input_ids))
    return (
        f"{split}: {len(lengths):,} examples of {sum(lengths) / len(lengths):.0f} tokens on average, {max(lengths)} "
        f"at most; {truncated / len(lengths):.1%} are truncated"
    )


def right_padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of the tokenizer that pads on the right, for labels that are positions."""
    copied = copy.copy(tokenizer)
    copied.padding_side = "right"
    return copied
