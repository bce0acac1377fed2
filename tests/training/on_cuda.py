"""Tensors on the CPU that say they are on CUDA, and a count of what would wait for it.

What is on the device stays marked through every operation; reading a marked value is a wait: `.item()`, `.tolist()`,
`bool()`, a copy to the CPU or from it, results whose size depends on values, checks of values.
"""

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


CUDA = torch.device("cuda", 0)
READS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu"}
SIZED_BY_VALUES = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "bincount"}


class OnDevice(torch.Tensor):
    """A marked tensor."""

    device = CUDA
    is_cuda = True


def is_marked(value: Any) -> bool:
    return isinstance(value, OnDevice)


def device_of(value: Any) -> str | None:
    """`cuda` or `cpu` for what names a device."""
    if isinstance(value, (str, torch.device)) and not isinstance(value, bool):
        return torch.device(value).type
    return None


class CountedWaits(TorchFunctionMode):
    """Runs what is asked of CUDA on the CPU, and counts by name what would wait: `waits`."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.__name__
        if not torch.cuda.is_available():
            kwargs.pop("pin_memory", None)
        if name == "pin_memory":
            return args[0]
        if name in ("to", "cuda", "cpu"):
            return self.moved(func, name, args, kwargs)
        on_device = device_of(kwargs.get("device")) == "cuda"
        if on_device:
            kwargs["device"] = "cpu"
        if any(map(is_marked, args)):
            self.note(name, args, kwargs)
        if name == "set_data" or name == "__set__":
            return func(*args, **kwargs)
        if name == "copy_" and is_marked(args[0]) != is_marked(args[1]) and not kwargs.get("non_blocking"):
            self.waits["copy_"] += 1
        found = func(*args, **kwargs)
        return found.as_subclass(OnDevice) if on_device and isinstance(found, torch.Tensor) else found

    def note(self, name: str, args: tuple, kwargs: dict) -> None:
        is_sized = name == "repeat_interleave" and torch.is_tensor(args[1]) and "output_size" not in kwargs
        by_flags = name == "__getitem__" and any(
            torch.is_tensor(index) and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        is_checked = name == "segment_reduce" and not kwargs.get("unsafe")
        if name in READS and is_marked(args[0]) or name in SIZED_BY_VALUES or is_sized or by_flags or is_checked:
            self.waits[name] += 1

    def moved(self, func: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        """`.to(...)`, `.cpu()`, `.cuda()`: to another device it waits unless told not to."""
        tensor, targets = args[0], [device_of(value) for value in (*args[1:], *kwargs.values())]
        targets += ["cuda" if is_marked(value) else "cpu" for value in args[1:] if torch.is_tensor(value)]
        target = name if name != "to" else next((one for one in targets if one), None)
        source = "cuda" if is_marked(tensor) else "cpu"
        dtypes = [v.dtype if torch.is_tensor(v) else v for v in (*args[1:], kwargs.get("dtype"))]
        dtype = next((one for one in dtypes if isinstance(one, torch.dtype)), None)
        target = target or source
        if target == source and dtype in (None, tensor.dtype):
            return tensor
        plain = tensor.as_subclass(torch.Tensor) if is_marked(tensor) else tensor
        found = plain if dtype is None else plain.to(dtype)
        if target != source and not kwargs.get("non_blocking"):
            self.waits[f"to {target}"] += 1
        return found.as_subclass(OnDevice) if target == "cuda" and not is_marked(found) else found
