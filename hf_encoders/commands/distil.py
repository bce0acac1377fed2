"""`hf-encoders distil TEACHER --corpus DIR --output DIR`: a smaller encoder that learns from a larger one.

TEACHER is a folder or a name on the Hub: a masked language model of this package or of transformers, your own or a
published one. The student begins with some of its layers (--layers), its embeddings and its head, and learns from its
scores (soft targets), the masked tokens and its hidden states, as DistilBERT. A BERT's student is a DistilBERT, any
other's of the teacher's own family. The tokenizer is the teacher's. The teacher is not saved: give the same one, by
the same name or another, to resume.

--corpus is text, or a corpus that `hf-encoders corpus` made with the teacher's tokenizer. Recipe, fields of
transformers.TrainingArguments, --plan, resuming and extending are as for `hf-encoders pretrain` (see its --help).
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from hf_encoders.distillation import DistillationOptions, spread_layers, student_family
from hf_encoders.distillation.student import check_layers
from hf_encoders.distillation.teacher import LOSS_WEIGHTS, SOFT_TARGETS, TEMPERATURE
from hf_encoders.loading import check_first_position, check_rows, load_tokenizer, load_weights, read_config
from hf_encoders.models.encoder_checkpoints import encoder_weights
from hf_encoders.objectives import get_objective
from hf_encoders.objectives.distillation import Distillation
from hf_encoders.recipes.command import add_run_arguments, begin_from, train_run
from hf_encoders.recipes.model_config import config_of_fields
from hf_encoders.recipes.recipe import Recipe, load_recipe, recipe_names
from hf_encoders.records.training_record import name_of_checkpoint
from hf_encoders.registration import configurations
from hf_encoders.saved_files import GENERATOR_FOLDER


RECIPE = "distilbert-base"
TERMS = tuple(LOSS_WEIGHTS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("teacher", metavar="TEACHER", help="folder or name on the Hub of a masked language model")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--layers",
        type=int,
        nargs="+",
        metavar="N",
        help="the teacher's layers, from 0, that the student begins with (default: as many as the recipe says, or "
        "half, evenly spread: 0 2 4 7 9 11 of 12)",
    )
    begin.add_argument(
        "--fresh",
        action="store_true",
        help="random weights instead; model: of the recipe then sets sizes, where they are not the teacher's",
    )
    parser.add_argument(
        "--family",
        choices=sorted(config_class.model_type for config_class in configurations()),
        help="of the student (default: distilbert for a bert, otherwise the teacher's)",
    )
    names = [name for name in recipe_names() if name.startswith("distil")]
    parser.add_argument(
        "--recipe", default=RECIPE, metavar="RECIPE", help=f"{', '.join(names)}; or a YAML file (default: {RECIPE})"
    )
    defaults = DistillationOptions()
    parser.add_argument(
        "--soft-targets",
        choices=SOFT_TARGETS,
        help="tokens whose scores are compared with the teacher's: those that are predicted, or all, which takes "
        f"longer (default: the recipe's, or {defaults.soft_targets})",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help=f"of the soft targets, above 0 (default: the recipe's, or {TEMPERATURE:g})",
    )
    weights = " ".join(f"{weight:g}" for weight in LOSS_WEIGHTS.values())
    parser.add_argument(
        "--loss-weights",
        type=float,
        nargs=len(TERMS),
        metavar=tuple(name.upper() for name in TERMS),
        help="weights of soft targets, masked tokens and cosine of hidden states; 0 leaves one out (default: the "
        f"recipe's, or {weights})",
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR_OR_NAME", help="the teacher's, if it is elsewhere (default: in TEACHER)"
    )
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train a student."""
    recipe = load_recipe(arguments.recipe)
    if not isinstance(get_objective(recipe.objective), Distillation):
        raise ValueError(
            f"--recipe {recipe.name}: objective {recipe.objective} has no teacher: choose a recipe of distillation, "
            f"or `hf-encoders pretrain {recipe.name}`."
        )
    config = read_config(arguments.teacher, "TEACHER")
    teacher = load_teacher(arguments.teacher)
    recipe = recipe_for(recipe, arguments, config.model_type, arguments.family or student_family(config))
    longest = teacher.base_model.longest_row()
    if recipe.longest > longest:
        raise ValueError(
            f"phases: examples of {recipe.longest} tokens, and TEACHER {arguments.teacher!r} takes {longest}: choose "
            "a recipe of shorter ones."
        )
    depth = teacher.config.num_hidden_layers
    layers = None if arguments.fresh else check_layers(arguments.layers or default_layers(recipe, depth), depth)
    objective = recipe.own_objective.of_teacher(teacher, name_of_checkpoint(arguments.teacher), layers)
    check_student(recipe, objective)
    begin_from(arguments.teacher, arguments, "TEACHER")
    tokenizer, what = load_tokenizer(arguments.tokenizer, "--tokenizer"), f"TEACHER {arguments.teacher!r}"
    check_rows(tokenizer, config, what)
    check_first_position(config, tokenizer, what)
    return train_run(arguments, recipe, objective)


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
        options["loss_weights"] = dict(zip(TERMS, arguments.loss_weights, strict=True))
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
