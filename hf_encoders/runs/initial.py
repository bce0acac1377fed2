"""The checkpoint or teacher that a run reads, and the recipes of `hf-encoders adapt` and `distil` for it."""

import argparse
import copy
import dataclasses
import json
import math
import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from hf_encoders.corpus.text_files import UNNAMED, named_paths
from hf_encoders.finetuning.shared_options import BASE_RATE, rate_of_width
from hf_encoders.loading import fingerprint, load_weights, read_config
from hf_encoders.models.encoder_checkpoints import encoder_weights
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.distillation import Distillation
from hf_encoders.objectives.objective import get_objective, objectives
from hf_encoders.objectives.student import spread_layers
from hf_encoders.options import given_fields
from hf_encoders.publishing.files import submodels
from hf_encoders.publishing.record import TrainingRecord, name_of_checkpoint
from hf_encoders.runs.folder import phases_of
from hf_encoders.runs.options import changed_keys, family_recipes
from hf_encoders.runs.plan import in_short
from hf_encoders.runs.recipe import Recipe, config_of_fields, load_recipe
from hf_encoders.runs.sources import Sources
from hf_encoders.tokenizer_loading import load_tokenizer


HEAD_STEPS = 0.05  # of all steps; this package's choice
POSITIONS = "max_position_embeddings"  # the field that the run may change, with the model's table
HOW = ("copy", "interpolate")  # a table of positions becomes longer
# Of `adapt` without --recipe.
RECIPE = "adapt"
RECIPE_ON_CPU = "adapt-minutes"
# Text that is read again is worth nearly as much as new text up to 4 times, and little from 16 on
# (Muennighoff et al. 2023); on the text of a task, 100 times, with new masks, still helped (Gururangan et al. 2020).
EPOCHS = 10
LEAST_STEPS = 500  # as in fine-tuning: fewer hardly move a head; at most those of the recipe
FEW_EXAMPLES = 32  # a step, for text that is too small for so many steps of more
DOMAIN, GENERAL = "domain", "general"  # names of the sources, with --keep


@dataclass(frozen=True)
class Initial:
    """A checkpoint of this package or of transformers, from a folder or the Hub, that a run begins as or learns from.

    Args:
        source (`str`): Folder or name.
        option (`str`): What messages call it.
        auto_class (`str`): Whose class it is loaded with.
        positions (`str`): How its table of positions becomes longer, one of `HOW`.
        head_steps (`float`, *optional*): Steps in which new heads learn alone, for a checkpoint without some of them;
            below 1 a share of all steps. Defaults to `HEAD_STEPS`.
    """

    source: str
    option: str = "CHECKPOINT"
    auto_class: str = "AutoModelForMaskedLM"
    positions: str = HOW[0]
    head_steps: float | None = None

    def __post_init__(self):
        steps = self._head_steps
        if not 0 <= steps < math.inf:  # nan too
            raise ValueError(f"head_steps={steps} (--head-steps): it must be a number of at least 0.")
        if steps > 1 and steps % 1:
            raise ValueError(f"head_steps={steps} (--head-steps): give a share below 1, or a whole number.")

    def __str__(self) -> str:
        return f"{self.option} {self.source!r}"

    @property
    def _head_steps(self) -> float:
        return HEAD_STEPS if self.head_steps is None else self.head_steps

    @property
    def name(self) -> str:
        """For record and card."""
        return name_of_checkpoint(self.source)

    @cached_property
    def config(self) -> EncoderConfig:
        """Its configuration."""
        return read_config(self.source, self.option)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its configuration, for the model of the run."""
        base = {option.name for option in fields(transformers.PreTrainedConfig)} - {"tie_word_embeddings"}
        return {one.name: getattr(self.config, one.name) for one in fields(self.config) if one.name not in base}

    def alone(self, steps: int) -> int:
        """Return the steps in which new heads learn alone; of a share, the last step is the encoder's too.

        Raises:
            ValueError: If the encoder would never learn.
        """
        alone = self._head_steps
        if alone >= max(steps, 1):
            raise ValueError(
                f"head_steps={alone:g} (--head-steps): the run has {steps:,} steps, and the encoder would "
                "not learn: give fewer, or a share below 1."
            )
        return min(math.ceil(alone * steps), steps - 1) if alone < 1 else int(alone)

    def check_output(self, output: str) -> None:
        """Refuse a folder where the result would replace it."""
        if Path(self.source).resolve() == Path(output, "model").resolve():
            raise ValueError(
                f"--output {output}: the result would replace {self}, which the run begins from: give another folder."
            )

    def tokenizer_name(self, name: str | None) -> str:
        """Return the name of the tokenizer: `name`, or by default its own.

        Raises:
            ValueError: if both are there, and tokens have other ids.
        """
        if name is None:
            return self.source
        try:
            tokenizer = load_tokenizer(self.source)
        except ValueError:  # there is none: that is what --tokenizer is for
            return name
        if not tokenizer.get_vocab().items() <= load_tokenizer(name, "--tokenizer").get_vocab().items():
            raise ValueError(
                f"--tokenizer {name!r} has other ids than the tokenizer of {self}, whose rows they would stand for: "
                "leave it out."
            )
        return name

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Return the facts that identify it, for `run.json`.

        Raises:
            ValueError: As `model`; and for `head_steps` where the checkpoint has all heads.
        """
        model, missing, _ = self._load(self.auto_class, self.config)
        if self.head_steps is not None and not missing:
            raise ValueError(
                f"head_steps={self.head_steps:g} (--head-steps): {self} has all weights of {type(model).__name__}, "
                "and no head is new: leave it out."
            )
        for name in missing:  # drawn each time
            model.state_dict()[name].zero_()
        how = {"positions": self.positions, "head steps": self._head_steps}
        return {"name": self.name, "weights": fingerprint(model), **how}

    def model(self, config: EncoderConfig) -> PreTrainedModel:
        """Return the model with the checkpoint's weights; its `new_weights` are the names of those that it lacks.

        `unused_weights` are the names of weights that only the checkpoint has.

        Raises:
            ValueError: If weights of the encoder are missing, or of other shapes.
        """
        as_saved = copy.deepcopy(config)
        if POSITIONS in self.fields:
            setattr(as_saved, POSITIONS, self.fields[POSITIONS])
        model, missing, unused = self._load(self.auto_class, as_saved)
        extend_positions(model, config.max_position_embeddings, self.positions)
        model.new_weights, model.unused_weights = frozenset(missing), frozenset(unused)
        return model

    def teacher(self) -> PreTrainedModel:
        """Return the model with its masked-LM head, in float32.

        Raises:
            ValueError: as `model`, and for a checkpoint without the head.
        """
        if type(self.config) not in transformers.AutoModelForMaskedLM._model_mapping:
            raise ValueError(
                f"{self} is of {self.config.model_type}, which has no head for masked tokens, and the student learns "
                "from its scores: choose another teacher."
            )
        teacher, missing, _ = self._load("AutoModelForMaskedLM", self.config)
        if missing:
            remedy = "give the checkpoint of the pre-training, with the head"
            if folders := submodels(Path(self.source)):
                remedy = f"give the {folders[0]}, {self.source}/{folders[0]}, and --tokenizer {self.source}"
            raise ValueError(
                f"{self} has no masked-LM head ({missing[0]} is missing), and the student learns from its scores: "
                f"{remedy}."
            )
        return teacher

    def _load(self, auto_class: str, config: EncoderConfig) -> tuple[PreTrainedModel, list[str], list[str]]:
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()  # the run says what is new or unused; it is no sign of damage
        try:
            model, missing, unused = load_weights(self.source, getattr(transformers, auto_class), config, self.option)
        finally:
            transformers.logging.set_verbosity(verbosity)
        if lacking := encoder_weights(model) & set(missing):
            raise ValueError(
                f"{self} has no {min(lacking)}, one of {len(lacking)} weights of the encoder: give a complete "
                "checkpoint."
            )
        return model, missing, unused


@torch.no_grad()
def extend_positions(model: PreTrainedModel, rows: int, how: str = "copy") -> None:
    """Give a model a table of positions with more rows, in place.

    `copy` repeats the rows of the old positions for those after them, as Longformer (Beltagy et al. 2020, section 5,
    https://arxiv.org/abs/2004.05150): neighbours keep the distances that the model knows. `interpolate` stretches the
    table (Chen et al. 2023, https://arxiv.org/abs/2306.15595): the order of far positions is kept, and the distance of
    neighbours is new. Rows before the first position, RoBERTa's, stay.

    Args:
        model (`PreTrainedModel`): A model with absolute positions.
        rows (`int`): `max_position_embeddings` of the longer table.
        how (`str`, *optional*, defaults to `"copy"`): `copy` or `interpolate`.

    Raises:
        ValueError: For fewer rows than there are, another `how`, and a model without a table of absolute positions.
    """
    if how not in HOW:
        raise ValueError(f"positions={how!r}: it must be {' or '.join(HOW)}.")
    before = model.config.max_position_embeddings
    if rows == before:
        return
    if rows < before:
        raise ValueError(
            f"max_position_embeddings={rows} is less than the model's {before}: positions are not cut off."
        )
    tables = [item for item in model.named_modules() if item[0].rpartition(".")[2] == "position_embeddings"]
    if len(tables) != 1 or tables[0][1].num_embeddings != before:
        raise ValueError(
            f"max_position_embeddings={rows}: {type(model).__name__} has no table of {before} absolute positions that "
            "could become longer."
        )
    ((name, table),) = tables
    first = before - model.base_model.longest_row()  # rows that no position uses
    longer = type(table)(rows, table.embedding_dim, padding_idx=table.padding_idx).to(table.weight)
    longer.weight[:first] = table.weight[:first]
    longer.weight[first:] = _stretched(table.weight[first:], rows - first, how)
    longer.weight.requires_grad_(table.weight.requires_grad)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, longer)
    model.config.max_position_embeddings = rows


def _stretched(table: torch.Tensor, rows: int, how: str) -> torch.Tensor:
    """Stretch a table: `(before, D)` -> `(rows, D)`.

    >>> _stretched(torch.tensor([[0.0], [1.0]]), 4, "copy").flatten().tolist()
    [0.0, 1.0, 0.0, 1.0]
    >>> _stretched(torch.tensor([[0.0], [3.0]]), 4, "interpolate").flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    if how == "copy":
        return table[torch.arange(rows, device=table.device) % len(table)]
    longer = nn.functional.interpolate(table.float().t()[None], size=rows, mode="linear", align_corners=True)
    return longer[0].t().to(table.dtype)


def default_recipe(noted: dict[str, Any] | None, given: dict[str, Any]) -> str:
    """Return the recipe that the run of the output folder has, if it is one of the two; else that for this machine."""
    begun = None if noted is None else noted["recipe"]["name"]
    here = RECIPE if torch.accelerator.is_available() and not given.get("use_cpu") else RECIPE_ON_CPU
    return begun if begun in (RECIPE, RECIPE_ON_CPU) else here


def fitted(
    recipe: Recipe, config: EncoderConfig, arguments: argparse.Namespace, noted: dict[str, Any] | None
) -> Recipe:
    """Return the recipe with the steps for the size of the text and the learning rate for the width, and print them.

    A run that goes on keeps those that it began with, in `noted`; what `--set` says is kept.
    """
    changed = changed_keys(arguments.set)
    if noted is not None:
        phases, rate = phases_of(noted), noted["training"]["learning_rate"]
    else:
        (phase,) = recipe.phases
        sources = Sources.from_words(arguments.corpus, arguments.language, arguments.source_options)
        tokens = sum(source.tokens for name, source in sources.items() if name != GENERAL or arguments.keep is None)
        read = EPOCHS * tokens / (1 - arguments.replay)
        if read < LEAST_STEPS * phase.examples * phase.length:
            phase = dataclasses.replace(phase, examples=FEW_EXAMPLES)
        base = BASE_RATE if phase.examples == FEW_EXAMPLES else recipe.training["learning_rate"]
        steps = round(min(max(read / (phase.examples * phase.length), LEAST_STEPS), phase.steps))
        rate = rate_of_width(config.hidden_size, base)
        chosen = f"Chosen without --recipe: {phase.examples} examples of {phase.length} tokens a step"
        limits = f"from {LEAST_STEPS:,} to {phase.steps:,}"
        phases = (dataclasses.replace(phase, steps=steps),)
        if "max_steps" not in given_fields(arguments):
            chosen += f", {steps:,} steps for about {in_short(tokens)} tokens of text ({EPOCHS} times, {limits})"
        if "learning_rate" not in given_fields(arguments):
            chosen += f", learning rate {rate:g} for width {config.hidden_size}"
        if os.environ.get("RANK", "0") == "0" and not changed & {"phases", "training"}:
            print(f"{chosen}.", flush=True)
    if "phases" in changed:
        phases = recipe.phases
    if changed & {"training.learning_rate"}:
        rate = recipe.training["learning_rate"]
    return dataclasses.replace(recipe, phases=phases, training=recipe.training | {"learning_rate": rate})


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
    if UNNAMED not in paths or "sources" in changed_keys(arguments.set):
        raise ValueError(
            "--keep goes with one --corpus without names: with several, name the general text too, and set its share "
            "with --corpus-weights (0: for evaluation only)."
        )
    general = [f"{GENERAL}={path}" for path in arguments.keep]
    arguments.corpus = [*(f"{DOMAIN}={path}" for path in arguments.corpus), *general]
    arguments.source_options = {DOMAIN: "--corpus", GENERAL: "--keep"}
    weights = {DOMAIN: 1 - arguments.replay, GENERAL: arguments.replay}
    arguments.set = [*arguments.set, f"sources={json.dumps({'weights': weights})}"]


def adapted_recipe(recipe: Recipe, objective: str, config: EncoderConfig, arguments: argparse.Namespace) -> Recipe:
    """Return the recipe for the checkpoint's family and lengths, and an objective."""
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
    return dataclasses.replace(recipe, **fields)


def position_fields(config: EncoderConfig, longest: int, rows: int, how: str | None) -> dict[str, int]:
    """Return the field of a model with positions for `longest` tokens if the checkpoint, which has `rows`, has fewer.

    Raises:
        ValueError: if `how` they begin was given and there are enough, and for a model without a table of them.
    """
    has_table = config.has_position_table
    if how is not None and not has_table:
        raise ValueError(f"--positions {how}: the checkpoint has distances and no table of positions: leave it out.")
    if longest <= rows:
        if how is not None:
            raise ValueError(
                f"--positions {how} is for longer texts than the checkpoint has positions for: give --max-length too, "
                "or leave it out."
            )
        return {}
    if not has_table:
        raise ValueError(
            f"--max-length {longest}: the checkpoint has distances of up to {rows} tokens and no table of positions "
            f"that could become longer: give at most {rows}."
        )
    return {"max_position_embeddings": type(config).position_rows(longest, config.pad_token_id or 0)}


def objective_of(config: EncoderConfig, source: str) -> str:
    """Return the objective of the family's default recipe if the checkpoint has its heads, or no MLM head; else mlm.

    Where the checkpoint's training record names another objective of sentence pairs (MacBERT's), it is that.

    Raises:
        ValueError: for a record that cannot be read.
    """
    family = family_recipes().get(config.model_type)
    own = None if family is None else get_objective(family["objective"])
    saved = {name.removeprefix("Hfe") for name in config.architectures or ()}
    if own is None:
        return "mlm"
    has_heads = own.model_class(type(config)).__name__.removeprefix("Hfe") in saved
    if not has_heads and "AutoModelForMaskedLM" in config.AUTO_MAP:
        return "mlm"
    try:
        recorded = TrainingRecord.of_checkpoint(source).objectives
    except ValueError as error:
        raise ValueError(f"CHECKPOINT {source!r}: {error} Or give --objective.") from error
    same = (one for one in objectives().values() if one.terms == own.terms and one.turns_column is None)
    return next((one.name for one in same if getattr(one, "title", None) in dict(recorded)), own.name)


def student_recipe(recipe: Recipe, teacher_family: str, family: str) -> Recipe:
    """Return the recipe for a student of `family`."""
    if family != recipe.family and recipe.model:
        raise ValueError(
            f"--recipe {recipe.name}: its model: is of the family {recipe.family}, and the student of a "
            f"{teacher_family} is a {family}: choose a recipe that sets no model, or --family {recipe.family}."
        )
    return dataclasses.replace(recipe, family=family)


def default_layers(recipe: Recipe, depth: int) -> list[int]:
    """Return as many of the teacher's `depth` layers as the recipe's model has, or half of them, evenly spread."""
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
        name, number = recipe.config_class.own_name("num_hidden_layers"), len(objective.layers)
        if recipe.model.get(name, number) != number:
            raise ValueError(f"--layers: {number} layers, and model: {name}={recipe.model[name]}.")
    with torch.device("meta"):
        objective.new_model(config_of_fields(recipe.config_class, {**fields, **recipe.model}))
