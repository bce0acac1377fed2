"""Which examples a process trains on, and what its collator makes of them."""

from pathlib import Path

import datasets
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
KINDS = ("padded", "packed")


class Recording:
    """A collator that keeps key, inputs and labels of every example, in the order in which they come."""

    def __init__(self, collator):
        self.collator = collator
        self.found: list[tuple[tuple[int, int, int], dict[str, list[int]]]] = []

    def __call__(self, features):
        batch = self.collator(features)
        for i, key in enumerate(tuple(example.key) for example in features):
            if "cu_seq_lens_q" in batch:
                begin, end = batch["cu_seq_lens_q"][i : i + 2].tolist()
                place = (0, slice(begin, end))
            else:
                place = (i, batch["attention_mask"][i].bool())
            rows = {name: batch[name][place].tolist() for name in ("input_ids", "token_type_ids", "labels")}
            self.found.append((key, {**rows, "pair": batch["next_sentence_label"][i].item()}))
        return batch


def make_documents() -> list[list[list[int]]]:
    """26 documents of one chunk each."""
    return equal_documents(26)["input_ids"][:]


def make_collator(kind: str) -> DataCollatorForNextSentencePrediction:
    return DataCollatorForNextSentencePrediction(make_tokenizer(), LENGTH, packed=kind == "packed")


def make_data_set(**options) -> DocumentChunks:
    corpus = datasets.Dataset.from_dict({"input_ids": make_documents()})
    return DocumentChunks(corpus, LENGTH, short_sequence_probability=0.0, **options)


def make_trainer(kind: str, folder: str, **arguments) -> PreTrainingTrainer:
    torch.manual_seed(0)
    return PreTrainingTrainer(
        model=HfeBertForPreTraining(HfeBertConfig(**{**TINY_MODEL, "num_hidden_layers": 1})),
        args=training_arguments(
            folder, per_device_train_batch_size=BATCH, save_strategy="no", logging_strategy="no",
            **{"max_steps": STEPS, **arguments},
        ),
        train_dataset=make_data_set(),
        data_collator=Recording(make_collator(kind)),
        callbacks=[EpochCallback()],
    )  # fmt: skip


def refusal(folder: str) -> str:
    """Return what is said where packed outputs of several processes are to be gathered."""
    try:
        make_trainer("packed", folder).predict(make_data_set(redraw=False))
    except ValueError as error:
        return str(error)
    return ""


def train_on_each_kind(folder: Path) -> None:
    """Train on each kind of dataset and write what this process saw."""
    torch.set_num_threads(1)
    found = {}
    for kind in KINDS:
        trainer = make_trainer(kind, str(folder))
        trainer.train()
        found[kind] = trainer.data_collator.found
    found["refusal"] = refusal(str(folder))
    torch.save(found, folder / f"{trainer.args.process_index}.pt")
    processes.end_together()
