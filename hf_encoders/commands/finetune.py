"""Run `hf-encoders finetune`; its options are in `hf_encoders/options/finetune.py`."""

import argparse
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from hf_encoders.data.special_tokens import unknown_words_refused
from hf_encoders.finetuning import training_options
from hf_encoders.finetuning.class_weights import read_class_weights
from hf_encoders.finetuning.data_files import load_data
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
    RunResult,
    RunSettings,
    finetune,
    num_steps,
    training_arguments,
    with_defaults,
)
from hf_encoders.finetuning.shared_options import OPTIONS, DataSource
from hf_encoders.finetuning.task import PreparedTask
from hf_encoders.loading import check_first_position, check_rows, load_config, load_tokenizer, longest_input
from hf_encoders.recipes.run import num_processes
from hf_encoders.records.training_record import command_of
from hf_encoders.saved_files import save_tokenizer
from hf_encoders.training.hyperparameters import check_training_arguments
from hf_encoders.writing import check_folder, locked, replaced_folder


def run(arguments: argparse.Namespace) -> int:
    """Prepare, print the plan, train with every seed, save and print the table."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    folder = Path(arguments.output)
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
    check_rows(tokenizer, config, f"--model {arguments.model!r}")
    check_first_position(config, tokenizer, f"--model {arguments.model!r}")
    max_length = chosen_length(arguments, config, tokenizer)
    options = task_options(arguments)
    data, held_out = load_data(source, group_column=options.get("context_column", "context"))
    with unknown_words_refused():
        task = task_module(arguments).prepare(data, tokenizer, max_length=max_length, **options)
    if held_out is not None:
        task.plan.insert(0, held_out)
    repeated = repeated_rows(data, task.input_columns)
    data_warnings = describe_repeated(repeated, data, task.input_columns)
    given = RunSettings(
        model=arguments.model,
        classes=arguments.classes,
        from_scratch=arguments.from_scratch,
        new_head=arguments.new_head,
        class_weights=read_class_weights(arguments.class_weights, task),
        checkpoint=arguments.checkpoint,
        patience=arguments.patience,
        layer_decay=arguments.layer_decay,
        training=training,
    )
    settings = with_defaults(given, config, task)
    steps = num_steps(settings.training, len(task.train_set))
    checked = training_arguments(task, settings, arguments.seeds[0], folder)
    check_training_arguments(checked, steps, OPTIONS)
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
        raise ValueError(
            f"--max-length {arguments.max_length}: must be from {least} to {longest}, the longest input of the model."
        )
    return arguments.max_length


def task_module(arguments: argparse.Namespace) -> ModuleType:
    """The module of the task."""
    return importlib.import_module(f"hf_encoders.finetuning.{arguments.task_module}")


def task_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parsed options that are keyword-only parameters of the task's `prepare`."""
    parameters = inspect.signature(task_module(arguments).prepare).parameters.values()
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
