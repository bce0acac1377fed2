"""Callbacks that pre-training and publishing need in the stock `Trainer`."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

from tqdm.auto import tqdm
from transformers import (
    PreTrainedModel,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.dynamic_module_utils import custom_object_save
from transformers.trainer_utils import has_length
from transformers.utils import logging

from hf_encoders.training.model_uploads import watch_pushes


logger = logging.get_logger(__name__)


class EpochCallback(TrainerCallback):
    """Sets the epoch of the training dataset, so that it samples new examples.

    `Trainer` and accelerate do so in some runs only: not after a restart within an epoch, and in several processes
    only for the sampler.
    """

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set `state.epoch`, which is a fraction if training resumes within an epoch."""
        for dataset in epoch_datasets(getattr(kwargs["train_dataloader"], "dataset", None)):
            # The addend is smaller than a step's share of an epoch, and larger than rounding errors.
            dataset.set_epoch(int(state.epoch + 1e-9))


def epoch_datasets(dataset: Any) -> Iterator[Any]:
    """The datasets with `set_epoch`, also inside `Subset` and `ConcatDataset`."""
    if hasattr(dataset, "set_epoch"):
        yield dataset
    for inner in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if inner is not None:
            yield from epoch_datasets(inner)


class HubCodeCallback(TrainerCallback):
    """Copies the model's code beside the weights before every push, pushes only the model, and warns of failures.

    `Trainer` pushes the code files only with its last push, so with `hub_strategy="every_save"` the repository could
    not be loaded until then. It pushes in the background, ignores failures, and with `hub_always_push` replaces files
    that the push before still reads.

    Args:
        trainer (`Trainer`, *optional*): The trainer whose pushes are waited for, and reported if they fail.
    """

    def __init__(self, trainer: Trainer | None = None):
        self.trainer = trainer
        self._reported: set[Future] = set()

    def on_push_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Copy the files of the model and its configuration to the folder that is pushed, in the main process.

        Earlier pushes end first: there are some only with `hub_always_push`.
        """
        self._end_pushes(state)
        watch_pushes(args.output_dir)
        model = kwargs.get("model")
        # An adapter, which forwards the model's attributes, is pushed without the model and its code.
        if state.is_world_process_zero and isinstance(model, PreTrainedModel) and model._auto_class is not None:
            custom_object_save(model, args.output_dir)
            custom_object_save(model.config, args.output_dir)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait for the last push, as `Trainer` does right after this, and report a failure."""
        self._end_pushes(state)

    def _end_pushes(self, state: TrainerState) -> None:
        """Wait for the pushes since the last call, and report those that failed."""
        jobs = list(getattr(getattr(self.trainer, "push_in_progress", None), "jobs", ()))
        wait(jobs)
        for job in [job for job in jobs if job not in self._reported]:
            self._reported.add(job)
            if not job.cancelled() and job.exception() is not None:
                logger.warning(
                    f"A push to the Hub before step {state.global_step} failed "
                    f"({' '.join(str(job.exception()).split())}). The repository has the previous push; call "
                    "trainer.push_to_hub() after training."
                )


class CompactProgressCallback(ProgressCallback):
    """`Trainer`'s progress bar with the current losses, and one line per evaluation instead of whole logs.

    Shown are the metrics in `SHOWN`; if it is None, loss and accuracy of each loss term. In a file, a line is written
    every half minute.
    """

    SHOWN: tuple[str, ...] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """As in `ProgressCallback`; the bar of a resumed run starts at its first step."""
        if state.is_world_process_zero:
            self.training_bar = labelled_bar("training", state.max_steps, initial=state.global_step)
        self.current_step = state.global_step

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """As in `ProgressCallback`."""
        if state.is_world_process_zero and self.prediction_bar is None and has_length(kwargs["eval_dataloader"]):
            self.prediction_bar = labelled_bar("evaluating", len(kwargs["eval_dataloader"]), leave=False)
        super().on_prediction_step(args, state, control, **kwargs)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict, **kwargs: Any
    ) -> None:
        """Show the metrics."""
        if self.training_bar is None:
            return
        names = [name.removeprefix("eval_") for name in logs]
        shown = self.SHOWN or [name for name in names if name.endswith(("_loss", "accuracy")) and name != "train_loss"]
        training = {name: f"{logs[name]:.2f}" for name in shown if name in logs}
        if training:
            self.training_bar.set_postfix(training, refresh=False)
        held_out = [f"{name} {logs[f'eval_{name}']:.3f}" for name in shown if f"eval_{name}" in logs]
        if held_out:
            self.training_bar.write(f"  step {state.global_step}: held-out {', '.join(held_out)}")


def labelled_bar(label: str, total: int, **options: Any) -> tqdm:
    """A progress bar; outside of a terminal it writes every half minute."""
    is_seen = sys.stderr.isatty()
    return tqdm(desc=label, total=total, dynamic_ncols=True, mininterval=0.1 if is_seen else 30.0, **options)
