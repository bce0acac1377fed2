"""Parallel text becomes a corpus of pairs, or is refused before anything is written."""

import datasets
import pytest

from hf_encoders import ParallelPairs, parallel_languages, prepare_corpus, prepare_parallel_corpus
from hf_encoders.cli import main
from hf_encoders.corpus import preparation
from tests.corpus.prepared import Killed, killed, rows, texts, write_text


ENGLISH = ["w5 w6", "w7", "w8 w9 w10", "", "w11"]
CHINESE = ["w20", "w21 w22", "w23", "w24", " \u3000"]
PAIRS = [[[5, 6], [20]], [[7], [21, 22]], [[8, 9, 10], [23]]]


def files(folder, english=ENGLISH, chinese=CHINESE, end="\n"):
    paths = [folder / "text.en", folder / "text.zh"]
    for path, lines in zip(paths, (english, chinese), strict=True):
        path.write_bytes("".join(line + end for line in lines).encode())
    return paths


def tsv(folder, lines):
    path = folder / "pairs.tsv"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def prepared(source, folder, tokenizer, **options):
    options = {"languages": ("en", "zh"), "workers": 1} | options
    return prepare_parallel_corpus(source, folder, tokenizer, **options)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_two_files_are_pairs_and_empty_sides_are_counted(tokenizer, tmp_path, end):
    report = prepared(files(tmp_path, end=end), tmp_path / "out", tokenizer)
    assert rows(tmp_path / "out") == PAIRS
    assert report.reading["skipped_files"] == {"pairs with an empty side": 2}
    assert "skipped 2 pairs with an empty side" in " ".join(str(report).split())
    assert parallel_languages(tmp_path / "out") == ("en", "zh") and parallel_languages(tmp_path) is None
    prepare_corpus([write_text(tmp_path / "a.txt", texts(3))], tmp_path / "other", tokenizer, workers=1)
    assert parallel_languages(tmp_path / "other") is None


def test_a_last_line_without_a_line_end_and_a_byte_order_mark(tokenizer, tmp_path):
    paths = files(tmp_path, ["\ufeffw5 w6", "w7"], ["w20", "w21 w22"])
    paths[1].write_bytes(paths[1].read_bytes().rstrip())
    prepared(paths, tmp_path / "out", tokenizer)
    assert rows(tmp_path / "out") == PAIRS[:2]


def test_columns_of_a_tsv(tokenizer, tmp_path):
    lines = [f"{i}\t{one}\t{other}" for i, (one, other) in enumerate(zip(ENGLISH, CHINESE, strict=True))]
    prepared(tsv(tmp_path, [line.partition("\t")[2] for line in lines]), tmp_path / "two", tokenizer)
    prepared([tsv(tmp_path, lines)], tmp_path / "three", tokenizer, columns=(2, 3))
    prepared(tmp_path / "pairs.tsv", tmp_path / "turned", tokenizer, columns=(3, 2))
    assert rows(tmp_path / "two") == rows(tmp_path / "three") == PAIRS
    assert rows(tmp_path / "turned") == [pair[::-1] for pair in PAIRS]


def test_a_duplicate_is_a_pair_of_which_both_sides_were_there(tokenizer, tmp_path):
    lines = ["w5\tw20", "w5\tw21", "w5\tw20", "w6\tw20"]
    report = prepared(tsv(tmp_path, lines), tmp_path / "out", tokenizer)
    assert rows(tmp_path / "out") == [[[5], [20]], [[5], [21]], [[6], [20]]]
    assert report.statistics.dropped_duplicates == 1


def test_killed_and_called_again_gives_the_same_with_any_number_of_workers(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "BYTES_PER_WORKER", 1)
    english, chinese = ([text.replace("\n", " ") for text in texts(60, seed)] for seed in (0, 1))
    paths = files(tmp_path, english, chinese)
    prepared(paths, tmp_path / "whole", tokenizer)
    with monkeypatch.context() as broken, pytest.raises(Killed):
        broken.setattr(preparation, "_tokenize_rows", killed)
        prepared(paths, tmp_path / "out", tokenizer)
    assert prepared(paths, tmp_path / "out", tokenizer, workers=2).statistics.documents == 60
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")
    with pytest.raises(ValueError, match="made with other settings:\n- source"):
        prepared(paths, tmp_path / "out", tokenizer, languages=("en", "de"))


def test_what_is_not_parallel_text_is_refused_before_anything_is_written(tokenizer, tmp_path):
    def refused(message, source, **options):
        with pytest.raises(ValueError, match=message):
            prepared(source, tmp_path / "out", tokenizer, **options)
        assert not (tmp_path / "out").exists()

    both = files(tmp_path)
    refused("text.en has 5 lines and .*text.zh has 7 lines.*align", files(tmp_path, chinese=[*CHINESE, "w5", "w6"]))
    refused("text.en has 5 lines and .*text.zh has 4 lines", files(tmp_path, chinese=CHINESE[:-1]))
    files(tmp_path)
    for names in (("en", "en"), ("en",), "en", ("en", "zh", "de"), ("en", "")):
        refused("languages=", both, languages=names)
    refused("--parallel names 3 files", [*both, both[0]])
    refused("'.*none.tsv' does not exist", tmp_path / "none.tsv")
    refused("is not a regular file", tmp_path)
    refused("pairs.tsv, line 2: it has no tab", tsv(tmp_path, ["w5\tw20", "w6 w21", "w5\tw20"]))
    refused("pairs.tsv, line 1: it has 3 columns: say which", tsv(tmp_path, ["w5\tw20\tw21"]))
    refused(r"line 2: it has 2 column\(s\), and column 3", tsv(tmp_path, ["0\tw5\tw20", "w6\tw21"]), columns=(2, 3))
    for columns in ((0, 1), (1, 1), (1,), 2, ("1", "2")):
        refused("columns=.* counted from 1", tsv(tmp_path, ["w5\tw20"]), columns=columns)
    refused("--columns is for a TSV", both, columns=(1, 2))
    refused("no line of .* two sides that differ", tsv(tmp_path, ["w5\t", "\tw6"]))
    refused("no line of .* two sides that differ", [both[0], both[0]])
    refused("no line of .* two sides that differ", tsv(tmp_path, ["w5\tw5", "w6\t", "w7 \tw7"]))
    refused("max_sentence_tokens", both, max_sentence_tokens=5)
    (tmp_path / "pairs.tsv").write_bytes(b"\x00\x01\x02" * 99)
    refused("is a binary file", tmp_path / "pairs.tsv")


class TestCommand:
    @pytest.fixture
    def corpus(self, tokenizer, tmp_path):
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        common = ("corpus", "--tokenizer", str(tmp_path / "tokenizer"), "--output", str(tmp_path / "out"))
        return lambda *arguments: main([*common, *map(str, arguments)])

    def test_the_command_prepares_pairs(self, corpus, tmp_path, capsys):
        assert corpus("--parallel", *files(tmp_path), "--languages", "en", "zh", "--workers", 1) == 0
        assert "2 pairs with an empty side" in capsys.readouterr().out
        pairs = ParallelPairs(datasets.load_from_disk(tmp_path / "out"), 16, parallel_languages(tmp_path / "out"))
        assert len(pairs) == 3

    @pytest.mark.parametrize(
        "options, message",
        [
            (["--parallel", "a", "b"], "--languages is missing"),
            (["--input", "a", "--languages", "en", "zh"], "--languages is for --parallel"),
            (["--input", "a", "--columns", "1", "2"], "--columns is for --parallel"),
            (["--parallel", "a", "--languages", "en", "zh", "--one-sentence-per-line"], "does not go with --parallel"),
            (["--parallel", "a", "--languages", "en", "zh", "--max-sentence-tokens", "9"], "--max-sentence-tokens"),
            (["--parallel", "a", "--languages", "en", "zh", "--phrases"], "--phrases does not go with --parallel"),
            (["--parallel", "a", "--languages", "en", "zh", "--streaming"], "--streaming does not go with"),
            (["--parallel", "a", "--languages", "en", "zh", "--language", "zh"], "--language zh splits text"),
            (["--parallel", "a", "--languages", "en", "zh", "--text-column", "x"], "--text-column does not go with"),
        ],
    )
    def test_other_options_are_refused(self, corpus, capsys, options, message):
        assert corpus(*options) != 0
        assert message in capsys.readouterr().err
