"""Options of `TrainingArguments` that are read from its source are those of transformers' own parser."""

import argparse
import dataclasses

from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

from hf_encoders.options import KINDS, OWN_OPTIMIZERS, field_options


# No words express it, and transformers' parser makes none either: it calls the class with the word.
NOT_IN_WORDS = {"parallelism_config"}
# Choices that transformers computes; a wrong word is refused later, by `TrainingArguments`.
COMPUTED_CHOICES = {"log_level", "log_level_replica"}


def test_each_field_is_there():
    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert field_options().keys() == fields - NOT_IN_WORDS


def test_arity_types_and_choices_are_those_of_transformers():
    negated, compared = set(), 0
    for action in HfArgumentParser(TrainingArguments, add_help=False)._actions:
        if action.dest in NOT_IN_WORDS:
            continue
        option = field_options()[action.dest]
        if isinstance(action, argparse._StoreFalseAction):
            negated.add(action.dest)
            continue
        assert (option.get("nargs"), option.get("const")) == (action.nargs, action.const), action.dest
        if action.dest == "debug":  # a list of an enumeration, which transformers' parser calls with each word
            assert option["choices"] == [choice.value for choice in action.type]
        elif action.dest == "optim":
            assert option["choices"] == [*OWN_OPTIMIZERS, *action.choices]
        elif action.dest not in COMPUTED_CHOICES:
            assert option.get("choices") == (None if action.choices is None else list(action.choices)), action.dest
        if action.choices is None and action.dest != "debug":
            kind = {string_to_bool: KINDS["bool"], dict[str, bool]: KINDS["dict"]}.get(action.type, action.type)
            assert option["type"] is kind, action.dest
        compared += 1
    assert negated == {name for name, option in field_options().items() if option.get("negated")} and negated
    assert compared == len(field_options())
