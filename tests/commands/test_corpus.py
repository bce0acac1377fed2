import errno
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import datasets
import pytest
from transformers import AutoTokenizer, BertTokenizer

from hf_encoders import prepare_corpus, split_sentences, writing
from hf_encoders.cli import main
from hf_encoders.corpus import preparation, word_starts
from hf_encoders.corpus.documents import TextSource
from hf_encoders.corpus.report import CorpusReport
from hf_encoders.corpus.similar_words import SimilarWords
from tests.corpus.prepared import rows


# The command, with batches so small that it is killed within the text.
COMMAND = """
import sys
from hf_encoders.cli import main
from hf_encoders.corpus import preparation
preparation.BYTES_PER_WORKER, preparation.BYTES_PER_BATCH = 20_000, 2_000
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def tokenizer_folder(tokenizer, tmp_path) -> str:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.fixture
def text(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("w5 w6. w7\nw8\n\nw9 zz\n\nw9 zz\n")
    return str(path)


def corpus(*arguments: str) -> int:
    return main(["corpus", *map(str, arguments)])


def wait_until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


@pytest.mark.processes
def test_a_killed_run_resumes_and_ends_with_the_same_rows(tokenizer_folder, tmp_path, monkeypatch):
    generator = random.Random(0)
    documents = (" ".join(f"w{generator.randrange(5, 60)}" for _ in range(50)) + ".\n\n" for _ in range(10_000))
    (tmp_path / "a.txt").write_text("".join(documents))
    arguments = ["--input", tmp_path / "a.txt", "--tokenizer", tokenizer_folder, "--workers", "2"]
    out = tmp_path / "out"
    killed = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "corpus", *map(str, arguments), "--output", str(out)], start_new_session=True
    )
    # datasets writes into a folder that ends with .incomplete, and renames it.
    wait_until(lambda: list(out.glob("_unfinished/*/text/*/*/*[!e]/dataset_info.json")), seconds=120)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (out / "corpus.json").exists()
    with monkeypatch.context() as broken:
        broken.setattr(TextSource, "parts", None)  # the text is not read again
        assert corpus(*arguments, "--output", out) == 0
    assert corpus(*arguments, "--output", tmp_path / "whole") == 0
    assert rows(out) == rows(tmp_path / "whole") and len(rows(out)) == 10_000
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in (tmp_path / "whole").iterdir())


def test_report_is_printed(tokenizer_folder, text, tmp_path, capsys):
    assert corpus("--input", text, "--tokenizer", tokenizer_folder, "--output", tmp_path / "out") == 0
    assert rows(tmp_path / "out") == [[[5, 3], [7], [8]], [[9, 3]]]
    printed = capsys.readouterr().out
    assert "duplicates dropped      1 (33.3% of the documents read)" in printed
    assert "warning: 33.3% of the tokens are unknown" in printed
    assert f"datasets.load_from_disk({str(tmp_path / 'out')!r}) opens it" in printed


def test_options(tokenizer_folder, text, tmp_path, monkeypatch):
    common = ["--input", text, "--tokenizer", tokenizer_folder, "--output", tmp_path / "out", "--overwrite"]
    assert corpus(*common, "--one-sentence-per-line", "--keep-duplicates") == 0
    assert rows(tmp_path / "out") == [[[5, 3, 7], [8]], [[9, 3]], [[9, 3]]]
    assert corpus(*common, "--max-sentence-tokens", "1", "--language", "de") == 0
    assert rows(tmp_path / "out") == [[[5], [3], [7], [8]], [[9], [3]]]
    settings = CorpusReport.load(tmp_path / "out").settings
    assert settings["sentence_splitter"] == "hf_encoders.corpus.documents.split_sentences(language='de')"
    monkeypatch.setattr(word_starts, "jieba_segmenter", lambda entries: lambda sentence: sentence.split())
    assert corpus(*common, "--word-segmenter", "jieba") == 0
    assert datasets.load_from_disk(tmp_path / "out")["word_starts"][:] == [[[1, 1], [1], [1]], [[1, 1]]]


@pytest.mark.parametrize("streaming", [[], ["--streaming"]])
def test_a_dataset(tokenizer_folder, tmp_path, streaming):
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "test.jsonl").write_text('{"body": "w5. w6"}\n{"body": "w7"}\n')
    assert corpus(
        *("--dataset", folder, "--split", "test", "--text-column", "body", *streaming),
        *("--tokenizer", tokenizer_folder, "--output", tmp_path / "out"),
    ) == 0  # fmt: skip
    assert rows(tmp_path / "out") == [[[3], [6]], [[7]]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "gone.txt"], "'gone.txt' does not exist"),
        (["--input", "TEXT", "--tokenizer", "FOLDER"], "--tokenizer 'FOLDER' has no tokenizer that can be loaded"),
        # transformers makes a tokenizer without words of it, to which all text is unknown.
        (["--input", "TEXT", "--tokenizer", "MODEL"], "has no tokenizer, or one with special tokens only"),
        (["--input", "TEXT", "--language", "German"], "language='German' is not a language code"),
        (["--input", "TEXT", "--workers", "0"], "workers=0"),
        (["--input", "TEXT", "--max-sentence-tokens", "0"], "max_sentence_tokens=0"),
        (["--input", "BAD", "--workers", "2"], "bad.jsonl, line 2: not JSON"),
        (["--input", "TEXT", "--streaming"], "--streaming is for --dataset"),
        (["--dataset", "FOLDER"], "--dataset 'FOLDER' cannot be loaded"),
        (["--input", "TEXT", "--output", "FOLDER"], "holds files that are not a corpus"),
    ],
)
def test_wrong_input_is_reported_in_one_line(
    tokenizer_folder, text, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.setattr(preparation, "BYTES_PER_WORKER", 1)
    (tmp_path / "bad.jsonl").write_text('{"text": "w5"}\nnonsense\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    names = {
        "MODEL": str(tmp_path / "model"),
        "TEXT": text,
        "BAD": str(tmp_path / "bad.jsonl"),
        "FOLDER": str(tmp_path / "folder"),
    }
    arguments = [names.get(argument, argument) for argument in arguments]
    for option, value in (("--tokenizer", tokenizer_folder), ("--output", str(tmp_path / "out"))):
        if option not in arguments:
            arguments += [option, value]
    assert corpus(*arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("hf-encoders corpus: ")
    assert message.replace("FOLDER", names["FOLDER"]) in error
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_the_command_and_python_recognise_each_others_corpora(tokenizer_folder, text, tmp_path, capsys):
    from_python = AutoTokenizer.from_pretrained(tokenizer_folder)
    common = ("--input", text, "--tokenizer", tokenizer_folder, "--output")
    assert corpus(*common, tmp_path / "command") == 0
    report = prepare_corpus([text], tmp_path / "command", from_python)
    assert report == CorpusReport.load(tmp_path / "command")
    prepare_corpus(text, tmp_path / "python", from_python)
    changed = (tmp_path / "python" / "corpus.json").stat().st_mtime_ns
    assert corpus(*common, tmp_path / "python") == 0
    assert corpus(*common, tmp_path / "python", "--language", "en") == 0
    assert (tmp_path / "python" / "corpus.json").stat().st_mtime_ns == changed
    german = partial(split_sentences, language="de")
    assert corpus(*common, tmp_path / "german", "--language", "de") == 0
    for same in (german, partial(split_sentences, language="de")):
        prepare_corpus([text], tmp_path / "german", from_python, sentence_splitter=same)
    capsys.readouterr()
    assert corpus(*common, tmp_path / "german", "--keep-duplicates", "--max-sentence-tokens", "5") == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()[-4:-1]] == [
        "- sentence_splitter",
        "- max_sentence_tokens",
        "- keep_duplicates",
    ]


def test_a_closed_or_full_disk_is_reported_in_one_line(tokenizer_folder, text, tmp_path, capsys, monkeypatch):
    common = ("--input", text, "--tokenizer", tokenizer_folder, "--output", tmp_path / "out")
    with monkeypatch.context() as broken:
        broken.setattr(writing.tempfile, "TemporaryFile", no_space)
        for overwrite in ([], ["--overwrite"]):
            assert corpus(*common, *overwrite) == 2
            error = capsys.readouterr().err.strip().splitlines()[-1]
            assert f"{tmp_path} may not be written to (No space left on device): name another folder." in error
        assert not (tmp_path / "out").exists()
    with monkeypatch.context() as broken:
        broken.setattr(datasets.Dataset, "save_to_disk", no_space)
        assert corpus(*common, "--workers", "1") == 2
    assert "free some space" in capsys.readouterr().err.strip().splitlines()[-1]


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(file.read_bytes()[:-400]), Path.unlink])
def test_a_damaged_corpus_is_not_finished(tokenizer_folder, text, tmp_path, capsys, damage):
    common = ("--input", text, "--tokenizer", tokenizer_folder, "--output", tmp_path / "out")
    assert corpus(*common) == 0
    damage(tmp_path / "out" / "data-00000-of-00001.arrow")
    assert corpus(*common) == 2
    assert "holds a damaged corpus: corpus.json lists 2 documents" in capsys.readouterr().err
    assert corpus(*common, "--overwrite") == 0


class TestUnitsAndSimilarWords:
    @pytest.fixture
    def lists(self, tmp_path) -> dict[str, str]:
        texts = {"names": "w5 w6\n", "phrases": "w7 w8\n", "similar": "w7\tw8 w9\n", "empty": "# none\n"}
        for name, lines in texts.items():
            (tmp_path / name).write_text(lines)
        (tmp_path / "pictures").write_bytes(bytes(range(256)))
        return {name: str(tmp_path / name) for name in (*texts, "pictures")}

    def test_files(self, tokenizer_folder, tokenizer, tmp_path, lists, capsys):
        (tmp_path / "text.txt").write_text("w5 w6 w7 w8\n")
        common = ["--input", tmp_path / "text.txt", "--tokenizer", tokenizer_folder, "--output", tmp_path / "out"]
        options = ["--lexicon", lists["names"], "--phrases", lists["phrases"], "--similar-words", lists["similar"]]
        assert corpus(*common, *options) == 0
        assert datasets.load_from_disk(str(tmp_path / "out"))["word_starts"][:] == [[[15, 1, 7, 5]]]
        similar = SimilarWords.load(tmp_path / "out", tokenizer)
        assert len(similar.words) == 3 and [len(words) for words in similar.table.values()] == [2]
        printed = capsys.readouterr().out
        assert "entities" in printed and "words of the corpus without a similar one: 75.0%" in printed
        assert "warning: 75% of the words have no similar one" in printed
        assert corpus(*common, *options, "--overwrite") == 0
        prepare_corpus(
            [tmp_path / "text.txt"], tmp_path / "out", tokenizer, lexicon=["w5 w6"], phrases=["w7 w8"]
        )  # as the command made it

    def test_learned(self, tokenizer_folder, tokenizer, make_tokenizer, tmp_path):
        generator = random.Random(0)
        lines = [f"w{generator.randrange(5, 9)} w20 w21 w{generator.randrange(30, 33)}" for _ in range(300)]
        (tmp_path / "text.txt").write_text("\n".join(lines))
        common = ["--input", tmp_path / "text.txt", "--tokenizer", tokenizer_folder, "--output", tmp_path / "out"]
        assert corpus(*common, "--phrases", "--similar-words", "build", "--workers", "1") == 0
        assert (tmp_path / "out" / "phrases.tsv").read_text().splitlines()[1] == "w20 w21\t300\t1.000"
        table = SimilarWords.load(tmp_path / "out", tokenizer)
        assert {5, 6, 7, 8} <= {token for word in table.words for token in word}
        with pytest.raises(ValueError, match="was made with another tokenizer"):
            SimilarWords.load(tmp_path / "out", make_tokenizer(70))
        assert corpus(*common, "--overwrite") == 0
        assert not (tmp_path / "out" / "phrases.tsv").exists()
        assert not (tmp_path / "out" / "similar_words.safetensors").exists()

    @pytest.mark.slow
    def test_names_of_jieba_and_of_a_file(self, tmp_path):
        pytest.importorskip("jieba")
        text = "国务院和量子钟科技在北京签约。\n"
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        (tmp_path / "names").write_text("量子钟科技\n", encoding="utf-8")
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(text.strip())]
        folder = str(tmp_path / "tokenizer")
        BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)
        common = ["--input", tmp_path / "text.txt", "--tokenizer", folder, "--output", tmp_path / "out"]
        options = ["--lexicon", tmp_path / "names", "jieba", "--word-segmenter", "jieba", "--language", "zh"]
        assert corpus(*common, *options) == 0
        starts = datasets.load_from_disk(str(tmp_path / "out"))["word_starts"][0][0]
        #       国  务  院  和  量  子  钟  科  技  在  北  京  签  约  。
        assert starts == [13, 0, 0, 5, 13, 0, 0, 0, 0, 5, 13, 0, 5, 0, 5]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--lexicon", "empty"], "--lexicon 'EMPTY' has no entry"),
            (["--lexicon", "names", "pictures"], "is a binary file"),
            (["--lexicon", "jieba"], "--lexicon jieba: its names are words of its segmenter"),
            (["--phrases", "empty"], "--phrases 'EMPTY' has no entry"),
            (["--phrases"], "phrases: no words occur together 10 times"),
            (["--similar-words", "empty"], "has no word with a similar one"),
            (["--similar-words", "build"], "no two words that occur 5 times are similar"),
        ],
    )
    def test_wrong_lists_are_reported_in_one_line(
        self, tokenizer_folder, text, tmp_path, lists, capsys, options, message
    ):
        options = [lists.get(option, option) for option in options]
        assert corpus("--input", text, "--tokenizer", tokenizer_folder, "--output", tmp_path / "out", *options) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("hf-encoders corpus: ")
        assert message.replace("EMPTY", lists["empty"]) in error
