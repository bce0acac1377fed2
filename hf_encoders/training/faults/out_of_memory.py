"""Out of memory: how it is recognised, and which setting to lower."""

import errno

import torch
from accelerate.utils.memory import should_reduce_batch_size
from transformers import TrainingArguments


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device or of the machine was not enough.

    accelerate's test, which `auto_find_batch_size` goes by, knows the messages of CUDA, ROCm, XPU, MPS, HPU and of
    torch's CPU allocator. Added are errors that have a type of their own: Python's, CUDA's whatever its message, and
    a process or a mapping that the system refuses (ENOMEM).

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
    """One sentence: the setting to lower, and what keeps the training the same.

    Fewer rows in a micro-batch, at most half, and as many more micro-batches a step leave the batch of an optimizer
    step, and the loss of `PreTrainingTrainer`, as they were.
    """
    rows, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    if rows > 1:
        fewer, more = smaller_micro_batches(rows, accumulation)
        remedy = (
            f"Lower per_device_train_batch_size={rows} to {fewer} and raise gradient_accumulation_steps="
            f"{accumulation} to {more}, which trains on the same batches"
        )
    else:
        remedy = (
            "per_device_train_batch_size is 1: halve the examples or tokens of a micro-batch that the data set makes "
            "(the max_tokens of a TokenBudget) or its max_length"
        )
    if recomputes(args):
        return f"{remedy}."
    return f"{remedy}; or set activation_checkpointing=True, which keeps less and computes more."


def smaller_micro_batches(rows: int, accumulation: int) -> tuple[int, int]:
    """The most rows, at most half as many, that make the same step, and in how many micro-batches.

    >>> smaller_micro_batches(4, 1), smaller_micro_batches(3, 1), smaller_micro_batches(5, 4)
    ((2, 2), (1, 3), (2, 10))
    """
    step = rows * accumulation
    fewer = next(number for number in range(rows // 2, 0, -1) if step % number == 0)
    return fewer, step // fewer


def recomputes(args: TrainingArguments) -> bool:
    """Whether layers keep nothing but their inputs, and are computed again in the backward pass."""
    # transformers before 5.20 has only the name gradient_checkpointing, an alias since.
    return bool(getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing)
