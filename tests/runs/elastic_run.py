"""One part of a run, from its last checkpoint on, in as many processes as this one is of."""

from pathlib import Path

import datasets
import torch
from transformers import TrainerCallback

from hf_encoders import (
    DataCollatorForNextSentencePrediction,
    DocumentChunks,
    HfeBertConfig,
    HfeBertForPreTraining,
    PreTrainingTrainer,
)
from hf_encoders.runs.recipe import recipe_of
from hf_encoders.runs.run import Run, divide, num_processes
from tests import processes
from tests.corpus.corpora import TINY_MODEL
from tests.runs.test_recipes import MINIMAL
from tests.training.tiny import NO_DROPOUT, make_tokenizer, training_arguments


EXAMPLES, STEPS = 8, 9  # of a step; of all parts
LENGTH = 24
# AdamW divides by what may be no more than rounding errors: with a larger epsilon they stay small.
OPTIMIZER = {"learning_rate": 1e-2, "adam_epsilon": 1e-4, "lr_scheduler_type": "linear"}
SETTINGS = {"save_strategy": "steps", "save_steps": STEPS // 3, "logging_steps": 1}


class StopAfter(TrainerCallback):
    """Ends the run after a step, as if it had been killed behind its checkpoint."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def of_recipe(folder: Path, documents: datasets.Dataset) -> PreTrainingTrainer:
    """`pretrain`'s run: packed, in two phases, with a mask rate that falls."""
    half = {"length": LENGTH, "examples": EXAMPLES}
    phases = [{**half, "steps": 4, "length": 16}, {**half, "steps": STEPS - 4}]
    fields = {**MINIMAL, "model": {**MINIMAL["model"], **NO_DROPOUT}, "mask_rate": [0.4, 0.2], "phases": phases}
    recipe = recipe_of("elastic", {**fields, "training": OPTIMIZER})
    run = Run(
        recipe, folder, {**SETTINGS, "eval_strategy": "no", "disable_tqdm": True}, divide(recipe, num_processes())
    )
    return run.trainer(documents, documents, make_tokenizer())


def of_script(folder: Path, documents: datasets.Dataset, packed: bool) -> PreTrainingTrainer:
    """A script's run: a map-style dataset in batches of the sampler, three epochs of three whole steps."""
    size = EXAMPLES // num_processes() // (2 if num_processes() == 1 else 1)
    arguments = training_arguments(
        folder,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=EXAMPLES // num_processes() // size,
        max_steps=STEPS,
        **SETTINGS,
        **OPTIMIZER,
    )
    return PreTrainingTrainer(
        model=HfeBertForPreTraining(HfeBertConfig(**{**TINY_MODEL, **NO_DROPOUT, "num_hidden_layers": 1})),
        args=arguments,
        train_dataset=DocumentChunks(documents, LENGTH, short_sequence_probability=0.0),
        data_collator=DataCollatorForNextSentencePrediction(make_tokenizer(), packed=packed),
    )


RUNS = {
    "recipe": of_recipe,
    "script, padded": lambda *where: of_script(*where, packed=False),
    "script, packed": lambda *where: of_script(*where, packed=True),
}


def train_part(folder: Path, corpus: str, last: int) -> None:
    """Every run up to a step, from where it was; parameters and losses of all steps in `trained.pt`."""
    torch.set_num_threads(1)
    documents, trained = datasets.load_from_disk(corpus), {}
    for name, make in RUNS.items():
        torch.manual_seed(0)
        trainer = make(folder / name, documents)
        trainer.add_callback(StopAfter(last))
        trainer.train(resume_from_checkpoint=any((folder / name).glob("checkpoint-*")))
        losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        model = trainer.accelerator.unwrap_model(trainer.model)
        trained[name] = {"losses": losses, "parameters": model.state_dict()}
    if trainer.args.process_index == 0:
        torch.save(trained, folder / "trained.pt")
    if num_processes() > 1:
        processes.end_together()
