"""Preparation that was interrupted goes on, and never with anything else's shards."""

import os
import signal
from functools import partial

import datasets
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_encoders import read_documents, tokenize_documents
from hf_encoders.corpus import merge, sources
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.segmentation import one_sentence_per_line, split_sentences
from hf_encoders.corpus.shards import ShardWriter
from tests.corpus.prepared import Killed, arrow_bytes, rows, texts, write_text


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    monkeypatch.setattr(sources, "BYTES_PER_UNIT", 300)


class TestResume:
    @pytest.fixture
    def made(self, monkeypatch):
        """Numbers of the shards that were made."""
        numbers = []
        make = ShardWriter.write

        def counted(maker, number, part, text_digest):
            if made.stop_at == number:
                raise Killed
            numbers.append(number)
            return make(maker, number, part, text_digest)

        def made():
            found = numbers.copy()
            numbers.clear()
            return found

        made.stop_at = None
        monkeypatch.setattr(ShardWriter, "write", counted)
        return made

    def begin(self, made, *arguments, stop_at=7, **options):
        made.stop_at = stop_at
        with pytest.raises(Killed):
            prepare_corpus(*arguments, workers=1, **options)
        made.stop_at = None
        assert made() == list(range(stop_at))

    @pytest.mark.parametrize("kind", ["files", "rows", "stream"])
    def test_finished_shards_are_kept_and_the_corpus_is_the_same(self, tokenizer, tmp_path, made, kind):
        dataset = datasets.Dataset.from_dict({"text": texts(60)})
        source = {
            "files": [write_text(tmp_path / "a.txt", texts(60))],
            "rows": dataset,
            "stream": dataset.to_iterable_dataset(),
        }[kind]
        prepare_corpus(source, tmp_path / "whole", tokenizer, workers=1)
        num_shards = len(made())
        out = tmp_path / "out"
        self.begin(made, source, out, tokenizer)
        (folder,) = out.glob("shards-*")
        (folder / "00000003.arrow").unlink()  # workers do not finish in order
        (folder / "00000009.1.unfinished").write_bytes(b"half")
        report = prepare_corpus(source, out, tokenizer, workers=1)
        assert made() == [3, *range(7, num_shards)]
        assert (report.run["kept_shards"], report.run["shards"]) == (6, num_shards)
        assert arrow_bytes(out) == arrow_bytes(tmp_path / "whole")
        assert not list(out.glob("shards-*"))

    def test_killed_in_the_merge(self, tokenizer, tmp_path, made, monkeypatch):
        source, out = [write_text(tmp_path / "a.txt", texts(30))], tmp_path / "out"
        with monkeypatch.context() as broken, pytest.raises(Killed):
            broken.setattr(merge, "write_dataset_files", lambda *_, **__: (_ for _ in ()).throw(Killed))
            prepare_corpus(source, out, tokenizer, workers=1)
        assert made()
        prepare_corpus(source, out, tokenizer, workers=1)
        assert made() == []
        prepare_corpus(source, tmp_path / "whole", tokenizer, workers=1)
        assert arrow_bytes(out) == arrow_bytes(tmp_path / "whole")

    @pytest.mark.parametrize("is_finished", [True, False])
    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"max_sentence_tokens": 3}, "max_sentence_tokens: None there, 3 now"),
            ({"sentence_splitter": one_sentence_per_line}, "sentence_splitter"),
            (
                {"sentence_splitter": partial(split_sentences, language="de")},
                "sentence_splitter: split_sentences there, split_sentences.language='de'. now",
            ),
            ({"sentence_splitter": lambda text: [text]}, "sentence_splitter: .*lambda"),
            ({"keep_duplicates": True}, "keep_duplicates"),
            ({"word_segmenter": str.split}, "word_segmenter"),
            ({"text_column": "body"}, "text_column"),
        ],
    )
    def test_other_arguments_are_refused(self, tokenizer, tmp_path, made, is_finished, options, name):
        source, out = [write_text(tmp_path / "a.txt", texts(30))], tmp_path / "out"
        if is_finished:
            prepare_corpus(source, out, tokenizer, workers=1)
        else:
            self.begin(made, source, out, tokenizer, stop_at=2)
        made()
        with pytest.raises(ValueError, match=rf"other settings:\n- {name}.*\nGive the same .*overwrite=True"):
            prepare_corpus(source, out, tokenizer, **options)
        assert made() == []
        prepare_corpus(source, out, tokenizer, workers=1)
        assert (0 in made()) is False

    def test_other_input_or_tokenizer_is_refused(self, tokenizer, tmp_path, made):
        file, out = write_text(tmp_path / "a.txt", texts(30)), tmp_path / "out"
        other = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str().replace("w33", "w99")),
            unk_token="[UNK]",
        )
        self.begin(made, [file], out, tokenizer, stop_at=2)
        with pytest.raises(ValueError, match="\n- tokenizer: another one, also "):
            prepare_corpus([file], out, other)
        with pytest.raises(ValueError, match=r"- source: text files \(a.txt\) there, text files \(b.txt\) now\n"):
            prepare_corpus([write_text(tmp_path / "b.txt", texts(30))], out, tokenizer)
        write_text(file, [*texts(30), "w5"])
        with pytest.raises(ValueError, match=r"- source: another one, also text files \(a.txt\)\n"):
            prepare_corpus([file], out, tokenizer)
        with pytest.raises(ValueError, match=r"- source: text files \(a.txt\) there, dataset of 30 rows now\n"):
            prepare_corpus(datasets.Dataset.from_dict({"text": texts(30)}), out, tokenizer)
        assert made() == []
        report = prepare_corpus([file], out, tokenizer, workers=1, overwrite=True)
        assert report.run["kept_shards"] == 0
        assert rows(out) == tokenize_documents(read_documents([file]), tokenizer)["input_ids"][:]

    def test_state_of_the_last_call_of_a_tokenizer_is_not_a_difference(self, tokenizer, tmp_path, made):
        source, out = [write_text(tmp_path / "a.txt", texts(30))], tmp_path / "out"
        self.begin(made, source, out, tokenizer, stop_at=2)
        tokenizer("w5 w6", truncation=True, max_length=2, padding="max_length")
        prepare_corpus(source, out, tokenizer, workers=1)
        assert made()[0] == 2

    @pytest.mark.parametrize("is_finished", [True, False])
    def test_the_same_tokenizer_and_files_elsewhere_are_no_difference(
        self, tokenizer, tmp_path, made, monkeypatch, is_finished
    ):
        out = tmp_path / "out"
        (tmp_path / "text").mkdir()
        file = write_text(tmp_path / "text" / "a.txt", texts(30))
        for name in ("one", "two"):
            tokenizer.save_pretrained(tmp_path / name)
        one, two = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("one", "two"))
        assert one.name_or_path != two.name_or_path
        if is_finished:
            prepare_corpus([file], out, one, workers=1)
        else:
            self.begin(made, [file], out, one, stop_at=2)
        made()
        monkeypatch.chdir(tmp_path)
        (tmp_path / "text").rename(tmp_path / "moved")
        prepare_corpus(["moved"], out, two, workers=1)
        assert (0 in made()) is False
        assert rows(out) == tokenize_documents(read_documents([tmp_path / "moved"]), tokenizer)["input_ids"][:]

    def test_a_stream_in_another_order_is_refused(self, tokenizer, tmp_path, made):
        dataset, out = datasets.Dataset.from_dict({"text": texts(60)}), tmp_path / "out"
        self.begin(made, dataset.to_iterable_dataset(), out, tokenizer)
        with pytest.raises(ValueError, match="streaming dataset gives other text"):
            prepare_corpus(dataset.select([1, 0, *range(2, 60)]).to_iterable_dataset(), out, tokenizer, workers=1)
        assert made() == []

    def test_a_finished_corpus_is_left_as_it_is(self, tokenizer, tmp_path, made):
        source, out = [write_text(tmp_path / "a.txt", texts(30))], tmp_path / "out"
        report = prepare_corpus(source, out, tokenizer, workers=1)
        changed = (out / "corpus.arrow").stat().st_mtime_ns
        made()
        assert prepare_corpus(source, out, tokenizer, workers=2) == report
        assert made() == []
        assert (out / "corpus.arrow").stat().st_mtime_ns == changed
        stream = datasets.Dataset.from_dict({"text": texts(30)}).to_iterable_dataset()
        prepare_corpus(stream, tmp_path / "stream", tokenizer, workers=1)
        with pytest.raises(ValueError, match="the same streaming dataset cannot be checked"):
            prepare_corpus(stream, tmp_path / "stream", tokenizer, workers=1)

    def test_a_worker_that_is_killed_is_reported_and_loses_nothing(self, tokenizer, tmp_path, monkeypatch):
        source, out = [write_text(tmp_path / "a.txt", texts(30))], tmp_path / "out"
        make = ShardWriter.write

        def killed(maker, number, *part):
            if number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return make(maker, number, *part)

        with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="worker was killed.*fewer workers"):
            broken.setattr(ShardWriter, "write", killed)
            prepare_corpus(source, out, tokenizer, workers=2)
        report = prepare_corpus(source, out, tokenizer, workers=1)
        assert report.run["kept_shards"] > 0
        assert rows(out) == tokenize_documents(read_documents(source), tokenizer)["input_ids"][:]

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
        file = write_text(tmp_path / "a.txt", texts(30))
        make = ShardWriter.write

        def make_and_change(maker, number, part, text_digest):
            with open(file, "a") as text:
                text.write(" ")
            return make(maker, number, part, text_digest)

        monkeypatch.setattr(ShardWriter, "write", make_and_change)
        with pytest.raises(ValueError, match="files were changed"):
            prepare_corpus([file], tmp_path / "out", tokenizer, workers=1)
