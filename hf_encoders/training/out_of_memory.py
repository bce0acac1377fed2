"""Out of memory: how it is recognised, and which setting to halve."""

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


def what_to_halve(args: TrainingArguments) -> str:
    """One sentence: the setting to halve, and what keeps the training the same.

    Halving the rows of a micro-batch and doubling the accumulation leaves the batch of an optimizer step, and the loss
    of `PreTrainingTrainer`, as they were.
    """
    rows, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    if rows > 1:
        remedy = (
            f"Halve per_device_train_batch_size={rows} to {rows // 2} and double gradient_accumulation_steps="
            f"{accumulation} to {2 * accumulation}, which trains on the same batches"
        )
    else:
        remedy = (
            "per_device_train_batch_size is 1: halve the examples or tokens of a micro-batch that the data set makes "
            "(the max_tokens of a TokenBudget) or its max_length"
        )
    if recomputes(args):
        return f"{remedy}."
    return f"{remedy}; or set activation_checkpointing=True, which keeps less and computes more."


def recomputes(args: TrainingArguments) -> bool:
    """Whether layers keep nothing but their inputs, and are computed again in the backward pass."""
    # transformers before 5.20 has only the name gradient_checkpointing, an alias since.
    return bool(getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing)
