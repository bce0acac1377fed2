import datasets
import numpy as np
import pytest

from hf_encoders.data.examples import Example
from hf_encoders.data.randomness import example_keys
from hf_encoders.data.sentence_pairs import (
    DocumentChunks,
    Pair,
    cut_document,
    kept_lengths,
    next_sentence_pair,
    random_window,
    sentence_order_pair,
    truncate_pair,
)


def corpus(num_documents=40, seed=0, shortest=2, longest=30):
    """Documents whose tokens tell document and place: 1000 * document + running number."""
    random = np.random.default_rng(seed)
    documents = []
    for d in range(num_documents):
        place, sentences = 0, []
        for _ in range(random.integers(shortest, longest)):
            length = int(random.integers(1, 20))
            sentences.append(list(range(1000 * d + place, 1000 * d + place + length)))
            place += length
        documents.append(sentences)
    return datasets.Dataset.from_dict({"input_ids": documents})


def one_by_one(first, second, max_tokens):
    """`truncate_seq_pair` of the original code, lengths only."""
    while first + second > max_tokens:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_kept_lengths_are_those_of_removing_one_token_at_a_time():
    for first in range(0, 15):
        for second in range(0, 15):
            for most in range(2, 20):
                assert kept_lengths(first, second, most) == one_by_one(first, second, most)


def test_truncation_removes_from_both_ends_alike():
    kept = [
        truncate_pair(Pair(np.arange(60), np.arange(3), 0), 43, key).first for key in example_keys(0, 0, range(2000))
    ]
    assert all(np.array_equal(k, np.arange(k[0], k[0] + 40)) for k in kept)
    assert abs(np.mean([k[0] for k in kept]) - 10) < 5 * np.sqrt(5 / 2000)


def test_chunks_cover_each_document_once_and_in_order():
    documents = corpus()
    chunks = DocumentChunks(documents, max_length=32, short_sequence_probability=0.3)
    for epoch in (0, 1):
        plan = chunks._chunks(epoch)
        for d in range(len(documents)):
            mine = plan[plan[:, 2] == d]
            bounds = chunks.store.document_offsets[d : d + 2]
            assert mine[0, 0] == bounds[0] and mine[-1, 1] == bounds[1]
            assert np.array_equal(mine[1:, 0], mine[:-1, 1])
            assert ((mine[:, 1] - mine[:, 0]) >= 2).all()  # every document has two sentences


def test_a_last_single_sentence_joins_or_borrows():
    offsets = np.arange(0, 8)  # seven sentences of one token
    assert cut_document(offsets, 0, 7, 3) == [0, 3, 5]
    assert cut_document(offsets, 0, 5, 2) == [0, 2]
    assert cut_document(offsets, 0, 1, 3) == [0]


def test_short_targets_are_drawn_for_one_document_in_ten():
    chunks = DocumentChunks(corpus(4000, longest=3), max_length=128)
    targets = np.concatenate([chunks._targets(epoch) for epoch in range(5)])
    assert abs((targets < 125).mean() - 0.1 * 123 / 124) < 5 * np.sqrt(0.09 / 20000)
    assert targets.min() == 2


def test_next_sentences_follow_and_random_ones_come_from_another_document():
    chunks = DocumentChunks(corpus(), max_length=64)
    labels = []
    for epoch in range(30):
        chunks.set_epoch(epoch)
        for i in range(len(chunks)):
            pair = next_sentence_pair(chunks[i])
            labels.append(pair.label)
            assert len(pair.first) and len(pair.second)
            if pair.label == 0:
                assert pair.second[0] == pair.first[-1] + 1
            else:
                # About as long as what it replaces, so that length does not tell.
                replaced = sum(map(len, chunks[i].sentences)) - len(pair.first)
                assert len(pair.second) < replaced + 20
                assert pair.second[0] // 1000 != pair.first[0] // 1000
                assert np.array_equal(pair.second, np.arange(pair.second[0], pair.second[-1] + 1))
    assert abs(np.mean(labels) - 0.5) < 5 * np.sqrt(0.25 / len(labels))


def test_random_segments_come_from_every_other_document_alike():
    chunks = DocumentChunks(corpus(5), max_length=64, redraw=False)
    example = chunks[0]
    keys = example_keys(0, 0, range(8000))
    drawn = [next_sentence_pair(example._replace(key=int(key))) for key in keys]
    origins = np.bincount([pair.second[0] // 1000 for pair in drawn if pair.label == 1], minlength=5)
    assert origins[example.document] == 0
    expected = origins.sum() / 4
    assert abs(np.delete(origins, example.document) - expected).max() < 5 * np.sqrt(expected)


def test_textbook_sentences_in_both_orders():
    """ "I love you." and "Because you are wonderful.": 0 in order, 1 swapped."""
    love, because = np.array([10, 11, 12]), np.array([13, 14, 15, 16])
    seen = {}
    for key in example_keys(0, 0, range(20)):
        pair = sentence_order_pair(Example([love, because], int(key), 0, 13))
        seen[pair.label] = (pair.first.tolist(), pair.second.tolist())
    assert seen == {0: (love.tolist(), because.tolist()), 1: (because.tolist(), love.tolist())}


def test_swaps_and_splits_are_balanced():
    sentences = [np.array([i]) for i in range(5)]
    pairs = [sentence_order_pair(Example(sentences, int(key), 0, 9)) for key in example_keys(0, 0, range(8000))]
    assert abs(np.mean([pair.label for pair in pairs]) - 0.5) < 5 * np.sqrt(0.25 / 8000)
    lengths = np.bincount([len(pair.second if pair.label else pair.first) for pair in pairs], minlength=6)
    assert lengths[[0, 5]].sum() == 0
    assert abs(lengths[1:5] - 2000).max() < 5 * np.sqrt(8000 * 0.25 * 0.75)


def test_a_single_sentence_has_no_pair_label():
    example = Example([np.array([7, 8])], 1, 0, 9, DocumentChunks(corpus(), 32).store)
    for draw in (sentence_order_pair, next_sentence_pair):
        pair = draw(example)
        assert (pair.first.tolist(), len(pair.second), pair.label) == ([7, 8], 0, -100)


def test_epochs_are_drawn_anew_and_evaluation_is_not():
    documents = corpus()
    chunks, fixed = DocumentChunks(documents, 32), DocumentChunks(documents, 32, redraw=False)
    epochs, fixed_epochs = [], []
    for epoch in (0, 1):
        chunks.set_epoch(epoch)
        fixed.set_epoch(epoch)
        epochs.append([chunks[i].key for i in range(len(chunks))])
        fixed_epochs.append([fixed[i].key for i in range(len(fixed))])
    assert not set(epochs[0]) & set(epochs[1])
    assert fixed_epochs[0] == fixed_epochs[1] == epochs[0]


@pytest.mark.parametrize(
    ("documents", "max_length", "message"),
    [
        ([[[1, 2]], [[3]]], 32, "no document of two sentences"),
        ([], 32, "no document of two sentences"),
        ([[[1], [2]]], 4, "max_length=4"),
    ],
)
def test_what_cannot_give_pairs_is_refused(documents, max_length, message):
    features = datasets.Features({"input_ids": datasets.List(datasets.List(datasets.Value("int32")))})
    with pytest.raises(ValueError, match=message):
        DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}, features=features), max_length)


def test_next_sentences_need_two_documents():
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": [[[1], [2]]]}), 32, redraw=False)
    with pytest.raises(ValueError, match="holds one document"):
        next_sentence_pair(chunks[0])


def test_an_epoch_that_nobody_announced_is_refused():
    chunks = DocumentChunks(corpus(), 32)
    with pytest.raises(ValueError, match="EpochCallback"):
        chunks[0]
    chunks.set_epoch(0)
    assert chunks[0].key == DocumentChunks(corpus(), 32, redraw=False)[0].key


def test_windows_of_plain_documents_start_anywhere_and_are_runs():
    sentences = [np.array([i, i]) for i in range(10)]
    starts = set()
    for key in example_keys(0, 0, range(200)):
        example = random_window(sentences, int(key), 7)
        numbers = [int(sentence[0]) for sentence in example.sentences]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and 2 <= len(numbers) <= 4
        starts.add(numbers[0])
    assert starts == set(range(9))
    assert len(random_window(sentences[:1], 3, 7).sentences) == 1
