import json
import logging
import os
import pickle

import datasets
import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import CanineTokenizer, PreTrainedTokenizerFast

from hf_encoders import (
    corpus_statistics,
    documents_from_dataset,
    prepare_corpus,
    read_documents,
    split_train_validation,
    tokenize_documents,
    warnings_for,
)
from hf_encoders.corpus import arrow_file, report, sentence_encoding
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.report import CorpusStatistics
from hf_encoders.corpus.segmentation import one_sentence_per_line
from tests.corpus.corpora import DOCUMENTS, as_text, contents, make_dataset, random_documents


@pytest.fixture
def transformers_log(caplog):
    """Warnings of transformers, which keeps its records from the root logger."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    level = logger.level
    logger.setLevel(logging.WARNING)  # commands that other tests ran in this process have made it quiet
    yield caplog
    logger.setLevel(level)
    logger.removeHandler(caplog.handler)


class TestReadDocuments:
    def read(self, tmp_path, content: bytes, name: str = "a.txt", **arguments):
        path = tmp_path / name
        path.write_bytes(content)
        return list(read_documents([path], **arguments))

    def test_paragraphs_and_blank_lines(self, tmp_path):
        text = b"\n\nOne. Two.\nThree.\n\n \t\n\nFour.\n\n"
        assert self.read(tmp_path, text) == [["One.", "Two.", "Three."], ["Four."]]

    def test_one_sentence_a_line(self, tmp_path):
        text = b"One. Still one.\nTwo.\n\nThree."
        assert self.read(tmp_path, text, sentence_splitter=one_sentence_per_line) == [
            ["One. Still one.", "Two."],
            ["Three."],
        ]

    @pytest.mark.parametrize("line_break", [b"\n", b"\r\n", b"\r"])
    def test_line_breaks_of_all_systems(self, tmp_path, line_break):
        text = line_break.join([b"One.", b"Two.", b"", b"Three."])
        assert self.read(tmp_path, text) == [["One.", "Two."], ["Three."]]

    def test_byte_order_marks(self, tmp_path):
        mark = b"\xef\xbb\xbf"
        assert self.read(tmp_path, mark + b"One.\n" + mark + b"\nTwo.") == [["One."], ["Two."]]
        line = mark + b'{"text": "One."}\n'
        assert self.read(tmp_path, line + line, "a.jsonl") == [["One."], ["One."]]

    def test_bytes_that_are_not_text(self, tmp_path):
        assert self.read(tmp_path, b"caf\xe9 and\x00nul\x01. Two.\n\n\xff\xfe") == [
            ["caf\ufffd and\x00nul\x01.", "Two."],
            ["\ufffd\ufffd"],
        ]

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
    @pytest.mark.parametrize("text", ["One, two, three.", "\u6211\u7231\u5317\u4eac\u3002" * 9])
    def test_other_encodings_are_refused(self, tmp_path, encoding, text):
        with pytest.raises(ValueError, match="a.txt' is (a binary file, not text|not UTF-8).*iconv -f"):
            self.read(tmp_path, text.encode(encoding))

    @pytest.mark.parametrize("returned", ["One.", None, b"One.", ["One.", 2], 7])
    def test_a_splitter_that_gives_no_list_of_text_is_refused(self, tmp_path, returned):
        for content, name in ((b"One.", "a.txt"), (b'{"text": "One."}', "a.jsonl")):
            with pytest.raises(ValueError, match="sentence_splitter gives .* for 'One.': it has to return a list"):
                self.read(tmp_path, content, name, sentence_splitter=lambda text: returned)

    def test_a_splitter_may_give_any_iterable_of_text(self, tmp_path):
        for splitter in (lambda text: tuple(text.split()), lambda text: (part for part in text.split())):
            assert self.read(tmp_path, b"a b\nc", sentence_splitter=splitter) == [["a", "b", "c"]]

    def test_empty_file_has_no_document(self, tmp_path):
        assert self.read(tmp_path, b"") == []
        assert self.read(tmp_path, b"\n \n") == []

    def test_files_of_a_folder_in_order_each_ending_a_document(self, tmp_path):
        (tmp_path / "deep").mkdir()
        (tmp_path / "b.txt").write_text("From b.")
        (tmp_path / "a.TXT").write_text("From a.")
        (tmp_path / "deep" / "c.jsonl").write_text('{"text": "From c."}')
        (tmp_path / "notes.md").write_text("Not read.")
        assert list(read_documents([tmp_path])) == [["From a."], ["From b."], ["From c."]]
        assert list(read_documents([str(tmp_path / "notes.md"), tmp_path / "b.txt"])) == [["Not read."], ["From b."]]

    def test_documents_come_one_at_a_time(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "One."}\nnot json\n')
        documents = read_documents([path])
        assert next(documents) == ["One."]
        with pytest.raises(ValueError, match="a.jsonl, line 2: not JSON"):
            next(documents)

    def test_json_lines(self, tmp_path):
        records = [{"text": "One. Two.\nThree", "body": "Four."}, {"text": ""}, {"text": "Fi\ud800ve."}]
        lines = "\n\n".join(json.dumps(record) for record in records).encode()
        assert self.read(tmp_path, lines, "a.jsonl") == [["One.", "Two.", "Three"], ["Fi\ufffdve."]]

    def test_json_fields(self, tmp_path):
        line = json.dumps({"body": "One. Two.", "parts": ["A. B.", " ", "C."]}).encode()
        assert self.read(tmp_path, line, "a.jsonl", text_field="body") == [["One.", "Two."]]
        assert self.read(tmp_path, line, "a.jsonl", sentences_field="parts") == [["A. B.", "C."]]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"body": "One."}', r"line 1: no field 'text', found \['body'\].*text_field"),
            ('["One."]', "line 1: no field 'text', found list"),
            ('{"text": null}', "line 1: 'text' is None, not a str"),
            ('{"text": ["One."]}', "sentences_field"),
            ("[" * 100_000, "line 1: not JSON"),
        ],
    )
    def test_json_that_is_not_a_document_is_refused(self, tmp_path, line, message):
        with pytest.raises(ValueError, match=message):
            self.read(tmp_path, line.encode(), "a.jsonl")

    def test_json_list_of_other_things_is_refused(self, tmp_path):
        for value in ("One.", ["One.", 2]):
            with pytest.raises(ValueError, match="'parts' is .*not a list of str"):
                self.read(tmp_path, json.dumps({"parts": value}).encode(), "a.jsonl", sentences_field="parts")

    def test_paths_are_checked_before_anything_is_read(self, tmp_path):
        with pytest.raises(ValueError, match="gone.txt' does not exist"):
            read_documents([tmp_path / "gone.txt"])
        with pytest.raises(ValueError, match=r"holds no \*.txt and no \*.jsonl file: name"):
            read_documents([tmp_path])
        for name in ("a.md", "b.MD", "c.csv"):
            (tmp_path / name).write_text("One.")
        with pytest.raises(ValueError, match=r"no \*.jsonl file, but 2 .md, 1 .csv: name"):
            read_documents([tmp_path])
        with pytest.raises(ValueError, match="names no file"):
            read_documents([])
        with pytest.raises(ValueError, match="single path: give a list"):
            read_documents(str(tmp_path))
        (tmp_path / "a.txt.gz").write_bytes(b"")
        with pytest.raises(ValueError, match="decompress"):
            read_documents([tmp_path / "a.txt.gz"])


class TestDocumentsFromDataset:
    rows = datasets.Dataset.from_dict(
        {"text": ["One. Two.", "", "Three."], "parts": [["A. B."], [], ["C.", "D."]], "n": [1, None, 3]}
    )

    def test_documents(self):
        assert list(documents_from_dataset(self.rows)) == [["One.", "Two."], ["Three."]]
        assert list(documents_from_dataset(self.rows, sentences_column="parts")) == [["A. B."], ["C.", "D."]]
        whole = documents_from_dataset(self.rows.with_format("numpy"), sentence_splitter=one_sentence_per_line)
        assert list(whole) == [["One. Two."], ["Three."]]

    def test_streaming(self):
        assert list(documents_from_dataset(self.rows.to_iterable_dataset())) == [["One.", "Two."], ["Three."]]

    def test_rows_are_taken_in_the_order_of_the_dataset(self):
        assert list(documents_from_dataset(self.rows.select([2, 0]))) == [["Three."], ["One.", "Two."]]

    def test_wrong_datasets_are_refused(self):
        with pytest.raises(ValueError, match="no column 'body'.*text_column"):
            documents_from_dataset(self.rows, "body")
        with pytest.raises(ValueError, match=r"DatasetDict.*dataset\['train'\]"):
            documents_from_dataset(datasets.DatasetDict(train=self.rows))
        with pytest.raises(ValueError, match="row 0: 'n' is 1, not a str"):
            list(documents_from_dataset(self.rows, "n"))


class TestTokenizeDocuments:
    def test_rows_are_documents_and_lists_sentences(self, tokenizer):
        dataset = tokenize_documents(as_text(DOCUMENTS), tokenizer)
        assert dataset["input_ids"][:] == DOCUMENTS
        assert dataset.column_names == ["input_ids"]
        assert dataset.data.column("input_ids").type == pa.list_(pa.list_(pa.int32()))
        assert dataset.data.column("input_ids").num_chunks == 1
        assert [os.path.isfile(file["filename"]) for file in dataset.cache_files] == [True]

    @pytest.mark.parametrize("block_size", [1, 7, 2000])
    def test_any_batching_gives_the_same(self, tokenizer, monkeypatch, block_size):
        monkeypatch.setattr(sentence_encoding, "SENTENCES_PER_CALL", block_size)
        documents = random_documents(50)
        assert tokenize_documents(iter(as_text(documents)), tokenizer)["input_ids"][:] == documents

    def test_nothing_is_left_of_what_gives_no_token(self, tokenizer):
        documents = [["", "w5", " "], [" ", "\t"], [], ["w6 w7", ""]]
        assert tokenize_documents(documents, tokenizer)["input_ids"][:] == [[[5]], [[6, 7]]]
        assert tokenize_documents(documents, tokenizer, max_sentence_tokens=1)["input_ids"][:] == [[[5]], [[6], [7]]]

    def test_long_sentences_are_divided(self, tokenizer):
        documents = [["w5 w6 w7 w8 w9", "w5"], ["w5 w6"], ["w5 w6 w7 w8"]]
        assert tokenize_documents(documents, tokenizer, max_sentence_tokens=2)["input_ids"][:] == [
            [[5, 6], [7, 8], [9], [5]],
            [[5, 6]],
            [[5, 6], [7, 8]],
        ]
        pieces = tokenize_documents([["w5 " * 100_000]], tokenizer, max_sentence_tokens=512)[0]["input_ids"]
        assert [len(piece) for piece in pieces] == [512] * 195 + [160]

    def test_tokenizer_state_and_length_do_not_matter_and_do_not_change(self, tokenizer, transformers_log):
        tokenizer.model_max_length = 3
        tokenizer.backend_tokenizer.enable_truncation(2)
        tokenizer.backend_tokenizer.enable_padding(length=4)
        dataset = tokenize_documents([["w5 w6 w7 w8 w9", "w5"]], tokenizer)
        assert dataset["input_ids"][:] == [[[5, 6, 7, 8, 9], [5]]]
        assert not transformers_log.records
        assert tokenizer.backend_tokenizer.truncation["max_length"] == 2
        assert tokenizer.backend_tokenizer.padding["length"] == 4
        assert tokenizer.backend_tokenizer.encode_special_tokens is False

    def test_names_of_special_tokens_in_the_text_stay_text(self):
        vocabulary = {token: i for i, token in enumerate(["[UNK]", "[MASK]", "[", "]", "mask", "[url]"])}
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", mask_token="[MASK]")
        tokenizer.add_tokens([AddedToken("[url]", special=False)])
        assert tokenizer("[MASK]", add_special_tokens=False)["input_ids"] == [1]
        assert tokenize_documents([["[MASK] [url]"]], tokenizer)["input_ids"][:] == [[[2, 4, 3, 5]]]

    def test_a_tokenizer_without_a_fast_version(self, transformers_log):
        tokenizer = CanineTokenizer(model_max_length=10)
        dataset = tokenize_documents([["ab", "", "c" * 3000]], tokenizer)
        assert dataset["input_ids"][:] == [[[97, 98], [99] * 3000]]
        assert not transformers_log.records
        tokenizer("c" * 3000)
        assert "longer than the specified maximum" in transformers_log.text, "the warning that was kept away"

    def test_lone_surrogates_do_not_stop_the_tokenizer(self, tokenizer):
        unknown = tokenizer.unk_token_id
        assert tokenize_documents([["w5 \ud800 w6"]], tokenizer)["input_ids"][:] == [[[5, unknown, 6]]]

    def test_other_documents_never_meet_an_old_result(self, tokenizer, tmp_path):
        def generate(first):
            yield [first]
            yield ["w7"]

        one = tokenize_documents(generate("w5"), tokenizer, cache_dir=tmp_path)
        two = tokenize_documents(generate("w6"), tokenizer, cache_dir=tmp_path)
        again = tokenize_documents(generate("w5"), tokenizer, cache_dir=tmp_path)
        divided = tokenize_documents([["w5 w7"]], tokenizer, cache_dir=tmp_path)
        joined = tokenize_documents([["w5", "w7"]], tokenizer, cache_dir=tmp_path)
        assert [d["input_ids"][:] for d in (one, two, again, divided, joined)] == [
            [[[5]], [[7]]],
            [[[6]], [[7]]],
            [[[5]], [[7]]],
            [[[5, 7]]],
            [[[5], [7]]],
        ]
        assert one.cache_files == again.cache_files
        assert len(list(tmp_path.iterdir())) == 4, "the same corpus is there once, and nothing else is left behind"
        assert len({d._fingerprint for d in (one, two, divided, joined)}) == 4

    def test_an_interrupted_run_leaves_nothing(self, tokenizer, tmp_path):
        def generate():
            yield from as_text(random_documents(3000))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tokenize_documents(generate(), tokenizer, cache_dir=tmp_path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("segmenter", [None, str.split])
    def test_beyond_the_limit_of_list_columns(self, tokenizer, monkeypatch, tmp_path, segmenter):
        documents = random_documents(60)
        small = tokenize_documents(as_text(documents), tokenizer, word_segmenter=segmenter, cache_dir=tmp_path)
        monkeypatch.setattr(sentence_encoding, "SENTENCES_PER_CALL", 5)
        monkeypatch.setattr(arrow_file, "MOST_IN_A_LIST_COLUMN", 100)
        large = tokenize_documents(as_text(documents), tokenizer, word_segmenter=segmenter)
        column = large.data.column("input_ids")
        assert (column.num_chunks, column.type) == (1, pa.large_list(pa.large_list(pa.int32())))
        assert large["input_ids"][:] == documents
        store = FlatCorpus.of(large, keep_empty=True)
        assert store.tokens.__array_interface__["data"][0] == column.chunk(0).buffers()[-1].address, "not copied"
        assert contents(store) == documents == contents(pickle.loads(pickle.dumps(store)))
        for name in ("tokens", "sentence_offsets", "document_offsets", "word_starts"):
            ours, others = getattr(store, name), getattr(FlatCorpus.of(small, keep_empty=True), name)
            assert (ours is None) == (others is None) == (name == "word_starts" and segmenter is None)
            assert np.array_equal(ours, others) and (ours is None or ours.dtype == others.dtype)

    def test_what_is_joined_and_chosen_beyond_the_limit_is_one_piece(self, tokenizer, monkeypatch):
        documents = random_documents(60)
        parts = [tokenize_documents(as_text(documents[i : i + 20]), tokenizer) for i in (0, 20, 40)]
        monkeypatch.setattr(arrow_file, "MOST_IN_A_LIST_COLUMN", 100)
        joined = datasets.concatenate_datasets(parts)
        for dataset in (
            joined,
            joined.shuffle(seed=1),
            joined.select(range(5, 50)),
        ):
            store = FlatCorpus.of(dataset, keep_empty=True)
            assert contents(store) == dataset["input_ids"][:]

    def test_one_document_beyond_the_limit_is_refused(self, tokenizer, monkeypatch, tmp_path):
        monkeypatch.setattr(arrow_file, "MOST_IN_A_LIST_COLUMN", 100)
        (tmp_path / "a.txt").write_text("w5 " * 101)
        with pytest.raises(ValueError, match="one document has about 101 tokens"):
            prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, workers=1)

    def test_wrong_input_is_refused(self, tokenizer):
        with pytest.raises(ValueError, match="max_sentence_tokens=0"):
            tokenize_documents([["w5"]], tokenizer, max_sentence_tokens=0)
        for documents in ([["w5"], "w6 w7"], [["w5"], ["w6", None]], "w5 w6"):
            with pytest.raises(ValueError, match="document . is .*not a list of str"):
                tokenize_documents(documents, tokenizer)
        with pytest.raises(ValueError, match="word_segmenter gives 'w5' for 'w5', a str"):
            tokenize_documents([["w5"]], tokenizer, word_segmenter=str)
        for documents in ([], [[]], [["", " "]]):
            with pytest.raises(ValueError, match="no sentence that gives a token"):
                tokenize_documents(documents, tokenizer)


class TestStatistics:
    def test_exact_counts(self, tokenizer):
        unknown = tokenizer.unk_token_id
        documents = [[[5, 6], [7]], [[5], [6, 7]], [[unknown, 8, 9, 9]], [[7], [6, 5]], [[5, 6, 7]], [[9, 9]]]
        expected = CorpusStatistics(
            documents=6,
            sentences=9,
            tokens=18,
            one_sentence_documents=3,
            longest_sentence_tokens=4,
            duplicate_documents=2,
            unknown_share=1 / 18,
        )
        assert corpus_statistics(make_dataset(documents), tokenizer) == expected
        assert corpus_statistics(make_dataset(documents)).unknown_share is None
        tokenizer.unk_token = None
        assert corpus_statistics(make_dataset(documents), tokenizer).unknown_share == 0

    @pytest.mark.parametrize("step", [1, 3, 64, 10**6])
    def test_steps_do_not_change_the_counts(self, tokenizer, monkeypatch, step):
        documents = random_documents(200, seed=1)
        # Same tokens, other sentences: a copy. Another order: not one. Empty documents: copies of each other.
        documents += [[[t for s in d for t in s]] for d in documents[:7]] + [d[::-1] for d in documents if len(d) == 2]
        documents += [[], [], []]
        unique = {tuple(t for s in d for t in s) for d in documents}
        tokens = [t for d in documents for s in d for t in s]
        monkeypatch.setattr(report, "TOKENS_PER_STEP", step)
        tokenizer.unk_token = "w7"
        statistics = corpus_statistics(make_dataset(documents), tokenizer)
        assert statistics.duplicate_documents == len(documents) - len(unique)
        assert statistics.unknown_share == tokens.count(7) / len(tokens)

    def test_a_corpus_without_a_document(self):
        statistics = corpus_statistics(make_dataset(DOCUMENTS).select([]))
        assert statistics == CorpusStatistics(0, 0, 0, 0, 0, 0)
        assert "0 document(s)" in warnings_for(statistics)[0]

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, []),
            ({"documents": 1, "one_sentence_documents": 0, "duplicate_documents": 0}, ["blank line"]),
            ({"documents": 80, "tokens": 4_000_000}, ["boundaries between documents"]),
            ({"documents": 80, "tokens": 3_999_999}, []),
            ({"tokens": 10**9}, []),
            ({"dropped_duplicates": 1000}, []),
            ({"one_sentence_documents": 50}, []),
            ({"one_sentence_documents": 51}, ["split_sentences"]),
            ({"duplicate_documents": 10}, []),
            ({"duplicate_documents": 11}, ["Remove duplicates"]),
            ({"unknown_share": 0.05}, []),
            ({"unknown_share": 0.051}, ["Train a tokenizer"]),
            ({"unknown_share": None}, []),
            ({"unknown_share": 0.5, "duplicate_documents": 90}, ["Remove duplicates", "Train a tokenizer"]),
        ],
    )
    def test_warnings_name_the_remedy(self, changes, expected):
        numbers = {
            "documents": 100,
            "sentences": 900,
            "tokens": 9000,
            "longest_sentence_tokens": 60,
            "unknown_share": 0.01,
        }
        numbers |= {"one_sentence_documents": 3, "duplicate_documents": 1}
        warnings = warnings_for(CorpusStatistics(**(numbers | changes)))
        assert len(warnings) == len(expected)
        assert all(remedy in warning for remedy, warning in zip(expected, warnings, strict=True))


class TestSplit:
    def test_every_document_is_in_one_part_in_order(self):
        dataset = make_dataset([[[i]] for i in range(200)])
        training, validation = split_train_validation(dataset, 0.1, seed=3)
        parts = [[row[0][0] for row in part["input_ids"][:]] for part in (training, validation)]
        assert [len(part) for part in parts] == [180, 20]
        assert parts == [sorted(part) for part in parts]
        assert sorted(parts[0] + parts[1]) == list(range(200))
        assert max(np.diff(parts[1])) < 60, "validation is drawn from everywhere"

    def test_seed_decides(self):
        dataset = make_dataset([[[i]] for i in range(50)])

        def validation(seed):
            return [row[0][0] for row in split_train_validation(dataset, 0.2, seed)[1]["input_ids"][:]]

        assert validation(0) == validation(0) == [5, 8, 10, 20, 26, 29, 31, 36, 37, 43]
        assert validation(0) != validation(1)

    @pytest.mark.parametrize(
        ("documents", "share", "sizes"), [(2, 0.001, (1, 1)), (2, 0.99, (1, 1)), (5, 0.5, (3, 2))]
    )
    def test_both_parts_get_a_document(self, documents, share, sizes):
        dataset = make_dataset([[[i]] for i in range(documents)])
        assert tuple(map(len, split_train_validation(dataset, share, 0))) == sizes

    @pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
    def test_wrong_input_is_refused(self, share):
        with pytest.raises(ValueError, match=f"validation_share={share}"):
            split_train_validation(make_dataset(DOCUMENTS), share, 0)
        with pytest.raises(ValueError, match=r"1 document\(s\)"):
            split_train_validation(make_dataset(DOCUMENTS[:1]), 0.5, 0)
