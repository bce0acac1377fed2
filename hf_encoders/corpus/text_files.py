"""Text among the user's paths: the options that name it, files checked before anything is read, and several sources.

Commands import it before they import torch.
"""

import argparse
import codecs
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_encoders.inputs import LANGUAGES, check_name_or_path, is_number


if TYPE_CHECKING:
    import datasets


UNNAMED = ""  # the source of text that is given without a name
# Names become parts of metrics and names of folders.
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)=(.*)", re.DOTALL)
TEXT_SUFFIXES = (".txt", ".jsonl")
_TABLE = (
    "put it in a folder of its own and give that as --dataset, with --text-column (hf-encoders corpus, tokenizer), or "
    "load it with datasets.load_dataset"
)
_UNPACK = "decompress it first"
_PANDOC = "extract its text, for example with pandoc --to plain"
# What is not text: suffixes, first bytes, its name and the remedy. Read as text, it would train a model on noise.
NOT_TEXT = (
    (".arrow .csv .json .tsv", (), "a table", _TABLE),
    (".parquet", (b"PAR1\x15",), "a Parquet table", _TABLE),
    (".bz2 .gz .tar .tgz .xz .zst", (b"\x1f\x8b",), "compressed", _UNPACK),
    (".zip", (b"PK\x03\x04",), "a ZIP archive, EPUB, Word, OpenDocument or Excel file", f"{_UNPACK}, or {_PANDOC}"),
    (".pdf", (b"%PDF-",), "a PDF", "extract its text, for example with pdftotext"),
    (".rtf", (b"{\\rtf",), "an RTF document", _PANDOC),
    ("", (b"<!doctype html", b"<html"), "an HTML page", _PANDOC),
    (".ndjson", (), "JSON lines by another name", "rename it to .jsonl"),
)
SAMPLE_BYTES = 2**14
# Control characters that plain text does not have; it has tabs, line ends, form feeds and escapes.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b") | {127})
# Shares of a sample above which it is not text; this package's choice. In compressed data one byte in ten is a control
# character; Latin text in an 8-bit encoding has fewer than a tenth of bytes that are not UTF-8.
MOST_CONTROLS, MOST_UNDECODABLE = 0.05, 0.3
FEW = 8  # such characters are accepted in a file of any length


def text_files(paths: Sequence[str | Path], option: str = "paths") -> list[Path]:
    """Return the files to read for paths that the user gave.

    Args:
        paths (`Sequence[str | Path]`): Files; or folders, of which all `*.txt` and `*.jsonl` files are read, sorted by
            path, hidden ones included. Symbolic links to folders are followed, each folder once.
        option (`str`, *optional*, defaults to `"paths"`): What messages call them.

    Raises:
        ValueError: If one does not exist or cannot be read, a folder holds no such file, or a file is not text by its
            suffix or its first bytes.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside, skipped = _walk(path, option)
            texts = sorted(file for file in inside if file.suffix.lower() in TEXT_SUFFIXES)
            if not texts:
                kinds = (_other_suffixes(inside) + skipped).most_common()
                but = f", but {', '.join(f'{count} {kind}' for kind, count in kinds)}" if kinds else ""
                raise ValueError(
                    f"{option}: the folder '{path}' holds no *.txt and no *.jsonl file{but}: name the files instead."
                )
            files += texts
            continue
        if not path.exists():
            what = f"is a broken link, to '{os.readlink(path)}'" if path.is_symlink() else "does not exist"
            raise ValueError(f"{option}: '{path}' {what}: check the spelling, and the folder it is relative to.")
        for suffixes, _, name, remedy in NOT_TEXT:
            if path.suffix.lower() in suffixes.split():
                raise ValueError(f"{option}: '{path}' is {name} by its suffix, not text: {remedy}.")
        files.append(path)
    for file in files:
        check_is_text(file, f"{option}: ")
    return files


def skipped_files(paths: Sequence[str | Path]) -> dict[str, int]:
    """Return how many files in the folders among `paths` are skipped, by suffix or kind, most frequent first."""
    total: Counter[str] = Counter()
    for path in map(Path, paths):
        if path.is_dir():
            files, skipped = _walk(path)
            total += _other_suffixes(files) + skipped
    return dict(total.most_common())


def has_text(path: Path) -> bool:
    """Return whether a path is a file, or a folder that holds text files."""
    return path.is_file() or any(file.suffix.lower() in TEXT_SUFFIXES for file in _walk(path)[0])


def check_is_text(path: Path, option: str = "paths: ") -> None:
    """Refuse a file whose first bytes are not UTF-8 text; a few damaged characters pass (see `reading_warnings`)."""
    if not path.is_file():
        return  # reading would consume a pipe
    try:
        with open(path, "rb") as file:
            sample = file.read(SAMPLE_BYTES)
    except OSError as error:
        raise ValueError(f"{option}'{path}' cannot be read ({error.strerror}): change its permissions.") from error
    beginning = sample.removeprefix(codecs.BOM_UTF8).lstrip()[:16].lower()
    for _, marks, name, remedy in NOT_TEXT:
        if any(beginning.startswith(mark.lower()) for mark in marks):
            raise ValueError(f"{option}'{path}' is {name} by its first bytes, not text: {remedy}, or leave it out.")
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if controls > max(MOST_CONTROLS * len(sample), FEW):
        raise ValueError(
            f"{option}'{path}' is a binary file, not text ({controls / len(sample):.0%} control characters): extract "
            "its text, or leave it out; convert UTF-16 with iconv -f UTF-16 -t UTF-8."
        )
    decoded = sample.decode("utf-8", "replace")
    undecodable = decoded.count("\ufffd") - sample.count("\ufffd".encode())
    if undecodable > max(MOST_UNDECODABLE * len(decoded), FEW):
        raise ValueError(
            f"{option}'{path}' is not UTF-8 ({undecodable / len(decoded):.0%} of its first characters are not): "
            "convert it, for example with iconv -f WINDOWS-1251 -t UTF-8, or leave it out."
        )


def _other_suffixes(files: Sequence[Path]) -> Counter[str]:
    suffixes = (file.suffix.lower() or "without suffix" for file in files)
    return Counter(suffix for suffix in suffixes if suffix not in TEXT_SUFFIXES)


def _walk(folder: Path, option: str = "paths") -> tuple[list[Path], Counter[str]]:
    """Return all regular files below a folder; and how many other entries there are, by kind."""
    files: list[Path] = []
    skipped: Counter[str] = Counter()
    seen = {os.path.realpath(folder)}

    def refuse(error: OSError) -> None:
        raise ValueError(
            f"{option}: the folder '{error.filename}' cannot be read ({error.strerror}): change its permissions."
        ) from error

    for here, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        entered = []
        for name in sorted(folders):
            identity = os.path.realpath(os.path.join(here, name))  # links may lead back to a parent folder
            if identity in seen:
                skipped["link to a folder that is read already"] += 1
            else:
                seen.add(identity)
                entered.append(name)
        folders[:] = entered
        for path in (Path(here, name) for name in names):
            if path.is_file():
                files.append(path)
            else:
                skipped["not a regular file" if path.exists() else "broken link"] += 1
    return files, skipped


def add_text_arguments(
    parser: argparse.ArgumentParser, takes_names: bool = False
) -> "argparse._MutuallyExclusiveGroup":
    """Add the options that name the text, files or a dataset; return the group of those of which one is needed.

    With `takes_names`, the text may be of several sources, `NAME=PATH`, and `--corpus` is another name of `--input`.
    """
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        *(("--input", "--corpus") if takes_names else ("--input",)),
        action="extend",
        nargs="+",
        metavar="[NAME=]PATH" if takes_names else "PATH",
        help="text files (a blank line between documents), .jsonl files (one document per line) or folders of them"
        + "; with names, several sources (repeat a name for several paths)" * takes_names,
    )
    source.add_argument(
        "--dataset", metavar="NAME", help="dataset on the Hub, or a folder that datasets.load_dataset reads"
    )
    parser.add_argument("--config", metavar="NAME", help="configuration of --dataset (default: its only one)")
    parser.add_argument("--split", metavar="NAME", help="split of --dataset (default: train)")
    parser.add_argument(
        "--streaming",
        action="store_true",
        help="read --dataset while it is downloaded, without keeping it; a restart reads it again from the start",
    )
    parser.add_argument(
        "--text-column",
        default="text",
        metavar="NAME",
        help="column of --dataset, or field of .jsonl files, with the text of a document (default: %(default)s)",
    )
    parser.add_argument(
        "--sentences-column", metavar="NAME", help="column or field with a list of sentences, which replaces the text"
    )
    parser.add_argument(
        "--turns-column",
        metavar="NAME",
        help="column or field with the turns of a dialogue, for the objective dialogue: a list of str, query first, "
        "or of objects with role and text; in text files, a line is a turn",
    )
    return source


def check_text(arguments: argparse.Namespace, takes_names: bool = False) -> None:
    """Refuse files, folders and options of the text that are wrong, and options of --dataset together with --input."""
    for name in ("config", "split", "streaming"):
        if arguments.input and getattr(arguments, name):
            raise ValueError(f"--{name} is for --dataset, not for --input: leave it out.")
    if arguments.dataset:
        check_name_or_path(arguments.dataset, f"--dataset {arguments.dataset!r}")
    sources = named_paths(arguments.input or (), "--input") if takes_names else {"": arguments.input or ()}
    for paths in sources.values():
        text_files(paths, "--input")


def load_split(arguments: argparse.Namespace) -> "datasets.Dataset | datasets.IterableDataset":
    """Load the split of --dataset."""
    import datasets

    from hf_encoders.inputs import first_line
    from hf_encoders.loading import NOT_HERE, why_unreachable

    name = arguments.dataset
    if not Path(name).exists():
        # datasets would retry several times before it looks into its cache.
        reason = why_unreachable(name, f"--dataset {name!r}", "dataset")
        if reason and not Path(datasets.config.HF_DATASETS_CACHE, name.replace("/", "___")).exists():
            raise ValueError(f"--dataset {name!r} {NOT_HERE} ({reason}): check the spelling and the connection.")
    try:
        return datasets.load_dataset(
            name, arguments.config, split=arguments.split or "train", streaming=arguments.streaming
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--dataset {name!r} cannot be loaded ({first_line(error)}): check --dataset, --config and --split, and "
            "the connection."
        ) from error


def named_paths(words: Sequence[str], option: str) -> dict[str, list[str]]:
    """Return the paths of each source: of words `NAME=PATH`, where a name may come again; or plain ones, under `""`.

    A word that is the path of something that exists is a path, whatever it looks like.

    Args:
        words (`Sequence[str]`): Values of an option.
        option (`str`): What messages call it.

    Raises:
        ValueError: For names next to paths without one, a name without a path, and names that differ in case only.

    >>> named_paths(["en=books/", "gsw=wiki.txt", "en=web/"], "--corpus")
    {'en': ['books/', 'web/'], 'gsw': ['wiki.txt']}
    >>> named_paths(["books/", "web/"], "--corpus")
    {'': ['books/', 'web/']}
    """
    paths: dict[str, list[str]] = {}
    for word in words:
        match = None if Path(word).exists() else _NAMED.fullmatch(word)
        name, path = (UNNAMED, word) if match is None else match.groups()
        if name and not path:
            raise ValueError(f"{option} {word}: source {name!r} has no path: give {name}=PATH.")
        paths.setdefault(name, []).append(path)
    if UNNAMED in paths and len(paths) > 1:
        raise ValueError(
            f"{option}: {paths[UNNAMED][0]} has no name, and {', '.join(filter(None, paths))} are names of sources: "
            "give NAME=PATH for all, or for none."
        )
    folded = {}
    for name in paths:
        if folded.setdefault(name.lower(), name) != name:
            raise ValueError(f"{option}: {folded[name.lower()]} and {name} differ in case only: give one name.")
    return paths


def languages_of(words: Sequence[str], names: Iterable[str], default: str | None) -> dict[str, str | None]:
    """Return the language code of each source.

    From `NAME=CODE`; else, if the name is a code of two letters, that; else the one `CODE` that is given, or the
    default.

    Args:
        words (`Sequence[str]`): Values of `--language`: one `CODE`, any number of `NAME=CODE`, or none.
        names (`Iterable[str]`): The sources, `""` for one without a name.
        default (`str`, *optional*): Code where nothing else says one.

    Raises:
        ValueError: For several codes without names, an unknown name, or one that comes twice. The codes are not
            checked.

    >>> languages_of(["law=de", "fr"], ["law", "zh", "web"], "en")
    {'law': 'de', 'zh': 'zh', 'web': 'fr'}
    """
    languages = {name: name if name in LANGUAGES else None for name in names}
    plain, codes = [], {}
    for word in words:
        name, equals, code = word.partition("=")
        if not equals:
            plain.append(word)
        elif not name or not code or name not in languages:
            sources = ", ".join(filter(None, languages)) or "none has a name, give NAME=PATH"
            raise ValueError(f"--language {word}: give CODE, or NAME=CODE of one of the sources: {sources}.")
        elif codes.setdefault(name, code) != code:
            raise ValueError(f"--language: {name} is there twice, as {codes[name]} and {code}: give it once.")
    if len(plain) > 1:
        raise ValueError(f"--language {' '.join(plain)}: give one CODE, or NAME=CODE for each source.")
    fallback = plain[0] if plain else default
    return {name: codes.get(name, language or fallback) for name, language in languages.items()}


def in_words(values: Mapping[str, str]) -> str:
    """Return values of sources in words: `de: wiki, en: books`; without its name where there is none."""
    return ", ".join(f"{name}: {value}" if name else value for name, value in values.items())


@dataclass(frozen=True)
class Sampling:
    """How often the sources of a mixture are drawn: by their sizes, to a power, or by given weights.

    Sources: XLM (arXiv 1901.07291, section 3.1) and XLM-R (arXiv 1911.02116, section 2).

    Args:
        alpha (`float`, *optional*): Power of a source's share of the examples, in (0, 1]: 1 draws each as often as its
            size says, lower values draw small sources more often. XLM-R: 0.3, XLM: 0.7. 1 without `weights`.
        weights (`Mapping[str, float]`, *optional*): Source -> how often it is drawn, at any scale; 0 leaves it out.

    Raises:
        ValueError: If both are given, or one is out of range.

    >>> Sampling(alpha=0.5).shares({"en": 900, "gsw": 100})
    {'en': 0.75, 'gsw': 0.25}
    >>> Sampling(weights={"law": 3, "web": 1}).shares({"law": 10, "web": 9000})
    {'law': 0.75, 'web': 0.25}
    """

    alpha: float | None = None
    weights: Mapping[str, float] | None = None

    def __post_init__(self):
        if self.alpha is not None and self.weights is not None:
            raise ValueError(f"alpha={self.alpha} and weights={dict(self.weights)}: give one of them.")
        if self.alpha is not None and not (is_number(self.alpha) and 0 < self.alpha <= 1):
            raise ValueError(
                f"alpha={self.alpha!r} must be in (0, 1]: 1 draws sources as often as their sizes say, 0.3 (XLM-R) "
                "draws small ones more often."
            )
        if self.weights is None:
            return
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise ValueError(f"weights={self.weights!r} must name each source, such as {{law: 2, web: 1}}.")
        for name, weight in self.weights.items():
            if not (is_number(weight) and weight >= 0):
                raise ValueError(f"weights: {name}={weight!r} must be a number of at least 0.")
        if not any(self.weights.values()):
            raise ValueError(f"weights={dict(self.weights)}: one of them must be above 0.")

    def __str__(self) -> str:
        if self.weights is None:
            return f"alpha {self.alpha or 1.0:g}"
        return f"weights {', '.join(f'{name} {weight:g}' for name, weight in self.weights.items())}"

    def shares(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """Return the share of each source, from their sizes; a source without a weight is a ValueError."""
        if self.weights is None:
            total = sum(sizes.values())
            weights = {name: (size / total) ** (self.alpha or 1.0) for name, size in sizes.items()}
        else:
            self.check_names(sizes)
            weights = {name: float(self.weights[name]) for name in sizes}
        total = math.fsum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def check_names(self, names: Sequence[str] | Mapping[str, Any]) -> None:
        """Refuse weights of other sources than these."""
        there = f"the sources are {', '.join(names)}"
        for name in self.weights or ():
            if name not in names:
                raise ValueError(f"weights: there is no source {name!r}: {there}.")
        for name in names:
            if name not in (self.weights or names):
                raise ValueError(f"weights: source {name!r} has none: {there}; 0 leaves one out.")
