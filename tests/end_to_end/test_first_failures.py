"""What a new user gets wrong first is told in one line, with exit status 2, before any work and with nothing written.

Each row is a command line; `NAME` in capitals is something in the folder that `place` makes.
"""

import errno
import shutil
from pathlib import Path

import pytest

from hf_encoders import cli, writing
from tests.hub.tiny_checkpoints import BERT, make_model, save_checkpoint


FINETUNE = "finetune text-classification --model MODEL --train ROWS --output OUT"
EVALUATE = "evaluate --model MODEL --text TEXT"
CORPUS = "corpus --input TEXT --tokenizer MODEL --workers 1 --output OUT"
EXPORT = "export MODEL --to native --output OUT"
PUBLISH = "publish MODEL --repo user/name --dry-run"
# Beyond what the commands' own tests of wrong options cover.
FAILURES = [
    # Not a model.
    (FINETUNE.replace("MODEL", "FOLDER"), "FOLDER' has no config.json: give a folder that save_pretrained wrote"),
    (EVALUATE.replace("MODEL", "RUN"), "RUN' has no config.json: give 'RUN/model', which has one."),
    (PUBLISH.replace("MODEL", "FOLDER"), "not published: 1 error(s) above"),
    (PUBLISH.replace("MODEL", "GONE"), "GONE' does not exist: check the spelling"),
    (EXPORT.replace("MODEL", "ROWS"), "ROWS' is a file: give the folder that it is in"),
    # A model without its tokenizer, or without its weights.
    (FINETUNE.replace("MODEL", "BARE"), "BARE' has no tokenizer, or one with special tokens only: save it there"),
    (EXPORT.replace("MODEL", "BARE"), "BARE has no weights: neither model.safetensors nor"),
    (PUBLISH.replace("MODEL", "BARE"), "not published: 3 error(s) above"),
    # Of another kind.
    (
        f"{EVALUATE} --classes transformers".replace("MODEL", "FOREIGN"),
        "FOREIGN' is a gpt2, which has no head for",
    ),
    (f"{EVALUATE} --classes transformers".replace("MODEL", "WRONG"), "WRONG' cannot be loaded (Validation error"),
    # Data.
    (FINETUNE.replace("ROWS", "FOLDER"), "FOLDER is not a file: give the path of a csv"),
    (FINETUNE.replace("ROWS", "EMPTY"), "has no rows"),
    (FINETUNE.replace("ROWS", "LATIN"), "is not UTF-8 (invalid continuation byte at byte 14): convert it"),
    (f"{FINETUNE} --text-column body", "--text-column body: the train data has no such column; it has text, label"),
    (FINETUNE.replace("ROWS", "HEADLESS"), "it has hello, a. For CSV without a header row, name them"),
    (FINETUNE.replace("ROWS", "ROW"), "takes every row of the training data (1)"),
    (EVALUATE.replace("TEXT", "EMPTY"), "has no sentence: name files with text"),
    (EVALUATE.replace("TEXT", "LATIN"), "1 of 2 sentences are not UTF-8: convert the files"),
    (EVALUATE.replace("TEXT", "LONG"), "1 of 2 sentences are longer than the 43 tokens that the model takes"),
    (f"{EVALUATE} --language xx", "language='xx' is not a language code"),
    ("quickstart --input EMPTY --output OUT", "--input has 0 document(s), too few"),
    # Nowhere to write.
    (FINETUNE.replace("OUT", "ROWS/out"), "ROWS is a file: name a folder"),
    (CORPUS.replace("OUT", "ROWS/out"), "ROWS is a file: name a folder"),
    (CORPUS.replace("OUT", "CLOSED/out"), "CLOSED may not be written to (Permission denied)"),
    (f"{EVALUATE} --json CLOSED/out.json", "CLOSED/out.json: may not be written: name another file"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_checkpoint(make_model(BERT, "AutoModelForMaskedLM"), BERT, tmp_path_factory.mktemp("model"))


@pytest.fixture
def place(model, tmp_path, monkeypatch) -> Path:
    """A working folder with everything that the commands name; `CLOSED` may not be written to, by whoever asks."""
    shutil.copytree(model, tmp_path / "MODEL")
    shutil.copytree(model, tmp_path / "RUN" / "model")
    for name in ("FOLDER", "CLOSED", "BARE", "FOREIGN", "WRONG"):
        (tmp_path / name).mkdir()
    config = (model / "config.json").read_text()
    (tmp_path / "BARE" / "config.json").write_text(config)
    for name, changed in (("FOREIGN", ('"bert"', '"gpt2"')), ("WRONG", ('"hidden_size": ', '"hidden_size": 0.'))):
        shutil.copytree(model, tmp_path / name, dirs_exist_ok=True)
        assert changed[0] in config
        (tmp_path / name / "config.json").write_text(config.replace(*changed))
    (tmp_path / "ROWS").write_text("text,label\nhello,a\nthere,b\n")
    (tmp_path / "HEADLESS").write_text("hello,a\nthere,b\nwhere,a\n")
    (tmp_path / "ROW").write_text("text,label\nhello,a\n")
    (tmp_path / "LATIN").write_bytes("text,label\ncaf\u00e9,a\n".encode("latin-1"))
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "TEXT").write_text("One sentence. Another one.\n")
    (tmp_path / "LONG").write_text("One sentence.\n" + "word " * 60)
    opened = writing.tempfile.TemporaryFile

    def closed(*arguments, dir=None, **options):
        if "CLOSED" in str(dir):
            raise PermissionError(errno.EACCES, "Permission denied", str(dir))
        return opened(*arguments, dir=dir, **options)

    monkeypatch.setattr(writing.tempfile, "TemporaryFile", closed)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("line", "message"), FAILURES, ids=[line for line, _ in FAILURES])
def test_first_failures_are_told_in_one_line(line, message, place, capsys):
    arguments = line.split()
    if arguments[0] == "finetune":
        arguments += ["--format", "csv", "--max-steps", "1"]
    before = sorted(place.rglob("*"))
    assert cli.main(arguments) == 2
    *others, told = capsys.readouterr().err.strip().splitlines()
    assert message in told and (told.startswith(f"hf-encoders {arguments[0]}: ") or arguments[0] == "publish")
    assert others == []
    assert sorted(place.rglob("*")) == before
