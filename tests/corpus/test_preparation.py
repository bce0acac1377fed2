import json

import datasets
import pyarrow as pa
import pytest
from transformers import CanineTokenizer

from hf_encoders import corpus_statistics, documents_from_dataset, read_documents, tokenize_documents
from hf_encoders.corpus import arrow_file, merge, preparation, sentence_encoding, sources
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.report import CorpusReport
from hf_encoders.corpus.segmentation import one_sentence_per_line
from tests.corpus.prepared import Killed, arrow_bytes, rows, texts, write_text


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    monkeypatch.setattr(sources, "BYTES_PER_UNIT", 300)


class TestSameCorpus:
    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_any_number_of_workers_gives_what_reading_in_order_gives(self, tokenizer, tmp_path, workers):
        files = [write_text(tmp_path / f"{name}.txt", texts(40, seed)) for seed, name in enumerate("ab")]
        lines = [json.dumps({"text": text}) for text in texts(40, 2)]
        (tmp_path / "c.jsonl").write_text("\n".join(lines))
        report = prepare_corpus([tmp_path], tmp_path / "out", tokenizer, workers=workers)
        expected = tokenize_documents(read_documents([*files, tmp_path / "c.jsonl"]), tokenizer)
        assert rows(tmp_path / "out") == expected["input_ids"][:]
        assert report.run["workers"] == workers
        assert report.run["shards"] > 20

    def test_the_file_does_not_depend_on_workers(self, tokenizer, tmp_path):
        file = write_text(tmp_path / "a.txt", texts(60))
        for workers in (1, 3):
            prepare_corpus([file], tmp_path / str(workers), tokenizer, workers=workers)
        assert arrow_bytes(tmp_path / "1") == arrow_bytes(tmp_path / "3")
        names = ["_lock", "corpus.arrow", "corpus.json", "dataset_info.json", "state.json"]
        assert sorted(file.name for file in (tmp_path / "1").iterdir()) == names

    def test_files_are_written_in_steps(self, tokenizer, tmp_path, monkeypatch):
        file = write_text(tmp_path / "a.txt", texts(60))
        prepare_corpus([file], tmp_path / "whole", tokenizer, workers=1)
        monkeypatch.setattr(arrow_file, "BYTES_PER_WRITE", 100)
        prepare_corpus([file], tmp_path / "steps", tokenizer, workers=1)
        assert arrow_bytes(tmp_path / "steps") == arrow_bytes(tmp_path / "whole")

    def test_one_record_batch_that_a_store_does_not_copy(self, tokenizer, tmp_path):
        prepare_corpus([write_text(tmp_path / "a.txt", texts(60))], tmp_path / "out", tokenizer, workers=1)
        dataset = datasets.load_from_disk(str(tmp_path / "out"))
        column = dataset.data.column("input_ids")
        assert (column.num_chunks, column.type) == (1, pa.list_(pa.list_(pa.int32())))
        store = FlatCorpus.of(dataset, keep_empty=True)
        assert store.tokens.__array_interface__["data"][0] == column.chunk(0).buffers()[-1].address
        assert store.dataset.cache_files == dataset.cache_files
        assert store.word_starts is None

    def test_one_gigantic_document_and_one_long_line(self, tokenizer, tmp_path, monkeypatch):
        monkeypatch.setattr(sentence_encoding, "CHARACTERS_PER_PART", 50)
        words = [f"w{5 + i % 50}" for i in range(3000)]
        (tmp_path / "a.txt").write_text(" ".join(words) + "\n\n" + "\n".join(words))
        prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, keep_duplicates=True, workers=2)
        ids = [5 + i % 50 for i in range(3000)]
        assert rows(tmp_path / "out") == [[ids], [[i] for i in ids]]

    def test_hostile_text(self, tokenizer, tmp_path):
        (tmp_path / "a.txt").write_bytes(
            b"\xef\xbb\xbfw5 \xff w6\n\n\x00\n\n\xef\xbb\xbf\n\nw7\xc2\xa0.\n\n\xe4\xb8\n"
        )
        lines = [{"text": "w5 \ud83d w6"}, {"text": ""}, {"text": "\n\n"}, {"text": "w8\u2028w9\n\nw10"}]
        (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, lines)))
        prepare_corpus([tmp_path], tmp_path / "out", tokenizer, workers=2, keep_duplicates=True)
        assert rows(tmp_path / "out") == tokenize_documents(read_documents([tmp_path]), tokenizer)["input_ids"][:]
        assert len(rows(tmp_path / "out")) == 6

    def test_options_reach_the_workers(self, tokenizer, tmp_path):
        file = tmp_path / "a.jsonl"
        file.write_text('{"body": "w5 w6 w7. w8\\nw9", "parts": ["w5 w6 w7", "w8"]}\n')

        def prepare(**options):
            prepare_corpus([file], tmp_path / "out", tokenizer, workers=1, overwrite=True, **options)
            return rows(tmp_path / "out")

        unknown = tokenizer.unk_token_id
        assert prepare(text_column="body") == [[[5, 6, unknown], [8], [9]]]
        assert prepare(text_column="body", sentence_splitter=one_sentence_per_line) == [[[5, 6, unknown, 8], [9]]]
        assert prepare(sentences_column="parts") == [[[5, 6, 7], [8]]]
        assert prepare(sentences_column="parts", max_sentence_tokens=2) == [[[5, 6], [7], [8]]]

    def test_other_processes_keep_their_settings(self, tokenizer, tmp_path, monkeypatch):
        monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        file = write_text(tmp_path / "a.txt", texts(3))
        prepare_corpus([file], tmp_path / "one", tokenizer, workers=1)
        assert "TOKENIZERS_PARALLELISM" not in preparation.os.environ
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
        prepare_corpus([file], tmp_path / "two", tokenizer, workers=1)
        assert preparation.os.environ["TOKENIZERS_PARALLELISM"] == "true"

    def test_a_tokenizer_without_a_fast_version(self, tmp_path):
        (tmp_path / "a.txt").write_text("ab\n\ncd")
        prepare_corpus([tmp_path / "a.txt"], tmp_path / "out", CanineTokenizer(), workers=1)
        assert rows(tmp_path / "out") == [[[97, 98]], [[99, 100]]]


class TestDataSets:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_map_style(self, tokenizer, tmp_path, workers):
        dataset = datasets.Dataset.from_dict({"text": texts(60), "number": list(range(60))}).shuffle(seed=1)
        report = prepare_corpus(dataset, tmp_path / "out", tokenizer, workers=workers)
        expected = tokenize_documents(documents_from_dataset(dataset), tokenizer)
        assert rows(tmp_path / "out") == expected["input_ids"][:]
        assert report.run["shards"] > 10

    @pytest.mark.parametrize("workers", [1, 2])
    def test_streaming(self, tokenizer, tmp_path, workers):
        dataset = datasets.Dataset.from_dict({"body": texts(60)})
        report = prepare_corpus(
            dataset.to_iterable_dataset(), tmp_path / "out", tokenizer, text_column="body", workers=workers
        )
        expected = tokenize_documents(documents_from_dataset(dataset, "body"), tokenizer)
        assert rows(tmp_path / "out") == expected["input_ids"][:]
        assert report.run["shards"] > 10

    def test_lists_of_sentences(self, tokenizer, tmp_path):
        dataset = datasets.Dataset.from_dict({"parts": [["w5. w6", "w7"], ["w8"]]})
        for number, source in enumerate([dataset, dataset.to_iterable_dataset()]):
            prepare_corpus(source, tmp_path / str(number), tokenizer, sentences_column="parts", workers=1)
            assert rows(tmp_path / str(number)) == [[[3, 6], [7]], [[8]]]

    def test_errors_name_the_row(self, tokenizer, tmp_path):
        dataset = datasets.Dataset.from_dict({"text": [*texts(30), None, "w5"]})
        for number, source in enumerate([dataset, dataset.to_iterable_dataset()]):
            for workers in (1, 2):
                with pytest.raises(ValueError, match="row 30: 'text' is None, not a str"):
                    prepare_corpus(source, tmp_path / str(number), tokenizer, workers=workers)


class TestReport:
    def test_duplicates_are_dropped_and_counted(self, tokenizer, tmp_path):
        documents = ["w5 w6\nw7", "w8", "w5\nw6 w7", "w9 w10 w11", "w8", "w8 w8", "zz"]
        file = write_text(tmp_path / "a.txt", documents)
        report = prepare_corpus([file], tmp_path / "out", tokenizer, workers=1)
        assert rows(tmp_path / "out") == [[[5, 6], [7]], [[8]], [[9, 10, 11]], [[8, 8]], [[3]]]
        assert report.statistics.dropped_duplicates == 2
        assert report.statistics.duplicate_documents == 0
        kept = prepare_corpus([file], tmp_path / "kept", tokenizer, workers=1, keep_duplicates=True)
        assert len(rows(tmp_path / "kept")) == 7
        assert (kept.statistics.dropped_duplicates, kept.statistics.duplicate_documents) == (0, 2)

    def test_counts_are_those_of_the_corpus(self, tokenizer, tmp_path):
        file = write_text(tmp_path / "a.txt", [*texts(50), "zz w5\nzz", "w5"])
        report = prepare_corpus([file], tmp_path / "out", tokenizer, workers=2)
        assert report.statistics == corpus_statistics(datasets.load_from_disk(tmp_path / "out"), tokenizer)
        assert report.statistics.unknown_share > 0

    def test_the_file_holds_it_all(self, tokenizer, tmp_path):
        file = write_text(tmp_path / "a.txt", ["w5 zz", "w5 zz", "w6"])
        report = prepare_corpus([file], tmp_path / "out", tokenizer, workers=1)
        assert CorpusReport.load(tmp_path / "out") == report
        fields = json.loads((tmp_path / "out" / "corpus.json").read_text())
        assert fields["settings"]["source"]["files"][0][:2] == [str(file), file.stat().st_size]
        assert len(fields["settings"]["tokenizer"]["fingerprint"]) == 32
        assert fields["statistics"]["dropped_duplicates"] == 1
        assert fields["run"]["megabytes"] == round(12e-6, 3)
        assert {"tokenizers", "sentencex", "datasets", "pyarrow", "python"} <= set(fields["versions"])

    def test_table_and_warnings(self, tokenizer, tmp_path):
        file = write_text(tmp_path / "a.txt", ["w5 zz", "w5 zz", "w6"])
        text = str(prepare_corpus([file], tmp_path / "out", tokenizer, workers=1))
        for line in (
            r"documents               2",
            r"one-sentence documents  2 (100.0%)",
            r"duplicates dropped      1 (33.3% of the documents read)",
            r"longest sentence        2 tokens",
            r"unknown tokens          33.33%",
            r"warning: 2 of 2 documents have a single sentence",
            r"warning: 33.3% of the tokens are unknown",
        ):
            assert line in text
        (tmp_path / "b.txt").write_text("w5\n" * 100)
        one = prepare_corpus([tmp_path / "b.txt"], tmp_path / "one", tokenizer, workers=1)
        assert "1 document(s)" in one.warnings[0]
        assert (
            prepare_corpus([write_text(tmp_path / "c.txt", ["w5\nw6", "w6\nw7"])], tmp_path / "c", tokenizer).warnings
            == []
        )

    @pytest.mark.parametrize("workers", [1, 2])
    def test_text_that_is_not_utf8_is_counted_and_warned_of(self, tokenizer, tmp_path, workers):
        good, bad = b"w5 w6\nw7\n\n" * 150, b"caf\xe9\nw8 \x00 \xe9\n\n"
        (tmp_path / "a.txt").write_bytes(good + bad)
        report = prepare_corpus([tmp_path], tmp_path / "out", tokenizer, workers=workers, keep_duplicates=True)
        assert report.reading == {"sentences": 302, "damaged_sentences": 2, "skipped_files": {}}
        assert CorpusReport.load(tmp_path / "out") == report
        assert "with U+FFFD or NUL      2 (0.7% of the sentences read)" in str(report)
        assert not any("UTF-8" in warning for warning in report.warnings)
        (tmp_path / "a.txt").write_bytes(good + bad * 2)
        worse = prepare_corpus([tmp_path / "a.txt"], tmp_path / "worse", tokenizer, workers=workers)
        assert any("4 of 304 sentences read" in one and "iconv -f WINDOWS-1252" in one for one in worse.warnings)

    def test_counts_of_an_earlier_run_are_kept(self, tokenizer, tmp_path, monkeypatch):
        file, out = tmp_path / "a.txt", tmp_path / "out"
        file.write_bytes(b"caf\xe9 w5 w6 w7 w8\n\n" * 60)
        with monkeypatch.context() as broken, pytest.raises(Killed):
            broken.setattr(merge, "write_dataset_files", lambda *_, **__: (_ for _ in ()).throw(Killed))
            prepare_corpus([file], out, tokenizer, workers=1)
        report = prepare_corpus([file], out, tokenizer, workers=1)
        assert report.run["kept_shards"] == report.run["shards"] > 1
        assert (report.reading["sentences"], report.reading["damaged_sentences"]) == (60, 60)

    def test_files_of_other_endings_are_named(self, tokenizer, tmp_path):
        folder = tmp_path / "in"
        (folder / "deep").mkdir(parents=True)
        for name in ("a.txt", "b.md", "deep/c.MD", "README", *(f"x.e{i}" for i in range(5))):
            write_text(folder / name, ["w5\nw6", "w7\nw8"])
        report = prepare_corpus([folder], tmp_path / "out", tokenizer, workers=1)
        assert report.reading["skipped_files"] == {".md": 2, "without suffix": 1} | {f".e{i}": 1 for i in range(5)}
        assert "skipped 2 .md, 1 " in " ".join(str(report).split())
        assert str(report).count("2 other kinds") == 1
        single = prepare_corpus([folder / "a.txt"], tmp_path / "single", tokenizer, workers=1)
        assert single.reading["skipped_files"] == {} and "skipped" not in str(single)

    def test_wrong_input_is_refused_before_any_work(self, tokenizer, tmp_path):
        file, out = write_text(tmp_path / "a.txt", texts(3)), tmp_path / "out"
        for source, options, message in (
            ([tmp_path / "gone.txt"], {}, "gone.txt' does not exist"),
            ([], {}, "names no file"),
            (["/dev/null"], {}, "not a regular file"),
            ([file], {"workers": 0}, "workers=0"),
            ([file], {"max_sentence_tokens": 0}, "max_sentence_tokens=0"),
            (datasets.Dataset.from_dict({"body": ["w5"]}), {}, "no column 'text'"),
            (datasets.Dataset.from_dict({"text": []}), {}, "without rows"),
            (datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": ["w5"]})), {}, r"dataset\['train'\]"),
        ):
            with pytest.raises(ValueError, match=message):
                prepare_corpus(source, out, tokenizer, **options)
            assert not out.exists()
        with pytest.raises(ValueError, match="CanineTokenizer is written in Python"):
            prepare_corpus([file], out, CanineTokenizer(), word_segmenter=str.split)
        (tmp_path / "empty.txt").write_text("\n \n")
        with pytest.raises(ValueError, match="no sentence that gives a token"):
            prepare_corpus([tmp_path / "empty.txt"], out, tokenizer, workers=1)
