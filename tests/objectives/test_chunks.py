"""Chunks of whole sentences, and of BERT's and ALBERT's own code; test_presets.py has the latter's statistics."""

import pickle
import uuid

import datasets
import numpy as np
import pytest
from torch.utils.data import DataLoader

from hf_encoders import writing
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.objectives import presets, sentence_pairs
from hf_encoders.objectives.randomness import Key, RandomStream, generator
from hf_encoders.objectives.sentence_pairs import (
    ChunkRule,
    DocumentChunks,
    original_chunks,
    partners,
    whole_sentence_chunks,
)


NO_SHORT = {"short_sequence_probability": 0.0}
ORIGINAL = {**NO_SHORT, "original_code": True}


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


def one_document(lengths):
    return FlatCorpus.from_lengths(np.arange(sum(lengths)), np.array(lengths), np.array([len(lengths)]))


def cut(text, max_length, seed=0, **rule):
    rule, random = ChunkRule(**rule), generator(Key(seed, 0, 0), RandomStream.CHUNKS)
    return (original_chunks if rule.original_code else whole_sentence_chunks)(text, max_length - 3, rule, random)


def bounds_of(chunks):
    return list(zip(chunks.begin.tolist(), chunks.end.tolist(), strict=True))


def tokens_of(example):
    return np.concatenate(example.segments).tolist()


@pytest.mark.parametrize("original_code", [False, True])
def test_a_large_text_has_a_bar_and_a_small_one_none(original_code, monkeypatch, capsys):
    datasets.enable_progress_bars()
    documents = corpus()
    capsys.readouterr()
    for seconds in (3.0, 0.0):
        monkeypatch.setattr(writing, "SECONDS_WITHOUT_BAR", seconds)
        DocumentChunks(documents, 32, original_code=original_code)
        bars = capsys.readouterr().err.count("Cutting sentence pairs:   0%")
        assert bars == (0 if seconds else 1 if original_code else 3)  # documents, negatives, orders


class TestWholeSentences:
    @pytest.mark.parametrize(
        ("lengths", "max_length", "from_front", "from_back"),
        [
            ([3, 4, 5, 2, 1], 10, [(0, 7), (7, 14), (14, 15)], [(0, 7), (7, 12), (12, 15)]),  # 2 + 1 + 5 do not fit
            ([1] * 7, 6, [(0, 3), (3, 6), (6, 7)], [(0, 1), (1, 4), (4, 7)]),
            ([2, 2, 2], 100, [(0, 6)], [(0, 6)]),
        ],
    )
    def test_documents_are_cut_greedily_from_the_front_or_from_the_back(
        self, lengths, max_length, from_front, from_back
    ):
        seen = {tuple(bounds_of(cut(one_document(lengths), max_length, seed, **NO_SHORT))) for seed in range(30)}
        assert seen == {tuple(from_front), tuple(from_back)}

    def test_only_a_sentence_longer_than_a_chunk_is_split_and_elsewhere_every_epoch(self):
        places = set()
        for seed in range(60):
            chunks = cut(one_document([3, 12, 2]), 8, seed, **NO_SHORT)
            begin = chunks.begin.tolist()
            assert begin[0] == 0 and chunks.end[-1] == 17 and (chunks.end - chunks.begin).max() <= 5
            inside = [place for place in begin if 3 < place < 15]
            assert 2 <= len(inside) <= 3
            places.update(inside)
            # Part of a sentence would give the order away.
            assert not chunks.has_order.any()
        assert len(places) > 6

    @pytest.mark.parametrize(
        ("max_length", "rule"),
        [(5, {}), (32, {"short_sequence_probability": 0.5}), (300, {"segments": "sentences"}), (300, {})],
    )
    def test_every_token_is_in_one_chunk_and_in_one_pair(self, rule, max_length):
        text = FlatCorpus.of(corpus())
        for seed in range(3):
            chunks = cut(text, max_length, seed, **rule)
            assert (chunks.end - chunks.begin).max() <= max_length - 3
            assert chunks.begin[0] == 0 and (chunks.begin[1:] == chunks.end[:-1]).all()
            assert chunks.end[-1] == len(text.tokens)
            # Second segments are exchanged, so those of negatives are those that they replace.
            is_negative = chunks.other_begin < chunks.other_end
            assert sorted(chunks.other_begin[is_negative]) == sorted(chunks.middle[is_negative])
            assert sorted(chunks.other_end[is_negative]) == sorted(chunks.end[is_negative])

    def test_chunks_begin_and_end_with_sentences_and_stay_in_their_document(self):
        text = FlatCorpus.of(corpus())
        chunks = cut(text, 32)
        assert (
            np.isin(chunks.begin, text.sentence_offsets).all() and np.isin(chunks.middle, text.sentence_offsets).all()
        )
        first, last = (np.searchsorted(text.document_starts, at, "right") for at in (chunks.begin, chunks.end - 1))
        assert np.array_equal(first, last)
        # Most chunks are as full as whole sentences allow.
        assert (chunks.end - chunks.begin).mean() > 0.6 * 29

    def test_sentence_pairs_are_two_sentences(self):
        text = FlatCorpus.of(corpus(200, shortest=1, longest=6))
        chunks = cut(text, 128, segments="sentences")
        sizes = np.searchsorted(text.sentence_offsets, chunks.end) - np.searchsorted(
            text.sentence_offsets, chunks.begin
        )
        assert set(sizes.tolist()) == {1, 2} and 0.6 < (sizes == 2).mean() < 0.8
        assert np.isin(chunks.middle, text.sentence_offsets).all()

    def test_one_chunk_in_ten_has_a_short_target(self):
        """Sentences of one token, so that a chunk has as many as its target."""
        text = FlatCorpus.from_lengths(np.arange(100_000), np.ones(100_000, int), np.full(20, 5000))
        lengths = np.concatenate([chunks.end - chunks.begin for chunks in (cut(text, 43, seed) for seed in range(5))])
        short = np.bincount(lengths[lengths < 40], minlength=40)[2:]
        # Those of a full target are what the ends of runs leave, one per run of 16.
        assert lengths.max() == 40 and lengths.min() >= 1
        assert (lengths < 40).mean() == pytest.approx(0.1 * 38 / 39 + 1 / 17, abs=0.02)
        assert short.min() > 0.4 * short.mean()

    def test_boundaries_are_other_ones_in_other_epochs(self):
        """Of sentences of one length, which fall into step wherever they begin: as often the same as by chance."""
        text = FlatCorpus.from_lengths(np.arange(60_000), np.full(20_000, 3), np.full(10, 2000))
        first, second = (cut(text, 63, seed).begin for seed in (0, 1))
        assert np.isin(first, second).mean() < 2.5 * len(second) / 20_000

    def test_partners_are_as_long_fit_and_are_of_two_documents(self):
        random = np.random.default_rng(0)
        lengths = random.integers(1, 61, (6400, 2))
        lengths[:, 0] = np.minimum(lengths[:, 0], 61 - lengths[:, 1]).clip(1)
        bounds = np.append(0, lengths.cumsum())
        begin, middle, end = bounds[:-1:2], bounds[1::2], bounds[2::2]
        tokens = random.integers(5, 30, bounds[-1]).astype(np.int32)
        text = FlatCorpus(tokens, bounds, np.arange(0, 12801, 1280))
        left, right = np.array(partners(text, begin, middle, end, 61, random)).T
        assert len({*left, *right}) == 2 * len(left) > 0.99 * 6400
        documents = np.arange(6400) // 640
        assert (documents[left] != documents[right]).all()
        assert abs(lengths[left, 1] - lengths[right, 1]).max() <= 1
        assert max((lengths[left, 0] + lengths[right, 1]).max(), (lengths[right, 0] + lengths[left, 1]).max()) <= 61

    def test_a_document_that_is_most_of_the_corpus_has_fewer_labels_not_other_ones(self):
        big = [[[1] * 9, [2] * 9] * 200] + [[[i] * 9, [i] * 9] for i in range(3, 40)]
        text = FlatCorpus.of(datasets.Dataset.from_dict({"input_ids": big}))
        drawn = [cut(text, 32, seed) for seed in range(30)]
        has_next = np.concatenate([chunks.has_next for chunks in drawn])
        labels = np.concatenate([chunks.other_begin < chunks.other_end for chunks in drawn])[has_next]
        assert has_next.mean() < 0.5 and abs(labels.mean() - 0.5) < 5 * np.sqrt(0.25 / len(labels))


class TestOriginalCode:
    @pytest.mark.parametrize(
        ("lengths", "max_length", "chunks"),
        [
            ([9, 1, 1, 9, 2], 6, [(0, 9), (9, 20), (20, 22)]),  # single sentences stay alone
            ([2, 2, 2], 100, [(0, 6)]),
        ],
    )
    def test_sentences_are_taken_until_the_target_is_reached(self, lengths, max_length, chunks):
        assert bounds_of(cut(one_document(lengths), max_length, **ORIGINAL)) == chunks

    def test_what_negatives_replace_begins_the_next_chunk(self):
        text = FlatCorpus.of(corpus())
        chunks = cut(text, 32, **presets.BERT_CHUNKS)
        replaced = (chunks.other_begin < chunks.other_end) & (chunks.middle < chunks.end)
        expected = np.where(replaced, chunks.middle, chunks.end)
        is_last = np.isin(expected, np.append(text.document_starts, len(text.tokens)))
        assert np.array_equal(chunks.begin[1:][~is_last[:-1]], expected[:-1][~is_last[:-1]])
        assert is_last.sum() == 40 and replaced.sum() > 100

    def test_one_document_in_ten_has_a_short_target(self):
        """Sentences of one token, so that a document's chunks have as many as its target."""
        text = FlatCorpus.from_lengths(np.arange(500_000), np.ones(500_000, int), np.full(4000, 125))
        chunks = cut(text, 128, original_code=True)
        is_short = (chunks.begin % 125 == 0) & (chunks.end - chunks.begin < 125)
        assert abs(is_short.sum() / 4000 - 0.1 * 123 / 124) < 5 * np.sqrt(0.09 / 4000)

    @pytest.mark.slow
    @pytest.mark.parametrize(("documents", "own_share"), [(1, 1.0), (2, 2.0**-10)])
    def test_own_documents_are_hit_as_often_as_ten_tries_hit_them(self, documents, own_share):
        text, chosen = FlatCorpus.of(corpus(documents, longest=9)), []
        for seed in range(3000):
            chunks = cut(text, 12, seed, **ORIGINAL)
            is_random = chunks.other_begin < chunks.other_end
            own, other = (text.tokens[:][at[is_random]] // 1000 for at in (chunks.begin, chunks.other_begin))
            chosen.append(own == other)
        chosen = np.concatenate(chosen)
        assert len(chosen) > 5000
        assert abs(chosen.mean() - own_share) <= 5 * np.sqrt(own_share * (1 - own_share) / len(chosen))

    def test_random_segments_are_filled_up_to_the_target(self):
        text = FlatCorpus.of(corpus())
        chunks, offsets = cut(text, 64, **ORIGINAL), text.sentence_offsets
        ends = np.append(text.document_starts[1:], len(text.tokens))
        for i in np.flatnonzero(chunks.other_begin < chunks.other_end):
            begin, end, wanted = chunks.other_begin[i], chunks.other_end[i], 61 - (chunks.middle[i] - chunks.begin[i])
            last = offsets[np.searchsorted(offsets, end) - 1]  # where its last sentence begins
            assert begin in offsets and (end in ends or end - begin >= wanted or begin == last)
            assert last - begin < max(wanted, 1)


class TestDataset:
    def test_epochs_are_sampled_again_and_evaluation_is_not(self):
        chunks, fixed = DocumentChunks(corpus(), 32), DocumentChunks(corpus(), 32, redraw=False)
        epochs, fixed_epochs = [], []
        for epoch in (0, 1):
            for dataset, examples in ((chunks, epochs), (fixed, fixed_epochs)):
                dataset.set_epoch(epoch)
                examples.append([tokens_of(example) for example in dataset])
        assert epochs[0] != epochs[1] and fixed_epochs[0] == fixed_epochs[1] == epochs[0]

    @pytest.mark.parametrize(
        ("options", "draws"),
        [
            ({"dupe_factor": 2}, [0, 1, 0, 1, 0]),
            ({"epochs_per_draw": 2, "dupe_factor": 2}, [0, 0, 1, 1, 0]),
        ],
    )
    def test_static_samples_are_repeated(self, options, draws):
        chunks = DocumentChunks(corpus(), 32, **options)
        for epoch, draw in enumerate(draws):
            chunks.set_epoch(epoch)
            assert chunks[3].key == Key(0, draw, chunks[3].key.example)
        with pytest.raises(ValueError, match="at least 1; leave it out"):
            DocumentChunks(corpus(), 32, **dict.fromkeys(options, 0))

    def test_an_epoch_that_is_cut_into_more_chunks_leaves_out_others_each_time(self):
        documents, left_out_first = corpus(100), []
        for seed in range(24):
            chunks = DocumentChunks(documents, 32, short_sequence_probability=0.5, seed=seed)
            chunks.set_epoch(1)
            available, used = chunks.plan(1).begin, np.array([example.begin for example in chunks])
            assert set(used) <= set(available)
            assert len(set(used)) == min(len(available), len(chunks))
            left_out = np.flatnonzero(~np.isin(available, used))
            left_out_first += left_out[:1].tolist()
            # One run of them, which may go on at the beginning.
            assert (np.diff(left_out) > 1).sum() <= 1
        assert len(set(left_out_first)) > 2

    def test_an_epoch_that_was_not_set_is_refused(self):
        with pytest.raises(ValueError, match="EpochCallback"):
            DocumentChunks(corpus(), 32)[0]

    def test_a_sample_is_cut_once_whatever_the_workers(self, tmp_path, monkeypatch):
        def noted_cut(*arguments):
            (tmp_path / uuid.uuid4().hex).touch()
            return whole_sentence_chunks(*arguments)

        monkeypatch.setattr(sentence_pairs, "whole_sentence_chunks", noted_cut)
        chunks = DocumentChunks(corpus(), 32, seed=5)
        for epoch in (1, 2):
            chunks.set_epoch(epoch)
            loader = DataLoader(chunks, 16, num_workers=2, collate_fn=list, multiprocessing_context="fork")
            examples = [example for batch in loader for example in batch]
            for example, expected in zip(examples, pickle.loads(pickle.dumps(chunks)), strict=True):
                assert tokens_of(example) == tokens_of(expected) and example.key == expected.key
                assert (example.has_next, example.has_order) == (expected.has_next, expected.has_order)
        assert len(list(tmp_path.iterdir())) == 3
        files = sorted(file.stem for file in chunks.plans.glob("*.npy"))
        assert files == ["5-1", "5-2"]  # epoch 0 is over for all

    def test_empty_documents_and_sentences_are_left_out(self):
        documents = [[[], [1, 2], [3]], [], [[]], [[4], [], [5]]]
        chunks = DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}), 32, redraw=False)
        segments = [[segment.tolist() for segment in chunk.segments] for chunk in chunks]
        assert segments == [[[1, 2], [3]], [[4], [5]]] and chunks.corpus.num_documents == 2

    def test_a_chunk_is_one_text_for_masked_tokens_alone(self):
        chunks = DocumentChunks(corpus(), 32, redraw=False, original_code=True)
        for chunk in chunks:
            text = chunk.as_text()
            assert len(text.segments) == 1 and tokens_of(text) == tokens_of(chunk)[:30] and text.key == chunk.key
        with pytest.raises(ValueError, match="put_back=True"):
            DocumentChunks(corpus(), 32, redraw=False, **presets.BERT_CHUNKS)[0].as_text()

    @pytest.mark.parametrize(
        ("documents", "max_length", "message"),
        [
            ([[[1, 2]], [[3]]], 32, "no document of two sentences"),
            ([], 32, "no document of two sentences"),
            ([[[1], [2]]], 4, "max_length=4"),
            ([[[1], [2]]], 20.5, "max_length=20.5"),
            ([[[5, 6], []], [[7], []]], 32, "no document of two sentences"),
            ([[[1] * 20, [2] * 20]], 32, "max_length=32 .* 20 tokens long"),
        ],
    )
    def test_what_cannot_give_pairs_is_refused(self, documents, max_length, message):
        features = datasets.Features({"input_ids": datasets.List(datasets.List(datasets.Value("int32")))})
        with pytest.raises(ValueError, match=message):
            DocumentChunks(datasets.Dataset.from_dict({"input_ids": documents}, features=features), max_length)

    @pytest.mark.parametrize(
        ("rule", "message"),
        [
            ({"short_seq_prob": 0.1}, "'short_seq_prob': it is short_sequence_probability"),
            ({"segment": "runs"}, "'segment': did you mean 'segments'"),
            ({"lone_sentences": True}, "'lone_sentences': its options are documents, max_length"),
            ({"segments": "words"}, "segments='words'"),
            ({"short_sequence_probability": 2}, "=2 must"),
            ({"put_back": True}, "needs original_code=True"),
            ({"segments": "sentences", "original_code": True}, "original_code: no effect"),
        ],
    )
    def test_wrong_rules_are_refused(self, rule, message):
        with pytest.raises(ValueError, match=message):
            DocumentChunks(corpus(), 32, **rule)
