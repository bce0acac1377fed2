"""A pre-training run of 8 steps that saves every second one; the faults are injected into it, in processes of its own.

Every function here that takes `folder` first is run by `processes.start`.
"""

from collections.abc import Callable
from pathlib import Path

import datasets
import torch
from transformers import TrainerCallback, set_seed

from hf_encoders import (
    DataCollatorForNextSentencePrediction,
    DocumentChunks,
    HfeBertConfig,
    HfeBertForPreTraining,
    PreTrainingTrainer,
)
from tests.corpus.corpora import TINY_MODEL
from tests.training.killed_run import LENGTH, make_documents
from tests.training.tiny import make_tokenizer, training_arguments


STEPS = 8  # of 4 examples; an epoch has 6
STEPS_A_SAVE = 2


class AtStep(TrainerCallback):
    """Does something when a step begins."""

    def __init__(self, step: int, action: Callable[[], None]):
        self.step, self.action = step, action

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            self.action()


class FaultyCollator:
    """A collator that does something at its n-th call in its process, from 1."""

    def __init__(self, collator, call: int, action: Callable[[], None]):
        self.collator, self.call, self.action, self.calls = collator, call, action, 0

    def __call__(self, features):
        self.calls += 1
        if self.calls == self.call:
            self.action()
        return self.collator(features)


def make_trainer(
    folder: Path, documents: datasets.Dataset | None = None, dropout: float = 0.1, **settings
) -> PreTrainingTrainer:
    torch.set_num_threads(1)
    set_seed(0)
    config = HfeBertConfig(**TINY_MODEL, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    documents = make_documents() if documents is None else documents
    arguments = {
        "max_steps": STEPS, "save_steps": STEPS_A_SAVE, "per_device_train_batch_size": 4, "learning_rate": 0.05,
        "logging_strategy": "no",
    }  # fmt: skip
    return PreTrainingTrainer(
        model=HfeBertForPreTraining(config),
        args=training_arguments(folder, **{**arguments, **settings}),
        train_dataset=DocumentChunks(documents, LENGTH, short_sequence_probability=0.0),
        data_collator=DataCollatorForNextSentencePrediction(make_tokenizer(), LENGTH),
    )


def train(folder: Path, resume=None, **settings) -> None:
    make_trainer(folder, **settings).train(resume_from_checkpoint=resume)
