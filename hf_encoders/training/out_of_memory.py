"""Out of memory: how it is detected, and which setting to lower."""

import errno

import torch
from accelerate.utils.memory import should_reduce_batch_size
from transformers import TrainingArguments


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a device or the machine ran out of memory.

    accelerate's test, which `auto_find_batch_size` uses, knows the messages of CUDA, ROCm, XPU, MPS, HPU and torch's
    CPU allocator. Errors with a type of their own are added: Python's, CUDA's, and ENOMEM.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."))
    True
    >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return should_reduce_batch_size(error)


def what_to_lower(args: TrainingArguments) -> str:
    """Return a sentence: the setting to lower, and the one to raise so that training stays the same."""
    rows, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    if rows > 1:
        fewer, more = smaller_micro_batches(rows, accumulation)
        remedy = (
            f"Lower per_device_train_batch_size={rows} to {fewer} and raise gradient_accumulation_steps="
            f"{accumulation} to {more}, which trains on the same batches"
        )
    else:
        remedy = "per_device_train_batch_size is 1: halve max_length of the dataset"
    if recomputes(args):
        return f"{remedy}."
    return f"{remedy}; or set activation_checkpointing=True, which stores less and recomputes it."


def smaller_micro_batches(rows: int, accumulation: int) -> tuple[int, int]:
    """Return rows, at most half as many, and accumulation steps that make the same optimizer step.

    >>> smaller_micro_batches(4, 1), smaller_micro_batches(3, 1), smaller_micro_batches(5, 4)
    ((2, 2), (1, 3), (2, 10))
    """
    step = rows * accumulation
    fewer = next(number for number in range(rows // 2, 0, -1) if step % number == 0)
    return fewer, step // fewer


def recomputes(args: TrainingArguments) -> bool:
    """Whether activations are recomputed in the backward pass."""
    # transformers before 5.20 has only the name gradient_checkpointing, now an alias.
    return bool(getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing)
