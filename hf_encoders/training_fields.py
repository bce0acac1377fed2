"""The fields of `transformers.TrainingArguments` as options of a command.

They are read from the source of transformers: importing the class takes five seconds.
"""

import argparse
import ast
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hf_encoders.option_names import NAMES
from hf_encoders.source_literals import literal


# Modules of transformers with the class, and with the enumerations of its fields.
MODULES = ("debug_utils", "trainer_utils", "training_args")
OWN_OPTIMIZERS = ("adamw", "lamb")  # names for --optim that transformers does not have


def true_or_false(word: str) -> bool:
    """The value of a field that is true or false.

    >>> true_or_false("True"), true_or_false("no")
    (True, False)
    """
    for value, words in ((True, ("true", "yes", "t", "y", "1")), (False, ("false", "no", "f", "n", "0"))):
        if word.lower() in words:
            return value
    raise argparse.ArgumentTypeError(f"{word!r} must be true or false")


def json_object(text: str) -> dict[str, Any]:
    """The value of a field that is a dictionary, in JSON."""
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} must be an object in JSON") from None


KINDS = {"int": int, "float": float, "str": str, "bool": true_or_false, "dict": json_object}


@cache
def field_options() -> dict[str, dict[str, Any]]:
    """The keyword arguments of `add_argument` for each field that can be given as words, by its name.

    As `transformers.HfArgumentParser` makes them. `negated` is there for a field that is true by default.
    """
    (folder,) = importlib.util.find_spec("transformers").submodule_search_locations
    trees = [ast.parse(Path(folder, f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    choices = {name: _values(node) for name, node in classes.items()}
    options = {}
    for node in classes["TrainingArguments"].body:
        if isinstance(node, ast.AnnAssign):
            field = {keyword.arg: keyword.value for keyword in getattr(node.value, "keywords", ())}
            default = literal(field.get("default"))
            option = _option(ast.unparse(node.annotation).split(" | "), default, choices)
            if option is not None and literal(field.get("init")) is not False:
                options[node.target.id] = option | _metadata(field.get("metadata"))
    options["optim"]["choices"] = [*OWN_OPTIMIZERS, *options["optim"]["choices"]]
    return options


def _metadata(node: ast.expr | None) -> dict[str, Any]:
    """Return what a field's metadata says about its option, where it is a literal."""
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    said = {literal(key): literal(value) for key, value in pairs}
    return {name: said[name] for name in ("nargs", "const", "choices") if said.get(name) is not None}


def _values(node: ast.ClassDef) -> list[str]:
    """The values of an enumeration of str."""
    return [literal(line.value) for line in node.body if isinstance(line, ast.Assign)]


def _option(kinds: list[str], default: Any, choices: Mapping[str, list[str]]) -> dict[str, Any] | None:
    """The keyword arguments for a field of one of `kinds`; None for a type that words cannot express."""
    may_be_none, others = "None" in kinds, [kind for kind in kinds if kind not in ("None", "str")]
    kind = others[0] if others and not (may_be_none and "str" in kinds) else "str"
    option: dict[str, Any] = {}
    if kind.startswith("list["):
        kind, option["nargs"] = kind.removeprefix("list[").removesuffix("]"), "+"
    if kind in choices:
        return option | {"type": str, "choices": choices[kind]}
    if kind.partition("[")[0] not in KINDS:
        return None
    if kind == "bool":
        if not may_be_none:
            option |= {"nargs": "?", "const": True}
        if default is True:
            option["negated"] = True
    return option | {"type": KINDS[kind.partition("[")[0]]}


def add_field_arguments(parser: argparse.ArgumentParser, set_by_command: Mapping[str, str]) -> None:
    """Add an option for each field that the parser does not have yet; `--help` does not list them.

    Args:
        parser (`argparse.ArgumentParser`): Of a command, with all of its own options.
        set_by_command (`Mapping`): Field that the command sets itself -> what to use instead, as in
            `option_names.NAMES`. It is not an option; the error says what to use.
    """
    own = {action.dest for action in parser._actions}  # argparse has no public list
    for name, option in field_options().items():
        if name in own or name in set_by_command or name in NAMES:
            continue
        word, hidden = name.replace("_", "-"), {"dest": name, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        option = dict(option)
        if option.pop("negated", False):
            parser.add_argument(f"--no-{word}", action="store_false", **hidden)
        parser.add_argument(f"--{word}", **hidden, **option)
    parser.set_defaults(other_names={name: (remedy,) for name, remedy in set_by_command.items()})


def given_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given on the command line, parsed."""
    return {name: value for name, value in vars(arguments).items() if name in field_options() and value is not None}
