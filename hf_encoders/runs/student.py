"""Load the teacher and make the recipe of the student, from the options of `hf-encoders distil`."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from hf_encoders.objectives.student import spread_layers
from hf_encoders.objectives.teacher import LOSS_WEIGHTS
from hf_encoders.loading import load_weights, read_config
from hf_encoders.models.encoder_checkpoints import encoder_weights
from hf_encoders.objectives.distillation import Distillation
from hf_encoders.runs.model_config import config_of_fields
from hf_encoders.runs.recipe import Recipe
from hf_encoders.publishing.files import GENERATOR_FOLDER


def load_teacher(name: str) -> PreTrainedModel:
    """The teacher with its masked-LM head, in float32.

    Raises:
        ValueError: as `load_weights`, and for a checkpoint without the head, or with an incomplete encoder.
    """
    config = read_config(name, "TEACHER")
    if type(config) not in transformers.AutoModelForMaskedLM._model_mapping:
        raise ValueError(
            f"TEACHER {name!r} is of {config.model_type}, which has no head for masked tokens, and the student learns "
            "from its scores: choose another teacher."
        )
    teacher, missing, _ = load_weights(name, transformers.AutoModelForMaskedLM, config, "TEACHER")
    if lacking := encoder_weights(teacher) & set(missing):
        raise ValueError(
            f"TEACHER {name!r} has no {min(lacking)}, one of {len(lacking)} weights of the encoder: give a complete "
            "checkpoint."
        )
    if missing:
        remedy = "give the checkpoint of the pre-training, with the head"
        if Path(name, GENERATOR_FOLDER).is_dir():
            remedy = f"give the generator, {name}/{GENERATOR_FOLDER}, and --tokenizer {name}"
        raise ValueError(
            f"TEACHER {name!r} has no masked-LM head ({missing[0]} is missing), and the student learns from its "
            f"scores: {remedy}."
        )
    return teacher


def recipe_for(recipe: Recipe, arguments: argparse.Namespace, teacher_family: str, family: str) -> Recipe:
    """The recipe with the options of the command line, for a student of `family`."""
    options: dict[str, Any] = dict(recipe.options)
    for name in ("soft_targets", "temperature"):
        if getattr(arguments, name) is not None:
            options[name] = getattr(arguments, name)
    if arguments.loss_weights is not None:
        options["loss_weights"] = dict(zip(LOSS_WEIGHTS, arguments.loss_weights, strict=True))
    if family != recipe.family and recipe.model:
        raise ValueError(
            f"--recipe {recipe.name}: its model: is of the family {recipe.family}, and the student of a "
            f"{teacher_family} is a {family}: choose a recipe that sets no model, or --family {recipe.family}."
        )
    return dataclasses.replace(recipe, family=family, options=options)


def default_layers(recipe: Recipe, depth: int) -> list[int]:
    """As many of the teacher's `depth` layers as the recipe's model has, or half of them, evenly spread."""
    number = recipe.model.get(recipe.config_class.own_name("num_hidden_layers"), max(depth // 2, 1))
    if number > depth:
        raise ValueError(f"model: {number} layers, and the teacher has {depth}: give fewer, or --fresh.")
    return spread_layers(depth, number)


def check_student(recipe: Recipe, objective: Distillation) -> None:
    """Make the student without memory: refuses sizes that do not fit the teacher before there is text.

    Raises:
        ValueError: as `initialise` and `with_teacher`.
    """
    fields = objective.model_fields(recipe.config_class)
    if objective.layers is not None:
        number = recipe.config_class.own_name("num_hidden_layers")
        if recipe.model.get(number, len(objective.layers)) != len(objective.layers):
            raise ValueError(f"--layers: {len(objective.layers)} layers, and model: {number}={recipe.model[number]}.")
    with torch.device("meta"):
        objective.new_model(config_of_fields(recipe.config_class, {**fields, **recipe.model}))
