"""`hf-encoders quickstart`: train, save, load and fine-tune a small encoder in minutes, without a download.

The text is the documentation inside the Python installation, or the user's own (`--input`). Pre-training follows a
shipped recipe, such as `bert-minutes`, with fewer steps.

Stopped with Ctrl-C or killed, the same command resumes; with a larger --max-steps, also when it is finished.
"""

import argparse
import time
from pathlib import Path

from hf_encoders.corpus.text_files import check_text_files
from hf_encoders.registration import family_names
from hf_encoders.runs.options import family_recipes, text_objectives
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
    check_text_files(arguments.input or (), "--input")
    check_folder(arguments.output, "--output")


def run(arguments: argparse.Namespace) -> int:
    """Run all steps."""
    import datasets
    import transformers

    from hf_encoders.corpus.named_sources import UNNAMED
    from hf_encoders.corpus.report import corpus_statistics, warnings_for
    from hf_encoders.publishing.files import CARD_FILE, CURVE_FILE
    from hf_encoders.publishing.hardware import describe_software
    from hf_encoders.publishing.secrets import base_name
    from hf_encoders.publishing.verification import verify_loading
    from hf_encoders.runs.folder import (
        IS_FINISHED,
        RunFileCallback,
        begin_or_go_on,
        check_run,
        phases_of,
        read_run_file,
        restored_if_refused,
        run_identity,
        set_run_aside,
        settings_facts,
        write_run,
    )
    from hf_encoders.runs.quickstart import (
        HELD_OUT_SHARE,
        TASK,
        finetuned_accuracies,
        finetuning_data,
        prepared_text,
        print_table,
        quickstart_recipe,
        show_filled_masks,
        step,
    )
    from hf_encoders.runs.run import Run, train_to_the_end
    from hf_encoders.runs.sources import Source
    from hf_encoders.runs.train import save_pretrained_folder

    started = time.perf_counter()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    recipe = quickstart_recipe(arguments)
    output = Path(arguments.output)
    arguments.until_end.enter_context(locked(output, "--output", wait=False))
    if arguments.overwrite:
        set_run_aside(output, arguments.input or [])
    arguments.until_end.enter_context(restored_if_refused(output))
    noted = read_run_file(output)
    if noted is not None:
        recipe = recipe.lengthened(phases_of(noted), is_scaled=arguments.max_steps is not None)
    run = Run.from_recipe(recipe, output, {"seed": arguments.seed, "save_total_limit": 1})
    check_run(output, recipe, settings_facts(recipe, run.arguments, HELD_OUT_SHARE))

    step(1, "corpus")
    size = f"{recipe.config_class.TOKENIZER_CLASS}, {recipe.tokenizer.vocab_size:,} entries"
    text = prepared_text(arguments, recipe, output, lambda how: step(2, f"tokenizer ({size}), {how}"))
    tokenizer = text.tokenizer
    statistics = corpus_statistics(text.corpus, tokenizer)
    print(
        f"  {statistics.documents:,} documents, {statistics.sentences:,} sentences, {statistics.tokens:,} tokens; "
        f"{len(text.held_out):,} more documents are held out"
    )
    for warning in warnings_for(statistics):
        print(f"  warning: {warning}")

    step(3, f"pre-training ({recipe.name}, {recipe.objective})")
    facts = run_identity(recipe, text.corpus, tokenizer, run.arguments, HELD_OUT_SHARE)
    noted = begin_or_go_on(output, recipe, facts, is_main=True)
    transformers.set_seed(arguments.seed)
    trainer = run.trainer(text.corpus, text.held_out_corpus, tokenizer)
    model = trainer.model
    print(f"  {model.num_parameters():,} parameters, {', '.join(map(str, recipe.phases))}")
    trainer.add_callback(RunFileCallback(output, noted))
    before = trainer.evaluate()
    after = train_to_the_end(trainer, "give the same command again" + " without --overwrite" * arguments.overwrite)

    step(4, "saving")
    directory = output / "model"
    name = ", ".join(map(base_name, arguments.input or ["documentation of the Python installation"]))
    trainer.save_state()
    sources = {UNNAMED: Source(text.corpus, (arguments.language,))}
    save_pretrained_folder(run, trainer, name, sources, after, arguments)
    write_run(output, {**noted, IS_FINISHED: True})

    step(5, "loading in fresh processes")
    verify_loading(directory, model)

    step(6, "filling masks in held-out sentences")
    show_filled_masks(model, tokenizer, text.held_out, arguments.seed)

    step(7, "fine-tuning on held-out documents")
    data = finetuning_data(text.held_out, arguments.seed)
    if data is None:
        print("  skipped: too little held-out text from two different sources (files). Give --input more files.")
        accuracies = None
    else:
        accuracies = finetuned_accuracies(directory, tokenizer, data, recipe.longest, arguments, name)

    print_table(before, after, trainer.health.unigram_cross_entropy, accuracies)
    versions = ", ".join(f"{name} {version}" for name, version in describe_software().items())
    print(f"of {name}: {statistics.tokens:,} tokens of training text, seed {arguments.seed}; {versions}")
    print(f"\nmodel, tokenizer, code: {directory}\ncard: {directory / CARD_FILE}\ncurve: {directory / CURVE_FILE}")
    if accuracies:
        print(f"fine-tuned model: {output / FINETUNED}. It tells which source a passage is of:")
        print("  >>> from transformers import pipeline")
        print(f"  >>> classify = pipeline({TASK!r}, {str(output / FINETUNED)!r})")
        print(f"  >>> classify({data['test']['text'][0][:60]!r})")
    print(f"all in {(time.perf_counter() - started) / 60:.1f} minutes")
    return 0
