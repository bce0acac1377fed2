"""One fine-tuning: seed, model, the stock `Trainer`, the best checkpoint, figures.

The loss is that of the heads, or `class_weights.py`'s; both are divided by the items of the whole batch, so without
dropout 8 rows at once and 2 at a time accumulated 4 times train the same model. Padding is not computed, so rows are
not sorted by length.
"""

import math
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    EarlyStoppingCallback,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_encoders.data.batches import IGNORED
from hf_encoders.finetuning.class_weights import class_weighted_loss
from hf_encoders.finetuning.new_head import load_model
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.finetuning.training_options import defaults, steps_per_epoch
from hf_encoders.loading import load_config
from hf_encoders.training import CompactProgressCallback
from hf_encoders.training.hyperparameters import check_precision
from hf_encoders.training.optimizers import optimization_facts
from hf_encoders.training.threads import chosen_before, set_threads, work_of_rows


CHECKPOINTS = ("best", "last")
# What `Trainer` reports of an evaluation beside its figures.
NOT_A_FIGURE = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


@dataclass(frozen=True)
class RunSettings:
    """What all runs of a command have in common.

    Args:
        model (`str`): folder or Hub name of the encoder.
        classes (`str`): `hf_encoders`, or `transformers` to compare with its own classes.
        from_scratch (`bool`): draw all weights anew instead of loading them, to compare with.
        class_weights (`list` of `float`, *optional*): a weight a class, see `class_weights.py`.
        checkpoint (`str`): `best` keeps the weights with the best `main_metric` on `validation` of all evaluations,
            `last` those after the last update. Without a validation set it is the last.
        patience (`int`, *optional*): stop after so many evaluations without a better figure.
        training (`dict`): fields of `TrainingArguments`; others are those of `training_options.defaults`.

    Raises:
        ValueError: for a value out of range.
    """

    model: str
    classes: str = "hf_encoders"
    from_scratch: bool = False
    class_weights: list[float] | None = None
    checkpoint: str = "best"
    patience: int | None = None
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what no run can be made of."""
        if self.checkpoint not in CHECKPOINTS:
            raise ValueError(f"--checkpoint {self.checkpoint!r} must be one of {', '.join(CHECKPOINTS)}.")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"--patience {self.patience}: must be at least 1 evaluation.")
        if self.patience is not None and self.checkpoint == "last":
            raise ValueError("--patience stops at the best checkpoint: leave --checkpoint last out.")


@dataclass
class RunResult:
    """What a run gave.

    Args:
        seed (`int`): of the run.
        figures (`dict`): evaluation set -> name -> figure, `loss` among them.
        steps (`int`), epochs (`float`): how long it trained.
        best_step (`int`, *optional*): updates after which the kept weights were reached, where they were chosen.
        seconds (`float`): of the training loop, evaluations in it counted.
        tokens_per_second (`float`): real tokens trained on, padding not counted.
        training_loss (`float`): mean over the run, in nats an item, or squared error.
        model, predictions: the trained model; evaluation set -> what the model put out for it.
        only_class (`dict`): evaluation set -> the class that all of its items were predicted to be, where they were
            (see `only_class`).
        optimization (`dict`): optimizer, schedule and precision, in words (`optimization_facts`).
        training (`dict`): fields of `TrainingArguments`, the settings' and the defaults that were chosen.
    """

    seed: int
    figures: dict[str, dict[str, float]]
    steps: int
    epochs: float
    best_step: int | None
    seconds: float
    tokens_per_second: float
    training_loss: float
    model: PreTrainedModel = field(repr=False)
    predictions: dict[str, Any] = field(repr=False)
    only_class: dict[str, str] = field(default_factory=dict)
    optimization: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict, repr=False)


def finetune(
    task: PreparedTask, tokenizer: PreTrainedTokenizerBase, settings: RunSettings, seed: int, folder: str | Path
) -> RunResult:
    """Train with one seed and evaluate on every evaluation set.

    Args:
        task: prepared data, see `task.py`.
        tokenizer: of the encoder.
        settings: what the run is made of.
        seed (`int`): draws the head's first weights, the order of rows and dropout.
        folder: for checkpoints, which are removed in the end.

    Raises:
        ValueError: for `patience` without a validation set, and for a model whose scores are no numbers.
    """
    if settings.patience is not None and "validation" not in task.eval_sets:
        raise ValueError("--patience needs a validation set: give --validation, or --held-out SHARE.")
    set_seed(seed)
    config = load_config(settings.model, settings.classes)
    settings = with_defaults(settings, config, task)
    model = load_model(settings.model, task.auto_class, config, task.config_fields, settings.from_scratch)
    trainer = make_trainer(model, task, tokenizer, settings, seed, Path(folder) / "checkpoints")
    _, told = set_threads(trainer, lambda: work_of_rows(trainer), recorded=chosen_before())
    if told:
        print(f"  {told}", flush=True)
    outcome = trainer.train()
    figures, predictions, only = {}, {}, {}
    for name, rows in task.eval_sets.items():
        trainer.compute_metrics = task.compute_metrics(name)
        output = trainer.predict(rows, metric_key_prefix=name)
        check_scores(output.predictions, f"seed {seed}, {name}")
        found = {key.removeprefix(f"{name}_"): value for key, value in output.metrics.items()}
        figures[name] = {key: value for key, value in found.items() if key not in NOT_A_FIGURE}
        predictions[name] = output.predictions
        if (one := only_class(output.predictions, output.label_ids)) is not None:
            only[name] = task.label_names[one] if task.label_names else str(one)
    shutil.rmtree(Path(folder) / "checkpoints", ignore_errors=True)
    seconds = outcome.metrics["train_runtime"]
    return RunResult(
        seed=seed,
        figures=figures,
        steps=trainer.state.global_step,
        epochs=round(trainer.state.epoch, 2),
        best_step=trainer.state.best_global_step if trainer.args.load_best_model_at_end else None,
        seconds=seconds,
        tokens_per_second=trainer.state.num_input_tokens_seen / seconds,
        training_loss=outcome.training_loss,
        only_class=only,
        optimization=optimization_facts(trainer),
        model=model,
        predictions=predictions,
        training=settings.training,
    )


def with_defaults(settings: RunSettings, config: PreTrainedConfig, task: PreparedTask) -> RunSettings:
    """The settings with all of `training_options.defaults` that they leave open."""
    given = {name: value for name, value in settings.training.items() if value is not None}
    return replace(settings, training={**defaults(config, len(task.train_set), given), **given})


def num_steps(training: dict[str, Any], examples: int) -> int:
    """Optimizer steps of a run in one process, from the fields that `with_defaults` completed."""
    if training["max_steps"] > 0:
        return training["max_steps"]
    return math.ceil(steps_per_epoch(training, examples) * training["num_train_epochs"])


def check_scores(predictions: Any, where: str) -> None:
    """Refuse a model that diverged: the greatest of scores that are no numbers is a class like any other.

    Raises:
        ValueError: for NaN among the scores.
    """
    for scores in predictions if isinstance(predictions, tuple) else (predictions,):
        if np.isnan(scores).any():
            raise ValueError(
                f"{where}: the model's scores are NaN, its training diverged: lower --learning-rate, or lengthen "
                "--warmup."
            )


def only_class(scores: Any, labels: Any) -> int | None:
    """The class that has the highest score of all items, if it is the same one and the items are not all of one class.

    Args:
        scores (`np.ndarray` of shape `(..., C)`): of the classes. A tuple, of several outputs, has no classes.
        labels (`np.ndarray` of shape `(...)`): class numbers, -100 for what is no item. Numbers that are not whole are
            no classes.

    >>> only_class(np.array([[0.1, 0.9], [0.2, 0.3]]), np.array([0, 1])), only_class(np.eye(2), np.array([0, 1]))
    (1, None)
    """
    if isinstance(scores, tuple) or not np.issubdtype(np.asarray(labels).dtype, np.integer):
        return None
    is_item = np.asarray(labels) != IGNORED
    predicted = np.unique(np.asarray(scores).argmax(axis=-1)[is_item])
    return int(predicted[0]) if len(predicted) == 1 and len(np.unique(labels[is_item])) > 1 else None


def make_trainer(
    model: PreTrainedModel,
    task: PreparedTask,
    tokenizer: PreTrainedTokenizerBase,
    settings: RunSettings,
    seed: int,
    checkpoints: Path,
) -> Trainer:
    """The stock `Trainer` with the task's parts, a compact progress bar and, if asked for, early stopping."""
    validation = task.eval_sets.get("validation")
    trainer = Trainer(
        model=model,
        args=training_arguments(task, settings, seed, checkpoints),
        train_dataset=task.train_set,
        eval_dataset=validation,
        data_collator=task.data_collator,
        processing_class=tokenizer,
        compute_metrics=None if validation is None else task.compute_metrics("validation"),
        compute_loss_func=None if settings.class_weights is None else class_weighted_loss(settings.class_weights),
    )
    if not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        progress = CompactProgressCallback()
        progress.SHOWN = (task.main_metric,)
        trainer.add_callback(progress)
    if settings.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(settings.patience))
    return trainer


def training_arguments(task: PreparedTask, settings: RunSettings, seed: int, checkpoints: Path) -> TrainingArguments:
    """`settings.training`, which has all of the defaults, and what follows from the task and its sets.

    Raises:
        ValueError: for what transformers refuses, and float16 on a CPU.
    """
    fields = {
        "disable_tqdm": False,
        "report_to": "none",
        "optim": "adamw_torch_fused",
        "use_cpu": not torch.accelerator.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        "include_num_input_tokens_seen": "non_padding",
        **settings.training,
    }
    fields.setdefault("eval_strategy", "epoch")
    if "validation" not in task.eval_sets:
        fields["eval_strategy"] = "no"
    chooses = settings.checkpoint == "best" and fields["eval_strategy"] != "no"
    if chooses:
        fields |= {"save_steps": fields.get("eval_steps", 500), "save_total_limit": 1, "save_only_model": True}
    try:
        arguments = TrainingArguments(
            output_dir=str(checkpoints),
            seed=seed,
            save_strategy=fields["eval_strategy"] if chooses else "no",
            load_best_model_at_end=chooses,
            metric_for_best_model=task.main_metric if chooses else None,
            greater_is_better=True if chooses else None,
            **fields,
        )
    except ValueError as error:
        raise ValueError(f"TrainingArguments: {' '.join(str(error).split())}") from error
    check_precision(arguments)
    return arguments
