"""Places that cannot be written are found before the work, by trying; results are written whole or not at all."""

import errno
import os

import pytest

from hf_encoders import writing
from hf_encoders.writing import check_file, check_folder, read_json, replaced_folder, write_whole


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
    place = tmp_path / "some" / "model"
    for text in ("first", "second"):
        with replaced_folder(place) as folder:
            (folder / text).write_text(text)
            assert not place.exists() or content(place) == {"first": "first"}
        assert content(place) == {text: text}
    assert [path.name for path in place.parent.iterdir()] == ["model"]


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


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_damaged_json_is_told_with_the_remedy(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"x.json is damaged \(.*\): remove it"):
        read_json(tmp_path / "x.json", "remove it.")
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "x.json", "") == {"a": 1}
