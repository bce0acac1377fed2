"""Warnings from the log of a run that does not learn, or not as fast as it could; and a stop at what is not finite.

All thresholds are here. A warning depends on the log alone, so it can also be computed for a finished run that
`HealthCallback` monitored. Each is given once per run, in the log entry that triggered it. The stop comes before the
optimizer changes the weights; `Trainer` continues, and with its default `logging_nan_inf_filter` it even logs an
earlier loss instead.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from hf_encoders.publishing.files import WARNINGS_FIELD
from hf_encoders.training.distributed import max_over_processes


# The loss is at the unigram cross-entropy if it differs from it by at most this share of it, and falls if it lost this
# share from the earlier to the later half of the logs.
PLATEAU_MARGIN = 0.03
PLATEAU_FALL = 0.01
# It has risen if it is this share above the lowest mean of half as many logs before, and so many standard errors: the
# lowest of many means is low by chance, and logs of single steps differ by their text.
RISE, RISE_ERRORS = 0.05, 5
PLATEAU_LOGS = 10  # logs after warm-up
PLATEAU_SHARE = 0.05  # least share of the run after warm-up, for runs that log every step

# An accuracy is at chance if it is at most this much above the share of the more frequent label. Three points are one
# standard error of ten logs of 28 pairs each; with fewer pairs, noise may hide it.
EVEN, CHANCE_MARGIN = 0.5, 0.03
CHANCE_LOGS = 20
CHANCE_SHARE = 0.1  # pairs are learned later than frequencies are

# Hardly any example has two sentences, or a label that lengths do not reveal.
FEW_LABELS, FEW_LABELS_LOGS = 0.02, 3

# A tenth is what a faster loader could win; the first steps wait for workers that have just started.
WAIT_SHARE = 0.1
WAIT_LOGS = 3
WAIT_FIRST_STEP = 20

# The status of a step in a process. The loss ranks higher: its gradients reach every process.
FINITE, GRADIENT, LOSS = range(3)
WHAT = {GRADIENT: "a gradient, though not the loss,", LOSS: "the loss"}


@dataclass(frozen=True)
class WarningContext:
    """Facts that a log does not contain."""

    warmup_steps: int
    max_steps: int
    unigram_cross_entropy: float | None = None  # nats per token; without it the MLM loss is not judged
    num_workers: int = 0  # `dataloader_num_workers`
    token_loss: str | None = "mlm_loss"  # logged loss of predicted tokens; None: there is none
    is_trained: bool = False  # whether the encoder was trained before: then only its head may be new


def new_warnings(log_history: Sequence[dict[str, Any]], context: WarningContext) -> dict[str, str]:
    """Return the warnings that the last entry of a log triggers, `{name: message}`, without those earlier before.

    >>> log = [{"step": step, "loss": 7.1, "mlm_loss": 7.1} for step in range(10, 301, 10)]
    >>> list(new_warnings(log, WarningContext(warmup_steps=100, max_steps=1000, unigram_cross_entropy=7.0)))
    ['unigram_plateau']
    """
    earlier = {name for entry in log_history for name in entry.get(WARNINGS_FIELD, ())}
    entries = [entry for entry in log_history if "loss" in entry]
    warnings = [judge(entries, context) for judge in (stalled_loss, few_pairs, pairs_at_chance, data_starvation)]
    return {name: message for name, message in filter(None, warnings) if name not in earlier}


def stalled_loss(entries: list[dict[str, Any]], context: WarningContext) -> tuple[str, str] | None:
    """Warn if the loss of predicted tokens is not below the unigram cross-entropy after warm-up and does not fall."""
    unigram, name = context.unigram_cross_entropy, context.token_loss
    losses = values_after_warmup(entries, name, PLATEAU_LOGS, PLATEAU_SHARE, context)
    if unigram is None or not losses:
        return None
    earlier, later = halves(losses)
    if later < max((1 - PLATEAU_MARGIN) * unigram, (1 - PLATEAU_FALL) * earlier):
        return None
    whole, size = [entry[name] for entry in entries if name in entry], len(losses) // 2
    lowest = min(fmean(whole[i : i + size]) for i in range(len(whole) - size + 1))
    loss, baseline = f"{name} {later:.3f} over the last {size} logs", f"({unigram:.3f} nats per token)"
    if later > lowest + max(RISE * lowest, RISE_ERRORS * noise(whole) * math.sqrt(2 / size)):
        return "rising_loss", (
            f"{loss} has risen from {lowest:.3f}, and is not below the unigram cross-entropy {baseline}: the run "
            "diverges. Resume from an earlier checkpoint, and lower learning_rate, lengthen the warm-up, or clip "
            "gradients more (max_grad_norm)."
        )
    if lowest > (1 + PLATEAU_MARGIN) * unigram:
        return "above_unigram", (
            f"{loss} does not fall, and is above the unigram cross-entropy {baseline}: after {entries[-1]['step']} "
            "steps the model has not learned token frequencies. More steps may be enough; otherwise raise "
            "learning_rate (or lower it, if grad_norm is large), shorten the warm-up "
            f"({context.warmup_steps} of {context.max_steps} steps), or look at the batches: labels are ids of the "
            "tokenizer that the corpus was made with."
        )
    plateau = f"{loss} is at the unigram plateau {baseline}: the model has learned token frequencies and ignores the "
    if context.is_trained:
        return "unigram_plateau", (
            f"{plateau}context. A new head needs thousands of steps; if no head is new, raise learning_rate (or lower "
            "it, if grad_norm is large) or the batch size."
        )
    return "unigram_plateau", (
        f"{plateau}context. More steps may be enough; otherwise start with shorter examples (a first phase), raise "
        "learning_rate (or lower it, if grad_norm is large), initializer_range (0.05 for widths below 512) or the "
        "batch size."
    )


def few_pairs(entries: list[dict[str, Any]], context: WarningContext) -> tuple[str, str] | None:
    """Warn if hardly any example has a pair label, so that MLM is trained almost alone."""
    shares = [entry["pair_share"] for entry in entries if "pair_share" in entry][-FEW_LABELS_LOGS:]
    if len(shares) < FEW_LABELS_LOGS or max(shares) > FEW_LABELS:
        return None
    return "few_pairs", (
        f"pair_share {fmean(shares):.1%}: hardly any example has a sentence-pair label, and the pair head learns "
        "nothing. Raise max_length if an example has room for only one sentence; use a text of several documents of "
        "several sentences, none of which is most of it; or train with mlm alone."
    )


def pairs_at_chance(entries: list[dict[str, Any]], context: WarningContext) -> tuple[str, str] | None:
    """Warn if the pair accuracy is that of always predicting the majority label."""
    accuracies = values_after_warmup(entries, "pair_accuracy", CHANCE_LOGS, CHANCE_SHARE, context)
    if not accuracies:
        return None
    shares = [entry.get("pair_label_1_share", EVEN) for entry in entries if "pair_accuracy" in entry][-CHANCE_LOGS:]
    # Over all these logs: the majority of a few pairs is noise.
    if fmean(shares) < EVEN:
        shares = [1 - share for share in shares]
    if any(a > chance + CHANCE_MARGIN for a, chance in zip(halves(accuracies), halves(shares), strict=True)):
        return None
    return "pairs_at_chance", (
        f"pair_accuracy {fmean(accuracies):.3f} over the last {len(accuracies)} logs is chance ({fmean(shares):.3f}): "
        "the pair head often learns late, so give more steps; or look at the documents (hf-encoders corpus)."
    )


def data_starvation(entries: list[dict[str, Any]], context: WarningContext) -> tuple[str, str] | None:
    """Warn if steps wait for their batches."""
    last = [entry for entry in entries if entry["step"] >= WAIT_FIRST_STEP][-WAIT_LOGS:]
    shares = [entry.get("data_wait_share", 0.0) for entry in last]
    if len(shares) < WAIT_LOGS or min(shares) <= WAIT_SHARE:
        return None
    return "data_starvation", (
        f"data_wait_share: {fmean(shares):.0%} of the time of the last {len(shares)} logs was spent waiting for "
        f"data. Raise dataloader_num_workers (now {context.num_workers}), up to the number of free CPU cores."
    )


def values_after_warmup(
    entries: list[dict[str, Any]], name: str | None, number: int, share: float, context: WarningContext
) -> list[float]:
    """Return the last `number` values of a metric after warm-up, or none before they cover `share` of the run."""
    later = [entry for entry in entries if entry["step"] > context.warmup_steps and name in entry]
    if len(later) < number or later[-1]["step"] - context.warmup_steps < share * context.max_steps:
        return []
    return [entry[name] for entry in later[-number:]]


def noise(values: list[float]) -> float:
    """Compute the standard deviation of single logs around their trend, from the mean absolute change.

    >>> round(noise([5.0, 5.2, 5.1, 4.9, 5.2, 5.0]), 2)
    0.18
    """
    return fmean(abs(later - earlier) for earlier, later in pairwise(values)) * math.sqrt(math.pi) / 2


def halves(values: list[float]) -> tuple[float, float]:
    """Return the means of the earlier and the later half: a trend without the noise of single logs."""
    middle = len(values) // 2
    return fmean(values[:middle]), fmean(values[middle:])


class NonFiniteLossError(ValueError):
    """A run was stopped; the message names what was not finite, the file with the batch, and the remedy."""


class FiniteLossWatch:
    """Remembers the micro-batches of one optimizer step, and checks their losses before it.

    On CUDA one flag per micro-batch is copied in the background while the backward pass runs; reading it waits only
    for the forward pass. Gradients, which can overflow where the loss does not, are checked on a CPU only: on a GPU
    that would wait for the backward pass at every step. There the next loss shows it, and the message says that the
    weights are corrupted. Several processes exchange their status, so that all of them stop.
    """

    def __init__(self) -> None:
        # Batch, whether its loss is finite (on the CPU), and the CUDA event after which that may be read.
        self._seen: list[tuple[Mapping[str, Any], torch.Tensor, Any]] = []

    def begin_step(self) -> None:
        """Forget the previous step."""
        self._seen = []

    def see(self, batch: Mapping[str, Any], loss: torch.Tensor) -> None:
        """Remember a micro-batch and its loss of shape `()`."""
        is_finite, arrived = torch.isfinite(loss.detach()).all(), None
        if loss.device.type == "cuda":
            flag, arrived = torch.empty((), dtype=torch.bool, pin_memory=True), torch.cuda.Event()
            flag.copy_(is_finite, non_blocking=True)
            arrived.record()
            is_finite = flag
        self._seen.append((batch, is_finite.cpu() if arrived is None else is_finite, arrived))

    def check(
        self, model: nn.Module, step: int, folder: Path, process: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        """Check the losses of the step after `step`, and on a CPU the gradients; a collective operation.

        The batch is saved in `folder`, under a name with `process`, the rank. Processes exchange tensors on `device`.

        Raises:
            NonFiniteLossError: if one is not finite, in any process.
        """
        bad, status = [], LOSS
        for batch, is_finite, arrived in self._seen:
            if arrived is not None:
                arrived.synchronize()
            if not is_finite:
                bad.append(batch)
        if not bad:
            bad = [batch for batch, _, _ in self._seen]
            status = FINITE if not bad or gradients_are_finite(model) else GRADIENT
        worst = max_over_processes(status, device)
        if worst == FINITE:
            return
        problem = f"{WHAT[worst]} of step {step + 1} is not finite"
        if status < worst:
            raise NonFiniteLossError(
                f"{problem} in another process, whose message names its batch and the remedy. The step was skipped."
            )
        # `Trainer` pushes its output folder less what begins with an underscore, and this is text of the corpus.
        path = folder / f"_not_finite-step-{step + 1}-process-{process}.safetensors"
        try:
            save_batches(bad, path, {"step": str(step + 1), "process": str(process)})
            saved = f"is saved in {path}"
        except (OSError, SafetensorError) as error:
            saved = f"could not be saved in {path} ({error})"
        remedy = (
            "The weights are still good. Look at the batch for damaged or empty examples; if it is like others, "
            "resume from the newest checkpoint with a lower learning_rate, a longer warm-up, max_grad_norm=1.0, or "
            "bf16 instead of fp16"
        )
        if corrupted := sum(1 for weight in model.parameters() if not of_this_process(weight).isfinite().all()):
            remedy = (
                f"{corrupted} weight tensors are not finite either, so an earlier step corrupted them: resume from "
                "a checkpoint before it, with a lower learning_rate, a longer warm-up or max_grad_norm=1.0"
            )
        raise NonFiniteLossError(f"{problem}. The batch {saved}, and the step was skipped. {remedy}.")


def gradients_are_finite(model: nn.Module) -> bool:
    """Return whether all gradients on the CPU are finite; of sharded ones, this process's part."""
    gradients = [of_this_process(weight.grad) for weight in model.parameters() if weight.grad is not None]
    # A sum is not finite if an element is not; for finite elements it overflows only if a norm does.
    sums = [x.sum(dtype=torch.float32) for x in gradients if x.device.type == "cpu" and not x.is_sparse]
    return not sums or bool(torch.isfinite(torch.stack(sums)).all())


def of_this_process(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local part of a sharded tensor: gathering the whole would be a collective operation."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


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
