"""Watches a training run: figures that `Trainer` does not log, warnings, and a stop before the weights are spoilt.

What a batch consists of is counted by a hook on the model (`token_counts.py`), so it works in the stock `Trainer`
too, padded or packed, with accumulation and in several processes. On a GPU nothing waits for a figure before `Trainer`
logs. What is warned of stands in `health_warnings.py`, what stops a run in `finite_losses.py`.
"""

import time
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import reduce
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback, ExportableState
from transformers.utils import logging

from hf_encoders.data.special_tokens import never_masked
from hf_encoders.records.flops import forward_flops_of_counts, measure_gemm_rate
from hf_encoders.records.run_files import WARNINGS_FIELD
from hf_encoders.registration import configurations
from hf_encoders.training.health.finite_losses import FiniteLossWatch
from hf_encoders.training.health.token_counts import LabelFrequencies, TokenCounts, count_tokens, token_labels
from hf_encoders.training.health.warnings import WarningContext, new_warnings


logger = logging.get_logger(__name__)

# Smaller than in the benchmark, so that the rate is there within a second and takes little of the GPU's memory.
GEMM_SIDES = {"cpu": 1024}
GEMM_SIDE_ELSEWHERE = 4096
GEMM_SECONDS = 0.5


@dataclass
class StepTimes:
    """Seconds since the last log; evaluating, saving and logging are left out.

    Args:
        seconds (`float`): of training.
        waits, wait_seconds: steps, and the seconds between the end of one and the beginning of the next, that is
            waiting for data. Only steps with nothing but that between them, unless there are none such.
        mixed_waits, mixed_wait_seconds: the same of steps before which was logged, evaluated or saved, where other
            callbacks may have taken part of the time.
    """

    seconds: float = 0.0
    waits: int = 0
    wait_seconds: float = 0.0
    mixed_waits: int = 0
    mixed_wait_seconds: float = 0.0

    def add_wait(self, seconds: float, is_mixed: bool) -> None:
        """The time between two steps."""
        self.seconds += seconds
        if is_mixed:
            self.mixed_waits += 1
            self.mixed_wait_seconds += seconds
        else:
            self.waits += 1
            self.wait_seconds += seconds

    def wait_share(self) -> float | None:
        """Share of the training time that went into waiting for data, in [0, 1]; None before there is a wait."""
        steps = self.waits + self.mixed_waits
        if not steps or not self.seconds:
            return None
        a_step = self.wait_seconds / self.waits if self.waits else self.mixed_wait_seconds / self.mixed_waits
        return min(a_step * steps / self.seconds, 1.0)


class HealthCallback(TrainerCallback, ExportableState):
    """Adds figures to each log of training, warns, and stops at a loss that is not finite.

    The figures, since the last log and over all processes; time is without evaluating, saving and logging:
      * `tokens_per_second`: real tokens, padding not counted;
      * `padding_share`: in [0, 1], of all cells of the batches;
      * `mask_rate`: in [0, 1], predicted tokens of those that could have been (special ones cannot, unless the
        collator has `mask_special_tokens=True`);
      * `pair_share`: in [0, 1], examples of a pair objective that have a label;
      * `pair_label_1_share`: in [0, 1], sentence pairs with label 1, of those that have a label;
      * `mfu`: in [0, 1], operations that these tokens need (`records/flops.py`) over what the processes' devices do in
        that time in a plain matrix product; for BERT, RoBERTa and ALBERT, transformers' own classes too;
      * `data_wait_share`: in [0, 1], of the time, waiting for data; of the main process;
      * `tokens_seen`, `training_seconds`: since the run began, restarts included.

    Warnings (`health_warnings.py`) go through transformers' logger, and into `health_warnings` of the log's entry in
    `trainer_state.json`.

    `PreTrainingTrainer` has one of its own accord. In the stock `Trainer`, `HealthCallback().attach(trainer)` puts it
    before what `report_to` names; among `callbacks=[...]` it comes behind, and its figures are in the log only.

    Args:
        unigram_cross_entropy (`float`, *optional*): nats a token under the corpus's token frequencies. None estimates
            it from the labels, once there are ten an entry of the vocabulary.

    Raises:
        ValueError: for a cross-entropy that is not positive.
        NonFiniteLossError: out of `train`, as in `finite_losses.py`.
    """

    def __init__(self, unigram_cross_entropy: float | None = None):
        if unigram_cross_entropy is not None and not unigram_cross_entropy > 0:
            raise ValueError(
                f"unigram_cross_entropy={unigram_cross_entropy} must be positive, in nats a token: leave it out to "
                "have it estimated."
            )
        self.unigram_cross_entropy = unigram_cross_entropy
        self.tokens_seen = 0
        self.training_seconds = 0.0
        self._processes = 1
        self._hook = None
        self._begin_training(0, 0.0)

    def __repr__(self) -> str:
        unigram = self.unigram_cross_entropy
        known = "to be estimated" if unigram is None else f"{unigram:.3f}"
        return f"HealthCallback(unigram_cross_entropy={known}, tokens_seen={self.tokens_seen:,})"

    def attach(self, trainer: Trainer) -> "HealthCallback":
        """Come before all callbacks of a trainer but the one that decides when it logs and saves."""
        callbacks = trainer.callback_handler.callbacks
        if self in callbacks:
            callbacks.remove(self)
        first = [i for i, callback in enumerate(callbacks) if isinstance(callback, DefaultFlowCallback)]
        callbacks.insert(first[0] + 1 if first else 0, self)
        return self

    def state(self) -> dict[str, Any]:
        """What goes into `trainer_state.json`, so that a restarted run counts on."""
        # What other processes have counted since they last told; nothing, unless somebody else asked for this save.
        waiting = 0 if self._counts is None else int(self._counts[0]) * self._processes
        return {
            "args": {"unigram_cross_entropy": self.unigram_cross_entropy},
            "attributes": {
                "tokens_seen": self.tokens_seen + self._window.tokens + waiting,
                "training_seconds": self.training_seconds + self._times.seconds,
            },
        }

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        processing_class: Any = None,
        train_dataloader: DataLoader | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin to watch the model, where a checkpoint left off."""
        saved = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        attributes = saved.get("attributes", {}) if isinstance(saved, dict) else {}
        self._begin_training(attributes.get("tokens_seen", 0), attributes.get("training_seconds", 0.0))
        self._processes = args.world_size
        never_predicted = [] if masks_special_tokens(train_dataloader) else special_ids(processing_class, model)
        self._special_ids = torch.tensor(never_predicted, dtype=torch.int64)
        self._predicts_tokens = predicts_tokens(model)
        knows_vocabulary = self._predicts_tokens and hasattr(model.config, "vocab_size")
        self._frequencies = LabelFrequencies(model.config.vocab_size) if knows_vocabulary else None
        if self._hook is not None:
            self._hook.remove()
        see = torch.compiler.disable(self._see) if args.torch_compile else self._see
        self._hook = model.register_forward_hook(see, with_kwargs=True)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The data are there."""
        now = time.perf_counter()
        if self._idle_since is not None:
            self._times.add_wait(now - self._idle_since, self._is_mixed)
        self._began, self._is_mixed = now, False
        self._losses.begin_step()

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Stop if the step would spoil the weights."""
        self._losses.check(model, state.global_step, Path(args.output_dir), args.process_index, args.device)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The step is made; before a checkpoint, processes add up what they have counted."""
        self._idle_since = time.perf_counter()
        self._times.seconds += self._idle_since - self._began
        if control.should_save:
            self._gather_counts(args.device)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """As at the end of a step; what comes between epochs is no waiting for data."""
        self._idle_since = None
        if control.should_save:
            self._gather_counts(args.device)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the figures to a log of training, and what they warn of."""
        if logs is None or "loss" not in logs:
            self._mark_idle()
            return
        if self._idle_since is not None:
            # `Trainer` has just waited for the device to do all that it was asked for.
            self._times.seconds += time.perf_counter() - self._idle_since
        self._add_up(args.device)
        found = self._figures(args, model)
        self._window, self._times = TokenCounts(), StepTimes()
        logs.update(found)
        entry = state.log_history[-1]
        entry.update(found)
        context = WarningContext(
            args.get_warmup_steps(state.max_steps),
            state.max_steps,
            self._unigram(),
            args.dataloader_num_workers,
        )
        warnings = new_warnings(state.log_history, context)
        if warnings:
            entry[WARNINGS_FIELD] = warnings
        for message in warnings.values() if state.is_world_process_zero else ():
            logger.warning(f"step {state.global_step}: {message}")
        self._mark_idle()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Evaluating is no training time."""
        self._mark_idle()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Saving is none either."""
        self._mark_idle()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the steps since the last log too, and leave the model alone."""
        self._add_up(args.device)
        self._window, self._times = TokenCounts(), StepTimes()
        self._hook.remove()
        self._hook = None

    def _begin_training(self, tokens_seen: int, training_seconds: float) -> None:
        self.tokens_seen, self.training_seconds = tokens_seen, training_seconds
        self._counts: torch.Tensor | None = None  # of this process, since processes last added up theirs
        self._window = TokenCounts()  # of all processes, since the last log
        self._times = StepTimes()
        self._losses = FiniteLossWatch()
        self._idle_since: float | None = None  # None where the time until the next step is no waiting for data
        self._is_mixed = False
        self._began = 0.0

    def _mark_idle(self) -> None:
        if self._idle_since is not None:
            self._idle_since, self._is_mixed = time.perf_counter(), True

    def _see(self, model: nn.Module, args: tuple, batch: dict[str, Any], output: Any) -> None:
        """Hook: after each forward pass."""
        if not model.training:
            return
        loss = getattr(output, "loss", None)
        if loss is not None:
            self._losses.see(batch, loss)
        if "input_ids" not in batch:
            return
        if not self._predicts_tokens:
            batch = {name: value for name, value in batch.items() if name != "labels"}
        self._special_ids = self._special_ids.to(batch["input_ids"].device)
        counts = count_tokens(batch, self._special_ids, getattr(model, "pair_label_name", None))
        self._counts = counts if self._counts is None else self._counts + counts
        labels = token_labels(batch)
        if self._frequencies is not None and self.unigram_cross_entropy is None and labels is not None:
            self._frequencies.add(labels)

    def _gather_counts(self, device: torch.device) -> None:
        """Add up the counts of all processes; all of them must come here."""
        # None right after a save of the same step: on the device all the same, NCCL adds up nothing elsewhere.
        nothing = torch.zeros(len(fields(TokenCounts)), dtype=torch.int64, device=device)
        counts = nothing if self._counts is None else self._counts
        self._window += TokenCounts(*self._over_processes(counts).tolist())
        self._counts = None

    def _add_up(self, device: torch.device) -> None:
        """Add the window that ends to the whole run."""
        self._gather_counts(device)
        self.tokens_seen += self._window.tokens
        self.training_seconds += self._times.seconds

    def _over_processes(self, values: torch.Tensor) -> torch.Tensor:
        return values if self._processes == 1 else reduce(values, reduction="sum")

    def _unigram(self) -> float | None:
        if self.unigram_cross_entropy is not None or self._frequencies is None:
            return self.unigram_cross_entropy
        return self._frequencies.cross_entropy()

    def _figures(self, args: TrainingArguments, model: nn.Module) -> dict[str, float]:
        """The figures of a log, of those that there is something to make of."""
        counts, seconds, found = self._window, self._times.seconds, {}
        if not counts.tokens or not seconds:
            return found
        found["tokens_per_second"] = counts.tokens / seconds
        found["padding_share"] = 1 - counts.tokens / counts.cells
        if counts.maskable:
            found["mask_rate"] = counts.predicted / counts.maskable
        if counts.pair_examples:
            found["pair_share"] = counts.pairs / counts.pair_examples
        if counts.pairs:
            found["pair_label_1_share"] = counts.label_1_pairs / counts.pairs
        if has_known_flops(model):
            rate = gemm_rate(arithmetic(args, model), args.device, torch.get_num_threads())
            # float32, not int64: MPS has no float64, and 7 digits are more than the measurement has.
            rate = float(self._over_processes(torch.tensor(rate, device=args.device)))
            items = counts.squared_lengths, counts.predicted, counts.pairs
            needed = 3 * forward_flops_of_counts(model.config, counts.tokens, *items)
            found["mfu"] = needed / seconds / rate
        wait_share = self._times.wait_share()
        if wait_share is not None:
            found["data_wait_share"] = wait_share
        found["tokens_seen"] = self.tokens_seen
        found["training_seconds"] = self.training_seconds
        return found


def masks_special_tokens(data_loader: Any) -> bool:
    """Whether the collator of a data loader predicts special tokens like others: one of this package's, told to."""
    collator = getattr(data_loader, "collate_fn", None)
    collator = getattr(collator, "data_collator", collator)  # `Trainer` may wrap it, to leave out unused columns
    masking = getattr(getattr(collator, "masker", None), "masking", None)
    return bool(getattr(masking, "mask_special_tokens", False))


def special_ids(tokenizer: Any, model: nn.Module) -> list[int]:
    """Ids that are never predicted: the tokenizer's, or, without one, those that the configuration names."""
    if hasattr(tokenizer, "all_special_ids"):
        return never_masked(tokenizer)
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    found = {getattr(model.config, name, None) for name in names}
    return sorted(id for id in found if isinstance(id, int))


def predicts_tokens(model: nn.Module) -> bool:
    """Whether labels may be tokens: not those of a model that says it projects nothing to the vocabulary."""
    output_embeddings = getattr(model, "get_output_embeddings", None)  # adapters hand on the model's
    return output_embeddings is None or output_embeddings() is not None


def has_known_flops(model: nn.Module) -> bool:
    """Whether `records/flops.py` knows what the model computes: those of our families, whoever's classes."""
    known = [config.model_type for config in configurations()]
    return isinstance(model, PreTrainedModel) and model.config.model_type.removeprefix("hfe_") in known


def arithmetic(args: TrainingArguments, model: PreTrainedModel) -> torch.dtype:
    """The type of the matrix products in training."""
    if args.bf16:
        return torch.bfloat16
    return torch.float16 if args.fp16 else model.dtype


@cache
def gemm_rate(dtype: torch.dtype, device: torch.device, threads: int) -> float:
    """FLOP/s of this process's device, measured once; `threads` is there because a CPU's rate depends on them."""
    return measure_gemm_rate(dtype, device, GEMM_SIDES.get(device.type, GEMM_SIDE_ELSEWHERE), GEMM_SECONDS)
