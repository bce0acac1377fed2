"""From the rows of examples to one padded or packed batch of tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


IGNORED = -100  # label of what has none, such as a token that is not predicted; cross-entropy leaves it out

Row = dict[str, np.ndarray]  # arguments of the model by name, for the tokens of one example, `(T,)` each


def batch(
    rows: Sequence[Row], padding: Mapping[str, int], packed: bool = False, multiple: int | None = None
) -> dict[str, torch.Tensor | int]:
    """Make one batch of rows, padded at their ends or packed back to back.

    Args:
        rows (`Sequence[Row]`): The arguments of each example, all of the same names.
        padding (`Mapping[str, int]`): Value at padding of each argument; 0 where there is none.
        packed (`bool`, *optional*, defaults to `False`): Whether all rows come back to back, without padding.
        multiple (`int`, *optional*): Pad to a multiple of this length.

    Returns:
        `dict`: padded, each argument `(B, T)` `int64` and `attention_mask`. Packed, each argument `(1, N)` and those
        of transformers' variable-length attention: where rows begin, `cu_seq_lens_q` and `cu_seq_lens_k`, `(B + 1,)`
        `int32`, and the longest row, `max_length_q` and `max_length_k`, Python integers.

    Raises:
        ValueError: if some rows lack an argument that others have.

    >>> rows = [{"input_ids": np.array([7, 8])}, {"input_ids": np.array([9])}]
    >>> {name: value.tolist() for name, value in batch(rows, {"input_ids": 5}).items()}
    {'input_ids': [[7, 8], [9, 5]], 'attention_mask': [[1, 1], [1, 0]]}
    >>> packed = batch(rows, {}, packed=True)
    >>> packed["input_ids"].tolist(), packed["cu_seq_lens_q"].tolist(), packed["max_length_q"]
    ([[7, 8, 9]], [0, 2, 3], 2)
    """
    for row in rows:
        if row.keys() != rows[0].keys():
            name = min(row.keys() ^ rows[0].keys())
            raise ValueError(f"{name} is in some examples of the batch only: train on datasets prepared alike.")
    lengths = [len(row["input_ids"]) for row in rows]
    if packed:
        joined = {name: np.concatenate([row[name] for row in rows]).astype(np.int64) for name in rows[0]}
        tensors = {name: torch.from_numpy(values)[None] for name, values in joined.items()}
        bounds = torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32))
        structure = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds.clone()}
        return {**tensors, **structure, "max_length_q": max(lengths), "max_length_k": max(lengths)}
    width = max(lengths)
    width += -width % multiple if multiple else 0
    tensors = {}
    for name in rows[0]:
        values = np.full((len(rows), width), padding.get(name, 0), dtype=np.int64)
        for i, row in enumerate(rows):
            values[i, : lengths[i]] = row[name]
        tensors[name] = torch.from_numpy(values)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return {**tensors, "attention_mask": mask.long()}


def count_items(batch: Mapping[str, torch.Tensor], argument: str) -> torch.Tensor:
    """Count the items of a loss term in a batch, `int64`: the labels in `argument`, or for `input_ids` real tokens.

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
