"""A pre-training run of 8 steps that saves every second one, and what is asked of its folder after a fault.

It computes on one thread, so that it is the same bit for bit in this process and in one that `tests.processes` starts.
"""

from collections.abc import Callable
from pathlib import Path

import datasets
import torch
from safetensors.numpy import load_file
from transformers import TrainerCallback, set_seed

from hf_encoders import (
    DataCollatorForNextSentencePrediction,
    DocumentChunks,
    HfeBertConfig,
    HfeBertForPreTraining,
    PreTrainingTrainer,
    newest_good_checkpoint,
)
from hf_encoders.training.checkpoints import FILE_LIST, checksum, problem_of_checkpoint
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


def contents(folder: Path) -> dict[str, str]:
    """Checksum of every file, without those that have the name of the output folder or seconds in them."""
    changing = (FILE_LIST, "trainer_state.json")
    return {path.name: checksum(path) for path in folder.rglob("*") if path.name not in changing}


def is_untouched(run: Path, untouched: Path, steps: list[int]) -> bool:
    """Whether these are all checkpoints of a run, and those of the run that nothing happened to, byte for byte."""
    names = [f"checkpoint-{step}" for step in steps]
    assert sorted(path.name for path in run.glob("checkpoint-*")) == names
    assert [problem_of_checkpoint(run / name) for name in names] == [None] * len(names)
    return all(contents(run / name) == contents(untouched / name) for name in names)


def newest(run: Path) -> tuple[str | None, list[str]]:
    """Name of the newest good checkpoint, and the lines about others."""
    lines = []
    checkpoint = newest_good_checkpoint(run, log=lines.append)
    return checkpoint and checkpoint.name, lines


def is_as_if_never_stopped(run: Path, untouched: Path) -> bool:
    """Whether weights and optimizer after the last step are those of the run that nothing happened to, bit for bit."""
    mine, expected = (load_file(folder / "checkpoint-8" / "model.safetensors") for folder in (run, untouched))
    assert mine.keys() == expected.keys() and not (run / "_unfinished").exists()
    optimizers = [checksum(folder / "checkpoint-8" / "optimizer.pt") for folder in (run, untouched)]
    return all((mine[name] == expected[name]).all() for name in mine) and optimizers[0] == optimizers[1]
