"""The recipes and objectives of this package by their names; nothing here imports torch."""

import argparse
import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from hf_encoders.corpus.named_sources import named_paths
from hf_encoders.corpus.text_files import text_files
from hf_encoders.inputs import check_name_or_path, did_you_mean
from hf_encoders.option_names import NOTHING
from hf_encoders.source_literals import PACKAGE, literals
from hf_encoders.training_fields import add_field_arguments
from hf_encoders.writing import check_folder


RECIPES = PACKAGE / "runs"


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def recipes_for_help(names: Iterable[str]) -> str:
    """Return a line for each recipe, with what the comment at the beginning of its file says first."""
    lines = []
    for name in names:
        text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
        comment = " ".join(
            line.strip("# ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines())
        )
        comment = re.sub(r" \(https://[^)]*\)|, https://[^\s)]+", "", comment)
        lines.append(f"  {name:20}{re.split(r'(?<! al)[.;:] |[.]$', comment)[0]}")
    return "\n".join(["recipes:", *lines])


def recipe_file(name: str | Path) -> Path:
    """Return the file of a shipped recipe by its name, or the file of this name.

    Raises:
        ValueError: if there is none; it asks for the recipe with the most similar name, and names all.
    """
    shipped = RECIPES / f"{name}.yaml"
    path = shipped if shipped.is_file() else Path(name)
    if not path.is_file():
        choices = did_you_mean(str(name), recipe_names())
        raise ValueError(f"recipe {str(name)!r}: no such file, nor one of the shipped recipes: {choices}.")
    return path


def text_objectives(in_transformers: bool = False) -> list[str]:
    """Return the names of the objectives of running text that need nothing else, as their classes are written.

    With `in_transformers`, only those that transformers has models for too.
    """
    written = (literals(f"objectives.{file.stem}") for file in sorted((PACKAGE / "objectives").glob("*.py")))
    of_text = (values for values in written if "name" in values and not values.keys() & {"turns_column", "needs"})
    return [values["name"] for values in of_text if values.get("is_in_transformers", True) or not in_transformers]


# Fields of `TrainingArguments` that the run sets itself -> what to use instead, as in `option_names.NAMES`.
SET_BY_RUN = {
    "per_device_train_batch_size": "phases: examples; the command chooses the micro-batch size",
    "gradient_accumulation_steps": "phases: examples",
    "max_steps": "phases: steps",
    "num_train_epochs": "phases: steps",
    "optim": "optimizer",
    "output_dir": "--output",
    "train_sampling_strategy": f"{NOTHING}: the run samples the order of examples itself",
    "remove_unused_columns": f"{NOTHING}: examples are not rows of a dataset",
}
# Fields of `TrainingArguments` that change the recipe or the micro-batches.
OWN = ("max_steps", "optim", "per_device_train_batch_size", "gradient_accumulation_steps", "auto_find_batch_size")
VALIDATION_SHARE = 0.02
# Of `adapt` without --recipe.
RECIPE, RECIPE_ON_CPU = "adapt", "adapt-minutes"
# Text that is read again is worth nearly as much as new text up to 4 times, and little from 16 on
# (Muennighoff et al. 2023); on the text of a task, 100 times, with new masks, still helped (Gururangan et al. 2020).
EPOCHS = 10
LEAST_STEPS = 500  # as in fine-tuning: fewer hardly move a head; at most those of the recipe
FEW_EXAMPLES = 32  # a step, for text that is too small for so many steps of more


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of commands that train from a recipe, except recipe and tokenizer."""
    # The options of sources that others than --corpus name; the checkpoint or teacher.
    parser.set_defaults(source_options=None, begins_from=None)
    parser.add_argument(
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
        type=float,
        metavar="X",
        help="of named sources: draw each as often as its share of the examples to the power X says, in (0, 1] "
        "(default: the recipe's, or 1)",
    )
    sampling.add_argument(
        "--corpus-weights",
        action="extend",
        nargs="+",
        metavar="NAME=X",
        help="of named sources: how often each is drawn, at any scale",
    )
    parser.add_argument(
        "--corpus-name", metavar="NAME", help="what card and record call the text (default: the names of --corpus)"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the run")
    parser.add_argument(
        "--language",
        action="extend",
        nargs="+",
        default=[],
        metavar="[NAME=]CODE",
        help="language of the text, for sentence splitting and the card (default: the name of a source, if it is a "
        "code of two letters, otherwise en)",
    )
    parser.add_argument(
        "--validation-share",
        type=float,
        default=VALIDATION_SHARE,
        metavar="X",
        help="share of the documents for evaluation, in (0, 1) (default: %(default)s)",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print the plan and exit; a tokenizer and corpus made for it are kept in --output for the run",
    )
    parser.add_argument(
        "--measure", action="store_true", help="with --plan: run a pass of each phase instead of estimating its time"
    )
    parser.add_argument(
        "--device",
        choices=["cuda"],
        help="with --plan: plan for a GPU that is not here, at 30 %% of its peak rate; precision is that of the run "
        "(--bf16)",
    )
    parser.add_argument(
        "--device-tflops",
        type=float,
        metavar="X",
        help="with --device: its peak rate in the precision of the run, in TFLOP/s (default: an A100's, 312 with "
        "--bf16, 19.5 in float32)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the run that is in --output, once the new one trains"
    )
    training = parser.add_argument_group(
        "training",
        "Every other field of transformers.TrainingArguments is an option too, such as --bf16, --optim adafactor or "
        "--report-to tensorboard. The default is the recipe's.",
    )
    for option, kind, metavar, text in (
        ("--max-steps", int, "N", "optimizer steps; phases and warm-up keep their shares of them"),
        ("--learning-rate", float, "RATE", "peak of the schedule"),
        (
            "--per-device-train-batch-size",
            int,
            "ROWS",
            "examples of the longest phase that a device takes at once; a step keeps the recipe's number "
            "of them, by accumulation",
        ),
    ):
        training.add_argument(option, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=text)
    own = {name: remedy for name, remedy in SET_BY_RUN.items() if name not in OWN}
    add_field_arguments(parser, own | {"num_train_epochs": "--max-steps"})


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
        recipe_file(arguments.recipe)
    for name, paths in named_paths(arguments.corpus, "--corpus").items():
        check_text_or_corpus(paths, f"--corpus {name}=..." if name else "--corpus")
    if arguments.tokenizer is not None:
        check_name_or_path(arguments.tokenizer, f"--tokenizer {arguments.tokenizer!r}")
    check_folder(arguments.output, "--output")


def check_text_or_corpus(paths: Iterable[str], option: str) -> None:
    """Refuse paths that are neither text nor a folder, which may hold a prepared corpus."""
    for path in map(Path, paths):
        if not path.is_dir():
            text_files(path, f"{option}: ")
