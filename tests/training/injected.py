"""The faults that need a process of their own: each function trains in `folder` and harms itself.

They are run by `processes.run`. Runs that resume continue from step 4 and would save at steps 6 and 8.
"""

import os
import resource
import signal
from pathlib import Path

from torch.utils.data import get_worker_info
from transformers import TrainerCallback

from hf_encoders.training import checkpoints, fault_tolerance
from tests.training.tiny_run import AtStep, make_trainer


def kill_self(*_, **__) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_a_forward_pass(folder: Path, call: int) -> None:
    trainer = make_trainer(folder)
    calls = []

    def count(*_):
        calls.append(1)
        if len(calls) == call:
            kill_self()

    trainer.model.base_model.register_forward_hook(count)
    trainer.train()


def killed_before(folder: Path, method: str) -> None:
    """Killed when a method of the trainer begins for the first time."""
    trainer = make_trainer(folder)
    setattr(trainer, method, kill_self)
    trainer.train(resume_from_checkpoint=True)


def limited_file_size(folder: Path, limit: int, action: int = signal.SIG_DFL) -> None:
    """At `limit` bytes of a file the system ends the process, or with SIG_IGN writes fail as on a full disk."""
    trainer = make_trainer(folder)
    signal.signal(signal.SIGXFSZ, action)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits = limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    trainer.add_callback(AtStep(5, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)))
    trainer.train(resume_from_checkpoint=True)


def killed_at_rename(folder: Path, number: int, resume: bool | str = True) -> None:
    """Killed right before the `number`-th rename of a folder, from 1."""
    trainer = make_trainer(folder)
    rename, calls = os.rename, []

    def counted(source, target):
        calls.append(source)
        if len(calls) == number:
            kill_self()
        rename(source, target)

    checkpoints.os.rename = counted
    trainer.train(resume_from_checkpoint=resume)


def signalled(folder: Path, step: int, number: int, rank: int = 0, workers: int = 0) -> None:
    """The process of this rank gets a signal at the beginning of a step; so do its workers."""
    trainer = make_trainer(folder, dataloader_num_workers=workers)
    if workers:
        os.setpgrp()  # as a terminal does for its foreground job
    if trainer.args.process_index == rank:
        trainer.add_callback(AtStep(step, lambda: os.killpg(0, number) if workers else os.kill(os.getpid(), number)))
    trainer.train()
    print("continued after train")


class _AfterTheLastSave(TrainerCallback):
    def __init__(self, number: int):
        self.number = number

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == state.max_steps:
            os.kill(os.getpid(), self.number)


def signalled_after_the_last_step(folder: Path, number: int) -> None:
    """Process 1, when no step is left at whose end the processes would exchange it."""
    trainer = make_trainer(folder)
    if trainer.args.process_index == 1:
        trainer.add_callback(_AfterTheLastSave(number))
    trainer.train()


def signalled_twice(folder: Path, step: int) -> None:
    """In the same step; the second key press counts by itself at once."""
    fault_tolerance.SAME_KEY_PRESS = -1.0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    trainer = make_trainer(folder)

    def send():
        # Not `os.kill`, which any thread may receive, and two of whose signals may become one.
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        print("continued after two signals")

    trainer.add_callback(AtStep(step, send))
    trainer.train()


def one_process_killed(folder: Path, step: int) -> None:
    trainer = make_trainer(folder)
    if trainer.args.process_index == 1:
        trainer.add_callback(AtStep(step, kill_self))
    trainer.train()


def worker_killed(folder: Path, call: int) -> None:
    """The data loader's worker, when it makes its n-th batch."""
    trainer = make_trainer(folder, dataloader_num_workers=1)
    collator, calls = trainer.data_collator, []

    def collate(features):
        calls.append(1)
        if len(calls) == call:
            assert get_worker_info() is not None
            kill_self()
        return collator(features)

    trainer.data_collator = collate
    trainer.train()
