"""How many threads torch computes with on a CPU: measured before a run, because more are not always faster.

A small model's products are short, and where other processes want the same cores, threads that wait for each other
cost more than they save. (The command also tells OpenMP that threads which wait are to sleep instead of spin, see
`hf_encoders/__init__.py`: two threads beside other work took 20 times as long without.)
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles

import torch
from torch import nn
from transformers import Trainer


SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # torchrun sets the first
THREADS_AT_IMPORT = torch.get_num_threads()
MOST_SECONDS = 1.5  # of all measurements together; the turn under way is finished
TURN_SECONDS = 0.06  # of one thread: a pass that takes so long has as many examples as it needs to have
WIDE = 512  # products of such a width are worth all cores, and passes too long to be tried
HOPELESS = 3.0  # times the best: not tried again
FASTER = 0.9  # more threads must take less than this share of the time of fewer, which other work slows down less
_chosen_here: int | None = None  # the last number that `set_threads` set


@dataclass(frozen=True)
class Work:
    """Forward and backward passes of one kind.

    Args:
        passes (`Callable`): number of examples -> a function that does one pass of so many.
        examples (`int`): most of them at once.
        steps (`int`): how often the run does such a pass; the weight of its time.
    """

    passes: Callable[[int], Callable[[], None]]
    examples: int
    steps: int = 1


def set_threads(
    trainer: Trainer, works: Callable[[], Sequence[Work]], recorded: int | None = None
) -> tuple[int, str | None]:
    """Set the number of threads: the user's, or that of the run so far, or else the fastest that is measured.

    Left alone are what the environment or `torch.set_num_threads` set, accelerators, and runs of several processes.

    Args:
        trainer (`Trainer`): of the run; its model's gradients are dropped, random generators stay as they are.
        works (`Callable`): gives what to measure; called only where it is measured.
        recorded (`int`, *optional*): threads that the run began with. Sums are rounded otherwise with another number,
            so a resumed run takes the same.

    Returns:
        The number, and a sentence about it where it was chosen here.
    """
    global _chosen_here
    if torch.get_num_threads() == _chosen_here:
        torch.set_num_threads(THREADS_AT_IMPORT)  # an earlier run of this process chose
    now = torch.get_num_threads()
    if is_set_by_user() or trainer.args.device.type != "cpu" or trainer.args.world_size > 1:
        return now, None
    if recorded is not None and recorded <= now:
        torch.set_num_threads(recorded)
        _chosen_here = recorded
        return recorded, f"{in_words(recorded)}, with which this run began." if recorded != now else None
    if now == 1:
        return now, None
    if getattr(trainer.model.config, "hidden_size", 0) >= WIDE:
        return now, f"{in_words(now)}, because the model is large. (OMP_NUM_THREADS=N sets another number.)"
    was_training = trainer.model.training
    trainer.model.train()
    try:
        with torch.random.fork_rng(devices=[]):
            threads, reason = fastest_threads(works(), numbers_to_try(now))
    finally:
        trainer.model.zero_grad(set_to_none=True)
        trainer.model.train(was_training)
    torch.set_num_threads(threads)
    _chosen_here = threads
    return threads, f"{in_words(threads)}: {reason}. (OMP_NUM_THREADS=N sets another number.)"


def chosen_before() -> int | None:
    """The number that an earlier run of this process was given here, so that another one takes the same."""
    return _chosen_here if torch.get_num_threads() == _chosen_here else None


def is_set_by_user() -> bool:
    """Whether somebody chose the number of threads: in the environment, or by `torch.set_num_threads`."""
    return any(name in os.environ for name in SET_BY_USER) or torch.get_num_threads() != THREADS_AT_IMPORT


def numbers_to_try(most: int) -> list[int]:
    """Powers of two up to as many threads as torch takes, and that number.

    >>> numbers_to_try(1), numbers_to_try(6), numbers_to_try(8)
    ([1], [1, 2, 4, 6], [1, 2, 4, 8])
    """
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most})


def fastest_threads(works: Sequence[Work], numbers: Sequence[int]) -> tuple[int, str]:
    """The number of threads with which all work takes the least time, and the reason.

    All numbers take turns, so that what else the machine does falls on all of them. They are compared by the upper
    quartile of their times, not the best: a number is good if it is fast most of the time. Fewer are preferred unless
    more are clearly faster.

    Args:
        works: what is done, each weighted by its steps.
        numbers: in rising order.
    """
    began, sized = time.perf_counter(), []
    for work in works:
        torch.set_num_threads(1)
        run, examples = sized_pass(work)
        sized.append((run, work.steps * work.examples / examples))
    taken: dict[int, list[float]] = {number: [] for number in numbers}
    left = list(numbers)
    # At least one turn, also where sizing the passes took all the time.
    while len(left) > 1 and (not taken[numbers[0]] or time.perf_counter() - began < MOST_SECONDS):
        for number in left:
            torch.set_num_threads(number)
            taken[number].append(sum(often * seconds_of(run) for run, often in sized))
        best = min(min(taken[number]) for number in left)
        # Hopeless ones are not tried again: beside other work some take 20 times as long.
        left = [number for number in left if min(taken[number]) < HOPELESS * best]
    # The first turn prepares, unless it is the only one.
    seconds = {number: upper_quartile(times[1:] or times) for number, times in taken.items()}
    chosen = numbers[0]
    for number in numbers[1:]:
        if seconds[number] < FASTER * seconds[chosen]:
            chosen = number
    others = [f"{s / seconds[chosen]:.2g} times as long with {n}" for n, s in seconds.items() if n != chosen]
    return chosen, f"a step takes {', '.join(others)}"


def sized_pass(work: Work) -> tuple[Callable[[], None], int]:
    """A pass of as many examples as make it long enough to be timed, and their number.

    By the processor time that it takes, not the time that other work leaves it.
    """
    examples = 1
    run = work.passes(examples)
    run()  # the first one prepares
    while examples < work.examples:
        began = time.process_time()
        run()
        if time.process_time() - began > TURN_SECONDS:
            break
        examples = min(4 * examples, work.examples)
        run = work.passes(examples)
    return run, examples


def seconds_of(run: Callable[[], None]) -> float:
    """Time of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def upper_quartile(times: Sequence[float]) -> float:
    """The time that three quarters of the others do not exceed.

    >>> upper_quartile([5.0]), upper_quartile([1.0, 2.0, 3.0, 4.0, 9.0])
    (5.0, 4.0)
    """
    return quantiles(times, n=4, method="inclusive")[2] if len(times) > 1 else times[0]


def in_words(threads: int) -> str:
    """A number of threads.

    >>> in_words(1), in_words(4)
    ('1 thread', '4 threads')
    """
    return f"{threads} thread{'s' * (threads > 1)}"


def pass_of(trainer: Trainer, batch: dict) -> Callable[[], None]:
    """A forward and backward pass of the trainer's model on a batch; gradients add up."""
    device = trainer.args.device
    inputs = {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
    model: nn.Module = trainer.model

    def run() -> None:
        with trainer.compute_loss_context_manager():
            loss = model(**inputs).loss
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def work_of_rows(trainer: Trainer) -> list[Work]:
    """The passes of a fine-tuning: of its first batch, by rows."""
    batch = next(iter(trainer.get_train_dataloader()))
    rows = len(batch["input_ids"])

    def passes(examples: int) -> Callable[[], None]:
        cut = {n: v[:examples] if torch.is_tensor(v) and len(v) == rows else v for n, v in batch.items()}
        return pass_of(trainer, cut)

    return [Work(passes, rows)]
