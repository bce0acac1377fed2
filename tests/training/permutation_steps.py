"""Three steps of permutation language modelling, however the examples of a step are split."""

from pathlib import Path

import torch
from transformers import set_seed

from hf_encoders import (
    DataCollatorForPermutationLM,
    HfeXLNetConfig,
    HfeXLNetLMHeadModel,
    PreTrainingTrainer,
    ReusedChunks,
)
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents
from tests.families import fields_of
from tests.training.three_steps import TWO_PROCESSES, Split, write_and_end
from tests.training.tiny import NO_DROPOUT, make_tokenizer, training_arguments


LENGTH = 24
STEPS = 3
SIZES = {**TINY_MODEL, **NO_DROPOUT, "pad_token_id": 0, "initializer_range": 0.2}


def make_examples(redraw: bool = True) -> ReusedChunks:
    """Of 6 to 24 tokens; half of them, at most, are the text before a pair."""
    return ReusedChunks(make_dataset(random_documents(30, 0, (2, 8))), LENGTH, reuse=True, redraw=redraw)


def train(split: Split, folder: Path) -> dict:
    """Losses, evaluations before and after, and parameters."""
    set_seed(0)
    trainer = PreTrainingTrainer(
        model=HfeXLNetLMHeadModel(HfeXLNetConfig(**fields_of(HfeXLNetConfig, SIZES))),
        args=training_arguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=split.per_device,
            per_device_eval_batch_size=7,
            gradient_accumulation_steps=split.accumulation,
            learning_rate=0.5,
            lr_scheduler_type="constant",
            optim="sgd",
            logging_steps=1,
            save_strategy="no",
        ),
        train_dataset=make_examples(),
        # In batches of 7: two processes fill their last round up with examples that they have seen.
        eval_dataset=make_examples(redraw=False),
        data_collator=DataCollatorForPermutationLM(make_tokenizer(), packed=split.packed),
    )
    evaluations = [trainer.evaluate()]
    trainer.train()
    evaluations.append(trainer.evaluate())
    names = ("loss", "plm_loss", "plm_accuracy", "grad_norm")
    logs = [{name: log[name] for name in names} for log in trainer.state.log_history if "grad_norm" in log]
    names = ("loss", "plm_loss", "plm_accuracy", "perplexity")
    logs += [{name: metrics[f"eval_{name}"] for name in names} for metrics in evaluations]
    return {"logs": logs, "parameters": {n: p.detach().clone() for n, p in trainer.model.named_parameters()}}


def train_in_each_split(folder: Path) -> None:
    """All splits of two processes, in one of them."""
    torch.set_num_threads(1)
    found = {name: train(split, folder / "run") for name, split in TWO_PROCESSES.items()}
    write_and_end(found, folder)
