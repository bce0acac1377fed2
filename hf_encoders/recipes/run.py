"""From a recipe and a corpus to a trainer that is ready to go."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset, Subset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProgressCallback, TrainingArguments

from hf_encoders.data.collators import DataCollatorForMaskedLM
from hf_encoders.data.corpus import unigram_cross_entropy
from hf_encoders.data.vocabulary.padded_size import padded_vocab_size
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.table import (
    collator_for,
    config_class_of,
    config_of_fields,
    examples_for,
    pretraining_model,
    tokenizer_fields,
)
from hf_encoders.recipes.phases import PhaseExamples, RunExamples, check_division
from hf_encoders.recipes.recipe import Recipe
from hf_encoders.training.callbacks import CompactProgressCallback
from hf_encoders.training.faults.checkpoints import UNFINISHED, problem_of_unfinished, steps_first
from hf_encoders.training.health.callback import HealthCallback
from hf_encoders.training.hyperparameters import check_training_arguments
from hf_encoders.training.optimizers import optim_field, optimizer_class
from hf_encoders.training.trainer import PreTrainingTrainer


# What a device takes at once where nobody says otherwise: fills a GPU, and is held by a laptop.
MICRO_BATCH_TOKENS = 16384
# A checkpoint at least so often: about 20 minutes of 8 GPUs, or 3 hours of one, with a model of base size.
SAVE_TOKENS = 10**9
FEWEST_SAVE_STEPS = 50  # between two checkpoints and evaluations, where nobody says otherwise
EVAL_EXAMPLES = 2000  # most examples of an evaluation; spread evenly over the documents kept apart


@dataclass(frozen=True)
class Division:
    """How the examples of a step are divided.

    Args:
        processes (`int`): of the launch.
        accumulation (`int`): micro-batches of a process in a step.
        examples (`int`): most examples in a micro-batch of the longest phase.
    """

    processes: int
    accumulation: int
    examples: int

    @property
    def micro_batches(self) -> int:
        """Micro-batches in a step, over all processes."""
        return self.processes * self.accumulation


def divide(recipe: Recipe, processes: int, examples: int | None = None, accumulation: int | None = None) -> Division:
    """Divide the steps of a recipe into micro-batches, as few as go.

    Args:
        recipe (`Recipe`): says how many examples a step has.
        processes (`int`): of the launch, a device each.
        examples (`int`, *optional*): most examples of the longest phase that a device takes at once. `None` takes
            16,384 tokens' worth, or more where a phase has too few examples a step to be divided that often.
        accumulation (`int`, *optional*): micro-batches a step, instead. All phases have as many, for `Trainer` knows
            one number: those of a phase with fewer tokens a step are smaller.

    Raises:
        ValueError: if both are given, for numbers below 1, and for a phase that has fewer examples a step than there
            would be micro-batches.

    >>> from hf_encoders.recipes.recipe import load_recipe
    >>> divide(load_recipe("bert-base"), processes=8)  # 256 examples, 32 a device, of 512 tokens in the second phase
    Division(processes=8, accumulation=1, examples=32)
    >>> divide(load_recipe("bert-base"), processes=2, examples=16).accumulation
    8
    """
    for name, value in (("per_device_train_batch_size", examples), ("gradient_accumulation_steps", accumulation)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")
    if examples is not None and accumulation is not None:
        raise ValueError(
            f"per_device_train_batch_size={examples} and gradient_accumulation_steps={accumulation}: the recipe says "
            "how many examples a step has, so one of them follows from the other: give one."
        )
    largest = max(phase.length * phase.examples for phase in recipe.phases)
    if accumulation is None:
        tokens = MICRO_BATCH_TOKENS if examples is None else examples * recipe.longest
        accumulation = math.ceil(largest / (processes * tokens))
        if examples is None:
            # A phase of few examples limits how often a step can be divided.
            fewest = min(phase.examples for phase in recipe.phases) // processes
            accumulation = max(1, min(accumulation, fewest))
    check_division(recipe.phases, processes * accumulation)
    return Division(processes, accumulation, math.ceil(largest / recipe.longest / (processes * accumulation)))


def model_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> EncoderConfig:
    """The recipe's model for a tokenizer; the embedding table has a multiple of 64 rows.

    Raises:
        ValueError: for fewer rows than the tokenizer or the longest examples need, where the recipe names a number.
    """
    config_class = config_class_of(recipe.family)
    least = {
        "vocab_size": padded_vocab_size(tokenizer, 1),
        "max_position_embeddings": config_class.position_rows(recipe.longest, tokenizer.pad_token_id),
    }
    for name, rows in least.items():
        if recipe.model.get(name, rows) < rows:
            raise ValueError(f"model: {name}={recipe.model[name]} must be at least {rows} here: leave it out.")
    fields = {
        "vocab_size": padded_vocab_size(tokenizer),
        **tokenizer_fields(config_class, tokenizer, recipe.longest),
        **recipe.model,
    }
    return config_of_fields(config_class, fields)


def training_arguments(recipe: Recipe, division: Division, output: Path, given: dict[str, Any]) -> TrainingArguments:
    """What `Trainer` is told: the recipe's fields, the user's before them, and what makes item k micro-batch k.

    Raises:
        ValueError: for epochs as a strategy, and for what transformers, `check_training_arguments` or the optimizer
            refuses.
    """
    if "learning_rate" not in recipe.training and "learning_rate" not in given:
        raise ValueError("training: learning_rate is missing: there is none that suits all models and batches.")
    tokens_a_step = max(phase.length * phase.examples for phase in recipe.phases)
    save_steps = max(1, min(max(recipe.steps // 10, FEWEST_SAVE_STEPS), SAVE_TOKENS // tokens_a_step))
    fields = {
        "logging_steps": max(1, min(500, recipe.steps // 100)),
        "save_steps": save_steps,
        "save_total_limit": 3,
        "eval_strategy": "steps",
        "eval_steps": save_steps,
        "per_device_eval_batch_size": division.examples,
        "report_to": "none",
        "dataloader_pin_memory": torch.cuda.is_available(),
        "use_cpu": not torch.accelerator.is_available(),
        "disable_tqdm": False,
        "ddp_find_unused_parameters": False,
        **recipe.training,
        "warmup_steps": recipe.warmup_steps,
        **given,
    }
    try:
        arguments = TrainingArguments(
            **fields,
            output_dir=str(output),
            max_steps=recipe.steps,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=division.accumulation,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            optim=optim_field(recipe.optimizer),
        )
    except ValueError as error:
        raise ValueError(f"TrainingArguments: {' '.join(str(error).split())}") from error
    for name in ("save_strategy", "eval_strategy", "logging_strategy"):
        if getattr(arguments, name) == "epoch":
            raise ValueError(f"{name}=epoch: the run is one pass over its steps: use steps, and a number of them.")
    check_training_arguments(arguments, arguments.max_steps)
    optimizer_class(recipe.optimizer, arguments)  # refuses what does not go together before there is text
    return arguments


def run_examples(recipe: Recipe, documents: datasets.Dataset, division: Division, seed: int) -> RunExamples:
    """The micro-batches of the run; phases of one length share their data set."""
    by_length = {
        length: examples_for(recipe.objective, documents, length, **{"seed": seed, **recipe.examples})
        for length in {phase.length for phase in recipe.phases}
    }
    phases = [PhaseExamples(phase, by_length[phase.length]) for phase in recipe.phases]
    return RunExamples(phases, division.micro_batches, recipe.mask_rate)


def held_out_examples(recipe: Recipe, documents: datasets.Dataset, seed: int) -> Dataset:
    """Examples to evaluate on, of the longest phase's length: always the same, made without the papers' artefacts."""
    examples = examples_for(recipe.objective, documents, recipe.longest, seed=seed, redraw=False)
    spread = np.linspace(0, len(examples) - 1, min(len(examples), EVAL_EXAMPLES)).astype(int)
    return Subset(examples, spread.tolist())


def run_collator(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> DataCollatorForMaskedLM:
    """The data collator of the run; without a schedule's rate, in evaluation, it masks at the last one."""
    options = dict(recipe.masking)
    if recipe.mask_rate is not None:
        options["mask_probability"] = recipe.mask_rate(1.0)
    return collator_for(recipe.objective, tokenizer, config_class_of(recipe.family), packed=True, **options)


def make_trainer(
    recipe: Recipe,
    documents: datasets.Dataset,
    held_out: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: TrainingArguments,
    division: Division,
    model: PreTrainedModel | None = None,
) -> PreTrainingTrainer:
    """The trainer of a run.

    Args:
        recipe (`Recipe`): what to train.
        documents, held_out (`datasets.Dataset`): tokenised documents to train and to evaluate on.
        tokenizer: the one that they were tokenised with.
        arguments (`TrainingArguments`): from `training_arguments`.
        division (`Division`): from `divide`.
        model (`PreTrainedModel`, *optional*): what to go on from; `None` begins with fresh weights.
    """
    trainer = PreTrainingTrainer(
        model=pretraining_model(model_config(recipe, tokenizer), recipe.objective) if model is None else model,
        args=arguments,
        train_dataset=run_examples(recipe, documents, division, arguments.seed),
        eval_dataset=held_out_examples(recipe, held_out, arguments.seed),
        data_collator=run_collator(recipe, tokenizer),
        processing_class=tokenizer,
        health=HealthCallback(unigram_cross_entropy(documents, held_out, len(tokenizer))),
        optimizer_cls_and_kwargs=optimizer_class(recipe.optimizer, arguments),
    )
    if not arguments.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(CompactProgressCallback)
    return trainer


def train_to_the_end(trainer: PreTrainingTrainer, how_to_resume: str) -> dict[str, float]:
    """Train, from the newest whole checkpoint of the run where there is one.

    Args:
        trainer (`PreTrainingTrainer`): of the run.
        how_to_resume (`str`): what the user is told to do to go on, after "To go on, ".

    Returns:
        The figures of the evaluation after the last step.
    """
    trainer.interruption.how_to_resume = how_to_resume
    output = Path(trainer.args.output_dir)
    # A complete one may have been about to get its name when the run was killed.
    complete = [one for one in steps_first(output / UNFINISHED) if problem_of_unfinished(one) is None]
    has_checkpoints = bool(complete or steps_first(output))
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint or has_checkpoints)
    if not trainer.args.load_best_model_at_end:
        for entry in reversed(trainer.state.log_history):
            if entry["step"] == trainer.state.global_step and "eval_loss" in entry:
                return {name: value for name, value in entry.items() if name.startswith("eval_")}
    return trainer.evaluate()


def num_processes() -> int:
    """Processes of the launch (`torchrun` and `accelerate launch` set `WORLD_SIZE`)."""
    return int(os.environ.get("WORLD_SIZE", "1"))
