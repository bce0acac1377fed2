"""Callbacks that make the stock `Trainer` do what pre-training and publishing need."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

from torch.utils.data import DataLoader
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
    """Tells the training data set which epoch begins, so that it draws new examples.

    `Trainer` and accelerate do so themselves in some runs only: not after a restart within an epoch, and not in
    several processes, where they tell only the sampler.
    """

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: DataLoader | None = None,
        **kwargs: Any,
    ) -> None:
        """Announce `state.epoch`, which is a fraction where training resumes within an epoch."""
        for data_set in epoch_datasets(getattr(train_dataloader, "dataset", None)):
            # What is added is less than the smallest step of an epoch, and more than what rounding takes away.
            data_set.set_epoch(int(state.epoch + 1e-9))


def epoch_datasets(data_set: Any) -> Iterator[Any]:
    """The data sets that take an epoch, inside of `Subset` and `ConcatDataset` too."""
    if hasattr(data_set, "set_epoch"):
        yield data_set
    for inner in (getattr(data_set, "dataset", None), *getattr(data_set, "datasets", ())):
        if inner is not None:
            yield from epoch_datasets(inner)


class HubCodeCallback(TrainerCallback):
    """Puts the model's code beside the weights before every push, has the model alone pushed, and warns of failures.

    `Trainer` pushes the code files with its last push only; with `hub_strategy="every_save"` the repository could not
    be loaded until then. It pushes in the background, and says nothing where that fails.

    Args:
        trainer (`Trainer`, *optional*): of whose failed pushes is warned.
    """

    def __init__(self, trainer: Trainer | None = None):
        self.trainer = trainer
        self._pending: list[Future] = []
        self._reported: list[Future] = []

    def on_push_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy the files of the model and its configuration to the folder that is pushed.

        By the process that pushes: with `push_to_hub` of `Trainer`, all of them come here.
        """
        self._report(state)
        watch_pushes(args.output_dir)
        # An adapter around a model answers for its attributes too, and is pushed without the model and its code.
        if state.is_world_process_zero and isinstance(model, PreTrainedModel) and model._auto_class is not None:
            custom_object_save(model, args.output_dir)
            custom_object_save(model.config, args.output_dir)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait for the last push, as `Trainer` itself does right after this, and see how it ended."""
        self._watch()
        wait(self._pending)
        self._report(state)

    def _watch(self) -> None:
        """Remember the jobs of the pushes under way, which `Trainer` forgets with the next push."""
        progress = getattr(self.trainer, "push_in_progress", None)
        known = self._pending + self._reported
        self._pending += [job for job in getattr(progress, "jobs", ()) if job not in known]

    def _report(self, state: TrainerState) -> None:
        self._watch()
        done = [job for job in self._pending if job.done()]
        self._pending = [job for job in self._pending if job not in done]
        self._reported += done
        for job in done:
            if not job.cancelled() and job.exception() is not None:
                logger.warning(
                    f"A push to the Hub before step {state.global_step} failed "
                    f"({' '.join(str(job.exception()).split())}). The repository holds what was pushed before; call "
                    "trainer.push_to_hub() after training."
                )


class CompactProgressCallback(ProgressCallback):
    """`Trainer`'s progress bar with the current losses behind it, and one line an evaluation instead of whole logs.

    The bars are labelled, that of an evaluation goes when it ends, and in a file they write a line now and then only.
    """

    SHOWN = ("mlm_loss", "mlm_accuracy", "pair_loss", "pair_accuracy", "accuracy")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """As in `ProgressCallback`; a resumed run's bar begins where the run does."""
        if state.is_world_process_zero:
            self.training_bar = labelled_bar("training", state.max_steps, initial=state.global_step)
        self.current_step = state.global_step

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: DataLoader | None = None,
        **kwargs: Any,
    ) -> None:
        """As in `ProgressCallback`."""
        if state.is_world_process_zero and self.prediction_bar is None and has_length(eval_dataloader):
            self.prediction_bar = labelled_bar("evaluating", len(eval_dataloader), leave=False)
        super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show what was logged."""
        if self.training_bar is None:
            return
        training = {name: f"{logs[name]:.2f}" for name in self.SHOWN if name in logs}
        if training:
            self.training_bar.set_postfix(training, refresh=False)
        held_out = [f"{name} {logs[f'eval_{name}']:.3f}" for name in self.SHOWN if f"eval_{name}" in logs]
        if held_out:
            self.training_bar.write(f"  step {state.global_step}: held-out {', '.join(held_out)}")


def labelled_bar(label: str, total: int, **options: Any) -> tqdm:
    """A progress bar; where nobody sees it move, it writes every half minute."""
    is_seen = sys.stderr.isatty()
    return tqdm(desc=label, total=total, dynamic_ncols=True, mininterval=0.1 if is_seen else 30.0, **options)
