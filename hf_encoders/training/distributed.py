"""Distributed runs: launch checks, FSDP2 sharding by layer, and reductions over processes.

Launchers that fall back to one process, or to DDP, do so silently: the run then takes twice the time or memory, or
several copies of it write into one folder. Each check is for a case seen with accelerate 1.15.
"""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging


logger = logging.get_logger(__name__)


def check_precision(arguments: TrainingArguments) -> None:
    """Refuse float16 on a CPU, where accelerate silently trains in float32."""
    if arguments.mixed_precision == "fp16" and arguments.device.type == "cpu":
        asked = "fp16" if arguments.fp16 else "accelerate's mixed_precision=fp16"
        raise ValueError(f"{asked}: float16 mixed precision needs an accelerator: use bf16, or leave it out.")


def check_launch(args: TrainingArguments, accelerator: Accelerator) -> None:
    """Refuse a run with other processes or another sharding than requested.

    Raises:
        ValueError: If one process runs where `WORLD_SIZE` or `accelerate launch --num_processes` requested more, if
            FSDP was requested and is not in effect, or for float16 on a CPU.
    """
    check_precision(args)
    if args.world_size == 1:
        _check_single_process()
    if requests_sharding(args) and accelerator.distributed_type != DistributedType.FSDP:
        raise ValueError(
            f"fsdp was requested, but this run is {accelerator.distributed_type.value} with {args.world_size} "
            "process(es): accelerate shards only on accelerators and over several processes. Omit fsdp, or start with "
            "torchrun or accelerate launch on GPUs, without use_cpu."
        )


def requests_sharding(args: TrainingArguments) -> bool:
    """Return whether the arguments or accelerate's configuration request FSDP."""
    return bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def _check_single_process() -> None:
    """Refuse one process where more were requested; warn of independent copies."""
    environment = os.environ
    requested = int(environment.get("WORLD_SIZE", 1))
    if requested > 1:
        missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR") if name not in environment]
        reason = f"{', '.join(missing)} not set" if missing else "accelerate is configured for one"
        raise ValueError(
            f"WORLD_SIZE={requested}, but this process runs alone ({reason}): start with torchrun, which sets every "
            "variable needed, or unset WORLD_SIZE."
        )
    # accelerate launch sets MASTER_ADDR for several processes only, and the precision always.
    if "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment and "RANK" not in environment:
        raise ValueError(
            "accelerate launch was given num_processes above 1 (or several machines) and started one process, as it "
            "does on CPUs without mpirun: use torchrun --nproc_per_node N with --use_cpu, or num_processes=1."
        )
    # Set inside a step of Slurm's srun; the copies may be intended, such as one per seed.
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks > 1:
        logger.warning(
            f"srun started {tasks} tasks, each of them an independent run: for one distributed run, start "
            "torchrun in one task per machine (docs/scaling.md); otherwise give each its own output_dir."
        )


def shard(accelerator: Accelerator, model: nn.Module) -> None:
    """Shard parameters, gradients and optimizer state with FSDP2, if requested: one unit per layer, one for the rest.

    The rest (embeddings, pooler, heads) is a single unit, gathered once per step, because the word embeddings are tied
    to the MLM head's projection. accelerate 1.15 makes separate units of embeddings and projection, and torch 2.13
    refuses parameters shared by two units: transformers' encoders with an MLM head cannot be trained that way.

    Args:
        accelerator (`Accelerator`): Before it prepares the model.
        model (`nn.Module`): Changed in place unless sharded already; its layers are the `GradientCheckpointingLayer`s.

    Raises:
        ValueError: For FSDP settings that do not apply.
    """
    if not accelerator.is_fsdp2 or isinstance(model, FSDPModule):
        return
    plugin = accelerator.state.fsdp_plugin
    for name, remedy in (
        ("cpu_ram_efficient_loading", "leave it false, encoders fit in memory"),
        ("activation_checkpointing", "use TrainingArguments.activation_checkpointing"),
    ):
        if vars(plugin)[name]:
            raise ValueError(f"fsdp {name}=True: PreTrainingTrainer shards the model itself; {remedy}.")
    if accelerator.mixed_precision != "no":
        model.float()  # the optimizer updates float32 parameters
    mesh = accelerator.torch_device_mesh
    options = {
        "mesh": None if mesh is None else mesh[tuple(accelerator.parallelism_config.fsdp_dim_names)],
        "offload_policy": plugin.cpu_offload,
        # Only autocast rounds, as under DDP (see `PreTrainingTrainer.autocast_smart_context_manager`). accelerate's
        # policy would also round the gradient sums over processes, and the losses and counts of the outputs.
        "mp_policy": MixedPrecisionPolicy(),
    }
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, reshard_after_forward=plugin.reshard_after_forward, **options)
    original = type(model)
    fully_shard(model, **options)
    # `save_pretrained` stores the class name and copies the module's code: those of the original class.
    type(model).__name__, type(model).__module__ = original.__name__, original.__module__
    plugin.auto_wrap_policy = None  # accelerate would look for the layers' classes, which have new names


def any_process(flag: bool, device: torch.device | str) -> bool:
    """Return whether `flag` is true in any process; see `max_over_processes`."""
    return max_over_processes(int(flag), device) > 0


def max_over_processes(number: int, device: torch.device | str) -> int:
    """Return the maximum over all processes, each of which must call this; alone, `number` itself.

    `device` is where the process group exchanges tensors (`TrainingArguments.device`).
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return number
    tensor = torch.tensor(number, dtype=torch.int64, device=device)
    distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
    return int(tensor)
