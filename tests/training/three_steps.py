"""Three optimizer steps of 32 examples each, however they are split into micro-batches and over processes."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch._dynamo.utils import counters
from transformers import Trainer, set_seed

from hf_encoders import (
    HfeAlbertConfig,
    HfeAlbertForPreTraining,
    HfeBertConfig,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    PreTrainingTrainer,
)
from tests import processes
from tests.corpus.corpora import TINY_MODEL
from tests.training.tiny import NO_DROPOUT, training_arguments


SIZES = {
    **TINY_MODEL,
    **NO_DROPOUT,
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 36,
    "initializer_range": 0.2,
}


class Split(NamedTuple):
    """How the examples of a step are split."""

    per_device: int
    accumulation: int
    packed: bool = False
    evaluated_first: bool = False
    compiled: bool = False


SPLITS_OF_ONE_PROCESS = {
    "whole": Split(32, 1),
    "accumulated": Split(8, 4),
    "packed": Split(32, 1, packed=True),
    "accumulated, compiled": Split(8, 4, compiled=True),
}
SPLITS_OF_TWO_PROCESSES = {
    "two processes": Split(16, 1),
    "two processes, accumulated": Split(4, 4),
    "two processes, evaluated before training": Split(16, 1, evaluated_first=True),
    "two processes, accumulated and packed": Split(4, 4, packed=True),
    "two processes, compiled": Split(16, 1, compiled=True),
}
# Of 16 examples, which others divide likewise.
ONE_PROCESS = {"whole": Split(16, 1), "accumulated": Split(4, 4), "packed": Split(16, 1, packed=True)}
TWO_PROCESSES = {"two processes": Split(8, 1), "two processes, accumulated and packed": Split(2, 4, packed=True)}
PAIR_LABELS = {"mlm": None, "nsp": "next_sentence_label", "sop": "sentence_order_label"}


def make_examples(pair_label: str | None) -> list[dict]:
    """96 examples of 5 to 24 tokens with 1 to 12 predictions; some without a pair label."""
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    examples = []
    for _ in range(96):
        length = draw(5, 24)
        ids = torch.randint(5, 61, (length,), generator=generator)
        labels = torch.full((length,), -100)
        places = torch.randperm(length, generator=generator)[: draw(1, min(12, length))]
        labels[places] = ids[places]
        example = {"input_ids": ids, "labels": labels}
        if pair_label:
            example[pair_label] = draw(0, 1) if draw(0, 4) else -100
        examples.append(example)
    return examples


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    """Pad to the longest."""
    pad = torch.nn.utils.rnn.pad_sequence
    batch = {
        "input_ids": pad([e["input_ids"] for e in examples], batch_first=True),
        "labels": pad([e["labels"] for e in examples], batch_first=True, padding_value=-100),
        "attention_mask": pad([torch.ones_like(e["input_ids"]) for e in examples], batch_first=True),
    }
    for name in set(examples[0]) - {"input_ids", "labels"}:
        batch[name] = torch.tensor([e[name] for e in examples])
    return batch


def collate_packed(examples: list[dict]) -> dict[str, torch.Tensor]:
    """All examples in one row."""
    bounds = torch.tensor([0, *(len(e["input_ids"]) for e in examples)]).cumsum(0).to(torch.int32)
    batch = {name: torch.cat([e[name] for e in examples])[None] for name in ("input_ids", "labels")}
    for name in set(examples[0]) - {"input_ids", "labels"}:
        batch[name] = torch.tensor([e[name] for e in examples])
    return {**batch, "cu_seq_lens_q": bounds, "max_length_q": int(bounds.diff().max())}


def make_model(objective: str) -> torch.nn.Module:
    set_seed(0)
    if objective == "mlm":
        return HfeBertForMaskedLM(HfeBertConfig(**SIZES))
    if objective == "nsp":
        return HfeBertForPreTraining(HfeBertConfig(**SIZES))
    return HfeAlbertForPreTraining(HfeAlbertConfig(embedding_size=16, classifier_dropout_prob=0.0, **SIZES))


def train(objective: str, split: Split, folder: Path, trainer_class: type[Trainer] = PreTrainingTrainer) -> dict:
    """Losses, evaluation and parameters."""
    torch._dynamo.reset()
    counters.clear()
    examples = make_examples(PAIR_LABELS[objective])
    trainer = trainer_class(
        model=make_model(objective),
        args=training_arguments(
            folder,
            max_steps=3,
            per_device_train_batch_size=split.per_device,
            per_device_eval_batch_size=7,
            gradient_accumulation_steps=split.accumulation,
            learning_rate=0.5,
            lr_scheduler_type="constant",
            optim="sgd",
            train_sampling_strategy="sequential",
            logging_steps=1,
            save_strategy="no",
            torch_compile=split.compiled,
            torch_compile_backend="aot_eager" if split.compiled else None,
        ),
        train_dataset=examples,
        # In batches of 7: two processes fill their last round up with examples that they have seen.
        eval_dataset=examples[:50],
        data_collator=collate_packed if split.packed else collate,
    )
    if split.evaluated_first:
        trainer.evaluate()
    trainer.train()
    evaluation = trainer.evaluate()
    assert (counters["stats"]["unique_graphs"] > 0) == split.compiled
    logs = [
        {k: v for k, v in log.items() if "runtime" not in k and "second" not in k} for log in trainer.state.log_history
    ]
    return {"logs": logs[:3], "evaluation": evaluation, "parameters": dict(trainer.model.named_parameters())}


def train_in_each_split(folder: Path) -> None:
    """In each of two processes; the first one writes what it found."""
    torch.set_num_threads(1)
    found = {
        objective: {name: train(objective, split, folder) for name, split in SPLITS_OF_TWO_PROCESSES.items()}
        for objective in PAIR_LABELS
    }
    write_and_end(found, folder)


def write_and_end(found: dict, folder: Path) -> None:
    """Write what was found, in the first of two processes, and end both."""
    if torch.distributed.get_rank() == 0:
        torch.save(found, folder / "found.pt")
    processes.end_together()
