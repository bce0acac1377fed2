"""The quickstart's text: labelled documents, split into training and held-out ones, with tokenizer and corpus."""

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.corpus import read_documents, tokenize_documents
from hf_encoders.data.corpus.python_docs import read_python_documents
from hf_encoders.data.corpus.segmentation import splitter_for
from hf_encoders.data.corpus.text_files import text_files
from hf_encoders.loading import load_tokenizer
from hf_encoders.recipes.recipe import Recipe
from hf_encoders.recipes.run_folder import recipe_tokenizer
from hf_encoders.writing import read_json, replaced_folder


TEXT = "_text"  # folder in the output folder
MADE_OF, HELD_OUT = "made_of.json", "held_out.json"  # files in it
HELD_OUT_SHARE = 0.15  # share of the documents for evaluation and fine-tuning
CHARACTERS_PER_LIBRARY = 300_000  # of this Python's documentation, so that no library dominates


@dataclass
class LabelledDocument:
    """A document with its source as label, and its passages, each a list of sentences."""

    label: str
    passages: list[list[str]]

    @property
    def sentences(self) -> list[str]:
        """All sentences in order."""
        return [sentence for passage in self.passages for sentence in passage]


@dataclass
class PreparedText:
    """Text for training and evaluation.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Trained on the training documents.
        corpus, held_out_corpus (`datasets.Dataset`): Training and held-out documents, tokenised.
        held_out (`list[LabelledDocument]`): The held-out documents.
    """

    tokenizer: PreTrainedTokenizerBase
    corpus: datasets.Dataset
    held_out_corpus: datasets.Dataset
    held_out: list[LabelledDocument]


def prepared_text(
    arguments: argparse.Namespace, recipe: Recipe, output: Path, say: Callable[[str], None]
) -> PreparedText:
    """Read, split and tokenise the text, and save it in the output folder; or load it from there.

    Args:
        arguments (`argparse.Namespace`): Arguments of the command.
        recipe (`Recipe`): Family, tokenizer and longest example.
        output (`Path`): The run's folder.
        say (`Callable`): Called before the tokenizer is trained or loaded, with how.

    Raises:
        ValueError: if the saved text is of other text or settings; and as `load_documents` and `hold_out`.
    """
    folder = output / TEXT
    made_of = description(arguments, recipe)
    if folder.is_dir():
        remedy = f"remove {folder} to have it made again."
        before = read_json(folder / MADE_OF, remedy)
        others = [name for name, value in made_of.items() if before.get(name) != value]
        if others:
            raise ValueError(
                f"--output {output} holds a quickstart with another {others[0]}: resume it with its own arguments, "
                "give another folder, or start from scratch with --overwrite."
            )
        print(f"  prepared before, in {folder}")
        say("as before")
    else:
        documents = load_documents(arguments)
        training, held_out = hold_out(documents, HELD_OUT_SHARE, arguments.seed)
        say("trained on it")
        tokenizer = recipe_tokenizer(recipe, (sentence for document in training for sentence in document.sentences))
        with replaced_folder(folder) as unfinished:
            tokenizer.save_pretrained(unfinished / "tokenizer")
            for name, part in (("corpus", training), ("held_out", held_out)):
                tokenized(part, tokenizer, recipe.longest).save_to_disk(unfinished / name)
            kept = {"documents": [asdict(document) for document in held_out]}
            (unfinished / HELD_OUT).write_text(json.dumps(kept), encoding="utf-8")
            (unfinished / MADE_OF).write_text(json.dumps(made_of, indent=1), encoding="utf-8")
        remedy = ""
    kept = read_json(folder / HELD_OUT, remedy)
    try:
        held_out = [LabelledDocument(**document) for document in kept["documents"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / HELD_OUT} is damaged ({error!r}): {remedy}") from error
    return PreparedText(
        load_tokenizer(str(folder / "tokenizer")),
        *(datasets.load_from_disk(str(folder / name)) for name in ("corpus", "held_out")),
        held_out,
    )


def description(arguments: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """Text and settings of the prepared text, as read back from JSON."""
    text: Any = f"documentation of Python {platform.python_version()}"
    if arguments.input:
        text = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in input_files(arguments.input)]
    return {
        "text": text,
        "language": arguments.language,
        "family": recipe.family,
        "tokenizer": asdict(recipe.tokenizer),
        "max_length": recipe.longest,
        "seed": arguments.seed,
    }


def input_files(paths: list[str]) -> list[Path]:
    """The files of `--input`, each once."""
    return sorted({file.resolve() for path in paths for file in text_files(Path(path))})


def load_documents(arguments: argparse.Namespace) -> list[LabelledDocument]:
    """The user's documents, labelled by file; or this Python's documentation, labelled by library."""
    splitter = splitter_for(arguments.language)
    if not arguments.input:
        found = read_python_documents(splitter, CHARACTERS_PER_LIBRARY)
        return [LabelledDocument(document.library, document.docstrings) for document in found]
    files = input_files(arguments.input)
    documents, seen, repeated = [], set(), 0
    for file in files:
        for sentences in read_documents([file], sentence_splitter=splitter):
            # The same document in both parts would make held-out metrics too good.
            if tuple(sentences) in seen:
                repeated += 1
                continue
            seen.add(tuple(sentences))
            passages = [sentences[i : i + 4] for i in range(0, len(sentences), 4)]
            documents.append(LabelledDocument(file.name, passages))
    if repeated:
        print(f"  {repeated:,} duplicate documents left out")
    if len(documents) < 10:
        raise ValueError(
            f"--input holds {len(documents)} document(s), too few to hold some out for evaluation: separate "
            "documents by blank lines, or give more files."
        )
    return documents


def hold_out(
    documents: list[LabelledDocument], share: float, seed: int
) -> tuple[list[LabelledDocument], list[LabelledDocument]]:
    """Training documents and held-out ones, `share` of them; ValueError if hardly any has several sentences."""
    # Held-out pairs need documents of several sentences.
    candidates = [i for i, document in enumerate(documents) if len(document.sentences) > 1]
    if len(candidates) < 4:
        raise ValueError(
            "hardly any document of the text has two sentences: separate documents by blank lines, with several "
            "sentences in each."
        )
    order = np.random.default_rng(seed).permutation(candidates)
    held_out = set(order[: min(max(2, round(len(documents) * share)), len(candidates) // 2)].tolist())
    return (
        [document for i, document in enumerate(documents) if i not in held_out],
        [document for i, document in enumerate(documents) if i in held_out],
    )


def tokenized(
    documents: list[LabelledDocument], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> datasets.Dataset:
    """Documents of sentences of ids; a sentence longer than an example is cut."""
    return tokenize_documents(
        (document.sentences for document in documents), tokenizer, max_sentence_tokens=max_length
    )
