"""Three optimizer steps of each objective, however their examples are split into micro-batches and over processes."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._dynamo.utils import counters
from transformers import Trainer, set_seed

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForPermutationLM,
    HfeAlbertConfig,
    HfeAlbertForPreTraining,
    HfeBertConfig,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeRobertaConfig,
    HfeRobertaForMaskedLM,
    HfeXLNetConfig,
    HfeXLNetLMHeadModel,
    MixedExamples,
    ParallelPairs,
    PreTrainingTrainer,
    ReusedChunks,
    SentenceBlocks,
    student_from,
    with_teacher,
)
from tests import processes
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents
from tests.families import fields_of
from tests.training.tiny import NO_DROPOUT, make_tokenizer, training_arguments


STEPS, LENGTH = 3, 24
SMALL = {**TINY_MODEL, **NO_DROPOUT, "initializer_range": 0.2}
SIZES = {**SMALL, "vocab_size": 61, "hidden_size": 24, "intermediate_size": 36}


class Split(NamedTuple):
    """How the examples of a step are split."""

    processes: int = 1
    accumulation: int = 1
    packed: bool = False
    evaluated_first: bool = False
    compiled: bool = False


SPLITS = {
    "whole": Split(),
    "accumulated": Split(1, 4),
    "packed": Split(packed=True),
    "two processes": Split(2),
    "two processes, accumulated and packed": Split(2, 4, packed=True),
}
FURTHER_SPLITS = {  # of the objectives with labels of `PAIR_LABELS`
    "accumulated, compiled": Split(1, 4, compiled=True),
    "two processes, accumulated": Split(2, 4),
    "two processes, evaluated before training": Split(2, evaluated_first=True),
    "two processes, compiled": Split(2, compiled=True),
}
PAIR_LABELS = {"mlm": None, "nsp": "next_sentence_label", "sop": "sentence_order_label"}
OBJECTIVES = (*PAIR_LABELS, "permutations", "translations", "distilled: predicted", "distilled: all")


def splits_of(objective: str) -> dict[str, Split]:
    return SPLITS | (FURTHER_SPLITS if objective in PAIR_LABELS else {})


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
        predicted = torch.randperm(length, generator=generator)[: draw(1, min(12, length))]
        labels[predicted] = ids[predicted]
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


def made_of(objective: str, packed: bool) -> tuple[torch.nn.Module, Any, Any, Any]:
    """Model, dataset, held-out dataset and data collator of an objective."""
    tokenizer = make_tokenizer()
    if objective == "permutations":  # of 6 to 24 tokens; half of them, at most, are the text before a pair
        documents = make_dataset(random_documents(30, 0, (2, 8)))
        chunks = [ReusedChunks(documents, LENGTH, reuse=True, redraw=redraw) for redraw in (True, False)]
        config = HfeXLNetConfig(**fields_of(HfeXLNetConfig, {**SMALL, "pad_token_id": 0}))
        return HfeXLNetLMHeadModel(config), *chunks, DataCollatorForPermutationLM(tokenizer, packed=packed)
    if objective == "translations":  # pairs of 6 to 20 tokens, mixed with blocks of two languages
        texts = {"en": random_documents(30, 0), "zh": random_documents(30, 1)}
        blocks = {name: SentenceBlocks(make_dataset(text), LENGTH) for name, text in texts.items()}
        pairs = ParallelPairs(make_dataset(random_documents(40, 2, (2, 3), (1, 9))), LENGTH, ("en", "zh"))
        weights = {"en": 1, "zh": 1, "en-zh": 2}
        mixed = MixedExamples({**blocks, "en-zh": pairs}, weights, examples_per_epoch=STEPS * 16)
        held_out = MixedExamples({**blocks, "en-zh": pairs}, weights, examples_per_epoch=11, redraw=False)
        model = HfeRobertaForMaskedLM(HfeRobertaConfig(**SMALL, pad_token_id=0))
        first = model.roberta.embeddings.first_position
        return model, mixed, held_out, DataCollatorForMaskedLM(tokenizer, packed=packed, first_position=first)
    if objective.startswith("distilled: "):
        teacher = HfeBertForMaskedLM(HfeBertConfig(**{**SMALL, "num_hidden_layers": 4}))
        student = student_from(teacher, [0, 3])
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        model = with_teacher(student, teacher, soft_targets=objective.removeprefix("distilled: "))
        blocks = SentenceBlocks(make_dataset(random_documents(120)), LENGTH)
        held_out = SentenceBlocks(make_dataset(random_documents(11, 5)), LENGTH, redraw=False)
        return model, blocks, held_out, DataCollatorForMaskedLM(tokenizer, packed=packed)
    if objective == "mlm":
        model = HfeBertForMaskedLM(HfeBertConfig(**SIZES))
    elif objective == "nsp":
        model = HfeBertForPreTraining(HfeBertConfig(**SIZES))
    else:
        model = HfeAlbertForPreTraining(HfeAlbertConfig(embedding_size=16, classifier_dropout_prob=0.0, **SIZES))
    examples = make_examples(PAIR_LABELS[objective])
    return model, examples, examples[:50], collate_packed if packed else collate


def make_trainer(
    objective: str, split: Split, folder: Path, trainer_class: type[Trainer] = PreTrainingTrainer, **arguments
) -> Trainer:
    set_seed(0)
    model, train_set, held_out, collator = made_of(objective, split.packed)
    examples = 32 if objective in PAIR_LABELS else 16  # of a step
    defaults = {
        "max_steps": STEPS,
        "per_device_train_batch_size": examples // split.processes // split.accumulation,
        # Two processes fill their last round up with examples that they have seen.
        "per_device_eval_batch_size": 7,
        "gradient_accumulation_steps": split.accumulation,
        "learning_rate": 0.1 if objective.startswith("distilled") else 0.5,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "train_sampling_strategy": "sequential" if objective in PAIR_LABELS else "random",
        "logging_steps": 1,
        "save_strategy": "no",
        "remove_unused_columns": False,
        "torch_compile": split.compiled,
        "torch_compile_backend": "aot_eager" if split.compiled else None,
    }
    return trainer_class(
        model=model,
        args=training_arguments(folder, **{**defaults, **arguments}),
        train_dataset=train_set,
        eval_dataset=held_out,
        data_collator=collator,
    )


def train(
    objective: str, split: Split, folder: Path, trainer_class: type[Trainer] = PreTrainingTrainer
) -> dict[str, dict]:
    """Metrics of the steps and of an evaluation, and parameters."""
    torch._dynamo.reset()
    counters.clear()
    trainer = make_trainer(objective, split, folder, trainer_class)
    if split.evaluated_first:
        trainer.evaluate()
    trainer.train()
    assert (counters["stats"]["unique_graphs"] > 0) == split.compiled
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    metrics = {f"{name} {step}": value for step, log in enumerate(logs) for name, value in log.items()}
    metrics |= trainer.evaluate()
    words = ("loss", "accuracy", "grad_norm", "perplexity", "tokens_seen", "mask_rate")
    return {
        "metrics": {name: value for name, value in metrics.items() if any(word in name for word in words)},
        "parameters": {name: value.detach().clone() for name, value in trainer.model.named_parameters()},
    }


def train_in_each_split(folder: Path) -> None:
    """All splits of two processes, in one of them; the first one writes the results."""
    torch.set_num_threads(1)
    results = {
        objective: {
            name: train(objective, split, folder / "run")
            for name, split in splits_of(objective).items()
            if split.processes == 2
        }
        for objective in OBJECTIVES
    }
    if torch.distributed.get_rank() == 0:
        torch.save(results, folder / "results.pt")
    processes.end_together()
