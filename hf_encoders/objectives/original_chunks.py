"""Chunks and random segments as BERT's and ALBERT's own code makes them, artefacts included.

Source: `create_instances_from_document` of google-research/bert and google-research/albert,
`create_pretraining_data.py`:

- A chunk takes sentences until it reaches its target length, and is truncated: the text cut off is in no example.
- One document in ten is cut into short chunks.
- A sentence as long as the target, and the last one of a document, is a chunk by itself. It gets a random second
  segment and label 1: so 55 to 69 % of the pairs are negatives, and short inputs predict the label.
- A random segment begins at any sentence of another document (of the chunk's own after ten samples that hit it), and
  is filled up to the target from there, which may be more than the document has left: so lengths predict part of the
  labels.
- In BERT (`put_back`) the segment that was replaced begins the next chunk.

Differs in: random numbers are keyed by where the chunk begins (`randomness.py`), and documents are not shuffled first.
"""

import numpy as np

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.randomness import RandomStream, integers_below, uniforms
from hf_encoders.objectives.chunk_examples import SPECIAL_TOKENS_OF_A_PAIR, ChunkExamples, ChunkRule, KeysOf


TRIES = 10  # documents sampled until one is not the chunk's own


def original_chunks(corpus: FlatCorpus, max_length: int, rule: ChunkRule, keys_of: KeysOf) -> ChunkExamples:
    """All chunks of a sample, in the order of the text; longer ones are truncated by the collator.

    `keys_of` makes keys of indices of sentences and documents.
    """
    first, end, documents, targets = _cut(corpus, max_length - SPECIAL_TOKENS_OF_A_PAIR, rule, keys_of)
    keys = keys_of(first)
    offsets = corpus.sentence_offsets
    has_two = end - first > 1
    middle = np.where(has_two, first + _split_sizes(keys, end - first), end)
    is_random = ~has_two | _is_negative(keys)
    wanted = targets[is_random] - (offsets[middle] - offsets[first])[is_random]
    random_first, random_end = _random_segments(corpus, keys[is_random], documents[is_random], wanted)
    random = np.zeros((2, len(first)), dtype=np.int64)
    random[:, is_random] = offsets[random_first], offsets[random_end]
    bounds = offsets[first], offsets[middle], offsets[end], *random
    return ChunkExamples(corpus, *bounds, is_random | has_two, has_two, keys, max_length, rule)


def _cut(
    corpus: FlatCorpus, capacity: int, rule: ChunkRule, keys_of: KeysOf
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sentences `[first, end)`, document and target length of every chunk, ordered by `first`.

    All documents are cut side by side: each round takes the next chunk of every document that has one left.
    """
    first, document_ends = corpus.document_offsets[:-1], corpus.document_offsets[1:]
    documents = np.arange(len(first))
    keys = keys_of(documents)
    is_short = uniforms(keys, RandomStream.CHUNK_TARGET, 0) < rule.short_sequence_probability
    targets = np.where(is_short, 2 + integers_below(keys, RandomStream.CHUNK_TARGET, 1, capacity - 1), capacity)
    found = [(first[:0],) * 4]
    while len(first):
        end = _end_with(corpus, first, document_ends, targets)
        found.append((first, end, documents, targets))
        begin = end
        if rule.put_back:
            keys = keys_of(first)
            replaced = _is_negative(keys) & (end - first > 1)
            begin = np.where(replaced, first + _split_sizes(keys, end - first), end)
        is_left = begin < document_ends
        first, document_ends = begin[is_left], document_ends[is_left]
        documents, targets = documents[is_left], targets[is_left]
    arrays = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    order = np.argsort(arrays[0], kind="stable")
    return tuple(array[order] for array in arrays)


def _end_with(corpus: FlatCorpus, first: np.ndarray, document_ends: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where sentences from `first` on reach `wanted` tokens, or their document ends; at least one sentence."""
    reached = np.searchsorted(corpus.sentence_offsets, corpus.sentence_offsets[first] + wanted)
    return np.minimum(np.maximum(reached, first + 1), document_ends)


def _split_sizes(keys: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sentences of the first segment, for chunks of `sizes` sentences: uniform in [1, size - 1], or 1."""
    return 1 + integers_below(keys, RandomStream.SEGMENT_SPLIT, 0, np.maximum(sizes - 1, 1))


def _is_negative(keys: np.ndarray) -> np.ndarray:
    """Which chunks of several sentences get a random second segment in next-sentence prediction: half of them."""
    return uniforms(keys, RandomStream.NEGATIVE_PAIR, 0) < 0.5


def _random_segments(
    corpus: FlatCorpus, keys: np.ndarray, own: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences `[first, end)` from any sentence of a document on, up to `wanted` tokens or the document's end."""
    sampled = integers_below(keys[:, None], RandomStream.RANDOM_DOCUMENT, np.arange(TRIES), corpus.num_documents)
    is_other = sampled != own[:, None]
    document = sampled[np.arange(len(own)), np.where(is_other.any(axis=1), is_other.argmax(axis=1), TRIES - 1)]
    document_first, document_end = corpus.document_offsets[document], corpus.document_offsets[document + 1]
    first = document_first + integers_below(keys, RandomStream.RANDOM_SENTENCE, 0, document_end - document_first)
    return first, _end_with(corpus, first, document_end, wanted)
