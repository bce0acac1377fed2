"""Callbacks that make the stock `Trainer` do what pre-training and publishing need."""

from typing import Any

from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.dynamic_module_utils import custom_object_save


class EpochCallback(TrainerCallback):
    """Tells the training data set which epoch begins, so that it draws new examples.

    In a single process `Trainer` does so itself; in several, accelerate tells only the sampler.
    """

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: DataLoader | None = None,
        **kwargs: Any,
    ) -> None:
        """Announce `state.epoch`, which is a fraction where training resumes within an epoch."""
        data_set = getattr(train_dataloader, "dataset", None)
        if hasattr(data_set, "set_epoch"):
            data_set.set_epoch(int(state.epoch + 1e-6))


class HubCodeCallback(TrainerCallback):
    """Puts the model's code beside the weights before every push.

    `Trainer` pushes the code files with its last push only; with `hub_strategy="every_save"` the repository could not
    be loaded until then.
    """

    def on_push_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy the files of the model and its configuration to the folder that is pushed.

        By the process that pushes: with `push_to_hub` of `Trainer`, all of them come here.
        """
        if state.is_world_process_zero and getattr(model, "_auto_class", None) is not None:
            custom_object_save(model, args.output_dir)
            custom_object_save(model.config, args.output_dir)
