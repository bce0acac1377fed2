"""`Trainer` for pre-training: any number of loss terms, each normalised by its own items, with metrics of each.

A loss term is a sum over its own items (predicted tokens, sentence pairs) divided by the number of those items in the
whole batch, over accumulation steps and processes. The model reports the sums, the trainer counts, divides, weighs and
adds. Evaluation divides summed losses by summed counts instead of averaging the means of batches.
"""

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate.utils import find_batch_size
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from hf_encoders.objectives.batch import IGNORED, count_items, to_device
from hf_encoders.training.callbacks import (
    EpochCallback,
    HubCodeCallback,
    epoch_datasets,
    take_longer_schedule,
)
from hf_encoders.training.distributed import check_launch, shard
from hf_encoders.training.fault_tolerance import FaultTolerantTrainer
from hf_encoders.training.health import HealthCallback


class PreTrainingTrainer(FaultTolerantTrainer):
    """`Trainer` for models with `loss_terms`, such as `Hfe...ForPreTraining` and `Hfe...ForMaskedLM`.

    `loss_terms` is a class attribute of the model: name of a term -> argument of `forward` with its labels, -100 where
    there is no item, or `input_ids` where every token is one. The model's output has under that name the sums `nll`,
    `correct` (or None) and `count`, and `label_1` where labels are 0 and 1 and made in the forward pass.

    Logs `<term>_loss` (nats per item) and `<term>_accuracy` (in [0, 1]) since the last log, over the items of all
    processes: `mlm_loss`, `mlm_accuracy`, `pair_loss`, `pair_accuracy`; where sums have `label_1`, its share as
    `<term>_label_1_share`. Evaluation returns them as `eval_...`, with `eval_loss` their weighted sum, and
    `eval_perplexity` of the term that predicts `labels`. Where `eval_dataset` is several by name, it returns those of
    each, `eval_<name>_mlm_loss`, and those over all.

    Args:
        loss_weights (`Mapping[str, float]`, *optional*): Term -> weight in the loss; by default that in the model's
            attribute `loss_weights`, or 1.
        health (`bool` or `HealthCallback`, *optional*, defaults to `True`): Callback that monitors the run; True
            creates one, False leaves it out. It is the attribute `health`.
        args, kwargs: As in `transformers.Trainer`. `eval_dataset` must not be the training dataset itself, which would
            lose its epoch: make a second one with `redraw=False`.

    Raises:
        ValueError: for `label_smoothing_factor`, `compute_loss_func`, several GPUs in one process and weights of
            unknown terms; if a launcher started fewer processes or sharded less than asked for.
    """

    def __init__(
        self,
        *args: Any,
        loss_weights: Mapping[str, float] | None = None,
        health: bool | HealthCallback = True,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        check_launch(self.args, self.accelerator)
        self.loss_terms: dict[str, str] = dict(getattr(self.model, "loss_terms", {}))
        model_weights = getattr(self.model, "loss_weights", None) or {}
        self.loss_weights = dict.fromkeys(self.loss_terms, 1.0) | dict(model_weights) | dict(loss_weights or {})
        self._check_settings()
        if self.loss_terms:
            # Losses are divided by the counts of the whole step, so micro-batches add up.
            self.model_accepts_loss_kwargs = True
            if self.args.label_names is None:
                labels = dict.fromkeys(self.loss_terms.values())
                self.label_names = [name for name in labels if name != "input_ids"]
        self.add_callback(EpochCallback())
        self.add_callback(HubCodeCallback(self))
        self.health: HealthCallback | None = None
        if health:
            callbacks = [each for each in self.callback_handler.callbacks if isinstance(each, HealthCallback)]
            self.health = health if isinstance(health, HealthCallback) else (callbacks or [HealthCallback()])[0]
            self.health.attach(self)
            # It waits for the device twice a step, for what the callback stops at.
            self.args.logging_nan_inf_filter = False
        self._running = self._no_sums()
        self._evaluated = self._no_sums()  # of all datasets of an evaluation
        self._evaluation_logs: dict[str, float] | None = None  # of those datasets, for the one log of all
        self._can_skip_logits = "return_logits" in inspect.signature(self.model.forward).parameters

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As in `Trainer`; with FSDP2, of the model's shards."""
        shard(self.accelerator, self.model)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        """As in `Trainer`, and as callbacks change it that have a `change_schedule`."""
        is_made_here = self.lr_scheduler is None
        schedule = super().create_scheduler(num_training_steps, optimizer)
        if is_made_here:
            for callback in self.callback_handler.callbacks:
                if hasattr(callback, "change_schedule"):
                    callback.change_schedule(schedule, self.args.get_warmup_steps(num_training_steps))
        return schedule

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As in `Trainer`; logs, evaluations and checkpoints come as often as the arguments say, not the checkpoint.

        And a run that was made longer takes the learning rate of its new schedule at once.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            steps = self.args.max_steps if self.args.max_steps > 0 else self.state.max_steps
            self.state.compute_steps(self.args, steps)
            take_longer_schedule(self, checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """As in `Trainer`; a model that is saved as several, in folders, loads itself."""
        if self._is_saved_as_several():
            self.model.load_folder(resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        """As in `Trainer`; a model that is saved as several loads itself."""
        if self._is_saved_as_several():
            self.model.load_folder(self.state.best_model_checkpoint)
        else:
            super()._load_best_model()

    def _is_saved_as_several(self) -> bool:
        return hasattr(self.model, "load_folder") and not self.is_fsdp_enabled

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor] | torch.Tensor | int | None]:
        """As in `Trainer`; the second value is the number of items of each loss term in the whole step."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        labels = {name: label for name, label in self.loss_terms.items() if batches and label in batches[0]}
        if not labels:
            return batches, self._get_num_items_in_batch(batches, device)
        # On the CPU, like the batches, from where an accelerator divides by a number without a copy of it.
        counts = torch.stack([sum(count_items(batch, label) for batch in batches) for label in labels.values()])
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            counts = counts.to(device, non_blocking=device.type == "cuda")
            counts = self.accelerator.reduce(counts, reduction="sum")
        return batches, dict(zip(labels, counts, strict=True))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: dict[str, torch.Tensor] | torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """Return the weighted sum of the loss terms, each divided by its count in `num_items_in_batch`.

        Without counts by term, as in evaluation, each is divided by its items in this micro-batch.
        """
        if not self.loss_terms:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(**inputs)
        terms = {name: outputs[name] for name in self.loss_terms if outputs.get(name) is not None}
        if not terms:
            labels = " or ".join(self.loss_terms.values())
            raise ValueError(f"the batch has no {labels}, only {', '.join(inputs)}: check the data collator.")
        counts = num_items_in_batch if isinstance(num_items_in_batch, dict) else {}
        loss = 0.0
        for name, sums in terms.items():
            count = counts.get(name, sums.count).clamp(min=1)
            # A number on the CPU divides as it is; one of another device waits for nothing.
            count = count if count.device.type == "cpu" else count.to(sums.nll.device)
            loss = loss + self.loss_weights[name] * sums.nll / count
            values = sums.nll, sums.correct, sums.count, getattr(sums, "label_1", None)
            values = [sums.nll.new_full((), math.nan) if value is None else value.detach() for value in values]
            row = list(self.loss_terms).index(name)
            self._running[row] += torch.stack([value.float() for value in values]).to(self._running)
        if counts and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes
        return (loss, outputs) if return_outputs else loss

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """As in `Trainer`; of models that share no weight, each by its own norm."""
        parts = getattr(self.model, "clipped_apart", ())
        if not parts or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return super()._clip_grad_norm(model)
        norm = self.accelerator.clip_grad_norm_(model.parameters(), math.inf)  # also takes the loss's scale away
        for part in parts:
            nn.utils.clip_grad_norm_(part.parameters(), self.args.max_grad_norm)
        return norm

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """As in `Trainer`; with copies on the CPU of what the model reads there."""
        return super()._prepare_inputs(to_device(inputs, self.args.device))

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        """As in `Trainer`; with autocast under FSDP2 too, where accelerate has only a policy that rounds more."""
        if self.accelerator.is_fsdp2:
            return self.accelerator.autocast()
        return super().autocast_smart_context_manager(cache_enabled)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in `Trainer`; training logs get the metrics of the loss terms."""
        if self._evaluation_logs is not None:
            self._evaluation_logs.update(logs)
            return
        if "loss" in logs:
            logs = {**logs, **self._metrics(self._taken_sums())}
        super().log(logs, start_time)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """As in `Trainer`; computes the loss terms whose labels are there, on each example once.

        Raises:
            ValueError: if outputs of packed batches are to be gathered from several processes.
        """
        if "cu_seq_lens_q" in inputs and not prediction_loss_only and self.args.world_size > 1:
            raise ValueError(
                "prediction_loss_only=False gathers outputs of several processes row by row, and a packed batch is "
                "one row of any number of examples: leave compute_metrics out, or use a data collator that pads."
            )
        # `Trainer` computes no loss at all if one of the labels that `forward` names is missing.
        all_names = self.label_names
        self.label_names = [name for name in all_names if inputs.get(name) is not None]
        before = self._running.clone()
        try:
            num_own = self._num_own_examples(inputs)
            if num_own is not None:
                inputs = self._without_repeated_examples(inputs, num_own)
            if prediction_loss_only and self._can_skip_logits:
                inputs = {**inputs, "return_logits": False}
            outputs = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        finally:
            self.label_names = all_names
        if num_own == 0:
            self._running = before
        return outputs

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        """As in `Trainer`; batches stay on the CPU until `_prepare_inputs` moves them and keeps what it had there."""
        loader = super()._get_dataloader(*args, **kwargs)
        loader.device = None
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """As in `Trainer`.

        Raises:
            ValueError: for the training dataset itself.
        """
        evaluated = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(evaluated, str):
            evaluated = self.eval_dataset[evaluated]
        trained = list(epoch_datasets(self.train_dataset))
        if any(dataset is other for dataset in epoch_datasets(evaluated) for other in trained):
            raise ValueError(
                "eval_dataset is the training dataset itself, whose epoch evaluation would reset: make a second one "
                "of the documents to evaluate on, with redraw=False."
            )
        return super().get_eval_dataloader(eval_dataset)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """As in `Trainer`; of several datasets by name also the metrics over all of their items, in one log.

        Those of dataset `de` are `eval_de_mlm_loss` and so on, those over all `eval_mlm_loss`: summed losses over
        summed counts, so a dataset counts by its items.
        """
        evaluated = self.eval_dataset if eval_dataset is None else eval_dataset
        if not isinstance(evaluated, dict) or not self.loss_terms:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        self._evaluated, self._evaluation_logs = self._no_sums(), {}
        try:
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            over_all = self._evaluation_metrics(self._evaluated, metric_key_prefix)
            logs = {**over_all, **self._evaluation_logs}
        finally:
            self._evaluation_logs = None
        self.log(logs)
        metrics |= over_all
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """As in `Trainer`, with metrics from summed losses and summed counts."""
        training_sums, self._running = self._running, self._no_sums()
        try:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
            sums = self._taken_sums()
        finally:
            self._running = training_sums
            if self.args.world_size > 1 and self.model_wrapped is self.model and not self.is_fsdp_enabled:
                # Evaluated before training: accelerate would take the model for prepared, and leave it without DDP.
                vars(self.model).pop("_is_accelerate_prepared", None)
        self._evaluated = self._evaluated + sums
        output.metrics.update(self._evaluation_metrics(sums, metric_key_prefix))
        return output

    def _evaluation_metrics(self, sums: torch.Tensor, prefix: str) -> dict[str, float]:
        """Return the metrics of an evaluation from its sums, `(terms, 4)`."""
        metrics = self._metrics(sums)
        losses = {name: metrics[f"{name}_loss"] for name in self.loss_terms if f"{name}_loss" in metrics}
        if losses:
            metrics["loss"] = sum(self.loss_weights[name] * loss for name, loss in losses.items())
        for name, loss in losses.items():
            if self.loss_terms[name] == "labels" and f"{name}_accuracy" in metrics:
                metrics["perplexity"] = math.exp(min(loss, 700.0))  # exp(700) is about the largest float
        return {f"{prefix}_{name}": value for name, value in metrics.items()}

    def _check_settings(self) -> None:
        unknown = sorted(self.loss_weights.keys() - self.loss_terms.keys())
        if unknown:
            raise ValueError(
                f"loss_weights: {type(self.model).__name__} has no loss term {unknown[0]!r}, only "
                f"{', '.join(self.loss_terms) or 'its own loss'}."
            )
        for is_set, name, remedy in (
            (self.label_smoother is not None, "label_smoothing_factor", "leave it 0"),
            (self.compute_loss_func is not None, "compute_loss_func", "use transformers.Trainer with it"),
            (self.args.n_gpu > 1, "n_gpu", "start one process per GPU with torchrun, or set CUDA_VISIBLE_DEVICES=0"),
        ):
            if is_set:
                raise ValueError(f"{name}: PreTrainingTrainer computes the losses from the heads' outputs: {remedy}.")

    def _no_sums(self) -> torch.Tensor:
        """Return zeros `(terms, 4)`: summed loss, correct items, items, those with label 1.

        On the device, which is then not waited for; only MPS has no float64.
        """
        device = "cpu" if self.args.device.type == "mps" else self.args.device
        return torch.zeros(len(self.loss_terms), 4, dtype=torch.float64, device=device)

    def _taken_sums(self) -> torch.Tensor:
        """Return the running sums over all processes, `(terms, 4)`, which begin again at 0."""
        sums, self._running = self._running, self._no_sums()
        if self.args.world_size > 1:
            sums = self.accelerator.reduce(sums.to(self.args.device), reduction="sum")
        return sums

    def _metrics(self, sums: torch.Tensor) -> dict[str, float]:
        """Return loss, accuracy and share of label 1 of the terms that had items."""
        metrics = {}
        for name, (nll, correct, count, label_1) in zip(self.loss_terms, sums.tolist(), strict=True):
            if count > 0:
                metrics[f"{name}_loss"] = nll / count
                if not math.isnan(correct):
                    metrics[f"{name}_accuracy"] = correct / count
                if not math.isnan(label_1):
                    metrics[f"{name}_label_1_share"] = label_1 / count
        return metrics

    def _num_own_examples(self, inputs: Mapping[str, Any]) -> int | None:
        """Count the examples of the batch that no process has evaluated before; None for all of them.

        The last batches of several processes are filled up with the first examples.
        """
        state = self.accelerator.gradient_state
        if self.args.world_size == 1 or not state.end_of_dataloader or state.remainder <= 0:
            return None
        bounds = inputs.get("cu_seq_lens_q")
        num_examples = find_batch_size(inputs) if bounds is None else len(bounds) - 1
        return min(max(state.remainder - self.args.process_index * num_examples, 0), num_examples)

    def _without_repeated_examples(self, inputs: Mapping[str, Any], num_own: int) -> dict[str, Any]:
        """Remove the labels of the repeated examples, and for terms over all tokens the tokens.

        A batch of repeated examples alone keeps its tokens, since a model needs some.
        """
        inputs, bounds = dict(inputs), inputs.get("cu_seq_lens_q")
        end = num_own if bounds is None else int(bounds[num_own])
        for name in self.label_names:
            labels = inputs[name] = inputs[name].clone()
            if bounds is not None and labels.dim() == 2:  # a packed row
                labels[:, end:] = IGNORED
            else:
                labels[num_own:] = IGNORED
        if num_own == 0 or "input_ids" not in self.loss_terms.values():
            return inputs
        if bounds is None:
            mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).clone()
            mask[num_own:] = 0
            return {**inputs, "attention_mask": mask}
        bounds = {name: inputs[name][: num_own + 1] for name in ("cu_seq_lens_q", "cu_seq_lens_k") if name in inputs}
        tensors = {name: value for name, value in inputs.items() if torch.is_tensor(value)}
        rows = {name: value[:, :end] for name, value in tensors.items() if value.dim() == 2}
        labels = {name: tensors[name][:num_own] for name in self.label_names if tensors[name].dim() == 1}
        return {**inputs, **rows, **labels, **bounds}
