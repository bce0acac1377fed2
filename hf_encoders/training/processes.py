"""What the processes of a run agree on."""

import torch
from torch import distributed


def any_process(flag: bool, device: torch.device | str) -> bool:
    """Whether `flag` is true in any process of the run; all of them must ask. Without others, `flag` itself.

    Args:
        flag: what this process says.
        device: where the process group exchanges tensors: `args.device` of `TrainingArguments`.
    """
    return largest_of_processes(int(flag), device) > 0


def largest_of_processes(number: int, device: torch.device | str) -> int:
    """The largest of the numbers that the processes of the run have; all of them must ask."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return number
    tensor = torch.tensor(number, dtype=torch.int64, device=device)
    distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
    return int(tensor.item())
