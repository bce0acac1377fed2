"""The quickstart's text: documents, where they are from, which of them are kept out."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.corpus import read_documents, tokenize_documents
from hf_encoders.data.corpus.python_docs import read_python_documents
from hf_encoders.data.corpus.segmentation import split_sentences
from hf_encoders.data.corpus.text_files import text_files


CHARACTERS_A_LIBRARY = 1_200_000  # of this Python's documentation, so that none is all of the text


@dataclass
class LabelledDocument:
    """A document, where it is from, and the passages it is made of, each a list of sentences."""

    label: str
    passages: list[list[str]]

    @property
    def sentences(self) -> list[str]:
        """All sentences in order."""
        return [sentence for passage in self.passages for sentence in passage]


def load_documents(arguments: argparse.Namespace) -> list[LabelledDocument]:
    """The user's documents, labelled by file; or this Python's documentation, labelled by library."""

    def splitter(text: str) -> list[str]:
        return split_sentences(text, arguments.language)

    if not arguments.input:
        found = read_python_documents(splitter, CHARACTERS_A_LIBRARY)
        return [LabelledDocument(document.library, document.docstrings) for document in found]
    files = sorted({file.resolve() for path in arguments.input for file in text_files(Path(path))})
    documents, seen, repeated = [], set(), 0
    for file in files:
        for sentences in read_documents([file], sentence_splitter=splitter):
            # The same document in both parts would make held-out figures too good.
            if tuple(sentences) in seen:
                repeated += 1
                continue
            seen.add(tuple(sentences))
            passages = [sentences[i : i + 4] for i in range(0, len(sentences), 4)]
            documents.append(LabelledDocument(file.name, passages))
    if repeated:
        print(f"  {repeated:,} documents left out that repeat another one")
    if len(documents) < 10:
        raise ValueError(
            f"--input holds {len(documents)} document(s), too few to keep some out for evaluation: separate documents "
            "by blank lines, or give more files."
        )
    return documents


def hold_out(
    documents: list[LabelledDocument], share: float, seed: int
) -> tuple[list[LabelledDocument], list[LabelledDocument]]:
    """Training documents and the ones kept out, `share` of them.

    Raises:
        ValueError: if there are no documents of several sentences to keep out.
    """
    # Only documents of several sentences: held-out pairs are made of them.
    candidates = [i for i, document in enumerate(documents) if len(document.sentences) > 1]
    if len(candidates) < 4:
        raise ValueError(
            "the text holds no document of two sentences, or hardly any: separate documents by blank lines, and put "
            "several sentences into each."
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
