"""`hf-encoders finetune TASK`: fine-tune an encoder on labelled files, with metrics for each seed.

Files are CSV, TSV, JSON lines, CoNLL or SQuAD; `--dataset` takes any dataset instead. The plan is printed first. Each
seed's model, with tokenizer, code and record, is saved to `DIR/seed-N`, all metrics to `DIR/results.json`.
"""

import argparse
import ast
from pathlib import Path

import hf_encoders
from hf_encoders.data.corpus.text_files import check_is_text
from hf_encoders.finetuning.shared_options import add_data_arguments, add_training_arguments
from hf_encoders.inputs import check_exists, check_model, check_name_or_path
from hf_encoders.options import finetuning_tasks
from hf_encoders.options.names import CHECKPOINTS, CLASSES
from hf_encoders.writing import check_folder


# Name, module in `hf_encoders.finetuning`, the Hub's name of the task, summary.
TASKS = (
    ("text-classification", "sequence_classification", "text-classification", "a label for a text or a pair of texts"),
    ("text-regression", "sequence_regression", "text-classification", "a number for a text or a pair: similarity"),
    ("token-classification", "token_classification", "token-classification", "a tag for each word: entities"),
    ("question-answering", "question_answering", "question-answering", "the answer's span in a text, as in SQuAD"),
    ("multiple-choice", "multiple_choice", "multiple-choice", "the best of several endings"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each task: its own options, and those that all tasks share."""
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    for name, module, hub_task, summary in TASKS:
        task = tasks.add_parser(
            name, help=summary, description=docstring_of(module), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add_model_arguments(task.add_argument_group("model and runs"))
        add_data_arguments(task)
        getattr(finetuning_tasks, f"add_{module}")(task.add_argument_group("task"))
        add_training_arguments(task)
        task.set_defaults(task_module=module, hub_task=hub_task, parser=task)


def add_model_arguments(group: argparse._ArgumentGroup) -> None:
    """Add options for the model and for all runs together."""
    add = group.add_argument
    add("--model", required=True, metavar="DIR_OR_NAME", help="encoder: folder, or name on the Hub")
    add("--output", required=True, metavar="DIR", help="folder for models and metrics")
    add("--overwrite", action="store_true", help="replace results.json and the models of these seeds in --output")
    add("--max-length", type=int, metavar="TOKENS", help="longest input, with special tokens (default: the model's)")
    add("--seeds", type=int, nargs="+", default=[0], metavar="N", help="a run with each seed (default: 0)")
    add("--patience", type=int, metavar="N", help="stop after N evaluations without improvement (default: never)")
    add(
        "--layer-decay",
        type=float,
        default=1.0,
        metavar="X",
        help="each layer's learning rate as a share of that of the layer above, in (0, 1]; ELECTRA's is 0.8 (default: "
        "%(default)s, one rate for all)",
    )
    add(
        "--checkpoint",
        choices=CHECKPOINTS,
        default="best",
        help="weights to keep: of the best evaluation on the validation set, or after the last step (default: best)",
    )
    add(
        "--class-weights",
        nargs="+",
        default=[],
        metavar="LABEL=WEIGHT",
        help="weight of each class in the loss, others 1; or balanced: inverse to its frequency (default: all 1)",
    )
    add("--classes", choices=CLASSES, default="hf_encoders", help="model classes, to compare (default: %(default)s)")
    add("--from-scratch", action="store_true", help="initialise all weights randomly, to compare")
    text = "initialise the head randomly though the model has one: for other labels than it was fine-tuned for"
    add("--new-head", action="store_true", help=text)


def docstring_of(module: str) -> str | None:
    """The docstring of a task's module, without an import of the module."""
    path = Path(hf_encoders.__file__).parent / "finetuning" / f"{module}.py"
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong, and seeds that are."""
    if (arguments.train is None) == (arguments.dataset is None):
        raise ValueError("give either --train FILE or --dataset NAME to train on.")
    for name in ("train", "validation", "test"):
        path = getattr(arguments, name)
        if path is not None:
            check_exists(path, f"--{name}")
            check_is_text(Path(path), f"--{name}: ")
    if arguments.dataset is not None:
        check_name_or_path(arguments.dataset, f"--dataset {arguments.dataset!r}")
    check_model(arguments.model, f"--model {arguments.model!r}")
    check_folder(arguments.output, "--output")
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise ValueError(f"--seeds {arguments.seeds}: a seed occurs twice; both runs would be the same.")
    if not all(0 <= seed < 2**32 for seed in arguments.seeds):
        raise ValueError(f"--seeds {arguments.seeds}: a seed must be from 0 to 2**32 - 1.")
