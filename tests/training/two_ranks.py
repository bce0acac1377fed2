"""Which examples a process trains on, and what its collator makes of them."""

from pathlib import Path

import datasets
import torch
from transformers import Trainer

from hf_encoders import (
    DataCollatorForNextSentencePrediction,
    DocumentChunks,
    EpochCallback,
    HfeBertConfig,
    HfeBertForPreTraining,
    PreTrainingTrainer,
    TokenBudget,
)
from hf_encoders.objectives.streaming import StreamedChunks
from tests import processes
from tests.corpus.corpora import TINY_MODEL, equal_documents
from tests.training.tiny import make_tokenizer, training_arguments


LENGTH = 24
STEPS = 8
BATCH = 4
KINDS = ("stored", "streamed", "streamed under the stock Trainer", "groups")
EXAMPLE_TOKENS = 21  # of every example: three sentences of 6, and special tokens


class Recording:
    """A collator that keeps key, inputs and labels of every example, in the order in which they come."""

    def __init__(self, collator):
        self.collator = collator
        self.found: list[tuple[int, dict[str, list[int]]]] = []

    def __call__(self, features):
        batch = self.collator(features)
        keys = [key for feature in features for key in feature.keys.tolist()]
        for i, key in enumerate(keys):
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
    return DataCollatorForNextSentencePrediction(make_tokenizer(), LENGTH, packed=kind == "groups")


def make_data_set(kind: str, **options):
    options["short_sequence_probability"] = 0.0
    if kind in ("stored", "groups"):
        chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": make_documents()}), LENGTH, **options)
        return chunks if kind == "stored" else TokenBudget(chunks, make_collator(kind), BATCH * EXAMPLE_TOKENS)
    return StreamedChunks(make_documents(), None, LENGTH, window_documents=5, **options)


def make_trainer(kind: str, folder: str, **arguments) -> Trainer:
    torch.manual_seed(0)
    config = HfeBertConfig(**{**TINY_MODEL, "num_hidden_layers": 1})
    is_stock = kind == KINDS[2]
    if is_stock:
        arguments["accelerator_config"] = {"dispatch_batches": False}
    return (Trainer if is_stock else PreTrainingTrainer)(
        model=HfeBertForPreTraining(config),
        args=training_arguments(
            folder, per_device_train_batch_size=1 if kind == "groups" else BATCH, save_strategy="no",
            logging_strategy="no", **{"max_steps": STEPS, **arguments},
        ),
        train_dataset=make_data_set(kind),
        data_collator=Recording(make_collator(kind)),
        callbacks=[EpochCallback()],
    )  # fmt: skip


def refusals(folder: str) -> list[str]:
    """What cannot be done with a stream, with groups and with packed outputs in several processes."""
    found = []
    evaluated = make_trainer("streamed", folder)
    sent = make_trainer("streamed", folder, accelerator_config={"dispatch_batches": True})
    grouped = make_trainer("groups", folder)
    for refused in (
        lambda: evaluated.evaluate(make_data_set("streamed", redraw=False)),
        sent.train,
        lambda: grouped.evaluate(make_data_set("groups", redraw=False)),
        lambda: grouped.predict(make_data_set("stored", redraw=False)),
    ):
        try:
            refused()
        except ValueError as error:
            found.append(str(error))
    return found


def train_on_each_kind(folder: Path) -> None:
    """Train on each kind of dataset and write what this process saw."""
    torch.set_num_threads(1)
    found = {}
    for kind in KINDS:
        trainer = make_trainer(kind, str(folder))
        trainer.train()
        found[kind] = trainer.data_collator.found
    found["refusals"] = refusals(str(folder))
    torch.save(found, folder / f"{trainer.args.process_index}.pt")
    processes.end_together()
