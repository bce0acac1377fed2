"""Which examples a process trains on, and what its collator makes of them."""

from pathlib import Path

import torch

from hf_encoders import (
    DataCollatorForNextSentencePrediction,
    DocumentChunks,
    EpochCallback,
    HfeBertConfig,
    HfeBertForPreTraining,
    PreTrainingTrainer,
)
from tests import processes
from tests.corpus.corpora import TINY_MODEL, equal_documents
from tests.training.tiny import make_tokenizer, training_arguments


LENGTH = 24
STEPS = 8
BATCH = 4


class Recording:
    """A collator that keeps key, inputs and labels of every example, in the order in which they come."""

    def __init__(self, collator):
        self.collator = collator
        self.seen: list[tuple[tuple[int, int, int], dict[str, list[int]]]] = []

    def __call__(self, features):
        batch = self.collator(features)
        bounds = batch["cu_seq_lens_q"].tolist()
        for i, example in enumerate(features):
            begin, end = bounds[i : i + 2]
            row = {name: batch[name][0, begin:end].tolist() for name in ("input_ids", "token_type_ids", "labels")}
            self.seen.append((tuple(example.key), {**row, "pair": batch["next_sentence_label"][i].item()}))
        return batch


def make_data_set(**options) -> DocumentChunks:
    """26 documents of one chunk each."""
    return DocumentChunks(equal_documents(26), LENGTH, short_sequence_probability=0.0, **options)


def make_trainer(folder: str, **arguments) -> PreTrainingTrainer:
    torch.manual_seed(0)
    return PreTrainingTrainer(
        model=HfeBertForPreTraining(HfeBertConfig(**{**TINY_MODEL, "num_hidden_layers": 1})),
        args=training_arguments(
            folder, per_device_train_batch_size=BATCH, save_strategy="no", logging_strategy="no",
            **{"max_steps": STEPS, **arguments},
        ),
        train_dataset=make_data_set(),
        data_collator=Recording(DataCollatorForNextSentencePrediction(make_tokenizer(), LENGTH, packed=True)),
        callbacks=[EpochCallback()],
    )  # fmt: skip


def refusal(folder: str) -> str:
    """Return the message where packed outputs of several processes are to be gathered."""
    try:
        make_trainer(folder).predict(make_data_set(redraw=False))
    except ValueError as error:
        return str(error)
    return ""


def train(folder: Path) -> None:
    """Train and write what this process saw."""
    torch.set_num_threads(1)
    trainer = make_trainer(str(folder))
    trainer.train()
    seen = {"examples": trainer.data_collator.seen, "refusal": refusal(str(folder))}
    torch.save(seen, folder / f"{trainer.args.process_index}.pt")
    processes.end_together()
