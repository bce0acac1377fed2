"""What plugs into `Trainer`: a thin subclass for pre-training, and callbacks."""

from hf_encoders.training.callbacks import CompactProgressCallback, EpochCallback, HubCodeCallback
from hf_encoders.training.finite_losses import NonFiniteLossError
from hf_encoders.training.health import HealthCallback
from hf_encoders.training.mask_rate import LinearMaskRate
from hf_encoders.training.trainer import PreTrainingTrainer


__all__ = [
    "CompactProgressCallback",
    "EpochCallback",
    "HealthCallback",
    "HubCodeCallback",
    "LinearMaskRate",
    "NonFiniteLossError",
    "PreTrainingTrainer",
]
