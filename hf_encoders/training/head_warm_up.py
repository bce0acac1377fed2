"""New heads of a trained encoder learn alone at first."""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class HeadWarmUpCallback(TrainerCallback):
    """Updates the new weights only, in the first steps: gradients of a random head would undo what the others know.

    `PreTrainingTrainer` then warms the learning rate up a second time, for the other weights.

    Args:
        new_weights (`Collection[str]`): Names of parameters of the model.
        steps (`int`): Steps of the optimizer, from the first of the run on, restarts included.
    """

    def __init__(self, new_weights: Collection[str], steps: int):
        self.new_weights, self.steps = frozenset(new_weights), steps

    def warm_up_again(self, schedule: LRScheduler, warmup_steps: int) -> None:
        """Multiply the learning rate by a second linear warm-up, which begins when the other weights do.

        Otherwise their first updates, of an optimizer without running averages for them, are at nearly the peak rate.
        A schedule without warm-up (`constant`, `reduce_lr_on_plateau`) stays as it is.
        """
        if isinstance(schedule, LambdaLR):
            schedule.lr_lambdas = [
                self._warmed_up_again(factor, warmup_steps) if factor(0) < factor(warmup_steps) else factor
                for factor in schedule.lr_lambdas
            ]

    def _warmed_up_again(self, factor: Callable[[int], float], warmup_steps: int) -> Callable[[int], float]:
        def multiplied(step: int) -> float:
            others = step - self.steps + 1  # steps of the other weights
            return factor(step) * (1.0 if others < 1 else min(1.0, others / (warmup_steps + 1)))

        return multiplied

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs: Any
    ) -> None:
        """Take the gradients of the other weights away, so that the optimizer leaves them as they are."""
        if state.global_step >= self.steps:
            return
        # Wrappers (DDP, a compiled model) put a prefix before the names.
        for name, parameter in model.named_parameters():
            if not any(name == new or name.endswith(f".{new}") for new in self.new_weights):
                parameter.grad = None
