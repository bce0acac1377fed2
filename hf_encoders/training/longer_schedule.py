"""The learning rate of a resumed run that was made longer than the one that wrote the checkpoint."""

import os

from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME


def take_longer_schedule(trainer: Trainer, checkpoint: str) -> None:
    """Set the learning rate of the trainer's own schedule, once it has loaded a checkpoint; nothing if it is the same.

    The optimizer's state holds the rate of the schedule that the checkpoint was written under.
    """
    args, schedule = trainer.args, trainer.lr_scheduler
    if not isinstance(schedule, LambdaLR):
        return
    state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
    if state.max_steps == args.max_steps or args.max_steps <= 0:
        return
    before = trainer.optimizer.param_groups[0]["lr"]
    rates = [
        base * factor(schedule.last_epoch) for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    ]
    for group, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates
    if args.process_index == 0 and rates[0] != before:
        print(
            f"Extended from {state.max_steps:,} to {args.max_steps:,} steps: the learning rate of step "
            f"{state.global_step:,} is {rates[0]:.3g} instead of {before:.3g}.",
            flush=True,
        )
