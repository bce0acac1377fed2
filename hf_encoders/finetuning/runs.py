"""One fine-tuning run: seed, model, the stock `Trainer`, the best checkpoint, metrics.

The loss is that of the model's head, or that of `class_weighted_loss`; both are divided by the number of items in the
whole batch, so that without dropout a batch of 8 rows and 4 accumulated batches of 2 train the same model. Padding is
not computed, so rows are not grouped by length.
"""

import math
import shutil
from collections.abc import Callable
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

from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.loading import load_config, load_weights
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.models.encoder_losses import normalised
from hf_encoders.objectives.batch import IGNORED
from hf_encoders.tokenizer_loading import set_inputs
from hf_encoders.training.callbacks import CompactProgressCallback
from hf_encoders.training.distributed import check_precision
from hf_encoders.training.muon import set_muon_groups
from hf_encoders.training.optimizers import (
    check_layer_decay,
    optim_field,
    optimization_facts,
    optimizer_class,
    set_layer_decay,
)


CHECKPOINTS = ("best", "last")
# Of the metrics' names in `Trainer`, which it leaves out where they begin so: no type of entities is called this.
PREFIX = "evaluated set"
# What `Trainer` adds to the metrics of an evaluation.
NOT_A_METRIC = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
# Batch size, epochs and learning rate are within the ranges of BERT, appendix A.3; 10 % of warm-up as there. Learning
# rate and epochs are those for the papers' width; `with_defaults` raises both for narrower encoders.
BASE_WIDTH = 768
BASE_RATE = 5e-5
BASE_EPOCHS = 3.0
HIGHEST_RATE = 1e-3
LEAST_STEPS = 500
MOST_EPOCHS = 50
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "max_steps": -1,
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "gradient_accumulation_steps": 1,
    "optim": "adamw",
    "bf16": False,
    "fp16": False,
}


@dataclass(frozen=True)
class RunSettings:
    """Settings that the runs of all seeds share."""

    model: str  # folder or Hub name of the encoder
    classes: str = "hf_encoders"  # or `transformers`, for its own model classes
    from_scratch: bool = False  # initialise all weights randomly instead of loading them, as a baseline
    new_head: bool = False  # initialise the head randomly even if the checkpoint has one
    class_weights: list[float] | None = None  # a weight for each class, see `read_class_weights`
    # `best` keeps the weights with the best `main_metric` on `validation` over all evaluations, `last` those after the
    # last step, as does `best` without a validation set.
    checkpoint: str = "best"
    patience: int | None = None  # stop after this many evaluations without improvement
    layer_decay: float = 1.0  # each layer's learning rate as a share of that of the layer above
    # Fields of `TrainingArguments`, and `optim` any name in `training.optimizers.OPTIMIZERS`; the others are those of
    # `with_defaults`.
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate."""
        if self.checkpoint not in CHECKPOINTS:
            raise ValueError(f"--checkpoint {self.checkpoint!r} must be one of {', '.join(CHECKPOINTS)}.")
        check_layer_decay(self.layer_decay, "--layer-decay")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"--patience {self.patience}: must be at least 1 evaluation.")
        if self.patience is not None and self.checkpoint == "last":
            raise ValueError("--patience stops at the best checkpoint: leave --checkpoint last out.")


@dataclass
class RunResult:
    """The outcome of a run."""

    seed: int
    metrics: dict[str, dict[str, float]]  # evaluation set -> name -> value, `loss` among them
    steps: int
    epochs: float
    best_step: int | None  # optimizer step of the weights that were kept, if they were chosen
    seconds: float  # training, including evaluations during training
    tokens_per_second: float  # training tokens without padding
    training_loss: float  # mean over the run, in nats per item, or squared error
    model: PreTrainedModel = field(repr=False)
    predictions: dict[str, Any] = field(repr=False)  # evaluation set -> the model's output for it
    only_class: dict[str, str] = field(default_factory=dict)  # evaluation set -> the class of all predictions, if one
    optimization: dict[str, Any] = field(default_factory=dict)  # optimizer, schedule, precision
    training: dict[str, Any] = field(default_factory=dict, repr=False)  # fields of `TrainingArguments`, also defaults


def finetune(
    task: PreparedTask, tokenizer: PreTrainedTokenizerBase, settings: RunSettings, seed: int, folder: str | Path
) -> RunResult:
    """Train with one seed and evaluate on every evaluation set.

    Args:
        task (`PreparedTask`), tokenizer (`PreTrainedTokenizerBase`), settings (`RunSettings`): Of the run. Afterwards
            the tokenizer returns token types if the model has them, as pipelines need.
        seed (`int`): Seed of the head's initial weights, the order of rows, and dropout.
        folder (`str` or `Path`): For logs, and for checkpoints, which are removed at the end.

    Raises:
        ValueError: For `patience` without a validation set, and for NaN among the model's scores.
    """
    if settings.patience is not None and "validation" not in task.eval_sets:
        raise ValueError("--patience needs a validation set: give --validation, or --held-out SHARE.")
    set_seed(seed)
    config = load_config(settings.model, settings.classes)
    if isinstance(config, EncoderConfig):
        set_inputs(tokenizer, config)
    settings = with_defaults(settings, config, len(task.train_set))
    model = load_model(
        settings.model, task.auto_class, config, task.config_fields, settings.from_scratch, settings.new_head
    )
    trainer = make_trainer(model, task, tokenizer, settings, seed, folder)
    outcome = trainer.train()
    metrics, predictions, only_classes = {}, {}, {}
    for name, rows in task.eval_sets.items():
        trainer.compute_metrics = task.compute_metrics(name)
        output = trainer.predict(rows, metric_key_prefix=PREFIX)
        scores = output.predictions if isinstance(output.predictions, tuple) else (output.predictions,)
        if any(np.isnan(of_tokens).any() for of_tokens in scores):  # their argmax would pass for a class
            raise ValueError(f"seed {seed}, {name}: the scores are NaN: training diverged: lower --learning-rate.")
        values = {key.removeprefix(f"{PREFIX}_"): value for key, value in output.metrics.items()}
        metrics[name] = {key: value for key, value in values.items() if key not in NOT_A_METRIC}
        predictions[name] = output.predictions
        class_id = only_class(output.predictions, output.label_ids)
        if class_id is not None:
            only_classes[name] = task.label_names[class_id] if task.label_names else str(class_id)
    for checkpoint in Path(folder).glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    seconds = outcome.metrics["train_runtime"]
    return RunResult(
        seed=seed,
        metrics=metrics,
        steps=trainer.state.global_step,
        epochs=round(trainer.state.epoch, 2),
        best_step=trainer.state.best_global_step if trainer.args.load_best_model_at_end else None,
        seconds=seconds,
        tokens_per_second=trainer.state.num_input_tokens_seen / seconds,
        training_loss=outcome.training_loss,
        only_class=only_classes,
        optimization=optimization_facts(trainer),
        model=model,
        predictions=predictions,
        training=settings.training,
    )


def load_model(
    name: str,
    auto_class: type,
    config: PreTrainedConfig,
    fields: dict[str, Any],
    from_scratch: bool = False,
    new_head: bool = False,
) -> PreTrainedModel:
    """Load the encoder with a new head, or with the checkpoint's of the same size, which is printed; in float32.

    A head that is kept has its classes in the order of `fields` if they have the same names.

    Args:
        name (`str`): Folder, or name on the Hub.
        auto_class (`type`): `transformers.AutoModelFor...`.
        config (`PreTrainedConfig`): From `load_config`; its class decides whose model classes are used.
        fields (`dict`): Of the head's configuration.
        from_scratch (`bool`, *optional*, defaults to `False`): Whether to initialise all weights randomly.
        new_head (`bool`, *optional*, defaults to `False`): Whether to initialise those of the head randomly.
    """
    # A checkpoint's config.json may ask for further outputs, which would be taken for predictions.
    no_outputs, classes = {"output_hidden_states": False, "output_attentions": False}, config.id2label
    config = type(config).from_dict({**config.to_dict(), **fields, **no_outputs, "model_type": config.model_type})
    if from_scratch:
        model = auto_class.from_config(config, dtype=torch.float32)
    else:
        model, missing, _ = load_weights(name, auto_class, config, new_head=new_head)
        prefix = f"{model.base_model_prefix}."
        # A masked language model is saved without the pooler, which is then new, like the head.
        if absent := [key for key in missing if key.startswith(prefix) and "pooler" not in key]:
            raise ValueError(f"--model {name!r} has no weights for {absent[0]}: give another, or --from-scratch.")
        heads = {key for key, _ in model.named_parameters() if not key.startswith(prefix)}
        if new_head:
            encoder = model.base_model
            model = auto_class.from_config(config, dtype=torch.float32)
            model.base_model.load_state_dict(encoder.state_dict())
        elif heads and not heads & set(missing):
            reuse_head(model, classes, config.id2label)
    if not isinstance(config, EncoderConfig):
        # transformers' heads accept Trainer's item count without dividing by it, so that accumulated micro-batches
        # would be summed instead of averaged.
        model.accepts_loss_kwargs = False
    return model


def reuse_head(model: PreTrainedModel, before: dict[int, str], after: dict[int, str]) -> None:
    """Print that a trained head is kept, and order its classes if both `id2label` have the same names."""
    trained_for, used_for = (", ".join(list(names.values())[:10]) for names in (before, after))
    same_names = sorted(before.values()) == sorted(after.values())
    remedy = "" if same_names else "; --new-head begins with a new one"
    print(f"  reusing the checkpoint's head (trained for {trained_for}) for {used_for}{remedy}", flush=True)
    if not same_names or before == after:
        return
    prefix = f"{model.base_model_prefix}."
    of_head = [module for name, module in model.named_modules() if not name.startswith(prefix)]
    scores = [module for module in of_head if isinstance(module, torch.nn.Linear)][-1]
    ids = {name: class_id for class_id, name in before.items()}
    with torch.no_grad():
        for weight in scores.parameters():
            weight.copy_(weight[[ids[after[class_id]] for class_id in range(len(after))]])


def rate_of_width(width: int, base: float = BASE_RATE) -> float:
    """Return the learning rate for an encoder's hidden size, from that for 768: narrower ones take a higher rate."""
    return min(HIGHEST_RATE, float(f"{base * max(1, BASE_WIDTH / width) ** 2:.1e}"))


def with_defaults(settings: RunSettings, config: PreTrainedConfig, examples: int) -> RunSettings:
    """Return the settings with every field of `TrainingArguments` that fine-tuning sets unless the user does.

    An encoder narrower than 768 often predicts the most frequent class only with the papers' 5e-5 and 3 epochs. For
    hidden size H below 768 the learning rate is 5e-5 x (768 / H)^2, at most 1e-3, and the epochs are enough for 500
    optimizer steps, from 3 to 50. docs/measurements.md has the measurements.

    Args:
        settings (`RunSettings`): Those that the user set; the batch size determines the steps per epoch.
        config (`PreTrainedConfig`): Of the encoder, with `hidden_size`.
        examples (`int`): Rows, or windows, of the training set.

    >>> from transformers import BertConfig
    >>> for width, examples in ((768, 1600), (256, 1600), (128, 100_000), (64, 40)):
    ...     training = with_defaults(RunSettings("encoder"), BertConfig(hidden_size=width), examples).training
    ...     print(width, training["learning_rate"], training["num_train_epochs"])
    768 5e-05 3.0
    256 0.00045 10.0
    128 0.001 3.0
    64 0.001 50.0
    """
    training = DEFAULTS | {name: value for name, value in settings.training.items() if value is not None}
    epochs = BASE_EPOCHS
    if config.hidden_size < BASE_WIDTH:
        needed = math.ceil(LEAST_STEPS / steps_per_epoch(training, examples))
        epochs = float(min(max(needed, BASE_EPOCHS), MOST_EPOCHS))
    rate = rate_of_width(config.hidden_size)
    return replace(settings, training={"learning_rate": rate, "num_train_epochs": epochs, **training})


def steps_per_epoch(training: dict[str, Any], examples: int) -> int:
    """Return the optimizer steps per epoch, in one process."""
    return math.ceil(examples / (training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]))


def num_steps(training: dict[str, Any], examples: int) -> int:
    """Return the optimizer steps of a run in one process; `training` is completed by `with_defaults`."""
    if training["max_steps"] > 0:
        return training["max_steps"]
    return math.ceil(steps_per_epoch(training, examples) * training["num_train_epochs"])


def only_class(scores: Any, labels: Any) -> int | None:
    """Return the class that is predicted for all items, if there is one and the items are of several classes.

    A tuple of scores, and labels that are not integers, have no classes.
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
    folder: str | Path,
) -> Trainer:
    """Make the stock `Trainer` with the task's parts, a compact progress bar and, optionally, early stopping."""
    validation = task.eval_sets.get("validation")
    arguments = training_arguments(task, settings, seed, folder)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=task.train_set,
        eval_dataset=validation,
        data_collator=task.data_collator,
        processing_class=tokenizer,
        compute_metrics=None if validation is None else task.compute_metrics("validation"),
        compute_loss_func=None if settings.class_weights is None else class_weighted_loss(settings.class_weights),
        optimizer_cls_and_kwargs=optimizer_class(settings.training["optim"], arguments),
    )
    set_muon_groups(trainer)
    set_layer_decay(trainer, settings.layer_decay)
    if not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        progress = CompactProgressCallback()
        progress.SHOWN = (task.main_metric,)
        trainer.add_callback(progress)
    if settings.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(settings.patience))
    return trainer


def training_arguments(task: PreparedTask, settings: RunSettings, seed: int, folder: str | Path) -> TrainingArguments:
    """Return `settings.training`, completed by `with_defaults`, with what follows from task and evaluation sets."""
    fields = {
        "disable_tqdm": False,
        "report_to": "none",
        "use_cpu": not torch.accelerator.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        "include_num_input_tokens_seen": "non_padding",
        **settings.training,
        "optim": optim_field(settings.training["optim"]),
    }
    fields.setdefault("eval_strategy", "epoch")
    if "validation" not in task.eval_sets:
        if "eval_steps" in settings.training:
            raise ValueError("--eval-steps needs a validation set: give --validation, or --held-out SHARE.")
        fields["eval_strategy"] = "no"
    chooses = settings.checkpoint == "best" and fields["eval_strategy"] != "no"
    if chooses:
        fields |= {"save_steps": fields.get("eval_steps", 500), "save_total_limit": 1, "save_only_model": True}
    try:
        arguments = TrainingArguments(
            output_dir=str(folder),
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
    if arguments.label_smoothing_factor:
        check_label_smoothing(arguments, task, settings)
    optimizer_class(settings.training["optim"], arguments)  # validates
    return arguments


def check_label_smoothing(arguments: TrainingArguments, task: PreparedTask, settings: RunSettings) -> None:
    """Refuse label smoothing where `Trainer` would leave it out, fail, or sum micro-batches instead of averaging."""
    option = f"--label-smoothing-factor {arguments.label_smoothing_factor:g}"
    is_of_classes = task.config_fields.get("problem_type") not in ("regression", "multi_label_classification")
    if "labels" not in task.train_set.column_names or not is_of_classes:
        raise ValueError(f"{option} is for tasks with one class per row or token: leave it out.")
    if settings.class_weights is not None or arguments.gradient_accumulation_steps > 1:
        raise ValueError(f"{option} does not go with --class-weights or --accumulation: leave one of the two out.")


def read_class_weights(words: list[str], task: PreparedTask) -> list[float] | None:
    """Return a weight for each class from `["balanced"]` or `label=weight` words; classes not named weigh 1."""
    if not words:
        return None
    if task.label_names is None or task.config_fields.get("problem_type") == "multi_label_classification":
        raise ValueError("--class-weights is for tasks with one class per row or token: leave it out.")
    if words == ["balanced"]:
        return balanced_weights(task.train_set["labels"], task.label_names)
    weights = dict.fromkeys(task.label_names, 1.0)
    for word in words:
        name, _, weight = word.rpartition("=")
        if name not in weights:
            raise ValueError(f"--class-weights {word!r}: there is no class {name!r}; use {', '.join(weights)}.")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise ValueError(f"--class-weights {word!r}: {weight!r} is not a number.") from None
        if not weights[name] >= 0:
            raise ValueError(f"--class-weights {word!r}: a weight must be at least 0.")
    return list(weights.values())


def balanced_weights(labels: Any, names: list[str]) -> list[float]:
    """Return scikit-learn's balanced weight of each class, from class ids of rows or lists of those of tokens."""
    items = np.concatenate([np.atleast_1d(np.asarray(row)) for row in labels])
    counts = np.bincount(items[items != IGNORED], minlength=len(names))
    if missing := [name for name, count in zip(names, counts, strict=True) if count == 0]:
        raise ValueError(f"--class-weights balanced: no training row has {', '.join(missing)}: use label=weight.")
    return (counts.sum() / (len(names) * counts)).tolist()


def class_weighted_loss(weights: list[float]) -> Callable[..., torch.Tensor]:
    r"""Return `Trainer`'s `compute_loss_func` for `sum_i w(y_i) * -log p(y_i) / number of labelled items`.

    The divisor counts the items of the whole batch, over accumulated micro-batches and processes, so the loss does not
    depend on how the batch is split. `torch.nn.CrossEntropyLoss` divides by `sum_i w(y_i)` instead, which a
    micro-batch cannot know of the others; with balanced weights both are equal on average.
    """

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None) -> torch.Tensor:
        logits = outputs["logits"].float().flatten(0, -2)
        labels = labels.to(logits.device).flatten()
        weight = torch.tensor(weights, dtype=logits.dtype, device=logits.device)
        total = torch.nn.functional.cross_entropy(logits, labels, weight, reduction="sum", ignore_index=IGNORED)
        return normalised(total, labels.ne(IGNORED).sum(), num_items_in_batch)

    return loss
