"""BERT's and ALBERT's own chunks and random segments; test_presets.py has their statistics."""

import datasets
import numpy as np
import pytest

from hf_encoders.objectives import presets
from hf_encoders.objectives.chunk_arrays import DocumentChunks, cut_corpus
from hf_encoders.objectives.chunk_examples import ChunkRule
from hf_encoders.objectives.pair_arrays import next_sentence_pairs, sentence_order_pairs
from tests.objectives.test_chunks import bounds_of, corpus, one_document
from tests.objectives.test_sentence_pairs import segments


NO_SHORT = {"short_sequence_probability": 0.0, "original_code": True}


@pytest.mark.parametrize(
    ("lengths", "max_length", "chunks"),
    [
        ([9, 1, 1, 9, 2], 6, [(0, 9), (9, 20), (20, 22)]),  # single sentences stay alone
        ([3, 4, 5, 2, 1], 9, [(0, 7), (7, 14), (14, 15)]),
        ([2, 2, 2], 100, [(0, 6)]),
    ],
)
def test_sentences_are_taken_until_the_target_is_reached(lengths, max_length, chunks):
    assert bounds_of(cut_corpus(one_document(lengths), max_length, ChunkRule(**NO_SHORT), 0, 0)) == chunks


def test_what_negatives_replace_begins_the_next_chunk():
    chunks = DocumentChunks(corpus(), 32, **presets.BERT_CHUNKS)
    found = chunks._chunks(3)
    replaced = (found.random_begin < found.random_end) & (found.middle < found.end)
    expected = np.where(replaced, found.middle, found.end)
    starts = chunks.corpus.sentence_offsets[chunks.corpus.document_offsets]
    is_last = np.isin(expected, starts)
    assert np.array_equal(found.begin[1:][~is_last[:-1]], expected[:-1][~is_last[:-1]])
    assert is_last.sum() == 40 and replaced.sum() > 100


def test_one_document_in_ten_has_a_short_target():
    """Sentences of one token, so that a document's chunks have as many as its target."""
    documents = datasets.Dataset.from_dict({"input_ids": [[[i] for i in range(125)]] * 4000})
    chunks = DocumentChunks(documents, 128, original_code=True)._chunks(0)
    is_short = (chunks.begin % 125 == 0) & (chunks.end - chunks.begin < 125)
    assert abs(is_short.sum() / 4000 - 0.1 * 123 / 124) < 5 * np.sqrt(0.09 / 4000)


@pytest.mark.slow
@pytest.mark.parametrize(("documents", "own_share"), [(1, 1.0), (2, 2.0**-10), (3, 3.0**-10)])
def test_own_documents_are_hit_as_often_as_ten_tries_hit_them(documents, own_share):
    rule, text = ChunkRule(**NO_SHORT), DocumentChunks(corpus(documents, longest=9), 64, **NO_SHORT).corpus
    chosen = []
    for draw in range(3000):
        chunks = cut_corpus(text, 12, rule, 0, draw)
        is_random = chunks.random_begin < chunks.random_end
        own, other = (text.tokens[places[is_random]] // 1000 for places in (chunks.begin, chunks.random_begin))
        chosen.append(own == other)
    chosen = np.concatenate(chosen)
    assert len(chosen) > 5000
    assert abs(chosen.mean() - own_share) <= 5 * np.sqrt(own_share * (1 - own_share) / len(chosen))


def test_random_segments_are_filled_up_to_the_target():
    chunks = DocumentChunks(corpus(), 64, redraw=False, **NO_SHORT)
    tokens, starts = chunks.store.tokens, chunks.store.tokens[chunks.store.sentence_offsets[:-1]]
    whole = chunks._chunks(0)
    for first, second, label in segments(whole, next_sentence_pairs(whole)):
        if label == 1:
            is_document_end = second[-1] + 1 not in tokens
            last_sentence = second[-1] - starts[starts <= second[-1]].max() + 1
            assert is_document_end or len(second) >= 61 - len(first) or len(second) == last_sentence
            assert len(second) - last_sentence < max(61 - len(first), 1)


@pytest.mark.parametrize("make_pairs", [sentence_order_pairs, next_sentence_pairs])
def test_a_single_sentence_is_a_negative(make_pairs):
    documents = datasets.Dataset.from_dict({"input_ids": [[[7, 8]], [[10, 11], [12, 13]]]})
    chunks = DocumentChunks(documents, 32, **NO_SHORT)
    found = set()
    for epoch in range(50):
        whole = chunks._chunks(epoch).take([0])
        found |= {(tuple(a.tolist()), tuple(b.tolist()), label) for a, b, label in segments(whole, make_pairs(whole))}
    second = {(10, 11, 12, 13), (12, 13)}
    assert {b for _, b, _ in found} >= second and {(a, label) for a, _, label in found} == {((7, 8), 1)}
