"""Parallel text to a corpus: two files aligned line by line, or two columns of a TSV.

The corpus is one of `prepare_corpus`, with documents of two sentences, and `corpus.json` names their languages. Leaves
out: alignment; the sentences of a line are aligned already.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import DocumentReader, TextSource
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.report import REPORT_FILE, CorpusReport
from hf_encoders.corpus.text_files import check_is_text
from hf_encoders.inputs import SIDES, check_languages


SIDE_COLUMN = "sides"  # of a document: a side is a sentence already
LANGUAGES = "parallel_languages"  # in `CorpusReport.settings["source"]`
EMPTY_SIDE = "pairs with an empty side"


class ParallelSource(TextSource):
    """Lines of two aligned files, or of a TSV; each pair of sides is a document of two sentences.

    Lines end with a line feed alone. Sides are stripped of white space; pairs with an empty side are left out and
    counted, as in most published parallel text.

    Args:
        paths (`Sequence[str | Path]`): One TSV, or two files with one sentence a line.
        languages (`Sequence[str]`): Names of the languages of the first and the second side.
        columns (`Sequence[int]`, *optional*): Columns of the two sides in a TSV, from 1; needed if it has more.

    Attributes:
        skipped_files (`dict[str, int]`): Pairs that are left out.

    Raises:
        ValueError: If a file cannot be read, the files differ in their number of lines, a line lacks a column, or both
            sides are the same text everywhere; the files are read once to find out, before anything is tokenized.
    """

    def __init__(self, paths: Sequence[str | Path], languages: Sequence[str], columns: Sequence[int] | None = None):
        self.reader = DocumentReader(sentences_column=SIDE_COLUMN)
        self.languages = check_languages(languages)
        self.files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
        if len(self.files) not in (1, SIDES):
            raise ValueError(
                f"--parallel names {len(self.files)} files: give one TSV with a column for each side, or two files "
                "that are aligned line by line."
            )
        if columns is not None and len(self.files) == SIDES:
            raise ValueError("--columns is for a TSV, and two files were given: leave it out.")
        self.columns = None if columns is None else _check_columns(columns)
        for path in self.files:
            _check_file(path)
        self.text_bytes = sum(path.stat().st_size for path in self.files)
        pairs = num_empty = num_same = 0
        for first, second in self._pairs():
            pairs += 1
            num_empty += not (first and second)
            num_same += bool(first) and first == second
        if num_empty + num_same == pairs:
            raise ValueError(
                f"--parallel: no line of {' and '.join(map(str, self.files))} has two sides that differ: check files "
                "and columns."
            )
        self.skipped_files = {EMPTY_SIDE: num_empty} if num_empty else {}

    def identity(self) -> dict[str, Any]:
        """Return what identifies the text: path, size and time of the files, languages and columns."""
        identity = super().identity() | {LANGUAGES: list(self.languages)}
        return identity if self.columns is None else identity | {"columns": list(self.columns)}

    @property
    def divided_files(self) -> list[Path]:
        """Return none: no file is read without the other."""
        return []

    def parts(self, files: Sequence[Path] | None = None) -> Iterator[list[str]]:
        """Return the pairs without an empty side."""
        return (list(pair) for pair in self._pairs() if all(pair))

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the sides of every line."""
        with ExitStack() as opened:
            files = [opened.enter_context(open(path, "rb")) for path in self.files]
            for number, lines in enumerate(zip_longest(*files), start=1):
                if None in lines:
                    raise ValueError(
                        f"--parallel: {' and '.join(map(_with_lines, self.files))}, and line N of one translates line "
                        "N of the other: align them, and keep empty lines."
                    )
                try:
                    first, second = map(_text, self._sides(lines))
                except ValueError as error:
                    raise ValueError(f"{self.files[0]}, line {number}: {error}") from error
                yield first, second

    def _sides(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        """Return the two sides of a line of each file."""
        if len(lines) == SIDES:
            return lines
        fields = lines[0].split(b"\t")
        if self.columns is None:
            if len(fields) < SIDES:
                raise ValueError("it has no tab, and a pair has two sides: repair it, or give two files.")
            if len(fields) > SIDES:
                raise ValueError(f"it has {len(fields)} columns: say which two are the sides (--columns 1 2).")
            return fields
        if max(self.columns) > len(fields):
            raise ValueError(f"it has {len(fields)} column(s), and column {max(self.columns)} is a side: repair it.")
        return [fields[column - 1] for column in self.columns]


def prepare_parallel_corpus(
    source: Sequence[str | Path],
    output: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    languages: Sequence[str],
    columns: Sequence[int] | None = None,
    **options: Any,
) -> CorpusReport:
    r"""Prepare parallel text: a corpus with documents of two sentences, a text and its translation.

    As `prepare_corpus`, in resuming too. `ParallelPairs` makes examples of it; `parallel_languages(output)` are the
    two names again.

    Args:
        source, languages, columns: As `paths`, `languages` and `columns` of `ParallelSource`.
        output (`str` or `Path`): Folder, made if needed.
        tokenizer (`PreTrainedTokenizerBase`): The one of both sides.
        options: `word_segmenter`, `keep_duplicates`, `workers`, `overwrite` of `prepare_corpus`. A pair is a duplicate
            if the tokens of its sides, one after the other, are those of an earlier one.

    Returns:
        `CorpusReport`: As of `prepare_corpus`.

    Raises:
        ValueError: As `ParallelSource` and `prepare_corpus`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pairs = Path(folder, "pairs.tsv")
    ...     _ = pairs.write_text("w5 w6\tw20\nw7\tw21 w22\n")
    ...     report = prepare_parallel_corpus(
    ...         [pairs], Path(folder, "corpus"), doctest_tokenizer(), languages=("en", "zh"), workers=1
    ...     )
    ...     parallel_languages(Path(folder, "corpus")), report.statistics.sentences
    (('en', 'zh'), 4)
    """
    if options.get("max_sentence_tokens") is not None:
        raise ValueError("max_sentence_tokens divides sentences, and a pair has two: leave it out.")
    pairs = ParallelSource(source, languages, columns)
    return prepare_corpus(pairs, output, tokenizer, sentences_column=SIDE_COLUMN, **options)


def parallel_languages(folder: str | Path) -> tuple[str, str] | None:
    """Return the languages of a prepared corpus of parallel text, as `ParallelPairs` takes; None for any other."""
    if not Path(folder, REPORT_FILE).exists():
        return None
    names = CorpusReport.load(folder).settings["source"].get(LANGUAGES)
    return None if names is None else check_languages(names)


def _check_columns(columns: Sequence[int]) -> tuple[int, ...]:
    sides = tuple(columns) if isinstance(columns, Sequence) else ()
    are_numbers = all(isinstance(column, int) for column in sides)
    if len(sides) != SIDES or not are_numbers or min(sides) < 1 or sides[0] == sides[1]:
        raise ValueError(f"columns={columns!r}: give two different ones, counted from 1, such as 1 2.")
    return sides


def _check_file(path: Path) -> None:
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise ValueError(f"--parallel: '{path}' {what}: give a TSV, or two text files aligned line by line.")
    check_is_text(path, "--parallel: ")


def _with_lines(path: Path) -> str:
    with open(path, "rb") as file:
        return f"{path} has {sum(1 for _ in file):,} lines"


def _text(side: bytes) -> str:
    """Decode a side, without white space and byte order mark around it."""
    return side.decode("utf-8", "replace").strip().lstrip("\ufeff").strip()
