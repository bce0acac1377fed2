"""`Trainer` for MLM with or without a pair objective: exact normalisation, separate figures, exact evaluation.

Computes three things otherwise than `Trainer`. The pairs of a batch are counted over accumulation steps and processes,
as `Trainer` counts the tokens of `labels`; loss and accuracy of each objective are logged beside the sum; and
evaluation divides summed losses by summed counts instead of averaging batch means. Faults: `FaultTolerantTrainer`.
Launches that are refused, and what FSDP2 shards: `launch.py`.
"""

import inspect
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import EvalLoopOutput

from hf_encoders.data.batches import IGNORED
from hf_encoders.data.packing import TokenBudget
from hf_encoders.data.streaming import StreamedExamples
from hf_encoders.training.callbacks import EpochCallback, HubCodeCallback, epoch_datasets
from hf_encoders.training.distributed import check_launch, shard
from hf_encoders.training.faults.fault_tolerance import FaultTolerantTrainer
from hf_encoders.training.health.callback import HealthCallback


OBJECTIVES = ("mlm", "pair")


class PreTrainingTrainer(FaultTolerantTrainer):
    """`Trainer` for the heads `Hfe...ForPreTraining` and `Hfe...ForMaskedLM`.

    Logs `mlm_loss`, `mlm_accuracy`, `pair_loss` and `pair_accuracy` since the last log: losses in nats an item,
    accuracies in [0, 1], over the items of all processes. Evaluation returns them as `eval_...`, with `eval_loss`
    their sum and `eval_perplexity` = exp(summed negative log-likelihood / predicted tokens).

    Arguments as in `transformers.Trainer`. An evaluation set must not be the training set itself, which would lose
    its epoch: make a second one with `redraw=False`.
    `health` (`bool` or `HealthCallback`): the callback that watches the run; True makes one, False has none. It is the
    attribute `health` then.

    Raises:
        ValueError: for `label_smoothing_factor`, `compute_loss_func`, several GPUs in one process,
            `return_dict=False`; for a launcher that gave fewer processes, or less sharding, than it was asked for.
    """

    def __init__(
        self,
        *args: Any,
        health: bool | HealthCallback = True,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        check_launch(self.args, self.accelerator)
        self._check_settings()
        self.add_callback(EpochCallback())
        self.add_callback(HubCodeCallback(self))
        given = [callback for callback in self.callback_handler.callbacks if isinstance(callback, HealthCallback)]
        self.health: HealthCallback | None = None  # of this trainer, where it has one
        if health:
            self.health = health if isinstance(health, HealthCallback) else (given or [HealthCallback()])[0]
            self.health.attach(self)
        self._running = self._no_sums()
        self._can_skip_logits = "return_logits" in inspect.signature(self.model.forward).parameters

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As in `Trainer`; where FSDP2 was asked for, of the model's shards (see `launch.shard`)."""
        shard(self.accelerator, self.model)
        return super().create_optimizer(model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As in `Trainer`; a run that has become longer has the learning rate of its longer schedule at once.

        The optimizer's state brings the rate of the schedule that the checkpoint was written under, which `Trainer`
        would take one step more, and the intervals of logs, evaluations and checkpoints that were right for it.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not isinstance(self.lr_scheduler, LambdaLR):
            return
        state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
        if state.max_steps == self.args.max_steps or self.args.max_steps <= 0:
            return
        self.state.compute_steps(self.args, self.args.max_steps)
        before, schedule = self.optimizer.param_groups[0]["lr"], self.lr_scheduler
        rates = [
            base * factor(schedule.last_epoch)
            for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
        ]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        schedule._last_lr = rates
        if self.args.process_index == 0:
            print(
                f"Of {self.args.max_steps:,} steps instead of {state.max_steps:,}: the learning rate of step "
                f"{state.global_step:,} is {rates[0]:.3g}, and was {before:.3g}.",
                flush=True,
            )

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], torch.Tensor | int | None]:
        """As in `Trainer`, with `num_pairs_in_batch` put into every micro-batch that has a pair label."""
        batches, num_items_in_batch = super().get_batch_samples(epoch_iterator, num_batches, device)
        pair_label = getattr(self.model, "pair_label_name", None)
        if not batches or pair_label not in batches[0]:
            return batches, num_items_in_batch
        num_pairs = sum(batch[pair_label].ne(IGNORED).sum() for batch in batches).to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            num_pairs = self.accelerator.gather(num_pairs).sum()
        batches = [{**batch, "num_pairs_in_batch": num_pairs} for batch in batches]
        # A count, of whatever items, is what tells `Trainer` that the micro-batches' losses add up.
        return batches, num_pairs if num_items_in_batch is None else num_items_in_batch

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """As in `Trainer`; adds what the heads report to the running sums."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        for row, objective in enumerate(OBJECTIVES):
            sums = outputs.get(objective)
            if sums is not None:
                # To the CPU first: not every device knows float64.
                self._running[row] += torch.stack([value.float() for value in sums]).cpu().double()
        return (loss, outputs) if return_outputs else loss

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        """As in `Trainer`; autocast under FSDP2 too, where accelerate has none but a policy that rounds more."""
        if self.accelerator.is_fsdp2:
            return self.accelerator.autocast()
        return super().autocast_smart_context_manager(cache_enabled)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in `Trainer`; the log of a training window gets the figures of its objectives."""
        if "loss" in logs:
            logs = {**logs, **figures(self._take_sums())}
        super().log(logs, start_time)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """As in `Trainer`; computes the loss of the objectives whose labels are there, on each example once.

        Raises:
            ValueError: if outputs of packed batches are to be gathered from several processes.
        """
        if "cu_seq_lens_q" in inputs and not prediction_loss_only and self.args.world_size > 1:
            raise ValueError(
                "prediction_loss_only=False gathers outputs of several processes row by row, and a packed batch is "
                "one row of any number of examples: leave compute_metrics out, or give a data collator that pads."
            )
        # `Trainer` computes no loss at all where one of the labels that `forward` names is missing.
        all_names = self.label_names
        self.label_names = [name for name in all_names if inputs.get(name) is not None]
        try:
            inputs = self._without_repeated_examples(inputs)
            if prediction_loss_only and self._can_skip_logits:
                inputs["return_logits"] = False
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        finally:
            self.label_names = all_names

    def get_train_dataloader(self) -> DataLoader:
        """As in `Trainer`; of a `StreamedChunks` or `StreamedBlocks` every process makes its own part only.

        Raises:
            ValueError: for such a stream with `dispatch_batches=True`.
        """
        stream = self.train_dataset
        if not isinstance(stream, StreamedExamples):
            return super().get_train_dataloader()
        if self.args.accelerator_config.dispatch_batches:
            raise ValueError(
                "accelerator_config: dispatch_batches=True cannot send batches of different widths: leave it out."
            )
        # Left out, it is True for streams, and cuts packed batches to their one row also in a single process.
        loading = self.accelerator.dataloader_config
        before, loading.dispatch_batches = loading.dispatch_batches, False
        try:
            loader = super().get_train_dataloader()
        finally:
            loading.dispatch_batches = before
        if stream.repeat and self.args.world_size > 1:
            stream.share(self.args.process_index, self.args.world_size)
            # Otherwise accelerate would let every process make all examples, to keep one in `world_size`.
            loader.dataset.num_processes, loader.dataset.process_index = 1, 0
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """As in `Trainer`.

        Raises:
            ValueError: if the data set is the one that is trained on, or in several processes a stream or a
                `TokenBudget`.
        """
        evaluated = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(evaluated, str):
            evaluated = self.eval_dataset[evaluated]
        if self.args.world_size > 1 and isinstance(evaluated, StreamedExamples):
            raise ValueError(
                "eval_dataset is a stream, and several processes would count some examples at its end twice: prepare "
                "a corpus to evaluate on with prepare_corpus."
            )
        found = list(epoch_datasets(evaluated))
        if self.args.world_size > 1 and any(isinstance(one, TokenBudget) for one in found):
            raise ValueError(
                "eval_dataset has groups of a TokenBudget, and several processes would count those twice that fill "
                "up the last round: evaluate on the data set that it groups; packed batches of "
                "per_device_eval_batch_size examples need no TokenBudget."
            )
        trained = list(epoch_datasets(self.train_dataset))
        if any(one is other for one in found for other in trained):
            raise ValueError(
                "eval_dataset is the training data set itself, whose epoch evaluation would set back: make a second "
                "one of the documents to evaluate on, with redraw=False."
            )
        return super().get_eval_dataloader(eval_dataset)

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """As in `Trainer`, with figures from summed losses and summed counts."""
        training_sums, self._running = self._running, self._no_sums()
        try:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
            found = figures(self._take_sums())
        finally:
            self._running = training_sums
        if found:
            found["loss"] = sum(found.get(f"{objective}_loss", 0.0) for objective in OBJECTIVES)
        if "mlm_loss" in found:
            found["perplexity"] = math.exp(min(found["mlm_loss"], 700.0))  # exp(700) is about the largest float
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    def _check_settings(self) -> None:
        for is_set, name, remedy in (
            (self.label_smoother is not None, "label_smoothing_factor", "leave it 0"),
            (self.compute_loss_func is not None, "compute_loss_func", "use transformers.Trainer with it"),
            (self.args.n_gpu > 1, "n_gpu", "start one process a GPU with torchrun, or set CUDA_VISIBLE_DEVICES=0"),
            (not self.model.config.return_dict, "return_dict=False", "leave it True in the configuration"),
        ):
            if is_set:
                raise ValueError(f"{name}: PreTrainingTrainer computes the losses from the heads' outputs: {remedy}.")

    def _no_sums(self) -> torch.Tensor:
        """`(objectives, 3)`: summed loss, correct items, items."""
        return torch.zeros(len(OBJECTIVES), 3, dtype=torch.float64)

    def _take_sums(self) -> torch.Tensor:
        """The running sums over all processes; they begin anew."""
        sums, self._running = self._running, self._no_sums()
        if self.args.world_size > 1:
            sums = self.accelerator.reduce(sums.to(self.args.device), reduction="sum").cpu()
        return sums

    def _without_repeated_examples(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Take the labels off the examples that fill up the last batch of several processes a second time."""
        state = self.accelerator.gradient_state
        if self.args.world_size == 1 or not state.end_of_dataloader or state.remainder <= 0:
            return dict(inputs)
        inputs, bounds = dict(inputs), inputs.get("cu_seq_lens_q")
        for name in self.label_names:
            labels = inputs[name].clone()
            is_packed_row = bounds is not None and labels.dim() == 2
            num_examples = len(labels) if bounds is None else len(bounds) - 1
            first_repeated = min(max(state.remainder - self.args.process_index * num_examples, 0), num_examples)
            if is_packed_row:
                labels[:, bounds[first_repeated] :] = IGNORED
            else:
                labels[first_repeated:] = IGNORED
            inputs[name] = labels
        return inputs


def figures(sums: torch.Tensor) -> dict[str, float]:
    """Loss and accuracy of the objectives that had items, from `(objectives, 3)` sums."""
    found = {}
    for objective, (nll, correct, count) in zip(OBJECTIVES, sums.tolist(), strict=True):
        if count > 0:
            found[f"{objective}_loss"] = nll / count
            found[f"{objective}_accuracy"] = correct / count
    return found
