"""`hf-encoders distil TEACHER --corpus DIR --output DIR`: train a smaller encoder that learns from a larger one.

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
from typing import TYPE_CHECKING

from hf_encoders.inputs import check_model
from hf_encoders.registration import family_names
from hf_encoders.runs.options import TEACHER, Sets, add_run_arguments, check_run
from hf_encoders.source_literals import constant


if TYPE_CHECKING:
    from hf_encoders.objectives.objective import Objective
    from hf_encoders.runs.recipe import Recipe


RECIPE = "distilbert-base"
LOSS_WEIGHTS = constant("objectives.distillation", "LOSS_WEIGHTS")
SOFT_TARGETS = constant("objectives.distillation", "SOFT_TARGETS")
TEMPERATURE = constant("objectives.distillation", "TEMPERATURE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
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
        choices=sorted(family_names()),
        help="of the student (default: distilbert for a bert, otherwise the teacher's)",
    )
    parser.add_argument(
        "--recipe", default=RECIPE, metavar="RECIPE", help="one of those below, or a YAML file (default: %(default)s)"
    )
    parser.add_argument(
        "--soft-targets",
        action=Sets,
        key="options.soft_targets",
        choices=SOFT_TARGETS,
        help="tokens whose scores are compared with the teacher's: those that are predicted, or all, which takes "
        f"longer (default: the recipe's, or {SOFT_TARGETS[0]})",
    )
    parser.add_argument(
        "--temperature",
        action=Sets,
        key="options.temperature",
        type=float,
        metavar="T",
        help=f"of the soft targets, above 0 (default: the recipe's, or {TEMPERATURE:g})",
    )
    weights = " ".join(f"{weight:g}" for weight in LOSS_WEIGHTS.values())
    parser.add_argument(
        "--loss-weights",
        action=Sets,
        key="options.loss_weights",
        form=lambda weights: dict(zip(LOSS_WEIGHTS, weights, strict=True)),
        type=float,
        nargs=len(LOSS_WEIGHTS),
        metavar=tuple(name.upper() for name in LOSS_WEIGHTS),
        help="weights of soft targets, masked tokens and cosine of hidden states; 0 leaves one out (default: the "
        f"recipe's, or {weights})",
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR_OR_NAME", help="the teacher's, if it is elsewhere (default: in TEACHER)"
    )
    add_run_arguments(parser, TEACHER)


def check(arguments: argparse.Namespace) -> None:
    """Refuse a recipe and paths that are wrong."""
    check_model(arguments.teacher, f"TEACHER {arguments.teacher!r}")
    check_run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Train a student."""
    from hf_encoders.objectives.distillation import Distillation
    from hf_encoders.objectives.student import check_layers, spread_layers, student_family
    from hf_encoders.runs.initial import Initial
    from hf_encoders.runs.recipe import load_recipe
    from hf_encoders.runs.train import train_run

    recipe = load_recipe(arguments.recipe, arguments.set)
    if not isinstance(recipe.own_objective, Distillation):
        raise ValueError(
            f"--recipe {recipe.name}: objective {recipe.objective} has no teacher: choose a recipe of distillation, "
            f"or `hf-encoders pretrain {recipe.name}`."
        )
    initial = Initial(arguments.teacher, "TEACHER")
    teacher = initial.teacher()
    family = arguments.family or student_family(teacher.config)
    if family != recipe.family and recipe.model:
        raise ValueError(
            f"--recipe {recipe.name}: its model: is of the family {recipe.family}, and the student of a "
            f"{teacher.config.model_type} is a {family}: choose a recipe that sets no model, or --family "
            f"{recipe.family}."
        )
    recipe = dataclasses.replace(recipe, family=family)
    if recipe.longest > (longest := teacher.base_model.longest_row()):
        raise ValueError(
            f"phases: examples of {recipe.longest} tokens, and {initial} takes {longest}: choose a recipe of shorter "
            "ones."
        )
    layers, depth = None, teacher.config.num_hidden_layers
    if not arguments.fresh:
        field = recipe.config_class.own_name("num_hidden_layers")
        number = recipe.model.get(field, max(depth // 2, 1))
        if arguments.layers is None and number > depth:
            raise ValueError(f"model: {number} layers, and the teacher has {depth}: give fewer, or --fresh.")
        layers = check_layers(arguments.layers or spread_layers(depth, number), depth)
        if recipe.model.get(field, len(layers)) != len(layers):
            raise ValueError(f"--layers: {len(layers)} layers, and model: {field}={recipe.model[field]}.")
    objective = recipe.own_objective.of_teacher(teacher, initial.name, layers)
    check_student(recipe, objective)
    return train_run(arguments, recipe, initial, objective)


def check_student(recipe: "Recipe", objective: "Objective") -> None:
    """Refuse sizes that do not fit the teacher, by making the student without memory."""
    import torch

    from hf_encoders.runs.recipe import config_of_fields

    fields = {**objective.model_fields(recipe.config_class), **recipe.model}
    with torch.device("meta"):
        objective.new_model(config_of_fields(recipe.config_class, fields))
