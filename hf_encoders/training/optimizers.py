"""The optimizers of the papers, from libraries.

AdamW is torch's, LAMB that of `pytorch_optimizer`, told to be the one that ALBERT was trained with.
"""

from typing import Any

from transformers import TrainingArguments

from hf_encoders.training.launch import asks_for_sharding


OPTIMIZERS = ("adamw", "lamb")


def optimizer_class(name: str, arguments: TrainingArguments) -> tuple[type, dict[str, Any]] | None:
    """What `Trainer` takes as `optimizer_cls_and_kwargs`; None for AdamW, which `Trainer` makes itself.

    Args:
        name (`str`): in `OPTIMIZERS`.
        arguments (`TrainingArguments`): give learning rate, betas and epsilon; weight decay comes from the groups.

    Raises:
        ValueError: for LAMB without weight decay, where it would be Adam, and for LAMB with FSDP.
    """
    if name == "adamw":
        return None
    if arguments.weight_decay == 0:
        raise ValueError(
            "optimizer lamb with weight_decay=0: what has no weight decay takes Adam's step, and here all would. "
            "Give weight_decay, such as 0.01 (ALBERT), or optimizer adamw."
        )
    if asks_for_sharding(arguments):
        # pytorch_optimizer 4.1 clamps the norms of shards in place, which torch refuses.
        raise ValueError("optimizer lamb does not run with fsdp: ALBERT shares its layers and fits a device; use DDP.")
    # Its library takes half a second to import.
    from hf_encoders.training.lamb import AlbertLamb

    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return AlbertLamb, {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}
