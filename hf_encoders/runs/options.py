"""Recipes by name, and the options of the commands that train from one; nothing here imports torch."""

import argparse
import copy
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_encoders.corpus.text_files import named_paths, text_files
from hf_encoders.inputs import check_name_or_path, did_you_mean
from hf_encoders.options import RUN_OPTIONS, SET_BY_RUN, add_training_options
from hf_encoders.source_literals import PACKAGE, literals_of_classes
from hf_encoders.writing import check_folder


RECIPES = PACKAGE / "runs"
SCRATCH, CHECKPOINT, TEACHER = BEGINNINGS = ("scratch", "checkpoint", "teacher")  # values of `begins_from`
VALIDATION_SHARE = 0.02
# Of `train_run`, for commands without the options; `source_options`: what messages call sources of other options.
RUN_DEFAULTS = {
    **dict.fromkeys(("source_options", "recipe", "tokenizer", "device", "device_tflops")),
    **dict.fromkeys(("evaluate_first", "plan", "measure"), False),
}


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-4 for a word; here it is a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def recipe_names(begins_from: str | None = None) -> list[str]:
    """Return the names of the shipped recipes, or those of models that begin from scratch, a checkpoint, a teacher."""
    names = sorted(file.stem for file in RECIPES.glob("*.yaml"))
    return [n for n in names if begins_from in (None, read_recipe(recipe_file(n)).get("begins_from", SCRATCH))]


def family_recipes() -> dict[str, dict[str, Any]]:
    """Return the recipe of each family that stands for it, by `is_family_default`: its fields with its name."""
    recipes = [{"name": name, **read_recipe(recipe_file(name))} for name in recipe_names()]
    return {recipe["family"]: recipe for recipe in recipes if recipe.get("is_family_default")}


def recipes_for_help(names: Iterable[str]) -> str:
    """Return a line for each recipe, with the comment in the first line of its file."""
    files = {name: (RECIPES / f"{name}.yaml").read_text(encoding="utf-8") for name in names}
    lines = [f"  {name:20}{text.splitlines()[0].strip('# .')}" for name, text in files.items()]
    return "\n".join(["recipes:", *lines])


def recipe_file(name: str | Path) -> Path:
    """Return the file of a shipped recipe by its name, or the file of this name; ValueError if there is neither."""
    shipped = RECIPES / f"{name}.yaml"
    path = shipped if shipped.is_file() else Path(name)
    if not path.is_file():
        choices = did_you_mean(str(name), recipe_names())
        raise ValueError(f"recipe {str(name)!r}: no such file, nor one of the shipped recipes: {choices}.")
    return path


def read_recipe(path: Path) -> Any:
    """Return what the YAML file of a recipe says, unchecked."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML ({' '.join(str(error).split())}).") from error


def with_changes(fields: Any, changes: Sequence[str]) -> Any:
    """Return the fields of a recipe with those of `--set`: `KEY=VALUE`, the value in YAML; null leaves a field out.

    >>> with_changes({"phases": [{"steps": 5}]}, ["phases.0.steps=7", "model.size=base"])
    {'phases': [{'steps': 7}], 'model': {'size': 'base'}}

    Raises:
        ValueError: naming the change that is not of this form, or whose key leads nowhere.
    """
    fields = copy.deepcopy(fields)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not all(key.split(".")):
            raise ValueError(f"--set {change}: give KEY=VALUE, such as masking.mask_probability=0.3.")
        try:
            value = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError as error:
            raise ValueError(f"--set {change}: the value is not YAML ({' '.join(str(error).split())}).") from error
        *parents, last = key.split(".")
        parent = fields
        for name in parents:
            parent = parent.setdefault(name, {}) if isinstance(parent, dict) else parent[_index(parent, name, change)]
        if not isinstance(parent, dict):
            parent[_index(parent, last, change)] = value
        elif value is None:
            parent.pop(last, None)
        else:
            parent[last] = value
    return fields


def _index(parent: Any, name: str, change: str) -> int:
    if not isinstance(parent, list):
        raise ValueError(f"--set {change}: {parent!r} has no field {name}: give a key of the recipe.")
    if not (name.isdecimal() and int(name) < len(parent)):
        raise ValueError(f"--set {change}: {name!r} must be a number from 0 to {len(parent) - 1}.")
    return int(name)


def changed_keys(changes: Sequence[str]) -> set[str]:
    """Return the keys of `--set`, and those of the fields that they are in.

    >>> sorted(changed_keys(["phases.0.steps=7", "objective=mlm"]))
    ['objective', 'phases', 'phases.0', 'phases.0.steps']
    """
    keys = (change.partition("=")[0].split(".") for change in changes)
    return {".".join(names[:end]) for names in keys for end in range(1, len(names) + 1)}


class Sets(argparse.Action):
    """An option that is short for `--set KEY=VALUE`; `form` makes the value of what was parsed."""

    def __init__(self, option_strings, dest, key: str, form: Callable[[Any], Any] = lambda value: value, **kwargs):
        super().__init__(option_strings, "set", default=argparse.SUPPRESS, **kwargs)
        self.key, self.form = key, form

    def __call__(self, parser, namespace, values, option_string=None):
        """Append the change to those of the command line."""
        namespace.set = [*namespace.set, f"{self.key}={json.dumps(self.form(values))}"]


def weight(word: str) -> tuple[str, float]:
    """Parse `NAME=X` of `--corpus-weights`."""
    name, _, number = word.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r}: give NAME=X, X the weight of a source, a number") from None


def text_objectives(in_transformers: bool = False) -> list[str]:
    """Return the objectives of running text that need nothing else, or those that transformers has models for too."""
    files = sorted((PACKAGE / "objectives").glob("*.py"))
    written = (values for file in files for values in literals_of_classes(f"objectives.{file.stem}"))
    of_text = (values for values in written if "name" in values and not values.keys() & {"turns_column", "needs"})
    return [values["name"] for values in of_text if values.get("is_in_transformers", True) or not in_transformers]


def add_run_arguments(parser: argparse.ArgumentParser, begins_from: str) -> None:
    """Add the options of commands that train from a recipe, except recipe and tokenizer."""
    parser.epilog = recipes_for_help(recipe_names(begins_from))
    # The default of a command's own --recipe stays.
    parser.set_defaults(**RUN_DEFAULTS | {"recipe": parser.get_default("recipe")})
    add = parser.add_argument
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any field of the recipe, such as masking.mask_probability=0.3, model.hidden_size=256 or "
        "phases.0.steps=100; the value is YAML, null leaves a field out; may be repeated",
    )
    add(
        "--corpus",
        required=True,
        action="extend",
        nargs="+",
        metavar="[NAME=]PATH",
        help="a prepared corpus, or text files or folders of them; with names, several sources (repeat a name for "
        "several paths)",
    )
    sampling = parser.add_mutually_exclusive_group()
    sampling.add_argument(
        "--sampling-alpha",
        action=Sets,
        key="sources",
        form=lambda alpha: {"alpha": alpha},
        type=float,
        metavar="X",
        help="of named sources: draw each as often as its share of the examples to the power X says, in (0, 1] "
        "(default: the recipe's, or 1)",
    )
    sampling.add_argument(
        "--corpus-weights",
        action=Sets,
        key="sources",
        form=lambda weights: {"weights": dict(weights)},
        type=weight,
        nargs="+",
        metavar="NAME=X",
        help="of named sources: how often each is drawn, at any scale",
    )
    add("--corpus-name", metavar="NAME", help="what card and record call the text (default: the names of --corpus)")
    add("--output", required=True, metavar="DIR", help="folder of the run")
    add(
        "--language",
        action="extend",
        nargs="+",
        default=[],
        metavar="[NAME=]CODE",
        help="language of the text, for sentence splitting and the card (default: the name of a source, if it is a "
        "code of two letters, otherwise en)",
    )
    add(
        "--validation-share",
        type=float,
        default=VALIDATION_SHARE,
        metavar="X",
        help="share of the documents for evaluation, in (0, 1) (default: %(default)s)",
    )
    add(
        "--plan",
        action="store_true",
        help="print the plan and exit; a tokenizer and corpus made for it are kept in --output for the run",
    )
    add("--measure", action="store_true", help="with --plan: run a pass of each phase instead of estimating its time")
    add(
        "--device",
        choices=["cuda"],
        help="with --plan: plan for a GPU that is not here, at 30 %% of its peak rate; precision is that of the run "
        "(--bf16)",
    )
    add(
        "--device-tflops",
        type=float,
        metavar="X",
        help="with --device: its peak rate in the precision of the run, in TFLOP/s (default: an A100's, 312 with "
        "--bf16, 19.5 in float32)",
    )
    add("--overwrite", action="store_true", help="replace the run that is in --output, once the new one trains")
    rows = "examples of the longest phase that a device takes at once; a step keeps its number, by accumulation"
    add_training_options(
        parser,
        {name: remedy for name, remedy in SET_BY_RUN.items() if name not in RUN_OPTIONS},
        {
            "max_steps": ("N", "optimizer steps; phases and warm-up keep their shares of them", []),
            "learning_rate": ("RATE", "peak of the schedule (default: the recipe's)", []),
            "per_device_train_batch_size": ("ROWS", rows, []),
        },
    )


def check_run(arguments: argparse.Namespace) -> None:
    """Refuse a recipe and paths that are wrong, and options that exclude each other, before anything is removed."""
    if not 0 < arguments.validation_share < 1:
        raise ValueError(f"--validation-share {arguments.validation_share}: must be above 0 and below 1.")
    if arguments.overwrite and arguments.plan:
        raise ValueError("--overwrite removes a run, and --plan starts none: leave one of them out.")
    if arguments.measure and not arguments.plan:
        raise ValueError("--measure is for --plan: add it, or leave --measure out.")
    if arguments.device and (arguments.measure or not arguments.plan):
        raise ValueError("--device is for --plan without --measure: a run trains on this machine's device.")
    if arguments.device_tflops is not None and not (arguments.device and arguments.device_tflops > 0):
        raise ValueError(
            f"--device-tflops {arguments.device_tflops:g}: must be above 0, and is for --plan --device cuda."
        )
    if arguments.recipe is not None:
        with_changes(read_recipe(recipe_file(arguments.recipe)), arguments.set)
    for name, paths in named_paths(arguments.corpus, "--corpus").items():
        check_text_or_corpus(paths, f"--corpus {name}=..." if name else "--corpus")
    if arguments.tokenizer is not None:
        check_name_or_path(arguments.tokenizer, f"--tokenizer {arguments.tokenizer!r}")
    check_folder(arguments.output, "--output")


def check_text_or_corpus(paths: Iterable[str], option: str) -> None:
    """Refuse paths that are neither text nor a folder, which may hold a prepared corpus."""
    for path in map(Path, paths):
        if not path.is_dir():
            text_files([path], option)
