"""Make the recipe of `hf-encoders adapt` from its options and the checkpoint."""

import argparse
import dataclasses
import os
from typing import Any

import torch

from hf_encoders.corpus.named_sources import UNNAMED, named_paths
from hf_encoders.finetuning.shared_options import BASE_RATE
from hf_encoders.finetuning.training_options import rate_of_width
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.objective import OBJECTIVES, get_objective
from hf_encoders.runs.plan import in_short
from hf_encoders.runs.recipe import Recipe, load_recipe, recipe_names
from hf_encoders.runs.run_corpus import CorpusPaths
from hf_encoders.runs.run_folder import phases_of
from hf_encoders.runs.run_options import EPOCHS, FEW_EXAMPLES, LEAST_STEPS, RECIPE, RECIPE_ON_CPU
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.training.layer_decay import check_layer_decay
from hf_encoders.training_fields import given_fields


DOMAIN, GENERAL = "domain", "general"  # names of the sources, with --keep


def default_recipe(noted: dict[str, Any] | None, given: dict[str, Any]) -> str:
    """The recipe that the run of the output folder has, if it is one of the two; else that for this machine."""
    begun = None if noted is None else noted["recipe"]["name"]
    here = RECIPE if torch.accelerator.is_available() and not given.get("use_cpu") else RECIPE_ON_CPU
    return begun if begun in (RECIPE, RECIPE_ON_CPU) else here


def fitted(
    recipe: Recipe, config: EncoderConfig, arguments: argparse.Namespace, noted: dict[str, Any] | None
) -> Recipe:
    """The recipe with the steps for the size of the text and the learning rate for the width, which are printed.

    A run that goes on keeps those that it began with, in `noted`.
    """
    (phase,) = recipe.phases
    if noted is not None:
        rate = noted["training"]["learning_rate"]
        return dataclasses.replace(recipe, phases=phases_of(noted), training=recipe.training | {"learning_rate": rate})
    corpus = CorpusPaths.of_words(arguments.corpus, arguments.language, arguments.source_options)
    tokens = sum(corpus.tokens(name) for name in corpus.paths if arguments.keep is None or name != GENERAL)
    read = EPOCHS * tokens / (1 - arguments.replay)
    if read < LEAST_STEPS * phase.examples * phase.length:
        phase = dataclasses.replace(phase, examples=FEW_EXAMPLES)
    base = BASE_RATE if phase.examples == FEW_EXAMPLES else recipe.training["learning_rate"]
    steps = round(min(max(read / (phase.examples * phase.length), LEAST_STEPS), phase.steps))
    rate = rate_of_width(config.hidden_size, base)
    given = given_fields(arguments)
    if os.environ.get("RANK", "0") == "0":
        print(f"Chosen without --recipe: {phase.examples} examples of {phase.length} tokens a step", end="")
        if "max_steps" not in given:
            limits = f"from {LEAST_STEPS:,} to {phase.steps:,}"
            print(f", {steps:,} steps for about {in_short(tokens)} tokens of text ({EPOCHS} times, {limits})", end="")
        if "learning_rate" not in given:
            print(f", learning rate {rate:g} for width {config.hidden_size}", end="")
        print(".", flush=True)
    phase = dataclasses.replace(phase, steps=steps)
    return dataclasses.replace(recipe, phases=(phase,), training=recipe.training | {"learning_rate": rate})


def warning_of_rate(recipe: Recipe, config: EncoderConfig, arguments: argparse.Namespace) -> str | None:
    """Return a warning for a recipe whose learning rate is for narrower encoders, unless another is given."""
    rate = recipe.training.get("learning_rate", 0)
    usual = rate_of_width(config.hidden_size, load_recipe(RECIPE).training["learning_rate"])
    if "learning_rate" in given_fields(arguments) or rate <= 2 * usual:
        return None
    return (
        f"the learning rate of --recipe {recipe.name}, {rate:g}, is for narrower encoders: for width "
        f"{config.hidden_size}, give --learning-rate {rate_of_width(config.hidden_size):g}."
    )


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
