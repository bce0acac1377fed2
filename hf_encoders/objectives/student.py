"""Students initialised from some of their teacher's layers (Sanh et al. 2019, section 3; `extract_distilbert.py`)."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from hf_encoders.models.encoder_configuration import BertFieldsConfig, EncoderConfig
from hf_encoders.models.encoder_heads import EncoderForMaskedLM
from hf_encoders.registration import config_class_of, configurations


LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def spread_layers(teacher_layers: int, student_layers: int) -> list[int]:
    """Return the layers of the teacher for a student, evenly spread, with the first and the last.

    >>> spread_layers(12, 6), spread_layers(4, 2), spread_layers(12, 1)
    ([0, 2, 4, 7, 9, 11], [0, 3], [0])
    """
    last = teacher_layers - 1
    return [round(last * layer / max(student_layers - 1, 1)) for layer in range(student_layers)]


def student_family(teacher: EncoderConfig) -> str:
    """Return the family of a teacher's students by default: one that is made for them, or its own.

    >>> from hf_encoders import HfeBertConfig, HfeRobertaConfig
    >>> student_family(HfeBertConfig()), student_family(HfeRobertaConfig())
    ('distilbert', 'roberta')
    """
    for config_class in configurations():
        if teacher.model_type in config_class.STUDENT_OF:
            return config_class.model_type
    return teacher.model_type


def student_config(
    teacher: EncoderConfig, layers: int | Sequence[int], family: str | None = None, **fields: Any
) -> EncoderConfig:
    """Return the teacher's configuration with fewer layers, in the family `family` (`student_family` by default).

    `layers` is their number, or the teacher's layers that they begin with.

    `fields` are of the student's family and replace the teacher's; those that only the teacher's family has are left
    out.

    Raises:
        ValueError: for a family whose models are no students of the teacher's, and as the configuration.
    """
    config_class = config_class_of(family or student_family(teacher))
    if teacher.model_type not in (config_class.model_type, *config_class.STUDENT_OF):
        able = [student.model_type for student in configurations() if teacher.model_type in student.STUDENT_OF]
        raise ValueError(
            f"family {config_class.model_type!r}: a {teacher.model_type} teacher has students of the family "
            f"{' or '.join([*able, teacher.model_type])}."
        )
    shared = fields_of(teacher)
    if config_class.model_type != teacher.model_type:
        both = {field.name for field in dataclasses.fields(BertFieldsConfig)}
        both &= {field.name for field in dataclasses.fields(config_class)} | config_class.attribute_map.keys()
        shared = {name: value for name, value in shared.items() if name in both}
    is_number = isinstance(layers, int)
    shared["num_hidden_layers"] = layers if is_number else len(layers)
    # What says something of each layer is left to the configuration where the layers are new.
    of_each = teacher.fields_of_layers([*range(teacher.num_hidden_layers)] if is_number else layers)
    shared |= {name: None if is_number else value for name, value in of_each.items() if name in shared}
    return config_class(**{**{config_class.own_name(name): value for name, value in shared.items()}, **fields})


def fields_of(config: EncoderConfig) -> dict[str, Any]:
    """Return a configuration's fields by the family's names, without those that all of transformers' have."""
    general = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    names = (field.name for field in dataclasses.fields(config))
    return {name: getattr(config, name) for name in names if name not in general}


def student_from(
    teacher: PreTrainedModel, layers: Sequence[int] | None = None, family: str | None = None, **fields: Any
) -> PreTrainedModel:
    """Return a student of some of the teacher's layers, with its embeddings and its masked-LM head.

    Args:
        teacher (`PreTrainedModel`): With a masked-LM head, of this package; `from_pretrained` loads published ones.
        layers (`Sequence[int]`, *optional*): Numbers of the teacher's layers from 0, in the student's order. None
            means half of them, evenly spread: 0 2 4 7 9 11 of 12, as DistilBERT.
        family (`str`, *optional*): Of the student: `distilbert` for a BERT by default (the embedding of token type 0
            goes into the positions, exactly), or the teacher's own.
        fields: Of the student's configuration, where not the teacher's; sizes of weights cannot differ.

    Returns:
        `PreTrainedModel`: The family's class for masked LM, in training mode, with weights of its own.

    Raises:
        ValueError: for layers that the teacher does not have, weights that all layers share (ALBERT), another family,
            or fields that change the size of a weight; a student of other sizes is a new model: make it from its
            configuration.
    """
    check_masked_lm("teacher", teacher)
    depth = teacher.config.num_hidden_layers
    layers = check_layers(spread_layers(depth, max(depth // 2, 1)) if layers is None else layers, depth)
    config = student_config(teacher.config, layers, family, **fields)
    return initialise(transformers.AutoModelForMaskedLM.from_config(config), teacher, layers)


def initialise(student: PreTrainedModel, teacher: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """Copy layers of the teacher, its embeddings and its head into a student of as many layers; return the student."""
    family, config = teacher.config.model_type, student.config
    depth = teacher.config.num_hidden_layers
    check_equal(config, teacher.config, "position_embedding_type")
    weights = weights_of_layers(teacher.state_dict(), check_layers(layers, depth), depth)
    for name, value in teacher.config.fields_of_layers(layers).items():
        if getattr(config, name, value) != value:
            raise ValueError(f"{name}={getattr(config, name)}: the teacher's layers have {value}: leave it out.")
    if config.model_type != family:
        if not config.has_position_table:
            raise ValueError(
                f"model: the teacher's token types go into absolute positions, which a {config.model_type} of "
                f"distances has not: choose the family {family} for the student."
            )
        weights = getattr(student, f"weights_of_{family}")(weights)
    take_weights(student, weights)
    check_equal(config, teacher.config, "num_attention_heads")  # with others the same weights compute something else
    return student


def check_masked_lm(name: str, model: PreTrainedModel) -> None:
    """Refuse a model without a masked-LM head of this package."""
    if not isinstance(model, EncoderForMaskedLM):
        raise ValueError(
            f"{name} is a {type(model).__name__}, which has no masked-LM head of this package: load it with "
            "hf_encoders' class for masked LM, such as HfeBertForMaskedLM.from_pretrained(...)."
        )


def check_equal(student: EncoderConfig, teacher: EncoderConfig, name: str) -> None:
    """Refuse a field of the student, by BERT's name, that is not the teacher's."""
    value, expected = getattr(student, name), getattr(teacher, name)
    if value != expected:
        raise ValueError(f"{student.own_name(name)}={value!r}: the teacher's weights need {expected!r}: leave it out.")


def check_layers(layers: Iterable[int], depth: int) -> list[int]:
    """Return the numbers of layers, checked."""
    layers = list(layers)
    if not layers:
        raise ValueError("layers is empty: give the teacher's layers to begin with, such as 0 2 4.")
    for layer in layers:
        if not isinstance(layer, int) or isinstance(layer, bool) or not 0 <= layer < depth:
            raise ValueError(f"layers: {layer!r} is not a layer of the teacher, which has 0 to {depth - 1}.")
    return layers


def weights_of_layers(
    weights: Mapping[str, torch.Tensor], layers: Sequence[int], depth: int
) -> dict[str, torch.Tensor]:
    """Return the weights of the chosen of `depth` layers, numbered from 0, and all that are of no layer.

    >>> weights = {"encoder.layer.0.bias": 1, "encoder.layer.1.bias": 2, "embeddings.weight": 3}
    >>> weights_of_layers(weights, [1], depth=2)
    {'encoder.layer.0.bias': 2, 'embeddings.weight': 3}
    """
    numbered = {name: [int(number) for number in LAYER_NUMBER.findall(name)] for name in weights}
    of_layers = {name: numbers[0] for name, numbers in numbered.items() if numbers}
    if any(len(numbers) > 1 for numbers in numbered.values()) or set(of_layers.values()) != set(range(depth)):
        raise ValueError(
            f"layers: the teacher's {depth} layers have no weights of their own each (as in ALBERT, where they "
            "are shared), so a student of some of them is the same model run fewer times: choose another teacher."
        )
    chosen = {}
    for name, value in weights.items():
        if name not in of_layers:
            chosen[name] = value
        for number, layer in enumerate(layers):
            if of_layers.get(name) == layer:
                chosen[LAYER_NUMBER.sub(str(number), name)] = value
    return chosen


def take_weights(student: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy the weights into the student, all of them in its shapes."""
    state = student.state_dict()
    for name, value in state.items():
        if name not in weights:
            raise ValueError(f"the teacher has no weight for {name} of {type(student).__name__}: leave fields out.")
        if weights[name].shape != value.shape:
            raise ValueError(
                f"{name} is {tuple(value.shape)} in the student and {tuple(weights[name].shape)} in the teacher: "
                "leave out the field that changes it, or make a new student from its configuration."
            )
    if student.device.type != "meta":
        student.load_state_dict({name: weights[name] for name in state})
