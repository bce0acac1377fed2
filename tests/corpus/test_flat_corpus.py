"""A dataset of documents, of any origin, as flat arrays."""

import pickle
from pathlib import Path

import datasets
import numpy as np
import pytest

from hf_encoders import tokenize_documents
from hf_encoders.corpus import flat_corpus
from hf_encoders.corpus.flat_corpus import FlatCorpus
from tests.corpus.corpora import DOCUMENTS, as_text, contents, make_dataset, random_documents


def test_arrays(tokenizer):
    corpus = FlatCorpus.of(tokenize_documents(as_text(DOCUMENTS), tokenizer))
    assert corpus.tokens.tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert corpus.sentence_offsets.tolist() == [0, 2, 3, 6, 7, 9, 10, 12]
    assert corpus.document_offsets.tolist() == [0, 2, 3, 6, 7]
    assert (corpus.tokens.dtype, corpus.sentence_offsets.dtype, corpus.document_offsets.dtype) == ("i4", "i8", "i8")
    assert (corpus.num_documents, corpus.num_sentences, corpus.word_starts) == (4, 7, None)
    assert corpus.sentence_lengths.tolist() == [2, 1, 3, 1, 2, 1, 2]
    assert corpus.document_starts.tolist() == [0, 3, 6, 10]


def test_one_record_batch_is_not_copied(tokenizer):
    dataset = tokenize_documents(as_text(DOCUMENTS), tokenizer)
    buffers = dataset.data.column("input_ids").chunk(0).buffers()
    assert FlatCorpus.of(dataset).tokens.__array_interface__["data"][0] == buffers[-1].address


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d,
        lambda d: d.select(range(3, 17)),
        lambda d: d.select([4, 2, 2, 19]),
        lambda d: d.filter(lambda row: len(row["input_ids"]) > 2),
        lambda d: datasets.concatenate_datasets([d, d.select(range(5)), d.select([1])]),
        lambda d: d.add_column("length", list(range(len(d)))).shuffle(seed=2),
        lambda d: d.with_format("numpy").cast(datasets.Features({"input_ids": [[datasets.Value("int64")]]})),
        lambda d: d.cast(
            datasets.Features({"input_ids": datasets.LargeList(datasets.LargeList(datasets.Value("int32")))})
        ),
        lambda d: d.select([]),
    ],
)
@pytest.mark.parametrize("is_on_disk", [True, False])
def test_rows_are_those_of_the_dataset(tokenizer, monkeypatch, change, is_on_disk):
    monkeypatch.setattr(flat_corpus, "ROWS_PER_STEP", 3)
    documents = random_documents(20)
    dataset = change(tokenize_documents(as_text(documents), tokenizer) if is_on_disk else make_dataset(documents))
    corpus = FlatCorpus.of(dataset)
    assert contents(corpus) == dataset.with_format(None)["input_ids"][:]
    assert corpus.tokens.dtype == np.int32
    assert contents(pickle.loads(pickle.dumps(corpus))) == contents(corpus)


def test_empty_documents_and_sentences():
    documents = [[[], [5]], [], [[6], []], []]
    for dataset in (make_dataset(documents), make_dataset(documents).select([0, 1, 2, 3])):
        kept = FlatCorpus.of(dataset, keep_empty=True)
        assert contents(kept) == contents(pickle.loads(pickle.dumps(kept))) == documents
        assert kept.document_offsets.tolist() == [0, 2, 2, 4, 4]
        assert (
            contents(FlatCorpus.of(dataset))
            == contents(pickle.loads(pickle.dumps(kept.without_empty())))
            == [
                [[5]],
                [[6]],
            ]
        )


def test_a_selection_on_disk_is_copied_once(tokenizer, tmp_path):
    tokenize_documents(as_text(random_documents(30)), tokenizer).save_to_disk(tmp_path)
    copies = []
    for rows in ([3, 1], [3, 1], [1, 3]):
        corpus = FlatCorpus.of(datasets.load_from_disk(tmp_path).select(rows))
        copies.append((contents(corpus), corpus.tokens.filename))
        assert pickle.loads(pickle.dumps(corpus)).tokens.filename == corpus.tokens.filename
    first, same, other = copies
    assert first == same and first[0] == other[0][::-1]
    assert len(list(tmp_path.glob("flat-*"))) == 2


def test_others_may_read_the_copy(tokenizer, tmp_path, monkeypatch):
    tokenize_documents(as_text(random_documents(30)), tokenizer).save_to_disk(tmp_path)
    chosen = datasets.load_from_disk(tmp_path).select([3, 1])
    copy = Path(FlatCorpus.of(chosen).tokens.filename)
    (tmp_path / "folder").mkdir()
    assert copy.parent.stat().st_mode == (tmp_path / "folder").stat().st_mode
    assert [path.name for path in tmp_path.glob("flat-*")] == [copy.parent.name]
    monkeypatch.setattr(flat_corpus.os, "access", lambda *_: False)  # a corpus that is read-only for others
    assert Path(FlatCorpus.of(chosen).tokens.filename) == copy


def test_a_pickle_holds_a_path_and_not_the_tokens(tokenizer):
    dataset = tokenize_documents(as_text(random_documents(3000)), tokenizer)
    for changed in (dataset, dataset.shuffle(seed=0)):
        corpus = FlatCorpus.of(changed)
        pickled = pickle.dumps(corpus)
        assert len(pickled) < 4000 < corpus.tokens.nbytes
        assert np.array_equal(pickle.loads(pickled).tokens, corpus.tokens)


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
