"""The faults: each function trains in `folder` and does something to its own process, its files or its data.

They are run by `processes.run`. Runs that resume go on from step 4 and would save at steps 6 and 8.
"""

import builtins
import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import datasets
import torch
from torch.utils.data import get_worker_info
from transformers import TrainerCallback

from hf_encoders.training import checkpoints, fault_tolerance
from tests.training.tiny_run import AtStep, FaultyCollator, make_trainer


def kill_self() -> None:
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


# --- while saving ---


def killed_before(folder: Path, method: str) -> None:
    """Killed when a method of the trainer begins for the first time."""
    trainer = make_trainer(folder)
    setattr(trainer, method, lambda *_, **__: kill_self())
    trainer.train(resume_from_checkpoint=True)


def killed_at_byte(folder: Path, limit: int) -> None:
    """The system ends the process when the first file of a checkpoint gets longer than `limit` bytes."""
    trainer = make_trainer(folder)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    trainer.train(resume_from_checkpoint=True)


def killed_at_rename(folder: Path, number: int, resume: bool | str = True, **settings) -> None:
    """Killed right before the `number`-th rename of a folder, from 1."""
    trainer = make_trainer(folder, **settings)
    rename, calls = os.rename, []

    def counted(source, target):
        calls.append(source)
        if len(calls) == number:
            kill_self()
        rename(source, target)

    checkpoints.os.rename = counted
    trainer.train(resume_from_checkpoint=resume)


def killed_writing_the_list(folder: Path) -> None:
    trainer = make_trainer(folder)
    make_list = checkpoints.list_of_files

    def half_a_list(*args):
        listed = checkpoints.json.dumps(make_list(*args))
        (args[0] / checkpoints.FILE_LIST).write_text(listed[: len(listed) // 2])
        kill_self()

    checkpoints.list_of_files = half_a_list
    trainer.train(resume_from_checkpoint=True)


def killed_while_an_old_checkpoint_is_removed(folder: Path) -> None:
    """After the first file of checkpoint-2 is gone."""
    trainer = make_trainer(folder, save_total_limit=2)
    remove = checkpoints.remove_folder

    def begun(target):
        if target.name.startswith("removed-"):
            (target / "optimizer.pt").unlink()
            kill_self()
        remove(target)

    checkpoints.remove_folder = begun
    trainer.train(resume_from_checkpoint=True)


def full_disk(folder: Path, name: str) -> None:
    """A file of the checkpoint lies on a device that is always full: the system's own ENOSPC, by whoever writes it."""
    trainer = make_trainer(folder)
    save = trainer.save_model

    def save_on_full_device(output_dir, _internal_call=False):
        os.makedirs(output_dir)
        os.symlink("/dev/full", os.path.join(output_dir, name))
        save(output_dir, _internal_call=_internal_call)

    trainer.save_model = save_on_full_device
    trainer.train(resume_from_checkpoint=True)


def full_disk_in_the_weights(folder: Path) -> None:
    """safetensors writes beside and renames, so that a full device in its place is not met: the error itself."""
    trainer = make_trainer(folder)

    def fail(output_dir, _internal_call=False):
        os.makedirs(output_dir)
        with open(os.path.join(output_dir, "model.safetensors"), "wb") as file:
            file.write(b"\0" * 1000)
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer.save_model = fail
    trainer.train(resume_from_checkpoint=True)


def limited_file_size(folder: Path, limit: int) -> None:
    """Writes beyond `limit` bytes of a file fail, the part before is written, as on a disk that fills up."""
    trainer = make_trainer(folder)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    trainer.train(resume_from_checkpoint=True)


def folder_that_cannot_be_written_to(folder: Path) -> None:
    trainer = make_trainer(folder)
    trainer.model.register_forward_hook(lambda *_: print("computed"))
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)  # root may write everywhere
    trainer.train()


# --- signals ---


def signalled(folder: Path, step: int, number: int, rank: int = 0, workers: int = 0, **settings) -> None:
    """The process of this rank gets a signal at the beginning of a step; so do its workers."""
    trainer = make_trainer(folder, dataloader_num_workers=workers, **settings)

    def send():
        if workers:
            os.killpg(0, number)
        else:
            os.kill(os.getpid(), number)

    if workers:
        os.setpgrp()  # as a terminal does for its foreground job
    if trainer.args.process_index == rank:
        trainer.add_callback(AtStep(step, send))
    handlers = [signal.getsignal(one) for one in fault_tolerance.SIGNALS]
    try:
        trainer.train()
    finally:
        assert [signal.getsignal(one) for one in fault_tolerance.SIGNALS] == handlers
    print("went on after train")


class _AfterTheLastSave(TrainerCallback):
    def __init__(self, number: int):
        self.number = number

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == state.max_steps:
            os.kill(os.getpid(), self.number)


def signalled_after_the_last_step(folder: Path, number: int) -> None:
    """Process 1, when no step is left at whose end the processes would tell each other."""
    trainer = make_trainer(folder)
    if trainer.args.process_index == 1:
        trainer.add_callback(_AfterTheLastSave(number))
    trainer.train()


def signalled_twice(folder: Path, step: int) -> None:
    """In the same step; the second key press counts as one of its own at once."""
    fault_tolerance.SAME_KEY_PRESS = -1.0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    trainer = make_trainer(folder)

    def send():
        # Not `os.kill`, which any thread may receive, and two of whose signals may become one.
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        print("went on after two signals")

    trainer.add_callback(AtStep(step, send))
    trainer.train()


def one_process_killed(folder: Path, step: int) -> None:
    trainer = make_trainer(folder)
    if trainer.args.process_index == 1:
        trainer.add_callback(AtStep(step, kill_self))
    trainer.train()


# --- memory, data ---


def out_of_memory(folder: Path, step: int, **settings) -> None:
    """More than any machine has: the CPU allocator's own error."""
    trainer = make_trainer(folder, **settings)
    trainer.add_callback(AtStep(step, lambda: torch.empty(1 << 60, dtype=torch.uint8)))
    trainer.train()


def out_of_memory_above(folder: Path, rows: int) -> None:
    """Batches of more than `rows` do not fit; Trainer may find the size."""
    trainer = make_trainer(folder, auto_find_batch_size=True)

    def check(_, inputs, kwargs):
        if kwargs["input_ids"].shape[0] > rows:
            torch.empty(1 << 60, dtype=torch.uint8)
        print("rows", kwargs["input_ids"].shape[0])

    trainer.model.register_forward_pre_hook(check, with_kwargs=True)
    trainer.train()


def not_a_number(folder: Path, step: int) -> None:
    """The hidden states of one step are not numbers; the weights are good."""
    trainer = make_trainer(folder)
    norm = trainer.model.base_model.embeddings.LayerNorm
    trainer.add_callback(AtStep(step, lambda: norm.register_forward_hook(lambda *args: args[-1] * float("nan"))))
    trainer.train()


def worker_killed(folder: Path, call: int) -> None:
    trainer = make_trainer(folder, dataloader_num_workers=1)

    def kill_worker():
        assert get_worker_info() is not None
        kill_self()

    trainer.data_collator = FaultyCollator(trainer.data_collator, call, kill_worker)
    trainer.train()


def on_corpus(folder: Path, corpus: Path, resume: bool | str = True) -> None:
    make_trainer(folder, documents=datasets.load_from_disk(str(corpus))).train(resume_from_checkpoint=resume)


def unreadable_files(folder: Path, name: str, action: Callable = builtins.open) -> None:
    """Reading the files of checkpoints that have `name` in their path fails as on a bad disk."""

    def fails(path, *args, **kwargs):
        if str(path).endswith(name) and args == ("rb",):
            raise OSError(errno.EIO, "Input/output error")
        return action(path, *args, **kwargs)

    checkpoints.open = fails
    make_trainer(folder).train(resume_from_checkpoint=True)
