"""Run `hf-encoders adapt`; its options are in `hf_encoders/options/adapt.py`."""

import argparse
import dataclasses
import os

from hf_encoders.adaptation.initial_checkpoint import InitialCheckpoint
from hf_encoders.adaptation.positions import HOW
from hf_encoders.data.corpus.named_sources import UNNAMED, named_paths
from hf_encoders.loading import read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives import OBJECTIVES, get_objective
from hf_encoders.recipes.command import begin_from, train_run
from hf_encoders.recipes.recipe import Recipe, load_recipe, recipe_names
from hf_encoders.recipes.recipe_fields import SHORTEST
from hf_encoders.records.training_record import TrainingRecord
from hf_encoders.training.layer_decay import check_layer_decay


DOMAIN, GENERAL = "domain", "general"  # names of the sources, with --keep


def run(arguments: argparse.Namespace) -> int:
    """Train on."""
    if arguments.max_length is not None and arguments.max_length < SHORTEST:
        raise ValueError(f"--max-length {arguments.max_length} must be at least {SHORTEST} tokens.")
    add_general_text(arguments)
    config = read_config(arguments.checkpoint, "CHECKPOINT")
    wanted = load_recipe(arguments.recipe)
    name = arguments.objective or objective_of(config, arguments.checkpoint)
    is_found = arguments.objective is None and arguments.recipe not in recipe_names()
    is_first = os.environ.get("RANK", "0") == "0"
    if is_found and wanted.objective != name and is_first:
        print(f"Objective {name}, not {wanted.objective} as in the recipe: --objective sets another.", flush=True)
    recipe = recipe_for(wanted, name, config, arguments)
    objective, positions = recipe.own_objective, arguments.positions or HOW[0]
    if recipe.model and is_first:
        longer = f"{recipe.longest:,} tokens are more than the checkpoint has positions for"
        print(f"{longer}: its table is extended (--positions {positions}).", flush=True)
    initial = InitialCheckpoint(arguments.checkpoint, config, objective.auto_class, positions, arguments.head_steps)
    begin_from(arguments.checkpoint, arguments, "CHECKPOINT")
    return train_run(arguments, recipe, objective.of_checkpoint(initial))


def add_general_text(arguments: argparse.Namespace) -> None:
    """Make the text of --keep a source of the run, drawn as often as --replay says."""
    if arguments.keep is None:
        if arguments.replay:
            raise ValueError(f"--replay {arguments.replay} is of general text: give it with --keep.")
        return
    paths = named_paths(arguments.corpus, "--corpus")
    if UNNAMED not in paths or arguments.sampling_alpha is not None or arguments.corpus_weights is not None:
        raise ValueError(
            "--keep goes with one --corpus without names: with several, name the general text too, and set its share "
            "with --corpus-weights (0: for evaluation only)."
        )
    general = [f"{GENERAL}={path}" for path in arguments.keep]
    arguments.corpus = [*(f"{DOMAIN}={path}" for path in arguments.corpus), *general]
    arguments.source_options = {DOMAIN: "--corpus", GENERAL: "--keep"}
    arguments.corpus_weights = [f"{DOMAIN}={1 - arguments.replay}", f"{GENERAL}={arguments.replay}"]


def recipe_for(recipe: Recipe, objective: str, config: EncoderConfig, arguments: argparse.Namespace) -> Recipe:
    """The recipe for the checkpoint's family and lengths, and an objective."""
    if recipe.model:
        raise ValueError(f"--recipe {recipe.name}: model: is the checkpoint's: leave its fields out.")
    get_objective(objective).model_class(type(config))
    rows = config.max_position_embeddings - type(config).position_rows(0, config.pad_token_id or 0)
    longest = min(recipe.longest, rows) if arguments.max_length is None else arguments.max_length
    phases = [dataclasses.replace(one, length=min(one.length, longest)) for one in recipe.phases]
    if arguments.max_length is not None:
        phases[-1] = dataclasses.replace(phases[-1], length=longest)
    model = position_fields(config, longest, rows, arguments.positions)
    fields = {"family": config.model_type, "objective": objective, "phases": tuple(phases), "model": model}
    if arguments.layer_decay is not None:
        check_layer_decay(arguments.layer_decay, "--layer-decay")
        fields["layer_decay"] = arguments.layer_decay
    return dataclasses.replace(recipe, **fields)


def position_fields(config: EncoderConfig, longest: int, rows: int, how: str | None) -> dict[str, int]:
    """The field of a model with positions for `longest` tokens, if the checkpoint, with those for `rows`, has fewer.

    Raises:
        ValueError: if `how` they begin was given and there are enough, and for a model without a table of them.
    """
    has_table = config.position_embedding_type == "absolute"
    if how is not None and not has_table:
        raise ValueError(
            f"--positions {how}: the checkpoint has distances ({config.position_embedding_type}) and no table of "
            "positions: leave it out."
        )
    if longest <= rows:
        if how is not None:
            raise ValueError(
                f"--positions {how} is for longer texts than the checkpoint has positions for: give --max-length too, "
                "or leave it out."
            )
        return {}
    if not has_table:
        raise ValueError(
            f"--max-length {longest}: the checkpoint has distances of up to {rows} tokens "
            f"({config.position_embedding_type}) and no table of positions that could become longer: give at most "
            f"{rows}."
        )
    return {"max_position_embeddings": type(config).position_rows(longest, config.pad_token_id or 0)}


def objective_of(config: EncoderConfig, source: str) -> str:
    """The family's own recipe's, if the checkpoint was saved with its heads or no model has an MLM head; else mlm.

    Where the checkpoint's training record names another objective of sentence pairs (MacBERT's), it is that.

    Raises:
        ValueError: for a record that cannot be read.
    """
    names = (name for name in recipe_names() if name.endswith("-minutes") and not name.startswith("adapt"))
    recipes = (load_recipe(name) for name in names)
    # Of several recipes of one family, the first by name is its own: bert-minutes; ernie-, macbert-minutes follow.
    own = next((one.own_objective for one in recipes if one.family == config.model_type), None)
    saved = {name.removeprefix("Hfe") for name in config.architectures or ()}
    if own is None or own.needs:
        return "mlm"
    has_heads = own.model_class(type(config)).__name__.removeprefix("Hfe") in saved
    if not has_heads and "AutoModelForMaskedLM" in config.AUTO_MAP:
        return "mlm"
    try:
        recorded = TrainingRecord.of_checkpoint(source).objectives
    except ValueError as error:
        raise ValueError(f"CHECKPOINT {source!r}: {error} Or give --objective.") from error
    same = (one for one in OBJECTIVES.values() if one.terms == own.terms and one.turns_column is None)
    return next((one.name for one in same if getattr(one, "title", None) in dict(recorded)), own.name)
