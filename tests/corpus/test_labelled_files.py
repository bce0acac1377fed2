"""Labelled files in every form give the rows that are in them."""

import json

import pytest

from hf_encoders.corpus.labelled_files import read_file


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_csv_fields_are_text_and_may_hold_line_breaks_commas_and_quotes(tmp_path):
    path = write(tmp_path, "a.csv", '\ufefftext,label\n"one\ntwo, ""three""",NA\n\nnull,01\r\n')
    assert read_file(path).to_list() == [
        {"text": 'one\ntwo, "three"', "label": "NA"},
        {"text": "null", "label": "01"},
    ]


def test_tsv_takes_quotation_marks_as_they_are(tmp_path):
    path = write(tmp_path, "a.tsv", 'She said "no.\t0\n"\t1\n')
    rows = read_file(path, columns=["text", "label"])
    assert rows.to_list() == [{"text": 'She said "no.', "label": "0"}, {"text": '"', "label": "1"}]
    quoted = write(tmp_path, "b.tsv", 'text\tlabel\n"a\tb"\t1\n')
    assert read_file(quoted, quotes=True).to_list() == [{"text": "a\tb", "label": "1"}]


def test_a_field_may_be_longer_than_the_csv_module_takes_by_default(tmp_path):
    path = write(tmp_path, "a.csv", f"text,label\n{'x' * 200_000},1\n")
    assert len(read_file(path)["text"][0]) == 200_000


@pytest.mark.parametrize("text", ['{"a": 1, "b": ["x"]}\n\n{"a": 2.5}\n', '[{"a": 1, "b": ["x"]}, {"a": 2.5}]'])
def test_json_rows_keep_their_types(tmp_path, text):
    rows = read_file(write(tmp_path, "a.json", text))
    assert rows.to_list() == [{"a": 1.0, "b": ["x"]}, {"a": 2.5, "b": None}]


def test_conll_sentences_end_at_lines_of_nothing_but_blanks_and_tabs(tmp_path):
    text = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n \t\nPeter NNP B-PER\n\n\n"
    rows = read_file(write(tmp_path, "a.conll", text))
    assert rows.to_list() == [
        {"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"], "first_line": 3},
        {"tokens": ["Peter"], "ner_tags": ["B-PER"], "first_line": 6},
    ]
    assert read_file(tmp_path / "a.conll", conll_columns=(0, 1))["ner_tags"][:] == [["NNP", "VBZ"], ["NNP"]]


def test_conll_words_may_hold_blanks_beside_tabs_and_any_other_separator_of_unicode(tmp_path):
    path = write(tmp_path, "a.conll", "New York\tB-LOC\na\u2028b\tO\n\u00a0\tO\n")
    assert read_file(path).to_list() == [
        {"tokens": ["New York", "a\u2028b", "\u00a0"], "ner_tags": ["B-LOC", "O", "O"], "first_line": 1}
    ]


def test_conll_comments_stand_before_a_sentence_and_a_hash_may_be_a_word(tmp_path):
    text = (
        "# newdoc id = a\n# sent_id = a-1\n# text = # one\n# O\none B-X\n# = O\n\n# text =\n# newpar\n#tag O\n"
        "# x = O\n\n#\tO\n"
    )
    rows = read_file(write(tmp_path, "a.conll", text))
    assert rows.to_list() == [
        {"tokens": ["#", "one", "#"], "ner_tags": ["O", "B-X", "O"], "first_line": 4},
        {"tokens": ["#tag", "#"], "ner_tags": ["O", "O"], "first_line": 10},
        {"tokens": ["#"], "ner_tags": ["O"], "first_line": 13},
    ]


@pytest.mark.parametrize(
    "comment",
    [
        "#\thttp://example.org/a\t[2020-01-02]\t",
        "# https://example.org/a [unknown]",
        "# id 1f1ea2aa-7d60\tdomain=en",
        "#begin document (bc/cctv_0000); part 000",
    ],
)
def test_conll_comments_of_other_corpora(tmp_path, comment):
    """GermEval 2014, MultiCoNER and CoNLL-2012."""
    text = f"{comment}\n1\tMaria\tB-PER\tO\n2\tran\tO\tO\n\n{comment}\n1\t#\tO\tO\n#\t#\tO\tO\n\n#end document\n"
    rows = read_file(write(tmp_path, "a.tsv", text), "conll", conll_columns=(1, 2))
    assert rows.to_list() == [
        {"tokens": ["Maria", "ran"], "ner_tags": ["B-PER", "O"], "first_line": 2},
        {"tokens": ["#", "#"], "ner_tags": ["O", "O"], "first_line": 6},
    ]


MARK = "\ufeff"


@pytest.mark.parametrize("end", [MARK, f"{MARK}\n"])
def test_byte_order_marks_within_a_file_are_dropped(tmp_path, end):
    """Of joined files, and a last line of nothing else, as in WNUT 17."""
    rows = read_file(write(tmp_path, "a.conll", f"{MARK}a\tO\n\n{MARK}b\tB-X\n{end}"))
    assert rows["tokens"][:] == [["a"], ["b"]]
    rows = read_file(write(tmp_path, "a.jsonl", f'{MARK}{{"a": 1}}\n{MARK}{{"a": 2}}\n{end}'))
    assert rows["a"][:] == [1, 2]
    rows = read_file(write(tmp_path, "a.csv", f"{MARK}a,b\nx,1\n{MARK}y,2\n{end}"))
    assert rows["a"][:] == ["x", "y"]


def squad(**fields):
    question = {"id": 7, "question": "Who?", "answers": [{"text": "Ann", "answer_start": 4}], **fields}
    return {"version": "v2.0", "data": [{"title": "T", "paragraphs": [{"context": "Is: Ann", "qas": [question]}]}]}


@pytest.mark.parametrize("indent", [None, 2])
def test_squad_questions(tmp_path, indent):
    path = write(tmp_path, "a.json", json.dumps(squad(), indent=indent))
    assert read_file(path).to_list() == [
        {
            "id": "7",
            "title": "T",
            "context": "Is: Ann",
            "question": "Who?",
            "answers": {"text": ["Ann"], "answer_start": [4]},
        }
    ]
    impossible = write(tmp_path, "b.json", json.dumps(squad(is_impossible=True), indent=indent))
    assert read_file(impossible)[0]["answers"] == {"text": [], "answer_start": []}


def test_squad_files_may_have_other_fields_before_the_data(tmp_path):
    first = {"license": "x", "version": 2.0, "meta": {"by": ["y"]}, "empty": None}
    path = write(tmp_path, "a.json", json.dumps({**first, **squad()}))
    assert read_file(path)["id"][:] == ["7"]


def test_rows_with_a_list_called_data_are_rows(tmp_path):
    path = write(tmp_path, "a.json", '{"data": [1]}\n{"data": [2]}\n')
    assert read_file(path)["data"][:] == [[1], [2]]


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.csv", "text,label\none,two,three\n", {}, "line 2: 3 fields, but 2 columns"),
        ("a.csv", "text,text\none,two\n", {}, "named text"),
        ("a.csv", "text,label\n", {}, "no rows"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', {}, "line 2: is not JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": "x"}\n', {}, "the values of 'a' have no common type"),
        ("a.jsonl", "[1, 2]", {}, "row 1: is not an object"),
        ("a.conll", "word\n", {}, "line 1: 'word' has no word, or no tag"),
        ("a.conll", "a b\n", {"conll_columns": (0, 3)}, "--conll-columns"),
        ("a.json", '{"data": [{"paragraphs": [{"qas": []}]}]}', {}, "no rows"),
        ("a.json", '{"data": [{"paragraphs": [{"qas": [{"id": 1}]}]}]}', {}, "does not have the form of SQuAD"),
        ("a.jsonl", '{"a": 1}', {"columns": ["a"]}, "--columns is for"),
        ("a.xyz", "text", {}, "--format"),
        ("a.csv", 'text,label\none,1\n"two,1\nthree,1\n', {}, "line 4: unexpected end of data.*--no-quotes"),
        ("a.csv", 'text,label\n"one" two,1\n', {}, "line 2: ',' expected after"),
        ("a.jsonl", '{"a": 123456789012345678901234567890}', {}, "the values of 'a'"),
        ("a.json", json.dumps(squad(answers=[{"text": "Ann", "answer_start": "x"}])), {}, "the form of SQuAD"),
    ],
)
def test_wrong_files_are_refused(tmp_path, name, text, options, message):
    with pytest.raises(ValueError, match=message):
        read_file(write(tmp_path, name, text), **options)


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.conll"])
def test_other_encodings_and_binary_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes("café O\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"is not UTF-8 \(invalid continuation byte at byte 3\)") as caught:
        read_file(tmp_path / name)
    assert not isinstance(caught.value, UnicodeDecodeError)
    (tmp_path / name).write_bytes(b"PK\x03\x04" + b"\0" * 50)
    with pytest.raises(ValueError, match=f"{name}' is a ZIP archive"):
        read_file(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_lone_surrogates_are_replaced(tmp_path, name):
    row = '{"text": "a \\ud83d b \\ud83d\\ude00", "label": 1, "score": 0.1}'
    path = write(tmp_path, name, row + "\n" if name.endswith("l") else f"[{row}]")
    assert read_file(path).to_list() == [{"text": "a \ufffd b 😀", "label": 1, "score": 0.1}]
