"""Plan of a run: steps, tokens, epochs, and the time and memory it takes on this machine.

Time is estimated from the operations of a few batches and the rate of one large matrix product, measured in half a
second; memory from formulas. `measure_passes` runs a real pass of each phase instead.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_encoders.corpus.text_files import UNNAMED
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.models.encoder_losses import chunk_scores
from hf_encoders.objectives.mixture import MixedExamples, passes_table
from hf_encoders.publishing.hardware import peak_on_cpu, peak_on_cuda, training_flops
from hf_encoders.runs.recipe import Phase
from hf_encoders.runs.run import PhaseExamples, Run, RunExamples
from hf_encoders.training.fault_tolerance import recomputes
from hf_encoders.training.health import BatchCounts, count_batch, gemm_rate
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.writing import duration, text_table


BYTES_PER_PARAMETER = 16  # float32 weight, gradient, and Adam's two moments
FROZEN_BYTES = 4  # float32 weight alone
COPY_BYTES = 2  # 16-bit weight that CUDA keeps from the forward pass to the backward pass
SAMPLED_MICRO_BATCHES = 32
# Share of the rate of a large matrix product that training reaches, by width: the limit, and the width of half of it.
# Between measurements on a quiet core (docs/performance.md: float32 57 % at width 128, 82 % at 768; 16 bits 17 % at
# 256, 33 % at 768) and next to other work (36 % and 60 %).
REACHED_SHARES = {torch.float32: (0.8, 100), torch.bfloat16: (0.6, 640), torch.float16: (0.6, 640)}
# Numbers that a layer saves per token for backward, and further ones at the peak: multiples of its width and of its
# feed-forward width. Fitted to measurements, within 10 % for widths of 128 to 768.
KEPT_NUMBERS, FURTHER_NUMBERS = (8, 1), (5, 3)
FLASH_ROWS = 128  # further ones of each sequence in the backward pass of flash attention for any length
# Bytes of such a number on average: under autocast, part of them stays float32.
BYTES_PER_NUMBER = {torch.float32: 4.0, torch.bfloat16: 2.4, torch.float16: 2.4}
# Bytes read and written per parameter: in an update weight, gradient and two moments; in a pass the weight twice and
# its gradient, which matters for small batches; autocast makes slow copies of all.
BYTES_OF_UPDATE = 32
BYTES_OF_PASS = {torch.float32: 16, torch.bfloat16: 72, torch.float16: 72}
# Of a device that is not here: TFLOP/s of an A100 by its data sheet (dense), and the share of them that training
# reaches: 22 % are published for ModernBERT on an H100, 45 % for BERT large on an A100.
TFLOPS_ELSEWHERE = {torch.float32: 19.5, torch.bfloat16: 312.0, torch.float16: 312.0}
SHARE_ELSEWHERE = 0.3
# BERT read its text 40 times (appendix A.2). Beyond that, repeated text was worth nothing to decoders (Muennighoff et
# al. 2023); encoders, which see new masks, are given more than twice as much before they are warned.
MOST_EPOCHS = 100


@dataclass(frozen=True)
class PhasePlan:
    """Plan of a phase."""

    phase: Phase
    tokens: float  # without padding, estimated from a few micro-batches
    epochs: float
    seconds: float  # of forward and backward passes and updates
    activation_bytes: int  # peak of a pass in addition to weights and gradients


@dataclass(frozen=True)
class Plan:
    """Plan of a run; `str` of it is a table."""

    run: Run
    parameters: int
    device: str
    how: str  # time and memory were determined, in words
    phases: list[PhasePlan]
    frozen: dict[str, int] = field(default_factory=dict)  # parameters of models that are not trained
    sources: str = ""  # table of shares and passes; empty for a single text

    @property
    def seconds(self) -> float:
        """Time of all steps."""
        return sum(phase.seconds for phase in self.phases)

    def left(self, done: int) -> str:
        """Return the steps and time that are left after `done` steps."""
        steps = self.run.recipe.steps
        ends = accumulate(plan.phase.steps for plan in self.phases)
        shares = [min(max(end - done, 0) / plan.phase.steps, 1) for end, plan in zip(ends, self.phases, strict=True)]
        seconds = sum(share * plan.seconds for share, plan in zip(shares, self.phases, strict=True))
        return f"{done:,} of {counted(steps, 'step')} are done: {steps - done:,} are left, {duration(seconds)}"

    @property
    def bytes(self) -> int:
        """Memory of a device: weights, gradients, moments, and the largest pass."""
        weights = self.parameters * BYTES_PER_PARAMETER + sum(self.frozen.values()) * FROZEN_BYTES
        return weights + max(phase.activation_bytes for phase in self.phases)

    def facts(self) -> dict[str, float]:
        """Return tokens, seconds and bytes, for `run.json`."""
        return {"tokens": sum(p.tokens for p in self.phases), "seconds": self.seconds, "bytes": self.bytes}

    def __str__(self) -> str:
        recipe, division, arguments = self.run.recipe, self.run.micro_batching, self.run.arguments
        steps = recipe.steps
        heading = f"{recipe.name}: {recipe.family}, {recipe.objective}, {self.parameters:,} parameters"
        heading += "".join(f" ({name} {parameters:,})" for name, parameters in self.frozen.items())
        rate = recipe.mask_rate and f", mask rate {recipe.mask_rate}"
        layers = f", of each layer {recipe.layer_decay:g} times the next one's" * (recipe.layer_decay != 1)
        rows = [("steps", "length", "examples per step", "micro-batch", "tokens", "epochs", "time")]
        for plan in self.phases:
            phase = plan.phase
            micro_batches = f"{-(-phase.examples // division.micro_batches):,} x {division.micro_batches}"
            amounts = in_short(plan.tokens), f"{plan.epochs:,.2f}", duration(plan.seconds)
            rows.append((f"{phase.steps:,}", f"{phase.length}", phase.examples_per_step, micro_batches, *amounts))
        tokens = in_short(sum(plan.tokens for plan in self.phases))
        saving, interval = "no checkpoint before the end", arguments.save_steps
        interval = math.ceil(interval * steps if interval < 1 else interval)  # below 1 a share, as in `Trainer`
        if arguments.save_strategy == "steps" and interval < steps:
            saving = f"a checkpoint every {counted(interval, 'step')}, {duration(self.seconds * interval / steps)}"
        lines = [
            heading,
            f"{recipe.optimizer}, learning rate {arguments.learning_rate:g} ({arguments.lr_scheduler_type.value}, "
            f"{counted(arguments.get_warmup_steps(steps), 'step')} of warm-up){rate or ''}{layers}",
            *text_table(rows, ">").splitlines(),
            f"together {counted(steps, 'step')}, {tokens} tokens, {duration(self.seconds)} and "
            f"{self.bytes / 2**30:,.2f} GiB on each of {division.processes} x {self.device}",
            f"({self.how})",
            *(f"phase {i + 1}: {plan.phase}" for i, plan in enumerate(self.phases) if plan.phase.changes),
            *self.sources.splitlines(),
            f"{saving}; evaluation and saving come on top",
        ]
        epochs = sum(phase.epochs for phase in self.phases)
        if epochs > MOST_EPOCHS:
            lines.append(
                f"warning: the text is read {epochs:,.0f} times, and little is learned after {MOST_EPOCHS}: give more "
                f"text, or fewer steps ({steps * MOST_EPOCHS / epochs:,.0f}: --max-steps)"
            )
        for name, effect in (("fsdp", "takes less memory"), ("torch_compile", "takes less time")):
            if getattr(arguments, name):
                lines.append(f"({name} {effect}: not counted)")
        return "\n  ".join(lines)


def speed_of(
    run: Run, dtype: torch.dtype, width: int, elsewhere: str | None, tflops: float | None
) -> tuple[str, float, float, str]:
    """Return a device, its FLOP/s in training at a width, its seconds per byte of memory, and how both are known."""
    device = run.arguments.device
    if elsewhere is not None:
        name = str(dtype).removeprefix("torch.")
        stated = "--device-tflops" if tflops else f"an A100's in {name}: --device-tflops sets others"
        tflops = tflops or TFLOPS_ELSEWHERE[dtype]
        how = f"assumed: {SHARE_ELSEWHERE:.0%} of {tflops:g} TFLOP/s ({stated})"
        return elsewhere, SHARE_ELSEWHERE * 1e12 * tflops, 0.0, how
    highest, half_width = REACHED_SHARES[dtype]
    share = highest * width / (width + half_width)
    rate = gemm_rate(dtype, device, torch.get_num_threads())
    how = (
        f"estimated: {share:.0%} of the {rate / 1e9:,.0f} GFLOP/s that a large matrix product reaches here; "
        "--plan --measure runs a pass of each phase"
    )
    name = torch.cuda.get_device_name(0) if device.type == "cuda" else "CPU"
    return name, share * rate, 1 / memory_rate(device), how


def make_plan(
    run: Run,
    examples: RunExamples,
    collator: Callable[[list[Any]], dict[str, Any]],
    config: EncoderConfig,
    elsewhere: str | None = None,
    tflops: float | None = None,
) -> Plan:
    """Estimate a run, without making its model: in seconds and with little memory for any size.

    Args:
        run (`Run`), examples (`RunExamples`), collator (`Callable`), config (`EncoderConfig`): What is planned.
        elsewhere (`str`, *optional*): A device that is not here, `"cuda"`; by default that of this machine.
        tflops (`float`, *optional*): Its TFLOP/s; by default those of an A100, in the precision of the run.
    """
    arguments, micro_batches = run.arguments, run.micro_batching.micro_batches
    dtype = torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else torch.float32
    device, *speed, how = speed_of(run, dtype, config.hidden_size, elsewhere, tflops)
    with torch.device("meta"):
        model = run.objective.new_model(config)
    phases, sources = [], passes_table(examples.mixtures) if examples.mixtures else ""
    for number, part in enumerate(examples.phases):
        batches = sampled_batches(examples, number, collator, micro_batches)
        phases.append(plan_phase(run, part, batches, model, dtype, *speed))
        datasets = part.dataset.sources if isinstance(part.dataset, MixedExamples) else {UNNAMED: part.dataset}
        for name, dataset in datasets.items():
            if left_out := dataset.left_out():
                sources += f"\nphase {number + 1}{f', source {name}' * bool(name)}: left out: {left_out}"
    frozen = {name: part.num_parameters() for name, part in getattr(model, "frozen_models", {}).items()}
    return Plan(run, model.num_parameters(), device, how, phases, frozen, sources)


def plan_phase(
    run: Run,
    part: PhaseExamples,
    batches: list[dict[str, Any]],
    model: PreTrainedModel,
    dtype: torch.dtype,
    flops_per_second: float,
    seconds_per_byte: float,
) -> PhasePlan:
    """Estimate a phase from a few of its micro-batches."""
    device, division, phase, parameters = run.arguments.device, run.micro_batching, part.phase, model.num_parameters()
    none_special = torch.tensor([])
    counts = [BatchCounts.of(count_batch(batch, none_special, model.loss_terms)) for batch in batches]
    names = ("tokens", "squared_lengths", "predicted", "labelled")
    tokens, *further = (sum(getattr(count, name) for count in counts) / len(counts) for name in names)
    seconds = training_flops(model, tokens, *further) / flops_per_second
    seconds += BYTES_OF_PASS[dtype] * parameters * seconds_per_byte
    seconds = seconds * division.accumulation + BYTES_OF_UPDATE * parameters * seconds_per_byte
    largest, batch = max(zip(counts, batches, strict=True), key=lambda pair: pair[0].tokens)
    sequences = len(batch["cu_seq_lens_q"]) - 1 if "cu_seq_lens_q" in batch else len(batch["input_ids"])
    recomputed = recomputes(run.arguments)
    held = sum(
        activation_bytes(trained.config, largest, dtype, recomputed, device, sequences)
        for trained in getattr(model, "trained_models", (model,))
    )
    if device.type == "cuda" and dtype != torch.float32 and not recomputed:
        held += COPY_BYTES * parameters
    return PhasePlan(
        phase, tokens * phase.steps * division.micro_batches, part.epochs, seconds * phase.steps, round(held)
    )


def activation_bytes(
    config: EncoderConfig,
    counts: BatchCounts,
    dtype: torch.dtype,
    recomputes_layers: bool,
    device: torch.device,
    sequences: int,
) -> int:
    """Compute the peak memory of a pass in addition to weights and gradients, in bytes, by formula.

    `dtype` is that of matrix products; with `recomputes_layers`, layers save only their inputs. `sequences` are those
    of the batch: on CUDA flash attention takes memory for each in its backward pass.
    """
    size = BYTES_PER_NUMBER[dtype]
    uses_flash = device.type == "cuda" and dtype != torch.float32
    layers = config.num_layers_passed
    widths = config.hidden_size, config.intermediate_size
    kept, further = (sum(n * w for n, w in zip(m, widths, strict=True)) for m in (KEPT_NUMBERS, FURTHER_NUMBERS))
    of_layers = layers * config.hidden_size + kept if recomputes_layers else layers * kept
    # The head's backward pass ends before those of the layers start: the larger of both counts.
    embedding_width = getattr(config, "embedding_size", None) or config.hidden_size
    scores = min(counts.predicted * config.vocab_size, chunk_scores(device))
    table = config.vocab_size * embedding_width * (1 if dtype == torch.float32 else 2)  # and its 16-bit copies
    if uses_flash:
        scores *= 1.5  # also in 16 bits, a whole chunk instead of what fits into a cache
    head = 4 * (scores + table + FURTHER_NUMBERS[0] * counts.tokens * config.hidden_size)
    # The float32 gradient of the queries, which `dq_accum` of flash_api.cpp holds with a block after each sequence.
    of_flash = 4 * (counts.tokens + FLASH_ROWS * sequences) * config.hidden_size if uses_flash else 0
    return round(size * counts.tokens * of_layers + max(size * counts.tokens * further + of_flash, head))


def memory_rate(device: torch.device) -> float:
    """Return the bytes per second of an addition of large vectors on this machine."""
    vectors = torch.zeros(2, 2**23, device=device)

    def add() -> None:
        vectors[0].add_(vectors[1])
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    add()
    return 3 * vectors[0].nbytes / min(seconds_of(add) for _ in range(3))


def measure_passes(plan: Plan, trainer: PreTrainingTrainer) -> Plan:
    """Return a plan with the measured time and memory of a pass of each phase; the trainer is not used again."""
    device, division = trainer.args.device, plan.run.micro_batching
    model: PreTrainedModel = trainer.model.to(device).train()
    if recomputes(trainer.args):  # `Trainer` enables it when training starts
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable()

    def run_pass(batch: dict[str, Any]) -> None:
        inputs = {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
        with trainer.compute_loss_context_manager():
            loss = model(**inputs).loss
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    update = plan.parameters * BYTES_OF_UPDATE / memory_rate(device)
    phases = []
    for number, phase_plan in enumerate(plan.phases):
        batches = sampled_batches(trainer.train_dataset, number, trainer.data_collator, division.micro_batches)
        tokens = [int(batch["cu_seq_lens_q"][-1]) for batch in batches]
        run_largest = partial(run_pass, batches[tokens.index(max(tokens))])
        run_largest()
        seconds = seconds_of(run_largest) * sum(tokens) / len(tokens) / max(tokens)
        held = peak_on_cuda(run_largest, device) if device.type == "cuda" else peak_on_cpu(run_largest)
        step_seconds = seconds * division.accumulation + update
        phases.append(replace(phase_plan, seconds=step_seconds * phase_plan.phase.steps, activation_bytes=held))
    return replace(plan, phases=phases, how="measured: a forward and backward pass of each phase")


def seconds_of(run: Callable[[], None]) -> float:
    """Return the wall time of a call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def sampled_batches(
    examples: RunExamples, phase: int, collator: Callable[[list[Any]], dict[str, Any]], turns: int
) -> list[dict[str, Any]]:
    """Return a few micro-batches of a phase of `turns` a step."""
    return [collator(examples[item]) for item in sampled_items(examples.items_of(phase), turns)]


def sampled_items(items: range, turns: int) -> list[int]:
    """Return items evenly over the steps and over the positions in a step: later ones may have one example more.

    >>> sampled_items(range(300), turns=3)[:6]  # a hundred steps
    [0, 9, 18, 30, 39, 48]
    """
    number = min(len(items), max(1, SAMPLED_MICRO_BATCHES // turns) * min(turns, SAMPLED_MICRO_BATCHES))
    steps = len(items) // turns
    return [items[i * steps // number * turns + i * turns // number] for i in range(number)]


def counted(number: int, noun: str) -> str:
    """Return a number and a noun: "1 step", "2,000 steps"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def in_short(number: float) -> str:
    """Return a large number with its unit.

    >>> in_short(950), in_short(12_340), in_short(7.4e6), in_short(131e9)
    ('950', '12.3 k', '7.4 M', '131.0 G')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number:.0f}"
