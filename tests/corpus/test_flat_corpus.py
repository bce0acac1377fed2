"""A dataset of documents, of any origin, as flat arrays in pieces of its memory map."""

import pickle

import datasets
import numpy as np
import pytest

from hf_encoders import tokenize_documents
from hf_encoders.corpus.flat_corpus import FlatCorpus
from tests.corpus.corpora import DOCUMENTS, as_text, contents, make_dataset, random_documents


def test_arrays(tokenizer):
    corpus = FlatCorpus.of(tokenize_documents(as_text(DOCUMENTS), tokenizer))
    assert corpus.tokens[:].tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert corpus.sentence_offsets.tolist() == [0, 2, 3, 6, 7, 9, 10, 12]
    assert corpus.document_offsets.tolist() == [0, 2, 3, 6, 7]
    assert (corpus.tokens[:].dtype, corpus.sentence_offsets.dtype, corpus.document_offsets.dtype) == ("i4", "i8", "i8")
    assert (corpus.num_documents, corpus.num_sentences, corpus.word_starts) == (4, 7, None)
    assert corpus.sentence_lengths.tolist() == [2, 1, 3, 1, 2, 1, 2]
    assert corpus.document_starts.tolist() == [0, 3, 6, 10]


ROWS = {
    "all": lambda d: d,
    "a range": lambda d: d.select(range(3, 17)),
    "some": lambda d: d.select([4, 2, 2, 19]),
    "a filter": lambda d: d.filter(lambda row: len(row["input_ids"]) > 2),
    "several": lambda d: datasets.concatenate_datasets([d, d.select(range(5)), d.select([1])]),
    "other columns": lambda d: d.add_column("length", list(range(len(d)))).shuffle(seed=2),
    "other integers": lambda d: d.cast(datasets.Features({"input_ids": [[datasets.Value("int64")]]})),
    "large lists": lambda d: d.cast(
        datasets.Features({"input_ids": datasets.LargeList(datasets.LargeList(datasets.Value("int32")))})
    ),
    "none": lambda d: d.select([]),
}


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_rows_are_those_of_the_dataset_whose_files_stay_alone(tokenizer, tmp_path, change):
    documents = [*random_documents(20), [], [[]]]
    corpora = [make_dataset(documents[i : i + 7]) for i in range(0, 22, 7)]
    datasets.concatenate_datasets(corpora).save_to_disk(tmp_path)  # several record batches
    before = sorted(tmp_path.iterdir())
    dataset = change(datasets.load_from_disk(tmp_path))
    corpus = FlatCorpus.of(dataset, keep_empty=True)
    assert contents(corpus) == dataset.with_format(None)["input_ids"][:]
    assert contents(pickle.loads(pickle.dumps(corpus))) == contents(corpus)
    assert sum([contents(part) for part in FlatCorpus.steps(dataset)], []) == contents(corpus)
    assert corpus.tokens[:].dtype == np.int32
    everything, length = corpus.tokens[:], len(corpus.tokens)
    for begin in range(0, length, 3):
        for end in (begin, begin + 1, begin + 40, length):
            assert np.array_equal(corpus.tokens[begin:end], everything[begin:end])
    assert sorted(path for path in tmp_path.iterdir() if not path.name.startswith("cache-")) == before


def test_documents_are_not_copied(tokenizer):
    dataset = tokenize_documents(as_text(random_documents(20)), tokenizer)
    buffer = dataset.data.column("input_ids").chunk(0).buffers()[-1]
    corpus = FlatCorpus.of(dataset.select([3, 7, 8]))
    begin, end = corpus.document_starts[1], len(corpus.tokens)
    address = corpus.tokens[begin:end].__array_interface__["data"][0]
    assert buffer.address <= address < buffer.address + buffer.size


def test_empty_documents_and_sentences():
    documents = [[[], [5]], [], [[6], []], []]
    for dataset in (make_dataset(documents), make_dataset(documents).select([0, 1, 2, 3])):
        kept = FlatCorpus.of(dataset, keep_empty=True)
        assert contents(kept) == contents(pickle.loads(pickle.dumps(kept))) == documents
        assert kept.document_offsets.tolist() == [0, 2, 2, 4, 4]
        without = pickle.loads(pickle.dumps(kept.without_empty()))
        assert contents(FlatCorpus.of(dataset)) == contents(without) == [[[5]], [[6]]]


def test_a_pickle_holds_a_path_and_not_the_tokens(tokenizer):
    dataset = tokenize_documents(as_text(random_documents(3000)), tokenizer)
    for changed in (dataset, dataset.shuffle(seed=0)):
        corpus = FlatCorpus.of(changed)
        pickled = pickle.dumps(corpus)
        assert len(pickled) < 4000 < len(corpus.tokens)
        assert np.array_equal(pickle.loads(pickled).tokens[:], corpus.tokens[:])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, "not the column 'input_ids'.*tokenize_documents"),
        ({"input_ids": [[1, 2]]}, "not lists of sentences"),
        ({"input_ids": [[[0.5]]]}, "not lists of sentences"),
        ({"input_ids": [[[1]], None]}, "missing values"),
        ({"input_ids": [[[1], None]]}, "missing values"),
        ({"input_ids": [[[1, None]]]}, "missing values"),
    ],
)
def test_what_is_not_a_corpus_is_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        FlatCorpus.of(datasets.Dataset.from_dict(columns))
