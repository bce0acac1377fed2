"""Small corpora that several tests use."""

from pathlib import Path

import datasets
import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus


TINY_MODEL = {
    "vocab_size": 60,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
}
NOUNS = ("cat", "dog", "house", "river", "teacher", "engine", "song", "mountain", "letter", "garden")
DOCUMENTS = [[[5, 6], [7]], [[8, 9, 10]], [[11], [12, 13], [14]], [[15, 16]]]


def make_dataset(documents: list[list[list[int]]]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"input_ids": documents})


def contents(corpus: FlatCorpus) -> list[list[list[int]]]:
    parts = np.split(corpus.tokens[:], corpus.sentence_offsets[1:-1])
    sentences = [part.tolist() for part in parts][: corpus.num_sentences]
    bounds = corpus.document_offsets.tolist()
    return [sentences[begin:end] for begin, end in zip(bounds[:-1], bounds[1:], strict=True)]


def random_documents(
    num_documents: int, seed: int = 0, sentences: tuple[int, int] = (1, 6), tokens: tuple[int, int] = (1, 9)
) -> list[list[list[int]]]:
    """Documents of ids 5 to 59; numbers of sentences and of tokens from the first to below the second."""
    generator = np.random.default_rng(seed)
    return [
        [
            generator.integers(5, 60, generator.integers(*tokens)).tolist()
            for _ in range(generator.integers(*sentences))
        ]
        for _ in range(num_documents)
    ]


def equal_documents(num_documents: int, sentences: int = 3) -> datasets.Dataset:
    """Documents of as many sentences of six tokens each."""
    return make_dataset(random_documents(num_documents, 0, (sentences, sentences + 1), (6, 7)))


def write_corpus(path: Path, documents: int, topic: str) -> Path:
    """Text of documents of three sentences each."""
    blocks = []
    for i in range(documents):
        noun, other = NOUNS[i % 10], NOUNS[(i * 3 + 1) % 10]
        blocks.append(f"{noun} {i} is in {topic}.\n{topic} saw {other}.\nNobody says why.")
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    return path


def as_text(documents: list[list[list[int]]]) -> list[list[str]]:
    return [[" ".join(f"w{i}" for i in sentence) for sentence in document] for document in documents]
