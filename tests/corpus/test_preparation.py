"""Text and datasets become a corpus: the same with any number of workers, resumed, and never mixed with another."""

import json
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial

import datasets
import pyarrow as pa
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, CanineTokenizer, PreTrainedTokenizerFast

from hf_encoders import (
    CorpusReport,
    corpus_statistics,
    one_sentence_per_line,
    prepare_corpus,
    read_documents,
    split_sentences,
    tokenize_documents,
)
from hf_encoders.corpus import preparation
from hf_encoders.corpus.documents import TextSource
from hf_encoders.writing import locked
from tests.corpus.prepared import Killed, killed, rows, texts, write_text


FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    """As many processes and batches as with much text."""
    monkeypatch.setattr(preparation, "BYTES_PER_WORKER", 1)
    monkeypatch.setattr(preparation, "BYTES_PER_BATCH", 300)
    monkeypatch.setattr(preparation, "DOCUMENTS_PER_WRITE", 3)


class TestSameCorpus:
    @pytest.mark.parametrize("workers", [1, 3])
    def test_any_number_of_workers_gives_what_reading_in_order_gives(self, tokenizer, tmp_path, workers):
        files = [write_text(tmp_path / f"{name}.txt", texts(40, seed)) for seed, name in enumerate("ab")]
        lines = [json.dumps({"text": text}) for text in texts(40, 2)]
        (tmp_path / "c.jsonl").write_text("\n".join(lines))
        report = prepare_corpus([tmp_path], tmp_path / "out", tokenizer, workers=workers)
        expected = tokenize_documents(read_documents([*files, tmp_path / "c.jsonl"]), tokenizer)
        assert rows(tmp_path / "out") == expected["input_ids"][:]
        assert report.run["workers"] == workers
        names = {"_lock", "corpus.json", "data-00000-of-00001.arrow", "dataset_info.json", "state.json"}
        assert {file.name for file in (tmp_path / "out").iterdir()} == names
        type_of_rows = datasets.load_from_disk(tmp_path / "out").data.column("input_ids").type
        assert type_of_rows == pa.list_(pa.list_(pa.int32()))
        for name in ("dataset_info.json", "state.json"):
            assert str(tmp_path) not in (tmp_path / "out" / name).read_text()

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


class TestDialogues:
    dialogues = (
        ["w5 w6", "w7", "w8"],
        [{"role": "query", "text": "w9"}, {"role": "query", "text": "w10"}, {"role": "response", "text": "w11"}],
        [{"role": "response", "text": "w12"}, {"role": "query", "text": "w13"}],
        ["", " "],
    )

    def test_files(self, tokenizer, tmp_path):
        lines = [json.dumps({"turns": turns}) for turns in self.dialogues]
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        (tmp_path / "b.txt").write_text("w5. w6\nw7\n\nw8\n")
        report = prepare_corpus([tmp_path], tmp_path / "out", tokenizer, turns_column="turns", workers=2)
        expected = [[[5, 6], [7], [8]], [[9], [], [10], [11]], [[], [12], [13]], [[3, 6], [7]], [[8]]]
        assert rows(tmp_path / "out") == expected
        assert report.statistics.sentences == 11 and report.settings["turns_column"] == "turns"

    def test_a_dataset_with_a_word_segmenter(self, tokenizer, tmp_path):
        dataset = datasets.Dataset.from_dict({"talk": [self.dialogues[1]]})
        options = {"turns_column": "talk", "word_segmenter": str.split, "workers": 1}
        prepare_corpus(dataset, tmp_path / "out", tokenizer, **options)
        assert rows(tmp_path / "out") == [[[9], [], [10], [11]]]
        assert datasets.load_from_disk(tmp_path / "out")["word_starts"][:] == [[[1], [], [1], [1]]]


class TestDataSets:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_stored_and_streamed(self, tokenizer, tmp_path, workers):
        dataset = datasets.Dataset.from_dict({"body": texts(60), "number": list(range(60))}).shuffle(seed=1)
        expected = tokenize_documents(map(split_sentences, dataset["body"]), tokenizer)["input_ids"][:]
        for name, source in (("stored", dataset), ("streamed", dataset.to_iterable_dataset())):
            prepare_corpus(source, tmp_path / name, tokenizer, text_column="body", workers=workers)
            assert rows(tmp_path / name) == expected

    def test_streams_of_other_text_have_other_fingerprints(self, tokenizer, tmp_path):
        fingerprints = set()
        for name, seed in (("a", 0), ("b", 1), ("again", 0)):
            stream = datasets.Dataset.from_dict({"text": texts(9, seed)}).to_iterable_dataset()
            prepare_corpus(stream, tmp_path / name, tokenizer, workers=1)
            fingerprints.add(datasets.load_from_disk(tmp_path / name)._fingerprint)
        assert len(fingerprints) == 2  # which identify the text of a run

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

    def test_text_that_is_not_utf8_is_counted_and_warned_of(self, tokenizer, tmp_path):
        good, bad = b"w5 w6\nw7\n\n" * 150, b"caf\xe9\nw8 \x00 \xe9\n\n"
        (tmp_path / "a.txt").write_bytes(good + bad)
        report = prepare_corpus([tmp_path], tmp_path / "out", tokenizer, workers=2, keep_duplicates=True)
        assert report.reading == {"sentences": 302, "damaged_sentences": 2, "skipped_files": {}}
        assert CorpusReport.load(tmp_path / "out") == report
        assert "with U+FFFD or NUL      2 (0.7% of the sentences read)" in str(report)
        assert not any("UTF-8" in warning for warning in report.warnings)
        (tmp_path / "a.txt").write_bytes(good + bad * 2)
        worse = prepare_corpus([tmp_path / "a.txt"], tmp_path / "worse", tokenizer, workers=2)
        assert any("4 of 304 sentences read" in one and "iconv -f WINDOWS-1252" in one for one in worse.warnings)

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
            (datasets.Dataset.from_dict({"text": []}), {"workers": 1}, "no sentence that gives a token"),
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


class TestResume:
    def test_what_datasets_has_cached_is_kept(self, tokenizer, tmp_path, monkeypatch):
        source, out = [write_text(tmp_path / "a.txt", texts(30))], tmp_path / "out"
        whole = prepare_corpus(source, tmp_path / "whole", tokenizer, workers=1)
        for step in ("document_table", "finish_corpus"):  # the documents are read; they are tokenized too
            with monkeypatch.context() as broken, pytest.raises(Killed):
                broken.setattr(preparation, step, killed)
                prepare_corpus(source, out, tokenizer, workers=1)
            assert not (out / "corpus.json").exists()
            monkeypatch.setattr(TextSource, "parts", killed)
        monkeypatch.setattr(preparation, "_tokenize_rows", killed)
        report = prepare_corpus(source, out, tokenizer, workers=3)
        assert (report.statistics, report.reading) == (whole.statistics, whole.reading)
        assert rows(out) == rows(tmp_path / "whole")
        assert not (out / "_unfinished").exists()

    @pytest.mark.parametrize("moved", [1, 3])
    def test_killed_while_the_finished_files_are_moved(self, tokenizer, tmp_path, monkeypatch, moved):
        source, out = [write_text(tmp_path / "a.txt", texts(9))], tmp_path / "out"
        prepare_corpus([write_text(tmp_path / "b.txt", texts(5))], out, tokenizer, workers=1)
        replace, calls = os.replace, []

        def replace_some(path, target):
            if target.parent == out:
                calls.append(target)
                if len(calls) > moved:
                    raise Killed
            replace(path, target)

        with monkeypatch.context() as broken, pytest.raises(Killed):
            broken.setattr(preparation.os, "replace", replace_some)
            prepare_corpus(source, out, tokenizer, workers=1, overwrite=True)
        assert not (out / "corpus.json").exists()
        report = prepare_corpus(source, out, tokenizer, workers=1, overwrite=moved == 3)
        assert len(rows(out)) == report.statistics.documents == 9

    def test_a_stream_is_read_again(self, tokenizer, tmp_path, monkeypatch):
        out = tmp_path / "out"
        with monkeypatch.context() as broken, pytest.raises(Killed):
            broken.setattr(preparation, "finish_corpus", killed)
            stream = datasets.Dataset.from_dict({"text": texts(9)}).to_iterable_dataset()
            prepare_corpus(stream, out, tokenizer, workers=1)
        stream = datasets.Dataset.from_dict({"text": texts(9)[::-1]}).to_iterable_dataset()
        prepare_corpus(stream, out, tokenizer, workers=1)
        expected = tokenize_documents(map(split_sentences, texts(9)[::-1]), tokenizer)
        assert rows(out) == expected["input_ids"][:]
        with pytest.raises(ValueError, match="streaming dataset cannot be checked"):
            prepare_corpus(stream, out, tokenizer, workers=1)

    def test_other_arguments_are_refused_for_a_finished_corpus(self, tokenizer, tmp_path):
        source, out = [write_text(tmp_path / "a.txt", texts(3))], tmp_path / "out"
        prepare_corpus(source, out, tokenizer, workers=1)
        german = partial(split_sentences, language="de")
        for options, difference in (
            ({"max_sentence_tokens": 3}, "max_sentence_tokens: None there, 3 now"),
            (
                {"sentence_splitter": german},
                "sentence_splitter: .*split_sentences.language=.de",
            ),
            ({"sentence_splitter": lambda text: [text]}, "sentence_splitter: .*lambda"),
            ({"keep_duplicates": True}, "keep_duplicates: False there"),
            ({"word_segmenter": str.split}, "word_segmenter: None there, .*split"),
            ({"text_column": "body"}, "text_column: 'text' there"),
        ):
            with pytest.raises(ValueError, match=rf"other settings:\n- {difference}.*\n.*overwrite=True"):
                prepare_corpus(source, out, tokenizer, **options)
        prepare_corpus(source, out, tokenizer, overwrite=True, max_sentence_tokens=3)

    def test_other_arguments_start_an_unfinished_corpus_again(self, tokenizer, tmp_path, monkeypatch):
        source, out = [write_text(tmp_path / "a.txt", texts(3))], tmp_path / "out"
        with monkeypatch.context() as broken, pytest.raises(Killed):
            broken.setattr(preparation, "finish_corpus", killed)
            prepare_corpus(source, out, tokenizer, workers=1)
        prepare_corpus(source, out, tokenizer, workers=1, max_sentence_tokens=1)
        expected = tokenize_documents(read_documents(source), tokenizer, max_sentence_tokens=1)
        assert rows(out) == expected["input_ids"][:]

    def test_other_input_or_tokenizer_is_refused(self, tokenizer, tmp_path):
        file, out = write_text(tmp_path / "a.txt", texts(3)), tmp_path / "out"
        other = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str().replace("w33", "w99")),
            unk_token="[UNK]",
        )
        prepare_corpus([file], out, tokenizer, workers=1)
        with pytest.raises(ValueError, match="\n- tokenizer: .* there, .* now\n"):
            prepare_corpus([file], out, other)
        with pytest.raises(ValueError, match="- source: .*a.txt.* there, .*b.txt.* now\n"):
            prepare_corpus([write_text(tmp_path / "b.txt", texts(3))], out, tokenizer)
        with pytest.raises(ValueError, match="- source: .*a.txt.* there, .*'rows': 3.* now\n"):
            prepare_corpus(datasets.Dataset.from_dict({"text": texts(3)}), out, tokenizer)
        write_text(file, [*texts(3), "w5"])
        with pytest.raises(ValueError, match="- source: .*a.txt.* there, .*a.txt.* now\n"):
            prepare_corpus([file], out, tokenizer)
        prepare_corpus([file], out, tokenizer, workers=1, overwrite=True)
        assert rows(out) == tokenize_documents(read_documents([file]), tokenizer)["input_ids"][:]

    def test_a_finished_corpus_is_left_as_it_is(self, tokenizer, tmp_path, monkeypatch):
        """Also with the same tokenizer and files elsewhere, and after other calls of the tokenizer."""
        out = tmp_path / "out"
        (tmp_path / "text").mkdir()
        file = write_text(tmp_path / "text" / "a.txt", texts(30))
        for name in ("one", "two"):
            tokenizer.save_pretrained(tmp_path / name)
        first, second = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("one", "two"))
        report = prepare_corpus([file], out, first, workers=1)
        second("w5 w6", truncation=True, max_length=2, padding="max_length")
        (tmp_path / "text").rename(tmp_path / "moved")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(preparation, "locked", None)  # on a disk that is read-only there is none
        assert prepare_corpus(["moved"], out, second, workers=2) == report

    def test_the_new_corpus_replaces_a_finished_one_at_the_end(self, tokenizer, tmp_path, monkeypatch):
        out = tmp_path / "out"
        report = prepare_corpus([write_text(tmp_path / "a.txt", texts(9))], out, tokenizer, workers=1)
        other = [write_text(tmp_path / "b.txt", texts(5))]
        with monkeypatch.context() as broken, pytest.raises(Killed):
            broken.setattr(preparation, "corpus_statistics", killed)
            prepare_corpus(other, out, tokenizer, workers=1, overwrite=True)
        assert CorpusReport.load(out) == report and len(rows(out)) == 9
        prepare_corpus(other, out, tokenizer, workers=1, overwrite=True)
        assert len(rows(out)) == 5

    def test_files_of_others_are_never_touched(self, tokenizer, tmp_path):
        file = write_text(tmp_path / "a.txt", texts(3))
        out = tmp_path / "out"
        out.mkdir()
        (out / "state.json").write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(ValueError, match="holds files that are not a corpus"):
                prepare_corpus([file], out, tokenizer, overwrite=overwrite)
        assert (out / "state.json").read_text() == "mine"
        with pytest.raises(ValueError, match="is a file: name a folder"):
            prepare_corpus([file], file, tokenizer)

    def test_files_that_change_meanwhile_are_refused(self, tokenizer, tmp_path, monkeypatch):
        file, make = write_text(tmp_path / "a.txt", texts(30)), preparation.document_table

        def make_and_change(*arguments):
            with open(file, "a") as text:
                text.write(" ")
            return make(*arguments)

        monkeypatch.setattr(preparation, "document_table", make_and_change)
        with pytest.raises(ValueError, match="files were changed"):
            prepare_corpus([file], tmp_path / "out", tokenizer, workers=1)
        assert not (tmp_path / "out").exists()


def prepare_later(results, *arguments, **options):
    try:
        report = prepare_corpus(*arguments, workers=1, **options)
        results.put((report.statistics.tokens, len(rows(arguments[1]))))
    except BaseException as error:
        results.put(repr(error))
        raise


def prepare_in_a_group(*arguments, **options):
    os.setsid()
    prepare_corpus(*arguments, **options)


class TestProcessesAtOnce:
    """One works, the others wait, and nobody for ever."""

    @pytest.fixture
    def slow(self, monkeypatch):
        """Batches take a while, so that processes meet; counts them, in all processes."""
        make, made = preparation.document_table, FORK.Value("i", 0)

        def slowly(*arguments):
            time.sleep(0.02)
            with made.get_lock():
                made.value += 1
            return make(*arguments)

        monkeypatch.setattr(preparation, "document_table", slowly)
        return made

    @pytest.mark.slow
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_one_makes_the_corpus_and_the_others_use_it(self, tokenizer, tmp_path, slow, overwrite):
        source, out = [write_text(tmp_path / "a.txt", texts(60))], tmp_path / "out"
        report = prepare_corpus(source, tmp_path / "alone", tokenizer, workers=1)
        expected, num_batches = (report.statistics.tokens, len(rows(tmp_path / "alone"))), slow.value
        slow.value, results = 0, FORK.Queue()
        arguments, options = (results, source, out, tokenizer), {"overwrite": overwrite}
        processes = [FORK.Process(target=prepare_later, args=arguments, kwargs=options) for _ in range(3)]
        for process in processes:
            process.start()
        assert [results.get(timeout=60) for _ in processes] == [expected] * 3
        for process in processes:
            process.join()
        # One that is to overwrite, and comes when another has finished, makes it again.
        assert slow.value == num_batches or (overwrite and slow.value % num_batches == 0)
        assert not (out / "_unfinished").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_killed_process_does_not_keep_the_lock(self, tokenizer, tmp_path, slow, capsys, workers):
        source, out = [write_text(tmp_path / "a.txt", texts(60))], tmp_path / "out"
        first = FORK.Process(target=prepare_in_a_group, args=(source, out, tokenizer), kwargs={"workers": workers})
        first.start()
        while slow.value < 5:
            time.sleep(0.01)
        waiting = threading.Timer(0.2, os.kill, (first.pid, signal.SIGKILL))
        waiting.start()
        assert prepare_corpus(source, out, tokenizer, workers=1).statistics.documents == 60
        first.join()
        assert first.exitcode == -signal.SIGKILL
        with suppress(ProcessLookupError):  # what is left of the workers of `datasets`
            os.killpg(first.pid, signal.SIGKILL)
        assert "Waiting for another process that is writing to" in capsys.readouterr().err

    def test_who_does_not_wait_is_reported(self, tmp_path):
        with (
            locked(tmp_path / "out", "--output", wait=False),
            pytest.raises(ValueError, match="--output '.*out': another process writes there"),
            locked(tmp_path / "out", "--output", wait=False),
        ):
            pass
        with locked(tmp_path / "out", "--output", wait=False):
            pass
