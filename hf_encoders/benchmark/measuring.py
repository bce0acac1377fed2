"""Turns of all contenders one after the other, round by round; and the memory of a pass.

A round is one turn of every contender, and begins with another one each time, so that what else the machine does falls
on all of them. Figures are medians over the rounds, ratios are taken within a round.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from tqdm import tqdm

from hf_encoders.benchmark.contenders import Contender
from hf_encoders.benchmark.flops import needed_flops
from hf_encoders.benchmark.rows import Batch
from hf_encoders.benchmark.settings import Setting
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.records.flops import wait_for
from hf_encoders.records.hardware import peak_on_cpu, peak_on_cuda


@dataclass
class Turn:
    """What a contender did in one round.

    Args:
        tokens (`int`): real tokens.
        cells (`int`): tokens with padding.
        flops (`int`): operations that the tokens need, as in `hf_encoders/records/flops.py`.
        collate_seconds, pass_seconds, update_seconds (`float`): making the batches and bringing them to the device;
            forward and, in training, backward; the optimizer.
    """

    tokens: int = 0
    cells: int = 0
    flops: int = 0
    collate_seconds: float = 0.0
    pass_seconds: float = 0.0
    update_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """All of it."""
        return self.collate_seconds + self.pass_seconds + self.update_seconds


@dataclass
class Measurements:
    """All that was measured of a contender.

    Args:
        turns (`list[Turn]`): one a round.
        activation_bytes (`int`): as `measure_memory` says.
    """

    turns: list[Turn] = field(default_factory=list)
    activation_bytes: int = 0


def measure(contenders: list[Contender], config: EncoderConfig, setting: Setting) -> list[Measurements]:
    """Warm up, measure memory, and run the rounds; one entry a contender."""
    found = [Measurements() for _ in contenders]
    with tqdm(total=(setting.rounds + 2) * len(contenders), desc=str(setting), unit="turn") as progress:
        for contender, measurements in zip(contenders, found, strict=True):
            run_turn(contender, config, setting, round_number=0)
            progress.update()
            measurements.activation_bytes = measure_memory(contender, setting)
            progress.update()
        for round_number in range(setting.rounds):
            for place in range(len(contenders)):
                i = (round_number + place) % len(contenders)
                found[i].turns.append(run_turn(contenders[i], config, setting, round_number))
                progress.update()
    return found


def batches_of_round(batches: list[Batch], setting: Setting, round_number: int) -> list[Batch]:
    """The batches of one turn: evenly spread over the pool, and others each round.

    So all lengths have their share in every turn where batches are sorted by it, and neither long nor short ones have
    more than that over all rounds.

    >>> from types import SimpleNamespace
    >>> setting = SimpleNamespace(rounds=2, steps=3)
    >>> [batches_of_round(list(range(12)), setting, round_number) for round_number in range(2)]
    [[1, 5, 9], [3, 7, 11]]
    """
    distance = len(batches) / setting.steps
    first = distance * (round_number + 0.5) / setting.rounds
    return [batches[int(first + i * distance)] for i in range(setting.steps)]


def run_turn(contender: Contender, config: EncoderConfig, setting: Setting, round_number: int) -> Turn:
    """Steps of one contender."""
    contender.select_attention()
    device = torch.device(setting.device)
    turn = Turn()
    for batch in batches_of_round(contender.batches, setting, round_number):
        turn.tokens += batch.tokens
        turn.cells += batch.cells if contender.pads else batch.tokens
        turn.flops += needed_flops(config, batch, setting)
        tensors = to_device(batch.tensors, device)
        if setting.trains:
            with clock(turn, "collate_seconds", device):
                to_device(contender.collate(batch.features), device)
            with clock(turn, "pass_seconds", device):
                contender.optimizer.zero_grad()
                training_pass(contender, tensors, setting)
            with clock(turn, "update_seconds", device):
                contender.optimizer.step()
        else:
            with clock(turn, "pass_seconds", device):
                inference_pass(contender, tensors)
    if setting.trains:
        contender.optimizer.zero_grad()
    return turn


@contextmanager
def clock(turn: Turn, name: str, device: torch.device) -> Iterator[None]:
    """Add the seconds of the block to a field of the turn."""
    wait_for(device)
    begin = time.perf_counter()
    yield
    wait_for(device)
    setattr(turn, name, getattr(turn, name) + time.perf_counter() - begin)


def to_device(tensors: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """The tensors there."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def training_pass(contender: Contender, tensors: dict[str, torch.Tensor], setting: Setting) -> torch.Tensor:
    """Forward with the model's own loss, and backward; the loss, a scalar."""
    is_autocast = setting.torch_dtype != torch.float32
    with torch.autocast(torch.device(setting.device).type, dtype=torch.bfloat16, enabled=is_autocast):
        loss = contender.model(**tensors).loss
    loss.backward()
    return loss.detach()


@torch.inference_mode()
def inference_pass(contender: Contender, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Forward without a head: `(B, T, D)`."""
    return contender.model(**tensors).last_hidden_state


def measure_memory(contender: Contender, setting: Setting) -> int:
    """Bytes that one pass holds at its peak on top of weights and gradients.

    Of the batch with the most tokens (padding included where it is computed) among those of the first round. Gradients
    are there before the pass, and optimizer states do not change in it. On a CPU the sizes of all tensors that are
    made and freed during the pass are summed up in their order, from torch's profiler; on CUDA it is the highest mark
    of torch's allocator.
    """
    contender.select_attention()
    device = torch.device(setting.device)
    batches = batches_of_round(contender.batches, setting, 0)
    batch = max(batches, key=lambda batch: batch.cells if contender.pads else batch.tokens)
    tensors = to_device(batch.tensors, device)

    def run() -> None:
        if setting.trains:
            training_pass(contender, tensors, setting)
        else:
            inference_pass(contender, tensors)

    run()
    if setting.trains:
        contender.optimizer.zero_grad(set_to_none=False)
    found = peak_on_cuda(run, device) if device.type == "cuda" else peak_on_cpu(run)
    if setting.trains:
        contender.optimizer.zero_grad()
    return found
