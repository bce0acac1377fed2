"""The parts of `hf-encoders quickstart` around its run: text and recipe, filled masks, fine-tuning, table."""

import argparse
import dataclasses
import json
import math
import platform
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.documents import read_documents, splitter_for
from hf_encoders.corpus.python_docs import LabelledDocument, read_python_documents
from hf_encoders.corpus.text_files import text_files
from hf_encoders.evaluation.masked_lm import hide_words
from hf_encoders.finetuning import sequence_classification
from hf_encoders.finetuning.data import DataSource
from hf_encoders.finetuning.report import make_record
from hf_encoders.finetuning.runs import RunSettings, finetune
from hf_encoders.publishing.files import CARD_FILE, RUN_FILE, save_tokenizer
from hf_encoders.publishing.record import command_of, make_model_card
from hf_encoders.publishing.secrets import published_path
from hf_encoders.runs.options import family_recipes
from hf_encoders.runs.recipe import Recipe, load_recipe
from hf_encoders.writing import read_json, replaced_folder, text_table


# Fewer steps than the recipes have: until the model uses the neighbours of a token, and little longer.
STEPS = 1500
# Fine-tuning twice takes less than a minute on a CPU core, and both models learn.
FINETUNING = {"num_train_epochs": 5.0, "per_device_train_batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 20}
FINETUNED = "finetuned"  # folder of the fine-tuned model
TASK = "text-classification"  # its pipeline
MASKED_SENTENCES, SHOWN_SENTENCES = 100, 5
FEWEST_PASSAGES, MOST_PASSAGES = 10, 250  # per label; the latter for training
TEXT = "_text"  # folder in the output folder
TRAINING, HELD_OUT, MADE_OF = "training.txt", "held_out.json", "made_of.json"  # files in it
HELD_OUT_SHARE = 0.15  # of the documents, for filling masks and fine-tuning
VALIDATION_SHARE = 0.05  # of the others, for the evaluation of the run
CHARACTERS_PER_LIBRARY = 300_000  # of this Python's documentation, so that no library dominates the text
LABELS = 8  # sources with the most held-out passages, to fine-tune on
FEWEST_WORDS = 8  # of a labelled passage: shorter ones say little about their source
PASSAGES_PER_DOCUMENT = 20  # so that no long module decides what is measured
TEST_SHARE = 0.3  # of the documents of each label


def quickstart_recipe(arguments: argparse.Namespace) -> Recipe:
    """Return the family's default recipe with few steps, changed by the options."""
    longest = arguments.max_length or 64
    phases = [
        {"steps": STEPS * 2 // 3, "length": min(32, longest), "examples": 88},
        {"steps": STEPS // 3, "length": longest, "examples": 44},
    ]
    changes = {"phases": phases, "objective": arguments.objective, "tokenizer.lowercase": not arguments.cased}
    if arguments.vocab_size is not None:
        changes["tokenizer.vocab_size"] = arguments.vocab_size
    name = family_recipes()[arguments.family]["name"]
    recipe = load_recipe(name, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    recipe = dataclasses.replace(recipe, name="quickstart")
    if arguments.max_steps is not None:
        recipe.of_steps(arguments.max_steps)  # refuses too few before text is read
    return recipe


def write_text(arguments: argparse.Namespace, output: Path) -> list[LabelledDocument]:
    """Read and split text, write it atomically into the output folder, and return the held-out documents.

    What an earlier start left there is read. Text of other arguments is rebuilt, unless a run has used it.

    Raises:
        ValueError: if a run has used other text, or there is too little.
    """
    folder = output / TEXT
    files = sorted({file.resolve() for file in text_files(arguments.input or ())})
    text: Any = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    made_of = {"text": text or f"documentation of Python {platform.python_version()}"}
    made_of |= {"language": arguments.language, "seed": arguments.seed}
    remedy = f"remove {folder} to have it made again."
    before = read_json(folder / MADE_OF, remedy) if folder.is_dir() else {}
    if changed := [name for name, value in made_of.items() if before.get(name) != value]:
        if (output / RUN_FILE).is_file() and not arguments.overwrite:
            raise ValueError(
                f"--output {output} holds a quickstart with another {changed[0]}: give the same arguments to resume "
                "it, another folder, or --overwrite to start from scratch."
            )
        training, held_out = hold_out(load_documents(files, arguments.language), HELD_OUT_SHARE, arguments.seed)
        with replaced_folder(folder) as unfinished:
            (unfinished / TRAINING).write_text(as_text(training), encoding="utf-8")
            kept = {"documents": [dataclasses.asdict(document) for document in held_out]}
            (unfinished / HELD_OUT).write_text(json.dumps(kept), encoding="utf-8")
            (unfinished / MADE_OF).write_text(json.dumps(made_of, indent=1), encoding="utf-8")
    kept = read_json(folder / HELD_OUT, remedy)
    try:
        return [LabelledDocument(**document) for document in kept["documents"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / HELD_OUT} is damaged ({error!r}): {remedy}") from error


def as_text(documents: Iterable[LabelledDocument]) -> str:
    """Return documents with a passage on each line and blank lines between them."""
    return "\n\n".join("\n".join(map(" ".join, document.passages)) for document in documents) + "\n"


def load_documents(files: list[Path], language: str) -> list[LabelledDocument]:
    """Return the documents of files, labelled by file; without files, this Python's documentation, by library."""
    splitter = splitter_for(language)
    if not files:
        return read_python_documents(splitter, CHARACTERS_PER_LIBRARY)
    # Each once: the same document in both parts would make held-out metrics too good.
    documents: dict[tuple[str, ...], LabelledDocument] = {}
    for file in files:
        for sentences in read_documents([file], sentence_splitter=splitter):
            passages = [sentences[i : i + 4] for i in range(0, len(sentences), 4)]
            documents.setdefault(tuple(sentences), LabelledDocument(file.name, passages))
    if len(documents) < 10:
        raise ValueError(
            f"--input has {len(documents)} document(s), too few: separate them by blank lines, or give more files."
        )
    return list(documents.values())


def hold_out(
    documents: list[LabelledDocument], share: float, seed: int
) -> tuple[list[LabelledDocument], list[LabelledDocument]]:
    """Return training documents and held-out ones, `share` of them, which have several sentences."""
    candidates = [i for i, document in enumerate(documents) if len(document.sentences) > 1]
    if len(candidates) < 4:
        raise ValueError("hardly any document has several sentences: separate only documents by blank lines.")
    order = np.random.default_rng(seed).permutation(candidates)
    held_out = set(order[: min(max(2, round(len(documents) * share)), len(candidates) // 2)].tolist())
    return (
        [document for i, document in enumerate(documents) if i not in held_out],
        [document for i, document in enumerate(documents) if i in held_out],
    )


def labelled_passages(held_out: list[LabelledDocument], seed: int) -> datasets.DatasetDict:
    """Return passages, of `FEWEST_WORDS` or more, of the most frequent sources, each once, as `text` and `label`.

    `train` and `test` share no document; of each source, the same share of the documents is in `test`.
    """
    counts = Counter(document.label for document in held_out for _ in document.passages[:PASSAGES_PER_DOCUMENT])
    random, parts = np.random.default_rng(seed), {"train": [], "test": []}
    for label, _ in counts.most_common(LABELS):
        documents = [document for document in held_out if document.label == label]
        order, tested = random.permutation(len(documents)), round(TEST_SHARE * len(documents))
        parts["train"] += [documents[i] for i in order[tested:]]
        parts["test"] += [documents[i] for i in order[:tested]]
    data = datasets.DatasetDict()
    for split, part in parts.items():
        passages = ((text, document.label) for document in part for text in document.passages[:PASSAGES_PER_DOCUMENT])
        rows = {" ".join(sentences): label for sentences, label in passages}
        rows = {text: label for text, label in rows.items() if len(text.split()) >= FEWEST_WORDS}
        data[split] = datasets.Dataset.from_dict({"text": list(rows), "label": list(rows.values())})
    return data


def step(number: int, what: str) -> None:
    """Print the heading of a step."""
    print(f"\n[{number}/5] {what}", flush=True)


def show_filled_masks(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, held_out: list[LabelledDocument], seed: int
) -> None:
    """Mask a word in each of a hundred sentences, and print the five in which the model is surest of its guess."""
    sentences = [s for document in held_out[:500] for s in document.sentences[:50]]
    hidden = hide_words(model, tokenizer, sentences, MASKED_SENTENCES, seed, progress=True)
    if not hidden:
        print("  skipped: no held-out sentence of 8 to 24 tokens.")
        return
    surest = sorted(hidden, key=lambda sentence: sentence.guesses[0][1], reverse=True)[:SHOWN_SENTENCES]
    right = sum(sentence.is_right for sentence in hidden)
    print(f"  {right} of {len(hidden)} words are its first guess; the {len(surest)} of which it is surest:")
    for text, word, guesses in surest:
        print(f"  {text}\n    {', '.join(f'{guess} {p:.0%}' for guess, p in guesses)}   (was: {word})")


def finetuning_data(held_out: list[LabelledDocument], seed: int) -> datasets.DatasetDict | None:
    """Return passages to train and test on, labelled by source; None without two sources of enough passages."""
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
    """Return the accuracy of predicting a passage's source, without and with pre-training, and by the most frequent.

    The model with pre-training is saved next to `directory`, with tokenizer, record and card; `name` is the text's.
    """
    task = sequence_classification.prepare(data, tokenizer, max_length=max_length)
    accuracies = {"majority": task.baseline_metrics["test"]["accuracy"]}
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
    """Print the metrics before and after pre-training next to their baselines."""
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
