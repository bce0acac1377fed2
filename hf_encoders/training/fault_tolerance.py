"""`Trainer` whose checkpoints survive a kill at any moment, a full disk, Ctrl-C and damaged files.

A checkpoint is written into `_unfinished/` of the output folder, synced to disk, listed with checksums, and only then
renamed to `checkpoint-N`. A folder with that name is complete, also for readers that know nothing of this package.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate.utils.memory import should_reduce_batch_size
from safetensors import SafetensorError
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import SaveStrategy, TrainOutput
from transformers.utils import logging

from hf_encoders.training.checkpoints import (
    UNFINISHED,
    check_checkpoint,
    check_same_corpus,
    checkpoints_by_step,
    facts_of_checkpoint,
    facts_of_run,
    finish_checkpoint,
    newest_good_checkpoint,
    step_of,
    what_differs,
)
from hf_encoders.training.distributed import any_process, max_over_processes
from hf_encoders.writing import check_folder


logger = logging.get_logger(__name__)


class CheckpointNotSavedError(OSError):
    """A checkpoint could not be written; the message has the reason, the last complete one, and the remedy."""


class FaultTolerantTrainer(Trainer):
    """`Trainer` that never replaces a complete checkpoint with an incomplete one, and says how to resume.

    `_save_checkpoint` writes complete checkpoints or none, in all processes, and removes older ones only after that.
    `train(resume_from_checkpoint=True)` takes the newest intact one. `InterruptionCallback` handles Ctrl-C and
    SIGTERM. Checkpoints have one file more than those of `Trainer`, `checkpoint_files.json`, and no
    `training_args.bin`, which nothing reads and which would hold `hub_token`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        callbacks = [each for each in self.callback_handler.callbacks if isinstance(each, InterruptionCallback)]
        self.interruption = callbacks[0] if callbacks else InterruptionCallback()
        if not callbacks:
            self.add_callback(self.interruption)
        self._last_checkpoint: Path | None = None  # that this run wrote or resumed from
        self._is_saving = False
        self._has_push_waiting = False

    def train(
        self, resume_from_checkpoint: str | os.PathLike | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train, as in `Trainer`.

        Args:
            resume_from_checkpoint (`str`, `os.PathLike` or `bool`, *optional*):
                A checkpoint's folder, or True for the newest intact checkpoint of `output_dir`; skipped ones are
                printed with the reason.
            args, kwargs: As in `Trainer`.

        Raises:
            ValueError: Before any compute: if `output_dir` cannot be written to, there is no intact checkpoint, the
                given one is damaged (`DamagedCheckpointError`), or it is of another corpus.
            CheckpointNotSavedError: If a checkpoint cannot be written.
            MemoryError: If memory runs out; the message names the setting to lower.
            SystemExit: With status 130 after Ctrl-C and 143 after SIGTERM, when everything is saved.
        """
        self._check_output_folder()
        checkpoint = self._checked(resume_from_checkpoint)
        self._last_checkpoint = checkpoint
        try:
            output = super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
        except Exception as error:
            if self.args.process_index == 0 and self._last_checkpoint is not None:
                step, kind = self.state.global_step, type(error).__name__
                logger.error(f"Training ended after step {step} with {kind}. {self._what_is_saved()}")
            if is_out_of_memory(error):
                first_line = str(error).partition("\n")[0]
                raise MemoryError(f"out of memory ({first_line}). {what_to_lower(self.args)}") from error
            raise
        finally:
            self.interruption.restore()
        if self.interruption.interrupted_by is not None:
            raise SystemExit(128 + self.interruption.interrupted_by)  # as shells report a signal
        return output

    # --- before training ---

    def _check_output_folder(self) -> None:
        """Refuse an output folder that cannot be written to, and remove what a killed run has not finished there."""
        if self.args.should_save:
            shutil.rmtree(Path(self.args.output_dir, UNFINISHED), ignore_errors=True)
        if self.args.save_strategy != SaveStrategy.NO:
            self._refused_in_all(self.args.should_save, check_folder, self.args.output_dir, "output_dir")

    def _checked(self, resume_from_checkpoint: str | os.PathLike | bool | None) -> Path | None:
        """Return the checkpoint to resume from, which the first process checks for all."""
        if resume_from_checkpoint is None or resume_from_checkpoint is False:
            return None
        if resume_from_checkpoint is True:
            checkpoint = self._newest_good()
        else:
            checkpoint = Path(resume_from_checkpoint)
            self._refused_in_all(self.args.process_index == 0, check_checkpoint, checkpoint)
        saved, now = facts_of_checkpoint(checkpoint), facts_of_run(self)
        check_same_corpus(saved, now, checkpoint)
        if self.args.process_index == 0:
            for difference in what_differs(saved, now):
                logger.warning(f"Resuming from {checkpoint}: {difference}.")
        return checkpoint

    def _refused_in_all(self, is_checked_here: bool, check: Callable[..., None], *arguments: Any) -> None:
        """Raise a ValueError of `check(*arguments)`, which one process calls, in all of them."""
        problem = None
        if is_checked_here:
            try:
                check(*arguments)
            except ValueError as error:
                problem = error
        if any_process(problem is not None, self.args.device):
            raise problem or ValueError("the run is refused: see the error of the first process.")

    def _newest_good(self) -> Path:
        """Return the newest intact checkpoint, the same in all processes."""
        newest = newest_good_checkpoint(self.args.output_dir) if self.args.process_index == 0 else None
        step = max_over_processes(-1 if newest is None else step_of(newest), self.args.device)
        if step < 0:
            raise ValueError(
                f"resume_from_checkpoint=True: there is no intact checkpoint in output_dir={self.args.output_dir!r}. "
                "Start from scratch without it; a lower save_steps saves more often."
            )
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{step}"
        if self.args.process_index == 0:
            print(f"Resuming from {checkpoint}", flush=True)
        return checkpoint

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn as `Trainer` does, but not of tied weights, which are saved under one name only."""
        missing = [name for name in load_result.missing_keys if name not in self.model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _what_is_saved(self) -> str:
        if self._last_checkpoint is None:
            return "This run has saved nothing yet."
        return f"{self._last_checkpoint} is complete. To resume from it, {self.interruption.how_to_resume}."

    # --- saving ---

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save as `Trainer` does, without pickled arguments."""
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            Path(output_dir or self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint as `Trainer` does, under another name until it is complete."""
        run_folder = self._get_output_dir(trial)
        target = Path(run_folder) / f"checkpoint-{self.state.global_step}"
        aside = Path(run_folder) / UNFINISHED
        with self._in_all_processes(target):
            self._is_saving = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._is_saving = False
            self._note_best_checkpoint(run_folder, aside / target.name)
        with self._in_all_processes(target):
            if self.args.should_save:
                finish_checkpoint(aside / target.name, target, facts_of_run(self))
            self._last_checkpoint = target
            if self._has_push_waiting:
                self._has_push_waiting = False
                self._push_from_checkpoint(str(target))
        if self.args.should_save:
            self._remove_surplus(Path(run_folder), target)
            shutil.rmtree(aside, ignore_errors=True)

    def _remove_surplus(self, run_folder: Path, newest: Path) -> None:
        """Remove checkpoints above `save_total_limit`, of the lowest steps: never the newest nor the best.

        Not by transformers' `rotate_checkpoints`, which goes by the time of the files: clocks may be wrong.
        """
        limit = self.args.save_total_limit
        if not limit or limit <= 0:
            return
        best = self.state.best_model_checkpoint
        kept = {newest, *([Path(best)] if best else [])}
        removable = [checkpoint for checkpoint in checkpoints_by_step(run_folder) if checkpoint not in kept]
        for checkpoint in removable[max(limit - len(kept), 0) :]:
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _get_output_dir(self, trial: Any) -> str:
        """Return the run's folder, or the one for unfinished checkpoints while one is written."""
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, UNFINISHED) if self._is_saving else folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push as `Trainer` does, but after the checkpoint is renamed: the upload reads it in the background."""
        self._has_push_waiting = self._is_saving
        if not self._is_saving:
            super()._push_from_checkpoint(checkpoint_folder)
            if self.args.should_save:
                Path(self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def _note_best_checkpoint(self, run_folder: str, unfinished: Path) -> None:
        """Store the final path of the best checkpoint in the state, where `Trainer` stored the unfinished one."""
        if not self.state.best_global_step:
            return
        best = os.path.join(run_folder, f"checkpoint-{self.state.best_global_step}")
        if os.path.basename(best) == unfinished.name or os.path.exists(best):
            self.state.best_model_checkpoint = best
            if self.args.should_save:
                self.state.save_to_json(str(unfinished / TRAINER_STATE_NAME))

    @contextmanager
    def _in_all_processes(self, target: Path) -> Iterator[None]:
        """Wait for all processes, and fail in all of them if one fails to write."""
        failure = None
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            failure = error
        if not any_process(failure is not None, self.args.device):
            return
        if self.args.should_save:
            shutil.rmtree(target.parent / UNFINISHED, ignore_errors=True)
        # Not every failed write of torch and safetensors reports that the disk is full.
        free = shutil.disk_usage(target.parent).free
        reason = "another process failed" if failure is None else str(failure).partition("\n")[0]
        raise CheckpointNotSavedError(
            f"{target} could not be saved or pushed ({reason}); {free / 1e6:,.1f} MB are free without it. "
            f"{self._what_is_saved()} On a full disk, free space or lower save_total_limit."
        ) from failure


SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
# torchrun forwards the Ctrl-C that the terminal has already sent to its processes: one key press, two signals.
SAME_KEY_PRESS = 1.0  # seconds
HOW_TO_RESUME = "run with the same settings and trainer.train(resume_from_checkpoint=True)"
STANDARD_ERROR = 2  # the file descriptor


class InterruptionCallback(TrainerCallback):
    """Saves a checkpoint and ends training on Ctrl-C (SIGINT) or SIGTERM, which preempted machines get.

    The current optimizer step is finished first. A second Ctrl-C ends the process immediately. With
    `save_strategy="no"` nothing is saved, and a message says so. In distributed training all processes stop after the
    same step, whichever of them got the signal: they exchange one number per step.

    `PreTrainingTrainer` has this callback, and its `train` then exits with the status of the signal (130 or 143). With
    the stock `Trainer`, `train` returns, and `interrupted_by` is set. Outside the main thread signals are not handled.

    Args:
        how_to_resume (`str`, *optional*): What follows "To resume, " in the message to the user.

    Attributes:
        interrupted_by (`signal.Signals`, *optional*): The signal that ended training.
    """

    def __init__(self, how_to_resume: str = HOW_TO_RESUME):
        self.how_to_resume = how_to_resume
        self.interrupted_by: signal.Signals | None = None
        self._received: signal.Signals | None = None
        self._received_at = 0.0
        self._handlers_before: dict[signal.Signals, Any] = {}
        self._process = os.getpid()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Install the signal handlers."""
        self.interrupted_by = self._received = None
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread() and not self._handlers_before:
            self._handlers_before = {number: signal.signal(number, self._receive) for number in SIGNALS}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Request a checkpoint and the end of training if any process got a signal."""
        if self.interrupted_by is None and self._is_interrupted(args):
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy != SaveStrategy.NO

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Restore the handlers and print how to resume."""
        self.restore()
        # Also a signal after the last step, in any process: all must end in the same way.
        is_interrupted = self.interrupted_by is not None or self._is_interrupted(args)
        if is_interrupted and state.is_world_process_zero:
            print(self._message(args, state), flush=True)

    def restore(self) -> None:
        """Restore the signal handlers; also after training failed."""
        handlers, self._handlers_before = self._handlers_before, {}
        for number, handler in handlers.items():
            if handler is not None:  # one that was not installed from Python
                signal.signal(number, handler)

    def _is_interrupted(self, args: TrainingArguments) -> bool:
        received = max_over_processes(self._received or 0, args.device)
        self.interrupted_by = signal.Signals(received) if received else None
        return bool(received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: remember the first, end immediately at the second Ctrl-C."""
        if os.getpid() != self._process:  # a forked data loader worker
            return
        now = time.monotonic()
        if self._received is None:
            self._received, self._received_at = signal.Signals(number), now
            message = f"\n{SIGNALS[number]}: finishing the step and saving; Ctrl-C again stops without saving.\n"
            os.write(STANDARD_ERROR, message.encode())  # `print` is not reentrant
        elif number == signal.SIGINT and now - self._received_at > SAME_KEY_PRESS:
            self.restore()
            signal.raise_signal(signal.SIGINT)

    def _message(self, args: TrainingArguments, state: TrainerState) -> str:
        stopped = f"Stopped by {SIGNALS[self.interrupted_by]} after step {state.global_step} of {state.max_steps}"
        if state.global_step >= state.max_steps:
            return f"{stopped}: training was complete."
        if args.save_strategy == SaveStrategy.NO:
            return f'{stopped}; nothing was saved, because save_strategy="no".'
        return f"{stopped}; saved in {args.output_dir}, nothing is lost. To resume, {self.how_to_resume}."


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device or the machine ran out of memory.

    accelerate's test, which `auto_find_batch_size` uses, knows the messages of CUDA, ROCm, XPU, MPS, HPU and torch's
    CPU allocator.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."))
    True
    >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or should_reduce_batch_size(error)


def what_to_lower(args: TrainingArguments) -> str:
    """Return a sentence: the setting to lower, and the one to raise so that training stays the same."""
    rows, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    remedy = "per_device_train_batch_size is 1: halve max_length of the dataset"
    if rows > 1:
        step = rows * accumulation
        fewer = next(number for number in range(rows // 2, 0, -1) if step % number == 0)
        remedy = (
            f"Lower per_device_train_batch_size={rows} to {fewer} and raise gradient_accumulation_steps="
            f"{accumulation} to {step // fewer}, which trains on the same batches"
        )
    if not recomputes(args):
        remedy += "; or set activation_checkpointing=True, which stores less and recomputes it"
    return f"{remedy}."


def recomputes(args: TrainingArguments) -> bool:
    """Return whether activations are recomputed in the backward pass."""
    # transformers before 5.20 has only the name gradient_checkpointing, now an alias.
    return bool(getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing)
