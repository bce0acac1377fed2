"""Chunks and random segments as BERT's and ALBERT's own code makes them, artefacts included.

Source: `create_instances_from_document` of google-research/bert and google-research/albert,
`create_pretraining_data.py`. The rules one by one:

- A chunk takes sentences until it reaches its target, and is truncated: the text cut off is in no example.
- One document in ten is cut into short chunks.
- A sentence as long as the target, and one left at a document's end, is a chunk by itself. It gets a random second
  segment and label 1: so 55 to 69 % of the pairs are negatives, and short inputs predict the label.
- A random segment begins at any sentence of another document, of the chunk's own after ten draws that hit it, and is
  filled up to the target from there, which may be more than the document has left: so lengths predict part of the
  labels.
- In BERT (`put_back`) the segment that was replaced begins the next chunk.

Differs in that every draw is keyed by where the chunk begins (`randomness.py`), and documents are not shuffled before.
"""

import numpy as np

from hf_encoders.data.chunk_examples import ChunkExamples, ChunkRule, KeysOf
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.randomness import RandomStream, integers_below, uniforms


TRIES = 10  # draws of a document


def original_chunks(corpus: FlatCorpus, max_tokens: int, rule: ChunkRule, keys_of: KeysOf) -> ChunkExamples:
    """All chunks of an epoch, in the order of the text.

    Args:
        corpus (`FlatCorpus`): without empty documents and sentences.
        max_tokens (`int`): most tokens of a pair; chunks may have more, and are truncated by the collator.
        rule (`ChunkRule`): `short_sequence_probability` and `put_back`.
        keys_of (`Callable`): the epoch's keys of sentences and documents, by number.
    """
    first, end, documents, targets = _cut(corpus, max_tokens, rule, keys_of)
    keys = keys_of(first)
    offsets = corpus.sentence_offsets
    middle = np.where(end - first > 1, first + _split_places(keys, end - first), end)
    is_random = (end - first == 1) | _is_negative(keys)
    wanted = targets[is_random] - (offsets[middle] - offsets[first])[is_random]
    random_first, random_last = _random_segments(corpus, keys[is_random], documents[is_random], wanted)
    random_begin, random_end = np.zeros_like(first), np.zeros_like(first)
    random_begin[is_random], random_end[is_random] = offsets[random_first], offsets[random_last]
    return ChunkExamples(
        corpus,
        offsets[first],
        offsets[middle],
        offsets[end],
        random_begin,
        random_end,
        is_random | (end - first > 1),
        end - first > 1,
        keys,
        max_tokens,
        rule,
    )


def _cut(
    corpus: FlatCorpus, max_tokens: int, rule: ChunkRule, keys_of: KeysOf
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sentences `[first, end)`, document and target of every chunk, ordered by `first`.

    All documents are cut side by side: each round takes the next chunk of every document that has one left.
    """
    first, document_ends = corpus.document_offsets[:-1], corpus.document_offsets[1:]
    documents = np.arange(len(first))
    keys = keys_of(documents)
    is_short = uniforms(keys, RandomStream.CHUNK_TARGET, 0) < rule.short_sequence_probability
    targets = np.where(is_short, 2 + integers_below(keys, RandomStream.CHUNK_TARGET, 1, max_tokens - 1), max_tokens)
    found = [(first[:0],) * 4]
    while len(first):
        end = _end_with(corpus, first, document_ends, targets)
        found.append((first, end, documents, targets))
        begin = end
        if rule.put_back:
            keys = keys_of(first)
            replaced = _is_negative(keys) & (end - first > 1)
            begin = np.where(replaced, first + _split_places(keys, end - first), end)
        is_left = begin < document_ends
        first, document_ends = begin[is_left], document_ends[is_left]
        documents, targets = documents[is_left], targets[is_left]
    arrays = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    order = np.argsort(arrays[0], kind="stable")
    return tuple(array[order] for array in arrays)


def _end_with(corpus: FlatCorpus, first: np.ndarray, document_ends: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where sentences from `first` on have the tokens wanted, or their document ends; one sentence at least."""
    reached = np.searchsorted(corpus.sentence_offsets, corpus.sentence_offsets[first] + wanted)
    return np.minimum(np.maximum(reached, first + 1), document_ends)


def _split_places(keys: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How many sentences of chunks of `sizes` sentences the first segment has: uniform in [1, size - 1], 1 of 1."""
    return 1 + integers_below(keys, RandomStream.SEGMENT_SPLIT, 0, np.maximum(sizes - 1, 1))


def _is_negative(keys: np.ndarray) -> np.ndarray:
    """Which chunks of two sentences or more get a random second segment in next-sentence prediction: half of them."""
    return uniforms(keys, RandomStream.NEGATIVE_PAIR, 0) < 0.5


def _random_segments(
    corpus: FlatCorpus, keys: np.ndarray, own: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences `[first, last)` from any sentence of a document up to the tokens wanted, or the document's end."""
    drawn = integers_below(keys[:, None], RandomStream.RANDOM_DOCUMENT, np.arange(TRIES), corpus.num_documents)
    is_other = drawn != own[:, None]
    document = drawn[np.arange(len(own)), np.where(is_other.any(axis=1), is_other.argmax(axis=1), TRIES - 1)]
    document_first, document_end = corpus.document_offsets[document], corpus.document_offsets[document + 1]
    first = document_first + integers_below(keys, RandomStream.RANDOM_SENTENCE, 0, document_end - document_first)
    return first, _end_with(corpus, first, document_end, wanted)
