"""Documents of text files, JSON lines, dialogues and datasets, whatever their bytes."""

import io
import json
import random

import pytest

from hf_encoders import one_sentence_per_line, read_documents
from hf_encoders.corpus.documents import sentences_of_turns


MARK = "\ufeff".encode()


class TestReadDocuments:
    def read(self, tmp_path, content: bytes, name: str = "a.txt", **arguments):
        path = tmp_path / name
        path.write_bytes(content)
        return list(read_documents([path], **arguments))

    @pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
    def test_paragraphs_blank_lines_and_line_breaks_of_all_systems(self, tmp_path, line_break):
        text = "\n\nOne. Two.\nThree.\n\n \t\n\nFour.\n\n".replace("\n", line_break).encode()
        assert self.read(tmp_path, text) == [["One.", "Two.", "Three."], ["Four."]]
        lines = self.read(tmp_path, text, sentence_splitter=one_sentence_per_line)
        assert lines == [["One. Two.", "Three."], ["Four."]]

    def test_byte_order_marks(self, tmp_path):
        mark = b"\xef\xbb\xbf"
        assert self.read(tmp_path, mark + b"One.\n" + mark + b"\nTwo.") == [["One."], ["Two."]]
        line = mark + b'{"text": "One."}\n'
        assert self.read(tmp_path, line + line, "a.jsonl") == [["One."], ["One."]]

    def test_bytes_that_are_not_text(self, tmp_path):
        assert self.read(tmp_path, b"caf\xe9 and\x00nul\x01. Two.\n\n\xff\xfe") == [
            ["caf\ufffd and\x00nul\x01.", "Two."],
            ["\ufffd\ufffd"],
        ]

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
    def test_other_encodings_are_refused(self, tmp_path, encoding):
        for text in ("One, two, three.", "\u6211\u7231\u5317\u4eac\u3002" * 9):
            with pytest.raises(ValueError, match="a.txt' is (a binary file, not text|not UTF-8).*iconv -f"):
                self.read(tmp_path, text.encode(encoding))

    @pytest.mark.parametrize("returned", ["One.", None, b"One.", ["One.", 2]])
    def test_a_splitter_that_gives_no_list_of_text_is_refused(self, tmp_path, returned):
        with pytest.raises(ValueError, match="sentence_splitter gives .* for 'One.': it has to return a list"):
            self.read(tmp_path, b"One.", sentence_splitter=lambda text: returned)

    def test_a_splitter_may_give_any_iterable_of_text(self, tmp_path):
        for splitter in (lambda text: tuple(text.split()), lambda text: (part for part in text.split())):
            assert self.read(tmp_path, b"a b\nc", sentence_splitter=splitter) == [["a", "b", "c"]]

    def test_empty_file_has_no_document(self, tmp_path):
        assert self.read(tmp_path, b"") == self.read(tmp_path, b"\n \n") == []

    def test_files_of_a_folder_in_order_each_ending_a_document(self, tmp_path):
        (tmp_path / "deep").mkdir()
        (tmp_path / "b.txt").write_text("From b.")
        (tmp_path / "a.TXT").write_text("From a.")
        (tmp_path / "deep" / "c.jsonl").write_text('{"text": "From c."}')
        (tmp_path / "notes.md").write_text("Not read.")
        assert list(read_documents([tmp_path])) == [["From a."], ["From b."], ["From c."]]
        assert list(read_documents([str(tmp_path / "notes.md"), tmp_path / "b.txt"])) == [["Not read."], ["From b."]]

    def test_documents_come_one_at_a_time(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "One."}\nnot json\n')
        documents = read_documents([path])
        assert next(documents) == ["One."]
        with pytest.raises(ValueError, match="a.jsonl, line 2: not JSON"):
            next(documents)

    def test_json_lines(self, tmp_path):
        records = [{"text": "One. Two.\nThree", "body": "Four."}, {"text": ""}, {"text": "Fi\ud800ve."}]
        lines = "\n\n".join(json.dumps(record) for record in records).encode()
        assert self.read(tmp_path, lines, "a.jsonl") == [["One.", "Two.", "Three"], ["Fi\ufffdve."]]

    def test_json_fields(self, tmp_path):
        line = json.dumps({"body": "One. Two.", "parts": ["A. B.", " ", "C."]}).encode()
        assert self.read(tmp_path, line, "a.jsonl", text_field="body") == [["One.", "Two."]]
        assert self.read(tmp_path, line, "a.jsonl", sentences_field="parts") == [["A. B.", "C."]]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"body": "One."}', r"line 1: no field 'text' but \['body'\].*text_field"),
            ('["One."]', "line 1: no field 'text' but list"),
            ('{"text": null}', "line 1: 'text' is None, not a str"),
            ('{"text": ["One."]}', "sentences_field"),
            ("[" * 100_000, "line 1: not JSON"),
        ],
    )
    def test_json_that_is_not_a_document_is_refused(self, tmp_path, line, message):
        with pytest.raises(ValueError, match=message):
            self.read(tmp_path, line.encode(), "a.jsonl")

    def test_json_list_of_other_things_is_refused(self, tmp_path):
        for value in ("One.", ["One.", 2]):
            with pytest.raises(ValueError, match="'parts' is .*not a list of str"):
                self.read(tmp_path, json.dumps({"parts": value}).encode(), "a.jsonl", sentences_field="parts")

    def test_paths_are_checked_before_anything_is_read(self, tmp_path):
        with pytest.raises(ValueError, match="gone.txt' does not exist"):
            read_documents([tmp_path / "gone.txt"])
        with pytest.raises(ValueError, match=r"holds no \*.txt and no \*.jsonl file: name"):
            read_documents([tmp_path])
        for name in ("a.md", "b.MD", "c.csv"):
            (tmp_path / name).write_text("One.")
        with pytest.raises(ValueError, match=r"no \*.jsonl file, but 2 .md, 1 .csv: name"):
            read_documents([tmp_path])
        with pytest.raises(ValueError, match="names no file"):
            read_documents([])
        with pytest.raises(ValueError, match="single path: give a list"):
            read_documents(str(tmp_path))
        (tmp_path / "a.txt.gz").write_bytes(b"")
        with pytest.raises(ValueError, match="decompress"):
            read_documents([tmp_path / "a.txt.gz"])


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


def test_random_bytes(tmp_path):
    generator = random.Random(0)
    parts = [b"\n", b"\r", b"\r\n", b" ", b"a", MARK, "\u3000".encode(), b"\xe4", b"\x80", b"\x00", b"\x1c", b"\x85"]
    for _ in range(300):
        data = b"".join(generator.choices(parts, weights=[6, 3, 4, 3, 4, 1, 1, 1, 1, 1, 1, 1], k=40))
        (tmp_path / "a.txt").write_bytes(b"a " * 60 + data)
        read = read_documents([tmp_path / "a.txt"], sentence_splitter=one_sentence_per_line)
        assert list(read) == reference(b"a " * 60 + data), data


def said(*turns):
    """Turns with roles: `said("q w5", "r w6")`."""
    names = {"q": "query", "r": "response", "u": "user", "a": "assistant"}
    return [{"role": names[turn[0]], "text": turn[2:]} for turn in turns]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (["w5", "w6", "w7"], ["w5", "w6", "w7"]),
        (["w5", " ", "w7"], ["w5", "", "w7"]),
        (["", "w6", "w7"], ["", "w6", "w7"]),
        (said("q w5", "q w6", "r w7"), ["w5", "", "w6", "w7"]),
        (said("r w5", "r w6", "q w7"), ["", "w5", "", "w6", "w7"]),
        (said("u w5", "a \n", "u w6", "a w7"), ["w5", "", "w6", "w7"]),
        ([{"role": "user", "content": "w5"}], ["w5"]),
        ([], []),
        (["", "\t"], []),
    ],
)
def test_places_tell_roles(turns, expected):
    assert sentences_of_turns(turns) == expected


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ("w5", "'w5' is not a list of turns"),
        ([{"role": "system", "text": "w5"}], "role 'system': it must be one of query, response, user, assistant"),
        ([{"text": "w5"}], "role None"),
        ([{"role": "query", "body": "w5"}], "no text: give it as a str in text or content"),
        ([{"role": "query", "text": ["w5"]}], "no text: give it"),
        ([{"role": ["query"], "text": "w5"}], r"role \['query'\]"),
        (["w5", {"role": "query", "text": "w5"}], "give all turns of a dialogue a role, or none"),
        ([["query", "w5"]], "give turns that alternate as a list of str"),
    ],
)
def test_what_is_no_dialogue_is_refused(turns, message):
    with pytest.raises(ValueError, match=message):
        sentences_of_turns(turns)
