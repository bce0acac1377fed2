"""Places that cannot be written are found before the work, by trying."""

import errno

import pytest

from hf_encoders import writing
from hf_encoders.writing import check_file, check_folder


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
