import pickle

import datasets
import numpy as np
import pytest

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.ragged import ranges
from hf_encoders.corpus.randomness import example_keys
from hf_encoders.objectives.chunk_arrays import DocumentChunks, cut_corpus, rows_as_chunks
from hf_encoders.objectives.chunk_examples import ChunkRule
from hf_encoders.objectives.pair_arrays import next_sentence_pairs, sentence_order_pairs


def corpus(num_documents=40, seed=0, shortest=2, longest=30):
    """Documents whose tokens encode document and position: 1000 * document + position."""
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


def all_chunks(dataset):
    return dataset.examples(np.arange(len(dataset)))


def one_document(lengths):
    return FlatCorpus.from_lengths(np.arange(sum(lengths)), np.array(lengths), np.array([len(lengths)]))


def bounds_of(chunks):
    return list(zip(chunks.begin.tolist(), chunks.end.tolist(), strict=True))


@pytest.mark.parametrize(
    ("lengths", "max_length", "from_front", "from_back"),
    [
        ([3, 4, 5, 2, 1], 10, [(0, 7), (7, 14), (14, 15)], [(0, 7), (7, 12), (12, 15)]),  # 2 + 1 + 5 do not fit
        ([1] * 7, 6, [(0, 3), (3, 6), (6, 7)], [(0, 1), (1, 4), (4, 7)]),
        ([4, 1, 4], 7, [(0, 4), (4, 5), (5, 9)], [(0, 4), (4, 5), (5, 9)]),
        ([2, 2, 2], 100, [(0, 6)], [(0, 6)]),
        ([5], 12, [(0, 5)], [(0, 5)]),
    ],
)
def test_documents_are_cut_greedily_from_the_front_or_from_the_back(lengths, max_length, from_front, from_back):
    rule = ChunkRule(short_sequence_probability=0.0)
    found = [tuple(bounds_of(cut_corpus(one_document(lengths), max_length, rule, seed, 0))) for seed in range(30)]
    assert set(found) == {tuple(from_front), tuple(from_back)}


def test_only_a_sentence_longer_than_a_chunk_is_split_and_elsewhere_every_epoch():
    corpus = one_document([3, 12, 2])
    places = set()
    for seed in range(60):
        chunks = cut_corpus(corpus, 8, ChunkRule(short_sequence_probability=0.0), seed, 0)
        begin = chunks.begin.tolist()
        assert begin[0] == 0 and chunks.end[-1] == 17 and (chunks.end - chunks.begin).max() <= 5
        inside = [place for place in begin if 3 < place < 15]
        assert 2 <= len(inside) <= 3
        places.update(inside)
        # Part of a sentence would give the order away.
        assert not chunks.has_order.any()
    assert len(places) > 6


@pytest.mark.parametrize("rule", [{}, {"short_sequence_probability": 0.5}, {"segments": "sentences"}])
@pytest.mark.parametrize("max_length", [5, 16, 32, 300])
def test_every_token_is_in_one_example_of_an_epoch_whatever_the_objective(rule, max_length):
    chunks = DocumentChunks(corpus(), max_length, **rule)
    for epoch in range(3):
        chunks.set_epoch(epoch)
        whole = chunks._chunks(epoch)
        assert (whole.end - whole.begin <= max_length - 3).all()
        for make_pairs in (next_sentence_pairs, sentence_order_pairs):
            pairs = make_pairs(whole)
            tokens = ranges(pairs.begin.ravel(), pairs.end.ravel())
            assert np.array_equal(np.sort(tokens), np.arange(len(chunks.corpus.tokens)))


def test_chunks_begin_and_end_with_sentences_and_stay_in_their_document():
    chunks = DocumentChunks(corpus(), max_length=32)
    starts, documents = chunks.corpus.sentence_offsets, chunks.corpus.document_offsets
    for epoch in range(3):
        found = chunks._chunks(epoch)
        assert np.isin(found.begin, starts).all() and np.isin(found.middle, starts).all()
        first, last = (np.searchsorted(starts[documents], places, "right") for places in (found.begin, found.end - 1))
        assert np.array_equal(first, last)
        # Most chunks are as full as whole sentences allow.
        assert (found.end - found.begin).mean() > 0.6 * 29


def test_sentence_pairs_are_two_sentences():
    chunks = DocumentChunks(corpus(200, shortest=1, longest=6), max_length=128, segments="sentences")
    sizes = []
    for epoch in range(4):
        chunks.set_epoch(epoch)
        sizes += [len(all_chunks(chunks).sentences(i)) for i in range(len(chunks))]
    assert set(sizes) == {1, 2} and 0.6 < np.mean(np.array(sizes) == 2) < 0.8


def test_one_chunk_in_ten_has_a_short_target():
    """Sentences of one token, so that a chunk has as many as its target."""
    documents = datasets.Dataset.from_dict({"input_ids": [[[i] for i in range(5000)]] * 20})
    chunks = DocumentChunks(documents, 43)
    lengths = np.concatenate([found.end - found.begin for found in map(chunks._chunks, range(5))])
    short = np.bincount(lengths[lengths < 40], minlength=40)[2:]
    # Those of a full target are what the ends of runs leave, one per run of 16.
    assert lengths.max() == 40 and lengths.min() >= 1
    assert (lengths < 40).mean() == pytest.approx(0.1 * 38 / 39 + 1 / 17, abs=0.02)
    assert short.min() > 0.4 * short.mean()


def test_long_documents_are_cut_in_rounds_as_few_as_a_run_has_chunks(monkeypatch):
    """A corpus that is one document must not be cut one chunk after the other."""
    rounds = []
    searchsorted = np.searchsorted
    monkeypatch.setattr(np, "searchsorted", lambda *args: rounds.append(1) or searchsorted(*args))
    chunks = cut_corpus(one_document([7] * 30000), 64, ChunkRule(), 0, 0)
    assert len(chunks) > 3000 and len(rounds) < 300


def test_boundaries_are_other_ones_in_other_epochs():
    """Of sentences of one length, which fall into step wherever they begin: as often the same as by chance."""
    documents = datasets.Dataset.from_dict({"input_ids": [[[i] * 3 for i in range(2000)]] * 10})
    chunks = DocumentChunks(documents, 63)
    first, second = chunks._chunks(0).begin, chunks._chunks(1).begin
    assert np.isin(first, second).mean() < 2.5 * len(second) / chunks.store.num_sentences


def test_epochs_are_sampled_again_and_evaluation_is_not():
    documents = corpus()
    chunks, fixed = DocumentChunks(documents, 32), DocumentChunks(documents, 32, redraw=False)
    epochs, fixed_epochs = [], []
    for epoch in (0, 1):
        for dataset, found in ((chunks, epochs), (fixed, fixed_epochs)):
            dataset.set_epoch(epoch)
            found.append(all_chunks(dataset).keys.tolist())
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
def test_static_samples_are_repeated(options, draws):
    chunks, dynamic = DocumentChunks(corpus(), 32, **options), DocumentChunks(corpus(), 32)
    for epoch, draw in enumerate(draws):
        chunks.set_epoch(epoch)
        dynamic.set_epoch(draw)
        assert all_chunks(chunks).keys.tolist() == all_chunks(dynamic).keys.tolist()
    with pytest.raises(ValueError, match="must be at least 1"):
        DocumentChunks(corpus(), 32, **dict.fromkeys(options, 0))


def test_an_epoch_that_is_cut_into_more_chunks_leaves_out_others_each_time():
    documents = corpus(100)
    begins = []
    for seed in range(24):
        chunks = DocumentChunks(documents, 32, short_sequence_probability=0.5, seed=seed)
        chunks.set_epoch(1)
        available, used = chunks._chunks(1).begin, all_chunks(chunks).begin
        assert set(used) <= set(available)
        assert len(set(used)) == min(len(available), len(chunks))
        left_out = np.flatnonzero(~np.isin(available, used))
        begins += left_out[:1].tolist()
        # One run of them, which may go on at the beginning.
        assert (np.diff(left_out) > 1).sum() <= 1
    assert len(set(begins)) > 2


def test_an_epoch_that_was_not_set_is_refused():
    chunks = DocumentChunks(corpus(), 32)
    with pytest.raises(ValueError, match="EpochCallback"):
        chunks[0]
    chunks.set_epoch(0)
    assert chunks[0].keys == DocumentChunks(corpus(), 32, redraw=False)[0].keys


def test_indices_are_those_of_a_sequence():
    chunks = DocumentChunks(corpus(), 32, redraw=False)
    assert chunks[-1].begin == chunks[len(chunks) - 1].begin
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
            assert all(getattr(other, name) == getattr(together, name)[i] for name in other.ARRAYS)
    assert len(pickle.dumps(chunks)) < 5000 + 40 * len(pickle.dumps(chunks.store))


def test_windows_of_a_longer_corpus_cut_what_the_whole_cuts():
    """What streaming reads: documents from the fifth on; exchanged segments come from the window, though."""
    whole = DocumentChunks(corpus(), 32, seed=5)
    sentence = whole.corpus.document_offsets[5]
    token = whole.corpus.sentence_offsets[sentence]
    window = FlatCorpus(
        whole.corpus.tokens[token:],
        whole.corpus.sentence_offsets[sentence:] - token,
        whole.corpus.document_offsets[5:] - sentence,
    )
    found = cut_corpus(window, 32, ChunkRule(), 5, 3, first_position=int(token))
    expected = whole._chunks(3)
    expected = expected.take(expected.begin >= token)
    for name in ("begin", "middle", "end"):
        assert np.array_equal(getattr(found, name) + token, getattr(expected, name))
    assert np.array_equal(found.keys, expected.keys)


def test_empty_documents_and_sentences_are_left_out():
    documents = [[[], [1, 2], [3]], [], [[]], [[4], [], [5]]]
    chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}), 32, redraw=False)
    found = [[sentence.tolist() for sentence in chunks[i].sentences(0)] for i in range(len(chunks))]
    assert found == [[[1, 2], [3]], [[4], [5]]]
    assert chunks.corpus.num_documents == 2


def test_rows_of_plain_documents_start_anywhere_and_are_runs():
    sentences = [np.array([i, i]) for i in range(10)]
    keys = example_keys(0, 0, np.arange(200))
    chunks = rows_as_chunks([sentences] * 200, keys, 10)
    starts = set()
    for i in range(200):
        numbers = [int(sentence[0]) for sentence in chunks.sentences(i)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and 2 <= len(numbers) <= 4
        starts.add(numbers[0])
    assert starts == set(range(9))
    assert len(rows_as_chunks([sentences[:1]], keys[:1], 10).sentences(0)) == 1


@pytest.mark.parametrize(
    ("documents", "max_length", "message"),
    [
        ([[[1, 2]], [[3]]], 32, "no document of two sentences"),
        ([], 32, "no document of two sentences"),
        ([[[1], [2]]], 4, "max_length=4"),
        ([[[1], [2]]], 20.5, "max_length=20.5"),
        ([[[5, 6], []], [[7], []]], 32, "no document of two sentences"),
        ([[[1] * 20, [2] * 20]], 32, "max_length=32 leaves no room .* 20 tokens long"),
    ],
)
def test_what_cannot_give_pairs_is_refused(documents, max_length, message):
    features = datasets.Features({"input_ids": datasets.List(datasets.List(datasets.Value("int32")))})
    with pytest.raises(ValueError, match=message):
        DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}, features=features), max_length)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"short_seq_prob": 0.1}, "DocumentChunks takes no 'short_seq_prob': it is short_sequence_probability"),
        ({"segment": "runs"}, "takes no 'segment': did you mean 'segments'"),
        ({"lone_sentences": True}, "takes no 'lone_sentences': its options are documents, max_length"),
        ({"segments": "words"}, "segments='words'"),
        ({"short_sequence_probability": 2}, "=2 must"),
        ({"put_back": True}, "needs original_code=True"),
        ({"segments": "sentences", "original_code": True}, "original_code: no effect"),
    ],
)
def test_wrong_rules_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        DocumentChunks(corpus(), 32, **rule)
