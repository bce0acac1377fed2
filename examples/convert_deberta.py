# /// script
# dependencies = ["hf_encoders"]
# ///
"""Make a folder of a published pair of DeBERTa v3, discriminator and generator, to continue their training.

    python examples/convert_deberta.py --discriminator pytorch_model.bin --generator pytorch_model.generator.bin \
        --config config.json --tokenizer microsoft/deberta-v3-base --output_dir runs/pair
    hf-encoders adapt runs/pair --objective rtd --corpus text/ --output runs/adapted

The files are those of microsoft/deberta-v3-base and its kin on the Hub. Only tensors are read of them: a file with
other objects in it is refused. Plain transformers reads the result too, as the discriminator.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from hf_encoders import (
    HfeDebertaV2Config,
    HfeDebertaV2ForMaskedLM,
    HfeDebertaV2ForPreTraining,
    ReplacedTokenDetectionModel,
)

import torch
from transformers import AutoTokenizer, HfArgumentParser, PreTrainedModel


@dataclass
class Arguments:
    """Options of this example."""

    discriminator: str = field(metadata={"help": "file of weights, pytorch_model.bin"})
    generator: str = field(metadata={"help": "file of weights, pytorch_model.generator.bin"})
    config: str = field(metadata={"help": "config.json of the discriminator"})
    tokenizer: str = field(metadata={"help": "path or Hub name of their tokenizer"})
    output_dir: str = field(metadata={"help": "folder of the models"})


def weights_of(file: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a file; ValueError for one with other objects."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{file} holds more than tensors, or is no file of torch: {error}") from error


def loaded(model: PreTrainedModel, weights: dict[str, torch.Tensor], file: str) -> PreTrainedModel:
    """Return the model with the weights; ValueError if some are missing. Others are of heads that it lacks."""
    names = model.state_dict().keys()
    # Discriminators were published with positions, which only generators read.
    keys = model.load_state_dict({name: value for name, value in weights.items() if name in names}, strict=False)
    if keys.missing_keys:
        raise ValueError(f"{file} has no {min(keys.missing_keys)}, which a {type(model).__name__} needs.")
    return model


def main() -> None:
    """Convert one pair."""
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    config = HfeDebertaV2Config.from_dict(json.loads(Path(arguments.config).read_text(encoding="utf-8")))
    weights, of_generator = weights_of(arguments.discriminator), weights_of(arguments.generator)
    layers = {int(found[1]) for name in of_generator if (found := re.search(r"encoder\.layer\.(\d+)\.", name))}
    config.generator_depth = len(layers) / config.num_hidden_layers
    pair = ReplacedTokenDetectionModel(
        config,
        loaded(HfeDebertaV2ForPreTraining(config), weights, arguments.discriminator),
        loaded(HfeDebertaV2ForMaskedLM(config.generator_config()), of_generator, arguments.generator),
    )
    pair.save_pretrained(arguments.output_dir)
    tokenizer.save_pretrained(arguments.output_dir)
    print(f"{arguments.output_dir}: {config.num_hidden_layers} layers, and {len(layers)} of the generator")


if __name__ == "__main__":
    main()
