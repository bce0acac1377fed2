"""`hf-encoders finetune TASK`: fine-tune an encoder on labelled files, with metrics for each seed.

Files are CSV, TSV, JSON lines, CoNLL or SQuAD; `--dataset` takes any dataset instead. The plan is printed first. Each
seed's model, with tokenizer, code and record, is saved to `DIR/seed-N`, all metrics to `DIR/results.json`.
"""

import argparse
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hf_encoders.finetuning.data import DataSource, add_data_arguments
from hf_encoders.inputs import check_model
from hf_encoders.options import SET_BY_FINETUNING, add_training_options, given_fields
from hf_encoders.source_literals import constant, literals
from hf_encoders.writing import check_folder, locked, replaced_folder


if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from hf_encoders.finetuning.runs import RunResult, RunSettings
    from hf_encoders.finetuning.task import PreparedTask


CLASSES = constant("loading", "CLASSES")
RULES = literals("finetuning.runs")  # default learning rate, epochs and other fields
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
    for name, file, hub_task, summary in TASKS:
        module = task_module(file)
        task = tasks.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add_model_arguments(task.add_argument_group("model and runs"))
        add_data_arguments(task)
        module.add_arguments(task.add_argument_group("task"))
        add_training_arguments(task)
        task.set_defaults(task_module=file, hub_task=hub_task, parser=task)


def add_model_arguments(group: argparse._ArgumentGroup) -> None:
    """Add options for the model and for all runs together."""
    add = group.add_argument
    add("--model", required=True, metavar="DIR_OR_NAME", help="encoder: folder, or name on the Hub")
    add("--output", required=True, metavar="DIR", help="folder for models and metrics")
    add("--overwrite", action="store_true", help="replace results.json and the models of these seeds in --output")
    add("--max-length", type=int, metavar="TOKENS", help="longest input, with special tokens (default: the model's)")
    add("--seeds", type=int, nargs="+", default=[0], metavar="N", help="a run with each seed (default: 0)")
    add("--patience", type=int, metavar="N", help="stop after N evaluations without improvement (default: never)")
    text = "each layer's learning rate as a share of that of the layer above, in (0, 1]; ELECTRA's is 0.8 (default: 1)"
    add("--layer-decay", type=float, default=1.0, metavar="X", help=text)
    text = "weights to keep: of the best evaluation on the validation set, or after the last step (default: best)"
    add("--checkpoint", choices=RULES["CHECKPOINTS"], default="best", help=text)
    text = "weight of each class in the loss, others 1; or balanced: inverse to its frequency (default: all 1)"
    add("--class-weights", nargs="+", default=[], metavar="LABEL=WEIGHT", help=text)
    add("--classes", choices=CLASSES, default="hf_encoders", help="model classes, to compare (default: %(default)s)")
    add("--from-scratch", action="store_true", help="initialise all weights randomly, to compare")
    text = "initialise the head randomly though the model has one: for other labels than it was fine-tuned for"
    add("--new-head", action="store_true", help=text)


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the fields of `TrainingArguments`."""
    rate = "{BASE_RATE:g} from width {BASE_WIDTH}, up to {HIGHEST_RATE:g} below".format(**RULES)
    epochs = "{BASE_EPOCHS:g}; below that width enough for {LEAST_STEPS} steps, at most {MOST_EPOCHS}".format(**RULES)
    shown = {}
    for name, metavar, text, default, *names in (
        ("learning_rate", "RATE", "peak; linear to 0 after warm-up", rate),
        ("per_device_train_batch_size", "ROWS", "rows per forward pass on each device", None, "--batch-size"),
        ("gradient_accumulation_steps", "N", "forward passes per optimizer step", None, "--accumulation"),
        ("per_device_eval_batch_size", "ROWS", "rows per forward pass in evaluation", None, "--eval-batch-size"),
        ("num_train_epochs", "N", "passes over the training rows", epochs, "--epochs"),
        ("max_steps", "N", "optimizer steps, instead of --epochs; -1: by --epochs", None),
        ("warmup_steps", "N", "optimizer steps of warm-up, or below 1 their share", None, "--warmup"),
        ("weight_decay", "X", "not on biases and LayerNorms", None),
        ("eval_steps", "N", "evaluate every N optimizer steps", "after every epoch"),
    ):
        shown[name] = metavar, f"{text} (default: {default or RULES['DEFAULTS'][name]})", names
    add_training_options(parser, SET_BY_FINETUNING, shown)


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong, and seeds that are."""
    data_source(arguments).check()
    check_model(arguments.model, f"--model {arguments.model!r}")
    check_folder(arguments.output, "--output")
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise ValueError(f"--seeds {arguments.seeds}: a seed occurs twice; both runs would be the same.")
    if not all(0 <= seed < 2**32 for seed in arguments.seeds):
        raise ValueError(f"--seeds {arguments.seeds}: a seed must be from 0 to 2**32 - 1.")


def data_source(arguments: argparse.Namespace) -> DataSource:
    """Return the options that say where the data is."""
    return DataSource(**{name: getattr(arguments, name) for name in DataSource.__dataclass_fields__})


def run(arguments: argparse.Namespace) -> int:
    """Prepare, print the plan, train with every seed, save and print the table."""
    import datasets
    import transformers
    from huggingface_hub.utils import disable_progress_bars

    from hf_encoders.finetuning import report
    from hf_encoders.finetuning.runs import num_steps, training_arguments, with_defaults
    from hf_encoders.loading import hide_bars_of_weights, load_config
    from hf_encoders.runs.run import num_processes
    from hf_encoders.tokenizer_loading import check_first_position, check_rows, load_tokenizer, longest_input
    from hf_encoders.training.optimizers import check_training_arguments

    transformers.logging.set_verbosity_error()
    hide_bars_of_weights()
    folder, model = Path(arguments.output), f"--model {arguments.model!r}"
    user_fields = training_fields(arguments)
    if user_fields.get("disable_tqdm"):
        disable_progress_bars()
        datasets.disable_progress_bars()
    if num_processes() > 1:
        raise ValueError("finetune runs in one process, one seed after the other: start it without torchrun.")
    arguments.until_end.enter_context(locked(folder, "--output", wait=False))
    for earlier in (*(folder / f"seed-{seed}" for seed in arguments.seeds), folder / report.RESULTS_FILE):
        if earlier.exists() and not arguments.overwrite:
            raise ValueError(f"{earlier} exists already: use another --output, or --overwrite.")
    config = load_config(arguments.model, arguments.classes)
    tokenizer = load_tokenizer(arguments.model, "--model", config)
    check_rows(tokenizer, config, model)
    check_first_position(config, tokenizer, model)
    longest, least = longest_input(config, tokenizer), tokenizer.num_special_tokens_to_add(pair=True) + 2
    max_length = longest if arguments.max_length is None else arguments.max_length
    if not least <= max_length <= longest:
        raise ValueError(f"--max-length {max_length}: must be from {least} to {longest}, the model's longest input.")
    data, task = prepare_task(arguments, tokenizer, max_length)
    repeated = report.repeated_rows(data, task.input_columns)
    task.warnings += report.describe_repeated(repeated, data, task.input_columns)
    settings = with_defaults(run_settings(arguments, task, user_fields), config, len(task.train_set))
    steps = num_steps(settings.training, len(task.train_set))
    check_training_arguments(training_arguments(task, settings, arguments.seeds[0], folder), steps)
    report.print_plan(task, settings, user_fields, config, max_length, arguments.seeds)
    results = train_seeds(arguments, task, tokenizer, settings, repeated)
    report.print_outcome(results, task, folder / report.RESULTS_FILE)
    return 0


def training_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `TrainingArguments` that the user set, validated."""
    from hf_encoders.training.optimizers import check_ranges

    fields = given_fields(arguments)
    check_ranges(fields)
    if fields.get("max_steps", -1) < 1 and fields.get("max_steps", -1) != -1:
        raise ValueError(f"--max-steps {fields['max_steps']}: must be at least 1, or -1 to train for --epochs.")
    if fields.get("num_train_epochs") == 0 and "max_steps" not in fields:
        raise ValueError("--epochs 0: nothing would be trained; give more, or --max-steps.")
    if "eval_steps" in fields:
        if fields["eval_steps"] < 1:
            raise ValueError(f"--eval-steps {fields['eval_steps']:g}: must be at least 1.")
        fields["eval_strategy"] = "steps"
    return fields


def prepare_task(
    arguments: argparse.Namespace, tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> "tuple[datasets.DatasetDict, PreparedTask]":
    """Load the data, and prepare the task with the options that are keyword-only parameters of its `prepare`."""
    from hf_encoders.corpus.special_tokens import unknown_words_refused
    from hf_encoders.finetuning.data import load_data

    prepare = task_module(arguments.task_module).prepare
    parameters = inspect.signature(prepare).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    options = {name: getattr(arguments, name) for name in names - {"max_length"}}
    data, held_out = load_data(data_source(arguments), group_column=options.get("context_column", "context"))
    with unknown_words_refused():
        task = prepare(data, tokenizer, max_length=max_length, **options)
    if held_out is not None:
        task.plan.insert(0, held_out)
    return data, task


def run_settings(arguments: argparse.Namespace, task: "PreparedTask", user_fields: dict[str, Any]) -> "RunSettings":
    """Return the settings that the runs of all seeds share."""
    from hf_encoders.finetuning.runs import RunSettings, read_class_weights

    names = ("model", "classes", "from_scratch", "new_head", "checkpoint", "patience", "layer_decay")
    options = {name: getattr(arguments, name) for name in names}
    class_weights = read_class_weights(arguments.class_weights, task)
    return RunSettings(**options, class_weights=class_weights, training=user_fields)


def train_seeds(
    arguments: argparse.Namespace,
    task: "PreparedTask",
    tokenizer: "PreTrainedTokenizerBase",
    settings: "RunSettings",
    repeated: dict[str, int],
) -> "list[RunResult]":
    """Train with each seed; save model and record of each, and the results of those so far."""
    from hf_encoders.finetuning import report, runs
    from hf_encoders.publishing.record import command_of

    folder, source, results = Path(arguments.output), data_source(arguments), []
    facts = (task, settings, source, arguments.hub_task, command_of(arguments))
    for seed in arguments.seeds:
        print(f"\nseed {seed}", flush=True)
        with replaced_folder(folder / f"seed-{seed}") as unfinished:
            result = runs.finetune(task, tokenizer, settings, seed, unfinished)
            report.save_run(result, task, tokenizer, unfinished)
            report.make_record(result, [result], *facts).save(unfinished)
        if not results:
            report.write_examples(result, task, folder)
        result.model = result.predictions = None  # only its metrics are needed from here on
        results.append(result)
        report.write_results(results, task, settings, source, folder, repeated)  # also if a later seed fails
    for result in results if len(results) > 1 else ():
        report.make_record(result, results, *facts).save(folder / f"seed-{result.seed}")
    return results


def task_module(name: str) -> ModuleType:
    """Return the module of a task, which imports torch and transformers when `prepare` is called."""
    return importlib.import_module(f"hf_encoders.finetuning.{name}")
