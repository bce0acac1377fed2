"""The quickstart's pre-training: a small model, its trainer, what it is compared with, the record of the run."""

import argparse
import math
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Subset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    TrainingArguments,
)

from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.pretraining_record import pretraining_record
from hf_encoders.publishing.training_record import TrainingRecord
from hf_encoders.quickstart.text import Recipe
from hf_encoders.training import CompactProgressCallback, PreTrainingTrainer
from hf_encoders.training.objectives import collator_for, config_of_size, examples_for


def small_config(
    config_class: type[EncoderConfig], tokenizer: PreTrainedTokenizerBase, recipe: Recipe
) -> EncoderConfig:
    """The recipe's size in the family's form, with the tokenizer's ids."""
    return config_of_size(
        config_class,
        recipe,
        tokenizer,
        recipe.max_length,
        vocab_size=len(tokenizer),
        # The papers' 0.02 is for widths of 768 and more; a narrow model starts faster from larger weights.
        initializer_range=recipe.initializer_range,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    objective: str,
    corpus: datasets.Dataset,
    held_out: datasets.Dataset,
    recipe: Recipe,
    output: Path,
    seed: int,
) -> PreTrainingTrainer:
    """The pre-training of one objective."""
    length = recipe.max_length
    train_set = examples_for(objective, corpus, length, seed=seed)
    eval_set = examples_for(objective, held_out, length, seed=seed, redraw=False)
    collator = collator_for(objective, tokenizer, type(model.config))
    arguments = TrainingArguments(
        output_dir=str(output / "checkpoints"),
        max_steps=recipe.max_steps,
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        warmup_steps=math.ceil(recipe.warmup_share * recipe.max_steps),
        weight_decay=0.01,
        adam_beta2=0.98,
        optim="adamw_torch_fused",
        logging_steps=max(1, recipe.max_steps // 50),
        eval_strategy="steps",
        eval_steps=max(1, recipe.max_steps // 5),
        save_strategy="no",
        report_to="none",
        seed=seed,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=False,  # the default follows the log level, which the quickstart lowers
    )
    spread = np.linspace(0, len(eval_set) - 1, min(len(eval_set), recipe.eval_examples)).astype(int)
    trainer = PreTrainingTrainer(
        model=model,
        args=arguments,
        train_dataset=train_set,
        eval_dataset=Subset(eval_set, spread.tolist()),
        data_collator=collator,
        processing_class=tokenizer,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(CompactProgressCallback)
    return trainer


def make_record(
    objective: str,
    statistics: Any,
    recipe: Recipe,
    trainer: PreTrainingTrainer,
    after: dict[str, float],
    unigram: float,
    arguments: argparse.Namespace,
) -> TrainingRecord:
    """The facts of the run."""
    name = "documentation of the Python installation" if not arguments.input else ", ".join(arguments.input)
    schedule = {
        "examples a step": recipe.batch_size,
        "longest example (tokens)": recipe.max_length,
        "epochs": round(trainer.state.epoch, 2),
        "draws": "anew every epoch",
    }
    return pretraining_record(trainer, objective, name, statistics, schedule, after, unigram, [arguments.language])
