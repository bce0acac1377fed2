"""Pairs of next-sentence and sentence-order prediction: what they are made of, labels, and what predicts these."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hf_encoders.objectives.randomness import Key
from hf_encoders.objectives.sentence_pairs import (
    ChunkExample,
    ChunkRule,
    DocumentChunks,
    chunk_of_sentences,
    make_pair,
    next_sentence_pair,
    sentence_order_pair,
)
from tests.corpus.corpora import make_dataset
from tests.objectives.test_chunks import corpus


BOTH = pytest.mark.parametrize("pair_of", [next_sentence_pair, sentence_order_pair])
RULES = pytest.mark.parametrize("rule", [{}, {"segments": "sentences"}])


def pairs_of(dataset, pair_of, epochs=1):
    """Token ids of both segments and the label of each pair of several epochs."""
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        for chunk in dataset:
            pair = pair_of(chunk)
            first, second = [*(segment.tolist() for segment in pair.segments), []][:2]
            yield first, second, pair.labels["pair"]


def pairs_of_rows(rows, max_length):
    for number, row in enumerate(rows):
        pair = sentence_order_pair(chunk_of_sentences([np.array(ids) for ids in row], Key(0, 0, number), max_length))
        first, second = [*(segment.tolist() for segment in pair.segments), []][:2]
        yield first, second, pair.labels["pair"]


def is_half(labels):
    return abs(np.mean(labels) - 0.5) < 5 * np.sqrt(0.25 / len(labels))


def test_truncation_takes_from_the_longer_segment_at_both_ends_alike():
    first, second, begins = np.arange(60), np.arange(100, 103), []
    for number in range(2000):
        chunk = ChunkExample(
            [first, second], Key(0, 0, number), has_next=True, has_order=True, max_length=46, rule=ChunkRule()
        )
        cut, other = make_pair(chunk, chunk.texts, 0).segments
        assert len(cut) == 40 and (np.diff(cut) == 1).all() and other.tolist() == second.tolist()
        begins.append(cut[0])
    assert abs(np.mean(begins) - 10) < 5 * np.sqrt(5 / 2000)


@pytest.mark.parametrize(("lengths", "kept"), [((5, 5), (5, 4)), ((2, 9), (2, 7)), ((3, 3), (3, 3)), ((12, 0), (9,))])
def test_of_two_equally_long_segments_the_second_is_cut(lengths, kept):
    segments = [np.arange(length) for length in lengths if length]
    starts = [np.arange(length, dtype=np.uint8) for length in lengths if length]
    chunk = ChunkExample(
        segments, Key(0, 0, 0), starts, has_next=True, has_order=True, max_length=12, rule=ChunkRule()
    )
    pair = make_pair(chunk, chunk.texts, 1)
    assert tuple(map(len, pair.segments)) == kept and pair.token_types == [0, 1][: len(kept)]
    for ids, bits in zip(pair.segments, pair.word_starts, strict=True):
        assert ids.tolist() == bits.tolist()


@RULES
def test_next_sentences_follow_and_random_ones_come_from_another_document(rule):
    labels = []
    for first, second, label in pairs_of(DocumentChunks(corpus(), 64, **rule), next_sentence_pair, epochs=30):
        if label == -100:
            assert not second or second[0] == first[-1] + 1
            continue
        labels.append(label)
        if label == 0:
            assert second[0] == first[-1] + 1
        else:
            assert second[0] // 1000 != first[0] // 1000
            assert second == list(range(second[0], second[-1] + 1))
    assert is_half(labels)


def predicted_by_lengths(lengths, labels, documents):
    """Accuracy on half of the documents of what the other half teaches about both lengths, their ratio and sum."""
    total = lengths.sum(axis=1)
    features = np.column_stack([lengths, lengths[:, 0] / total, total])
    half = documents % 2 == 0
    models = make_pipeline(StandardScaler(), LogisticRegression()), HistGradientBoostingClassifier(max_iter=30)
    return max(model.fit(features[half], labels[half]).score(features[~half], labels[~half]) for model in models)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    ("max_length", "longest", "num_sentences"),
    [(64, 60, 60_000), (64, 6, 60_000), (512, 200, 20_000)],
)
def test_lengths_do_not_predict_labels(pair_of, max_length, longest, num_sentences):
    """Documents that begin with a short heading; also where a text is small and few segments are of one length."""
    random, text = np.random.default_rng(0), np.random.default_rng(1)
    documents = []
    for _ in range(2 * num_sentences // longest):
        lengths = np.ceil(random.gamma(2, 8, random.integers(2, longest)))
        lengths[0] = 1 + lengths[0] // 4
        documents.append([text.integers(5, 60, int(n)) for n in lengths])
    chunks = DocumentChunks(make_dataset(documents), max_length)
    lengths, labels, numbers = [], [], []
    for epoch in range(40_000 * max_length // 8 // num_sentences):
        chunks.set_epoch(epoch)
        for chunk in chunks:
            pair = pair_of(chunk)
            if pair.labels["pair"] >= 0:
                lengths.append([len(segment) for segment in pair.segments])
                labels.append(pair.labels["pair"])
                numbers.append(chunk.begin)
    lengths, labels = np.array(lengths), np.array(labels)
    assert len(labels) > 50_000 and lengths.sum(axis=1).max() <= max_length - 3
    assert is_half(labels)
    documents = np.searchsorted(chunks.corpus.document_starts, numbers, "right")
    assert predicted_by_lengths(lengths, labels, documents) < 0.51


def test_lengths_of_headings_do_not_predict_the_order():
    """Documents of a heading and three sentences; for each two lengths the label that others of them mostly have."""
    sentences = np.ceil(np.random.default_rng(0).gamma(2, 10, (5_000, 3))).astype(int)
    documents = [[[7] * n for n in (3, *others)] for others in sentences.tolist()]
    counts, hits = np.zeros((2, 64, 64)), []
    for documents_of_half, is_test in ((documents[::2], False), (documents[1::2], True)):
        chunks = DocumentChunks(make_dataset(documents_of_half), 64)
        for first, second, label in pairs_of(chunks, sentence_order_pair, epochs=3):
            lengths = len(first), len(second)
            if label >= 0 and is_test:
                hits.append((counts[1] > counts[0])[lengths] == label)
            elif label >= 0:
                counts[label][lengths] += 1
    assert len(hits) > 3_000 and np.mean(hits) < 0.5 + 5 * np.sqrt(0.25 / len(hits))


def test_rows_of_plain_documents_start_anywhere_and_are_runs_split_and_swapped_alike():
    rows, starts, labels, lengths = [[[i, i] for i in range(10)]] * 4000, [], [], []
    for first, second, label in pairs_of_rows(rows, 13):
        in_order = second + first if label else first + second
        numbers = in_order[::2]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and 2 <= len(numbers) <= 5
        starts.append(numbers[0])
        labels.append(label)
        lengths.append((len(second), len(first)) if label else (len(first), len(second)))
    assert set(starts) == set(range(9)) and is_half(labels)
    first, second = (np.bincount(column, minlength=9) for column in np.array(lengths).T)
    assert (first[2:9:2] > 200).all() and abs(first - second).max() < 5 * np.sqrt(first.max() + second.max())
    assert list(pairs_of_rows([[[5, 6]]], 13)) == [([5, 6], [], -100)]


@RULES
def test_no_label_says_that_the_same_text_is_another(rule):
    """A third of the sentences are one of three: a negative never has the segment that follows, nor two equal ones."""
    random, stock = np.random.default_rng(0), [[7, 8], [7, 9], [6]]
    documents = [
        [
            stock[random.integers(3)] if random.random() < 0.35 else random.integers(10, 60, 2).tolist()
            for _ in range(4)
        ]
        for _ in range(600)
    ]
    chunks = DocumentChunks(make_dataset(documents), 9, **rule)
    num_equal, labels = 0, []
    for epoch in range(4):
        chunks.set_epoch(epoch)
        for chunk in chunks:
            pair = next_sentence_pair(chunk)
            labels += [pair.labels["pair"]] if pair.labels["pair"] >= 0 else []
            assert pair.labels["pair"] != 1 or pair.segments[1].tolist() != chunk.segments[1].tolist()
            first, *second = (segment.tolist() for segment in chunk.segments)
            if [first] == second:
                num_equal += 1
                assert sentence_order_pair(chunk).labels["pair"] == -100
    assert sum(labels) > 500 and num_equal > 10 and is_half(labels)
    assert list(pairs_of_rows([[[5, 6], [5, 6]]], 16))[0][2] == -100


@BOTH
def test_a_single_sentence_has_no_label_and_in_the_original_code_it_is_a_negative(pair_of):
    documents = make_dataset([[[7, 8]], [[10, 11], [12, 13]]])
    for original, second in ((False, {()}), (True, {(10, 11, 12, 13), (12, 13)})):
        chunks = DocumentChunks(documents, 32, short_sequence_probability=0.0, original_code=original)
        pairs = [pair for pair in pairs_of(chunks, pair_of, epochs=50) if pair[0] == [7, 8]]
        assert len(pairs) == 50 and {label for *_, label in pairs} == {1 if original else -100}
        assert {tuple(other) for _, other, _ in pairs} >= second


def test_what_has_no_pairs_is_refused():
    one = DocumentChunks(make_dataset([[[1], [2]]]), 32, redraw=False)
    with pytest.raises(ValueError, match="holds one document"):
        next_sentence_pair(one[0])
    with pytest.raises(ValueError, match="rows of a plain dataset"):
        next_sentence_pair(chunk_of_sentences([np.array([1])], Key(0, 0, 0), 16))
    original = DocumentChunks(corpus(), 32, redraw=False, original_code=True, put_back=True)
    with pytest.raises(ValueError, match="put_back=True"):
        sentence_order_pair(original[0])
