"""`hf-encoders adapt CHECKPOINT --corpus TEXT --output DIR`: continue the pre-training of an encoder on your text.

CHECKPOINT is a folder or a name on the Hub, of this package or of transformers: family, tokenizer, sizes and objective
are read from it. Heads that it does not have are new, and learn alone in the first steps. Held-out text is evaluated
before and after; with --keep also general text, which shows what is forgotten, and --replay mixes it in against that.

For words of the domain, first give the tokenizer entries for them: `hf-encoders tokenizer --extend CHECKPOINT`.

Without --recipe, the batch is chosen for the device, the number of steps for the size of the text, and the learning
rate for the width of the encoder; --max-steps and --learning-rate set others. Recipe, fields of
transformers.TrainingArguments, --plan, resuming and extending are as for `hf-encoders pretrain` (see its --help).
"""

import argparse
import os
from pathlib import Path

from hf_encoders.inputs import check_model
from hf_encoders.options import given_fields
from hf_encoders.runs.options import (
    CHECKPOINT,
    Sets,
    add_run_arguments,
    changed_keys,
    check_run,
    check_text_or_corpus,
    recipe_names,
    text_objectives,
)
from hf_encoders.source_literals import constant


POSITIONS = constant("runs.initial", "HOW")
HEAD_STEPS = constant("runs.initial", "HEAD_STEPS")
SHORTEST = constant("runs.recipe", "SHORTEST")
RECIPE, RECIPE_ON_CPU = constant("runs.initial", "RECIPE"), constant("runs.initial", "RECIPE_ON_CPU")
EPOCHS, LEAST_STEPS = constant("runs.initial", "EPOCHS"), constant("runs.initial", "LEAST_STEPS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder, or name on the Hub, of an encoder")
    parser.add_argument(
        "--recipe",
        metavar="RECIPE",
        help=f"one of those below, or a YAML file (default: {RECIPE}, on a CPU {RECIPE_ON_CPU}, with as many steps as "
        f"read the text {EPOCHS} times, from {LEAST_STEPS} to the recipe's, and a learning rate for the width)",
    )
    parser.add_argument(
        "--objective",
        choices=text_objectives(),
        help="(default: that of the model class in the checkpoint's config.json, `architectures`: BertForPreTraining "
        "trains sentence pairs too, BertForMaskedLM does not)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="longest examples, special tokens included; more than the checkpoint has positions for extends their "
        "table (default: the recipe's, or the checkpoint's if it is shorter)",
    )
    parser.add_argument(
        "--positions",
        choices=POSITIONS,
        help="how a longer table of positions begins: as copies of the old ones, or stretched (default: "
        f"{POSITIONS[0]})",
    )
    parser.add_argument(
        "--keep",
        action="extend",
        nargs="+",
        metavar="PATH",
        help="general text, evaluated too; a prepared corpus or files",
    )
    parser.add_argument(
        "--replay",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the examples that are of --keep, in [0, 1): against forgetting (default: %(default)s)",
    )
    parser.add_argument(
        "--head-steps",
        type=float,
        metavar="X",
        help="steps in which new heads learn alone, before the learning rate is warmed up once more; below 1 a share "
        f"of all steps (default: {HEAD_STEPS})",
    )
    parser.add_argument(
        "--layer-decay",
        action=Sets,
        key="layer_decay",
        type=float,
        metavar="X",
        help="each layer's learning rate as a share of that of the layer above, in (0, 1] (default: the recipe's, or "
        "1: one rate for all)",
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR_OR_NAME", help="the checkpoint's, if it is elsewhere (default: in CHECKPOINT)"
    )
    add_run_arguments(parser, CHECKPOINT)


def check(arguments: argparse.Namespace) -> None:
    """Refuse a recipe and paths that are wrong, and numbers out of range."""
    if not 0 <= arguments.replay < 1:
        raise ValueError(f"--replay {arguments.replay}: it is a share in [0, 1).")
    if arguments.max_length is not None and arguments.max_length < SHORTEST:
        raise ValueError(f"--max-length {arguments.max_length} must be at least {SHORTEST} tokens.")
    check_model(arguments.checkpoint, f"CHECKPOINT {arguments.checkpoint!r}")
    check_text_or_corpus(arguments.keep or (), "--keep")
    check_run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Train on."""
    from hf_encoders.runs.folder import read_run_file
    from hf_encoders.runs.initial import (
        Initial,
        adapted_recipe,
        add_general_text,
        default_recipe,
        fitted,
        objective_of,
        warning_of_rate,
    )
    from hf_encoders.runs.recipe import load_recipe
    from hf_encoders.runs.train import overwrites, train_run

    add_general_text(arguments)
    config = Initial(arguments.checkpoint).config
    noted = None if overwrites(arguments) else read_run_file(Path(arguments.output))
    wanted = load_recipe(arguments.recipe or default_recipe(noted, given_fields(arguments)), arguments.set)
    name = arguments.objective or (wanted.objective if "objective" in changed_keys(arguments.set) else None)
    name = name or objective_of(config, arguments.checkpoint)
    is_found = arguments.objective is None and wanted.name not in recipe_names()
    is_first = os.environ.get("RANK", "0") == "0"
    if is_found and wanted.objective != name and is_first:
        print(f"Objective {name}, not {wanted.objective} as in the recipe: --objective sets another.", flush=True)
    recipe = adapted_recipe(wanted, name, config, arguments)
    if arguments.recipe is None:
        recipe = fitted(recipe, config, arguments, noted)
    elif is_first and (warning := warning_of_rate(recipe, config, arguments)):
        print(f"warning: {warning}", flush=True)
    positions = arguments.positions or POSITIONS[0]
    if recipe.model and is_first:
        longer = f"{recipe.longest:,} tokens are more than the checkpoint has positions for"
        print(f"{longer}: its table is extended (--positions {positions}).", flush=True)
    auto_class = recipe.own_objective.auto_class
    initial = Initial(arguments.checkpoint, "CHECKPOINT", auto_class, positions, arguments.head_steps)
    return train_run(arguments, recipe, initial)
