"""Three steps of a student, however the examples of a step are split; run in one process or in two."""

from pathlib import Path

import torch
from transformers import Trainer, set_seed

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeBertConfig,
    HfeBertForMaskedLM,
    PreTrainingTrainer,
    SentenceBlocks,
    student_from,
    with_teacher,
)
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents
from tests.training.three_steps import TWO_PROCESSES, Split, write_and_end
from tests.training.tiny import NO_DROPOUT, make_tokenizer, training_arguments


LENGTH = 24
STEPS, EXAMPLES = 3, 16  # of a step
SIZES = {**TINY_MODEL, **NO_DROPOUT, "num_hidden_layers": 4, "initializer_range": 0.2}


def make_trainer(
    soft_targets: str, split: Split, folder: Path, trainer_class: type[Trainer] = PreTrainingTrainer, **arguments
) -> Trainer:
    set_seed(0)
    teacher = HfeBertForMaskedLM(HfeBertConfig(**SIZES))
    student = student_from(teacher, [0, 3])
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    blocks = SentenceBlocks(make_dataset(random_documents(120)), LENGTH)
    return trainer_class(
        model=with_teacher(student, teacher, soft_targets=soft_targets),
        args=training_arguments(
            folder,
            **{
                "max_steps": STEPS,
                "per_device_train_batch_size": split.per_device,
                "per_device_eval_batch_size": split.per_device,
                "gradient_accumulation_steps": split.accumulation,
                "learning_rate": 0.1,
                "lr_scheduler_type": "constant",
                "optim": "sgd",
                "logging_steps": 1,
                "save_strategy": "no",
                "remove_unused_columns": False,
                **arguments,
            },
        ),
        train_dataset=blocks,
        eval_dataset=SentenceBlocks(make_dataset(random_documents(11, 5)), LENGTH, redraw=False),
        data_collator=DataCollatorForMaskedLM(make_tokenizer(), packed=split.packed),
    )


def train(
    soft_targets: str, split: Split, folder: Path, trainer_class: type[Trainer] = PreTrainingTrainer
) -> dict[str, dict]:
    """Losses of the steps, of an evaluation, and parameters."""
    trainer = make_trainer(soft_targets, split, folder, trainer_class)
    trainer.train()
    metrics = trainer.evaluate()
    history = trainer.state.log_history[:STEPS]
    logs = {f"{name} {step}": value for step, log in enumerate(history) for name, value in log.items()}
    shown = {name: value for name, value in {**logs, **metrics}.items() if "loss" in name or "accuracy" in name}
    return {"metrics": shown, "parameters": {n: p.detach().clone() for n, p in trainer.model.named_parameters()}}


def train_in_each_split(folder: Path) -> None:
    """All splits of two processes, in one of them."""
    torch.set_num_threads(1)
    found = {
        soft_targets: {name: train(soft_targets, split, folder / "run") for name, split in TWO_PROCESSES.items()}
        for soft_targets in ("predicted", "all")
    }
    write_and_end(found, folder)
