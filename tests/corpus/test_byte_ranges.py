import io
import json
import random

import pytest

from hf_encoders.corpus import byte_ranges as module
from hf_encoders.corpus.byte_ranges import ByteRange, byte_ranges, lines_before, open_range
from hf_encoders.corpus.documents import DocumentReader, read_documents
from hf_encoders.corpus.segmentation import one_sentence_per_line


MARK = "\ufeff".encode()
TEXTS = {
    "blank lines": b"one\ntwo\n\nthree\n\n\n\nfour\n",
    "windows": b"one\r\ntwo\r\n\r\nthree\r\n \t \r\nfour",
    "old mac": b"one\rtwo\r\rthree\r \rfour\r",
    "all mixed": b"one\r\r\ntwo\n\r\nthree\r\n\rfour\r\n\n\r\r\nfive",
    "begins blank": b"\n\n\none\n\ntwo\n\n\n",
    "no document": b"\n \r\n\n",
    "no line end": b"one two three",
    "byte order marks": MARK + b"one\n\n" + MARK + b"two\n" + MARK + b"\nthree\n\n" + MARK + b"\n" + MARK + b" four",
    "wide blank lines": "one\n\u3000\ntwo\n\u00a0 \u2003\n\nthree\n\x85\nfour\n\x1c\x0c\nfive".encode(),
    "not utf-8": b"caf\xe9\n\n\xe4\xb8\n\n\xff\n\xfe\n\n\xe4\xb8\xad\xe5",
    "nul and controls": b"a\x00b\x0bc\n\n\x00\n\nd\x1ee\n\n\x1f\n",
    "long lines": b"a" * 300 + b"\n\n" + b"b" * 200 + b"\n" + b" " * 150 + b"\nc",
}


def reference(data: bytes) -> list[list[str]]:
    """Documents, the plain way."""
    documents = [[]]
    for line in io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", errors="replace"):
        line = line.strip().lstrip("\ufeff")
        if line:
            documents[-1] += one_sentence_per_line(line)
        else:
            documents.append([])
    return [document for document in documents if document]


def read_in_ranges(path, least_bytes) -> list[list[str]]:
    reader = DocumentReader(one_sentence_per_line)
    return [document for part in byte_ranges(path, least_bytes) for document in reader.of_file(part)]


@pytest.fixture(autouse=True)
def _small_looks(monkeypatch):
    """Searches for a cut that go over the border of what is read at once."""
    monkeypatch.setattr(module, "_SMALLEST_LOOK", 3)
    monkeypatch.setattr(module, "_LARGEST_LOOK", 5)


@pytest.mark.parametrize("name", TEXTS)
def test_ranges_of_any_size_give_the_documents_of_the_whole(tmp_path, name):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXTS[name])
    expected = reference(TEXTS[name])
    assert list(read_documents([path], sentence_splitter=one_sentence_per_line)) == expected
    for least_bytes in range(1, len(TEXTS[name]) + 2):
        ranges = list(byte_ranges(path, least_bytes))
        assert [part.begin for part in ranges] == [0, *(part.end for part in ranges[:-1])]
        assert ranges[-1].end == len(TEXTS[name])
        assert all(part.end - part.begin >= least_bytes for part in ranges[:-1])
        assert b"\r\n" not in {TEXTS[name][part.end - 1 : part.end + 1] for part in ranges}, "half a line end"
        assert read_in_ranges(path, least_bytes) == expected, least_bytes


def test_random_bytes(tmp_path):
    generator = random.Random(0)
    path = tmp_path / "a.txt"
    parts = [b"\n", b"\r", b"\r\n", b" ", b"a", MARK, "\u3000".encode(), b"\xe4", b"\x80", b"\x00", b"\x1c", b"\x85"]
    for _ in range(300):
        data = b"".join(generator.choices(parts, weights=[6, 3, 4, 3, 4, 1, 1, 1, 1, 1, 1, 1], k=40))
        path.write_bytes(data)
        for least_bytes in (1, 2, 3, 7):
            assert read_in_ranges(path, least_bytes) == reference(data), data


def test_cuts_are_found_at_blank_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXTS["windows"])
    assert [part.begin for part in byte_ranges(path, 1)] == [0, 12, 24]
    path.write_bytes(b"")
    assert list(byte_ranges(path, 1)) == []


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\n\r\n \n"])
def test_json_lines_in_ranges_of_any_size(tmp_path, line_end):
    documents = [["one"], ["two \u2028 three\x85!"], ["four", "five"], ["\u00e9"]]
    lines = [json.dumps({"text": "\n".join(document)}, ensure_ascii=i == 3) for i, document in enumerate(documents)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(MARK + line_end.join(lines).encode())
    for least_bytes in range(1, 60):
        assert read_in_ranges(path, least_bytes) == documents
    assert len(list(byte_ranges(path, 1))) >= 4


def test_errors_name_the_line_of_the_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\r\n\r{"text": "two"}\n' * 20 + b"nonsense\n")
    for least_bytes in (1, 100, 10_000):
        with pytest.raises(ValueError, match="a.jsonl, line 61: not JSON"):
            read_in_ranges(path, least_bytes)
    last = list(byte_ranges(path, 100))[-1]
    assert last.begin > 0
    with open_range(last) as lines:
        assert lines_before(last) + sum(1 for _ in lines) == 61
    assert lines_before(ByteRange(path)) == 0


def test_a_file_without_a_cut_is_looked_through_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SMALLEST_LOOK", 100)
    monkeypatch.setattr(module, "_LARGEST_LOOK", 100)
    path = tmp_path / "a.txt"
    path.write_bytes(b"line\n" * 2000 + b"\n" + b"line\n")
    looked_at = []
    first_cut = module._first_cut
    monkeypatch.setattr(module, "_first_cut", lambda *args: looked_at.append(args[2]) or first_cut(*args))
    assert [part.end for part in byte_ranges(path, 10)] == [10_001, 10_006]
    assert looked_at == [10, 10_011]
