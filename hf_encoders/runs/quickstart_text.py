"""Text of the quickstart: documents with their sources, the held-out ones, tokenizer and tokenized corpora."""

import argparse
import json
import platform
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import read_documents
from hf_encoders.corpus.tokenized import tokenize_documents
from hf_encoders.corpus.python_docs import LabelledDocument, read_python_documents
from hf_encoders.corpus.segmentation import splitter_for
from hf_encoders.corpus.text_files import text_files
from hf_encoders.loading import load_tokenizer
from hf_encoders.runs.recipe import Recipe
from hf_encoders.runs.run_corpus import recipe_tokenizer
from hf_encoders.publishing.files import RUN_FILE
from hf_encoders.publishing.files import save_tokenizer
from hf_encoders.writing import read_json, replaced_folder


TEXT = "_text"  # folder in the output folder
MADE_OF, HELD_OUT = "made_of.json", "held_out.json"  # files in it
HELD_OUT_SHARE = 0.15  # of the documents, for evaluation and fine-tuning
CHARACTERS_PER_LIBRARY = 300_000  # of this Python's documentation, so that no library dominates the text
LABELS = 8  # sources with the most held-out passages, to fine-tune on
FEWEST_WORDS = 8  # of a labelled passage: shorter ones say little about their source
PASSAGES_PER_DOCUMENT = 20  # so that no long module decides what is measured
TEST_SHARE = 0.3  # of the documents of each label


@dataclass
class PreparedText:
    """Text to train on: tokenized training and held-out documents, and the latter as text."""

    tokenizer: PreTrainedTokenizerBase  # trained on the training documents
    corpus: datasets.Dataset
    held_out_corpus: datasets.Dataset
    held_out: list[LabelledDocument]


def prepared_text(
    arguments: argparse.Namespace, recipe: Recipe, output: Path, on_read: Callable[[str], None]
) -> PreparedText:
    """Read, split and tokenize text, atomically, into the output folder, or load what an earlier start left there.

    Text of other arguments is rebuilt, unless a run has used it; then it is refused.
    `on_read` is called when the text has been read, with how the tokenizer is made.
    """
    folder = output / TEXT
    made_of = description(arguments, recipe)
    remedy = f"remove {folder} to have it made again."
    before = read_json(folder / MADE_OF, remedy) if folder.is_dir() else {}
    others = [name for name, value in made_of.items() if before.get(name) != value]
    if others and (output / RUN_FILE).is_file():
        raise ValueError(
            f"--output {output} holds a quickstart with another {others[0]}: give the same arguments to resume "
            "it, another folder, or --overwrite to start from scratch."
        )
    if not others:
        print(f"  prepared before, in {folder}")
        on_read("as before")
    else:
        documents = load_documents(arguments)
        training, held_out = hold_out(documents, HELD_OUT_SHARE, arguments.seed)
        on_read("trained on it")
        tokenizer = recipe_tokenizer(recipe, (sentence for document in training for sentence in document.sentences))
        with replaced_folder(folder) as unfinished:
            save_tokenizer(tokenizer, unfinished / "tokenizer")
            for name, part in (("corpus", training), ("held_out", held_out)):
                # A sentence longer than an example is truncated.
                sentences = (document.sentences for document in part)
                tokenized = tokenize_documents(sentences, tokenizer, max_sentence_tokens=recipe.longest)
                tokenized.save_to_disk(unfinished / name)
            kept = {"documents": [asdict(document) for document in held_out]}
            (unfinished / HELD_OUT).write_text(json.dumps(kept), encoding="utf-8")
            (unfinished / MADE_OF).write_text(json.dumps(made_of, indent=1), encoding="utf-8")
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
    """Everything that determines the prepared text, as read back from JSON."""
    text: Any = f"documentation of Python {platform.python_version()}"
    if arguments.input:
        text = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in input_files(arguments.input)]
    return {
        "text": text,
        "language": arguments.language,
        "family": recipe.family,
        "tokenizer": recipe.tokenizer.facts(),
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
        return read_python_documents(splitter, CHARACTERS_PER_LIBRARY)
    documents: dict[tuple[str, ...], LabelledDocument] = {}
    repeated = 0
    for file in input_files(arguments.input):
        for sentences in read_documents([file], sentence_splitter=splitter):
            # The same document in both parts would make held-out metrics too good.
            if tuple(sentences) in documents:
                repeated += 1
                continue
            passages = [sentences[i : i + 4] for i in range(0, len(sentences), 4)]
            documents[tuple(sentences)] = LabelledDocument(file.name, passages)
    if repeated:
        print(f"  {repeated:,} duplicate documents left out")
    if len(documents) < 10:
        raise ValueError(
            f"--input has {len(documents)} document(s), too few: separate them by blank lines, or give more files."
        )
    return list(documents.values())


def hold_out(
    documents: list[LabelledDocument], share: float, seed: int
) -> tuple[list[LabelledDocument], list[LabelledDocument]]:
    """Training documents and held-out ones, `share` of them, which have several sentences (for sentence pairs)."""
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
    """Passages, of `FEWEST_WORDS` or more, of the most frequent sources, each once, as `text` and `label`.

    `train` and `test` share no document; of each source, the same share of the documents is in `test`.
    """
    counts = Counter(one.label for one in held_out for _ in one.passages[:PASSAGES_PER_DOCUMENT])
    random, parts = np.random.default_rng(seed), {"train": [], "test": []}
    for label, _ in counts.most_common(LABELS):
        documents = [one for one in held_out if one.label == label]
        order, tested = random.permutation(len(documents)), round(TEST_SHARE * len(documents))
        for split, places in (("train", order[tested:]), ("test", order[:tested])):
            parts[split] += [documents[place] for place in places]
    data = datasets.DatasetDict()
    for split, part in parts.items():
        rows = {" ".join(passage): one.label for one in part for passage in one.passages[:PASSAGES_PER_DOCUMENT]}
        rows = {text: label for text, label in rows.items() if len(text.split()) >= FEWEST_WORDS}
        data[split] = datasets.Dataset.from_dict({"text": list(rows), "label": list(rows.values())})
    return data
