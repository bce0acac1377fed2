"""New heads of a trained encoder learn alone at first."""

from collections.abc import Collection
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class HeadWarmUpCallback(TrainerCallback):
    """Updates the new weights only, in the first steps: gradients of a random head would undo what the others know.

    Args:
        new_weights (`Collection[str]`): Names of parameters of the model.
        steps (`int`): Steps of the optimizer, from the first of the run on, restarts included.
    """

    def __init__(self, new_weights: Collection[str], steps: int):
        self.new_weights, self.steps = frozenset(new_weights), steps

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
