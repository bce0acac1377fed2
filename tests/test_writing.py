"""Places that cannot be written are found before the work, by trying; results are written whole or not at all."""

import errno
import os
import shutil

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertTokenizer

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM, writing
from hf_encoders.tokenizer_loading import load_tokenizer
from hf_encoders.writing import check_file, check_folder, read_json, replaced_folder, storage_problem, write_whole
from tests.corpus.corpora import TINY_MODEL
from tests.forked_python import python_c


def test_a_folder_that_takes_no_file_is_refused_whatever_its_rights_say(tmp_path, monkeypatch):
    check_folder(tmp_path / "new" / "newer", "--output")
    check_file(tmp_path / "new.json", "--json")
    assert list(tmp_path.iterdir()) == []

    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(writing.tempfile, "TemporaryFile", read_only)
    with pytest.raises(ValueError, match="--output .*newer.* may not be written to .Read-only file system"):
        check_folder(tmp_path / "new" / "newer", "--output")
    with pytest.raises(ValueError, match="--json .*new.json: may not be written: name another file"):
        check_file(tmp_path / "new.json", "--json")


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_folder_is_replaced_when_the_new_one_is_whole(tmp_path):
    model = tmp_path / "some" / "model"
    for text in ("first", "second"):
        with replaced_folder(model) as folder:
            (folder / text).write_text(text)
            assert not model.exists() or content(model) == {"first": "first"}
        assert content(model) == {text: text}
    assert [path.name for path in model.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_leaves_the_folder_as_it_was(tmp_path, error):
    with replaced_folder(tmp_path / "model") as folder:
        (folder / "a").write_text("1")
    with pytest.raises(error), replaced_folder(tmp_path / "model") as folder:
        (folder / "b").write_text("2")
        raise error
    assert content(tmp_path / "model") == {"a": "1"} and len(list(tmp_path.iterdir())) == 1


def test_a_kill_between_the_two_renames_loses_neither(tmp_path):
    """The first of them is done; what was written anew is not there, or as another process left it."""
    (tmp_path / "_replaced_model").mkdir()
    (tmp_path / "_replaced_model" / "a").write_text("1")
    (tmp_path / "_model").mkdir()
    with pytest.raises(OSError, match="full"), replaced_folder(tmp_path / "model") as folder:
        assert content(tmp_path / "model") == {"a": "1"} and content(folder) == {}
        raise OSError("full")
    assert content(tmp_path / "model") == {"a": "1"}


def test_a_file_is_written_whole_or_stays(tmp_path, monkeypatch):
    write_whole(tmp_path / "x.json", "1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", None)
        patch.setattr("pathlib.Path.write_text", lambda *a, **k: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            write_whole(tmp_path / "x.json", "2")
    assert (tmp_path / "x.json").read_text() == "1"


def test_damaged_json_is_refused_with_the_remedy(tmp_path):
    for text in (b"", b"{", b"[]", b"\xff\xfe", b"null"):
        (tmp_path / "x.json").write_bytes(text)
        with pytest.raises(ValueError, match=r"x.json is damaged .*: remove it"):
            read_json(tmp_path / "x.json", "remove it.")
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "x.json", "") == {"a": 1}


KILLED = """
import os, shutil, sys
from pathlib import Path
from hf_encoders.writing import replaced_files

new, folder, changes = *map(Path, sys.argv[1:3]), int(sys.argv[3])

def counted(function):
    def change(*arguments, **options):
        global changes
        if changes == 0:
            os._exit(7)
        changes -= 1
        return function(*arguments, **options)
    return change

with replaced_files(folder, ["generator"]) as unfinished:
    shutil.copytree(new, unfinished, dirs_exist_ok=True)
    for owner, name in ((Path, "replace"), (Path, "unlink"), (os, "unlink"), (os, "rmdir")):
        setattr(owner, name, counted(getattr(owner, name)))
"""


def loaded(folder):
    """Whether tokenizer (stock and here) and model are the new ones; None where they are refused."""
    readers = (
        lambda: "new" in AutoTokenizer.from_pretrained(folder).get_vocab(),
        lambda: "new" in load_tokenizer(folder).get_vocab(),
        lambda: AutoModelForMaskedLM.from_pretrained(folder).get_input_embeddings().weight[0, 0].item() == 1,
    )
    found = []
    for read in readers:
        try:
            found.append(read())
        except (OSError, ValueError):
            found.append(None)
    return found


@pytest.mark.processes
def test_a_kill_leaves_no_parts_of_two_models(tmp_path):
    """The process is ended before each of the changes to the folder in turn."""
    for name, value in (("old", 0.0), ("new", 1.0)):
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", name]
        BertTokenizer(vocab={word: row for row, word in enumerate(words)}).save_pretrained(tmp_path / name)
        model = HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL | {"vocab_size": len(words)}))
        torch.nn.init.constant_(model.get_input_embeddings().weight, value)
        model.save_pretrained(tmp_path / name)
    HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL)).save_pretrained(tmp_path / "old" / "generator")
    (tmp_path / "old" / "added_tokens.json").write_text("{}")
    states = []
    for changes in range(100):
        folder = shutil.copytree(tmp_path / "old", tmp_path / "folder")
        (folder / "notes.txt").write_text("mine")
        arguments = [str(tmp_path / "new"), str(folder), str(changes)]
        status = python_c(KILLED, arguments, dict(os.environ), tmp_path).returncode
        states.append(loaded(folder))
        assert status in (0, 7) and (folder / "notes.txt").exists()
        if status == 0:
            break
        shutil.rmtree(folder)
    assert all(len(set(state) - {None}) < 2 for state in states), states
    assert not (folder / "generator").exists() and not (folder / "added_tokens.json").exists()
    assert states[0] == [False] * 3 and states[-1] == [True] * 3 and len(states) > 10


def test_errors_that_name_each_other_are_looked_at_once():
    """As those of a worker of `datasets`, whose cause is raised again."""
    cause = TypeError("of the worker")
    error = RuntimeError("of the library")
    error.__cause__, cause.__context__ = cause, error
    assert storage_problem(cause) is None
    cause.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert storage_problem(error) == "No space left on device"
