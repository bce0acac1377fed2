"""Callbacks of a run: epochs, progress, pushes to the Hub, warm-up of new heads; and rates that follow its steps."""

import math
import os
import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers.trainer
from huggingface_hub import CommitOperationAdd, HfApi
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import IterableDataset
from tqdm.auto import tqdm
from transformers import (
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import has_length
from transformers.utils import logging

from hf_encoders.publishing.files import published_files, refuse_secrets


logger = logging.get_logger(__name__)


class EpochCallback(TrainerCallback):
    """Sets the epoch of the training dataset, so that it samples new examples.

    `Trainer` and accelerate do so in some runs only: not after a restart within an epoch, and in several processes
    only for the sampler.
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Refuse to resume in a later pass over a stream, because `Trainer` takes all steps for the first one."""
        dataset = getattr(kwargs["train_dataloader"], "dataset", None)
        if isinstance(dataset, IterableDataset) and (state.epoch or 0) > 1:
            raise ValueError(
                f"resume_from_checkpoint: it is in pass {int(state.epoch) + 1} over a stream, and Trainer finds its "
                "position in the first one only. Train on a stream as long as the run, or on a stored corpus."
            )

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Set `state.epoch`, which is a fraction if training resumes within an epoch."""
        for dataset in epoch_datasets(getattr(kwargs["train_dataloader"], "dataset", None)):
            # The addend is smaller than a step's share of an epoch, and larger than rounding errors.
            dataset.set_epoch(int(state.epoch + 1e-9))


def with_inner_datasets(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those inside it, as of `Subset` and `ConcatDataset`."""
    yield dataset
    for inner in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if inner is not None:
            yield from with_inner_datasets(inner)


def epoch_datasets(dataset: Any) -> list[Any]:
    """Return the datasets with `set_epoch`, also inside another dataset."""
    return [inner for inner in with_inner_datasets(dataset) if hasattr(inner, "set_epoch")]


class HubCodeCallback(TrainerCallback):
    """Copies code and submodels to the folder of every push, pushes the model only, and warns of failures.

    `Trainer` pushes the code files only with its last push, so with `hub_strategy="every_save"` the repository could
    not be loaded until then. It pushes in the background, ignores failures, and with `hub_always_push` replaces files
    that the push before still reads.

    Args:
        trainer (`Trainer`, *optional*): The trainer whose pushes are waited for, and reported if they fail.
    """

    def __init__(self, trainer: Trainer | None = None):
        self.trainer = trainer
        self._reported: set[Future] = set()

    def on_push_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Copy the files in the main process, after earlier pushes, of which there are some with `hub_always_push`."""
        self._end_pushes(state)
        watch_pushes(args.output_dir)
        output_dir = Path(args.output_dir)
        checkpoint = output_dir / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():
            for name in published_files(checkpoint):
                if "/" in name or name.endswith(".py"):
                    (output_dir / name).parent.mkdir(exist_ok=True)
                    shutil.copyfile(checkpoint / name, output_dir / name)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Wait for the last push, as `Trainer` does right after this, and report a failure."""
        self._end_pushes(state)

    def _end_pushes(self, state: TrainerState) -> None:
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

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
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
    """Return a progress bar; outside of a terminal it writes every half minute."""
    is_seen = sys.stderr.isatty()
    return tqdm(desc=label, total=total, dynamic_ncols=True, mininterval=0.1 if is_seen else 30.0, **options)


class HeadWarmUpCallback(TrainerCallback):
    """Freezes the trained weights in the first steps: gradients of random heads would undo what they know.

    `PreTrainingTrainer` then warms the learning rate up a second time, for those weights.

    Args:
        new_weights (`Collection[str]`): Names of parameters of the model.
        steps (`int`): Steps of the optimizer, from the first of the run on, restarts included.
    """

    def __init__(self, new_weights: Collection[str], steps: int):
        self.new_weights, self.steps = frozenset(new_weights), steps

    def change_schedule(self, schedule: LRScheduler, warmup_steps: int) -> None:
        """Multiply the learning rate by a second linear warm-up, which begins with the trained weights.

        Otherwise their first updates, of an optimizer without running averages for them, are at nearly the peak rate.
        A schedule without warm-up (`constant`, `reduce_lr_on_plateau`) stays as it is.
        """
        if isinstance(schedule, LambdaLR):
            schedule.lr_lambdas = [
                self._warmed_up_again(factor, warmup_steps) if factor(0) < factor(warmup_steps) else factor
                for factor in schedule.lr_lambdas
            ]

    def _warmed_up_again(self, factor: Callable[[int], float], warmup_steps: int) -> Callable[[int], float]:
        def multiplied(step: int) -> float:
            updates = step - self.steps + 1  # of the trained weights
            return factor(step) * (1.0 if updates < 1 else min(1.0, updates / (warmup_steps + 1)))

        return multiplied

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs: Any
    ) -> None:
        """Drop the gradients of the trained weights, so that the optimizer leaves them as they are."""
        if state.global_step >= self.steps:
            return
        # Wrappers (DDP, a compiled model) put a prefix before the names.
        for name, parameter in model.named_parameters():
            if not any(name == new or name.endswith(f".{new}") for new in self.new_weights):
                parameter.grad = None


class PhaseChanges(TrainerCallback):
    """Changes the learning rate and fields of the model's configuration where phases of a run begin.

    By the number of the step alone, so that a resumed run goes on as it would have.

    Args:
        first_steps (`Sequence[int]`): First step of the optimizer of each phase, from 0, and the number of all steps.
        rate_shares (`Sequence[tuple[float, float]]`): What the schedule's learning rate is multiplied by, at the
            first step of each phase and after its last one; between them it falls by 1-sqrt, as ModernBERT's decay.
        weight_decays (`Sequence[float]`): Weight decay in each phase, of parameters that have some; None means the
            run's.
        fields (`Sequence[Mapping[str, Any]]`): Fields that no weight depends on, such as ModernBERT's thetas.
    """

    def __init__(
        self,
        first_steps: Sequence[int],
        rate_shares: Sequence[tuple[float, float]],
        weight_decays: Sequence[float | None],
        fields: Sequence[Mapping[str, Any]],
    ):
        self.first_steps, self.rate_shares = first_steps, rate_shares
        self.weight_decays, self.fields = weight_decays, fields

    def phase_of(self, step: int) -> int:
        """Return the phase of a step, both from 0; after the last step it is the last."""
        return min(bisect_right(self.first_steps, step), len(self.fields)) - 1

    def rate_share(self, step: int) -> float:
        """Return what the schedule's learning rate is multiplied by at a step."""
        phase = self.phase_of(step)
        first, last = self.rate_shares[phase]
        begin, end = self.first_steps[phase : phase + 2]
        return last + (first - last) * (1 - math.sqrt(min((step - begin) / (end - begin), 1)))

    def change_schedule(self, schedule: LRScheduler, warmup_steps: int) -> None:
        """Multiply the learning rates of a schedule; ValueError for one that does not follow from the step."""
        if set(self.rate_shares) == {(1.0, 1.0)}:
            return
        if not isinstance(schedule, LambdaLR):
            raise ValueError(
                f"phases: learning_rate does not go with {type(schedule).__name__}: choose another lr_scheduler_type."
            )
        schedule.lr_lambdas = [
            lambda step, factor=factor: factor(step) * self.rate_share(step) for factor in schedule.lr_lambdas
        ]
        # The rates of the first step are set when a schedule is made.
        schedule._last_lr = [
            rate * factor(0) for rate, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
        ]
        for group, rate in zip(schedule.optimizer.param_groups, schedule._last_lr, strict=True):
            group["lr"] = rate

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs: Any
    ) -> None:
        """Set the fields, for an evaluation before the first step too."""
        self.on_step_begin(args, state, control, model, **kwargs)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        optimizer: Optimizer,
        **kwargs: Any,
    ) -> None:
        """Set the fields and the weight decay of the step's phase."""
        phase = self.phase_of(state.global_step)
        for name, value in self.fields[phase].items():
            setattr(model.config, name, value)
        if any(decay is not None for decay in self.weight_decays):
            decay = self.weight_decays[phase]
            for group in optimizer.param_groups:
                if group["weight_decay"] > 0:
                    group["weight_decay"] = args.weight_decay if decay is None else decay


def take_longer_schedule(trainer: Trainer, checkpoint: str) -> None:
    """Set the learning rate of a run that was made longer than the one that wrote the checkpoint.

    The optimizer's state, which was loaded, holds the rate of the shorter schedule.
    """
    args, schedule = trainer.args, trainer.lr_scheduler
    if not isinstance(schedule, LambdaLR):
        return
    state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
    if state.max_steps == args.max_steps or args.max_steps <= 0:
        return
    before = trainer.optimizer.param_groups[0]["lr"]
    schedule.last_epoch -= 1
    schedule.step()  # sets the rates of the same step again, from its number alone
    rate = trainer.optimizer.param_groups[0]["lr"]
    if args.process_index == 0 and rate != before:
        print(
            f"Extended from {state.max_steps:,} to {args.max_steps:,} steps: the learning rate of step "
            f"{state.global_step:,} is {rate:.3g} instead of {before:.3g}.",
            flush=True,
        )


# Share of the way from the first rate to the last, as a function of the share of the run's steps; both in [0, 1].
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,
    "cosine": lambda progress: (1 - math.cos(math.pi * progress)) / 2,
}


@dataclass(frozen=True)
class MaskRate:
    """A mask rate that changes over the run.

    From 30 % to 15 % linearly made a better BERT base than 15 % throughout (Ankner et al. 2023, "Dynamic masking rate
    schedules for MLM pretraining", https://arxiv.org/abs/2305.15096).

    Args:
        start, end (`float`): Share of the tokens to predict in the first and after the last step, in (0, 1].
        shape (`str`, *optional*, defaults to `"linear"`): How the rate changes, one of `SHAPES`.

    Raises:
        ValueError: for a rate out of range or an unknown shape.

    >>> rate, cosine = MaskRate(0.30, 0.15), MaskRate(0.30, 0.15, "cosine")
    >>> rate(0.0), rate(1.0), round(rate(0.25), 4), round(cosine(0.25), 4)
    (0.3, 0.15, 0.2625, 0.278)
    """

    start: float = 0.30
    end: float = 0.15
    shape: str = "linear"

    def __post_init__(self):
        if not (0 < self.start <= 1 and 0 < self.end <= 1):
            raise ValueError(f"start={self.start} and end={self.end} must be in (0, 1], for example 0.30 and 0.15.")
        if self.shape not in SHAPES:
            raise ValueError(f"shape={self.shape!r} must be one of {', '.join(SHAPES)}.")

    def __call__(self, progress: float) -> float:
        """Return the rate at a share of the run's steps, in [0, 1]."""
        return self.start + (self.end - self.start) * SHAPES[self.shape](progress)

    def __str__(self) -> str:
        return f"{self.start} to {self.end}" + f" ({self.shape})" * (self.shape != "linear")


class ModelUploads:
    """`HfApi` for `Trainer`, with an `upload_folder` restricted to the model in the folders given to `watch_pushes`.

    Args:
        api (`HfApi`): Serves every other call.
    """

    # Output folders of all trainers in this process.
    watched: set[Path] = set()

    def __init__(self, api: HfApi):
        self.api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    def upload_folder(self, *, folder_path: str | Path, run_as_future: bool = False, **options: Any) -> Any:
        """As in `HfApi`, but only the model's files, in one commit; a checkpoint goes without `training_args.bin`.

        Raises:
            ValueError: With file and line, if a file holds a token or a path of this user's home folder; with
                `run_as_future`, raised by the returned future.
        """
        folder = Path(folder_path)
        try:
            if folder.absolute() in self.watched:
                names = sorted(published_files(folder))
                refuse_secrets(folder, names)
                # `upload_folder` would list the folder in the background, while old checkpoints are removed from it,
                # and fail. Nothing that `ignore_patterns` names is among the model's files.
                options.pop("ignore_patterns", None)
                options["operations"] = [CommitOperationAdd(name, folder / name) for name in names]
                return self.api.create_commit(run_as_future=run_as_future, **options)
            if folder.absolute().parent in self.watched:
                options["ignore_patterns"] = [TRAINING_ARGS_NAME]
                refuse_secrets(folder, {path.name for path in folder.glob("*.json")})
        except ValueError as error:
            if not run_as_future:
                raise
            failed: Future = Future()
            failed.set_exception(error)
            return failed
        return self.api.upload_folder(folder_path=folder_path, run_as_future=run_as_future, **options)


def watch_pushes(output_dir: str | Path) -> None:
    """Restrict all later pushes of an output folder and its checkpoints to the model's files."""
    ModelUploads.watched.add(Path(output_dir).absolute())
    # `Trainer` has no option for the files to push.
    if not isinstance(transformers.trainer.hf_api(), ModelUploads):
        client = transformers.trainer.hf_api
        transformers.trainer.hf_api = lambda: ModelUploads(client())
