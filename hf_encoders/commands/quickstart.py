"""Run `hf-encoders quickstart`; its options are in `hf_encoders/options/quickstart.py`."""

import argparse
import dataclasses
import math
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import numpy as np
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_encoders.data import corpus_statistics, warnings_for
from hf_encoders.data.corpus.named_sources import UNNAMED
from hf_encoders.data.corpus.python_docs import LabelledDocument
from hf_encoders.evaluation import fill_masks
from hf_encoders.finetuning import sequence_classification
from hf_encoders.finetuning.data_files import DataSource
from hf_encoders.finetuning.report import make_record
from hf_encoders.finetuning.runs import RunSettings, finetune
from hf_encoders.publishing.fresh_process import verify_loading
from hf_encoders.publishing.model_card import make_model_card
from hf_encoders.recipes.pretrained_folder import save_pretrained_folder
from hf_encoders.recipes.quickstart_text import HELD_OUT_SHARE, labelled_passages, prepared_text
from hf_encoders.recipes.recipe import Phase, Recipe, load_recipe
from hf_encoders.recipes.run import Run, train_to_the_end
from hf_encoders.recipes.run_folder import (
    IS_FINISHED,
    RunFileCallback,
    begin_or_go_on,
    check_run,
    choose_threads,
    phases_of,
    read_run_file,
    restored_if_refused,
    run_identity,
    set_run_aside,
    settings_facts,
    write_run,
)
from hf_encoders.recipes.sources import Source
from hf_encoders.records.hardware import describe_software
from hf_encoders.records.tables import text_table
from hf_encoders.records.training_record import command_of
from hf_encoders.redaction import base_name, published_path
from hf_encoders.saved_files import CARD_FILE, CURVE_FILE, save_tokenizer
from hf_encoders.writing import locked, replaced_folder


# Fewer steps than the recipes have: until the model uses the neighbours of a token, and little longer.
PHASES = (Phase(1000, length=32, examples=88), Phase(500, length=64, examples=44))
# Fine-tuning twice takes less than a minute on a CPU core, and both models learn.
FINETUNING = {"num_train_epochs": 5.0, "per_device_train_batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 20}
FINETUNED, TASK = "finetuned", "text-classification"  # folder of the fine-tuned model, and its pipeline
MASKED_SENTENCES, SHOWN_SENTENCES = 100, 5
FEWEST_PASSAGES, MOST_PASSAGES = 10, 250  # per label; the latter for training


def run(arguments: argparse.Namespace) -> int:
    """Run all steps."""
    started = time.perf_counter()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    recipe = recipe_for(arguments)
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
    set_seed(arguments.seed)
    trainer = run.trainer(text.corpus, text.held_out_corpus, tokenizer)
    model = trainer.model
    print(f"  {model.num_parameters():,} parameters, {', '.join(map(str, recipe.phases))}")
    choose_threads(trainer, noted)
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


def recipe_for(arguments: argparse.Namespace) -> Recipe:
    """The family's shipped recipe for minutes, changed by the options."""
    recipe = dataclasses.replace(load_recipe(f"{arguments.family}-minutes"), name="quickstart", phases=PHASES)
    if arguments.max_steps is not None:
        recipe = recipe.of_steps(arguments.max_steps)
    tokenizer = dataclasses.replace(recipe.tokenizer, lowercase=not arguments.cased)
    if arguments.vocab_size is not None:
        tokenizer = dataclasses.replace(tokenizer, vocab_size=arguments.vocab_size)
    phases = recipe.phases
    if arguments.max_length is not None:
        # Phases of shorter examples stay as they are.
        most, longest = arguments.max_length, recipe.longest
        lengths = [most if phase.length == longest else min(most, phase.length) for phase in phases]
        phases = tuple(dataclasses.replace(p, length=n) for p, n in zip(phases, lengths, strict=True))
    return dataclasses.replace(recipe, objective=arguments.objective, tokenizer=tokenizer, phases=phases)


def step(number: int, what: str) -> None:
    """Print the heading of a step."""
    print(f"\n[{number}/7] {what}", flush=True)


def show_filled_masks(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, held_out: list[LabelledDocument], seed: int
) -> None:
    """Mask a word in each of a hundred sentences, and print the five in which the model is surest of its guess."""
    random = np.random.default_rng(seed)
    sentences = [s for document in held_out[:500] for s in document.sentences[:50]]
    candidates = [s for s in sentences if 8 <= len(tokenizer.tokenize(s)) <= 24]
    filled = []
    for sentence in random.permutation(candidates):
        words = str(sentence).split()
        known = [i for i, word in enumerate(words) if word.isalpha() and len(tokenizer.tokenize(f"a {word}")) == 2]
        if not known:
            continue
        place = int(random.choice(known))
        truth, words[place] = words[place], tokenizer.mask_token
        guesses = [
            (math.exp(one.log_probability), tokenizer.convert_tokens_to_string(one.tokens).strip())
            for one in fill_masks(model, tokenizer, " ".join(words), num_beams=3)
        ]
        filled.append((guesses, " ".join(words), truth))
        if len(filled) == MASKED_SENTENCES:
            break
    if not filled:
        print("  skipped: no held-out sentence of 8 to 24 tokens.")
        return
    right = sum(guesses[0][1].lower() == truth.lower() for guesses, _, truth in filled)
    shown = sorted(filled, key=lambda one: one[0][0], reverse=True)[:SHOWN_SENTENCES]
    print(f"  {right} of {len(filled)} words are its first guess; the {len(shown)} of which it is surest:")
    for guesses, sentence, truth in shown:
        print(f"  {sentence}\n    {', '.join(f'{word} {p:.0%}' for p, word in guesses)}   (was: {truth})")


def finetuning_data(held_out: list[LabelledDocument], seed: int) -> datasets.DatasetDict | None:
    """Passages to train and test on, labelled by source; None without two sources of enough passages."""
    if len(held_out) < 4:
        return None
    data = labelled_passages(held_out, seed)
    counts = [Counter(rows["label"]) for rows in data.values()]
    labels = [label for label in counts[0] if min(count[label] for count in counts) >= FEWEST_PASSAGES]
    if len(labels) < 2:
        return None
    data = data.filter(lambda row: row["label"] in labels)
    rows = np.array(data["train"]["label"])
    first = np.concatenate([np.flatnonzero(rows == label)[:MOST_PASSAGES] for label in labels])
    data["train"] = data["train"].select(first)
    print(f"  {len(data['train']):,} passages to train on, {len(data['test']):,} to test on: {', '.join(labels)}")
    return data


def finetuned_accuracies(
    directory: Path,
    tokenizer: PreTrainedTokenizerBase,
    data: datasets.DatasetDict,
    max_length: int,
    arguments: argparse.Namespace,
    name: str,
) -> dict[str, float]:
    """Accuracy of predicting a passage's source, without and with pre-training, and of the most frequent source.

    The model with pre-training is saved beside `directory`, with tokenizer, record and card; `name` is the text's.
    """
    task = sequence_classification.prepare(data, tokenizer, max_length=max_length)
    accuracies = {"majority": task.baseline.metrics("test")["accuracy"]}
    settings = RunSettings(str(directory), from_scratch=True, training=FINETUNING)
    with TemporaryDirectory() as folder:
        result = finetune(task, tokenizer, settings, arguments.seed, folder)
    accuracies["without"] = result.metrics["test"]["accuracy"]
    settings = dataclasses.replace(settings, from_scratch=False)
    with replaced_folder(directory.with_name(FINETUNED)) as folder:
        result = finetune(task, tokenizer, settings, arguments.seed, folder)
        result.model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        source = DataSource(data_name=f"held-out passages of {name}, by source")
        record = make_record(result, [result], task, settings, source, TASK, command_of(arguments))
        record.save(folder)
        card = make_model_card(result.model, record, published_path(str(directory.with_name(FINETUNED))))
        card.save(folder / CARD_FILE)
    accuracies["pretrained"] = result.metrics["test"]["accuracy"]
    return accuracies


def print_table(
    before: dict[str, float], after: dict[str, float], unigram: float, accuracies: dict[str, float] | None
) -> None:
    """Print the metrics before and after pre-training beside their baselines."""
    rows = [["", "before", "after pre-training", "to compare with"]]
    for what, name, form, baseline in (
        ("MLM loss, held-out (nats per token)", "eval_mlm_loss", ".2f", f"unigram {unigram:.2f}"),
        ("MLM accuracy, held-out", "eval_mlm_accuracy", ".1%", ""),
        ("MLM perplexity, held-out", "eval_perplexity", ".1f", f"unigram {math.exp(unigram):.0f}"),
        ("sentence-pair accuracy, held-out", "eval_pair_accuracy", ".1%", "chance 50.0%"),
    ):
        if name in after:
            rows.append([what, format(before[name], form), format(after[name], form), baseline])
    if accuracies:
        shown = {name: f"{value:.1%}" for name, value in accuracies.items()}
        rows.append(["fine-tuned accuracy, unseen documents", shown["without"], shown["pretrained"]])
        rows[-1].append(f"majority {shown['majority']}")
    print(f"\n{text_table(rows, '<>><')}")
