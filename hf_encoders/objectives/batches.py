"""From examples to tensors: rows of tokens with their special tokens, flat, and the padded or packed batch.

Leaves out every random choice: segments are made in `sentence_pairs.py`, tokens are masked in `masking.py`.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from hf_encoders.corpus.ragged import offsets_of


IGNORED = -100  # label of what has none, such as a token that is not predicted; cross-entropy leaves it out

# The columns of a plain row that are read.
_COLUMNS = ("input_ids", "attention_mask", "token_type_ids", "word_starts", "position_ids", "langs")


class TokenRows(NamedTuple):
    """The B rows of a batch, concatenated to N tokens."""

    ids: np.ndarray  # special tokens included, (N,)
    lengths: np.ndarray  # int64, (B,)
    keys: np.ndarray  # from `example_keys`; all random choices depend on them; uint64, (B,)
    token_type_ids: np.ndarray | None = None  # (N,)
    word_starts: np.ndarray | None = None  # 1 where a token begins a word; uint8, (N,)
    position_ids: np.ndarray | None = None  # from 0; None: 0, 1, 2, ... in each row; (N,)
    languages: np.ndarray | None = None  # the model's id of each token's language, (N,)

    def positions(self) -> np.ndarray:
        """`position_ids`, made where there are none."""
        if self.position_ids is not None:
            return self.position_ids
        return _columns(self.lengths)


class Segments(NamedTuple):
    """What stands between the special tokens of rows: P segments of a corpus of M tokens, by reference."""

    tokens: np.ndarray  # of the corpus, (M,)
    word_starts: np.ndarray | None  # 1 where a token begins a word; uint8, (M,)
    begin: np.ndarray  # of the segments of all rows, int64, (P,)
    end: np.ndarray  # excluded, int64, (P,)
    counts: np.ndarray  # segments of each row, int64, (B,)

    def __repr__(self) -> str:
        return f"Segments({len(self.counts):,} rows of {len(self.begin):,} segments, of {len(self.tokens):,} tokens)"


def row_lengths(segments: Segments, restarts: bool = False) -> np.ndarray:
    """Lengths of the rows that `rows_of_segments` makes, `int64` of shape `(B,)`, without making them.

    >>> segments = Segments(np.arange(10, 20), None, np.array([0, 3, 5]), np.array([2, 4, 5]), np.array([2, 1]))
    >>> row_lengths(segments), row_lengths(segments, restarts=True)
    (array([6, 2]), array([7, 2]))
    """
    return _bounds(segments, restarts)[1]


def _bounds(segments: Segments, restarts: bool) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that each segment is written with, `(P,)`: a separator behind it, `[CLS]` before some; and the rows'."""
    is_first = np.zeros(len(segments.begin), dtype=bool)
    row_offsets = offsets_of(segments.counts)
    is_first[row_offsets[:-1]] = True
    sizes = segments.end - segments.begin + 1 + (is_first | restarts)
    return sizes, np.diff(offsets_of(sizes)[row_offsets])


def rows_of_segments(
    segments: Segments,
    keys: np.ndarray,
    ends: tuple[int, int],
    restarts: bool = False,
    languages: np.ndarray | None = None,
) -> TokenRows:
    """`[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, and so on; `ends` are the ids of `[CLS]` and `[SEP]`.

    With `restarts` every segment begins with `[CLS]`, and positions begin again there. `languages` are ids, of each
    segment, `(P,)`; special tokens have those of their segment.

    >>> segments = Segments(np.arange(10, 20), None, np.array([0, 3, 5]), np.array([2, 4, 5]), np.array([2, 1]))
    >>> rows = rows_of_segments(segments, np.zeros(2, np.uint64), (1, 2))
    >>> rows.ids.tolist(), rows.lengths.tolist()
    ([1, 10, 11, 2, 13, 2, 1, 2], [6, 2])
    >>> rows = rows_of_segments(segments, np.zeros(2, np.uint64), (1, 2), restarts=True, languages=np.array([5, 6, 7]))
    >>> rows.ids.tolist(), rows.position_ids.tolist(), rows.languages.tolist()
    ([1, 10, 11, 2, 1, 13, 2, 1, 2], [0, 1, 2, 3, 0, 1, 2, 0, 1], [5, 5, 5, 5, 6, 6, 6, 7, 7])
    """
    sizes, lengths = _bounds(segments, restarts)
    offsets = offsets_of(sizes)
    firsts = offsets[:-1] if restarts else offsets_of(lengths)[:-1]
    separators = offsets[1:] - 1
    is_text = np.ones(offsets[-1], dtype=bool)
    is_text[firsts] = is_text[separators] = False

    bounds = list(zip(segments.begin.tolist(), segments.end.tolist(), strict=True))

    def between(values: np.ndarray) -> np.ndarray:
        # Slices are read at the speed of memory, unlike an array of indices.
        return np.concatenate([values[begin:end] for begin, end in bounds])

    ids = np.empty(len(is_text), dtype=segments.tokens.dtype)
    ids[firsts], ids[separators] = ends
    ids[is_text] = between(segments.tokens)
    starts = None
    if segments.word_starts is not None:
        starts = np.ones(len(ids), dtype=np.uint8)
        starts[is_text] = between(segments.word_starts)
    positions = _columns(sizes) if restarts else None
    languages = None if languages is None else np.repeat(languages, sizes)
    return TokenRows(ids, lengths, keys, None, starts, positions, languages)


def _columns(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... in each of several runs, concatenated.

    >>> _columns(np.array([2, 1]))
    array([0, 1, 0])
    """
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)


def rows_of_mappings(features: Sequence[Mapping[str, Any]]) -> TokenRows:
    """Rows of a plain dataset, special tokens included; keys are sampled from torch's generator.

    Padding that the tokenizer has added is removed; the batch is padded again. `position_ids` count from 0 in every
    family; `langs` are ids of the model. Rows without a token, with other columns than the first row, columns of
    different lengths, or values that are not integers are a `ValueError`.
    """
    names = _names_of(features)
    values = {name: _flat(name, [feature[name] for feature in features]) for name in names}
    lengths = values["input_ids"][1]
    for name, (_, others) in values.items():
        if (others != lengths).any():
            row = int((others != lengths).argmax())
            raise ValueError(
                f"{name} of row {row} of the batch has {others[row]} values, input_ids {lengths[row]}: it needs one "
                "per token; tokenize the row again, or remove the column."
            )
    found = {name: flat for name, (flat, _) in values.items()}
    is_real = found.pop("attention_mask", np.ones(1)).astype(bool)
    if not is_real.all():
        found = {name: flat[is_real] for name, flat in found.items()}
        lengths = np.add.reduceat(is_real.astype(np.int64), offsets_of(lengths)[:-1])
        if lengths.min() == 0:
            raise ValueError(
                f"attention_mask of row {lengths.argmin()} of the batch is all zero, which leaves no token: remove "
                "rows without text from the dataset."
            )
    keys = torch.randint(2**62, (len(features),)).numpy().astype(np.uint64)
    others = (found.get(name) for name in ("token_type_ids", "word_starts", "position_ids", "langs"))
    return TokenRows(found["input_ids"], lengths, keys, *others)


def _names_of(features: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns to read, the same ones in all rows."""
    names = [name for name in _COLUMNS if name in features[0]]
    if "input_ids" not in names:
        raise ValueError(
            f"input_ids is missing, row 0 of the batch has {list(features[0])}: tokenize the dataset first, and keep "
            "the column (remove_unused_columns drops those that the model does not take)."
        )
    keys = features[0].keys()
    # Comparing all keys at once is fast; columns that are not read may differ.
    if any(feature.keys() != keys for feature in features):
        for row, feature in enumerate(features):
            if others := {name for name in _COLUMNS if (name in feature) != (name in names)}:
                raise ValueError(
                    f"{sorted(others)[0]} is in some rows of the batch and not in others (row {row} differs from "
                    "row 0): prepare all rows alike, or remove the column."
                )
    return names


def _flat(name: str, rows: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """All values of a column and the length of each row, `int64`."""
    values, offsets = array("q"), [0]
    for number, row in enumerate(rows):
        try:
            if type(row) is list:
                values.fromlist(row)  # refuses what is not an integer, and is fast
            else:
                found = np.asarray(row)
                if found.ndim != 1 or found.dtype.kind not in "iub":
                    raise TypeError
                values.frombytes(found.astype(np.int64).tobytes())
            if len(values) == offsets[-1]:
                raise TypeError
        except (TypeError, ValueError, OverflowError):
            row = row.tolist() if hasattr(row, "tolist") else row
            raise ValueError(
                f"{name} must be a non-empty list of integers, one per token, for this collator, and row {number} of "
                f"the batch is {row!r:.80}; for lists of sentences wrap the dataset in SentenceBlocks (MLM) or use a "
                "pair collator."
            ) from None
        offsets.append(len(values))
    return np.frombuffer(values, dtype=np.int64), np.diff(offsets)


def join_rows(parts: Sequence[TokenRows]) -> TokenRows:
    """Several batches of rows as one; all or none must have token types, word starts and languages."""
    if len(parts) == 1:
        return parts[0]
    if any(rows.position_ids is not None for rows in parts):
        parts = [rows._replace(position_ids=rows.positions()) for rows in parts]
    joined = []
    for name, arrays in zip(TokenRows._fields, zip(*parts, strict=True), strict=True):
        are_missing = [values is None for values in arrays]
        if any(are_missing) and not all(are_missing):
            raise ValueError(
                f"{name} is present in some examples of a batch and not in others: train on datasets of one form, "
                "prepared alike."
            )
        joined.append(None if any(are_missing) else np.concatenate(arrays))
    return TokenRows(*joined)


def count_items(batch: Mapping[str, torch.Tensor], argument: str) -> torch.Tensor:
    """Items of a loss term in a batch, `int64`: the labels in `argument`, or for `input_ids` every real token.

    >>> batch = {"input_ids": torch.tensor([[1, 7, 2], [1, 2, 0]]), "labels": torch.tensor([[-100, 7, -100]] * 2)}
    >>> batch["attention_mask"] = torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> count_items(batch, "labels"), count_items(batch, "input_ids")
    (tensor(2), tensor(5))
    """
    if argument != "input_ids":
        return batch[argument].ne(IGNORED).sum()
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"]).sum() if mask is None else mask.ne(0).sum()


def to_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Move the tensors of a batch; integers on an accelerator keep those on the CPU, where models read values.

    A move to CUDA is queued, and from pinned memory not waited for. On MPS one that is not waited for may read memory
    that was given back (github.com/pytorch/pytorch/issues/189690).
    """
    is_queued = device.type == "cuda"
    moved = {
        name: value.to(device, non_blocking=is_queued) if torch.is_tensor(value) else value
        for name, value in batch.items()
    }
    keep_on_host(moved, batch)
    return moved


def keep_on_host(batch: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
    """Give the integer tensors of a batch on an accelerator their copies on the CPU, where models read values.

    Those are the tensors in `before`, from which the batch was moved, where they are on the CPU. All others are copied
    in one transfer, which waits once for all operations queued on the device. `on_host` in `models/` looks for
    `host_copy`: which tensor's it is (`copy.deepcopy` and pickle take the attribute along), its version (after a
    change in place the copy is out of date; one through `.data` is not seen) and the copy.
    """
    tensors = {name: value for name, value in batch.items() if torch.is_tensor(value) and value.device.type != "cpu"}
    # Tensors made in inference mode have no version.
    tensors = {
        name: value for name, value in tensors.items() if not value.is_floating_point() and not value.is_inference()
    }
    copies = {name: before[name] for name in tensors if before is not None and before[name].device.type == "cpu"}
    missing = {name: value for name, value in tensors.items() if name not in copies}
    if missing:
        together = torch.cat([value.flatten().long() for value in missing.values()]).cpu()
        parts = together.split([value.numel() for value in missing.values()])
        for (name, value), part in zip(missing.items(), parts, strict=True):
            copies[name] = part.view(value.shape).to(value.dtype)
    for name, value in tensors.items():
        value.host_copy = id(value), value._version, copies[name]


class PaddedLayout:
    """Where flat values go in a padded batch of `(B, T)`; T is the longest row, or the next multiple.

    >>> layout = PaddedLayout(np.array([2, 1]), multiple=None)
    >>> layout.fill(np.array([7, 8, 9]), 0).tolist()
    [[7, 8], [9, 0]]
    >>> layout.scatter(np.array([1]), np.array([2]), np.array([9]), -100).tolist()
    [[-100, -100], [9, -100]]
    """

    def __init__(self, lengths: np.ndarray, multiple: int | None):
        self.lengths = lengths
        width = int(lengths.max())
        self.shape = (len(lengths), width + (-width % multiple if multiple else 0))
        # Comparing 32-bit integers takes a quarter of the time.
        self.is_real = np.arange(self.shape[1], dtype=np.int32) < lengths[:, None].astype(np.int32)

    def structure(self) -> dict[str, torch.Tensor]:
        """`attention_mask`: 1 for a token and 0 for padding, `int64`."""
        return {"attention_mask": torch.from_numpy(self.is_real.astype(np.int64))}

    def fill(self, values: np.ndarray, padding: int) -> torch.Tensor:
        """Values of all tokens, `(N,)` -> `int64`."""
        if values.size == self.is_real.size:
            return torch.from_numpy(values.astype(np.int64, copy=False).reshape(self.shape))
        batch = np.full(self.shape, padding, dtype=np.int64)
        batch[self.is_real] = values
        return torch.from_numpy(batch)

    def scatter(self, rows: np.ndarray, positions: np.ndarray, values: np.ndarray, others: int) -> torch.Tensor:
        """Values of tokens of the given rows, at flat positions, `(P,)` -> `int64`; `others` everywhere else."""
        padding_before = np.arange(len(self.lengths)) * self.shape[1] - offsets_of(self.lengths)[:-1]
        batch = np.full(self.shape, others, dtype=np.int64)
        batch.ravel()[positions + padding_before[rows]] = values
        return torch.from_numpy(batch)


class PackedLayout:
    """Where flat values go in a packed batch of `(1, N)`: sequences back to back, no padding.

    The methods of `PaddedLayout`; those that take padding do not use it.

    >>> layout = PackedLayout(np.array([2, 1]))
    >>> layout.fill(np.array([7, 8, 9]), 0).tolist()
    [[7, 8, 9]]
    >>> layout.scatter(np.array([1]), np.array([2]), np.array([9]), -100).tolist()
    [[-100, -100, 9]]
    >>> {name: getattr(value, "tolist", lambda: value)() for name, value in layout.structure().items()}
    {'cu_seq_lens_q': [0, 2, 3], 'cu_seq_lens_k': [0, 2, 3], 'max_length_q': 2, 'max_length_k': 2}
    """

    def __init__(self, lengths: np.ndarray):
        self.lengths = lengths
        self.offsets = offsets_of(lengths)
        if self.offsets[-1] >= 2**31:
            raise ValueError(
                f"the batch has {self.offsets[-1]} tokens in one row, and boundaries are 32-bit integers: pack fewer."
            )

    def structure(self) -> dict[str, torch.Tensor | int]:
        """Where sequences begin: the arguments of variable-length attention in transformers.

        `max_length_q` and `max_length_k` are Python integers, because kernels take them on the host.
        """
        bounds, longest = torch.from_numpy(self.offsets.astype(np.int32)), int(self.lengths.max())
        structure = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds.clone()}
        return structure | {"max_length_q": longest, "max_length_k": longest}

    def fill(self, values: np.ndarray, padding: int) -> torch.Tensor:
        """Values of all tokens, `(N,)` -> `int64`."""
        return torch.from_numpy(values.astype(np.int64, copy=False))[None]

    def scatter(self, rows: np.ndarray, positions: np.ndarray, values: np.ndarray, others: int) -> torch.Tensor:
        """Values of tokens at flat positions, `(P,)` -> `int64`; `others` everywhere else."""
        row = np.full(self.offsets[-1], others, dtype=np.int64)
        row[positions] = values
        return torch.from_numpy(row)[None]
