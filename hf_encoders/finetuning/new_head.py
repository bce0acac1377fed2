"""The pre-trained encoder with the new head of a task."""

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_encoders.loading import load_weights
from hf_encoders.models.encoder_configuration import EncoderConfig


def load_model(
    name: str, auto_class: type, config: PreTrainedConfig, fields: dict[str, Any], from_scratch: bool = False
) -> PreTrainedModel:
    """The encoder with a new head, in float32.

    Args:
        name (`str`): Folder, or name on the Hub.
        auto_class (`type`): `transformers.AutoModelFor...`.
        config (`PreTrainedConfig`): From `load_config`; its class decides whose model classes are used.
        fields (`dict`): Of the head's configuration.
        from_scratch (`bool`, *optional*, defaults to `False`): Whether to initialise all weights randomly.
    """
    config = type(config).from_dict({**config.to_dict(), **fields, "model_type": config.model_type})
    if from_scratch:
        model = auto_class.from_config(config, dtype=torch.float32)
    else:
        model, missing = load_weights(name, auto_class, config)
        prefix = f"{model.base_model_prefix}."
        # A masked language model is saved without the pooler, which is then new, like the head.
        if absent := [key for key in missing if key.startswith(prefix) and "pooler" not in key]:
            raise ValueError(
                f"--model {name!r} has no weights for {absent[0]} and {len(absent) - 1} others of the encoder: give "
                "one of this architecture, or --from-scratch."
            )
    if not isinstance(config, EncoderConfig):
        # transformers' heads accept Trainer's item count without dividing by it, so that accumulated micro-batches
        # would be summed instead of averaged.
        model.accepts_loss_kwargs = False
    return model
