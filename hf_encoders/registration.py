"""Tells transformers' Auto classes about the models of this package.

Registration is soft: a configuration of ours gives a model of ours, and every other BERT in the process stays
transformers' own. It happens when this module is imported, which the first use of a public name of `hf_encoders` does.
`take_over_auto_classes()` is the explicit alternative.
"""

import importlib
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForQuestionAnswering, AutoTokenizer
from transformers.pipelines import PIPELINE_REGISTRY

from hf_encoders.models.configuration_albert import HfeAlbertConfig
from hf_encoders.models.configuration_bert import HfeBertConfig
from hf_encoders.models.configuration_roberta import HfeRobertaConfig
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.models.question_answering_pipeline import HfeQuestionAnsweringPipeline


# transformers 5 refuses `question-answering` for model instances, whatever is registered: it had that task itself.
ANSWERING_TASK = "extractive-question-answering"
CONFIGURATIONS: tuple[type[EncoderConfig], ...] = (HfeBertConfig, HfeRobertaConfig, HfeAlbertConfig)


def register() -> None:
    """Register configuration -> model and configuration -> tokenizer, and mark all classes for `auto_map`.

    And the pipeline of question answering under a name that transformers does not have.

    `register_for_auto_class` is what makes `save_pretrained` copy the code files beside the weights.
    """
    for config_class in CONFIGURATIONS:
        config_class.register_for_auto_class()
        for auto_class, reference in config_class.AUTO_MAP.items():
            if auto_class == "AutoConfig":
                continue
            model_class = _model_class(reference)
            getattr(transformers, auto_class).register(config_class, model_class, exist_ok=True)
            model_class.register_for_auto_class(auto_class)
        tokenizer_class = getattr(transformers, config_class.TOKENIZER_CLASS)
        AutoTokenizer.register(config_class, tokenizer_class, exist_ok=True)
    if ANSWERING_TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(
            ANSWERING_TASK, HfeQuestionAnsweringPipeline, pt_model=AutoModelForQuestionAnswering, type="text"
        )


def take_over_auto_classes() -> None:
    """Make `AutoModel....from_pretrained` load *every* BERT, RoBERTa and ALBERT checkpoint of this process as ours.

    A choice for training scripts that load published checkpoints by name and should not ask for `trust_remote_code`.
    It cannot be undone within the process, and classes of transformers that embed a BERT see ours too.
    """
    for config_class in CONFIGURATIONS:
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        # `AutoConfig.register` takes no second name; this is the one on disk where transformers' class would not do.
        CONFIG_MAPPING.register(f"hfe_{config_class.model_type}", config_class, exist_ok=True)


def _model_class(reference: str) -> type:
    module, name = reference.split(".")
    return getattr(importlib.import_module(f"hf_encoders.models.{module}"), name)


def public_names() -> dict[str, Any]:
    """Name -> object: every class of every family, and `take_over_auto_classes`."""
    names: dict[str, Any] = {"take_over_auto_classes": take_over_auto_classes}
    for config_class in CONFIGURATIONS:
        names[config_class.__name__] = config_class
        for auto_class, reference in config_class.AUTO_MAP.items():
            if auto_class != "AutoConfig":
                model_class = _model_class(reference)
                names[model_class.__name__] = model_class
    return names


register()
