from dataclasses import replace

import datasets
import numpy as np
import pytest

from hf_encoders.data.chunks import DocumentChunks, rows_as_chunks
from hf_encoders.data.randomness import example_keys
from hf_encoders.data.sentence_pairs import (
    Pairs,
    heads,
    kept_lengths,
    next_sentence_pairs,
    sentence_order_pairs,
    truncate_pairs,
)
from tests.data.test_chunks import all_chunks, corpus


def segments(chunks, pairs):
    """Token ids of both segments and the label of each pair."""
    for bounds in zip(pairs.begin.tolist(), pairs.end.tolist(), pairs.labels.tolist(), strict=True):
        (first, second), (first_end, second_end), label = bounds
        yield chunks.corpus.tokens[first:first_end], chunks.corpus.tokens[second:second_end], label


def one_by_one(first, second, max_tokens):
    """The original rule, a token at a time, lengths only."""
    while first + second > max_tokens:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_kept_lengths_are_those_of_removing_one_token_at_a_time():
    lengths = np.array([(first, second) for first in range(0, 15) for second in range(0, 15)])
    for most in range(2, 20):
        expected = [one_by_one(first, second, most) for first, second in lengths.tolist()]
        assert kept_lengths(lengths, most).tolist() == [list(pair) for pair in expected]


def test_heads_are_those_of_fair_coins():
    tosses = np.repeat([0, 1, 7, 64, 65, 200], 2000)
    found = heads(example_keys(0, 0, np.arange(len(tosses))), 3, tosses).reshape(6, 2000)
    for n, row in zip((0, 1, 7, 64, 65, 200), found, strict=True):
        assert row.min() >= 0 and row.max() <= n
        assert abs(row.mean() - n / 2) <= 5 * np.sqrt(n / 4 / 2000)
        assert abs(row.var() - n / 4) <= 5 * (n / 4) * np.sqrt(2 / 2000) + 0.01


def test_truncation_removes_from_both_ends_alike():
    keys = example_keys(0, 0, np.arange(2000))
    pairs = Pairs(np.tile([0, 100], (2000, 1)), np.tile([60, 103], (2000, 1)), np.zeros(2000, dtype=int))
    cut = truncate_pairs(pairs, 43, keys)
    assert (cut.end - cut.begin == [40, 3]).all() and (cut.begin[:, 1] == 100).all()
    assert (cut.begin[:, 0] >= 0).all() and (cut.end[:, 0] <= 60).all()
    assert abs(cut.begin[:, 0].mean() - 10) < 5 * np.sqrt(5 / 2000)


@pytest.mark.parametrize("rule", [{}, {"segments": "sentences"}])
def test_next_sentences_follow_and_random_ones_come_from_another_document(rule):
    chunks = DocumentChunks(corpus(), max_length=64, **rule)
    labels = []
    for epoch in range(30):
        chunks.set_epoch(epoch)
        examples = all_chunks(chunks)
        for first, second, label in segments(examples, next_sentence_pairs(examples)):
            labels.append(label)
            assert len(first) and len(second)
            if label == 0:
                assert second[0] == first[-1] + 1
            else:
                assert second[0] // 1000 != first[0] // 1000
                assert np.array_equal(second, np.arange(second[0], second[-1] + 1))
    assert abs(np.mean(labels) - 0.5) < 5 * np.sqrt(0.25 / len(labels))


def test_segments_of_sentence_pairs_are_single_sentences():
    chunks = DocumentChunks(corpus(), max_length=64, segments="sentences", redraw=False)
    examples = all_chunks(chunks)
    pairs = next_sentence_pairs(examples)
    starts, ends = chunks.store.sentence_offsets[:-1], chunks.store.sentence_offsets[1:]
    assert np.array_equal(pairs.end, ends[np.searchsorted(starts, pairs.begin)])
    assert set(pairs.labels.tolist()) == {0, 1}


def test_random_segments_come_from_all_sentences_of_other_documents_alike():
    """Sentences of one length, so that nothing but the place matters."""
    sizes = [4, 9, 2, 14, 6]
    documents = [[[1000 * d + i] for i in range(size)] for d, size in enumerate(sizes)]
    chunks = DocumentChunks(
        datasets.Dataset.from_dict({"input_ids": documents}), 64, redraw=False, segments="sentences"
    )
    for index, own in ((0, 0), (len(chunks) - 1, 4)):
        examples = many_draws(chunks, index, 20000)
        drawn = [second[0] for _, second, label in segments(examples, next_sentence_pairs(examples)) if label]
        origins = np.unique(drawn, return_counts=True)
        others = [token for d, document in enumerate(documents) if d != own for (token,) in document]
        assert origins[0].tolist() == others
        expected = len(drawn) / len(others)
        assert abs(origins[1] - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize("longest", [6, 60])
def test_lengths_do_not_tell_random_segments(longest):
    """The best guess from both lengths, counted on one half of the pairs and tried on the other."""
    random = np.random.default_rng(0)
    documents = [
        [[7] * int(n) for n in np.ceil(random.gamma(2, 8, random.integers(2, longest)))]
        for _ in range(24000 // longest)
    ]
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}), 64)
    cells, labels = [], []
    for epoch in range(20):
        chunks.set_epoch(epoch)
        examples = all_chunks(chunks)
        pairs = truncate_pairs(next_sentence_pairs(examples), 61, examples.keys)
        lengths = (pairs.end - pairs.begin)[pairs.labels >= 0]
        cells.append(lengths[:, 0] // 3 * 100 + lengths[:, 1] // 3)
        labels.append(pairs.labels[pairs.labels >= 0])
    cells, labels = np.concatenate(cells), np.concatenate(labels)
    half = np.arange(len(labels)) % 2 == 0
    guess = np.bincount(cells[half], labels[half] - 0.5, 10000) > 0
    assert len(labels) > 50000
    assert (guess[cells[~half]] == labels[~half]).mean() < 0.525


def many_draws(chunks, index, number):
    """One chunk with many keys."""
    examples = chunks.__getitems__([index] * number)[0]
    return replace(examples, keys=example_keys(1, 0, np.arange(number)))


@pytest.mark.parametrize(("documents", "own_share"), [(1, 1.0), (2, 2.0**-10), (3, 3.0**-10)])
def test_own_documents_are_hit_as_often_as_ten_tries_hit_them(documents, own_share):
    chunks = DocumentChunks(corpus(documents), 64, redraw=False, negatives_from_own_document=True)
    examples = many_draws(chunks, 0, 60000)
    drawn = np.array([b[0] // 1000 for _, b, label in segments(examples, next_sentence_pairs(examples)) if label])
    share = (drawn == 0).mean()
    assert abs(share - own_share) <= 5 * np.sqrt(own_share * (1 - own_share) / len(drawn))


def test_random_segments_are_filled_up_to_the_target_where_asked():
    chunks = DocumentChunks(corpus(), 64, redraw=False, negatives_fill_up=True, short_sequence_probability=0.0)
    examples = all_chunks(chunks)
    offsets = chunks.store.sentence_offsets
    for first, second, label in segments(examples, next_sentence_pairs(examples)):
        if label == 1:
            is_document_end = second[-1] + 1 not in chunks.store.tokens
            last_sentence = (
                second[-1]
                - chunks.store.tokens[offsets[:-1]][chunks.store.tokens[offsets[:-1]] <= second[-1]].max()
                + 1
            )
            assert is_document_end or len(second) >= 61 - len(first) or len(second) == last_sentence
            assert len(second) - last_sentence < max(61 - len(first), 1)


def test_textbook_sentences_in_both_orders():
    """ "I love you." and "Because you are wonderful.": 0 in order, 1 swapped."""
    love, because = [10, 11, 12], [13, 14, 15, 16]
    chunks = rows_as_chunks([[np.array(love), np.array(because)]] * 20, example_keys(0, 0, np.arange(20)), 13)
    seen = {label: (a.tolist(), b.tolist()) for a, b, label in segments(chunks, sentence_order_pairs(chunks))}
    assert seen == {0: (love, because), 1: (because, love)}


def test_textbook_next_sentences():
    """ "the man went to the store", then "he bought milk" (0) or, of another document, "penguins are birds" (1)."""
    store, milk, penguins = [10, 11, 12, 13, 10, 14], [15, 16, 17], [20, 21, 22]
    documents = datasets.Dataset.from_dict({"input_ids": [[store, milk], [penguins]]})
    chunks = many_draws(DocumentChunks(documents, 16, redraw=False), 0, 20)
    seen = {label: (a.tolist(), b.tolist()) for a, b, label in segments(chunks, next_sentence_pairs(chunks))}
    assert seen == {0: (store, milk), 1: (store, penguins)}


def test_swaps_and_splits_are_balanced():
    rows = [[np.array([i]) for i in range(5)]] * 8000
    chunks = rows_as_chunks(rows, example_keys(0, 0, np.arange(8000)), 9)
    chunks = replace(chunks, first=chunks.corpus.document_offsets[:-1], end=chunks.corpus.document_offsets[1:])
    pairs = list(segments(chunks, sentence_order_pairs(chunks)))
    assert abs(np.mean([label for _, _, label in pairs]) - 0.5) < 5 * np.sqrt(0.25 / 8000)
    lengths = np.bincount([len(b if label else a) for a, b, label in pairs], minlength=6)
    assert lengths[[0, 5]].sum() == 0
    assert abs(lengths[1:5] - 2000).max() < 5 * np.sqrt(8000 * 0.25 * 0.75)


@pytest.mark.parametrize("draw", [sentence_order_pairs, next_sentence_pairs])
def test_a_single_sentence_has_no_pair_label_or_is_a_negative(draw):
    documents = datasets.Dataset.from_dict({"input_ids": [[[7, 8]], [[10, 11], [12, 13]]]})
    for rule, expected in (
        ({}, {((7, 8), (), -100)}),
        ({"lone_sentence_is_negative": True}, {((7, 8), (10, 11), 1), ((7, 8), (12, 13), 1)}),
    ):
        chunks = many_draws(DocumentChunks(documents, 32, redraw=False, **rule), 0, 50)
        assert {
            (tuple(a.tolist()), tuple(b.tolist()), label) for a, b, label in segments(chunks, draw(chunks))
        } == expected


def test_next_sentences_need_two_documents():
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": [[[1], [2]]]}), 32, redraw=False)
    with pytest.raises(ValueError, match="holds one document"):
        next_sentence_pairs(chunks[0])


def test_sentence_order_does_not_go_with_put_back_chunks():
    with pytest.raises(ValueError, match="put_back=True"):
        sentence_order_pairs(DocumentChunks(corpus(), 32, redraw=False, put_back=True)[0])
