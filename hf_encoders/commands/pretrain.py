"""`hf-encoders pretrain RECIPE --corpus DIR --output DIR`: train an encoder from a recipe: planned, resumable.

RECIPE is one of those below, or a YAML file of your own. PATH of --corpus is a corpus that `hf-encoders corpus` made
(with --tokenizer, the one it was made with), or text: files or folders as for `hf-encoders corpus`; then the recipe's
tokenizer is trained on it, if none is given, and the corpus is prepared in the output folder.

--corpus de=PATH en=PATH names sources (languages, domains): each is drawn as often as its size to the power
--sampling-alpha says, or its weight in --corpus-weights, and is evaluated by itself too.

Every field of transformers.TrainingArguments is an option too and takes precedence over the recipe: --learning-rate
1e-4 --bf16 --optim adafactor --report-to tensorboard --push-to-hub ... --max-steps N makes the recipe's run one of N
steps: phases and warm-up keep their shares. --per-device-train-batch-size N is how many examples of the longest phase
a device takes at once; steps keep the recipe's number of examples, by accumulation.

With the same arguments, an interrupted run resumes from its newest complete checkpoint. A larger --max-steps, or a
recipe with a longer last phase or further phases, extends a run, also a finished one.
In several processes: torchrun --nproc_per_node N --no-python hf-encoders pretrain ...
"""

import argparse
import dataclasses
from typing import TYPE_CHECKING

from hf_encoders.inputs import check_model
from hf_encoders.runs.options import SCRATCH, add_run_arguments, check_run


if TYPE_CHECKING:
    from hf_encoders.runs.initial import Initial
    from hf_encoders.runs.recipe import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("recipe", metavar="RECIPE", help="one of those below, or a YAML file")
    parser.add_argument("--tokenizer", metavar="DIR_OR_NAME", help="default, for text: trained as the recipe says")
    begins = parser.add_mutually_exclusive_group()
    begins.add_argument(
        "--from",
        dest="initial",
        metavar="DIR_OR_NAME",
        help="initialise from this checkpoint, with its sizes and tokenizer (of the recipe's model:, dropout alone is "
        "used); `hf-encoders adapt` has settings for that",
    )
    begins.add_argument(
        "--initialise-from",
        dest="smaller",
        metavar="DIR_OR_NAME",
        help="repeat the layers and matrices of this smaller model of the recipe's family in the recipe's larger one; "
        "its tokenizer is used",
    )
    add_run_arguments(parser, SCRATCH)


def check(arguments: argparse.Namespace) -> None:
    """Refuse a recipe and paths that are wrong."""
    for option, source in (("--from", arguments.initial), ("--initialise-from", arguments.smaller)):
        if source is not None:
            check_model(source, f"{option} {source!r}")
    check_run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Train a new model."""
    from hf_encoders.runs.initial import Initial
    from hf_encoders.runs.recipe import load_recipe
    from hf_encoders.runs.tiling import SmallerCheckpoint
    from hf_encoders.runs.train import train_run

    recipe = load_recipe(arguments.recipe, arguments.set)
    objective = recipe.own_objective
    auto_class = objective.auto_class
    if objective.needs:
        raise ValueError(f"recipe {recipe.name}: objective {objective.name} needs {objective.needs}.")
    if arguments.initial is None:
        if recipe.begins_from != SCRATCH or not recipe.model:
            raise ValueError(
                f"recipe {recipe.name}: it begins from a checkpoint, or model: is empty: use `hf-encoders adapt "
                "CHECKPOINT`, or give --from. For a new model, set its size, such as model: {size: base}."
            )
        if arguments.smaller is None:
            return train_run(arguments, recipe)
        smaller = SmallerCheckpoint(arguments.smaller, "--initialise-from", auto_class)
        check_family(smaller, recipe)
        return train_run(arguments, recipe, smaller)
    initial = Initial(arguments.initial, "--from", auto_class)
    check_family(initial, recipe)
    # Other numbers of layers or heads would load without an error, and compute something else.
    model = {name: value for name, value in recipe.model.items() if "dropout" in name}
    return train_run(arguments, dataclasses.replace(recipe, model=model), initial)


def check_family(initial: "Initial", recipe: "Recipe") -> None:
    """Refuse a checkpoint of another family than the recipe's."""
    if initial.config.model_type != recipe.family:
        raise ValueError(
            f"{initial} is a {initial.config.model_type}, and recipe {recipe.name} is of the family {recipe.family}: "
            "choose a recipe of its family, or `hf-encoders adapt`."
        )
