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
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_encoders.corpus.text_files import UNNAMED, named_paths
from hf_encoders.inputs import check_model
from hf_encoders.options import given_fields
from hf_encoders.runs.options import (
    CHECKPOINT,
    Sets,
    add_run_arguments,
    changed_keys,
    check_run,
    check_text_or_corpus,
    family_recipes,
    recipe_names,
    text_objectives,
)
from hf_encoders.source_literals import constant


if TYPE_CHECKING:
    from hf_encoders.models.encoder_configuration import EncoderConfig
    from hf_encoders.runs.recipe import Phase, Recipe


POSITIONS = constant("runs.initial", "HOW")
HEAD_STEPS = constant("runs.initial", "HEAD_STEPS")
SHORTEST = constant("runs.recipe", "SHORTEST")
RECIPE, RECIPE_ON_CPU = "adapt", "adapt-minutes"  # without --recipe
# Text that is read again is worth nearly as much as new text up to 4 times, and little from 16 on
# (Muennighoff et al. 2023); on the text of a task, 100 times, with new masks, still helped (Gururangan et al. 2020).
EPOCHS = 10
LEAST_STEPS = 500  # as in fine-tuning: fewer hardly move a head; at most those of the recipe
FEW_EXAMPLES = 32  # a step, for text that is too small for so many steps of more; at the rate of fine-tuning
DOMAIN, GENERAL = "domain", "general"  # names of the sources, with --keep
DECAY_MASKS = 0.15  # mask rate while the learning rate falls, of both sources below
# BioClinical ModernBERT (Sounack et al. 2025, https://arxiv.org/abs/2506.10896), from a checkpoint before its decay:
# 160.5 billion tokens at a constant rate, and 8.25 billion while it falls to its thousandth, by 1-sqrt.
STABLE_SHARE, STABLE_LAST = 0.95, 0.001
DETOUR_LAST = 0.1  # https://arxiv.org/abs/2605.12438: causal first, then masks while the rate falls to a tenth


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
        "--from-stable",
        action=argparse.BooleanOptionalAction,
        help="keep the learning rate constant, and let it fall to a thousandth in the last "
        f"{1 - STABLE_SHARE:.0%}% of the steps, with {DECAY_MASKS:.0%}% masks: for a checkpoint from before its decay "
        "(default: whether its training record says so)",
    )
    parser.add_argument(
        "--detour",
        type=float,
        metavar="SHARE",
        help="train on next tokens in this first share of the steps, in (0, 1), such as 0.9; then on masked tokens, "
        f"{DECAY_MASKS:.0%}% of them, while the learning rate falls to a tenth",
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
    if arguments.detour is not None and not 0 < arguments.detour < 1:
        raise ValueError(f"--detour {arguments.detour}: it is a share of the steps in (0, 1), such as 0.9.")
    if arguments.detour is not None and arguments.from_stable:
        raise ValueError("--detour and --from-stable: both say how the learning rate falls: leave one out.")
    if arguments.max_length is not None and arguments.max_length < SHORTEST:
        raise ValueError(f"--max-length {arguments.max_length} must be at least {SHORTEST} tokens.")
    check_model(arguments.checkpoint, f"CHECKPOINT {arguments.checkpoint!r}")
    check_text_or_corpus(arguments.keep or (), "--keep")
    check_run(arguments)
    add_general_text(arguments)


def add_general_text(arguments: argparse.Namespace) -> None:
    """Make the text of --keep a source of the run, drawn as often as --replay says."""
    if arguments.keep is None:
        if arguments.replay:
            raise ValueError(f"--replay {arguments.replay} is of general text: give it with --keep.")
        return
    if UNNAMED not in named_paths(arguments.corpus, "--corpus") or "sources" in changed_keys(arguments.set):
        raise ValueError(
            "--keep goes with one --corpus without names: with several, name the general text too, and set its share "
            "with --corpus-weights (0: for evaluation only)."
        )
    general = [f"{GENERAL}={path}" for path in arguments.keep]
    arguments.corpus = [*(f"{DOMAIN}={path}" for path in arguments.corpus), *general]
    arguments.source_options = {DOMAIN: "--corpus", GENERAL: "--keep"}
    weights = {DOMAIN: 1 - arguments.replay, GENERAL: arguments.replay}
    arguments.set = [*arguments.set, f"sources={json.dumps({'weights': weights})}"]


def run(arguments: argparse.Namespace) -> int:
    """Continue pre-training."""
    from hf_encoders.objectives.objective import get_objective
    from hf_encoders.runs.folder import phases_of, read_run_file
    from hf_encoders.runs.initial import Initial
    from hf_encoders.runs.recipe import load_recipe
    from hf_encoders.runs.train import overwrites, train_run

    config = Initial(arguments.checkpoint).config
    noted = None if overwrites(arguments) else read_run_file(Path(arguments.output))
    asked = load_recipe(arguments.recipe or default_recipe(noted, arguments), arguments.set)
    keeps = "objective" in changed_keys(arguments.set) or not get_objective(asked.objective).is_of_heads
    name = arguments.objective or (asked.objective if keeps else None) or objective_of(config, arguments.checkpoint)
    if name != asked.objective and arguments.objective is None and asked.name not in recipe_names():
        say(f"Objective {name}, not {asked.objective} as in the recipe: --objective sets another.")
    recipe = adapted_recipe(asked, name, config, arguments)
    if arguments.recipe is None:
        recipe = fitted_recipe(recipe, config, arguments, noted)
    else:
        warn_of_rate(recipe, config, arguments)
    begun = phases_of(noted) if arguments.recipe is None and noted is not None else None
    recipe = with_own_decay(recipe, arguments, begun)
    positions = arguments.positions or POSITIONS[0]
    if recipe.model and config.has_position_table:
        longer = f"{recipe.longest:,} tokens are more than the checkpoint has positions for"
        say(f"{longer}: its table is extended (--positions {positions}).")
    auto_class = recipe.own_objective.auto_class
    initial = Initial(arguments.checkpoint, "CHECKPOINT", auto_class, positions, arguments.head_steps)
    return train_run(arguments, recipe, initial)


def say(text: str) -> None:
    """Print in the first process of several."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


def default_recipe(noted: dict[str, Any] | None, arguments: argparse.Namespace) -> str:
    """Return the recipe that the run of the output folder has, if it is one of the two; else that for this machine."""
    import torch

    begun = None if noted is None else noted["recipe"]["name"]
    on_cpu = given_fields(arguments).get("use_cpu") or not torch.accelerator.is_available()
    return begun if begun in (RECIPE, RECIPE_ON_CPU) else RECIPE_ON_CPU if on_cpu else RECIPE


def objective_of(config: "EncoderConfig", source: str) -> str:
    """Return the objective of the family's default recipe if the checkpoint has its heads, or no MLM head; else mlm.

    Where the checkpoint's training record names another objective with the same loss terms, it is that.
    """
    from hf_encoders.objectives.objective import get_objective, objectives
    from hf_encoders.publishing.record import TrainingRecord

    if config.model_type not in family_recipes():
        return "mlm"
    default = get_objective(family_recipes()[config.model_type]["objective"])
    saved = {name.removeprefix("Hfe") for name in config.architectures or ()}
    has_heads = default.model_class(type(config)).__name__.removeprefix("Hfe") in saved
    if not has_heads and "AutoModelForMaskedLM" in config.AUTO_MAP:
        return "mlm"
    try:
        recorded = dict(TrainingRecord.load(source).objectives)
    except ValueError as error:
        raise ValueError(f"CHECKPOINT {source!r}: {error} Or give --objective.") from error
    alike = (other for other in objectives().values() if other.terms == default.terms and other.turns_column is None)
    return next((other.name for other in alike if getattr(other, "title", None) in recorded), default.name)


def adapted_recipe(
    recipe: "Recipe", objective: str, config: "EncoderConfig", arguments: argparse.Namespace
) -> "Recipe":
    """Return the recipe for the checkpoint's family and lengths, and an objective."""
    from hf_encoders.objectives.objective import get_objective

    if recipe.model:
        raise ValueError(f"--recipe {recipe.name}: model: is the checkpoint's: leave its fields out.")
    get_objective(objective).model_class(type(config))  # refuses a family without the heads
    rows = config.max_position_embeddings - type(config).position_rows(0, config.pad_token_id or 0)
    longest = min(recipe.longest, rows) if arguments.max_length is None else arguments.max_length
    phases = [replace(phase, length=min(phase.length, longest)) for phase in recipe.phases]
    if arguments.max_length is not None:
        phases[-1] = replace(phases[-1], length=longest)
    model = position_fields(config, longest, rows, arguments.positions)
    return replace(recipe, family=config.model_type, objective=objective, phases=tuple(phases), model=model)


def position_fields(config: "EncoderConfig", longest: int, rows: int, how: str | None) -> dict[str, int]:
    """Return the field of a model with positions for `longest` tokens if the checkpoint, which has `rows`, has fewer.

    Raises:
        ValueError: if `how` they are initialised is set and there are enough, and for a model without a table of them.
    """
    if how is not None and not config.has_position_table:
        raise ValueError(f"--positions {how}: the checkpoint has no table of positions: leave it out.")
    if longest <= rows:
        if how is not None:
            raise ValueError(
                f"--positions {how} is for longer texts than the checkpoint has positions for: give --max-length too, "
                "or leave it out."
            )
        return {}
    if not config.has_position_table and config.LIMITS_LENGTH:
        raise ValueError(
            f"--max-length {longest}: the checkpoint has distances of up to {rows} tokens and no table of positions "
            f"that could become longer: give at most {rows}."
        )
    return {"max_position_embeddings": type(config).position_rows(longest, config.pad_token_id or 0)}


def fitted_recipe(
    recipe: "Recipe", config: "EncoderConfig", arguments: argparse.Namespace, noted: dict[str, Any] | None
) -> "Recipe":
    """Return the recipe with steps for the size of the text and the learning rate for the width, and print them.

    A resumed run keeps those that it began with, in `noted`. What `--set` says is kept.
    """
    from hf_encoders.finetuning.runs import BASE_RATE, rate_of_width
    from hf_encoders.runs.folder import phases_of
    from hf_encoders.runs.plan import in_short

    changed, options, chosen = changed_keys(arguments.set), given_fields(arguments), []
    phases, rate = recipe.phases, recipe.training["learning_rate"]
    if noted is not None:
        phases = phases if "phases" in changed else phases_of(noted)
        rate = rate if "training.learning_rate" in changed else noted["training"]["learning_rate"]
        return replace(recipe, phases=phases, training={**recipe.training, "learning_rate": rate})
    if "phases" not in changed:
        phase, tokens = fitted_phase(recipe.phases[0], arguments)
        phases, most = (phase,), recipe.phases[0].steps
        chosen.append(f"batches of {phase.examples} examples of up to {phase.length} tokens")
        if "max_steps" not in options:
            limits = f"{EPOCHS} times, from {LEAST_STEPS:,} to {most:,}"
            chosen.append(f"{phase.steps:,} steps for about {in_short(tokens)} tokens of text ({limits})")
    if "training.learning_rate" not in changed:
        few = phases[0].examples == FEW_EXAMPLES
        rate = rate_of_width(config.hidden_size, BASE_RATE if few else rate)
        if "learning_rate" not in options:
            chosen.append(f"learning rate {rate:g} for width {config.hidden_size}")
    if chosen:
        say(f"Chosen without --recipe: {', '.join(chosen)}.")
    return replace(recipe, phases=phases, training={**recipe.training, "learning_rate": rate})


def fitted_phase(phase: "Phase", arguments: argparse.Namespace) -> "tuple[Phase, float]":
    """Return the phase with as many steps as read the text `EPOCHS` times, and the number of tokens of the text.

    Text that is too small for `LEAST_STEPS` of the phase's batch is read in small batches.
    """
    from hf_encoders.runs.sources import Sources

    sources = Sources.from_words(arguments.corpus, arguments.language, arguments.source_options)
    tokens = sum(source.tokens for name, source in sources.items() if name != GENERAL or arguments.keep is None)
    read = EPOCHS * tokens / (1 - arguments.replay)
    if read < LEAST_STEPS * phase.examples * phase.length:
        phase = replace(phase, examples=FEW_EXAMPLES)
    steps = round(min(max(read / (phase.examples * phase.length), LEAST_STEPS), phase.steps))
    return replace(phase, steps=steps), tokens


def with_own_decay(recipe: "Recipe", arguments: argparse.Namespace, begun: "tuple[Phase, ...] | None") -> "Recipe":
    """Return the recipe with a constant rate and a decay at its end, for a stable checkpoint or a causal detour.

    `begun` are the phases of a run that is resumed without a recipe, which stay.

    Raises:
        ValueError: for a recipe that has phases or mask rates of its own, another objective than masked tokens, and a
            run that was begun otherwise.
    """
    from hf_encoders.objectives.masking import Masking

    options, is_detour = given_fields(arguments), arguments.detour is not None
    is_simple = len(recipe.phases) == 1 and recipe.mask_rate is None and not recipe.phases[0].changes
    reason = "--from-stable" if arguments.from_stable else None
    if not is_detour and arguments.from_stable is None and "lr_scheduler_type" not in options:
        reason = stable_by_record(arguments.checkpoint) if is_simple or begun else None
    if not is_detour and reason is None:
        return recipe
    option = f"--detour {arguments.detour}" if is_detour else reason
    if "lr_scheduler_type" in options:
        raise ValueError(f"{option}: it says how the learning rate falls: leave --lr-scheduler-type out.")
    objective = recipe.own_objective
    if is_detour and not (objective.fills_masks and not objective.collator_class.needs_whole_texts):
        raise ValueError(f"{option}: it is for masked tokens, objective mlm, and this one is {recipe.objective}.")
    training = {**recipe.training, "lr_scheduler_type": "constant_with_warmup"}
    training.pop("lr_scheduler_kwargs", None)
    if begun is not None:
        was_detour = bool(begun[0].masking.get("next_token"))
        if begun[-1].learning_rate is None or was_detour != is_detour:
            raise ValueError(f"{option}: the run in --output was begun otherwise: give its options, or --overwrite.")
        return replace(recipe, training=training)
    if not is_simple or recipe.steps < 2:
        raise ValueError(
            f"{option}: recipe {recipe.name} has phases or mask rates of its own, or a single step: write the decay "
            "into its phases, with learning_rate: [3.0e-4, 3.0e-7]."
        )
    say(
        f"Next tokens in the first {arguments.detour:.0%} of the steps, then masked tokens while the rate falls."
        if is_detour
        else f"The checkpoint is from before its decay ({reason}): the rate is constant, and falls at the end."
    )
    rate, (phase,) = options.get("learning_rate") or recipe.training.get("learning_rate"), recipe.phases
    if rate is None:
        return recipe  # which is refused: no default suits all
    share, last = (arguments.detour, DETOUR_LAST) if is_detour else (STABLE_SHARE, STABLE_LAST)
    steps = min(max(round(share * phase.steps), 1), phase.steps - 1)
    masks = issubclass(objective.masking_options, Masking)
    parts = (
        replace(phase, steps=steps, masking={"next_token": True} if is_detour else {}),
        replace(
            phase,
            steps=phase.steps - steps,
            rising_from=None,
            learning_rate=[rate, last * rate],
            masking={"mask_probability": DECAY_MASKS} if masks else {},
        ),
    )
    return replace(recipe, phases=parts, training=training)


def stable_by_record(source: str) -> str | None:
    """Return what a checkpoint's training record says of a learning rate that never fell; None if it does not."""
    from hf_encoders.publishing.record import TrainingRecord

    try:
        schedule = TrainingRecord.load(source).schedule
    except ValueError:  # the objective's error, if it is needed
        return None
    name = str(schedule.get("schedule after warm-up", ""))
    falls = re.search(r"learning rate \S+ to ", str(schedule.get("phases", "")))
    return f"its training record: {name}" if name.startswith("constant") and not falls else None


def warn_of_rate(recipe: "Recipe", config: "EncoderConfig", arguments: argparse.Namespace) -> None:
    """Print a warning for a recipe whose learning rate is for narrower encoders, unless another is an option."""
    from hf_encoders.finetuning.runs import rate_of_width
    from hf_encoders.runs.recipe import load_recipe

    rate, width = recipe.training.get("learning_rate", 0), config.hidden_size
    usual = rate_of_width(width, load_recipe(RECIPE).training["learning_rate"])
    if "learning_rate" not in given_fields(arguments) and rate > 2 * usual:
        say(
            f"warning: the learning rate of --recipe {recipe.name}, {rate:g}, is for narrower encoders: for width "
            f"{width}, give --learning-rate {rate_of_width(width):g}."
        )
