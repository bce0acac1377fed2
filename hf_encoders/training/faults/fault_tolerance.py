"""`Trainer` whose checkpoints survive what happens to runs: a kill at any moment, a full disk, Ctrl-C, damaged files.

A checkpoint is written into `_unfinished/` of the output folder, brought to the disk, listed with checksums, and only
then renamed to `checkpoint-N`. Whatever has that name is whole, also for readers that know nothing of this package.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import SaveStrategy, TrainOutput, sort_checkpoints
from transformers.utils import logging

from hf_encoders.training.faults.checkpoint_files import finish_checkpoint, remove_checkpoint, remove_folder
from hf_encoders.training.faults.checkpoints import (
    UNFINISHED,
    DamagedCheckpointError,
    check_checkpoint,
    facts_of_checkpoint,
    newest_good_checkpoint,
)
from hf_encoders.training.faults.interruption import InterruptionCallback
from hf_encoders.training.faults.out_of_memory import is_out_of_memory, what_to_lower
from hf_encoders.training.faults.run_facts import check_same_corpus, facts_of_run, what_differs
from hf_encoders.training.processes import any_process, largest_of_processes


logger = logging.get_logger(__name__)


class CheckpointNotSavedError(OSError):
    """A checkpoint could not be written; the message has the reason, what is still there, and the remedy."""


class FaultTolerantTrainer(Trainer):
    """`Trainer` that never loses what it saved, and says how to go on.

    Differs from `Trainer` in what happens when something goes wrong: `_save_checkpoint` makes whole checkpoints or
    none, in all processes; older ones are removed only after that. `train(resume_from_checkpoint=True)` takes the
    newest whole one. Ctrl-C and SIGTERM end it as `InterruptionCallback` says. A checkpoint holds one file more,
    `checkpoint_files.json`, and no `training_args.bin`, which nothing reads and which would hold `hub_token`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        given = [one for one in self.callback_handler.callbacks if isinstance(one, InterruptionCallback)]
        self.interruption = given[0] if given else InterruptionCallback()
        if not given:
            self.add_callback(self.interruption)
        self._last_checkpoint: Path | None = None  # of this run: written, or resumed from
        self._is_unfinished = False  # while a checkpoint is written
        self._has_push_waiting = False

    def train(
        self, resume_from_checkpoint: str | os.PathLike | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """As in `Trainer`.

        Args:
            resume_from_checkpoint: True for the newest whole checkpoint of `output_dir`, where those that are passed
                over are printed with the reason; or a checkpoint's folder.
            args, kwargs: as in `Trainer`.

        Raises:
            ValueError: before any compute: if `output_dir` cannot be written to, there is no whole checkpoint, the
                named one is damaged (`DamagedCheckpointError`), or it is of another corpus.
            CheckpointNotSavedError: if a checkpoint cannot be written.
            MemoryError: with the setting to lower, where memory was not enough.
            SystemExit: with status 130 after Ctrl-C and 143 after SIGTERM, when all is saved.
        """
        self._check_output_folder()
        checkpoint = self._checked(resume_from_checkpoint)
        self._last_checkpoint = checkpoint
        try:
            output = super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
        except Exception as error:
            self._say_how_to_go_on(error)
            if is_out_of_memory(error):
                first_line = str(error).partition("\n")[0]
                raise MemoryError(f"out of memory ({first_line}). {what_to_lower(self.args)}") from error
            raise
        finally:
            self.interruption.restore()
        if self.interruption.interrupted_by is not None:
            raise SystemExit(128 + self.interruption.interrupted_by)  # the exit status that shells give a signal
        return output

    # --- before training ---

    def _check_output_folder(self) -> None:
        """Refuse a folder that the first checkpoint could not be written to."""
        problem = None
        if self.args.should_save and self.args.save_strategy != SaveStrategy.NO:
            try:
                os.makedirs(self.args.output_dir, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.args.output_dir):
                    pass
            except OSError as error:
                problem = error
        if any_process(problem is not None, self.args.device):
            raise ValueError(
                f"output_dir={self.args.output_dir!r} cannot be written to ({problem or 'in another process'}): give "
                'another folder, or save_strategy="no".'
            ) from problem

    def _checked(self, resume_from_checkpoint: str | os.PathLike | bool | None) -> Path | None:
        """The checkpoint to go on from, looked at by the first process for all."""
        if resume_from_checkpoint is None or resume_from_checkpoint is False:
            return None
        if resume_from_checkpoint is True:
            checkpoint = self._newest_good()
        else:
            checkpoint, problem = Path(resume_from_checkpoint), None
            if self.args.process_index == 0:
                try:
                    check_checkpoint(checkpoint)
                except DamagedCheckpointError as error:
                    problem = error
            if any_process(problem is not None, self.args.device):
                raise problem or DamagedCheckpointError(f"{checkpoint} is damaged: see what the first process says.")
        saved, now = facts_of_checkpoint(checkpoint), facts_of_run(self)
        check_same_corpus(saved, now, str(checkpoint))
        if self.args.process_index == 0:
            for difference in what_differs(saved, now):
                logger.warning(f"Going on from {checkpoint}: {difference}.")
        return checkpoint

    def _newest_good(self) -> Path:
        """The newest whole checkpoint, the same in all processes."""
        found = newest_good_checkpoint(self.args.output_dir) if self.args.process_index == 0 else None
        step = largest_of_processes(-1 if found is None else int(found.name.partition("-")[2]), self.args.device)
        if step < 0:
            raise ValueError(
                f"resume_from_checkpoint=True: there is no whole checkpoint in output_dir={self.args.output_dir!r}. "
                "Begin anew without it; a lower save_steps saves more often."
            )
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{step}"
        if self.args.process_index == 0:
            print(f"Going on from {checkpoint}", flush=True)
        return checkpoint

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """As in `Trainer`, but for weights that are there under another name: those that are tied are saved once."""
        parameters, missing = dict(self.model.named_parameters(remove_duplicate=False)), load_result.missing_keys
        there = {id(value) for name, value in parameters.items() if name not in missing}
        missing = [name for name in missing if id(parameters.get(name)) not in there]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _say_how_to_go_on(self, error: Exception) -> None:
        if self.args.process_index == 0 and self._last_checkpoint is not None:
            step, kind = self.state.global_step, type(error).__name__
            logger.error(f"Training ended after step {step} with {kind}. {self._what_is_left()}")

    def _what_is_left(self) -> str:
        if self._last_checkpoint is None:
            return "Nothing was saved before in this run."
        return f"{self._last_checkpoint} is whole. To go on from it, {self.interruption.how_to_resume}."

    # --- saving ---

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """As in `Trainer`, without the pickle of the arguments and a progress bar for each file of weights."""
        was_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            super()._save(output_dir, state_dict)
        finally:
            if was_enabled:
                logging.enable_progress_bar()
        if self.args.should_save:
            Path(output_dir or self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """As in `Trainer`, out of sight until the checkpoint is whole."""
        run_folder = self._get_output_dir(trial)
        place = Path(run_folder) / f"checkpoint-{self.state.global_step}"
        aside = Path(run_folder) / UNFINISHED
        unfinished = aside / place.name
        with self._in_all_processes(place):
            if self.args.should_save:
                remove_folder(aside)
        with self._in_all_processes(place):
            self._is_unfinished = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._is_unfinished = False
            self._note_best_checkpoint(run_folder, unfinished)
        with self._in_all_processes(place):
            if self.args.should_save:
                finish_checkpoint(unfinished, place, facts_of_run(self))
        self._last_checkpoint = place
        if self._has_push_waiting:
            self._has_push_waiting = False
            with self._in_all_processes(place, "pushed"):
                self._push_from_checkpoint(str(place))
        if self.args.should_save:
            self._remove_surplus(Path(run_folder), place)
            remove_folder(aside)

    def _get_output_dir(self, trial: Any) -> str:
        """As in `Trainer`; while a checkpoint is written, the folder for what is unfinished."""
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, UNFINISHED) if self._is_unfinished else folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """As in `Trainer`, but not before the checkpoint has its place: the upload reads it in the background."""
        if self._is_unfinished:
            self._has_push_waiting = True
        else:
            super()._push_from_checkpoint(checkpoint_folder)
            if self.args.should_save:
                Path(self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def _note_best_checkpoint(self, run_folder: str, unfinished: Path) -> None:
        """Put the final path of the best checkpoint into the state, where `Trainer` looked for it aside."""
        if not self.state.best_global_step:
            return
        best = os.path.join(run_folder, f"checkpoint-{self.state.best_global_step}")
        if os.path.basename(best) == unfinished.name or os.path.exists(best):
            self.state.best_model_checkpoint = best
            if self.args.should_save:
                self.state.save_to_json(str(unfinished / TRAINER_STATE_NAME))

    def _remove_surplus(self, run_folder: Path, newest: Path) -> None:
        """As `Trainer` does by `save_total_limit`, oldest first; never the new checkpoint nor the best one.

        It never ends the training: one process alone does it, and the others would wait for it.
        """
        limit = self.args.save_total_limit
        if limit is None or limit <= 0:
            return
        # By time, as `Trainer`: checkpoints of higher steps may be left from before a restart.
        try:
            found = [Path(path) for path in sort_checkpoints(str(run_folder), use_mtime=True)]
        except OSError as error:
            logger.warning(f"{run_folder} could not be looked through for surplus checkpoints ({error}): all stay.")
            return
        kept = {newest} | {Path(path) for path in [self.state.best_model_checkpoint] if path is not None}
        surplus = len(found) - max(limit, len(kept.intersection(found)))
        for checkpoint in [path for path in found if path not in kept][: max(surplus, 0)]:
            remove_checkpoint(checkpoint, run_folder / UNFINISHED)

    @contextmanager
    def _in_all_processes(self, place: Path, what: str = "saved") -> Iterator[None]:
        """Fail in all processes where one fails to write; those that are done wait here for the others."""
        failure = None
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            failure = error
        if not any_process(failure is not None, self.args.device):
            return
        # torch and safetensors do not say of every write that failed that the disk is full.
        free = [shutil.disk_usage(place.parent).free / 1e6]
        if self.args.should_save:
            remove_folder(place.parent / UNFINISHED)  # the room that a half-written checkpoint takes
        free.append(shutil.disk_usage(place.parent).free / 1e6)
        reason = "another process failed" if failure is None else str(failure).partition("\n")[0]
        raise CheckpointNotSavedError(
            f"{place} could not be {what} ({reason}); {free[0]:,.1f} MB were free then, {free[1]:,.1f} MB are "
            f"without what was written of it. {self._what_is_left()} On a full disk, make room first, or keep "
            "fewer checkpoints by save_total_limit."
        ) from failure
