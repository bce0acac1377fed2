"""The head of a saved directory and the classes that load it."""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from hf_encoders.loading import check_loaded, read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.saved_files import INDEX_FILE, weight_files


def saved_head(config: EncoderConfig, head: str | None = None) -> str:
    """The Auto class of the head that was saved with a configuration, such as `AutoModelForMaskedLM`, or `head`.

    Raises:
        ValueError: If the family does not have the head, or `architectures` does not name one.
    """
    served = [auto_class for auto_class in config.AUTO_MAP if auto_class != "AutoConfig"]
    if head is not None:
        if head not in served:
            raise ValueError(f"head={head!r}: {config.model_type} has {', '.join(served)}.")
        return head
    if (auto_class := auto_class_of(config, config.architectures or ())) is not None:
        return auto_class
    classes = dict.fromkeys(class_name(config, auto_class).removeprefix("Hfe") for auto_class in served)
    raise ValueError(
        f"config.json has architectures={config.architectures!r}, which names no head of {config.model_type}: "
        f"write there which class its weights are of: {', '.join(classes)}."
    )


def auto_class_of(config: EncoderConfig, architectures: Iterable[str]) -> str | None:
    """The Auto class of one of the model classes, with or without `Hfe`; None if the family has none of them.

    If two Auto classes have the same class, it is that of the task, the later one, and not `AutoModelForPreTraining`.
    The order is the family's own: in a saved config.json `auto_map` is sorted.
    """
    names = {name.removeprefix("Hfe") for name in architectures}
    served = [auto_class for auto_class in type(config).AUTO_MAP if auto_class != "AutoConfig"]
    return next((one for one in reversed(served) if class_name(config, one).removeprefix("Hfe") in names), None)


def class_name(config: EncoderConfig, auto_class: str) -> str:
    """Name of this package's class for an Auto class."""
    return config.AUTO_MAP[auto_class].rpartition(".")[2]


def model_class(config: EncoderConfig, auto_class: str) -> type[PreTrainedModel]:
    """This package's class for an Auto class."""
    return getattr(transformers, auto_class)._model_mapping[type(config)]


def native_class(config: EncoderConfig, auto_class: str) -> type[PreTrainedModel]:
    """Class of transformers itself for an Auto class."""
    return getattr(transformers, class_name(config, auto_class).removeprefix("Hfe"))


def load_source(source: str | Path, auto_class: str) -> PreTrainedModel:
    """Load a checkpoint with this package's class, in float32 and eval mode; without a pooler if it was not saved.

    Raises:
        ValueError: If parameters of the head are not in the weights, or the index names shards outside of the
            directory.
    """
    if (Path(source) / INDEX_FILE).is_file():
        weight_files(Path(source))  # raises for shards outside of the directory, which transformers would read
    kind = model_class(read_config(source), auto_class)
    ways: list[dict[str, Any]] = [{}, {"add_pooling_layer": False}] if may_have_pooler(kind) else [{}]
    for arguments in ways:
        model, found = kind.from_pretrained(str(source), output_loading_info=True, dtype=torch.float32, **arguments)
        new = sorted(found["missing_keys"])
        if not new:
            check_loaded(model, found["unexpected_keys"], str(source))
            return model.eval()
    raise ValueError(
        f"{source} has no weights for {', '.join(new[:3])}{' ...' if len(new) > 3 else ''} of {kind.__name__}: "
        "they would be randomly initialised. Fine-tune that head first, or choose the one that was saved."
    )


def pooler_arguments(model: PreTrainedModel, auto_class: str) -> dict[str, bool]:
    """Arguments of `from_pretrained` that prevent a randomly initialised pooler."""
    may_have = auto_class == "AutoModel" and may_have_pooler(type(model))
    return {"add_pooling_layer": False} if may_have and model.pooler is None else {}


def may_have_pooler(kind: type[PreTrainedModel]) -> bool:
    """Whether a class is built with or without a pooler: base models of most families."""
    return "add_pooling_layer" in inspect.signature(kind.__init__).parameters
