"""One labelled file to a `datasets.Dataset` of raw rows: CSV, TSV, JSON lines, CoNLL and SQuAD.

| form | rows | columns |
|---|---|---|
| `csv` | RFC 4180: fields in quotes may hold commas, line breaks and doubled quotes | as the first row says; text |
| `tsv` | fields between tabs; a quotation mark is a character like any other | as the first row says; text |
| `jsonl` | one object a line, or one list of objects | the objects' fields, in JSON's types |
| `conll` | one word a line with its columns, a blank line after a sentence | `tokens`, `ner_tags`: lists of text |
| `squad` | SQuAD v1.1 and v2.0 | `id`, `title`, `context`, `question`, `answers` (`text`, `answer_start`) |

All files are UTF-8; a byte-order mark is dropped. Leaves out: CoNLL-U's multi-word tokens.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow

from hf_encoders.data.corpus.text_files import check_is_text


FORMS = ("csv", "tsv", "jsonl", "conll", "squad")
FORM_OF_SUFFIX = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".conll": "conll", ".iob": "conll",
    ".iob2": "conll", ".bio": "conll",
}  # fmt: skip
DOCUMENT_START = "-DOCSTART-"  # CoNLL-2003's line between documents
# CoNLL-U, "Sentence Boundaries and Comments": before a sentence's words, "# key = value", "# newdoc" or "# newpar".
# Not all lines with a hash: in other files it is a word.
COMMENT = re.compile(r"# *(?:[^\t=]*[^\t= ] +=(?: .*)?|newdoc|newpar)")
SQUAD_FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "title": datasets.Value("string"),
        "context": datasets.Value("string"),
        "question": datasets.Value("string"),
        "answers": {
            "text": datasets.List(datasets.Value("string")),
            "answer_start": datasets.List(datasets.Value("int32")),
        },
    }
)


def read_file(
    path: str | Path,
    form: str | None = None,
    columns: list[str] | None = None,
    conll_columns: tuple[int, int] = (0, -1),
    quotes: bool | None = None,
) -> datasets.Dataset:
    """Raw rows of one file, in the table's columns above.

    Args:
        path: the file.
        form (`str`, *optional*): one of `FORMS`; default: by the file's suffix, and for `.json` by what is in it.
        columns (`list` of `str`, *optional*): names of a CSV or TSV file's columns, where no first row names them.
        conll_columns (`tuple` of two `int`): columns of the word and of its tag, from 0, or from -1 backwards.
        quotes (`bool`, *optional*): whether quotation marks enclose fields; default: in CSV yes, in TSV no.

    Raises:
        ValueError: for a file that is not there, is binary, has no rows, or is not of the form; names file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give the path of a {', '.join(FORMS)} file.")
    check_is_text(path, option="")
    try:
        return _read_form(path, form or form_of(path), columns, conll_columns, quotes)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): convert it.") from error


def _read_form(
    path: Path, form: str, columns: list[str] | None, conll_columns: tuple[int, int], quotes: bool | None
) -> datasets.Dataset:
    if columns is not None and form not in ("csv", "tsv"):
        raise ValueError(f"--columns names the columns of CSV and TSV files; {path} is read as {form}: leave it out.")
    if form in ("csv", "tsv"):
        return read_separated(
            path, "," if form == "csv" else "\t", columns, form == "csv" if quotes is None else quotes
        )
    if form == "conll":
        return read_conll(path, *conll_columns)
    return read_squad(path) if form == "squad" else read_json_rows(path)


def form_of(path: Path) -> str:
    """The form that a file's suffix stands for; `.json` is SQuAD where it is one object with a list `data`.

    Raises:
        ValueError: if the suffix is not known.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        with path.open(encoding="utf-8-sig") as file:
            beginning = file.read(200)
        is_squad = re.match(r'\s*\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[', beginning) is not None
        return "squad" if is_squad else "jsonl"
    if suffix not in FORM_OF_SUFFIX:
        raise ValueError(f"{path}: its suffix does not say what form it has: say it with --format {'|'.join(FORMS)}.")
    return FORM_OF_SUFFIX[suffix]


def read_separated(path: Path, delimiter: str, columns: list[str] | None, quotes: bool) -> datasets.Dataset:
    """CSV or TSV: every field is text, `NA`, `null` and numbers too; empty lines are skipped.

    Raises:
        ValueError: for a row with more or fewer fields than columns, and a quotation mark that nothing closes.
    """
    csv.field_size_limit(sys.maxsize if sys.maxsize < 2**32 else 2**31 - 1)  # documents are longer than 128 KiB
    quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    with path.open(encoding="utf-8-sig", newline="") as file:
        # Not strict, a quotation mark that nothing closes would swallow all rows up to the next one, or to the end.
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
        try:
            return _separated_rows(path, reader, columns, quotes)
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {reader.line_num}: {error}. A field that holds a quotation mark is put in quotation "
                'marks, with "" for each within; if they are characters like any other, use --no-quotes.'
            ) from error


def _separated_rows(path: Path, reader: Any, columns: list[str] | None, quotes: bool) -> datasets.Dataset:
    names = columns or next(reader, [])
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{path}: several columns are called {', '.join(repeated)}: give each its own name.")
    rows = []
    for row in reader:
        if row and len(row) != len(names):
            raise ValueError(
                f"{path}, line {reader.line_num}: {len(row)} fields, but {len(names)} columns: "
                f"{', '.join(names)}. If no first row names the columns, use --columns; if a quotation mark "
                f"is the reason, --{'no-' if quotes else ''}quotes."
            )
        if row:
            rows.append(row)
    require_rows(path, rows)
    return datasets.Dataset.from_dict(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def read_json_rows(path: Path) -> datasets.Dataset:
    """JSON lines, or one list of objects; a field that a row leaves out is None there.

    Raises:
        ValueError: for a line that is no JSON object, or a field whose values have no common type.
    """
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        if file.read(64).lstrip().startswith("["):
            file.seek(0)
            rows = _parsed(file.read(), f"{path}")
        else:
            file.seek(0)
            rows = [_parsed(line, f"{path}, line {i}") for i, line in enumerate(file, 1) if line.strip()]
    require_rows(path, rows)
    for i, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {i}: is not an object: write one {{...}} with the columns' names a row.")
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            columns[name] = pyarrow.array([row.get(name) for row in rows])
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise ValueError(
                f"{path}: the values of {name!r} have no common type ({error}): write all alike."
            ) from error
    return datasets.Dataset(pyarrow.table(columns))


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: is not JSON ({error}).") from error


def read_conll(path: Path, word_column: int = 0, tag_column: int = -1) -> datasets.Dataset:
    """Sentences of words with tags.

    Columns are divided by tabs where a line has one, else by blanks. A line of nothing but blanks and tabs ends a
    sentence. `-DOCSTART-` lines are left out, and comments of CoNLL-U before a sentence.

    Raises:
        ValueError: for a line with too few columns.
    """
    sentences = list(conll_sentences(path, word_column, tag_column))
    require_rows(path, sentences)
    return datasets.Dataset.from_dict(
        {"tokens": [words for words, _ in sentences], "ner_tags": [tags for _, tags in sentences]}
    )


def conll_sentences(path: Path, word_column: int, tag_column: int) -> Iterator[tuple[list[str], list[str]]]:
    """Words and tags of each sentence."""
    words, tags = [], []
    # Other line ends of Unicode, which `str.splitlines` knows, are found inside of words.
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\r\n").split("\t") if "\t" in line else re.split(" +", line.strip(" \r\n"))
            is_blank = not any(field.strip(" ") for field in fields)
            if not words and COMMENT.fullmatch(line.rstrip()):
                continue
            if not is_blank and fields[0].strip(" ") != DOCUMENT_START:
                try:
                    word, tag = fields[word_column].strip(" "), fields[tag_column].strip(" ")
                except IndexError:
                    raise ValueError(
                        f"{path}, line {number}: {len(fields)} columns, none of number {word_column} or {tag_column}: "
                        "say with --conll-columns WORD,TAG where word and tag are, from 0."
                    ) from None
                if not word or not tag or len(fields) == 1:
                    raise ValueError(f"{path}, line {number}: {line.strip()!r} has no word, or no tag.")
                words.append(word)
                tags.append(tag)
            elif words:
                yield words, tags
                words, tags = [], []
    if words:
        yield words, tags


def read_squad(path: Path) -> datasets.Dataset:
    """Questions with their contexts; an impossible one (v2.0) has no answers.

    Raises:
        ValueError: if the file is not of this form.
    """
    content = _parsed(path.read_text(encoding="utf-8-sig"), f"{path}")
    rows = []
    try:
        for document in content["data"]:
            for paragraph in document["paragraphs"]:
                for question in paragraph["qas"]:
                    # v2.0 lists plausible answers of impossible questions elsewhere; `answers` is empty there.
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
        require_rows(path, rows)
        return datasets.Dataset.from_list(rows, features=SQUAD_FEATURES)
    except (AttributeError, KeyError, TypeError, pyarrow.ArrowInvalid) as error:
        raise ValueError(
            f"{path} is not in SQuAD's form ({type(error).__name__}: {error}): data > paragraphs > context and qas > "
            "id, question, answers > text and answer_start."
        ) from error


def require_rows(path: Path, rows: list) -> None:
    """Refuse a file without rows."""
    if not rows:
        raise ValueError(f"{path} has no rows.")
