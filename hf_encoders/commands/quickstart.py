"""`hf-encoders quickstart`: the whole life of an encoder in a few minutes on a laptop, without a download.

Text -> tokenizer -> pre-training -> saved model -> loaded elsewhere -> fine-tuned -> figures. By default the text is
the documentation inside the Python installation; `--input` takes the user's own. Pre-training follows the shipped
recipe `bert-minutes`, `roberta-minutes` or `albert-minutes`, but with fewer steps.

Stopped with Ctrl-C or killed, the same command goes on; with a larger --max-steps, also when it is finished.
"""

import argparse
import dataclasses
import math
import time
from pathlib import Path

import datasets
import transformers
from transformers import set_seed

from hf_encoders.data.corpus import corpus_statistics, warnings_for
from hf_encoders.finetuning.quickstart_check import finetune, show_filled_masks
from hf_encoders.objectives import OBJECTIVES
from hf_encoders.publishing.fresh_process import verify_loading
from hf_encoders.recipes.pretrained_folder import save_pretrained_folder
from hf_encoders.recipes.quickstart_text import HELD_OUT_SHARE, prepared_text
from hf_encoders.recipes.recipe import Phase, Recipe, load_recipe, recipe_names
from hf_encoders.recipes.run import Run, train_to_the_end
from hf_encoders.recipes.run_folder import (
    IS_FINISHED,
    begin_or_go_on,
    choose_threads,
    note_when_training_begins,
    phases_of,
    read_run_file,
    remove_run,
    run_identity,
    write_run,
)
from hf_encoders.records.training_record import command_of
from hf_encoders.redaction import base_name
from hf_encoders.registration import configurations
from hf_encoders.saved_files import CARD_FILE, CURVE_FILE
from hf_encoders.writing import check_folder, locked


# Fewer steps than the recipes' own: until the model has learned what the neighbours of a token say, and little longer.
PHASES = (Phase(1000, length=32, examples=88), Phase(500, length=64, examples=44))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--input",
        nargs="+",
        metavar="PATH",
        help="text files, .jsonl files or folders of them (blank line between documents); default: the "
        "documentation inside this Python installation",
    )
    parser.add_argument("--objective", choices=OBJECTIVES, help="default: the recipe's")
    parser.add_argument("--family", choices=families_with_recipe(), default="bert")
    parser.add_argument(
        "--output", default="runs/quickstart", metavar="DIR", help="folder of the results (default: %(default)s)"
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        metavar="N",
        help=f"optimizer steps of pre-training (default: {sum(phase.steps for phase in PHASES):,})",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="entries in the vocabulary (default: the recipe's, 8,000)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="longest example in tokens (default: the recipe's, 64)",
    )
    parser.add_argument("--cased", action="store_true", help="keep upper case (byte-level BPE always does)")
    parser.add_argument(
        "--language", default="en", metavar="CODE", help="language of --input, for sentence splitting (default: en)"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="begin anew where --output holds a quickstart; its model stays until the new one is there",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything random (default: 0)")


def families_with_recipe() -> list[str]:
    """The families that have a recipe for minutes."""
    return [c.model_type for c in configurations() if f"{c.model_type}-minutes" in recipe_names()]


def run(arguments: argparse.Namespace) -> int:
    """Do it all; 0 when every step worked."""
    started = time.perf_counter()
    check_arguments(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    recipe = recipe_for(arguments)
    output = Path(arguments.output)
    check_folder(output, "--output")
    arguments.until_end.enter_context(locked(output, "--output", wait=False))
    if arguments.overwrite:
        remove_run(output, arguments.input or [])
    noted = read_run_file(output)
    if noted is not None:
        recipe = recipe.lengthened(phases_of(noted), is_scaled=arguments.max_steps is not None)

    step(1, "corpus")
    size = f"{recipe.config_class.TOKENIZER_CLASS}, {recipe.tokenizer.vocab_size:,} entries"
    text = prepared_text(arguments, recipe, output, lambda how: step(2, f"tokenizer ({size}), {how}"))
    tokenizer = text.tokenizer
    statistics = corpus_statistics(text.corpus, tokenizer)
    print(
        f"  {statistics.documents:,} documents, {statistics.sentences:,} sentences, {statistics.tokens:,} tokens; "
        f"{len(text.held_out):,} more documents are kept out"
    )
    for warning in warnings_for(statistics):
        print(f"  warning: {warning}")

    step(3, f"pre-training ({recipe.name}, {recipe.objective})")
    run = Run.of(recipe, output, {"seed": arguments.seed, "save_total_limit": 1})
    facts = run_identity(recipe, text.corpus, tokenizer, run.arguments, HELD_OUT_SHARE)
    noted = begin_or_go_on(output, recipe, facts, is_main=True)
    set_seed(arguments.seed)
    trainer = run.trainer(text.corpus, text.held_out_corpus, tokenizer)
    model = trainer.model
    print(f"  {model.num_parameters():,} parameters, {', '.join(map(str, recipe.phases))}")
    choose_threads(trainer, noted)
    note_when_training_begins(trainer, output, noted)
    before = trainer.evaluate()
    after = train_to_the_end(trainer, "give the same command again" + " without --overwrite" * arguments.overwrite)

    step(4, "saving")
    directory = output / "model"
    name = ", ".join(map(base_name, arguments.input or ["documentation of the Python installation"]))
    trainer.save_state()
    command = command_of(arguments)
    save_pretrained_folder(directory, run, trainer, name, text.corpus, after, arguments.language, command)
    write_run(output, {**noted, IS_FINISHED: True})

    step(5, "loading in fresh processes")
    verify_loading(directory, model, tokenizer)

    step(6, "filling masks in held-out sentences")
    show_filled_masks(model, tokenizer, text.held_out, arguments.seed)

    step(7, "fine-tuning on held-out documents")
    accuracies = finetune(directory, model.config, tokenizer, text.held_out, recipe.longest, arguments.seed)

    print_table(before, after, trainer.health.unigram_cross_entropy, accuracies)
    print(f"\nmodel, tokenizer, code: {directory}\ncard: {directory / CARD_FILE}\ncurve: {directory / CURVE_FILE}")
    print(f"all in {(time.perf_counter() - started) / 60:.1f} minutes")
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse numbers that no run can be made of."""
    for name, least in (("max_steps", 1), ("max_length", 8), ("vocab_size", 50)):
        if getattr(arguments, name) is not None and getattr(arguments, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least {least}.")


def recipe_for(arguments: argparse.Namespace) -> Recipe:
    """The family's shipped recipe for minutes, with what the command line changes in it."""
    recipe = dataclasses.replace(load_recipe(f"{arguments.family}-minutes"), name="quickstart", phases=PHASES)
    if arguments.max_steps is not None:
        recipe = recipe.of_steps(arguments.max_steps)
    tokenizer = dataclasses.replace(recipe.tokenizer, lowercase=not arguments.cased)
    if arguments.vocab_size is not None:
        tokenizer = dataclasses.replace(tokenizer, vocab_size=arguments.vocab_size)
    phases = recipe.phases
    if arguments.max_length is not None:
        # Phases of short examples stay as they are, where that is shorter still.
        most, longest = arguments.max_length, recipe.longest
        lengths = [most if phase.length == longest else min(most, phase.length) for phase in phases]
        phases = tuple(dataclasses.replace(p, length=n) for p, n in zip(phases, lengths, strict=True))
    objective = arguments.objective or recipe.objective
    return dataclasses.replace(recipe, objective=objective, tokenizer=tokenizer, phases=phases)


def step(number: int, what: str) -> None:
    """Head a part of the output."""
    print(f"\n[{number}/7] {what}", flush=True)


def print_table(
    before: dict[str, float], after: dict[str, float], unigram: float, accuracies: dict[str, float] | None
) -> None:
    """One table of what was reached and what to compare it with."""
    rows = [
        (
            "MLM loss, held-out (nats a token)",
            f"{before['eval_mlm_loss']:.2f}",
            f"{after['eval_mlm_loss']:.2f}",
            f"unigram {unigram:.2f}",
        ),
        ("MLM accuracy, held-out", f"{before['eval_mlm_accuracy']:.1%}", f"{after['eval_mlm_accuracy']:.1%}", ""),
        (
            "MLM perplexity, held-out",
            f"{before['eval_perplexity']:.0f}",
            f"{after['eval_perplexity']:.1f}",
            f"unigram {math.exp(unigram):.0f}",
        ),
    ]
    if "eval_pair_accuracy" in after:
        rows.append(
            (
                "sentence-pair accuracy, held-out",
                f"{before['eval_pair_accuracy']:.1%}",
                f"{after['eval_pair_accuracy']:.1%}",
                "chance 50.0%",
            )
        )
    if accuracies:
        rows.append(
            (
                "fine-tuned accuracy, unseen documents",
                f"{accuracies['without']:.1%}",
                f"{accuracies['pretrained']:.1%}",
                f"majority {accuracies['majority']:.1%}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    print(f"\n{'':{widths[0]}}  {'before':>{widths[1]}}  {'after pre-training':>18}  to compare with")
    for what, first, second, compare in rows:
        print(f"{what:{widths[0]}}  {first:>{widths[1]}}  {second:>18}  {compare}")
