"""What plugs into `Trainer`: a thin subclass for pre-training, and callbacks."""

from hf_encoders.training.callbacks import EpochCallback, HubCodeCallback
from hf_encoders.training.trainer import PreTrainingTrainer


__all__ = ["EpochCallback", "HubCodeCallback", "PreTrainingTrainer"]
