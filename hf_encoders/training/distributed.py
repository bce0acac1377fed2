"""How a run was started: that it has the processes and the sharding that were asked for, and shards whole layers.

Launchers that fall back to one process, or to DDP, say nothing; the run then takes twice the time or the memory, or
several copies of it write into one folder. Every rule here is about such a case that was seen with accelerate 1.15.
"""

import os

from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging

from hf_encoders.training.hyperparameters import check_precision


logger = logging.get_logger(__name__)


def check_launch(args: TrainingArguments, accelerator: Accelerator) -> None:
    """Refuse a run that is not what it was started as.

    Args:
        args (`TrainingArguments`): Of the run; knows the number of processes that came to be.
        accelerator (`Accelerator`): Knows what they share.

    Raises:
        ValueError: If one process runs where `WORLD_SIZE` or `accelerate launch --num_processes` asked for more, or if
            FSDP was asked for and is not in effect; and for float16 on a CPU.
    """
    check_precision(args)
    if args.world_size == 1:
        _check_alone()
    if asks_for_sharding(args) and accelerator.distributed_type != DistributedType.FSDP:
        raise ValueError(
            f"fsdp: it was asked for, but this run is {accelerator.distributed_type.value} of {args.world_size} "
            "process(es): accelerate shards on accelerators in several processes only. Leave it out, or start with "
            "torchrun or accelerate launch on GPUs, without use_cpu."
        )


def asks_for_sharding(args: TrainingArguments) -> bool:
    """Whether the run's arguments or accelerate's configuration ask for FSDP."""
    return bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def _check_alone() -> None:
    """Refuse one process where more were asked for; warn of copies that know nothing of each other."""
    environment = os.environ
    asked = int(environment.get("WORLD_SIZE", 1))
    if asked > 1:
        missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR") if name not in environment]
        reason = f"{', '.join(missing)} not set" if missing else "accelerate was told to use one"
        raise ValueError(
            f"WORLD_SIZE={asked}, but this process runs alone ({reason}): start with torchrun, which sets all that is "
            "needed, or unset WORLD_SIZE."
        )
    # What accelerate launch sets for several processes and no other number; its own mark is the precision.
    if "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment and "RANK" not in environment:
        raise ValueError(
            "accelerate launch was told num_processes above 1 (or several machines) and started one process, which "
            "it does on CPUs without mpirun: use torchrun --nproc_per_node N with --use_cpu, or num_processes=1."
        )
    # Set inside of a step of Slurm's srun; the copies may also be meant, one a seed.
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks > 1:
        logger.warning(
            f"srun started {tasks} tasks, and each is a run of its own of one process: if they are to be one run, "
            "start torchrun in one task a machine (docs/scaling.md); if not, give each an output_dir of its own."
        )


def shard(accelerator: Accelerator, model: nn.Module) -> None:
    """Shard parameters, gradients and optimizer state with FSDP2 where that was asked for: each layer, and the rest.

    The rest (embeddings, pooler, heads) is one unit, gathered once a step, because parts of it are tied: the word
    embeddings to the MLM head's projection, and that one's bias to the head's. accelerate 1.15 makes units of
    embeddings and projection of its own, and torch 2.13 refuses parameters that two units share: no BERT, RoBERTa or
    ALBERT of transformers with an MLM head trains that way. A model that is sharded already it leaves as it is.

    Args:
        accelerator (`Accelerator`): Before it prepares the model.
        model (`nn.Module`): Changed in place. Its layers are what gradient checkpointing takes for layers.

    Raises:
        ValueError: For settings of FSDP that do not apply.
    """
    if not accelerator.is_fsdp2 or isinstance(model, FSDPModule):
        return
    plugin = accelerator.state.fsdp_plugin
    for is_set, name, remedy in (
        (plugin.cpu_ram_efficient_loading, "cpu_ram_efficient_loading", "leave it false: an encoder fits a machine"),
        (
            plugin.activation_checkpointing,
            "activation_checkpointing",
            "use TrainingArguments.activation_checkpointing",
        ),
    ):
        if is_set:
            raise ValueError(f"fsdp {name}=True: PreTrainingTrainer shards the model itself: {remedy}.")
    if accelerator.mixed_precision != "no":
        model.float()  # what the optimizer updates
    mesh = accelerator.torch_device_mesh
    options = {
        "mesh": None if mesh is None else mesh[tuple(accelerator.parallelism_config.fsdp_dim_names)],
        "offload_policy": plugin.cpu_offload,
        # Autocast alone rounds, as under DDP (see `PreTrainingTrainer.autocast_smart_context_manager`). accelerate's
        # policy would also round the sums of gradients over processes, and the losses and counts of the outputs.
        "mp_policy": MixedPrecisionPolicy(),
    }
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, reshard_after_forward=plugin.reshard_after_forward, **options)
    original = type(model)
    fully_shard(model, **options)
    # The class that torch put in its place is saved as what it was: by its name, and with the code of its module.
    type(model).__name__, type(model).__module__ = original.__name__, original.__module__
    plugin.auto_wrap_policy = None  # accelerate would look for the layers' classes, which have new names now
