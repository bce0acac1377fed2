"""Teachers and students of a few thousand weights."""

from typing import Any

import torch
from transformers import PreTrainedModel

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM
from tests.models.tiny import right_padded, tiny_model


def make_teacher(model_class: type[PreTrainedModel] = HfeBertForMaskedLM, **fields: Any) -> PreTrainedModel:
    """Five layers, every weight random, dropout on."""
    return tiny_model(model_class, **{"num_hidden_layers": 5, **fields})


def make_batch(config: HfeBertConfig, lengths: tuple[int, ...] = (7, 4, 2, 6)) -> dict[str, torch.Tensor]:
    """Padded rows; two tokens a row are predicted."""
    batch = right_padded(config, lengths)
    labels = torch.full_like(batch["input_ids"], -100)
    labels[:, 0], labels[:, 1] = 5, 7
    return {**batch, "labels": labels}
