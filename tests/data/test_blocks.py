import datasets
import numpy as np
import pytest

from hf_encoders.data.blocks import SentenceBlocks


DOCUMENTS = [[[10, 11, 12], [13, 14]], [[20, 21]], [[30], [31, 32, 33, 34, 35, 36, 37, 38, 39]]]


def text(example):
    """Token ids with separators (2) between pieces."""
    return [token for piece in example.pieces(0) for token in [2, *piece.tolist()]][1:]


def blocks(**arguments):
    data_set = SentenceBlocks(datasets.Dataset.from_dict({"input_ids": DOCUMENTS}), redraw=False, **arguments)
    return [text(data_set[i]) for i in range(len(data_set))]


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


@pytest.mark.parametrize("cross_documents", [True, False])
@pytest.mark.parametrize("max_length", [3, 7, 16, 100])
def test_every_token_is_in_one_block_and_no_block_is_too_long(cross_documents, max_length):
    random = np.random.default_rng(0)
    numbers = iter(range(10, 10**6))
    documents = [
        [[next(numbers) for _ in range(random.integers(1, 12))] for _ in range(random.integers(1, 9))]
        for _ in range(30)
    ]
    data_set = SentenceBlocks(
        datasets.Dataset.from_dict({"input_ids": documents}),
        max_length,
        cross_documents=cross_documents,
        redraw=False,
    )
    tokens = np.concatenate([text(data_set[i]) for i in range(len(data_set))])
    assert max(len(text(data_set[i])) for i in range(len(data_set))) <= max_length - 2
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
    data_set = SentenceBlocks(documents, 9, redraw=False)
    assert [text(data_set[i]) for i in range(len(data_set))] == [[10, 11, 2, 12, 2, 13]]
