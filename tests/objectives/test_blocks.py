import datasets
import numpy as np
import pytest

from hf_encoders.objectives.blocks import SentenceBlocks


DOCUMENTS = [[[10, 11, 12], [13, 14]], [[20, 21]], [[30], [31, 32, 33, 34, 35, 36, 37, 38, 39]]]


def text(example):
    """Token ids with separators (2) between segments."""
    return [token for segment in example.segments for token in [2, *segment.tolist()]][1:]


def blocks(**arguments):
    dataset = SentenceBlocks(datasets.Dataset.from_dict({"input_ids": DOCUMENTS}), redraw=False, **arguments)
    return [text(dataset[i]) for i in range(len(dataset))]


def test_full_sentences_cross_documents_with_a_separator():
    assert blocks(max_length=10) == [
        [10, 11, 12, 13, 14, 2, 20, 21],
        [30],
        [31, 32, 33, 34, 35, 36, 37, 38],
        [39],
    ]


def test_doc_sentences_end_with_their_document():
    assert blocks(max_length=10, cross_documents=False) == [
        [10, 11, 12, 13, 14],
        [20, 21],
        [30],
        [31, 32, 33, 34, 35, 36, 37, 38],
        [39],
    ]


@pytest.mark.parametrize(("max_length", "cross_documents"), [(3, True), (7, False), (16, True), (100, False)])
def test_every_token_is_in_one_block_and_no_block_is_too_long(cross_documents, max_length):
    random = np.random.default_rng(0)
    numbers = iter(range(10, 10**6))
    documents = [
        [[next(numbers) for _ in range(random.integers(1, 12))] for _ in range(random.integers(1, 9))]
        for _ in range(30)
    ]
    dataset = SentenceBlocks(
        datasets.Dataset.from_dict({"input_ids": documents}),
        max_length,
        cross_documents=cross_documents,
        redraw=False,
    )
    tokens = np.concatenate([text(dataset[i]) for i in range(len(dataset))])
    assert max(len(text(dataset[i])) for i in range(len(dataset))) <= max_length - 2
    assert np.array_equal(tokens[tokens != 2], np.concatenate([s for d in documents for s in d]))
    assert cross_documents or 2 not in tokens


def test_blocks_without_room_or_text_are_refused():
    with pytest.raises(ValueError, match="max_length=2"):
        blocks(max_length=2)
    features = datasets.Features({"input_ids": datasets.List(datasets.List(datasets.Value("int32")))})
    with pytest.raises(ValueError, match="no sentence"):
        SentenceBlocks(datasets.Dataset.from_dict({"input_ids": []}, features=features), 10)


def test_documents_that_begin_with_empty_sentences_get_one_separator():
    documents = datasets.Dataset.from_dict({"input_ids": [[[10], [11]], [[], [12]], [[], [], [13]]]})
    dataset = SentenceBlocks(documents, 9, redraw=False)
    assert [text(dataset[i]) for i in range(len(dataset))] == [[10, 11, 2, 12, 2, 13]]


def items_of(documents):
    """What fairseq reads of a file: sentences with `</s>` (2) each, and one for the line between documents."""
    lines = [[*document, []] for document in documents]
    return [[*line, 2] for line in sum(lines, [])[:-1]]


def complete_blocks(items, block_size):
    """`complete` of fairseq's `token_block_utils_fast.pyx`, one item at a time."""
    found, block = [], []
    for item in items:
        if block and len(block) + len(item) > block_size:
            found.append(block)
            block = []
        block = block + item
    return [*found, block]


def with_last_separator(dataset):
    return [[*text(dataset[i]), 2] for i in range(len(dataset))]


@pytest.mark.parametrize(("max_length", "longest"), [(5, 4), (9, 14), (12, 4), (30, 14)])
def test_sentence_separators_make_the_blocks_of_fairseq(max_length, longest):
    random = np.random.default_rng(max_length)
    documents = [
        [random.integers(10, 99, random.integers(1, longest + 1)).tolist() for _ in range(random.integers(1, 5))]
        for _ in range(200)
    ]
    options = {"sentence_separators": True, "cut_long_sentences": False, "redraw": False}
    dataset = SentenceBlocks(datasets.Dataset.from_dict({"input_ids": documents}), max_length, **options)
    expected = complete_blocks(items_of(documents), max_length - 1)
    assert with_last_separator(dataset) == expected
    begins, ends = sum(block[0] == 2 for block in expected), sum(block[-2:] == [2, 2] for block in expected)
    assert begins > 3 and ends > 3, "no block begins or ends with a document's separator"
    assert longest < 14 or max_length > 12 or [2] in expected


def test_a_block_may_be_a_separator_alone():
    """Before a sentence that is longer than a block, as in fairseq."""
    documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11, 12]], [[*range(20, 40)]], [[13]]]})
    dataset = SentenceBlocks(documents, max_length=5, sentence_separators=True, cut_long_sentences=False, redraw=False)
    assert with_last_separator(dataset) == [[10, 11, 12, 2], [2], [*range(20, 40), 2], [2, 13, 2]]
    assert [[segment.tolist() for segment in dataset[i].segments] for i in (1, 3)] == [[[]], [[], [13]]]


def stream_of(documents, separators, cross_documents):
    """Items of each stream: tokens, and a 2 after every sentence (or document) but the last one of the stream."""
    streams = [documents] if cross_documents else [[document] for document in documents]
    units = (
        [s for d in stream for s in d] if separators else [sum(document, []) for document in stream]
        for stream in streams
    )
    return [[item for unit in stream for item in [*unit, 2]][:-1] for stream in units]


@pytest.mark.parametrize(
    ("max_length", "separators", "cross_documents"),
    [(3, True, True), (4, True, False), (9, False, True), (23, False, False), (23, True, True)],
)
def test_streams_are_cut_wherever_a_block_is_full(max_length, separators, cross_documents):
    random = np.random.default_rng(max_length)
    documents = [
        [random.integers(10, 99, random.integers(1, 9)).tolist() for _ in range(random.integers(1, 5))]
        for _ in range(60)
    ]
    options = {"sentence_separators": separators, "cross_documents": cross_documents, "whole_sentences": False}
    dataset = SentenceBlocks(datasets.Dataset.from_dict({"input_ids": documents}), max_length, redraw=False, **options)
    found = [text(dataset[i]) for i in range(len(dataset))]
    capacity, expected = max_length - 2, []
    for stream in stream_of(documents, separators, cross_documents):
        expected += [stream[i : i + capacity] for i in range(0, len(stream), capacity)]
    # A separator at the end of a block is the one that every block ends with; at its beginning, that of the last.
    without = [block[block[0] == 2 : len(block) - (block[-1] == 2)] for block in expected if block != [2]]
    assert found == without
    assert len(without) > 30 and any(len(block) == capacity for block in found)


def test_streams_do_not_keep_long_sentences_whole():
    with pytest.raises(ValueError, match="cut_long_sentences=False and whole_sentences=False .* leave out one"):
        blocks(max_length=9, whole_sentences=False, cut_long_sentences=False)
