import json
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertTokenizer

from hf_encoders.cli import main
from hf_encoders.corpus import tokenizer_command
from hf_encoders.corpus.word_counts import SelectedText
from hf_encoders.writing import locked
from tests.corpus.trained import lines


@pytest.fixture
def text(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(lines()), encoding="utf-8")
    return str(path)


def tokenizer(*arguments) -> int:
    return main(["tokenizer", *map(str, arguments)])


def test_report_and_figures(text, tmp_path, capsys):
    out = tmp_path / "out"
    assert tokenizer("--kind", "wordpiece", "--input", text, "--vocab-size", 200, "--output", out) == 0
    report = json.loads((out / "tokenizer_report.json").read_text())
    trained = AutoTokenizer.from_pretrained(out)
    assert type(trained) is BertTokenizer and len(trained) == 200

    held_out = lines()[9::100]  # every hundredth document, from the tenth on
    ids = [i for line in held_out for i in trained(line, add_special_tokens=False)["input_ids"]]
    words = sum(len(line.split()) for line in held_out)
    figures = report["statistics"]
    assert (figures["entries"], figures["rows"]) == (200, 256) and figures["tokens"] == len(ids)
    assert figures["unknown_share"] == ids.count(trained.unk_token_id) / len(ids)
    assert figures["tokens_per_word"] == len(ids) / words
    assert figures["characters_per_token"] == sum(map(len, held_out)) / len(ids)
    assert figures["embedding_parameters"] == {"128": 256 * 128, "256": 256 * 256, "768": 256 * 768}
    on_train = [line for i, line in enumerate(lines()) if i % 100 != 9]
    used = {i for line in on_train for i in trained(line, add_special_tokens=False)["input_ids"]}
    assert figures["used_share"] == len(used - set(trained.all_special_ids)) / 195
    assert report["is_held_out"]
    printed = capsys.readouterr().out
    assert f"tokens per word       {figures['tokens_per_word']:.3f}\n" in printed
    assert f"measured on           {len(ids):,} tokens held out\n" in printed


def test_sizes_are_compared(text, tmp_path, capsys):
    common = ("--kind", "bpe", "--input", text, "--output", tmp_path / "out")
    assert tokenizer(*common, "--compare-sizes", 300, 340) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[:2] for row in rows[2:4]] == [["| 300", "320"], ["| 340", "384"]]
    assert (tmp_path / "out" / "tokenizer_sizes.md").read_text().splitlines() == rows[:4]
    assert tokenizer(*common[:-1], tmp_path / "alone", "--vocab-size", 340) == 0
    one, other = (tmp_path / folder / "tokenizer.json" for folder in ("out/340", "alone"))
    assert one.read_bytes() == other.read_bytes()


def test_a_short_text_is_measured_on_itself_and_says_so(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "the cat sat. on the mat"}\n')
    common = ("--kind", "unigram", "--input", tmp_path / "a.jsonl", "--output", tmp_path / "out", "--cased")
    assert tokenizer(*common, "--vocab-size", 40) == 0
    printed = capsys.readouterr().out
    assert "tokens trained on\n" in printed and "warning: the text is too short to hold out a part" in printed


def test_the_limit_is_spread_over_the_text():
    documents = [[f"{number:04d}abcdef"] for number in range(1000)]
    selected = SelectedText(documents, 0.1, limit_bytes=1000, total_bytes=10_000)
    passed = [int(line[:4]) for line in selected]
    assert 85 <= len(passed) <= 100 and selected.trained_bytes == 10 * len(passed)
    assert [sum(i // 250 == quarter for i in passed) // 5 for quarter in range(4)] == [4] * 4
    assert [int(line[:4]) for line in selected.held_out] == list(range(9, 1000, 10))
    assert not {line[:4] for line in selected.held_out} & {f"{i:04d}" for i in passed}
    assert len(list(SelectedText(documents, 0.0, limit_bytes=55))) == 5  # of unknown length: its first ones


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "gone.txt"], "'gone.txt' does not exist"),
        (["--input", "empty.txt"], "the text is empty"),
        (["--vocab-size", "20"], "vocab_size=20 is too small"),
        (["--compare-sizes", "200", "200"], "names a size twice"),
        (["--output", "full"], "holds files that this command did not write"),
        (["--kind", "bpe", "--lowercase"], "--lowercase has no effect with --kind bpe"),
        (["--kind", "bpe", "--strip-accents"], "--strip-accents has no effect with --kind bpe"),
        (["--limit", "0"], "--limit 0.0"),
        (["--held-out", "0.7"], "held_out_share=0.7"),
        (["--character-coverage", "2"], "character_coverage=2.0"),
        (["--vocab-size", "0"], "--vocab-size 0"),
        (["--add", "5"], "--add is for --extend"),
        (["--sampling-alpha", "0.5"], "--sampling-alpha is for sources with names"),
        (["--input", "en=text.txt", "text.txt"], "has no name, and en are names of sources"),
        (["--input", "en=text.txt", "--sampling-alpha", "0"], "alpha=0.0"),
        (["--input", "en=text.txt", "gsw=empty.txt"], "source 'gsw' has no text"),
    ],
)
def test_wrong_input_is_reported_in_one_line(text, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n")
    Path("full").mkdir()
    Path("full", "notes").write_text("")
    for option, value in (("--input", text), ("--output", "out"), ("--kind", "wordpiece")):
        if option not in arguments:
            arguments = [*arguments, option, value]
    assert tokenizer(*arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("hf-encoders tokenizer: ") and message in error
    assert not Path("out").exists()


def test_an_existing_tokenizer_is_kept_until_a_new_one_is_whole(text, tmp_path, capsys, monkeypatch):
    common = ("--kind", "wordpiece", "--input", text, "--output", tmp_path / "out", "--vocab-size")
    assert tokenizer(*common, 200) == 0
    assert tokenizer(*common, 210) == 2
    assert "holds a tokenizer: name another folder, or add --overwrite" in capsys.readouterr().err
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer_command, "save_report", lambda *arguments: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            tokenizer(*common, 210, "--overwrite")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert tokenizer(*common, 210, "--overwrite") == 0
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == 210


def test_what_is_damaged_and_not_read_is_reported(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_bytes("\n\n".join(lines()).encode("latin-1", "replace"))
    (folder / "b.md").write_text("not read")
    (folder / "gone.txt").symlink_to("nowhere")
    out = tmp_path / "out"
    assert tokenizer("--kind", "wordpiece", "--input", folder, "--output", out, "--vocab-size", 200) == 0
    printed = capsys.readouterr().out
    assert "sentences read have a character U+FFFD or NUL: the text is probably not UTF-8" in printed
    assert "skipped 1 .md, 1 broken link" in " ".join(printed.split())
    reading = json.loads((out / "tokenizer_report.json").read_text())["reading"]
    assert reading["damaged_sentences"] > 300 and reading["sentences"] == 403


def test_text_without_spaces_has_no_words(tmp_path, capsys):
    (tmp_path / "zh.txt").write_text("中文字中文，人民中国。\n\n" * 40 + "with some English words\n", encoding="utf-8")
    common = ("--kind", "wordpiece", "--input", tmp_path / "zh.txt", "--output", tmp_path / "out")
    assert tokenizer(*common, "--vocab-size", 100) == 0
    assert "tokens per word       -\n" in capsys.readouterr().out
    figures = json.loads((tmp_path / "out" / "tokenizer_report.json").read_text())["statistics"]
    assert figures["words"] is None and figures["tokens_per_word"] is None
    assert tokenizer(*common, "--overwrite", "--compare-sizes", 90, 100) == 0
    assert "| - | 1.000 |" in capsys.readouterr().out


def test_two_processes_do_not_write_into_one_folder(text, tmp_path, capsys):
    common = ("--kind", "wordpiece", "--input", text, "--output", tmp_path / "out", "--vocab-size", 200)
    with locked(tmp_path / "out", "--output", wait=False):
        assert tokenizer(*common) == 2
        assert "another process writes there" in capsys.readouterr().err


@pytest.fixture
def sources(text, tmp_path) -> list[str]:
    """A text, and a quarter as much of the same words backwards."""
    other = [" ".join(word[::-1] for word in line.split()) for line in lines()[:100]]
    (tmp_path / "other.txt").write_text("\n\n".join(other), encoding="utf-8")
    return [f"en={text}", f"gsw={tmp_path / 'other.txt'}"]


def test_sources_are_measured_each_by_itself(sources, tmp_path, capsys):
    reports = {}
    for alpha in (None, "0.2"):
        options = [] if alpha is None else ["--sampling-alpha", alpha]
        out = tmp_path / f"out-{alpha}"
        common = ("--kind", "wordpiece", "--vocab-size", 250, "--held-out", "0.2", "--output", out)
        assert tokenizer(*common, "--input", *sources, *options) == 0
        reports[alpha] = json.loads((out / "tokenizer_report.json").read_text())
    printed = capsys.readouterr().out
    assert re.search(r"source +MB +share +unknown +tokens per word", printed) and re.search(
        r"^gsw +0\.", printed, re.M
    )
    plain, flat = (reports[alpha]["sources"] for alpha in (None, "0.2"))
    sizes = {name: source["megabytes"] for name, source in plain.items()}
    assert plain["gsw"]["share"] == pytest.approx(sizes["gsw"] / sum(sizes.values()), rel=0.02)
    expected = {name: (size / sum(sizes.values())) ** 0.2 for name, size in sizes.items()}
    assert flat["gsw"]["share"] == pytest.approx(expected["gsw"] / sum(expected.values()), rel=0.01)
    assert flat["gsw"]["tokens_per_word"] < plain["gsw"]["tokens_per_word"]
    assert flat["en"]["tokens_per_word"] >= plain["en"]["tokens_per_word"]
    assert plain["gsw"]["bytes_per_token"] > plain["gsw"]["characters_per_token"]  # ä has two
    assert reports["0.2"]["settings"]["source"] == {"en": ["text.txt"], "gsw": ["other.txt"]}
    trained = [AutoTokenizer.from_pretrained(tmp_path / f"out-{alpha}") for alpha in (None, "0.2")]
    assert trained[0].get_vocab() != trained[1].get_vocab()


def test_the_limit_is_divided_by_the_shares(sources, tmp_path):
    common = ("--kind", "bpe", "--vocab-size", 300, "--held-out", 0, "--sampling-alpha", "0.5")
    assert tokenizer(*common, "--input", *sources, "--limit", "0.004", "--output", tmp_path / "out") == 0
    report = json.loads((tmp_path / "out" / "tokenizer_report.json").read_text())
    megabytes = {name: source["megabytes"] for name, source in report["sources"].items()}
    assert sum(megabytes.values()) <= 0.004
    for name, source in report["sources"].items():
        assert source["megabytes"] == pytest.approx(0.004 * source["share"], abs=0.0006), name
