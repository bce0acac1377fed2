"""Measures all implementations in turn, round by round, and the memory of one pass.

A round is one turn of each implementation, in rotating order, so that other load on the machine affects all of them.
Metrics are medians over the rounds; ratios are taken within a round.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from tqdm import tqdm

from hf_encoders.benchmark.implementations import Implementation
from hf_encoders.benchmark.rows import Batch
from hf_encoders.benchmark.settings import Setting
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.batches import to_device
from hf_encoders.publishing.hardware import forward_flops, peak_on_cpu, peak_on_cuda, wait_for
from hf_encoders.writing import duration


@dataclass
class Turn:
    """What an implementation did in one round.

    Args:
        tokens (`int`): Real tokens.
        positions (`int`): Computed positions including padding.
        flops (`int`): Operations needed for the real tokens, as in `hf_encoders/publishing/hardware.py`.
        collate_seconds, pass_seconds, update_seconds (`float`): Collating and copying to the device; forward and, in
            training, backward; optimizer.
    """

    tokens: int = 0
    positions: int = 0
    flops: int = 0
    collate_seconds: float = 0.0
    pass_seconds: float = 0.0
    update_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Duration of the whole steps."""
        return self.collate_seconds + self.pass_seconds + self.update_seconds


@dataclass
class Measurements:
    """A turn per round, and the result of `measure_memory`."""

    turns: list[Turn] = field(default_factory=list)
    activation_bytes: int = 0


def measure(implementations: list[Implementation], config: EncoderConfig, setting: Setting) -> list[Measurements]:
    """Warm up, measure memory, print how long the rounds will take, and run them; one entry per implementation."""
    found = [Measurements() for _ in implementations]
    count = len(implementations)
    with tqdm(total=(setting.rounds + 1) * count, desc=str(setting), unit="turn") as progress:
        seconds = 0.0
        for implementation, measurements in zip(implementations, found, strict=True):
            first_batches = batches_of_round(implementation.batches, setting, 0)
            largest = max(first_batches, key=lambda batch: batch.positions if implementation.pads else batch.tokens)
            if implementation.compiled is not None:
                # Compiled for the first shape, and for any after the second.
                run_turn(implementation, config, setting, [largest, *first_batches])
            seconds += run_turn(implementation, config, setting, [largest]).step_seconds
            measurements.activation_bytes = measure_memory(implementation, setting, largest)
            progress.update()
        progress.write(
            f"warm-up of one batch: {duration(seconds)}; the rounds take at most about "
            f"{duration(seconds * setting.steps * setting.rounds)} (--rounds, --steps, --against)",
            file=sys.stderr,
        )
        for round_number in range(setting.rounds):
            for place in range(count):
                i = (round_number + place) % count
                batches = batches_of_round(implementations[i].batches, setting, round_number)
                found[i].turns.append(run_turn(implementations[i], config, setting, batches))
                progress.update()
    return found


def batches_of_round(batches: list[Batch], setting: Setting, round_number: int) -> list[Batch]:
    """The batches of one turn: evenly spread over the pool, and different ones each round.

    If batches are sorted by length, each turn has all lengths, and no length is overrepresented over all rounds.
    """
    distance = len(batches) / setting.steps
    first = distance * (round_number + 0.5) / setting.rounds
    return [batches[int(first + i * distance)] for i in range(setting.steps)]


def run_turn(implementation: Implementation, config: EncoderConfig, setting: Setting, batches: list[Batch]) -> Turn:
    """Run one implementation on some batches."""
    implementation.select_attention()
    device = torch.device(setting.device)
    turn = Turn()
    for batch in batches:
        turn.tokens += batch.tokens
        turn.positions += batch.positions if implementation.pads else batch.tokens
        turn.flops += needed_flops(config, batch, setting)
        tensors = to_device(batch.tensors, device)
        if setting.trains:
            with clock(turn, "collate_seconds", device):
                to_device(implementation.collate(batch.features), device)
            with clock(turn, "pass_seconds", device):
                implementation.optimizer.zero_grad()
                training_pass(implementation, tensors, setting)
            with clock(turn, "update_seconds", device):
                implementation.optimizer.step()
        else:
            with clock(turn, "pass_seconds", device):
                inference_pass(implementation, tensors)
    if setting.trains:
        implementation.optimizer.zero_grad()
    return turn


@contextmanager
def clock(turn: Turn, name: str, device: torch.device) -> Iterator[None]:
    """Add the duration of the block to a field of the turn."""
    wait_for(device)
    begin = time.perf_counter()
    yield
    wait_for(device)
    setattr(turn, name, getattr(turn, name) + time.perf_counter() - begin)


def needed_flops(config: EncoderConfig, batch: Batch, setting: Setting) -> int:
    """Operations needed for a batch, as in `hf_encoders/publishing/hardware.py`."""
    if not setting.trains:
        return forward_flops(config, batch.lengths)
    pairs = len(batch.rows) if setting.training_objective.has_example_labels else 0
    return 3 * forward_flops(config, batch.lengths, batch.predicted, pairs)


def training_pass(implementation: Implementation, tensors: dict[str, torch.Tensor], setting: Setting) -> torch.Tensor:
    """Forward pass with the model's own loss, and backward pass. Returns the loss, a scalar."""
    is_autocast = setting.torch_dtype != torch.float32
    with torch.autocast(torch.device(setting.device).type, dtype=torch.bfloat16, enabled=is_autocast):
        loss = implementation.callable(**tensors).loss
    loss.backward()
    return loss.detach()


@torch.inference_mode()
def inference_pass(implementation: Implementation, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Forward pass without a head: `(B, T, D)`."""
    return implementation.callable(**tensors).last_hidden_state


def measure_memory(implementation: Implementation, setting: Setting, batch: Batch) -> int:
    """Peak bytes of one pass above weights and gradients.

    Gradients exist before the pass. On a CPU, the sizes of all tensors allocated and freed during the pass are summed
    in order, from torch's profiler; on CUDA it is the peak of torch's allocator.
    """
    implementation.select_attention()
    device = torch.device(setting.device)
    tensors = to_device(batch.tensors, device)

    def run() -> None:
        if setting.trains:
            training_pass(implementation, tensors, setting)
        else:
            inference_pass(implementation, tensors)

    if setting.trains:
        for parameter in implementation.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    found = peak_on_cuda(run, device) if device.type == "cuda" else peak_on_cpu(run)
    if setting.trains:
        implementation.optimizer.zero_grad()
    return found
