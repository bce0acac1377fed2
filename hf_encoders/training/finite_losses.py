"""Stops a run at the first loss or gradient that is not finite, before the optimizer changes the weights.

`Trainer` continues: with its default `logging_nan_inf_filter` it even logs an earlier loss instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from hf_encoders.training.distributed import max_over_processes


# What a process found in a step. The loss ranks higher: its gradients reach every process.
FINITE, GRADIENT, LOSS = range(3)
WHAT = {GRADIENT: "a gradient, though not the loss,", LOSS: "the loss"}


class NonFiniteLossError(ValueError):
    """The run was stopped; the message names what was not finite, the file with the batch, and the remedy."""


@dataclass
class SeenLoss:
    """One micro-batch of the step."""

    batch: Mapping[str, Any]
    is_finite: torch.Tensor  # of shape `()`, on the CPU
    arrived: Any = None  # CUDA event after which `is_finite` may be read

    def loss_is_finite(self) -> bool:
        """Whether the loss is finite; waits for the loss, not for later work."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return bool(self.is_finite)


class FiniteLossWatch:
    """Remembers the micro-batches of one optimizer step, and checks their losses before it.

    On CUDA one flag per micro-batch is copied in the background while the backward pass runs; reading it waits only
    for the forward pass. Gradients, which can overflow where the loss does not, are checked on a CPU only: on a GPU
    that would wait for the backward pass at every step. There the next loss shows it, and the message says that the
    weights are corrupted. Several processes exchange what they found, so that all of them stop.
    """

    def __init__(self) -> None:
        self._seen: list[SeenLoss] = []

    def begin_step(self) -> None:
        """Forget the previous step."""
        self._seen = []

    def see(self, batch: Mapping[str, Any], loss: torch.Tensor) -> None:
        """Remember a micro-batch and its loss of shape `()`."""
        is_finite = torch.isfinite(loss.detach()).all()
        if loss.device.type != "cuda":
            self._seen.append(SeenLoss(batch, is_finite.cpu()))
            return
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(is_finite, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._seen.append(SeenLoss(batch, flag, arrived))

    def check(
        self, model: nn.Module, step: int, folder: Path, process: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        """Check the losses of the step after `step`, and on a CPU the gradients; a collective operation.

        The batch is saved in `folder`, under a name with `process`, the rank. Processes exchange tensors on `device`.

        Raises:
            NonFiniteLossError: if one is not finite, in any process.
        """
        bad, found = [seen.batch for seen in self._seen if not seen.loss_is_finite()], LOSS
        if not bad:
            bad = [seen.batch for seen in self._seen]
            found = FINITE if not bad or gradients_are_finite(model) else GRADIENT
        worst = max_over_processes(found, device)
        if worst == FINITE:
            return
        if found < worst:
            raise NonFiniteLossError(
                f"{WHAT[worst]} of step {step + 1} is not finite in another process, whose message names its batch "
                "and the remedy. The step was skipped."
            )
        corrupted = sum(1 for weight in model.parameters() if not torch.isfinite(of_this_process(weight)).all())
        # `Trainer` pushes its output folder less what begins with an underscore, and this is text of the corpus.
        path = folder / f"_not_finite-step-{step + 1}-process-{process}.safetensors"
        message = describe(WHAT[found], step, f"is saved in {path}", corrupted)
        try:
            save_batches(bad, path, {"step": str(step + 1), "process": str(process), "message": message})
        except (OSError, SafetensorError) as error:
            message = describe(WHAT[found], step, f"could not be saved in {path} ({error})", corrupted)
        raise NonFiniteLossError(message)


def gradients_are_finite(model: nn.Module) -> bool:
    """Whether all gradients on the CPU are finite; of sharded ones, this process's part."""
    gradients = [of_this_process(weight.grad) for weight in model.parameters() if weight.grad is not None]
    # A sum is not finite if an element is not; for finite elements it overflows only if a norm does.
    sums = [one.sum(dtype=torch.float32) for one in gradients if one.device.type == "cpu" and not one.is_sparse]
    return not sums or bool(torch.isfinite(torch.stack(sums)).all())


def of_this_process(tensor: torch.Tensor) -> torch.Tensor:
    """The local part of a sharded tensor: gathering the whole would be a collective operation."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def describe(what: str, step: int, where: str, corrupted: int) -> str:
    """The message: what was not finite, where the batch is, the remedy."""
    remedy = (
        "The weights are still good. Look at the batch for damaged or empty examples; if it is like others, resume "
        "from the newest checkpoint with a lower learning_rate, a longer warm-up, max_grad_norm=1.0, or bf16 instead "
        "of fp16"
    )
    if corrupted:
        remedy = (
            f"{corrupted} weight tensors are not finite either, so an earlier step corrupted them: resume from "
            "a checkpoint before it, with a lower learning_rate, a longer warm-up or max_grad_norm=1.0"
        )
    return f"{what} of step {step + 1} is not finite. The batch {where}, and the step was skipped. {remedy}."


def save_batches(batches: list[Mapping[str, Any]], path: Path, metadata: dict[str, str]) -> None:
    """Write the tensors and integers of batches; with several, names start with the batch's number and a point."""
    tensors = {}
    for number, batch in enumerate(batches):
        prefix = f"{number}." if len(batches) > 1 else ""
        for name, value in batch.items():
            if isinstance(value, (torch.Tensor, int)):
                # Tensors that share memory cannot be in one file.
                value = torch.as_tensor(value).detach().cpu()
                tensors[prefix + name] = value.clone(memory_format=torch.contiguous_format)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata)
