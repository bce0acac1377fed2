"""Small corpora that several tests use."""

import datasets
import numpy as np

from hf_encoders.data.corpus.sentence_store import SentenceStore


TINY_MODEL = {
    "vocab_size": 60,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
}
DOCUMENTS = [[[5, 6], [7]], [[8, 9, 10]], [[11], [12, 13], [14]], [[15, 16]]]


def make_dataset(documents: list[list[list[int]]]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"input_ids": documents})


def contents(store: SentenceStore) -> list[list[list[int]]]:
    sentences = [part.tolist() for part in np.split(store.tokens, store.sentence_offsets[1:-1])][: store.num_sentences]
    bounds = store.document_offsets.tolist()
    return [sentences[begin:end] for begin, end in zip(bounds[:-1], bounds[1:], strict=True)]


def random_documents(num_documents: int, seed: int = 0) -> list[list[list[int]]]:
    generator = np.random.default_rng(seed)
    return [
        [generator.integers(5, 60, generator.integers(1, 9)).tolist() for _ in range(generator.integers(1, 6))]
        for _ in range(num_documents)
    ]


def as_text(documents: list[list[list[int]]]) -> list[list[str]]:
    return [[" ".join(f"w{i}" for i in sentence) for sentence in document] for document in documents]
