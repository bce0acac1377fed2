"""Streams give what stored corpora give, window by window, whoever reads them."""

import pickle
from collections import Counter
from itertools import islice

import datasets
import numpy as np
import pytest
from torch.utils.data import DataLoader

from hf_encoders import DataCollatorForMaskedLM, DataCollatorForNextSentencePrediction
from hf_encoders.objectives import streaming
from hf_encoders.objectives.blocks import SentenceBlocks
from hf_encoders.objectives.chunks import DocumentChunks
from hf_encoders.objectives.presets import BERT_CHUNKS
from hf_encoders.objectives.streaming import StreamedBlocks, StreamedChunks
from tests.corpus.corpora import as_text, make_dataset


LENGTH = 24


def documents(num_documents=30):
    """The first token of every sentence encodes the document."""
    random = np.random.default_rng(3)
    return [
        [[5 + d, *random.integers(40, 60, random.integers(0, 9)).tolist()] for _ in range(random.integers(2, 9))]
        for d in range(num_documents)
    ]


def rows(shards):
    for shard in shards:
        for sentences in shard:
            yield {"text": "\n".join(sentences)}


def stream(num_shards=1):
    """The documents as text in a streaming dataset."""
    texts = as_text(documents())
    bounds = [len(texts) * i // num_shards for i in range(num_shards + 1)]
    shards = [texts[begin:end] for begin, end in zip(bounds[:-1], bounds[1:], strict=True)]
    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": shards})


def first_of(features):
    return features[0]


def collated(dataset, collator, workers=0, **loading):
    """What a collator makes of every example in a batch of its own, by key; and how often it came."""
    loader = DataLoader(dataset, batch_size=1, collate_fn=first_of, num_workers=workers, **loading)
    found, times = {}, Counter()
    for example in loader:
        batch = collator([example])
        found[int(example.keys[0])] = {name: tensor.tolist() for name, tensor in batch.items()}
        times[int(example.keys[0])] += 1
    return found, times


@pytest.fixture
def pairs(tokenizer):
    return DataCollatorForNextSentencePrediction(tokenizer, LENGTH)


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_stream_of_one_window_gives_the_chunks_of_the_stored_corpus(tokenizer, pairs, epoch):
    """With their random segments and all that is masked."""
    stored = DocumentChunks(make_dataset(documents()), LENGTH, seed=5)
    expected = stored._chunks(epoch)
    for given in (stream(), documents(), as_text(documents())):
        streamed = StreamedChunks(given, tokenizer, LENGTH, seed=5, repeat=False)
        streamed.set_epoch(epoch)
        examples = sorted(streamed, key=lambda example: example.begin[0])
        for name in expected.ARRAYS:
            assert np.array_equal(np.concatenate([getattr(one, name) for one in examples]), getattr(expected, name))
        assert pairs(examples)["input_ids"].tolist() == pairs([expected])["input_ids"].tolist()


def test_a_stream_of_one_window_gives_the_blocks_of_the_stored_corpus(tokenizer):
    collator = DataCollatorForMaskedLM(tokenizer)
    stored = SentenceBlocks(make_dataset(documents()), LENGTH, seed=5)
    streamed = StreamedBlocks(stream(), tokenizer, LENGTH, seed=5, repeat=False)
    for dataset in (stored, streamed):
        dataset.set_epoch(2)
    assert collated(stored, collator) == collated(streamed, collator)


def test_examples_are_shuffled_within_windows_and_again_every_epoch(tokenizer):
    chunks = StreamedChunks(documents(), None, LENGTH, window_documents=10, repeat=False)
    orders = []
    for epoch in (0, 1):
        chunks.set_epoch(epoch)
        numbers = [int(example.sentences(0)[0][0]) - 5 for example in chunks]
        windows = [number // 10 for number in numbers]
        assert windows == sorted(windows) and set(windows) == {0, 1, 2}
        assert numbers != sorted(numbers)
        orders.append(numbers)
    assert orders[0] != orders[1]


def test_windows_hold_all_sentences_once_and_random_segments_of_their_own(tokenizer, pairs):
    chunks = StreamedChunks(documents(), None, LENGTH, window_documents=10, redraw=False)
    seen, from_elsewhere = [], 0
    for example in chunks:
        seen += [tuple(sentence.tolist()) for sentence in example.sentences(0)]
        batch = pairs([example])
        if batch["next_sentence_label"].item() == 1:
            ids, labels = batch["input_ids"][0], batch["labels"][0]
            original = ids.where(labels == -100, labels)
            second = original[batch["token_type_ids"][0] == 1]
            numbers = {int(token) - 5 for token in second if 5 <= token < 40}
            own = int(example.sentences(0)[0][0]) - 5
            assert own not in numbers and {number // 10 for number in numbers} <= {own // 10}
            from_elsewhere += 1
    assert Counter(seen) == Counter(tuple(sentence) for document in documents() for sentence in document)
    assert from_elsewhere > 10


@pytest.mark.parametrize(
    ("num_shards", "workers"),
    [(1, 2), (1, 3), (2, 2), (4, 2), (2, 4), (3, 2)],
)
def test_who_reads_a_window_changes_nothing(tokenizer, pairs, num_shards, workers):
    """Each of the rules for who takes what: every example once, and with the same draws."""
    chunks = StreamedChunks(stream(num_shards), tokenizer, LENGTH, window_documents=3, repeat=False)
    chunks.set_epoch(1)
    expected, times = collated(chunks, pairs)
    assert set(times.values()) == {1} and len(expected) > 40
    assert collated(chunks, pairs, workers=workers) == (expected, times)


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 6])
def test_workers_share_all_windows(tokenizer, num_shards, num_workers):
    """Workers of all processes together: each window is one's, under the number that it has for all."""
    chunks = StreamedChunks(stream(num_shards), tokenizer, LENGTH, window_documents=2, redraw=False)
    everything = list(chunks._windows(0, 0, 1))
    assert sum(len(documents) for _, documents in everything) == 30
    assert len({number for number, _ in everything}) == len(everything) >= 14
    parts = [window for i in range(num_workers) for window in chunks._windows(0, i, num_workers)]
    assert sorted(parts) == sorted(everything)


def test_a_worker_with_shards_of_its_own_reads_no_others(tokenizer):
    class Watched(StreamedChunks):
        def _windows(self, epoch, worker, num_workers):
            read = self.reader.read
            self.reader.read = lambda shard, epoch: shards.append(shard) or read(shard, epoch)
            yield from super()._windows(epoch, worker, num_workers)
            self.reader.read = read

    chunks = Watched(stream(4), tokenizer, LENGTH)
    for worker, num_workers, expected in ((1, 2, [1, 3]), (5, 8, [1]), (2, 3, [0, 1, 2, 3])):
        shards = []
        list(chunks._windows(0, worker, num_workers))
        assert shards == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_for_training_goes_on_with_the_next_epoch(tokenizer, workers):
    """Also in workers that live on from one iteration to the next."""
    once = StreamedChunks(stream(2), tokenizer, LENGTH, window_documents=4, repeat=False)
    epochs = []
    for epoch in (2, 3):
        once.set_epoch(epoch)
        epochs.append([int(example.keys[0]) for example in once])
    assert not set(epochs[0]) & set(epochs[1])

    endless = StreamedChunks(stream(2), tokenizer, LENGTH, window_documents=4)
    loader = DataLoader(
        endless, batch_size=1, collate_fn=first_of, num_workers=workers, persistent_workers=workers > 0
    )
    for _ in range(2):
        endless.set_epoch(2)
        found = [int(example.keys[0]) for example in islice(loader, len(epochs[0]) + len(epochs[1]))]
        if workers == 0:
            assert found == epochs[0] + epochs[1]
        else:
            # Workers go on when they are through with their own part, a few examples before or after each other.
            assert set(found[:30]) <= set(epochs[0]) and set(epochs[0]) <= set(found)
            assert len(set(found)) > len(found) - 10


def test_evaluation_ends_and_draws_the_same_again(tokenizer):
    blocks = StreamedBlocks(stream(), tokenizer, LENGTH, redraw=False)
    assert [int(one.keys[0]) for one in blocks] == [int(one.keys[0]) for one in blocks]
    again = StreamedBlocks(stream(), tokenizer, LENGTH, redraw=False, repeat=True)
    num_blocks = len(list(blocks))
    keys = [int(one.keys[0]) for one in islice(again, 2 * num_blocks)]
    assert keys[:num_blocks] == keys[num_blocks:]


def test_the_epoch_has_to_be_set(tokenizer):
    with pytest.raises(ValueError, match="set_epoch"):
        next(iter(StreamedChunks(stream(), tokenizer, LENGTH)))


def test_a_stream_with_a_shuffle_buffer_is_shuffled_again_every_epoch(tokenizer, pairs):
    shuffled = stream(2).shuffle(seed=1, buffer_size=8)
    chunks = StreamedChunks(shuffled, tokenizer, LENGTH, window_documents=4, repeat=False)
    found = []
    for epoch in (0, 1):
        chunks.set_epoch(epoch)
        found.append([document for _, documents in chunks._windows(epoch, 0, 1) for document in documents])
        assert collated(chunks, pairs, workers=2) == collated(chunks, pairs)
    assert found[0] != found[1] and sorted(found[0]) == sorted(found[1])
    assert shuffled.epoch == 0


def test_a_pickled_stream_gives_the_same(tokenizer, pairs):
    chunks = StreamedChunks(as_text(documents()), tokenizer, LENGTH, window_documents=5, repeat=False)
    chunks.set_epoch(4)
    assert collated(pickle.loads(pickle.dumps(chunks)), pairs) == collated(chunks, pairs)


def test_windows_end_where_they_are_long_enough(tokenizer):
    def windows(**sizes):
        chunks = StreamedChunks(as_text(documents()), tokenizer, LENGTH, redraw=False, **sizes)
        return [len(documents) for _, documents in chunks._windows(0, 0, 1)]

    assert windows(window_documents=7) == [7, 7, 7, 9]
    assert windows(window_length=1) == [2] * 15
    assert windows() == [30]


def test_words_of_a_segmenter_come_along(tokenizer):
    blocks = StreamedBlocks(as_text(documents()), tokenizer, LENGTH, redraw=False, word_segmenter=lambda text: [text])
    segments = next(iter(blocks)).segments
    assert np.array_equal(segments.word_starts, segments.tokens < 40)


def test_the_original_codes_rules_are_taken(tokenizer):
    chunks = StreamedChunks(documents(), None, LENGTH, redraw=False, **BERT_CHUNKS)
    assert chunks.rule == DocumentChunks(make_dataset(documents()), LENGTH, **BERT_CHUNKS).rule
    assert len(list(chunks)) > 40


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (iter([]), {}, "read only once"),
        ("some text", {}, "documents is a str"),
        (7, {}, "documents is a int"),
        (make_dataset(documents()), {}, "prepare_corpus"),
        (
            stream().cast(datasets.Features({"text": datasets.Value("string")})),
            {"column": "words"},
            "no column 'words'",
        ),
        ([], {"window_documents": 1}, "window_documents=1"),
        ([], {"window_length": 0}, "window_length=0"),
        ([], {"max_sentence_tokens": 0}, "max_sentence_tokens=0"),
        ([], {"segments": "words"}, "segments='words'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(tokenizer, given, options, message):
    with pytest.raises(ValueError, match=message):
        StreamedChunks(given, tokenizer, LENGTH, **options)


def test_lengths_without_room_are_refused(tokenizer):
    with pytest.raises(ValueError, match="max_length=4"):
        StreamedChunks(documents(), None, 4)
    with pytest.raises(ValueError, match="max_length=2"):
        StreamedBlocks(documents(), tokenizer, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no example to worker 0 of 1"),
        (["", " \n"], "no example to worker 0 of 1"),
        (["w5\nw6"], "no example to worker 0 of 1.*two in a window"),
        (["w5", "w6", "w7"], "no example to worker 0 of 1.*two sentences"),
        ([None, "w6"], "None is not a text"),
        ([{"text": "w5"}], "'w5'} is not a text"),
        ([[5, 6], [7]], r"\[5, 6\] is not a text"),
        (["w5\nw6", [["w5"]]], "not a list of str"),
        ([[["w5"]], [["w6"]]], "not all lists of sentences of token ids"),
        ([[[5.5]], [[6.0]]], "not all lists of sentences of token ids"),
        ([[[5], [6]], "text"], "not all lists of sentences of token ids"),
    ],
)
def test_streams_that_give_no_pairs_are_refused_when_read(tokenizer, given, message):
    chunks = StreamedChunks(given, tokenizer, LENGTH)
    chunks.set_epoch(0)
    with pytest.raises(ValueError, match=message):
        next(iter(chunks))


def test_windows_without_pairs_are_left_out_with_a_warning(tokenizer, monkeypatch):
    """They may come after hours of training: a shard of one document, or documents of single sentences."""
    shards = [[["w5", "w6"]], [["w7 w8", "w9"], ["w10 w11", "w12"], ["w13"], ["w14"]]]
    texts = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": shards})
    chunks, told = StreamedChunks(texts, tokenizer, 6, window_documents=2, redraw=False), []
    monkeypatch.setattr(streaming.logger, "warning_once", told.append)
    tokens = {int(number) for chunk in chunks for sentence in chunk.sentences(0) for number in sentence}
    assert tokens == set(range(7, 13))
    assert [message[:49] for message in told] == [
        "Windows of the stream with fewer than two documen",
        "Windows of the stream without a document of two s",
    ]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (["w5 w6"], {}, "tokenizer=None"),
        (documents(), {"max_sentence_tokens": 5}, "max_sentence_tokens"),
        (documents(), {"word_segmenter": list}, "word_segmenter"),
    ],
)
def test_text_needs_a_tokenizer_and_ids_take_no_options_of_one(given, options, message):
    with pytest.raises(ValueError, match=message):
        next(iter(StreamedChunks(given, None, LENGTH, redraw=False, **options)))


def test_a_column_that_turns_out_not_to_be_there_is_named(tokenizer):
    """The columns of a generator are known only when it is read."""
    with pytest.raises(ValueError, match=r"no column 'words' but \['text'\]"):
        next(iter(StreamedChunks(stream(), tokenizer, LENGTH, column="words", redraw=False)))


def test_more_workers_than_windows_are_refused(tokenizer):
    """A worker without a window would look for one for ever."""
    chunks = StreamedChunks(stream(), tokenizer, LENGTH, window_documents=20)
    chunks.set_epoch(0)
    with pytest.raises(ValueError, match="no example to worker 1 of 2"):
        list(islice(DataLoader(chunks, batch_size=1, collate_fn=first_of, num_workers=2), 5))


@pytest.mark.parametrize("texts", [[], ["", " "]])
@pytest.mark.parametrize("num_shards", [1, 4])
def test_an_evaluation_stream_without_text_is_refused_by_all_workers(tokenizer, texts, num_shards):
    empty = datasets.IterableDataset.from_generator(
        rows, gen_kwargs={"shards": [[[text] for text in texts]] * num_shards}
    )
    blocks = StreamedBlocks(empty, tokenizer, LENGTH, redraw=False)
    with pytest.raises(ValueError, match="no example to worker 0 of 2"):
        list(DataLoader(blocks, batch_size=1, collate_fn=first_of, num_workers=2))


def test_a_worker_without_a_window_is_idle_in_evaluation(tokenizer):
    blocks = StreamedBlocks(documents(4), None, LENGTH, redraw=False)
    expected = len(list(blocks))
    assert len(list(DataLoader(blocks, batch_size=1, collate_fn=first_of, num_workers=2))) == expected > 0


def test_a_splitter_that_gives_text_is_refused(tokenizer):
    with pytest.raises(ValueError, match="sentence_splitter gives 'w5"):
        next(iter(StreamedBlocks(["w5 w6", "w7"], tokenizer, LENGTH, redraw=False, sentence_splitter=str)))
