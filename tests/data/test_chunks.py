import pickle

import datasets
import numpy as np
import pytest

from hf_encoders.data.chunks import ChunkCutter, ChunkRule, DocumentChunks, is_negative, rows_as_chunks, split_places
from hf_encoders.data.flat_corpus import FlatCorpus
from hf_encoders.data.randomness import example_keys


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


def all_chunks(data_set):
    return data_set.examples(np.arange(len(data_set)))


def one_document(lengths):
    return FlatCorpus.from_lengths(np.arange(sum(lengths)), np.array(lengths), np.array([len(lengths)]))


@pytest.mark.parametrize(
    ("lengths", "target", "chunks"),
    [
        ([3, 4, 5, 2, 1], 6, [(0, 2), (2, 5)]),  # the last sentence joins
        ([1] * 7, 3, [(0, 3), (3, 5), (5, 7)]),  # the last but one chunk gives a sentence
        ([1] * 5, 2, [(0, 2), (2, 5)]),
        ([9, 9, 9, 9], 3, [(0, 2), (2, 4)]),  # two sentences, however long
        ([5], 3, [(0, 1)]),
        ([2, 2, 2], 100, [(0, 3)]),
    ],
)
def test_documents_are_cut_greedily_and_no_sentence_is_left_alone(lengths, target, chunks):
    cutter = ChunkCutter(one_document(lengths), target, 0, ChunkRule(short_sequence_probability=0.0))
    found = cutter.chunks(cutter.first_sentences(0), 0)
    assert list(zip(found.first.tolist(), found.end.tolist(), strict=True)) == chunks


def test_lone_sentences_stay_alone_in_the_original_way():
    rule = ChunkRule(short_sequence_probability=0.0, lone_sentences=True)
    cutter = ChunkCutter(one_document([9, 1, 1, 9, 2]), 3, 0, rule)
    found = cutter.chunks(cutter.first_sentences(0), 0)
    assert list(zip(found.first.tolist(), found.end.tolist(), strict=True)) == [(0, 1), (1, 4), (4, 5)]


def test_chunks_cover_each_document_once_and_in_order():
    chunks = DocumentChunks(corpus(), max_length=32, short_sequence_probability=0.3)
    for epoch in (0, 1):
        chunks.set_epoch(epoch)
        found = chunks.cutter.chunks(chunks._chunks(epoch), epoch)
        for d in range(40):
            mine = np.flatnonzero(found.documents == d)
            bounds = chunks.store.document_offsets[d : d + 2]
            assert found.first[mine[0]] == bounds[0] and found.end[mine[-1]] == bounds[1]
            assert np.array_equal(found.first[mine[1:]], found.end[mine[:-1]])
        assert ((found.end - found.first) >= 2).all()  # every document has two sentences


def test_what_negatives_replace_begins_the_next_chunk():
    rule = ChunkRule(put_back=True, lone_sentences=True)
    cutter = ChunkCutter(FlatCorpus.of(DocumentChunks(corpus(), 32).store), 29, 0, rule)
    found = cutter.chunks(cutter.first_sentences(3), 3)
    sizes = found.end - found.first
    replaced = is_negative(found.keys) & (sizes > 1)
    expected = np.where(replaced, found.first + split_places(found.keys, sizes), found.end)
    is_last = np.append(np.diff(found.documents) > 0, True)
    assert np.array_equal(found.first[1:][~is_last[:-1]], expected[:-1][~is_last[:-1]])
    assert np.array_equal(np.flatnonzero(is_last), np.flatnonzero(np.isin(expected, cutter.corpus.document_offsets)))
    assert replaced.sum() > 100


def test_sentence_pairs_are_two_sentences():
    documents = corpus(200, shortest=1, longest=6)
    chunks = DocumentChunks(documents, max_length=128, segments="sentences")
    left_out = []
    for epoch in range(20):
        chunks.set_epoch(epoch)
        found = chunks.cutter.chunks(chunks._chunks(epoch), epoch)
        assert (found.end - found.first == 2).all()
        seen = np.zeros(chunks.store.num_sentences, dtype=int)
        np.add.at(seen, np.concatenate([found.first, found.first + 1]), 1)
        assert seen.max() == 1
        sizes = np.diff(chunks.store.document_offsets)
        assert seen.sum() == (sizes // 2 * 2).sum()
        left_out.append(seen == 0)
    # Of an odd number the first or the last stays out, in turns.
    odd = np.flatnonzero((sizes % 2 == 1) & (sizes > 1))
    firsts = chunks.store.document_offsets[odd]
    assert abs(np.array(left_out)[:, firsts].mean() - 0.5) < 5 * np.sqrt(0.25 / (20 * len(odd)))


def test_short_targets_are_drawn_for_one_document_in_ten():
    chunks = DocumentChunks(corpus(4000, longest=3), max_length=128)
    targets = np.concatenate([chunks.cutter._targets(np.arange(4000), draw) for draw in range(5)])
    assert abs((targets < 125).mean() - 0.1 * 123 / 124) < 5 * np.sqrt(0.09 / 20000)
    assert targets.min() == 2 and targets.max() == 125


def test_epochs_are_drawn_anew_and_evaluation_is_not():
    documents = corpus()
    chunks, fixed = DocumentChunks(documents, 32), DocumentChunks(documents, 32, redraw=False)
    epochs, fixed_epochs = [], []
    for epoch in (0, 1):
        for data_set, found in ((chunks, epochs), (fixed, fixed_epochs)):
            data_set.set_epoch(epoch)
            found.append(all_chunks(data_set).keys.tolist())
    assert not set(epochs[0]) & set(epochs[1])
    assert fixed_epochs[0] == fixed_epochs[1] == epochs[0]


@pytest.mark.parametrize(
    ("options", "draws"),
    [
        ({"dupe_factor": 2}, [0, 1, 0, 1, 0]),
        ({"epochs_per_draw": 2}, [0, 0, 1, 1, 2]),
        ({"epochs_per_draw": 2, "dupe_factor": 2}, [0, 0, 1, 1, 0]),
    ],
)
def test_static_draws_come_again(options, draws):
    chunks, dynamic = DocumentChunks(corpus(), 32, **options), DocumentChunks(corpus(), 32)
    for epoch, draw in enumerate(draws):
        chunks.set_epoch(epoch)
        dynamic.set_epoch(draw)
        assert all_chunks(chunks).keys.tolist() == all_chunks(dynamic).keys.tolist()
    with pytest.raises(ValueError, match="must be at least 1"):
        DocumentChunks(corpus(), 32, **dict.fromkeys(options, 0))


def test_an_epoch_that_is_cut_into_more_chunks_leaves_out_others_each_time():
    documents = corpus(400)
    begins = []
    for seed in range(8):
        chunks = DocumentChunks(documents, 32, short_sequence_probability=0.5, seed=seed)
        chunks.set_epoch(1)
        available, used = chunks._chunks(1), all_chunks(chunks).first
        assert set(used) <= set(available)
        assert len(set(used)) == min(len(available), len(chunks))
        left_out = np.flatnonzero(~np.isin(available, used))
        begins += left_out[:1].tolist()
        # One run of them, which may go on at the beginning.
        assert (np.diff(left_out) > 1).sum() <= 1
    assert len(set(begins)) > 2


def test_an_epoch_that_nobody_announced_is_refused():
    chunks = DocumentChunks(corpus(), 32)
    with pytest.raises(ValueError, match="EpochCallback"):
        chunks[0]
    chunks.set_epoch(0)
    assert chunks[0].keys == DocumentChunks(corpus(), 32, redraw=False)[0].keys


def test_indices_are_those_of_a_sequence():
    chunks = DocumentChunks(corpus(), 32, redraw=False)
    assert chunks[-1].first == chunks[len(chunks) - 1].first
    assert len(list(chunks)) == len(chunks)
    with pytest.raises(IndexError, match=f"there are {len(chunks)} examples"):
        chunks[len(chunks)]


def test_an_example_is_the_same_alone_in_a_batch_and_in_another_process():
    chunks = DocumentChunks(corpus(), 32, seed=5)
    chunks.set_epoch(2)
    copied = pickle.loads(pickle.dumps(chunks))
    together = chunks.__getitems__([7, 3, 11])[0]
    for i, index in enumerate((7, 3, 11)):
        for other in (chunks[index], copied[index]):
            assert (other.first, other.end, other.keys) == (together.first[i], together.end[i], together.keys[i])
    assert len(pickle.dumps(chunks)) < 5000 + 40 * len(pickle.dumps(chunks.store))


def test_windows_of_a_longer_corpus_cut_what_the_whole_cuts():
    """What streaming reads: documents from the fifth on."""
    whole = DocumentChunks(corpus(), 32, seed=5).cutter
    sentence = whole.corpus.document_offsets[5]
    token = whole.corpus.sentence_offsets[sentence]
    window = FlatCorpus(
        whole.corpus.tokens[token:],
        whole.corpus.sentence_offsets[sentence:] - token,
        whole.corpus.document_offsets[5:] - sentence,
    )
    cutter = ChunkCutter(window, 29, 5, ChunkRule(), first_sentence=int(sentence), first_document=5)
    found, expected = cutter.first_sentences(3) + sentence, whole.first_sentences(3)
    assert np.array_equal(found, expected[expected >= sentence])
    keys = cutter.chunks(cutter.first_sentences(3), 3).keys
    assert np.array_equal(keys, whole.chunks(found, 3).keys)


def test_empty_documents_and_sentences_are_no_part_of_it():
    documents = [[[], [1, 2], [3]], [], [[]], [[4], [], [5]]]
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}), 32, redraw=False)
    found = [[sentence.tolist() for sentence in chunks[i].sentences(0)] for i in range(len(chunks))]
    assert found == [[[1, 2], [3]], [[4], [5]]]
    assert chunks.corpus.num_documents == 2


def test_rows_of_plain_documents_start_anywhere_and_are_runs():
    sentences = [np.array([i, i]) for i in range(10)]
    keys = example_keys(0, 0, np.arange(200))
    chunks = rows_as_chunks([sentences] * 200, keys, 7)
    starts = set()
    for i in range(200):
        numbers = [int(sentence[0]) for sentence in chunks.sentences(i)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and 2 <= len(numbers) <= 4
        starts.add(numbers[0])
    assert starts == set(range(9))
    assert len(rows_as_chunks([sentences[:1]], keys[:1], 7).sentences(0)) == 1


@pytest.mark.parametrize(
    ("documents", "max_length", "message"),
    [
        ([[[1, 2]], [[3]]], 32, "no document of two sentences"),
        ([], 32, "no document of two sentences"),
        ([[[1], [2]]], 4, "max_length=4"),
        ([[[1], [2]]], 20.5, "max_length=20.5"),
        ([[[5, 6], []], [[7], []]], 32, "no document of two sentences"),
    ],
)
def test_what_cannot_give_pairs_is_refused(documents, max_length, message):
    features = datasets.Features({"input_ids": datasets.List(datasets.List(datasets.Value("int32")))})
    with pytest.raises(ValueError, match=message):
        DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}, features=features), max_length)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"segments": "words"}, "segments='words'"),
        ({"short_sequence_probability": 2}, "=2 must"),
        ({"put_back": True}, "set lone_sentences=True"),
        ({"segments": "sentences", "negatives_fill_up": True}, "negatives_fill_up: without effect"),
    ],
)
def test_wrong_rules_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        DocumentChunks(corpus(), 32, **rule)
