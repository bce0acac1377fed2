"""A short pre-training run of 18 steps, 3 epochs, that may kill itself."""

import os
import signal
from pathlib import Path

import datasets
import torch
from transformers import TrainerCallback, set_seed

from hf_encoders import (
    DataCollatorForDialogueLM,
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForPermutationLM,
    Dialogues,
    DocumentChunks,
    HfeBertConfig,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeElectraConfig,
    HfeXLNetConfig,
    HfeXLNetLMHeadModel,
    MixedExamples,
    ParallelPairs,
    PreTrainingTrainer,
    ReusedChunks,
    SentenceBlocks,
)
from hf_encoders.objectives.rtd import DataCollatorForReplacedTokenDetection, ReplacedTokenDetectionModel
from tests.corpus.corpora import TINY_MODEL, equal_documents
from tests.families import fields_of
from tests.training.tiny import make_tokenizer, training_arguments


LENGTH = 24


class KillAt(TrainerCallback):
    """Kills the process at the end of a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Counting:
    """A collator that counts its calls."""

    def __init__(self, collator):
        self.collator = collator
        self.calls = 0

    def __call__(self, features):
        self.calls += 1
        return self.collator(features)


def make_documents() -> datasets.Dataset:
    """24 documents of one chunk each, and of 24 blocks of one document each."""
    return equal_documents(24)


def make_trainer(examples: str, workers: int, folder: str, **arguments) -> PreTrainingTrainer:
    """A trainer of NSP on chunks, of dialogues, of permutations, or of MLM."""
    set_seed(0)
    tokenizer = make_tokenizer()
    config = HfeBertConfig(**TINY_MODEL)
    documents, no_short = make_documents(), {"short_sequence_probability": 0.0}
    if examples == "blocks":
        model, collator = HfeBertForMaskedLM(config), DataCollatorForMaskedLM(tokenizer, unit="word")
        train_set = SentenceBlocks(documents, max_length=LENGTH, cross_documents=False)
    elif examples == "translations":  # mixed with blocks, 24 of both an epoch
        model = HfeBertForMaskedLM(config)
        collator = DataCollatorForMaskedLM(tokenizer, packed=True, first_position=0)
        pairs = ParallelPairs(equal_documents(17, sentences=2), LENGTH, ("en", "zh"))
        train_set = MixedExamples({"en": SentenceBlocks(documents, LENGTH), "en-zh": pairs}, examples_per_epoch=24)
    elif examples == "replaced tokens":
        sizes = {**TINY_MODEL, "embedding_size": 8, "generator_size": 0.5}
        model = ReplacedTokenDetectionModel(HfeElectraConfig(**sizes))
        collator = DataCollatorForReplacedTokenDetection(tokenizer)
        train_set = SentenceBlocks(documents, max_length=LENGTH, cross_documents=False)
    elif examples == "dialogues":  # of three turns
        model, collator = HfeBertForPreTraining(config), DataCollatorForDialogueLM(tokenizer)
        train_set = Dialogues(documents, max_length=LENGTH)
    elif examples == "permutations":
        model = HfeXLNetLMHeadModel(HfeXLNetConfig(**fields_of(HfeXLNetConfig, TINY_MODEL)))
        collator = DataCollatorForPermutationLM(tokenizer, packed=True)
        train_set = ReusedChunks(documents, LENGTH, **no_short)
    else:
        collator = DataCollatorForNextSentencePrediction(tokenizer, LENGTH)
        model = HfeBertForPreTraining(config)
        train_set = DocumentChunks(documents, LENGTH, **no_short)
    return PreTrainingTrainer(
        model=model,
        args=training_arguments(
            folder, max_steps=18, per_device_train_batch_size=4, learning_rate=0.05, save_steps=5,
            dataloader_num_workers=workers, logging_steps=4,
        ),
        train_dataset=train_set,
        data_collator=Counting(collator),
        **arguments,
    )  # fmt: skip


def train(folder: Path, examples: str, workers: int, kill_at: int) -> None:
    """Train until the process kills itself at the end of a step."""
    torch.set_num_threads(1)
    make_trainer(examples, workers, str(folder), callbacks=[KillAt(kill_at)]).train()
