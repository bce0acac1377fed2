from dataclasses import replace

import datasets
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hf_encoders.corpus.randomness import RandomStream, example_keys
from hf_encoders.objectives.chunk_arrays import DocumentChunks, rows_as_chunks
from hf_encoders.objectives.pair_arrays import (
    Pairs,
    coin_tosses,
    next_sentence_pairs,
    sentence_order_pairs,
    truncate_pairs,
    truncated_lengths,
)
from hf_encoders.objectives.whole_sentence_chunks import partners
from tests.objectives.test_chunks import all_chunks, corpus


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


def test_truncated_lengths_are_those_of_removing_one_token_at_a_time():
    lengths = np.array([(first, second) for first in range(0, 15) for second in range(0, 15)])
    for most in range(2, 20):
        expected = [one_by_one(first, second, most) for first, second in lengths.tolist()]
        assert truncated_lengths(lengths, most + 3).tolist() == [list(pair) for pair in expected]


def test_coin_tosses_are_fair():
    tosses = np.repeat([0, 1, 7, 64, 65, 200], 2000)
    keys = example_keys(0, 0, np.arange(len(tosses)))
    found = coin_tosses(keys, RandomStream.TRUNCATE_FIRST, tosses).reshape(6, 2000)
    for n, row in zip((0, 1, 7, 64, 65, 200), found, strict=True):
        assert row.min() >= 0 and row.max() <= n
        assert abs(row.mean() - n / 2) <= 5 * np.sqrt(n / 4 / 2000)
        assert abs(row.var() - n / 4) <= 5 * (n / 4) * np.sqrt(2 / 2000) + 0.01


def test_truncation_removes_from_both_ends_alike():
    keys = example_keys(0, 0, np.arange(2000))
    pairs = Pairs(np.tile([0, 100], (2000, 1)), np.tile([60, 103], (2000, 1)), np.zeros(2000, dtype=int))
    cut = truncate_pairs(pairs, 46, keys)
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
            if label == -100:
                assert len(second) == 0 or second[0] == first[-1] + 1
                continue
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
    pairs = next_sentence_pairs(all_chunks(chunks))
    pairs = Pairs(*(array[pairs.labels >= 0] for array in pairs))
    starts, ends = chunks.store.sentence_offsets[:-1], chunks.store.sentence_offsets[1:]
    assert np.array_equal(pairs.end, ends[np.searchsorted(starts, pairs.begin)])
    assert set(pairs.labels.tolist()) == {0, 1}


def test_partners_are_as_long_fit_and_are_of_two_documents():
    random = np.random.default_rng(0)
    lengths, documents = random.integers(1, 61, (6400, 2)), random.integers(0, 9, 6400)
    lengths[:, 0] = np.minimum(lengths[:, 0], 61 - lengths[:, 1]).clip(1)
    tokens, middle = random.integers(5, 30, lengths.sum()), np.cumsum(lengths)[::2]
    draws = random.integers(0, 2**62, 6400).astype(np.uint64)
    first, second = partners(lengths, documents, draws, 61, tokens, middle)
    members = np.concatenate([first, second])
    assert len(members) == len(set(members.tolist())) > 0.99 * 6400
    assert (documents[first] != documents[second]).all()
    assert abs(lengths[first, 1] - lengths[second, 1]).max() <= 1
    assert max((lengths[first, 0] + lengths[second, 1]).max(), (lengths[second, 0] + lengths[first, 1]).max()) <= 61


def test_a_document_that_is_most_of_the_corpus_has_fewer_labels_not_other_ones():
    lengths, draws = np.stack([np.ones(13, dtype=int), np.arange(1, 14)], axis=1), np.arange(13).astype(np.uint64)
    documents = np.array([1] * 10 + [2, 3, 4])
    text = np.arange(lengths.sum()), np.cumsum(lengths)[::2]
    first, second = partners(lengths, documents, draws, 60, *text)
    assert len(first) in (2, 3) and (documents[first] != documents[second]).all()
    assert [len(members) for members in partners(lengths, np.ones(13), draws, 60, *text)] == [0, 0]
    big = [[[1] * 9, [2] * 9] * 200] + [[[i] * 9, [i] * 9] for i in range(3, 40)]
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": big}), 32)
    labels = np.concatenate([next_sentence_pairs(chunks._chunks(epoch)).labels for epoch in range(30)])
    labels = labels[labels >= 0]
    assert len(labels) < 30 * 0.5 * len(chunks) and abs(labels.mean() - 0.5) < 5 * np.sqrt(0.25 / len(labels))


def told_by_lengths(lengths, labels, documents):
    """Accuracy on half of the documents of what the other half teaches about both lengths, their ratio and sum."""
    total = lengths.sum(axis=1)
    features = np.column_stack([lengths, lengths[:, 0] / total, total])
    half = documents % 2 == 0
    models = make_pipeline(StandardScaler(), LogisticRegression()), HistGradientBoostingClassifier(max_iter=30)
    return max(model.fit(features[half], labels[half]).score(features[~half], labels[~half]) for model in models)


@pytest.mark.slow
@pytest.mark.parametrize("make_pairs", [next_sentence_pairs, sentence_order_pairs])
@pytest.mark.parametrize(
    ("max_length", "longest", "num_sentences"),
    [(64, 60, 60_000), (64, 6, 60_000), (128, 60, 60_000), (512, 200, 200_000), (512, 200, 20_000)],
)
def test_lengths_do_not_predict_labels(make_pairs, max_length, longest, num_sentences):
    """Documents that begin with a short heading; also where a text is small and few segments are of one length."""
    random, text = np.random.default_rng(0), np.random.default_rng(1)
    documents = []
    for _ in range(2 * num_sentences // longest):
        lengths = np.ceil(random.gamma(2, 8, random.integers(2, longest)))
        lengths[0] = 1 + lengths[0] // 4
        documents.append([text.integers(5, 60, int(n)) for n in lengths])
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}), max_length)
    starts = chunks.corpus.sentence_offsets[chunks.corpus.document_offsets]
    lengths, labels, numbers = [], [], []
    for epoch in range(40_000 * max_length // 8 // num_sentences):
        examples = chunks._chunks(epoch)
        pairs = make_pairs(examples)
        is_pair = pairs.labels >= 0
        lengths.append((pairs.end - pairs.begin)[is_pair])
        labels.append(pairs.labels[is_pair])
        numbers.append(np.searchsorted(starts, examples.begin[is_pair], "right"))
    lengths, labels, numbers = map(np.concatenate, (lengths, labels, numbers))
    assert len(labels) > 50_000 and lengths.sum(axis=1).max() <= max_length - 3
    assert abs(labels.mean() - 0.5) < 5 * np.sqrt(0.25 / len(labels))
    assert told_by_lengths(lengths, labels, numbers) < 0.51


def test_lengths_of_headings_do_not_predict_the_order():
    """Documents of a heading and three sentences; for each two lengths the label that others of them mostly have."""
    sentences = np.ceil(np.random.default_rng(0).gamma(2, 10, (8_000, 3))).astype(int)
    documents = [[[7] * n for n in (3, *others)] for others in sentences.tolist()]
    counts, found = np.zeros((2, 64, 64)), []
    for documents_of_half, is_test in ((documents[::2], False), (documents[1::2], True)):
        chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents_of_half}), 64)
        for epoch in range(3):
            pairs = sentence_order_pairs(chunks._chunks(epoch))
            lengths, labels = (pairs.end - pairs.begin)[pairs.labels >= 0], pairs.labels[pairs.labels >= 0]
            if is_test:
                found.append((counts[1] > counts[0])[tuple(lengths.T)] == labels)
            else:
                np.add.at(counts, (labels, *lengths.T), 1)
    found = np.concatenate(found)
    assert len(found) > 5_000 and found.mean() < 0.5 + 5 * np.sqrt(0.25 / len(found))


def many_draws(chunks, index, number):
    """One chunk with many keys."""
    examples = chunks.__getitems__([index] * number)[0]
    return replace(examples, keys=example_keys(1, 0, np.arange(number)))


def test_textbook_sentences_in_both_orders():
    """ "I love you." and "Because you are wonderful.": 0 in order, 1 swapped."""
    love, because = [10, 11, 12], [13, 14, 15, 16]
    chunks = rows_as_chunks([[np.array(love), np.array(because)]] * 20, example_keys(0, 0, np.arange(20)), 16)
    seen = {label: (a.tolist(), b.tolist()) for a, b, label in segments(chunks, sentence_order_pairs(chunks))}
    assert seen == {0: (love, because), 1: (because, love)}


def test_textbook_next_sentences():
    """ "the man went to the store", then "he bought milk" (0) or, of another document, "penguins fly" (1)."""
    store, milk, birds, fly = [10, 11, 12, 13, 10, 14], [15, 16, 17], [20, 21], [22, 23]
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": [[store, milk], [birds, fly]]}), 16)
    seen = set()
    for epoch in range(20):
        whole = chunks._chunks(epoch)
        pairs = segments(whole, next_sentence_pairs(whole))
        seen.add(tuple((*first.tolist(), *second.tolist(), label) for first, second, label in pairs))
    assert seen == {((*store, *milk, 0), (*birds, *fly, 0)), ((*store, *fly, 1), (*birds, *milk, 1))}


def test_swaps_and_splits_are_balanced():
    rows = [[np.array([i]) for i in range(5)]] * 8000
    chunks = rows_as_chunks(rows, example_keys(0, 0, np.arange(8000)), 12)
    pairs = list(segments(chunks, sentence_order_pairs(chunks)))
    assert abs(np.mean([label for _, _, label in pairs]) - 0.5) < 5 * np.sqrt(0.25 / 8000)
    in_order = [(len(b), len(a)) if label else (len(a), len(b)) for a, b, label in pairs]
    first, second = (np.bincount(lengths, minlength=6) for lengths in zip(*in_order, strict=True))
    assert first[[0, 5]].sum() == 0 and (first[1:5] > 400).all()
    assert abs(first - second).max() < 5 * np.sqrt(first.max() + second.max())


@pytest.mark.parametrize("rule", [{}, {"segments": "sentences"}])
def test_no_label_says_that_the_same_text_is_another(rule):
    """A third of the sentences are one of three: a negative never has the segment that follows, nor two equal ones."""
    random = np.random.default_rng(0)
    stock = [[7, 8], [7, 9], [6]]
    documents = [
        [
            stock[random.integers(3)] if random.random() < 0.35 else random.integers(10, 60, 2).tolist()
            for _ in range(4)
        ]
        for _ in range(600)
    ]
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}), 9, **rule)
    num_negatives, num_equal, labels = 0, 0, []
    for epoch in range(4):
        chunks.set_epoch(epoch)
        whole = all_chunks(chunks)
        tokens = whole.corpus.tokens
        follows = [tokens[begin:end].tolist() for begin, end in zip(whole.middle, whole.end, strict=True)]
        found = list(segments(whole, next_sentence_pairs(whole)))
        negatives = [(b.tolist(), real) for (_, b, label), real in zip(found, follows, strict=True) if label == 1]
        assert all(second != real for second, real in negatives)
        num_negatives += len(negatives)
        labels += [label for _, _, label in found if label >= 0]
        orders = [(a.tolist() == b.tolist(), label) for a, b, label in segments(whole, sentence_order_pairs(whole))]
        assert all(label == -100 for is_equal, label in orders if is_equal)
        num_equal += sum(is_equal for is_equal, _ in orders)
    assert num_negatives > 500 and num_equal > 10
    assert abs(np.mean(labels) - 0.5) < 5 * np.sqrt(0.25 / len(labels))


def test_rows_of_two_equal_sentences_have_no_order():
    rows = [[np.array([5, 6]), np.array([5, 6])], [np.array([5, 6]), np.array([5, 7])]]
    pairs = sentence_order_pairs(rows_as_chunks(rows, example_keys(0, 0, np.arange(2)), 16))
    assert pairs.labels[0] == -100 and pairs.labels[1] >= 0


@pytest.mark.parametrize("draw", [sentence_order_pairs, next_sentence_pairs])
def test_a_single_sentence_has_no_pair_label(draw):
    documents = datasets.Dataset.from_dict({"input_ids": [[[7, 8]], [[10, 11], [12, 13]]]})
    chunks = many_draws(DocumentChunks(documents, 32, redraw=False), 0, 50)
    found = {(tuple(a.tolist()), tuple(b.tolist()), label) for a, b, label in segments(chunks, draw(chunks))}
    assert found == {((7, 8), (), -100)}


def test_next_sentences_need_two_documents():
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": [[[1], [2]]]}), 32, redraw=False)
    with pytest.raises(ValueError, match="holds one document"):
        next_sentence_pairs(chunks[0])


def test_sentence_order_does_not_go_with_put_back_chunks():
    with pytest.raises(ValueError, match="put_back=True"):
        sentence_order_pairs(DocumentChunks(corpus(), 32, redraw=False, original_code=True, put_back=True)[0])
