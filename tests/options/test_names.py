"""Names that the options repeat, so that no torch is imported for them, are those of the modules that have them."""

import pytest

from hf_encoders import loading, registration
from hf_encoders.adaptation import initial_checkpoint, positions
from hf_encoders.commands import quickstart
from hf_encoders.data import labelled_files
from hf_encoders.data.corpus import lexicon, similar_words
from hf_encoders.data.vocabulary import text_selection
from hf_encoders.distillation import DistillationOptions, teacher
from hf_encoders.evaluation import pseudo_likelihood
from hf_encoders.finetuning import runs, sequence_classification
from hf_encoders.models import encoder_answers
from hf_encoders.objectives import OBJECTIVES
from hf_encoders.options import names, training_fields
from hf_encoders.options import quickstart as quickstart_options
from hf_encoders.publishing.export import WRITERS
from hf_encoders.recipes.recipe import load_recipe, recipe_names
from hf_encoders.records import plots
from hf_encoders.training.optimizers import OPTIMIZERS


def kinds_of_vocabulary():
    """The family that `--kind` stands for: the first one registered with that kind of vocabulary."""
    kinds = {}
    for config_class in registration.configurations():
        kinds.setdefault(config_class.VOCABULARY_KIND, (config_class.model_type, config_class.vocab_size))
    return kinds


def families_for_minutes():
    recipes = {name: load_recipe(name) for name in recipe_names() if name == f"{load_recipe(name).family}-minutes"}
    return {
        recipe.family
        for recipe in recipes.values()
        if not recipe.needs_named_sources and not recipe.own_objective.needs and recipe.own_objective.fills_masks
    }


TEXT_OBJECTIVES = [name for name, one in OBJECTIVES.items() if one.turns_column is None and one.needs is None]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (names.CLASSES, loading.CLASSES),
        (names.KINDS, kinds_of_vocabulary()),
        (names.TEXT_OBJECTIVES, tuple(TEXT_OBJECTIVES)),
        (names.COMPARABLE_OBJECTIVES, tuple(name for name in TEXT_OBJECTIVES if OBJECTIVES[name].is_in_transformers)),
        (set(names.QUICKSTART_FAMILIES), families_for_minutes()),
        (names.FORMS, labelled_files.FORMS),
        (names.HELD_OUT_MEGABYTES, text_selection.HELD_OUT_BYTES / 10**6),
        (names.POSITIONS, positions.HOW),
        (names.HEAD_STEPS, initial_checkpoint.HEAD_STEPS),
        (names.SOFT_TARGETS, teacher.SOFT_TARGETS),
        (names.SOFT_TARGETS[0], DistillationOptions().soft_targets),
        (names.TEMPERATURE, teacher.TEMPERATURE),
        (list(names.LOSS_WEIGHTS.items()), list(teacher.LOSS_WEIGHTS.items())),
        (names.MAX_TOKENS, pseudo_likelihood.MAX_TOKENS),
        (names.CHECKPOINTS, runs.CHECKPOINTS),
        (names.SINGLE_LABEL_METRICS, sequence_classification.SINGLE_LABEL_METRICS),
        (names.MAX_ANSWER_TOKENS, encoder_answers.MAX_ANSWER_TOKENS),
        (names.N_BEST, encoder_answers.N_BEST),
        (names.AXES, tuple(plots.AXES)),
        (names.EXPORTS, tuple(WRITERS)),
        (("jieba", "build"), (lexicon.JIEBA, similar_words.BUILD)),
        (training_fields.field_options()["optim"]["choices"], list(OPTIMIZERS)),
        (quickstart_options.STEPS, sum(phase.steps for phase in quickstart.PHASES)),
        (registration.family_names(), [one.model_type for one in registration.configurations()]),
    ],
)
def test_a_name_is_that_of_its_module(here, there):
    assert here == there
