"""Three steps on blocks of two languages mixed with their parallel text, however the examples of a step are split."""

from pathlib import Path

import torch
from transformers import set_seed

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeRobertaConfig,
    HfeRobertaForMaskedLM,
    MixedExamples,
    ParallelPairs,
    PreTrainingTrainer,
    SentenceBlocks,
)
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents
from tests.training.three_steps import TWO_PROCESSES, Split, write_and_end
from tests.training.tiny import NO_DROPOUT, make_tokenizer, training_arguments


LENGTH = 24
STEPS, EXAMPLES = 3, 16  # of a step
SIZES = {**TINY_MODEL, **NO_DROPOUT, "pad_token_id": 0, "initializer_range": 0.2}


def make_examples() -> MixedExamples:
    """Blocks of two languages, of up to 24 tokens, and pairs of 6 to 20."""
    blocks = {
        name: SentenceBlocks(make_dataset(random_documents(30, seed)), LENGTH)
        for seed, name in enumerate(("en", "zh"))
    }
    pairs = ParallelPairs(make_dataset(random_documents(40, 2, (2, 3), (1, 9))), LENGTH, ("en", "zh"))
    return MixedExamples(
        {**blocks, "en-zh": pairs}, weights={"en": 1, "zh": 1, "en-zh": 2}, examples_per_epoch=STEPS * EXAMPLES
    )


def make_trainer(split: Split, folder: Path, **arguments) -> PreTrainingTrainer:
    set_seed(0)
    model = HfeRobertaForMaskedLM(HfeRobertaConfig(**SIZES))
    return PreTrainingTrainer(
        model=model,
        args=training_arguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=split.per_device,
            gradient_accumulation_steps=split.accumulation,
            learning_rate=0.5,
            lr_scheduler_type="constant",
            optim="sgd",
            logging_steps=1,
            save_strategy="no",
        ),
        train_dataset=make_examples(),
        data_collator=DataCollatorForMaskedLM(
            make_tokenizer(), packed=split.packed, first_position=model.roberta.embeddings.first_position
        ),
        **arguments,
    )


def train(split: Split, folder: Path) -> dict:
    """Losses and parameters."""
    trainer = make_trainer(split, folder)
    trainer.train()
    names = ("loss", "mlm_loss", "mlm_accuracy", "grad_norm")
    logs = [{name: log[name] for name in names} for log in trainer.state.log_history[:STEPS]]
    return {"logs": logs, "parameters": {n: p.detach().clone() for n, p in trainer.model.named_parameters()}}


def train_in_each_split(folder: Path) -> None:
    """All splits of two processes, in one of them."""
    torch.set_num_threads(1)
    found = {name: train(split, folder / "run") for name, split in TWO_PROCESSES.items()}
    write_and_end(found, folder)
