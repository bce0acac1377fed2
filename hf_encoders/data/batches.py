"""Rows of tokens with their special tokens, flat, on their way to a batch; and the batch, padded or packed.

Leaves out every decision: what the segments of a row are is drawn in `sentence_pairs.py`, what is masked in
`masking.py`.
"""

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from hf_encoders.data.ragged import offsets_of


IGNORED = -100  # label of what has none: not predicted, no pair; `torch.nn.functional.cross_entropy` leaves it out
# Of a plain row; others are not looked at.
_COLUMNS = ("input_ids", "attention_mask", "token_type_ids", "word_starts")


class TokenRows(NamedTuple):
    """The rows of a batch, one after the other.

    Args:
        ids (`np.ndarray` of integers, shape `(N,)`): token ids, special ones included.
        lengths (`np.ndarray` of `int64`, shape `(B,)`): tokens of each row.
        keys (`np.ndarray` of `uint64`, shape `(B,)`): decide every draw for each row.
        token_type_ids (`np.ndarray` of integers, shape `(N,)`, *optional*): segment of each token.
        word_starts (`np.ndarray` of `uint8`, shape `(N,)`, *optional*): 1 where a token begins a word.
        second_segments (`np.ndarray` of `int64`, shape `(B,)`, *optional*): column where each row's second segment
            begins; says the same as `token_type_ids` in a pair.
    """

    ids: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray
    token_type_ids: np.ndarray | None = None
    word_starts: np.ndarray | None = None
    second_segments: np.ndarray | None = None


class Segments(NamedTuple):
    """What stands between the special tokens of rows: pieces of a corpus, by reference.

    Args:
        tokens (`np.ndarray` of integers, shape `(M,)`): token ids of the corpus.
        word_starts (`np.ndarray` of `uint8`, shape `(M,)`, *optional*): 1 where a token begins a word.
        begin, end (`np.ndarray` of `int64`, shape `(P,)`): the pieces, all rows' one after the other, `end` excluded.
        counts (`np.ndarray` of `int64`, shape `(B,)`): pieces of each row.
    """

    tokens: np.ndarray
    word_starts: np.ndarray | None
    begin: np.ndarray
    end: np.ndarray
    counts: np.ndarray

    def __repr__(self) -> str:
        return f"Segments({len(self.counts):,} rows of {len(self.begin):,} pieces, of {len(self.tokens):,} tokens)"


def row_lengths(segments: Segments) -> np.ndarray:
    """Tokens of the rows that `rows_of_segments` makes, `int64` of shape `(B,)`, without making them.

    >>> row_lengths(Segments(np.arange(10, 20), None, np.array([0, 3, 5]), np.array([2, 4, 5]), np.array([2, 1])))
    array([6, 2])
    """
    # A separator behind each piece, and [CLS] before them.
    piece_offsets = offsets_of(segments.end - segments.begin + 1)
    return np.diff(piece_offsets[offsets_of(segments.counts)]) + 1


def rows_of_segments(segments: Segments, keys: np.ndarray, ends: tuple[int, int]) -> TokenRows:
    """`[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`, and so on.

    Args:
        segments (`Segments`): what stands between special tokens.
        keys (`np.ndarray` of `uint64`, shape `(B,)`): of the rows.
        ends (`tuple[int, int]`): ids of `[CLS]` and `[SEP]`.

    >>> segments = Segments(np.arange(10, 20), None, np.array([0, 3, 5]), np.array([2, 4, 5]), np.array([2, 1]))
    >>> rows = rows_of_segments(segments, np.zeros(2, np.uint64), (1, 2))
    >>> rows.ids.tolist(), rows.lengths.tolist()
    ([1, 10, 11, 2, 13, 2, 1, 2], [6, 2])
    """
    lengths = segments.end - segments.begin
    # Every segment takes its separator along; row i has i + 1 times [CLS] in front of it.
    segment_offsets = offsets_of(lengths + 1)
    row_offsets = segment_offsets[offsets_of(segments.counts)] + np.arange(len(segments.counts) + 1)
    separators = segment_offsets[1:] + np.repeat(np.arange(len(segments.counts)), segments.counts)
    is_text = np.ones(row_offsets[-1], dtype=bool)
    is_text[row_offsets[:-1]] = is_text[separators] = False

    bounds = list(zip(segments.begin.tolist(), segments.end.tolist(), strict=True))

    def between(values: np.ndarray) -> np.ndarray:
        # Slices are read at the speed of memory, an array of indices is not.
        return np.concatenate([values[begin:end] for begin, end in bounds])

    ids = np.empty(len(is_text), dtype=segments.tokens.dtype)
    ids[row_offsets[:-1]], ids[separators] = ends
    ids[is_text] = between(segments.tokens)
    starts = None
    if segments.word_starts is not None:
        starts = np.ones(len(ids), dtype=np.uint8)
        starts[is_text] = between(segments.word_starts)
    return TokenRows(ids, np.diff(row_offsets), keys, word_starts=starts)


def rows_of_mappings(features: Sequence[Mapping[str, Any]]) -> TokenRows:
    """Rows of a plain data set, special tokens included; keys are drawn from torch's generator.

    Padding that a tokenizer has added already is taken off: the batch is padded anew.

    Raises:
        ValueError: if a row has no `input_ids` with a token that `attention_mask` does not take for padding, other
            columns than the first one, columns of several lengths, or values that are no integers.
    """
    columns = _columns_of(features)
    found = {name: _flat(name, rows) for name, rows in columns.items()}
    lengths = np.array(list(map(len, columns["input_ids"])))
    if "attention_mask" in found:
        is_real = found.pop("attention_mask").astype(bool)
        if not is_real.all():
            found = {name: values[is_real] for name, values in found.items()}
            lengths = np.add.reduceat(is_real.astype(np.int64), offsets_of(lengths)[:-1])
            if lengths.min() == 0:
                raise ValueError(
                    f"attention_mask of row {lengths.argmin()} of the batch is all zero, which leaves no token: leave "
                    "rows without text out of the data set."
                )
    keys = torch.randint(2**62, (len(features),)).numpy().astype(np.uint64)
    return TokenRows(found["input_ids"], lengths, keys, found.get("token_type_ids"), found.get("word_starts"))


def _columns_of(features: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns that a batch is made of: the same in all rows, of one length in each."""
    names = [name for name in _COLUMNS if name in features[0]]
    if "input_ids" not in names:
        raise ValueError(
            f"input_ids is missing, row 0 of the batch has {list(features[0])}: tokenize the data set first, and keep "
            "the column (remove_unused_columns drops those that the model does not take)."
        )
    keys = features[0].keys()
    # Comparing all keys at once is quicker than looking for each column; columns that are not used may differ.
    if any(feature.keys() != keys for feature in features):
        for number, feature in enumerate(features):
            if others := {name for name in _COLUMNS if (name in feature) != (name in names)}:
                raise ValueError(
                    f"{sorted(others)[0]} is in some rows of the batch and not in others (row {number} differs from "
                    "row 0): prepare all rows alike, or remove the column."
                )
    columns = {name: [feature[name] for feature in features] for name in names}
    lengths = _lengths("input_ids", columns["input_ids"])
    if 0 in lengths:
        raise _no_token_ids("input_ids", lengths.index(0), [])
    for name, rows in columns.items():
        if (found := _lengths(name, rows)) != lengths:
            number = next(i for i, length in enumerate(lengths) if found[i] != length)
            raise ValueError(
                f"{name} of row {number} of the batch has {found[number]} values, input_ids {lengths[number]}: it "
                "needs one a token; tokenize the row again, or remove the column."
            )
    return columns


def _lengths(name: str, rows: list[Any]) -> list[int]:
    try:
        return list(map(len, rows))
    except TypeError:
        number = next(i for i, row in enumerate(rows) if np.ndim(row) == 0)
        raise _no_token_ids(name, number, rows[number]) from None


def _flat(name: str, rows: list[Any]) -> np.ndarray:
    """All values of a column, `int64`."""
    if all(type(row) is list for row in rows):
        values = array("q")
        # Refuses what is no integer, which `np.fromiter` would round, and takes less time.
        with suppress(TypeError, OverflowError):
            for row in rows:
                values.fromlist(row)
            return np.frombuffer(values, dtype=np.int64)
    return np.concatenate([_integers(name, number, row) for number, row in enumerate(rows)]).astype(np.int64)


def _integers(name: str, number: int, row: Any) -> np.ndarray:
    """One row; says which one is wrong."""
    try:
        values = np.asarray(row if hasattr(row, "__array__") else array("q", row))
    except (TypeError, OverflowError):
        raise _no_token_ids(name, number, row) from None
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise _no_token_ids(name, number, row)
    return values


def _no_token_ids(name: str, number: int, row: Any) -> ValueError:
    row = row.tolist() if hasattr(row, "tolist") else row
    return ValueError(
        f"{name} must be a non-empty list of integers, one a token, for this collator, and row {number} of the batch "
        f"is {row!r:.80}; for lists of sentences wrap the data set in SentenceBlocks (MLM) or use a pair collator."
    )


def join_rows(parts: Sequence[TokenRows]) -> TokenRows:
    """One batch of several.

    Raises:
        ValueError: if some have token types or word starts and others do not.
    """
    if len(parts) == 1:
        return parts[0]
    joined = []
    for name, arrays in zip(TokenRows._fields, zip(*parts, strict=True), strict=True):
        are_missing = [array is None for array in arrays]
        if any(are_missing) and not all(are_missing):
            raise ValueError(
                f"{name} is there in some examples of a batch and not in others: train on data sets of one form, "
                "prepared alike."
            )
        joined.append(None if any(are_missing) else np.concatenate(arrays))
    return TokenRows(*joined)


class Grid:
    """The places of flat values in a padded batch of `(B, T)`, `T` being the longest row or a multiple above it.

    >>> grid = Grid(np.array([2, 1]), multiple=None)
    >>> grid.fill(np.array([7, 8, 9]), 0).tolist()
    [[7, 8], [9, 0]]
    >>> grid.fill_some(np.array([1]), np.array([2]), np.array([9]), -100).tolist()
    [[-100, -100], [9, -100]]
    """

    def __init__(self, lengths: np.ndarray, multiple: int | None):
        self.lengths = lengths
        width = int(lengths.max())
        self.shape = (len(lengths), width + (-width % multiple if multiple else 0))
        # Comparing short numbers takes a quarter of the time.
        self.is_real = np.arange(self.shape[1], dtype=np.int32) < lengths[:, None].astype(np.int32)

    def structure(self) -> dict[str, torch.Tensor]:
        """What tells the model where the tokens are: `attention_mask`, 1 for a token and 0 for padding, `int64`."""
        return {"attention_mask": torch.from_numpy(self.is_real.astype(np.int64))}

    def from_columns(self, first: np.ndarray) -> torch.Tensor:
        """1 from a column on to the end of each row, `int64`; `first` is `(B,)`."""
        is_behind = np.arange(self.shape[1], dtype=np.int32) >= first[:, None].astype(np.int32)
        return torch.from_numpy((is_behind & self.is_real).astype(np.int64))

    def fill(self, values: np.ndarray, padding: int) -> torch.Tensor:
        """Values of all tokens, `(N,)` -> `int64`."""
        if values.size == self.is_real.size:
            return torch.from_numpy(values.astype(np.int64, copy=False).reshape(self.shape))
        grid = np.full(self.shape, padding, dtype=np.int64)
        grid[self.is_real] = values
        return torch.from_numpy(grid)

    def fill_some(self, rows: np.ndarray, places: np.ndarray, values: np.ndarray, others: int) -> torch.Tensor:
        """Values of tokens in given rows, at flat places, `(P,)` -> `int64`, `others` everywhere else."""
        padding_before = np.arange(len(self.lengths)) * self.shape[1] - offsets_of(self.lengths)[:-1]
        grid = np.full(self.shape, others, dtype=np.int64)
        grid.ravel()[places + padding_before[rows]] = values
        return torch.from_numpy(grid)


class PackedRow:
    """The places of flat values in a batch of one row, `(1, N)`: sequences back to back, no padding.

    The sibling of `Grid`: what fills a place that has no token there is not needed here.

    Args:
        lengths (`np.ndarray` of `int64`, shape `(S,)`): tokens of each sequence, at least 1.
        first_position (`int`, *optional*): position of each sequence's first token; `None` writes no positions.

    >>> row = PackedRow(np.array([2, 1]), first_position=0)
    >>> row.fill(np.array([7, 8, 9]), 0).tolist()
    [[7, 8, 9]]
    >>> row.fill_some(np.array([1]), np.array([2]), np.array([9]), -100).tolist()
    [[-100, -100, 9]]
    >>> {name: getattr(value, "tolist", lambda: value)() for name, value in row.structure().items()}
    {'cu_seq_lens_q': [0, 2, 3], 'cu_seq_lens_k': [0, 2, 3], 'max_length_q': 2, 'max_length_k': 2, \
'position_ids': [[0, 1, 0]]}
    """

    def __init__(self, lengths: np.ndarray, first_position: int | None):
        self.lengths = lengths
        self.first_position = first_position
        self.offsets = offsets_of(lengths)
        if self.offsets[-1] >= 2**31:
            raise ValueError(
                f"the batch has {self.offsets[-1]} tokens in one row, and boundaries are 32-bit integers: pack fewer."
            )

    def structure(self) -> dict[str, torch.Tensor | int]:
        """What tells the model where sequences begin: the arguments of variable-length attention in transformers.

        `cu_seq_lens_q` and `cu_seq_lens_k`, `(S + 1,)` `int32`, from 0 to N; `max_length_q` and `max_length_k`,
        Python integers, because kernels take them on the host; `position_ids`, `(1, N)` `int64`, if asked for.
        """
        bounds = torch.from_numpy(self.offsets.astype(np.int32))
        longest = int(self.lengths.max())
        structure = {
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds.clone(),
            "max_length_q": longest,
            "max_length_k": longest,
        }
        if self.first_position is not None:
            positions = self._columns() + self.first_position
            structure["position_ids"] = torch.from_numpy(positions)[None]
        return structure

    def from_columns(self, first: np.ndarray) -> torch.Tensor:
        """1 from a column on to the end of each sequence, `int64`; `first` is `(S,)`."""
        is_behind = self._columns() >= np.repeat(first, self.lengths)
        return torch.from_numpy(is_behind.astype(np.int64))[None]

    def fill(self, values: np.ndarray, padding: int) -> torch.Tensor:
        """Values of all tokens, `(N,)` -> `int64`."""
        return torch.from_numpy(values.astype(np.int64, copy=False))[None]

    def fill_some(self, rows: np.ndarray, places: np.ndarray, values: np.ndarray, others: int) -> torch.Tensor:
        """Values of tokens at flat places, `(P,)` -> `int64`, `others` everywhere else."""
        row = np.full(self.offsets[-1], others, dtype=np.int64)
        row[places] = values
        return torch.from_numpy(row)[None]

    def _columns(self) -> np.ndarray:
        """Column of each token in its sequence, from 0."""
        return np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.lengths)
