"""`hf-encoders finetune TASK`: fine-tune an encoder on labelled files, with metrics for each seed.

Files are CSV, TSV, JSON lines, CoNLL or SQuAD; `--dataset` takes any dataset instead. The plan is printed first. Each
seed's model, with tokenizer, code and record, is saved to `DIR/seed-N`, all metrics to `DIR/results.json`.
"""

import argparse
import inspect
from pathlib import Path
from typing import Any

import datasets
import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from hf_encoders.finetuning import (
    data_files,
    multiple_choice,
    question_answering,
    sequence_classification,
    sequence_regression,
    token_classification,
    training_options,
)
from hf_encoders.finetuning.class_weights import read_class_weights
from hf_encoders.finetuning.data_files import DataSource, load_data
from hf_encoders.finetuning.report import (
    RESULTS_FILE,
    baseline_warnings,
    describe_repeated,
    format_table,
    make_record,
    repeated_rows,
    write_results,
)
from hf_encoders.finetuning.runs import (
    CHECKPOINTS,
    RunResult,
    RunSettings,
    finetune,
    num_steps,
    training_arguments,
    with_defaults,
)
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.loading import CLASSES, check_first_position, load_config, load_tokenizer, longest_input
from hf_encoders.recipes.run import num_processes
from hf_encoders.records.training_record import command_of
from hf_encoders.saved_files import save_tokenizer
from hf_encoders.training.hyperparameters import check_training_arguments
from hf_encoders.writing import check_folder, locked, replaced_folder


# Name, module, the Hub's name of the task, summary.
TASKS = (
    ("text-classification", sequence_classification, "text-classification", "a label for a text or a pair of texts"),
    ("text-regression", sequence_regression, "text-classification", "a number for a text or a pair: similarity"),
    ("token-classification", token_classification, "token-classification", "a tag for each word: entities"),
    ("question-answering", question_answering, "question-answering", "the answer's span in a text, as in SQuAD"),
    ("multiple-choice", multiple_choice, "multiple-choice", "the best of several endings"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each task: its own options, and those that all tasks share."""
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    for name, module, hub_task, summary in TASKS:
        task = tasks.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add_model_arguments(task.add_argument_group("model and runs"))
        data_files.add_arguments(task)
        module.add_arguments(task.add_argument_group("task"))
        training_options.add_arguments(task)
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


def run(arguments: argparse.Namespace) -> int:
    """Prepare, print the plan, train with every seed, save and print the table."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    folder = Path(arguments.output)
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise ValueError(f"--seeds {arguments.seeds}: a seed occurs twice; both runs would be the same.")
    if not all(0 <= seed < 2**32 for seed in arguments.seeds):
        raise ValueError(f"--seeds {arguments.seeds}: a seed must be from 0 to 2**32 - 1.")
    training = training_options.training_fields(arguments)
    if num_processes() > 1:
        raise ValueError("finetune runs in one process, one seed after the other: start it without torchrun.")
    check_folder(folder, "--output")
    arguments.until_end.enter_context(locked(folder, "--output", wait=False))
    for earlier in (*(folder / f"seed-{seed}" for seed in arguments.seeds), folder / RESULTS_FILE):
        if earlier.exists() and not arguments.overwrite:
            raise ValueError(f"{earlier} exists already: use another --output, or --overwrite.")
    source = DataSource(**{name: getattr(arguments, name) for name in DataSource.__dataclass_fields__})
    config = load_config(arguments.model, arguments.classes)
    tokenizer = load_tokenizer(arguments.model, "--model", config)
    check_first_position(config, tokenizer, f"--model {arguments.model!r}")
    max_length = chosen_length(arguments, config, tokenizer)
    options = task_options(arguments)
    data, held_out = load_data(source, group_column=options.get("context_column", "context"))
    task = arguments.task_module.prepare(data, tokenizer, max_length=max_length, **options)
    if held_out is not None:
        task.plan.insert(0, held_out)
    repeated = repeated_rows(data, task.input_columns)
    data_warnings = describe_repeated(repeated, data, task.input_columns)
    given = RunSettings(
        model=arguments.model,
        classes=arguments.classes,
        from_scratch=arguments.from_scratch,
        class_weights=read_class_weights(arguments.class_weights, task),
        checkpoint=arguments.checkpoint,
        patience=arguments.patience,
        layer_decay=arguments.layer_decay,
        training=training,
    )
    settings = with_defaults(given, config, task)
    steps = num_steps(settings.training, len(task.train_set))
    checked = training_arguments(task, settings, arguments.seeds[0], folder)
    check_training_arguments(checked, steps, training_options.OPTIONS)
    print_plan(task, settings, max_length, steps, arguments.seeds)
    print_choices(given.training, settings.training, config, len(task.train_set))
    for warning in data_warnings:
        print(f"WARNING: {warning}")
    command, results = command_of(arguments), []
    for seed in arguments.seeds:
        print(f"\nseed {seed}", flush=True)
        with replaced_folder(folder / f"seed-{seed}") as unfinished:
            result = finetune(task, tokenizer, settings, seed, unfinished)
            save_run(result, task, tokenizer, unfinished)
            record = make_record(result, [result], task, settings, source, arguments.hub_task, command, data_warnings)
            record.save(unfinished)
        result.model = result.predictions = None  # only its metrics are needed from here on
        results.append(result)
        path = write_results(results, task, settings, source, folder, repeated)  # also if a later seed fails
    for result in results if len(results) > 1 else ():
        record = make_record(result, results, task, settings, source, arguments.hub_task, command, data_warnings)
        record.save(folder / f"seed-{result.seed}")
    print_outcome(results, task, path)
    return 0


def chosen_length(arguments: argparse.Namespace, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """`--max-length`, or the longest input of the model."""
    longest = longest_input(config, tokenizer)
    if arguments.max_length is None:
        return longest
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if not least <= arguments.max_length <= longest:
        raise ValueError(f"--max-length {arguments.max_length}: must be from {least} to {longest}, the model's most.")
    return arguments.max_length


def task_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parsed options that are keyword-only parameters of the task's `prepare`."""
    parameters = inspect.signature(arguments.task_module.prepare).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return {name: getattr(arguments, name) for name in names if name != "max_length"}


def print_plan(task: PreparedTask, settings: RunSettings, max_length: int, steps: int, seeds: list[int]) -> None:
    """Print what the runs will do."""
    training = settings.training
    rows = training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    print(f"model: {settings.model}, classes of {settings.classes}{', from scratch' * settings.from_scratch}")
    for line in (f"longest input: {max_length} tokens", *task.plan):
        print(f"  {line}")
    print(f"  {steps:,} steps of {rows} rows per device, learning rate {training['learning_rate']:g}, seeds {seeds}")
    if settings.layer_decay != 1:
        print(f"  learning rate of each layer: {settings.layer_decay:g} times the next one's")
    if settings.class_weights is not None:
        shown = zip(task.label_names, settings.class_weights, strict=True)
        print(f"  class weights: {', '.join(f'{name} {weight:.3g}' for name, weight in shown)}")


def print_choices(given: dict[str, Any], chosen: dict[str, Any], config: PreTrainedConfig, examples: int) -> None:
    """Print the learning rate and epochs if they are defaults, and a warning if the rate is unusually high."""
    usual = training_options.defaults(config, examples, chosen)
    options = [("learning_rate", "learning rate")]
    if chosen["max_steps"] == -1:
        options.append(("num_train_epochs", "epochs"))
    made = [f"{name} {chosen[field]:g}" for field, name in options if field not in given]
    if made:
        print(f"  chosen for width {config.hidden_size} and {examples:,} training examples: {', '.join(made)}")
    if chosen["learning_rate"] > training_options.FAR_ABOVE * usual["learning_rate"]:
        print(
            f"WARNING: --learning-rate {chosen['learning_rate']:g} is far above {usual['learning_rate']:g}, the "
            "default for an encoder of this width: training may diverge."
        )


def save_run(result: RunResult, task: PreparedTask, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write model, code, tokenizer and, if the task has a format for them, predictions."""
    result.model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    if task.write_predictions is not None:
        for name, predictions in result.predictions.items():
            task.write_predictions(folder / f"predictions-{name}", name, predictions)


def print_outcome(results: list[RunResult], task: PreparedTask, path: Path) -> None:
    """Print the table, and what limits its meaning."""
    print(f"\n{format_table(results, task)}")
    if "validation" in task.eval_sets and results[0].best_step is not None:
        print("the validation set chose the weights: its metrics are better than those on new data")
    for result in results:
        for warning in baseline_warnings(result, task):
            print(f"WARNING: seed {result.seed}, {warning}")
    seconds = sum(result.seconds for result in results)
    print(f"{seconds:.0f} s of training, {results[0].tokens_per_second:,.0f} tokens/s; {path}")
