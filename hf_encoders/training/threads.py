"""The number of CPU threads, measured before a run: more are not always faster.

The matrix products of a small model are short, and where other processes use the same cores, threads that wait for
each other cost more than they save. (The command also makes waiting OpenMP threads sleep instead of spin, see
`hf_encoders/__init__.py`: without that, two threads beside other work took 20 times as long.)
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
MOST_SECONDS = 1.5  # of all measurements together; the current round is finished
PASS_SECONDS = 0.06  # with one thread; a pass gets more examples until it takes as long
WIDE = 512  # hidden size from which all cores are used unmeasured: worth it, and passes are long
HOPELESS = 3.0  # times the fastest: not measured again
FASTER = 0.9  # more threads must take less than this share of the time of fewer, which other work slows down less
_chosen: int | None = None  # the last number that `set_threads` set


@dataclass(frozen=True)
class Work:
    """Forward and backward passes of one kind.

    Args:
        passes (`Callable`): Takes a number of examples, returns a function that does one pass over them.
        examples (`int`): The most examples per pass.
        steps (`int`, *optional*, defaults to 1): How often the run does such a pass; the weight of its time.
    """

    passes: Callable[[int], Callable[[], None]]
    examples: int
    steps: int = 1


def set_threads(
    trainer: Trainer, works: Callable[[], Sequence[Work]], recorded: int | None = None
) -> tuple[int, str | None]:
    """Set the number of threads: the recorded one, or else the fastest measured.

    Nothing is set if the user did (environment or `torch.set_num_threads`), on accelerators and in distributed runs.

    Args:
        trainer (`Trainer`): Of the run; its model's gradients are dropped, random generators are not changed.
        works (`Callable`): Returns what to measure; called only if something is measured.
        recorded (`int`, *optional*): Threads that the run started with. Another number rounds sums differently, so a
            resumed run uses the same.

    Returns:
        The number, and a sentence about it if it was chosen here.
    """
    global _chosen
    if torch.get_num_threads() == _chosen:
        torch.set_num_threads(THREADS_AT_IMPORT)  # an earlier run of this process chose
    now = torch.get_num_threads()
    if is_set_by_user() or trainer.args.device.type != "cpu" or trainer.args.world_size > 1:
        return now, None
    if recorded is not None and recorded <= now:
        torch.set_num_threads(recorded)
        _chosen = recorded
        return recorded, f"{in_words(recorded)}, as at the start of this run." if recorded != now else None
    if now == 1:
        return now, None
    if trainer.model.config.hidden_size >= WIDE:
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
    _chosen = threads
    return threads, f"{in_words(threads)}: {reason}. (OMP_NUM_THREADS=N sets another number.)"


def chosen_before() -> int | None:
    """Return the number chosen for an earlier run of this process, so that another run can use the same."""
    return _chosen if torch.get_num_threads() == _chosen else None


def is_set_by_user() -> bool:
    """Whether the number was set in the environment or by `torch.set_num_threads`."""
    return any(name in os.environ for name in SET_BY_USER) or torch.get_num_threads() != THREADS_AT_IMPORT


def numbers_to_try(most: int) -> list[int]:
    """Return the powers of two up to a number, and the number.

    >>> numbers_to_try(1), numbers_to_try(6), numbers_to_try(8)
    ([1], [1, 2, 4, 6], [1, 2, 4, 8])
    """
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most})


def fastest_threads(works: Sequence[Work], numbers: Sequence[int]) -> tuple[int, str]:
    """Return the number of threads with which all work takes the least time, and the reason.

    All numbers are measured in turn, so that other load affects all of them, and compared by the upper quartile of
    their times: a number is good if it is fast most of the time. Fewer are preferred unless more are clearly faster.

    Args:
        works (`Sequence[Work]`): Weighted by their steps.
        numbers (`Sequence[int]`): In ascending order.
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
        left = [number for number in left if min(taken[number]) < HOPELESS * best]
    # The first round is a warm-up, unless it is the only one.
    seconds = {number: upper_quartile(times[1:] or times) for number, times in taken.items()}
    chosen = numbers[0]
    for number in numbers[1:]:
        if seconds[number] < FASTER * seconds[chosen]:
            chosen = number
    others = [f"{s / seconds[chosen]:.2g} times as long with {n}" for n, s in seconds.items() if n != chosen]
    return chosen, f"a step takes {', '.join(others)}"


def sized_pass(work: Work) -> tuple[Callable[[], None], int]:
    """Return a pass long enough to be timed, in processor time, and its number of examples."""
    examples = 1
    run = work.passes(examples)
    run()  # warm-up
    while examples < work.examples:
        began = time.process_time()
        run()
        if time.process_time() - began > PASS_SECONDS:
            break
        examples = min(4 * examples, work.examples)
        run = work.passes(examples)
    return run, examples


def seconds_of(run: Callable[[], None]) -> float:
    """Return the wall time of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def upper_quartile(times: Sequence[float]) -> float:
    """Return the third quartile.

    >>> upper_quartile([5.0]), upper_quartile([1.0, 2.0, 3.0, 4.0, 9.0])
    (5.0, 4.0)
    """
    return quantiles(times, n=4, method="inclusive")[2] if len(times) > 1 else times[0]


def in_words(threads: int) -> str:
    """Write a number of threads.

    >>> in_words(1), in_words(4)
    ('1 thread', '4 threads')
    """
    return f"{threads} thread{'s' * (threads > 1)}"


def pass_of(trainer: Trainer, batch: dict) -> Callable[[], None]:
    """Return a forward and backward pass of the trainer's model on a batch; gradients accumulate."""
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
    """Return the passes of a fine-tuning run: over rows of its first batch."""
    batch = next(iter(trainer.get_train_dataloader()))
    rows = len(batch["input_ids"])

    def passes(examples: int) -> Callable[[], None]:
        cut = {n: v[:examples] if torch.is_tensor(v) and len(v) == rows else v for n, v in batch.items()}
        return pass_of(trainer, cut)

    return [Work(passes, rows)]
