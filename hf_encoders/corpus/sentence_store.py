"""Kept until its users take `FlatCorpus.of(dataset, keep_empty=True)`."""

import datasets

from hf_encoders.corpus.flat_corpus import FlatCorpus


class SentenceStore:
    """`FlatCorpus.of(dataset, keep_empty=True)`."""

    def __new__(cls, dataset: datasets.Dataset) -> FlatCorpus:
        """Open the corpus."""
        return FlatCorpus.of(dataset, keep_empty=True)
