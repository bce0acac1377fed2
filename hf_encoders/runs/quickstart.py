"""The steps of `hf-encoders quickstart` around pre-training: recipe, filled masks, fine-tuning, table."""

import argparse
import dataclasses
import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.python_docs import LabelledDocument
from hf_encoders.evaluation.fill_masks import fill_masks
from hf_encoders.finetuning import sequence_classification
from hf_encoders.finetuning.data_files import DataSource
from hf_encoders.finetuning.report import make_record
from hf_encoders.finetuning.runs import RunSettings, finetune
from hf_encoders.publishing.card import make_model_card
from hf_encoders.runs.quickstart_text import labelled_passages
from hf_encoders.runs.recipe import Phase, Recipe, load_recipe
from hf_encoders.writing import text_table
from hf_encoders.publishing.record import command_of
from hf_encoders.publishing.secrets import published_path
from hf_encoders.publishing.files import CARD_FILE, save_tokenizer
from hf_encoders.writing import replaced_folder


# Fewer steps than the recipes have: until the model uses the neighbours of a token, and little longer.
STEPS = 1500
PHASES = (Phase(STEPS * 2 // 3, length=32, examples=88), Phase(STEPS // 3, length=64, examples=44))
# Fine-tuning twice takes less than a minute on a CPU core, and both models learn.
FINETUNING = {"num_train_epochs": 5.0, "per_device_train_batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 20}
FINETUNED = "finetuned"  # folder of the fine-tuned model
TASK = "text-classification"  # its pipeline
MASKED_SENTENCES, SHOWN_SENTENCES = 100, 5
FEWEST_PASSAGES, MOST_PASSAGES = 10, 250  # per label; the latter for training


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
