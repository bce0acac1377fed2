import pickle

import datasets
import numpy as np
import pytest

from hf_encoders import tokenize_documents
from hf_encoders.corpus import arrow_file
from hf_encoders.corpus.sentence_store import SentenceStore
from tests.corpus.corpora import DOCUMENTS, as_text, contents, make_dataset, random_documents


class TestSentenceStore:
    def test_flat_arrays(self, tokenizer):
        store = SentenceStore(tokenize_documents(as_text(DOCUMENTS), tokenizer))
        assert store.tokens.tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
        assert store.sentence_offsets.tolist() == [0, 2, 3, 6, 7, 9, 10, 12]
        assert store.document_offsets.tolist() == [0, 2, 3, 6, 7]
        assert (store.tokens.dtype, store.sentence_offsets.dtype, store.document_offsets.dtype) == ("i4", "i8", "i8")
        assert (store.num_documents, store.num_sentences) == (4, 7)
        assert store.sentence_lengths.tolist() == [2, 1, 3, 1, 2, 1, 2]
        assert contents(store) == DOCUMENTS

    def test_tokens_are_not_copied(self, tokenizer):
        dataset = tokenize_documents(as_text(DOCUMENTS), tokenizer)
        store = SentenceStore(dataset)
        buffers = dataset.data.column("input_ids").chunk(0).buffers()
        assert store.tokens.__array_interface__["data"][0] == buffers[-1].address
        assert store.dataset.cache_files == dataset.cache_files

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d,
            lambda d: d.select(range(3, 17)),
            lambda d: d.select([4, 2, 2, 19]),
            lambda d: d.shuffle(seed=1),
            lambda d: d.filter(lambda row: len(row["input_ids"]) > 2),
            lambda d: datasets.concatenate_datasets([d, d.select(range(5)), d.select([1])]),
            lambda d: d.with_format("numpy"),
            lambda d: d.add_column("length", list(range(len(d)))).shuffle(seed=2),
            lambda d: d.cast(datasets.Features({"input_ids": [[datasets.Value("int64")]]})),
            lambda d: d.select([]),
            lambda d: d.select(range(0)),
        ],
    )
    @pytest.mark.parametrize("is_on_disk", [True, False])
    def test_rows_are_those_of_the_dataset(self, tokenizer, change, is_on_disk):
        documents = random_documents(20)
        dataset = change(tokenize_documents(as_text(documents), tokenizer) if is_on_disk else make_dataset(documents))
        store = SentenceStore(dataset)
        assert contents(store) == dataset.with_format(None)["input_ids"][:]
        assert store.tokens.dtype == np.int32
        assert contents(pickle.loads(pickle.dumps(store))) == contents(store)

    def test_a_reloaded_corpus(self, tokenizer, tmp_path):
        documents = random_documents(2500)
        tokenize_documents(as_text(documents), tokenizer).save_to_disk(tmp_path / "saved")
        reloaded = datasets.load_from_disk(tmp_path / "saved")
        assert reloaded.data.column("input_ids").num_chunks > 1
        store = SentenceStore(reloaded)
        assert contents(store) == documents
        assert datasets.load_from_disk(tmp_path / "saved")["input_ids"][:] == documents
        assert SentenceStore(reloaded).dataset.cache_files == store.dataset.cache_files
        shuffled = reloaded.shuffle(seed=0)
        assert contents(SentenceStore(shuffled)) == shuffled["input_ids"][:]

    def test_empty_documents_and_sentences_are_kept(self):
        documents = [[[], [5]], [], [[6], []], []]
        store = SentenceStore(make_dataset(documents))
        assert contents(store) == documents
        assert store.document_offsets.tolist() == [0, 2, 2, 4, 4]
        assert contents(SentenceStore(make_dataset(documents).select([3, 2, 0]))) == [
            [],
            [[6], []],
            [[], [5]],
        ]

    def test_a_selection_is_written_once(self, tokenizer, tmp_path, monkeypatch):
        tokenize_documents(as_text(random_documents(30)), tokenizer).save_to_disk(tmp_path / "corpus")
        stores = []
        for rows in ([3, 1], [3, 1], [1, 3]):
            with monkeypatch.context() as patch:
                if len(stores) == 1:
                    patch.setattr(arrow_file, "write_arrow_file", lambda *_, **__: pytest.fail("written again"))
                stores.append(SentenceStore(datasets.load_from_disk(tmp_path / "corpus").select(rows)))
        one, same, other = map(contents, stores)
        assert one == same == other[::-1] != other
        assert len(list((tmp_path / "corpus").glob("corpus-*.arrow"))) == 2
        datasets.disable_caching()  # fingerprints are random then
        try:
            for _ in range(2):
                assert contents(SentenceStore(datasets.load_from_disk(tmp_path / "corpus").select([3, 1]))) == one
        finally:
            datasets.enable_caching()
        assert len(list((tmp_path / "corpus").glob("corpus-*.arrow"))) == 3

    def test_pickle_holds_a_path_and_not_the_tokens(self, tokenizer):
        dataset = tokenize_documents(as_text(random_documents(3000)), tokenizer)
        for changed in (dataset, dataset.shuffle(seed=0)):
            store = SentenceStore(changed)
            pickled = pickle.dumps(store)
            assert len(pickled) < 4000 < store.tokens.nbytes
            assert np.array_equal(pickle.loads(pickled).tokens, store.tokens)

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"text": ["a"]}, "not the column 'input_ids'.*tokenize_documents"),
            ({"input_ids": [[1, 2]]}, "not lists of sentences"),
            ({"input_ids": ["a"]}, "not lists of sentences"),
            ({"input_ids": [[[0.5]]]}, "not lists of sentences"),
            ({"input_ids": [[[1]], None]}, "missing values"),
            ({"input_ids": [[[1], None]]}, "missing values"),
            ({"input_ids": [[[1, None]]]}, "missing values"),
        ],
    )
    def test_what_is_not_a_corpus_is_refused(self, columns, message):
        with pytest.raises(ValueError, match=message):
            SentenceStore(datasets.Dataset.from_dict(columns))
