"""The families of this package, and their registration with transformers' Auto classes.

The first use of a class registers softly: a configuration of this package gives a model of this package, and every
other BERT in the process stays transformers' own. `take_over_auto_classes()` is the explicit alternative.

Importing this file loads neither torch nor transformers.
"""

import importlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from hf_encoders.models.encoder_configuration import EncoderConfig


# A family is `configuration_<name>.py` and `modeling_<name>.py` in `models/`, and its name here.
FAMILIES = ("bert", "roberta", "albert")
# transformers 5 refuses `question-answering` for model instances, whatever is registered: it had that task itself.
ANSWERING_TASK = "extractive-question-answering"
_PUBLIC_CLASS = re.compile(
    r"^class (Hfe\w+(?:Config|Model|For\w+))\b(?<!PreTrainedModel)(?<!HeadModel)(?<!Output)", re.MULTILINE
)


@cache
def public_names() -> dict[str, str]:
    """Names of the configurations and models of all families, and the module that defines each.

    >>> public_names()["HfeBertForMaskedLM"]
    'hf_encoders.models.modeling_bert'
    """
    modules = [f"{kind}_{family}" for family in FAMILIES for kind in ("configuration", "modeling")]
    sources = {module: Path(__file__).with_name("models") / f"{module}.py" for module in modules}
    return {
        name: f"hf_encoders.models.{module}"
        for module, source in sources.items()
        for name in _PUBLIC_CLASS.findall(source.read_text(encoding="utf-8"))
    }


def load_class(name: str) -> type:
    """The configuration or model class of that name, from `public_names()`."""
    return getattr(importlib.import_module(public_names()[name]), name)


@cache
def configurations() -> tuple[type["EncoderConfig"], ...]:
    """The configuration class of each family."""
    return tuple(load_class(name) for name in public_names() if name.endswith("Config"))


def config_class_of(family: str) -> type["EncoderConfig"]:
    """The configuration class of a family, by its `model_type`.

    Raises:
        ValueError: if there is no such family.
    """
    for config_class in configurations():
        if config_class.model_type == family:
            return config_class
    known = ", ".join(config_class.model_type for config_class in configurations())
    raise ValueError(f"family {family!r}: it must be one of {known}.")


def __getattr__(name: str) -> Any:
    if name == "CONFIGURATIONS":
        return configurations()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def register() -> None:
    """Register every family's models and tokenizer for its configuration, and the question-answering pipeline.

    `register_for_auto_class` makes `save_pretrained` copy the code files beside the weights.
    """
    import transformers
    from transformers.pipelines import PIPELINE_REGISTRY

    from hf_encoders.models.question_answering_pipeline import HfeQuestionAnsweringPipeline

    for config_class in configurations():
        config_class.register_for_auto_class()
        for auto_class, reference in config_class.AUTO_MAP.items():
            if auto_class == "AutoConfig":
                continue
            model_class = load_class(reference.partition(".")[2])
            getattr(transformers, auto_class).register(config_class, model_class, exist_ok=True)
            model_class.register_for_auto_class(auto_class)
        tokenizer_class = getattr(transformers, config_class.TOKENIZER_CLASS)
        transformers.AutoTokenizer.register(config_class, tokenizer_class, exist_ok=True)
    PIPELINE_REGISTRY.register_pipeline(
        ANSWERING_TASK,
        HfeQuestionAnsweringPipeline,
        pt_model=transformers.AutoModelForQuestionAnswering,
        type="text",
    )


def take_over_auto_classes() -> None:
    """Make `AutoModel....from_pretrained` load every checkpoint of the families here as this package's own class.

    For training scripts that load published checkpoints by name without `trust_remote_code`. It cannot be undone
    within the process, and classes of transformers that embed a BERT get this package's too.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    register()
    for config_class in configurations():
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        # `AutoConfig.register` takes no second name; this one is written where transformers' class would not do.
        CONFIG_MAPPING.register(f"hfe_{config_class.model_type}", config_class, exist_ok=True)
