"""What a run will be, before it begins: steps, tokens, epochs, and the time and memory it takes on this machine."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments

from hf_encoders.benchmark.memory import peak_on_cpu, peak_on_cuda
from hf_encoders.training.out_of_memory import recomputes
from hf_encoders.training.phases import RunExamples
from hf_encoders.training.recipe import Phase, Recipe
from hf_encoders.training.run import Division
from hf_encoders.training.trainer import PreTrainingTrainer


BYTES_A_PARAMETER = 16  # float32 weight, gradient, and Adam's two moments
SAMPLED_MICRO_BATCHES = 8


@dataclass(frozen=True)
class PhasePlan:
    """What a phase will be.

    Args:
        phase (`Phase`): steps, length, examples.
        tokens (`float`): real tokens of the phase, estimated from a few micro-batches.
        epochs (`float`): passes over the examples of the corpus.
        seconds (`float`): of forward and backward passes, from one measured here.
        activation_bytes (`int`): most bytes that a pass holds on top of weights and gradients.
    """

    phase: Phase
    tokens: float
    epochs: float
    seconds: float
    activation_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a run will be; printed, a table."""

    recipe: Recipe
    arguments: TrainingArguments  # the user's before the recipe's
    division: Division
    parameters: int
    device: str
    phases: list[PhasePlan]

    @property
    def seconds(self) -> float:
        """Of all passes."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def bytes(self) -> int:
        """Of one device: weights, gradients, moments, and the largest pass."""
        return self.parameters * BYTES_A_PARAMETER + max(phase.activation_bytes for phase in self.phases)

    @property
    def saving(self) -> str:
        """How often there is a checkpoint, and what of the run a crash would cost at most."""
        steps = int(self.arguments.save_steps)
        if self.arguments.save_strategy != "steps" or steps >= self.recipe.steps:
            return "no checkpoint before the end; "
        return f"a checkpoint every {steps:,} steps, {duration(self.seconds * steps / self.recipe.steps)}; "

    @property
    def left_out(self) -> list[str]:
        """What the measured passes did without."""
        options = {"fsdp": "takes less memory", "torch_compile": "takes less time"}
        return [f"  ({name} {what}: not measured)" for name, what in options.items() if getattr(self.arguments, name)]

    def __str__(self) -> str:
        recipe, division = self.recipe, self.division
        rows = [("steps", "length", "examples a step", "micro-batch", "tokens", "epochs", "time")]
        for plan in self.phases:
            phase = plan.phase
            rows.append(
                (
                    f"{phase.steps:,}",
                    f"{phase.length}",
                    f"{phase.examples:,}",
                    f"{-(-phase.examples // division.micro_batches):,} x {division.micro_batches}",
                    in_short(plan.tokens),
                    f"{plan.epochs:.2f}",
                    duration(plan.seconds),
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        rate = "" if recipe.mask_rate is None else f", mask rate {recipe.mask_rate.start} to {recipe.mask_rate.end}"
        arguments = self.arguments
        rate_and_schedule = (
            f"{recipe.optimizer}, learning rate {arguments.learning_rate:g} ({arguments.lr_scheduler_type.value}, "
            f"{arguments.get_warmup_steps(recipe.steps):,} steps of warm-up){rate}"
        )
        tokens = in_short(sum(plan.tokens for plan in self.phases))
        return "\n".join(
            [
                f"{recipe.name}: {recipe.family}, {recipe.objective}, {self.parameters:,} parameters",
                f"  {rate_and_schedule}",
                *(f"  {line}" for line in table),
                f"  together {recipe.steps:,} steps, {tokens} tokens, {duration(self.seconds)} of passes and "
                f"{self.bytes / 2**30:.2f} GiB on each of {division.processes} x {self.device}",
                f"  {self.saving}evaluation, updates and saving come on top",
                *self.left_out,
            ]
        )


def make_plan(trainer: PreTrainingTrainer, recipe: Recipe, division: Division) -> Plan:
    """Measure a micro-batch of every phase, and multiply. Weights, gradients and random numbers stay as they were."""
    model: PreTrainedModel = trainer.model.to(trainer.args.device)
    if recomputes(trainer.args):  # `Trainer` turns it on when training begins
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable()
    examples: RunExamples = trainer.train_dataset
    found = []
    for place, part in enumerate(examples.phases):
        with torch.random.fork_rng(enabled=True):
            batches = [
                trainer.data_collator(examples[item])
                for item in sampled_items(examples.items_of(place), division.micro_batches)
            ]
            tokens = [int(batch["cu_seq_lens_q"][-1]) for batch in batches]
            largest = max(range(len(batches)), key=tokens.__getitem__)
            seconds, activation_bytes = measured_pass(trainer, model, batches[largest])
        mean = sum(tokens) / len(tokens)
        found.append(
            PhasePlan(
                part.phase,
                tokens=mean * part.phase.steps * division.micro_batches,
                epochs=part.phase.steps * part.phase.examples / len(part.dataset),
                seconds=seconds * mean / tokens[largest] * part.phase.steps * division.accumulation,
                activation_bytes=activation_bytes,
            )
        )
    device = torch.cuda.get_device_name(0) if trainer.args.device.type == "cuda" else "CPU"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Plan(recipe, trainer.args, division, parameters, device, found)


def sampled_items(items: range, turns: int) -> list[int]:
    """A few micro-batches of a phase, of all turns in a step alike: those of later turns may have an example more.

    >>> sampled_items(range(300), turns=3)  # a hundred steps
    [0, 48, 100, 151, 200, 251]
    """
    number = min(len(items), max(1, SAMPLED_MICRO_BATCHES // turns) * min(turns, SAMPLED_MICRO_BATCHES))
    steps = len(items) // turns
    return [items[i * steps // number * turns + i * turns // number] for i in range(number)]


def measured_pass(trainer: PreTrainingTrainer, model: PreTrainedModel, batch: dict[str, Any]) -> tuple[float, int]:
    """Seconds of a forward and backward pass, and the most bytes it holds on top of weights and gradients."""
    device = trainer.args.device
    names = {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
    names.pop("mask_rates", None)
    was_training = model.training
    model.train()

    def run() -> None:
        with trainer.compute_loss_context_manager():
            loss = model(**names).loss
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    held = peak_on_cuda(run, device) if device.type == "cuda" else peak_on_cpu(run)
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    return seconds, held


def in_short(number: float) -> str:
    """A large number with its unit.

    >>> in_short(950), in_short(12_340), in_short(7.4e6), in_short(131e9)
    ('950', '12.3 k', '7.4 M', '131.0 G')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(42), duration(600), duration(36_000), duration(864_000)
    ('42 s', '10.0 min', '10.0 h', '10.0 days')
    """
    for unit, size in (("days", 172_800), ("h", 7200), ("min", 120)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3600, 'min': 60}[unit]:.1f} {unit}"
    return f"{seconds:.0f} s"
