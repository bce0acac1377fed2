"""What a saved directory says of itself: the head that was saved, the model that reads it."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from hf_encoders.loading import read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.saved_files import INDEX_FILE, weight_files


def saved_head(config: EncoderConfig, head: str | None = None) -> str:
    """The Auto class of the head that a configuration was saved with, `AutoModelForMaskedLM` for example.

    Args:
        config: as read from a directory.
        head (`str`, *optional*): an Auto class, which is asked for instead.

    Raises:
        ValueError: if the family has no such head, or `architectures` names none.
    """
    served = [auto_class for auto_class in config.AUTO_MAP if auto_class != "AutoConfig"]
    if head is not None:
        if head not in served:
            raise ValueError(f"head={head!r}: {config.model_type} has {', '.join(served)}.")
        return head
    architectures = [name.removeprefix("Hfe") for name in config.architectures or ()]
    # A class that serves two Auto classes, RoBERTa's MLM head, goes by the last: the task, not "pre-training".
    for auto_class in reversed(served):
        if class_name(config, auto_class).removeprefix("Hfe") in architectures:
            return auto_class
    raise ValueError(
        f"config.json has architectures={config.architectures!r}, which names no head of {config.model_type}: save "
        f"the model with save_pretrained, or name the head: {', '.join(served)}."
    )


def class_name(config: EncoderConfig, auto_class: str) -> str:
    """Name of this package's class behind an Auto class."""
    return config.AUTO_MAP[auto_class].rpartition(".")[2]


def model_class(config: EncoderConfig, auto_class: str) -> type[PreTrainedModel]:
    """This package's class behind an Auto class."""
    return getattr(transformers, auto_class)._model_mapping[type(config)]


def native_class(config: EncoderConfig, auto_class: str) -> type[PreTrainedModel]:
    """The class of transformers itself that computes the same."""
    return getattr(transformers, class_name(config, auto_class).removeprefix("Hfe"))


def load_source(source: str | Path, auto_class: str) -> PreTrainedModel:
    """The checkpoint by this package's class, in float32 and eval mode.

    Args:
        source: directory or repository.
        auto_class (`str`): the head; a base model comes without pooler where the weights have none.

    Raises:
        ValueError: if parameters of the head are not in the weights: they would be random numbers; and for an index
            that names shards outside of the directory.
    """
    if (Path(source) / INDEX_FILE).is_file():
        weight_files(Path(source))  # refuses shards outside of the directory, which transformers would read
    kind = model_class(read_config(source), auto_class)
    ways: list[dict[str, Any]] = [{}, {"add_pooling_layer": False}] if auto_class == "AutoModel" else [{}]
    for arguments in ways:
        model, found = kind.from_pretrained(str(source), output_loading_info=True, dtype=torch.float32, **arguments)
        new = sorted(found["missing_keys"])
        if not new:
            return model.eval()
    raise ValueError(
        f"{source} has no weights for {', '.join(new[:3])}{' ...' if len(new) > 3 else ''} of {kind.__name__}: "
        "they would be random numbers. Fine-tune that head first, or choose the one that was saved."
    )


def pooler_arguments(model: PreTrainedModel, auto_class: str) -> dict[str, bool]:
    """What `from_pretrained` must be told, so that a base model without pooler gets no random one."""
    return {"add_pooling_layer": False} if auto_class == "AutoModel" and model.pooler is None else {}
