"""One labelled file to a `datasets.Dataset` of raw rows: CSV, TSV, JSON lines, CoNLL and SQuAD.

| form | rows | columns |
|---|---|---|
| `csv` | RFC 4180: quoted fields may contain commas, line breaks and doubled quotes | named by the header; strings |
| `tsv` | fields separated by tabs; a quotation mark is an ordinary character | named by the first row; strings |
| `jsonl` | one object per line, or one list of objects | the fields of the objects, in their JSON types |
| `conll` | a word per line with its columns, a blank line after a sentence | `tokens`, `ner_tags`, `first_line` |
| `squad` | SQuAD v1.1 and v2.0 | `id`, `title`, `context`, `question`, `answers` (`text`, `answer_start`) |

All files are UTF-8; byte order marks are dropped, also those within joined files. `tokens` and `ner_tags` are
lists of strings, `first_line` is the number of the line of the first word. Leaves out: multi-word tokens of CoNLL-U.
"""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import pyarrow

from hf_encoders.corpus.text_files import check_is_text
from hf_encoders.inputs import replace_lone_surrogates


FORMS = ("csv", "tsv", "jsonl", "conll", "squad")
FORM_OF_SUFFIX = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".conll": "conll", ".iob": "conll",
    ".iob2": "conll", ".bio": "conll", ".json": "json",
}  # fmt: skip
DOCUMENT_START = "-DOCSTART-"  # between documents of CoNLL-2003
# Comments before a sentence's words: "# key = value", "# newdoc" or "# newpar" of CoNLL-U, "#begin document (NAME)"
# and "#end document" of CoNLL-2012, "# URL [date]" of GermEval 2014, "# id ID domain=NAME" of MultiCoNER.
# Not every line that starts with a hash: in other files it is a word.
COMMENT = re.compile(
    r"# *(?:[^\t=]*[^\t= ] +=(?: .*)?|newdoc|newpar|begin document .*|end document|\s\S+://\S+\s+\[[^\]]*\]"
    r"|id \S+\s+domain=\S+)"
)
BYTE_ORDER_MARK = "\ufeff"
_TEXT = datasets.Value("string")
_ANSWERS = {"text": datasets.List(_TEXT), "answer_start": datasets.List(datasets.Value("int32"))}
SQUAD_FEATURES = datasets.Features(
    dict.fromkeys(("id", "title", "context", "question"), _TEXT) | {"answers": _ANSWERS}
)


def read_file(
    path: str | Path,
    form: str | None = None,
    columns: list[str] | None = None,
    conll_columns: tuple[int, int] = (0, -1),
    quotes: bool | None = None,
) -> datasets.Dataset:
    """Read one file as raw rows, with the columns in the table above.

    Args:
        path (`str` or `Path`): The file.
        form (`str`, *optional*): One of `FORMS`; by default from the suffix, and for `.json` from the contents.
        columns (`list[str]`, *optional*): Column names of a CSV or TSV file without a header row.
        conll_columns (`tuple[int, int]`, *optional*, defaults to `(0, -1)`): Columns of the word and its tag, counted
            from 0, or backwards from -1.
        quotes (`bool`, *optional*): Whether quotation marks enclose fields; by default in CSV only.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give the path of a {', '.join(FORMS)} file.")
    check_is_text(path, option="")
    form = form or FORM_OF_SUFFIX.get(path.suffix.lower())
    if form is None:
        raise ValueError(f"{path}: unknown suffix: give the form with --format {'|'.join(FORMS)}.")
    if columns is not None and form not in ("csv", "tsv"):
        raise ValueError(f"--columns is for CSV and TSV files; {path} is read as {form}: leave it out.")
    try:
        if form == "conll":
            rows = read_conll(path, *conll_columns)
        elif form in ("squad", "jsonl", "json"):
            rows = {"squad": read_squad, "jsonl": read_json_rows, "json": read_json}[form](path)
        else:
            quotes = form == "csv" if quotes is None else quotes
            rows = read_separated(path, "," if form == "csv" else "\t", columns, quotes)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): convert it.") from error
    if len(rows) == 0:
        raise ValueError(f"{path} has no rows.")
    return rows


def read_separated(path: Path, delimiter: str, columns: list[str] | None, quotes: bool) -> datasets.Dataset:
    """Read CSV or TSV. Every field is a string, also `NA`, `null` and numbers; empty lines are skipped."""
    csv.field_size_limit(sys.maxsize if sys.maxsize < 2**32 else 2**31 - 1)  # documents are longer than 128 KiB
    quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    with path.open(encoding="utf-8-sig", newline="") as file:
        # Without `strict`, an unclosed quotation mark would swallow all rows up to the next one, or to the end.
        reader = csv.reader(without_marks(file), delimiter=delimiter, quoting=quoting, strict=True)
        try:
            names = columns or next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {reader.line_num}: {error}. Quotation marks inside quotes must be doubled; if they "
                "are ordinary characters, use --no-quotes."
            ) from error
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path}: several columns are named {', '.join(repeated)}: give each its own name.")
    for line, row in rows:
        if len(row) != len(names):
            raise ValueError(
                f"{path}, line {line}: {len(row)} fields, but {len(names)} columns: {', '.join(names)}. Without a "
                f"header row, use --columns; if a quotation mark is the reason, --{'no-' if quotes else ''}quotes."
            )
    return datasets.Dataset.from_dict({name: [row[i] for _, row in rows] for i, name in enumerate(names)})


def read_json(path: Path) -> datasets.Dataset:
    """Read SQuAD, if the file is one object with a list `data`; else JSON lines, or one list of objects."""
    try:
        content = _parsed(path.read_text(encoding="utf-8-sig"), f"{path}")
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        return read_json_rows(path)  # of several lines, only the first was parsed
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        return read_squad(path, content)
    return rows_of_objects(content if isinstance(content, list) else [content], path)


def read_json_rows(path: Path) -> datasets.Dataset:
    """Read JSON lines, or one list of objects."""
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        rows = _parsed(text, f"{path}")
    else:
        lines = enumerate(without_marks(text.split("\n")), 1)
        rows = [_parsed(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    return rows_of_objects(rows, path)


def rows_of_objects(rows: list[Any], path: Path) -> datasets.Dataset:
    """Return a row for each object; a missing field is `None`."""
    for i, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {i}: is not an object: write one {{...}} with the column names per row.")
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            columns[name] = pyarrow.array([row.get(name) for row in rows])
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError) as error:
            raise ValueError(
                f"{path}: the values of {name!r} have no common type ({error}): write all in the same type."
            ) from error
    return datasets.Dataset(pyarrow.table(columns))


def without_marks(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without the byte order marks that they begin with, as where files were joined."""
    return (line.removeprefix(BYTE_ORDER_MARK) for line in lines)


def _parsed(text: str, where: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: is not JSON ({error}).") from error
    if "\\ud" in text.lower():  # perhaps an escape of half a surrogate pair
        value = json.loads(replace_lone_surrogates(json.dumps(value, ensure_ascii=False)))
    return value


def read_conll(path: Path, word_column: int = 0, tag_column: int = -1) -> datasets.Dataset:
    """Read sentences of words with tags.

    Columns are separated by tabs if the line has one, otherwise by spaces. A line of only spaces and tabs ends a
    sentence. `-DOCSTART-` lines are left out, and the comments of `COMMENT` before a sentence.
    """
    sentences, words, tags = [], [], []
    # Not `str.splitlines`: other Unicode line ends occur inside words.
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(chain(without_marks(file), [""]), 1):
            fields = line.rstrip("\r\n").split("\t") if "\t" in line else re.split(" +", line.strip(" \r\n"))
            if not words and COMMENT.fullmatch(line.rstrip()):
                continue
            if any(field.strip(" ") for field in fields) and fields[0].strip(" ") != DOCUMENT_START:
                try:
                    word, tag = fields[word_column].strip(" "), fields[tag_column].strip(" ")
                except IndexError:
                    raise ValueError(
                        f"{path}, line {number}: {len(fields)} columns, not {word_column} and {tag_column}: give the "
                        "columns of word and tag, counted from 0, with --conll-columns WORD,TAG."
                    ) from None
                if not word or not tag or len(fields) == 1:
                    raise ValueError(f"{path}, line {number}: {line.strip()!r} has no word, or no tag.")
                words.append(word)
                tags.append(tag)
            elif words:
                sentences.append({"tokens": words, "ner_tags": tags, "first_line": number - len(words)})
                words, tags = [], []
    return datasets.Dataset.from_list(sentences)


def read_squad(path: Path, content: Any = None) -> datasets.Dataset:
    """Read questions with their contexts; an impossible one (v2.0) has no answers. `content` is the parsed file."""
    content, rows = content or _parsed(path.read_text(encoding="utf-8-sig"), f"{path}"), []
    try:
        for document in content["data"]:
            for paragraph in document["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = [] if question.get("is_impossible") else question["answers"]
                    rows.append(
                        {
                            "id": str(question["id"]),
                            "title": document.get("title", ""),
                            "context": paragraph["context"],
                            "question": question["question"],
                            "answers": {
                                "text": [answer["text"] for answer in answers],
                                "answer_start": [answer["answer_start"] for answer in answers],
                            },
                        }
                    )
        columns = {name: [row[name] for row in rows] for name in SQUAD_FEATURES}
        return datasets.Dataset.from_dict(columns, features=SQUAD_FEATURES)
    except (AttributeError, KeyError, TypeError, pyarrow.ArrowInvalid) as error:
        raise ValueError(
            f"{path} does not have the form of SQuAD ({type(error).__name__}: {error}): data > paragraphs > context "
            "and qas > id, question, answers > text and answer_start."
        ) from error
