"""Operations that a batch of the benchmark needs; what they are is in `hf_encoders/records/flops.py`."""

from hf_encoders.benchmark.rows import Batch
from hf_encoders.benchmark.settings import Setting
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.records.flops import forward_flops


def needed_flops(config: EncoderConfig, batch: Batch, setting: Setting) -> int:
    """Operations that a step of the task needs for a batch."""
    if not setting.trains:
        return forward_flops(config, batch.lengths)
    pairs = len(batch.rows) if setting.pretrains.has_example_labels else 0
    return 3 * forward_flops(config, batch.lengths, batch.predicted, pairs)
