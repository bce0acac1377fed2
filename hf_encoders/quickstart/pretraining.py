"""The quickstart's pre-training: a small model, its trainer, what it is compared with, the record of the run."""

import argparse
import math
import shlex
import sys
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

from hf_encoders.data.corpus.sentence_store import SentenceStore
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.training_record import TrainingRecord, describe_hardware, describe_software
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
        include_num_input_tokens_seen="non_padding",
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


def unigram_cross_entropy(corpus: datasets.Dataset, held_out: datasets.Dataset, vocab_size: int) -> float:
    """Nats a held-out token under the training corpus's token frequencies (one added to each).

    What a model reaches that has learned which tokens are frequent and nothing else: the plateau that a healthy run
        leaves.
    """
    counts = np.bincount(SentenceStore(corpus).tokens, minlength=vocab_size) + 1.0
    tokens = SentenceStore(held_out).tokens
    return float(-np.log(counts / counts.sum())[tokens].mean())


def make_record(
    objective: str,
    statistics: Any,
    recipe: Recipe,
    trainer: PreTrainingTrainer,
    after: dict[str, float],
    seconds: float,
    unigram: float,
    arguments: argparse.Namespace,
) -> TrainingRecord:
    """The facts of the run."""
    masking = "15 % of the tokens, of those 80 % [MASK], 10 % random, 10 % kept; drawn anew every epoch"
    objectives = {"masked language modelling": masking}
    if objective == "nsp":
        objectives["next-sentence prediction"] = "half of the second segments from another document"
    if objective == "sop":
        objectives["sentence-order prediction"] = "half of the pairs swapped"
    evaluation = [
        {
            "task": "fill-mask",
            "dataset": "held-out documents of the corpus",
            "metric": "perplexity",
            "value": round(after["eval_perplexity"], 2),
            "baseline": f"unigram {math.exp(unigram):.1f}",
        },
        {
            "task": "fill-mask",
            "dataset": "held-out documents of the corpus",
            "metric": "accuracy",
            "value": round(after["eval_mlm_accuracy"], 4),
        },
    ]
    if "eval_pair_accuracy" in after:
        evaluation.append(
            {
                "task": "text-classification",
                "dataset": "held-out documents of the corpus",
                "metric": "accuracy",
                "value": round(after["eval_pair_accuracy"], 4),
                "baseline": "chance 0.5",
            }
        )
    losses = {
        f"{item}, held-out": round(after[f"eval_{objective}_loss"], 4)
        for objective, item in (("mlm", "masked tokens"), ("pair", "sentence pairs"))
        if f"eval_{objective}_loss" in after
    }
    name = "documentation of the Python installation" if not arguments.input else ", ".join(arguments.input)
    return TrainingRecord(
        objectives=objectives,
        corpus={
            "name": name,
            "documents": statistics.documents,
            "sentences": statistics.sentences,
            "tokens": statistics.tokens,
        },
        schedule={
            "optimizer steps": trainer.state.global_step,
            "examples a step": recipe.batch_size,
            "longest example (tokens)": recipe.max_length,
            "epochs": round(trainer.state.epoch, 2),
            "optimizer": "AdamW",
            "peak learning rate": recipe.learning_rate,
            "warm-up steps": trainer.args.warmup_steps,
            "schedule after warm-up": "linear to 0",
            "seed": arguments.seed,
        },
        losses=losses,
        hardware=describe_hardware(),
        software=describe_software(),
        seconds=seconds,
        tokens_per_second=trainer.state.num_input_tokens_seen / seconds,
        evaluation=evaluation,
        command=shlex.join(["hf-encoders", *sys.argv[1:]]),
        language=[arguments.language],
    )
