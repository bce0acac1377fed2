"""`hf-encoders quickstart`: train, save, load and fine-tune a small encoder in minutes, without a download.

The text is the documentation inside the Python installation, or the user's own (`--input`). Pre-training follows a
shipped recipe, such as `bert-minutes`, with fewer steps.

Stopped with Ctrl-C or killed, the same command resumes; with a larger --max-steps, also when it is finished.
"""

import argparse
import time
from pathlib import Path

from hf_encoders.corpus.text_files import text_files
from hf_encoders.registration import family_names
from hf_encoders.runs.options import RUN_DEFAULTS, family_recipes, text_objectives
from hf_encoders.source_literals import constant
from hf_encoders.writing import check_folder, locked


STEPS = constant("runs.quickstart", "STEPS")
FINETUNED = constant("runs.quickstart", "FINETUNED")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    text = "text (documents separated by blank lines), .jsonl or folders of them (default: Python's documentation)"
    add("--input", nargs="+", metavar="PATH", help=text)
    # In so few steps, sentence pairs are hardly learned, and the encoder is better without them.
    add("--objective", choices=text_objectives(in_transformers=True), default="mlm", help="(default: %(default)s)")
    add("--family", choices=families(), default="bert")
    add("--output", default="runs/quickstart", metavar="DIR", help="folder of the results (default: %(default)s)")
    add("--max-steps", type=int, metavar="N", help=f"steps of pre-training (default: {STEPS:,})")
    add("--vocab-size", type=int, metavar="N", help="entries of the vocabulary (default: the recipe's, 8,000)")
    add("--max-length", type=int, metavar="TOKENS", help="longest example in tokens (default: the recipe's, 64)")
    add("--cased", action="store_true", help="keep upper case (byte-level BPE always does)")
    add("--language", default="en", metavar="CODE", help="language of --input, for sentence splitting (default: en)")
    add("--overwrite", action="store_true", help="start from scratch if --output holds a quickstart")
    add("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")


def families() -> list[str]:
    """Return the families whose default recipe is of one text and an objective that transformers has models for."""
    objectives, recipes = text_objectives(in_transformers=True), family_recipes()
    able = {name for name, fields in recipes.items() if fields["objective"] in objectives and "sources" not in fields}
    return [name for name in family_names() if name in able]


def check(arguments: argparse.Namespace) -> None:
    """Refuse numbers that are too small, and paths that are wrong."""
    for name, least in (("max_steps", 1), ("max_length", 8), ("vocab_size", 50)):
        if getattr(arguments, name) is not None and getattr(arguments, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least {least}.")
    text_files(arguments.input or (), "--input")
    check_folder(arguments.output, "--output")


def run(arguments: argparse.Namespace) -> int:
    """Run all steps."""
    import datasets
    import transformers

    from hf_encoders.loading import hide_bars_of_weights, load_weights, read_config
    from hf_encoders.publishing.files import CARD_FILE, CURVE_FILE
    from hf_encoders.publishing.hardware import describe_software
    from hf_encoders.publishing.secrets import base_name
    from hf_encoders.publishing.verification import verify_loading
    from hf_encoders.runs import quickstart
    from hf_encoders.runs.folder import AFTER, BEFORE, UNIGRAM, read_run_file, restored_if_refused
    from hf_encoders.runs.train import train_run
    from hf_encoders.tokenizer_loading import load_tokenizer

    started = time.perf_counter()
    transformers.logging.set_verbosity_error()
    hide_bars_of_weights()
    datasets.disable_progress_bars()
    recipe, output = quickstart.quickstart_recipe(arguments), Path(arguments.output)
    with restored_if_refused(output):
        quickstart.step(1, "text")
        with locked(output, "--output", wait=False):
            held_out = quickstart.write_text(arguments, output)
        name = ", ".join(map(base_name, arguments.input or ["documentation of the Python installation"]))
        print(f"  {name}; {len(held_out):,} documents are held out to fill masks and to fine-tune")
        quickstart.step(2, f"pre-training ({recipe.objective})")
        corpus = str(output / quickstart.TEXT / quickstart.TRAINING)
        text = {"corpus": [corpus], "corpus_name": name, "language": [arguments.language]}
        text |= {"validation_share": quickstart.VALIDATION_SHARE, "evaluate_first": True, "save_total_limit": 1}
        train_run(argparse.Namespace(**vars(arguments) | RUN_DEFAULTS | text), recipe)
    facts, directory = read_run_file(output), output / "model"
    tokenizer, auto_class = load_tokenizer(str(directory)), recipe.own_objective.auto_class
    model, *_ = load_weights(str(directory), getattr(transformers, auto_class), read_config(directory), "--output")

    quickstart.step(3, "loading in fresh processes")
    verify_loading(directory, model)

    quickstart.step(4, "filling masks in held-out sentences")
    quickstart.show_filled_masks(model, tokenizer, held_out, arguments.seed)

    quickstart.step(5, "fine-tuning on held-out documents")
    data, accuracies = quickstart.finetuning_data(held_out, arguments.seed), None
    if data is None:
        print("  skipped: too little held-out text from two different sources (files). Give --input more files.")
    else:
        accuracies = quickstart.finetuned_accuracies(directory, tokenizer, data, recipe.longest, arguments, name)

    quickstart.print_table(facts[BEFORE], facts[AFTER], facts[UNIGRAM], accuracies)
    versions = ", ".join(f"{package} {version}" for package, version in describe_software().items())
    print(f"of {name}, seed {arguments.seed}; {versions}")
    print(f"\nmodel, tokenizer, code: {directory}\ncard: {directory / CARD_FILE}\ncurve: {directory / CURVE_FILE}")
    if accuracies:
        print(f"fine-tuned model: {output / FINETUNED}. It tells which source a passage is of:")
        print("  >>> from transformers import pipeline")
        print(f"  >>> classify = pipeline({quickstart.TASK!r}, {str(output / FINETUNED)!r})")
        print(f"  >>> classify({data['test']['text'][0][:60]!r})")
    print(f"all in {(time.perf_counter() - started) / 60:.1f} minutes")
    return 0
