"""Ctrl-C and SIGTERM: finish the step, save, stop in all processes at the same step, and say how to go on."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from hf_encoders.training.processes import largest_of_processes


SIGNALS = (signal.SIGINT, signal.SIGTERM)
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
# torchrun passes on the Ctrl-C that the terminal has already sent to its processes: one key press, two signals.
SAME_KEY_PRESS = 1.0  # seconds
HOW_TO_RESUME = "start with the same settings and trainer.train(resume_from_checkpoint=True)"
STANDARD_ERROR = 2  # the file descriptor


class InterruptionCallback(TrainerCallback):
    """Lets Ctrl-C (SIGINT) and SIGTERM, which preempted machines get, end a run without a loss.

    The optimizer step under way is finished, a checkpoint is written and training ends; a second Ctrl-C ends the
    process at once, and what was saved before stays. With `save_strategy="no"` nothing is saved, which is said. In
    several processes all stop after the same step, whichever of them got the signal: they exchange one number a step.

    `PreTrainingTrainer` has this callback, and its `train` then ends the process with the exit status of the signal
    (130, 143), so that nothing goes on as if training were done. Under the stock `Trainer`, `train` returns, and
    `interrupted_by` tells.

    Signals are left alone outside the main thread, where Python does not deliver them.

    Args:
        how_to_resume (`str`): what the user is told to do to go on, after "To go on, ".

    Attributes:
        interrupted_by (`signal.Signals`, *optional*): the signal that training was stopped for.
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
        """Take over the signals."""
        self.interrupted_by = self._received = None
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread() and not self._handlers_before:
            self._handlers_before = {number: signal.signal(number, self._receive) for number in SIGNALS}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask for a checkpoint and the end if any process got a signal."""
        if self.interrupted_by is not None:
            return
        received = largest_of_processes(self._received or 0, args.device)
        if received:
            self.interrupted_by = signal.Signals(received)
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy != SaveStrategy.NO

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say how to go on, and give the signals back."""
        self.restore()
        if self.interrupted_by is None:
            # A signal that came after the last step, to whichever process: all end, so that none waits for another.
            received = largest_of_processes(self._received or 0, args.device)
            self.interrupted_by = signal.Signals(received) if received else None
        if self.interrupted_by is not None and state.is_world_process_zero:
            print(self._message(args, state), flush=True)

    def restore(self) -> None:
        """Give the signals back to whom they belonged to; also for a training that ended with an error."""
        handlers, self._handlers_before = self._handlers_before, {}
        for number, handler in handlers.items():
            # None: a handler that was not set from Python, which Python cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: remember the first; end at once with the second Ctrl-C."""
        if os.getpid() != self._process:
            # A forked worker of the data loader. The key press is the trainer's business; SIGTERM is from the trainer.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        now = time.monotonic()
        if self._received is None:
            self._received, self._received_at = signal.Signals(number), now
            told = f"\n{NAMES[self._received]}: finishing the step and saving; Ctrl-C again stops without saving.\n"
            os.write(STANDARD_ERROR, told.encode())  # `print` must not be called within a `print`
        elif number == signal.SIGINT and now - self._received_at > SAME_KEY_PRESS:
            self.restore()
            signal.raise_signal(signal.SIGINT)

    def _message(self, args: TrainingArguments, state: TrainerState) -> str:
        stopped = f"Stopped by {NAMES[self.interrupted_by]} after step {state.global_step} of {state.max_steps}"
        if state.global_step >= state.max_steps:
            return f"{stopped}: training was complete."
        if args.save_strategy == SaveStrategy.NO:
            return f'{stopped}; nothing was saved, because save_strategy="no".'
        return f"{stopped}; saved in {args.output_dir}, nothing is lost. To go on, {self.how_to_resume}."
