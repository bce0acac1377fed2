"""Which files a path stands for: nothing is left out in silence, and what is no text is refused."""

import gzip
import os
import random
import zipfile

import pytest

from hf_encoders import read_documents
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.text_files import skipped_files, text_files
from tests.corpus.prepared import rows


@pytest.fixture
def folder(tmp_path):
    """A folder with a file, and another folder beside it with two."""
    for name, text in (("in/a.txt", "w5 w6"), ("other/b.txt", "w7"), ("other/deep/c.jsonl", '{"text": "w8"}')):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "in"


class TestLinks:
    def test_linked_folders_are_entered(self, folder, tokenizer):
        (folder / "link").symlink_to(folder.parent / "other")
        names = [str(file.relative_to(folder)) for file in text_files([folder])]
        assert names == ["a.txt", "link/b.txt", "link/deep/c.jsonl"]
        prepare_corpus([folder], folder.parent / "out", tokenizer, workers=1)
        assert rows(folder.parent / "out") == [[[5, 6]], [[7]], [[8]]]

    def test_cycles_end_and_are_reported(self, folder):
        (folder / "here").symlink_to(folder)
        (folder / "above").symlink_to(folder.parent)
        (folder.parent / "other" / "back").symlink_to(folder / "above")
        assert [file.name for file in text_files([folder])] == ["a.txt", "b.txt", "c.jsonl"]
        assert skipped_files([folder]) == {"link to a folder that is read already": 3}

    def test_what_is_skipped_is_reported(self, folder, tokenizer):
        (folder / "gone.txt").symlink_to(folder / "nowhere")
        (folder / "gone").symlink_to(folder / "nowhere")
        os.mkfifo(folder / "pipe.txt")
        (folder / "x.md").write_text("w9")
        (folder / ".hidden.txt").write_text("w9")
        assert [file.name for file in text_files([folder])] == [".hidden.txt", "a.txt"]
        expected = {"broken link": 2, ".md": 1, "not a regular file": 1}
        assert skipped_files([folder]) == expected
        report = prepare_corpus([folder], folder.parent / "out", tokenizer, workers=1)
        assert report.reading["skipped_files"] == expected
        assert "skipped 2 broken link, 1 .md, 1 not a regular file" in " ".join(str(report).split())

    def test_a_folder_or_file_that_cannot_be_read_is_refused(self, folder, monkeypatch):
        scandir, opened = os.scandir, open

        def closed(path, *arguments):
            if str(path).endswith(("other", "b.txt")):
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path) if not arguments else opened(path, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", closed)
            with pytest.raises(ValueError, match="the folder '.*/other' cannot be read .Permission denied."):
                text_files([folder.parent])
        monkeypatch.setattr("builtins.open", closed)
        with pytest.raises(ValueError, match="b.txt' cannot be read .Permission denied."):
            text_files([folder.parent / "other"])

    def test_a_broken_link_and_a_binary_file_in_a_folder_are_named(self, folder):
        (folder / "gone.txt").symlink_to("nowhere")
        with pytest.raises(ValueError, match="gone.txt' is a broken link, to 'nowhere'"):
            text_files([folder / "gone.txt"])
        (folder / "b.txt").write_bytes(NOISE)
        with pytest.raises(ValueError, match="in/b.txt' is a binary file"):
            text_files([folder])


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89"
NOISE = random.Random(0).randbytes(4000)
CYRILLIC = "Все счастливые семьи похожи друг на друга.\n" * 9


class TestBinaryFiles:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("x.png", PNG, "is a binary file, not text"),
            ("x", gzip.compress(NOISE), "is compressed by its first bytes, not text: decompress it first"),
            ("x.dat", NOISE, "is a binary file, not text"),
            ("x.txt", "A sentence.".encode("utf-16-le"), "is a binary file, not text.*iconv -f UTF-16"),
            ("x.txt", CYRILLIC.encode("cp1251"), "is not UTF-8 .8.% of its first characters.*iconv"),
            ("x.csv", b"text,label\nw5,0\n", "is a table by its suffix, not text: .*--dataset.*--text-column"),
            ("x.ndjson", b'{"text": "w5"}', "rename it to .jsonl"),
            ("x.pdf", b"w5", "is a PDF by its suffix, .*pdftotext"),
            ("x.txt", b"%PDF-1.7\n" + b"1 0 obj <</Type /Catalog>>\n" * 99, "is a PDF by its first bytes.*pdftotext"),
            ("x.txt", rb"{\rtf1\ansi A sentence.}", "is an RTF document .*pandoc.*, or leave it out"),
            ("x.txt", b"\xef\xbb\xbf\n<!DOCTYPE html>\n<p>A sentence.", "is an HTML page .*pandoc.*, or leave it"),
            ("x.txt", b"PAR1\x15\x04" + b"a sentence " * 99, "is a Parquet table .*--dataset"),
        ],
    )
    def test_are_refused_with_the_remedy(self, tmp_path, name, content, message):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_documents([tmp_path / name])

    @pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    @pytest.mark.parametrize("name", ["x.epub", "x.txt", "x"])
    def test_an_archive_is_refused_also_where_its_files_are_stored_as_they_are(self, tmp_path, name, compression):
        with zipfile.ZipFile(tmp_path / name, "w", compression) as archive:
            archive.writestr("mimetype", "application/epub+zip")
            archive.writestr("chapter.xhtml", "<p>A sentence of a book.</p>\n" * 900)
        with pytest.raises(ValueError, match="is a ZIP archive, EPUB.*not text: decompress it first, or extract"):
            text_files([tmp_path / name])

    @pytest.mark.parametrize(
        "content",
        [
            CYRILLIC.encode(),
            "日本語の文。\n".encode() * 3000,  # the sample ends inside of a character
            "Les élèves français préfèrent l'été à Évian.\n".encode("latin-1"),  # warned of, once it is counted
            b"w5\x1b[0m\tw6\fw7\x0b\r\n" * 9,
            b"w5 \xff\0",
            b"PAR1 and PK begin a sentence, and so does <htmlx> or %PDF.",
            b"<p>A paragraph.</p>",
            b"",
        ],
    )
    def test_text_passes(self, tmp_path, content):
        (tmp_path / "a.txt").write_bytes(content)
        assert text_files([tmp_path / "a.txt"]) == [tmp_path / "a.txt"]
