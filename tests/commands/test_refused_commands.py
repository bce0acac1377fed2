"""A command that is refused, or fails before it trains, leaves the folders as they were."""

import shutil
from pathlib import Path

import pytest
import yaml

from hf_encoders.cli import main
from hf_encoders.corpus import preparation
from hf_encoders.runs import sources as run_corpus
from hf_encoders.runs.recipe import load_recipe
from tests.commands.pretrain_runs import TINY, pretrain, same_weights
from tests.corpus.corpora import write_corpus


@pytest.fixture(scope="module")
def folder(pretrained):
    folder = pretrained
    write_corpus(folder / "other.txt", 60, "gamma")
    (folder / "short.txt").write_text("One is here. Two is there.\n\nThree is.\n", encoding="utf-8")
    (folder / "empty.txt").write_text("", encoding="utf-8")
    (folder / "without_text.jsonl").write_text('{"text": "Alpha is."}\n{"body": "alpha"}\n', encoding="utf-8")
    (folder / "row.csv").write_text("text,label\nalpha,one\n", encoding="utf-8")
    recipe = {**TINY, "tokenizer": {"vocab_size": 160}}
    (folder / "larger.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    # A run of a prepared corpus has neither tokenizer nor text in its folder.
    tokenizer = ("--tokenizer", str(folder / "whole" / "tokenizer"))
    assert pretrain(folder, "of-corpus", *tokenizer, corpus="whole/_corpus") == 0
    return folder


def tree(folder: Path) -> dict[str, int | None]:
    """All files below a folder with their modification times, and all folders."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.stat().st_mtime_ns for path in folder.rglob("*")
    }


@pytest.mark.parametrize(
    ("words", "text", "recipe", "said"),
    [
        (("--seed", "5"), "text.txt", "tiny.yaml", "another seed"),
        (("--learning_rate", "0.5"), "text.txt", "tiny.yaml", "another training (learning_rate)"),
        ((), "text.txt", "larger.yaml", "another recipe (tokenizer)"),
        ((), "other.txt", "tiny.yaml", "holds a run with another corpus"),
    ],
)
def test_refused_in_the_folder_of_a_finished_run(folder, words, text, recipe, said, capsys, monkeypatch):
    before = tree(folder)
    if words:  # settings are compared before anything is made
        monkeypatch.setattr(run_corpus, "train_tokenizer", None)
    assert pretrain(folder, "of-corpus", *words, corpus=text, recipe=recipe) == 2
    assert said in capsys.readouterr().err
    assert tree(folder) == before


def test_a_process_that_opens_the_text_removes_nothing_of_one_that_is_ahead(folder, tmp_path):
    """The first process of several divides the corpus in this folder while the others open it."""
    divided = tmp_path / "_corpus" / "tmp1" / "part.arrow"
    divided.parent.mkdir(parents=True)
    divided.touch()
    sources = run_corpus.Sources.from_words([f"a={folder / 'text.txt'}"], ["en"])
    sources.open(load_recipe(folder / "tiny.yaml"), None, tmp_path)
    assert divided.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["pretrain", "tiny.yaml", "--corpus", "empty.txt"],
        ["pretrain", "tiny.yaml", "--corpus", "short.txt"],
        ["corpus", "--tokenizer", "whole/tokenizer", "--input", "empty.txt"],
        ["corpus", "--tokenizer", "whole/tokenizer", "--input", "without_text.jsonl"],
        ["tokenizer", "--family", "bert", "--input", "empty.txt"],
        ["tokenizer", "--family", "bert", "--input", "text.txt", "--compare-sizes", "150", "10"],
        ["quickstart", "--max-steps", "2", "--vocab-size", "150", "--input", "short.txt"],
        ["finetune", "text-classification", "--model", "whole/model", "--train", "row.csv"],
    ],
)
def test_a_refused_command_leaves_no_folder(folder, words, monkeypatch):
    monkeypatch.chdir(folder)
    before = tree(folder)
    assert main([*words, "--output", "new/of it"]) == 2
    assert tree(folder) == before


def test_a_full_disk_leaves_no_folder(folder, monkeypatch, capsys):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device", "corpus")

    before = tree(folder)
    with monkeypatch.context() as disk:
        disk.setattr(preparation, "finish_corpus", full)
        assert pretrain(folder, "new") == 2
    assert "free some space" in capsys.readouterr().err
    assert tree(folder) == before


def test_a_stopped_preparation_is_kept_and_gone_on_with(folder, monkeypatch):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as keys:
        keys.setattr(preparation, "finish_corpus", stopped)
        assert pretrain(folder, "stopped") == 130
    assert list((folder / "stopped" / "_corpus").glob("_unfinished/*/*.arrow"))
    learned = (folder / "stopped" / "tokenizer" / "tokenizer.json").stat().st_mtime_ns
    assert pretrain(folder, "stopped") == 0
    assert (folder / "stopped" / "tokenizer" / "tokenizer.json").stat().st_mtime_ns == learned


@pytest.mark.parametrize("first", ["other settings", "named", "same path"])
def test_what_a_plan_made_does_not_block_the_run(folder, first, capsys):
    """It is rebuilt where it does not fit, and the run is that of a new folder."""
    output, text, recipe, words = f"planned {first}", "text.txt", "tiny.yaml", ()
    if first == "other settings":
        recipe = "larger.yaml"
    elif first == "named":
        words = ("--corpus", f"a={folder / 'text.txt'}", f"b={folder / 'other.txt'}")
    elif first == "same path":
        text = "edited.txt"
        shutil.copy(folder / "other.txt", folder / text)
    assert pretrain(folder, output, "--plan", *words, corpus=text, recipe=recipe) == 0
    if first == "same path":
        shutil.copy(folder / "text.txt", folder / "edited.txt")
    text = text if first == "same path" else "text.txt"
    capsys.readouterr()
    assert pretrain(folder, output, corpus=text) == 0
    assert first == "named" or "it is rebuilt" in capsys.readouterr().out
    assert same_weights(folder, "whole", output)


def test_a_plan_that_fits_is_used(folder, capsys):
    assert pretrain(folder, "fitting", "--plan") == 0
    made = tree(folder / "fitting")
    assert pretrain(folder, "fitting") == 0
    assert "rebuilt" not in capsys.readouterr().out
    used = tree(folder / "fitting")
    assert all(used[name] == made[name] for name in ("tokenizer/tokenizer.json", "_corpus/corpus.json"))


def test_overwrite_that_is_refused_leaves_run_and_corpus(folder):
    run = folder / "whole"
    words = ["corpus", "--tokenizer", str(run / "tokenizer"), "--output", str(run / "_corpus"), "--overwrite"]
    before = tree(folder)
    assert pretrain(folder, "whole", "--overwrite", corpus="short.txt") == 2
    assert main([*words, "--input", str(folder / "without_text.jsonl")]) == 2
    assert {**tree(folder), "whole/_corpus/_lock": None} == {**before, "whole/_corpus/_lock": None}
    shutil.copytree(run, folder / "overwritten")
    assert pretrain(folder, "overwritten", "--overwrite", corpus="other.txt") == 0
    assert not list((folder / "overwritten").glob("_replaced*"))


def test_a_corpus_that_is_replaced_is_there_until_the_new_one_is(folder, monkeypatch):
    """Also if its preparation is stopped, which goes on without --overwrite."""
    words = ["corpus", "--tokenizer", str(folder / "whole" / "tokenizer"), "--output", str(folder / "prepared")]
    assert main([*words, "--input", str(folder / "text.txt")]) == 0
    first = (folder / "prepared" / "corpus.json").read_text()

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as keys:
        keys.setattr(preparation, "finish_corpus", stopped)
        assert main([*words, "--input", str(folder / "other.txt"), "--overwrite"]) == 130
    assert (folder / "prepared" / "corpus.json").read_text() == first
    assert main([*words, "--input", str(folder / "other.txt")]) == 0
    assert "other.txt" in (folder / "prepared" / "corpus.json").read_text()
    assert not (folder / "prepared" / "_unfinished").exists()
