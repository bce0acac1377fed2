"""Run `hf-encoders pretrain`; its options are in `hf_encoders/options/pretrain.py`."""

import argparse
import dataclasses

from hf_encoders.adaptation.initial_checkpoint import InitialCheckpoint
from hf_encoders.loading import read_config
from hf_encoders.recipes.command import begin_from, train_run
from hf_encoders.recipes.recipe import load_recipe


def run(arguments: argparse.Namespace) -> int:
    """Train a new model."""
    recipe = load_recipe(arguments.recipe)
    objective = recipe.own_objective
    if objective.needs:
        raise ValueError(f"recipe {recipe.name}: objective {objective.name} needs {objective.needs}.")
    if arguments.initial is None:
        if not recipe.model:
            raise ValueError(
                f"recipe {recipe.name}: model: is empty, so that it continues a checkpoint: use `hf-encoders adapt "
                "CHECKPOINT`, or give --from. For a new model, set its size, such as model: {size: base}."
            )
        return train_run(arguments, recipe)
    config = read_config(arguments.initial, "--from")
    if config.model_type != recipe.family:
        raise ValueError(
            f"--from {arguments.initial!r} is a {config.model_type}, and recipe {recipe.name} is of the family "
            f"{recipe.family}: choose a recipe of its family, or `hf-encoders adapt`."
        )
    # Other numbers of layers or heads would load without an error, and compute something else.
    model = {name: value for name, value in recipe.model.items() if "dropout" in name}
    recipe = dataclasses.replace(recipe, model=model)
    initial = InitialCheckpoint(arguments.initial, config, objective.auto_class, option="--from")
    begin_from(arguments.initial, arguments, "--from")
    return train_run(arguments, recipe, objective.of_checkpoint(initial))
