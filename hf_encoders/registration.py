"""Name the families of this package, and register them with transformers' Auto classes.

Registration is soft: a configuration of this package gives a model of this package, and every other BERT in the
process stays transformers' own. It happens at the first use of a public name of `hf_encoders`, or of
`configurations()`. `take_over_auto_classes()` is the explicit alternative.
"""

import importlib
from typing import TYPE_CHECKING

from hf_encoders.source_literals import literals


if TYPE_CHECKING:
    from hf_encoders.models.encoder_configuration import EncoderConfig


# Each is `configuration_<name>.py` and `modeling_<name>.py` in `models/`.
FAMILIES = (
    "bert",
    "roberta",
    "albert",
    "xlm_roberta",
    "xlm",
    "distilbert",
    "electra",
    "xlnet",
    "modernbert",
    "deberta_v2",
)
# transformers 5 refuses `question-answering` for model instances, whatever is registered: it had that task itself.
ANSWERING_TASK = "extractive-question-answering"
_registered: list[type["EncoderConfig"]] = []


def configurations() -> tuple[type["EncoderConfig"], ...]:
    """Return the configuration class of each family; the first call registers them."""
    register()
    return tuple(_registered)


def family_names() -> list[str]:
    """Return the `model_type` of each family, also of your own ones; imports none of them."""
    added = (config_class.model_type for config_class in _registered)
    return list(dict.fromkeys([*(name.replace("_", "-") for name in FAMILIES), *added]))


def vocabulary_kinds() -> dict[str, tuple[str, int]]:
    """Return the first family with each kind of vocabulary, and its default number of entries; imports none of them.

    >>> vocabulary_kinds()["bpe"]
    ('roberta', 50265)
    """
    kinds: dict[str, tuple[str, int]] = {}
    for family in FAMILIES:
        fields = {**literals("models.encoder_configuration"), **literals(f"models.configuration_{family}")}
        kinds.setdefault(fields["VOCABULARY_KIND"], (fields["model_type"], fields["vocab_size"]))
    return kinds


def config_class_of(family: str) -> type["EncoderConfig"]:
    """Return the configuration class of a family, by its `model_type`; ValueError if there is none."""
    for config_class in configurations():
        if config_class.model_type == family:
            return config_class
    known = ", ".join(config_class.model_type for config_class in configurations())
    raise ValueError(f"family {family!r}: it must be one of {known}.")


def family_classes() -> dict[str, type]:
    """Return every class of every family by name."""
    names: dict[str, type] = {}
    for config_class in configurations():
        model_classes = _model_classes(config_class).values()
        names |= {public_class.__name__: public_class for public_class in (config_class, *model_classes)}
    return names


def register() -> None:
    """Register the families of this package, and the question-answering pipeline; a second call changes nothing."""
    if _registered:
        return
    for family in FAMILIES:
        module = importlib.import_module(f"hf_encoders.models.configuration_{family}")
        (config_class,) = (
            value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__
        )
        _add_family(config_class)
    _register_answering_pipeline()


def add_family(config_class: type["EncoderConfig"]) -> None:
    """Register your own family; its models are in the modules that `AUTO_MAP` names, next to the configuration's."""
    register()
    _add_family(config_class)


def _add_family(config_class: type["EncoderConfig"]) -> None:
    import transformers

    from hf_encoders.compilation import compile_layers_only

    for auto_class, model_class in _model_classes(config_class).items():
        compile_layers_only(model_class)
        getattr(transformers, auto_class).register(config_class, model_class, exist_ok=True)
    tokenizer_class = getattr(transformers, config_class.TOKENIZER_CLASS)
    transformers.AutoTokenizer.register(config_class, tokenizer_class, exist_ok=True)
    if config_class not in _registered:
        _registered.append(config_class)


def take_over_auto_classes() -> None:
    """Make `AutoModel....from_pretrained` load every checkpoint of the families here as this package's own class.

    For training scripts that load published checkpoints by name without `trust_remote_code`. It cannot be undone
    within the process, and classes of transformers that embed a BERT get this package's too.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    for config_class in configurations():
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        # `AutoConfig.register` takes no second name; this one is written where transformers' class would not do.
        CONFIG_MAPPING.register(f"hfe_{config_class.model_type}", config_class, exist_ok=True)


def _model_classes(config_class: type["EncoderConfig"]) -> dict[str, type]:
    package = config_class.__module__.rpartition(".")[0]
    classes = {}
    for auto_class, reference in config_class.AUTO_MAP.items():
        if auto_class == "AutoConfig":
            continue
        module, name = reference.split(".")
        classes[auto_class] = getattr(importlib.import_module(f"{package}.{module}"), name, None)
        if classes[auto_class] is None:
            raise ValueError(
                f"AUTO_MAP of {config_class.__name__} names {reference} for {auto_class}, and {module}.py has no "
                f"{name}: write the class, or take it out of AUTO_MAP."
            )
    return classes


def _register_answering_pipeline() -> None:
    from transformers import AutoModelForQuestionAnswering
    from transformers.pipelines import PIPELINE_REGISTRY

    from hf_encoders.models.question_answering_pipeline import HfeQuestionAnsweringPipeline

    PIPELINE_REGISTRY.register_pipeline(
        ANSWERING_TASK, HfeQuestionAnsweringPipeline, pt_model=AutoModelForQuestionAnswering, type="text"
    )
