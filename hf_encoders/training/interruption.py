"""Ctrl-C and SIGTERM: finish the step, save, and stop all processes after the same step.

`TrainingArguments.enable_jit_checkpoint` is not used: in transformers 5.23 it handles SIGTERM only, waits three
seconds, does not synchronise processes (the one that got the signal saves alone), and `train` then returns as if
training were done.
"""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from hf_encoders.training.distributed import max_over_processes


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

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Install the signal handlers."""
        self.interrupted_by = self._received = None
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread() and not self._handlers_before:
            self._handlers_before = {number: signal.signal(number, self._receive) for number in SIGNALS}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Request a checkpoint and the end of training if any process got a signal."""
        if self.interrupted_by is None and self._is_interrupted(args):
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy != SaveStrategy.NO

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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
            # None: a handler that was not installed from Python, which Python cannot install again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _is_interrupted(self, args: TrainingArguments) -> bool:
        received = max_over_processes(self._received or 0, args.device)
        self.interrupted_by = signal.Signals(received) if received else None
        return bool(received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: remember the first, end immediately at the second Ctrl-C."""
        if os.getpid() != self._process:
            # A forked data loader worker: it ignores Ctrl-C, which the trainer handles; SIGTERM is the trainer's.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
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
