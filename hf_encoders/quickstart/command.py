"""`hf-encoders quickstart`: the whole life of an encoder in a few minutes on a laptop, without a download.

Text -> tokenizer -> pre-training -> saved model -> loaded elsewhere -> fine-tuned -> figures. By default the text is
the documentation inside the Python installation; `--input` takes the user's own.
"""

import argparse
import math
import time
from pathlib import Path

import transformers
from transformers import (
    set_seed,
)

from hf_encoders.data.corpus import corpus_statistics, unigram_cross_entropy, warnings_for
from hf_encoders.data.tokenizer_training import train_tokenizer
from hf_encoders.publishing.loss_curve import draw_loss_curve
from hf_encoders.publishing.model_card import CURVE_FILE, make_model_card
from hf_encoders.publishing.other_process import verify_loading
from hf_encoders.quickstart.after_training import finetune, show_filled_masks
from hf_encoders.quickstart.pretraining import (
    make_record,
    make_trainer,
    small_config,
)
from hf_encoders.quickstart.text import Recipe, hold_out, load_documents, tokenized
from hf_encoders.registration import CONFIGURATIONS
from hf_encoders.training.objectives import check_objective, config_class_of, default_objective, pretraining_model
from hf_encoders.writing import check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    recipe = Recipe()
    parser.add_argument(
        "--input",
        nargs="+",
        metavar="PATH",
        help="text files, .jsonl files or folders of them (blank line between documents); default: the "
        "documentation inside this Python installation",
    )
    parser.add_argument(
        "--objective", choices=["mlm", "nsp", "sop"], help="default: nsp for bert, mlm for roberta, sop for albert"
    )
    parser.add_argument("--family", choices=[config.model_type for config in CONFIGURATIONS], default="bert")
    parser.add_argument(
        "--output", default="runs/quickstart", metavar="DIR", help="folder of the results (default: %(default)s)"
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        default=recipe.max_steps,
        metavar="N",
        help="optimizer steps of pre-training (default: %(default)s)",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=recipe.vocab_size,
        metavar="N",
        help="entries in the vocabulary (default: %(default)s)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=recipe.max_length,
        metavar="TOKENS",
        help="longest example in tokens (default: %(default)s)",
    )
    parser.add_argument("--cased", action="store_true", help="keep upper case (byte-level BPE always does)")
    parser.add_argument(
        "--language", default="en", metavar="CODE", help="language of --input, for sentence splitting (default: en)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything random (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Do it all; 0 when every step worked."""
    started = time.perf_counter()
    check_arguments(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    set_seed(arguments.seed)
    recipe = Recipe(vocab_size=arguments.vocab_size, max_length=arguments.max_length, max_steps=arguments.max_steps)
    config_class = config_class_of(arguments.family)
    objective = arguments.objective or default_objective(config_class)
    check_objective(config_class, objective)
    output = Path(arguments.output)
    check_folder(output, "--output")

    step(1, "corpus")
    documents = load_documents(arguments, recipe)
    training, held_out = hold_out(documents, recipe.held_out_share, arguments.seed)
    output.mkdir(parents=True, exist_ok=True)

    step(2, f"tokenizer ({config_class.TOKENIZER_CLASS}, {recipe.vocab_size:,} entries)")
    sentences = (sentence for document in training for sentence in document.sentences)
    tokenizer = train_tokenizer(
        sentences, config_class, recipe.vocab_size, recipe.max_length, lowercase=not arguments.cased
    )
    corpus = tokenized(training, tokenizer, recipe.max_length)
    held_out_corpus = tokenized(held_out, tokenizer, recipe.max_length)
    statistics = corpus_statistics(corpus, tokenizer)
    print(
        f"  {statistics.documents:,} documents, {statistics.sentences:,} sentences, {statistics.tokens:,} tokens; "
        f"{len(held_out):,} more documents are kept out"
    )
    for warning in warnings_for(statistics):
        print(f"  warning: {warning}")

    step(3, f"pre-training ({arguments.family}, {objective})")
    config = small_config(config_class, tokenizer, recipe)
    model = pretraining_model(config, objective)
    print(f"  {model.num_parameters():,} parameters, {recipe.max_steps:,} steps of {recipe.batch_size} examples")
    trainer = make_trainer(model, tokenizer, objective, corpus, held_out_corpus, recipe, output, arguments.seed)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()

    step(4, "saving")
    directory = output / "model"
    # An earlier run of another family may have left its code and tokenizer here, and all of it would be published.
    for old in [*directory.glob("*.py"), *directory.glob("tokenizer*"), *directory.glob("*.json")]:
        old.unlink()
    trainer.save_model(str(directory))
    tokenizer.save_pretrained(directory)
    unigram = unigram_cross_entropy(corpus, held_out_corpus, len(tokenizer))
    record = make_record(objective, statistics, recipe, trainer, after, unigram, arguments)
    record.save(directory)
    draw_loss_curve(trainer.state.log_history, directory / CURVE_FILE, f"{arguments.family} + {objective}, quickstart")
    card = make_model_card(model, record, name=str(directory), has_curve=True, language=arguments.language)
    card.save(directory / "README.md")

    step(5, "loading in fresh processes")
    verify_loading(directory, model, tokenizer)

    step(6, "filling masks in held-out sentences")
    show_filled_masks(model, tokenizer, held_out, arguments.seed)

    step(7, "fine-tuning on held-out documents")
    accuracies = finetune(directory, config, tokenizer, held_out, recipe, output, arguments.seed)

    print_table(before, after, unigram, accuracies)
    print(f"\nmodel, tokenizer, code: {directory}\ncard: {directory / 'README.md'}\ncurve: {directory / CURVE_FILE}")
    print(f"all in {(time.perf_counter() - started) / 60:.1f} minutes")
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse numbers that no run can be made of."""
    for name, least in (("max_steps", 1), ("max_length", 8), ("vocab_size", 50)):
        if getattr(arguments, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least {least}.")


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
