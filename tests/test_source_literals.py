"""What commands read from the source of modules that import torch is what these modules have."""

import importlib
import re
from pathlib import Path

import pytest

import hf_encoders
from hf_encoders import registration
from hf_encoders.commands import quickstart
from hf_encoders.finetuning import question_answering
from hf_encoders.objectives.objective import objectives
from hf_encoders.options import field_options
from hf_encoders.runs.options import recipe_names, text_objectives
from hf_encoders.runs.recipe import load_recipe
from hf_encoders.source_literals import constant
from hf_encoders.training.optimizers import OPTIMIZERS


SOURCES = [path.read_text(encoding="utf-8") for path in sorted(Path(hf_encoders.__file__).parent.rglob("*.py"))]
READ = sorted({match for text in SOURCES for match in re.findall(r'= .*constant\("([\w.]+)", "(\w+)"\)', text)})


@pytest.mark.parametrize(("module", "name"), READ)
def test_a_constant_is_that_of_its_module(module, name):
    assert constant(module, name) == getattr(importlib.import_module(f"hf_encoders.{module}"), name)


def test_the_constants_of_all_commands_are_compared():
    assert len(READ) > 10 and ("loading", "CLASSES") in READ
    assert constant("models.question_answering_pipeline", "N_BEST") == question_answering.N_BEST


def test_objectives_are_those_that_are_registered():
    of_text = {name for name, one in objectives().items() if one.turns_column is None and one.needs is None}
    assert {*text_objectives()} == of_text
    assert {*text_objectives(in_transformers=True)} == {n for n in of_text if objectives()[n].is_in_transformers}


def test_families_are_those_that_are_registered():
    kinds = {}
    for config_class in registration.configurations():
        kinds.setdefault(config_class.VOCABULARY_KIND, (config_class.model_type, config_class.vocab_size))
    assert registration.vocabulary_kinds() == kinds
    assert registration.family_names() == [one.model_type for one in registration.configurations()]


def test_families_of_the_quickstart_have_a_recipe_of_one_text_whose_models_fill_masks():
    recipes = [load_recipe(name) for name in recipe_names() if name == f"{load_recipe(name).family}-minutes"]
    assert {*quickstart.families()} == {
        recipe.family
        for recipe in recipes
        if not recipe.needs_named_sources and not recipe.own_objective.needs and recipe.own_objective.fills_masks
    }


def test_optimizers_are_those_of_training():
    assert field_options()["optim"]["choices"] == list(OPTIMIZERS)
