"""The fields of `transformers.TrainingArguments` as options of a command."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import HfArgumentParser, TrainingArguments

from hf_encoders.option_names import NAMES
from hf_encoders.training.optimizers import OPTIMIZERS


FIELDS = frozenset(one.name for one in dataclasses.fields(TrainingArguments) if one.init)


def add_field_arguments(parser: argparse.ArgumentParser, set_by_command: Mapping[str, str]) -> None:
    """Add an option for each field that the parser does not have yet; `--help` does not list them.

    Args:
        parser (`argparse.ArgumentParser`): Of a command, with all of its own options.
        set_by_command (`Mapping`): Field that the command sets itself -> what to use instead, as in
            `option_names.NAMES`. It is not an option; the error says what to use.
    """
    own = {action.dest for action in parser._actions}  # argparse has no public list
    for action in HfArgumentParser(TrainingArguments, add_help=False)._actions:
        if action.dest in own or action.dest in set_by_command or action.dest in NAMES:
            continue
        action.default = action.help = argparse.SUPPRESS
        if action.dest == "optim":
            action.choices = OPTIMIZERS
        parser._add_action(action)
    parser.set_defaults(other_names={name: (remedy,) for name, remedy in set_by_command.items()})


def given_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given on the command line, parsed."""
    return {name: value for name, value in vars(arguments).items() if name in FIELDS and value is not None}
