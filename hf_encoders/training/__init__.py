"""What plugs into `Trainer`: a thin subclass for pre-training, and callbacks."""

from hf_encoders.training.callbacks import CompactProgressCallback, EpochCallback, HubCodeCallback
from hf_encoders.training.faults.checkpoints import newest_good_checkpoint
from hf_encoders.training.faults.fault_tolerance import FaultTolerantTrainer
from hf_encoders.training.faults.interruption import InterruptionCallback
from hf_encoders.training.health.callback import HealthCallback
from hf_encoders.training.health.finite_losses import NonFiniteLossError
from hf_encoders.training.mask_rate import MaskRate
from hf_encoders.training.trainer import PreTrainingTrainer


__all__ = [
    "CompactProgressCallback",
    "EpochCallback",
    "FaultTolerantTrainer",
    "HealthCallback",
    "HubCodeCallback",
    "InterruptionCallback",
    "MaskRate",
    "NonFiniteLossError",
    "PreTrainingTrainer",
    "newest_good_checkpoint",
]
