"""Monitors a training run: metrics that `Trainer` does not log, warnings, and a stop before weights are corrupted.

Batches are counted by a forward hook on the model, so it works in the stock `Trainer` too, padded or packed, with
accumulation and in several processes. On a GPU nothing waits for a metric before `Trainer` logs. The thresholds of
warnings are in `health_checks.py`.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import reduce
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback, ExportableState
from transformers.utils import logging

from hf_encoders.corpus.special_tokens import never_masked
from hf_encoders.objectives.batch import IGNORED
from hf_encoders.objectives.mlm import DataCollatorForMaskedLM
from hf_encoders.publishing.files import WARNINGS_FIELD
from hf_encoders.publishing.hardware import measure_gemm_rate, predicts_tokens, training_flops
from hf_encoders.registration import configurations
from hf_encoders.training.health_checks import FiniteLossWatch, WarningContext, new_warnings


logger = logging.get_logger(__name__)

# Smaller than in the benchmark: the rate is measured within a second and takes little GPU memory.
GEMM_SIDES = {"cpu": 1024}
GEMM_SIDE_ELSEWHERE = 4096
GEMM_SECONDS = 0.5


@dataclass
class BatchCounts:
    """Sums over batches."""

    tokens: int = 0  # without padding
    positions: int = 0  # with padding, B * T of each batch
    squared_lengths: int = 0  # sum of L^2 over the sequences, the cost of attention
    predicted: int = 0  # tokens with a label
    maskable: int = 0  # tokens that could have been predicted: special ones are left out
    # Of each loss term: examples, those with a label, those with label 1; 0 where labels are of tokens.
    labels: Sequence[Sequence[int]] = ()

    @classmethod
    def of(cls, counts: torch.Tensor) -> "BatchCounts":
        """Return counts from a sum of what `count_batch` returned."""
        values = counts.tolist()
        return cls(*values[:5], [values[i : i + 3] for i in range(5, len(values), 3)])

    @property
    def labelled(self) -> int:
        """Labels of examples, of all terms."""
        return sum(labelled for _, labelled, _ in self.labels)


def count_batch(batch: Mapping[str, Any], special_ids: torch.Tensor, terms: Mapping[str, str]) -> torch.Tensor:
    """Count one batch: `int64` of shape `(5 + 3 * terms,)` on its device, as `BatchCounts.of` takes it.

    Args:
        batch: Arguments of `forward`: `input_ids` `(B, T)` or `(B, choices, T)`; `attention_mask` of the same shape
            or, of packed rows, `cu_seq_lens_q` `(S + 1,)`; without both, nothing is padding. `labels` of the same
            shape where tokens are predicted; others are ignored.
        special_ids (`torch.LongTensor` of shape `(K,)`): Ids that are never predicted, on the batch's device.
        terms (`Mapping`): Loss terms of the model: name -> argument with its labels. Those with one label per example,
            `(S,)`, are counted.

    Two rows of three and two tokens, ids 1 and 2 special, one of the three others predicted:

    >>> ids, mask = torch.tensor([[1, 7, 2], [1, 8, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> labels = torch.tensor([[-100, 7, -100], [-100, -100, -100]])
    >>> batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    >>> BatchCounts.of(count_batch(batch, torch.tensor([1, 2]), {}))  # doctest: +NORMALIZE_WHITESPACE
    BatchCounts(tokens=5, positions=6, squared_lengths=13, predicted=1, maskable=2, labels=[])
    """
    ids, mask, bounds = batch["input_ids"], batch.get("attention_mask"), batch.get("cu_seq_lens_q")
    has_padding = bounds is None and mask is not None and mask.shape == ids.shape
    real = mask.bool() if has_padding else torch.ones_like(ids, dtype=torch.bool)
    lengths = real.sum(dim=-1).flatten() if bounds is None else bounds.diff().to(torch.int64)
    labels = token_labels(batch)
    if labels is not None:
        is_predicted = labels != IGNORED
        maskable = real & (is_predicted | ~torch.isin(ids, special_ids))
    else:
        is_predicted = maskable = torch.zeros_like(real)
    counts = [lengths.sum(), lengths.new_full((), ids.numel()), lengths.square().sum()]
    counts += [is_predicted.sum(), maskable.sum()]
    for name in terms.values():
        labels = batch.get(name)
        if labels is None or labels.shape == ids.shape:
            labels = lengths.new_empty((0,))
        counts += [lengths.new_full((), labels.numel()), (labels != IGNORED).sum(), (labels == 1).sum()]
    return torch.stack(counts)


def token_labels(batch: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the labels of a batch if there is one class per token, else None."""
    labels, ids = batch.get("labels"), batch["input_ids"]
    is_per_token = torch.is_tensor(labels) and labels.shape == ids.shape and not labels.is_floating_point()
    return labels if is_per_token else None


class LabelFrequencies:
    """Frequencies of the labels, for the cross-entropy of a unigram model.

    Args:
        vocab_size (`int`): V.
    """

    # Labels per vocabulary entry: with fewer, the estimate is off by more than the thresholds in `health_checks.py`.
    LABELS_PER_ENTRY = 10

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self._counts: torch.Tensor | None = None

    def add(self, labels: torch.Tensor) -> None:
        """Count labels of any shape, except ignored ones; does not wait for a GPU."""
        if self._counts is None:
            self._counts = torch.zeros(self.vocab_size + 1, dtype=torch.int64, device=labels.device)
        # Entry 0 is for ignored labels: selecting the others would wait for their number.
        entries = torch.where(labels == IGNORED, 0, labels + 1).flatten()
        self._counts.scatter_add_(0, entries, torch.ones_like(entries))

    def cross_entropy(self) -> float | None:
        """Return the nats per label under the labels' own frequencies, each plus one; None before there are enough.

        >>> frequencies = LabelFrequencies(vocab_size=2)
        >>> frequencies.add(torch.tensor([0, 1, -100] * 9)); print(frequencies.cross_entropy())
        None
        >>> frequencies.add(torch.tensor([0, 1])); round(frequencies.cross_entropy(), 4)
        0.6931
        """
        if self._counts is None:
            return None
        counts = self._counts[1:].double().cpu()
        total = counts.sum()
        if total < self.LABELS_PER_ENTRY * self.vocab_size:
            return None
        log_probabilities = ((counts + 1) / (total + self.vocab_size)).log()
        return float(-(counts * log_probabilities).sum() / total)


class HealthCallback(TrainerCallback, ExportableState):
    """Adds metrics to each training log, warns, and stops at a loss that is not finite.

    The metrics (table in docs/health.md) are of all processes since the last log, without the time of evaluating,
    saving and logging: `tokens_per_second`, `padding_share`, `mask_rate`, `mfu`, `data_wait_share`, `tokens_seen`,
    `training_seconds`, and for loss terms with one label per example `<term>_share` and `<term>_label_1_share`.
    `mfu` is for the families of this package only, also in transformers' classes. Warnings go through transformers'
    logger, and into `health_warnings` of the log's entry in `trainer_state.json`.

    `PreTrainingTrainer` has this callback by default. In the stock `Trainer`, `HealthCallback().attach(trainer)`
    inserts it before the integrations of `report_to`; in `callbacks=[...]` it comes after them, and its metrics are
    only in the log.

    Args:
        unigram_cross_entropy (`float`, *optional*): Nats per token under the corpus's token frequencies. Estimated by
            default from the labels, once there are ten per vocabulary entry.
        source_unigrams (`Mapping[str, float]`, *optional*): The same of each source that is evaluated by itself; kept
            for the record.
        is_trained (`bool`, *optional*, defaults to `False`): Whether the run begins with a trained encoder, for the
            advice of warnings.

    Raises:
        ValueError: for a cross-entropy that is not positive.
        NonFiniteLossError: from `train`, before a loss or gradient that is not finite changes the weights.
    """

    def __init__(
        self,
        unigram_cross_entropy: float | None = None,
        source_unigrams: Mapping[str, float] | None = None,
        is_trained: bool = False,
    ):
        if unigram_cross_entropy is not None and not unigram_cross_entropy > 0:
            raise ValueError(
                f"unigram_cross_entropy={unigram_cross_entropy} must be positive, in nats per token: leave it out "
                "to have it estimated."
            )
        self.unigram_cross_entropy = unigram_cross_entropy
        self.source_unigrams, self.is_trained = dict(source_unigrams or {}), is_trained
        self._processes = 1
        self._hook = None
        self._begin_training(0, 0.0)

    def __repr__(self) -> str:
        unigram = self.unigram_cross_entropy
        known = "to be estimated" if unigram is None else f"{unigram:.3f}"
        return f"HealthCallback(unigram_cross_entropy={known}, tokens_seen={self.tokens_seen:,})"

    def attach(self, trainer: Trainer) -> "HealthCallback":
        """Insert before all callbacks of a trainer except the one that decides when it logs and saves."""
        callbacks = trainer.callback_handler.callbacks
        if self in callbacks:
            callbacks.remove(self)
        kinds = [type(callback) for callback in callbacks]
        callbacks.insert(kinds.index(DefaultFlowCallback) + 1 if DefaultFlowCallback in kinds else 0, self)
        return self

    def state(self) -> dict[str, Any]:
        """Return the state for `trainer_state.json`, from which a resumed run continues to count."""
        # Not yet gathered from other processes: only if another callback requested this save.
        waiting = 0 if self._counts is None else int(self._counts[0]) * self._processes
        return {
            "args": {
                "unigram_cross_entropy": self.unigram_cross_entropy,
                "source_unigrams": self.source_unigrams,
                "is_trained": self.is_trained,
            },
            "attributes": {
                "tokens_seen": self.tokens_seen + self._counted().tokens + waiting,
                "training_seconds": self.training_seconds + self._seconds,
            },
        }

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        train_dataloader: DataLoader,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        """Start to monitor the model, from the counts of the checkpoint."""
        saved = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        attributes = saved.get("attributes", {}) if isinstance(saved, dict) else {}
        self._begin_training(attributes.get("tokens_seen", 0), attributes.get("training_seconds", 0.0))
        self._processes = args.world_size
        never_predicted = [] if masks_special_tokens(train_dataloader) else special_ids(processing_class, model)
        self._special_ids = torch.tensor(never_predicted, dtype=torch.int64)
        self._predicts_tokens = predicts_tokens(model)
        self._terms = dict(getattr(model, "loss_terms", {}))
        self._token_loss = next((f"{term}_loss" for term, label in self._terms.items() if label == "labels"), None)
        knows_vocabulary = self._predicts_tokens and hasattr(model.config, "vocab_size")
        self._frequencies = LabelFrequencies(model.config.vocab_size) if knows_vocabulary else None
        if self._hook is not None:
            self._hook.remove()
        hook = torch.compiler.disable(self._after_forward) if args.torch_compile else self._after_forward
        self._hook = model.register_forward_hook(hook, with_kwargs=True)

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """End the wait for data."""
        now = time.perf_counter()
        if self._idle_since is not None:
            self._waited += now - self._idle_since
            self._seconds += now - self._idle_since
        self._began = now
        self._losses.begin_step()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs: Any
    ) -> None:
        """Stop if the step would corrupt the weights."""
        self._losses.check(model, state.global_step, Path(args.output_dir), args.process_index, args.device)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Start of the wait for data; before a checkpoint, gather the counts of all processes."""
        self._idle_since = time.perf_counter()
        self._seconds += self._idle_since - self._began
        if control.should_save:
            self._gather_counts(args.device)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """As at the end of a step; the time between epochs does not count as waiting for data."""
        self._idle_since = None
        if control.should_save:
            self._gather_counts(args.device)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict, **kwargs: Any
    ) -> None:
        """Add metrics and warnings to a training log."""
        if "loss" not in logs:
            self._mark_idle()
            return
        if self._idle_since is not None:
            # `Trainer` has just synchronised with the device.
            self._seconds += time.perf_counter() - self._idle_since
        self._add_up(args.device)
        metrics = self._metrics(args, kwargs["model"])
        self._begin_window()
        logs.update(metrics)
        entry = state.log_history[-1]
        entry.update(metrics)
        schedule = args.get_warmup_steps(state.max_steps), state.max_steps
        workers = args.dataloader_num_workers
        context = WarningContext(*schedule, self._unigram(), workers, self._token_loss, self.is_trained)
        warnings = new_warnings(state.log_history, context)
        if warnings:
            entry[WARNINGS_FIELD] = warnings
        for message in warnings.values() if state.is_world_process_zero else ():
            with tqdm.external_write_mode(file=sys.stderr):  # on a line of its own, above a progress bar
                logger.warning(f"step {state.global_step}: {message}")
        self._mark_idle()

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Leave out the time of the evaluation."""
        self._mark_idle()

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """Leave out the time of saving."""
        self._mark_idle()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Count the steps since the last log, and remove the hook."""
        self._add_up(args.device)
        self._begin_window()
        self._hook.remove()
        self._hook = None

    def _begin_training(self, tokens_seen: int, training_seconds: float) -> None:
        self.tokens_seen, self.training_seconds = tokens_seen, training_seconds
        self._terms: dict[str, str] = {}
        self._counts: torch.Tensor | None = None  # of this process, since counts were last gathered
        self._losses = FiniteLossWatch()
        self._idle_since: float | None = None  # None: the time until the next step is not waiting for data
        self._began = 0.0
        self._begin_window()

    def _begin_window(self) -> None:
        """Forget what is counted since the last log; evaluating, saving and logging are no part of the seconds."""
        self._window: torch.Tensor | None = None  # counts of all processes
        self._seconds = self._waited = 0.0  # the latter for data, from the end of a step to the start of the next

    def _mark_idle(self) -> None:
        if self._idle_since is not None:
            self._idle_since = time.perf_counter()

    def _after_forward(self, model: nn.Module, args: tuple, batch: dict[str, Any], output: Any) -> None:
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
        counts = count_batch(batch, self._special_ids, self._terms)
        self._counts = counts if self._counts is None else self._counts + counts
        labels = token_labels(batch)
        if self._frequencies is not None and self.unigram_cross_entropy is None and labels is not None:
            self._frequencies.add(labels)

    def _gather_counts(self, device: torch.device) -> None:
        """Add up the counts of all processes; a collective operation."""
        # Zeros right after a save of the same step; on the device, because NCCL reduces nothing elsewhere.
        nothing = torch.zeros(5 + 3 * len(self._terms), dtype=torch.int64, device=device)
        counts = self._over_processes(nothing if self._counts is None else self._counts).cpu()
        self._window = counts if self._window is None else self._window + counts
        self._counts = None

    def _counted(self) -> BatchCounts:
        """Return the counts of all processes since the last log."""
        return BatchCounts() if self._window is None else BatchCounts.of(self._window)

    def _add_up(self, device: torch.device) -> None:
        """Add the counts since the last log to those of the run."""
        self._gather_counts(device)
        self.tokens_seen += self._counted().tokens
        self.training_seconds += self._seconds

    def _over_processes(self, values: torch.Tensor) -> torch.Tensor:
        return values if self._processes == 1 else reduce(values, reduction="sum")

    def _unigram(self) -> float | None:
        if self.unigram_cross_entropy is not None or self._frequencies is None:
            return self.unigram_cross_entropy
        return self._frequencies.cross_entropy()

    def _metrics(self, args: TrainingArguments, model: nn.Module) -> dict[str, float]:
        """Return the metrics of a log, except those without data."""
        counts, seconds = self._counted(), self._seconds
        if not counts.tokens or not seconds:
            return {}
        metrics = {
            "tokens_per_second": counts.tokens / seconds,
            "padding_share": 1 - counts.tokens / counts.positions,
            "data_wait_share": self._waited / seconds,
            "tokens_seen": self.tokens_seen,
            "training_seconds": self.training_seconds,
        }
        if counts.maskable:
            metrics["mask_rate"] = counts.predicted / counts.maskable
        for term, (examples, labelled, label_1) in zip(self._terms, counts.labels, strict=True):
            if examples:
                metrics[f"{term}_share"] = labelled / examples
            if labelled:
                metrics[f"{term}_label_1_share"] = label_1 / labelled
        if has_known_flops(model):
            reduced = torch.bfloat16 if args.bf16 else torch.float16
            dtype = reduced if args.bf16 or args.fp16 else model.dtype
            rate = gemm_rate(dtype, args.device, torch.get_num_threads())
            # float32, because MPS has no float64.
            rate = float(self._over_processes(torch.tensor(rate, device=args.device)))
            items = counts.squared_lengths, counts.predicted, counts.labelled
            metrics["mfu"] = training_flops(model, counts.tokens, *items) / seconds / rate
        return metrics


def masks_special_tokens(data_loader: DataLoader) -> bool:
    """Return whether the collator of a data loader has `mask_special_tokens=True`."""
    collator = getattr(data_loader.collate_fn, "data_collator", data_loader.collate_fn)  # `Trainer` may wrap it
    return isinstance(collator, DataCollatorForMaskedLM) and collator.masker.masking.mask_special_tokens


def special_ids(tokenizer: Any, model: nn.Module) -> list[int]:
    """Return the ids that are never predicted: the tokenizer's or, without one, the configuration's."""
    if hasattr(tokenizer, "all_special_ids"):
        return never_masked(tokenizer)
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    ids = {getattr(model.config, name, None) for name in names}
    return sorted(id for id in ids if isinstance(id, int))


def has_known_flops(model: nn.Module) -> bool:
    """Return whether `publishing/hardware.py` covers the model's family, in transformers' classes too."""
    known = [config.model_type for config in configurations()]
    return isinstance(model, PreTrainedModel) and model.config.model_type.removeprefix("hfe_") in known


@cache
def gemm_rate(dtype: torch.dtype, device: torch.device, threads: int) -> float:
    """Return the FLOP/s of this process's device, measured once per number of threads."""
    return measure_gemm_rate(dtype, device, GEMM_SIDES.get(device.type, GEMM_SIDE_ELSEWHERE), GEMM_SECONDS)
