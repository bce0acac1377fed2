"""Options that commands share: the fields of `transformers.TrainingArguments`, and names that other scripts use.

The fields are read from the source of transformers, because importing the class takes five seconds.
"""

import argparse
import ast
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hf_encoders.inputs import close_names
from hf_encoders.source_literals import literal


NOTHING = "leave it out"
# Names in transformers' example scripts -> what to use here: the first entry that begins with an option or a
# positional argument of the command, or with neither.
NAMES = {
    "model_name_or_path": ("--model", "RECIPE, whose model is trained from scratch", "DIR_OR_NAME", "DIR"),
    "config_name": ("--model", "RECIPE, which defines the model"),
    "model_type": ("--model", "RECIPE, which defines the model"),
    "tokenizer_name": ("--tokenizer", f"{NOTHING}: the tokenizer is the model's"),
    "train_file": ("--train", "--corpus", "--input", "--text"),
    "validation_file": ("--validation", "--validation-share", "--text"),
    "test_file": ("--test", "--text"),
    "dataset_name": ("--dataset", "--corpus, with a corpus made by `hf-encoders corpus --dataset NAME`"),
    "max_seq_length": ("--max-length", "--set phases.0.length=N"),
    "max_length": ("--max-length", "--set phases.0.length=N"),
    "block_size": ("--max-length", "--set phases.0.length=N"),
    "doc_stride": ("--window-overlap", "--doc-stride", NOTHING),
    "text_column_name": ("--text-column", "--tokens-column", NOTHING),
    "label_column_name": ("--label-column", "--tags-column", NOTHING),
    "mlm_probability": ("--set masking.mask_probability=X", NOTHING),
    "line_by_line": (f"{NOTHING}: lines are sentences, and blank lines separate documents",),
    "validation_split_percentage": ("--validation-share", "--held-out"),
    "preprocessing_num_workers": ("--workers", "RECIPE with a corpus of `hf-encoders corpus --workers N`"),
    "output_dir": ("--output",),
    "overwrite_output_dir": ("--overwrite", NOTHING),
    "warmup_ratio": ("--warmup", "--warmup_steps, below 1 a share"),
    "trainer": ("the field itself, for example --lr_scheduler_type cosine",),
    "layers": (f"{NOTHING}: examples/combine_layers.py trains a head on a mixture of layers",),
    "do_train": (f"{NOTHING}: the command trains",),
    "do_eval": (f"{NOTHING}: the command evaluates on every evaluation set it is given",),
    "do_predict": (f"{NOTHING}: the command evaluates on every evaluation set it is given",),
}
# Fields of `TrainingArguments` that a run or a fine-tuning sets itself -> what to use instead, as in `NAMES`.
SET_BY_RUN = {
    "per_device_train_batch_size": "phases: examples; the command chooses the micro-batch size",
    "gradient_accumulation_steps": "phases: examples",
    "max_steps": "phases: steps",
    "num_train_epochs": "--max-steps, or phases: steps",
    "optim": "optimizer",
    "output_dir": "--output",
    "train_sampling_strategy": f"{NOTHING}: the run samples the order of examples itself",
    "remove_unused_columns": f"{NOTHING}: examples are not rows of a dataset",
}
# Those of `SET_BY_RUN` that change recipe or micro-batches when they are given as options.
RUN_OPTIONS = ("max_steps", "optim", "per_device_train_batch_size", "gradient_accumulation_steps")
SET_BY_FINETUNING = {
    "output_dir": "--output",
    "seed": "--seeds",
    "save_strategy": "--checkpoint",
    "save_steps": "--eval-steps",
    "eval_strategy": "--eval-steps",
    "load_best_model_at_end": "--checkpoint",
    "metric_for_best_model": f"{NOTHING}: the task has a main metric",
    "greater_is_better": f"{NOTHING}: the task has a main metric",
    "save_total_limit": f"{NOTHING}: one checkpoint is kept",
    "save_only_model": f"{NOTHING}: one checkpoint is kept",
    "resume_from_checkpoint": f"{NOTHING}: runs start from scratch",
    "label_names": "the options for columns",
    "push_to_hub": "`hf-encoders publish`",
    "dataloader_drop_last": f"{NOTHING}: it would leave rows of the evaluation out",
    "remove_unused_columns": f"{NOTHING}: columns that the model does not read are always removed",
}
# Modules of transformers with the class, and with the enumerations of its fields.
MODULES = ("debug_utils", "trainer_utils", "training_args")
OWN_OPTIMIZERS = ("adamw", "lamb", "muon")  # names for --optim that transformers does not have


def true_or_false(word: str) -> bool:
    """Parse a field that is true or false.

    >>> true_or_false("True"), true_or_false("no")
    (True, False)
    """
    for value, words in ((True, ("true", "yes", "t", "y", "1")), (False, ("false", "no", "f", "n", "0"))):
        if word.lower() in words:
            return value
    raise argparse.ArgumentTypeError(f"{word!r} must be true or false")


def json_object(text: str) -> dict[str, Any]:
    """Parse a field that is a dictionary, in JSON."""
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} must be an object in JSON") from None


KINDS = {"int": int, "float": float, "str": str, "bool": true_or_false, "dict": json_object}


@cache
def field_options() -> dict[str, dict[str, Any]]:
    """Return the keyword arguments of `add_argument` for each field that words can express, by its name.

    As `transformers.HfArgumentParser` makes them. `negated` is there for a field that is true by default.
    """
    (folder,) = importlib.util.find_spec("transformers").submodule_search_locations
    trees = [ast.parse(Path(folder, f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    choices = {
        name: [literal(line.value) for line in node.body if isinstance(line, ast.Assign)]
        for name, node in classes.items()
    }
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
    metadata = {literal(key): literal(value) for key, value in pairs}
    return {name: metadata[name] for name in ("nargs", "const", "choices") if metadata.get(name) is not None}


def _option(types: list[str], default: Any, choices: Mapping[str, list[str]]) -> dict[str, Any] | None:
    """Return the keyword arguments for a field of one of `types`; None for a type that words cannot express."""
    may_be_none = "None" in types
    kinds = [kind for kind in types if kind not in ("None", "str")]
    kind = kinds[0] if kinds and not (may_be_none and "str" in types) else "str"
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


def add_training_options(
    parser: argparse.ArgumentParser, set_by_command: Mapping[str, str], shown: Mapping[str, tuple[str, str, list[str]]]
) -> None:
    """Add an option for each field of `TrainingArguments`, under its name, that the parser does not have yet.

    Args:
        parser (`argparse.ArgumentParser`): Of a command, with all of its other options.
        set_by_command (`Mapping`): Field that is no option -> what to use instead, which the error says.
        shown (`Mapping`): Field that `--help` lists -> metavar, help, and shorter names.
    """
    group = parser.add_argument_group(
        "training",
        "Every other field of transformers.TrainingArguments is an option too, such as --bf16, --optim adafactor or "
        "--report-to tensorboard.",
    )
    options = {name: option for name, option in field_options().items() if name not in {*set_by_command, *NAMES}}
    taken = {action.dest for action in parser._actions}  # argparse has no public list
    for name in dict.fromkeys((*shown, *options)):
        if name in taken:
            continue
        word, option = name.replace("_", "-"), dict(options[name])
        metavar, text, names = shown.get(name, (None, argparse.SUPPRESS, []))
        target = {"dest": name, "default": argparse.SUPPRESS}
        if option.pop("negated", False):
            parser.add_argument(f"--no-{word}", action="store_false", help=argparse.SUPPRESS, **target)
        (group if name in shown else parser).add_argument(
            *names, f"--{word}", help=text, **({"metavar": metavar} if metavar else {}), **target, **option
        )
    parser.set_defaults(other_names={name: (remedy,) for name, remedy in set_by_command.items()})


def given_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `TrainingArguments` that were given on the command line, parsed."""
    return {name: value for name, value in vars(arguments).items() if name in field_options() and value is not None}


def names_here(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Say what to use instead of each option in `words` that is known elsewhere and that the parser does not have."""
    options = parser._option_string_actions
    arguments = {*options, *(action.metavar for action in parser._actions)}
    known = NAMES | (parser.get_default("other_names") or {})
    answers = []
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in known or f"--{name.replace('_', '-')}" in options:
            continue
        for remedy in known[name]:
            first = remedy.replace(",", " ").split()[0]
            if first in arguments or not (first.startswith("--") or first.isupper()):
                answers.append(f"--{name}: {advice(remedy)}")
                break
    return list(dict.fromkeys(answers))


def closest_options(words: list[str], parser: argparse.ArgumentParser) -> str:
    """Return, in brackets, the option that is closest to each one in `words` that the parser does not have."""
    # Without the hyphens that all begin with, which would make any two short names similar.
    names = [option.removeprefix("--") for option in parser._option_string_actions if option.startswith("--")]
    unknown = [word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")]
    closest = {word: close_names(word, names)[:1] for word in unknown if word not in names}
    asked = [f"--{word}: did you mean --{name}?" for word, close in closest.items() for name in close]
    return f" ({' '.join(asked)})" if asked else ""


def advice(remedy: str) -> str:
    """Return a remedy of `NAMES` as it stands in a message.

    >>> advice("--output"), advice("leave it out: the command trains")
    ('use --output', 'leave it out: the command trains')
    """
    return remedy if remedy.startswith(NOTHING) else f"use {remedy}"
