"""Text and labels to try the commands on."""

import csv

import pytest

from hf_encoders.cli import main
from hf_encoders.corpus.python_docs import LabelledDocument
from hf_encoders.runs import quickstart as quickstart_text


@pytest.fixture
def documents(monkeypatch):
    """Sixty modules of three libraries; every passage says which module it is of."""
    found = [
        LabelledDocument(
            f"library{i % 3}",
            [[f"Passage {j} of module {i} has eight words.", "And another sentence."] for j in range(4)],
        )
        for i in range(60)
    ]
    monkeypatch.setattr(quickstart_text, "load_documents", lambda files, language: found)
    return found


def modules(text):
    return {word for before, word in zip(text.split(), text.split()[1:], strict=False) if before == "module"}


def test_text_and_both_tables_share_no_document(documents, tmp_path, capsys):
    assert main(["sample", "--output", str(tmp_path / "sample")]) == 0
    text = "".join(path.read_text() for path in sorted((tmp_path / "sample" / "text").iterdir()))
    tables = []
    for name in ("train.csv", "test.csv"):
        with (tmp_path / "sample" / name).open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["label"] for row in rows} <= {"library0", "library1", "library2"} and len(rows) > 8
        tables.append(modules(" ".join(row["text"] for row in rows)))
    parts = [modules(text), *tables]
    assert sorted(map(len, parts)) == [3, 6, 51] and len(set.union(*parts)) == 60
    assert text.count("\n\n") == 51 - 3  # a blank line between the documents of a file
    assert "51 documents of 3 libraries" in capsys.readouterr().out


def test_a_folder_that_holds_files_is_refused(documents, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["sample", "--output", str(tmp_path)]) == 2
    assert "holds files already: name another folder" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "mine"
