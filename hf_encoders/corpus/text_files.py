"""Text among the user's paths: the options that name it, and files that are checked before anything is read.

Commands import it before they import torch.
"""

import argparse
import codecs
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_encoders.corpus.named_sources import named_paths
from hf_encoders.inputs import check_name_or_path


if TYPE_CHECKING:
    import datasets


TEXT_SUFFIXES = (".txt", ".jsonl")
_TABLE = (
    "put it in a folder of its own and give that as --dataset, with --text-column (hf-encoders corpus, tokenizer), or "
    "load it with datasets.load_dataset"
)
# Suffixes that are not plain text, and the remedy: read as text, such files would train a model on noise.
NOT_TEXT_SUFFIXES = {
    **dict.fromkeys((".arrow", ".csv", ".json", ".parquet", ".tsv"), _TABLE),
    **dict.fromkeys((".bz2", ".gz", ".tar", ".tgz", ".xz", ".zip", ".zst"), "decompress it first"),
    ".ndjson": "rename it to .jsonl",
    ".pdf": "extract its text, for example with pdftotext",
}
SAMPLE_BYTES = 2**14
_ZIP = b"PK\x03\x04"
_PANDOC = "extract its text, for example with pandoc --to plain"
# Formats by their first bytes, and the remedy. ZIP archives, whose files may be stored uncompressed, are
# distinguished by their suffix.
FORMATS = {
    _ZIP: ("a ZIP archive", "decompress it first"),
    b"%PDF-": ("a PDF", "extract its text, for example with pdftotext"),
    b"{\\rtf": ("an RTF document", _PANDOC),
    b"\x1f\x8b": ("compressed with gzip", "decompress it first"),
    b"PAR1\x15": ("a Parquet table", _TABLE),
    **dict.fromkeys((b"<!doctype html", b"<html"), ("an HTML page", _PANDOC)),
}
ZIP_FORMATS = {
    ".docx": ("a Word document", _PANDOC),
    ".epub": ("an EPUB", _PANDOC),
    ".odt": ("an OpenDocument text", _PANDOC),
    ".xlsx": ("an Excel workbook", "save its table as CSV"),
}
# Control characters that plain text does not have; it has tabs, line ends, form feeds and escapes.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b") | {127})
# Shares of a sample above which it is not text; this package's choice. In compressed data one byte in ten is a control
# character; Latin text in an 8-bit encoding has fewer than a tenth of bytes that are not UTF-8.
MOST_CONTROLS, MOST_UNDECODABLE = 0.05, 0.3
FEW = 8  # such characters are accepted in a file of any length


def text_files(path: Path, option: str = "paths: ") -> list[Path]:
    """Files to read for one path given by the user.

    Args:
        path (`Path`): A file; or a folder, of which all `*.txt` and `*.jsonl` files are read, sorted by path, hidden
            ones included. Symbolic links to folders are followed, each folder once.
        option (`str`, *optional*, defaults to `"paths: "`): What messages call it.

    Raises:
        ValueError: If it does not exist or cannot be read, a folder holds no such file, or a file is not text by its
            suffix or its first bytes.
    """
    if path.is_dir():
        found, skipped = _walk(path, option)
        files = sorted(file for file in found if file.suffix.lower() in TEXT_SUFFIXES)
        if not files:
            others = ", ".join(f"{count} {kind}" for kind, count in (_other_suffixes(found) + skipped).most_common())
            raise ValueError(
                f"{option}the folder '{path}' holds no *.txt and no *.jsonl file{f', but {others}' if others else ''}"
                ": name the files instead."
            )
    elif not path.exists():
        what = f"is a broken link, to '{os.readlink(path)}'" if path.is_symlink() else "does not exist"
        raise ValueError(f"{option}'{path}' {what}: check the spelling, and the folder it is relative to.")
    elif remedy := NOT_TEXT_SUFFIXES.get(path.suffix.lower()):
        raise ValueError(f"{option}'{path}' is not a text file by its suffix: {remedy}.")
    else:
        files = [path]
    for file in files:
        check_is_text(file, option)
    return files


def check_text_files(paths: Sequence[str | Path], option: str) -> None:
    """Refuse paths as `text_files` does, naming the option that gave them."""
    for path in paths:
        text_files(Path(path), f"{option}: ")


def skipped_files(paths: Sequence[str | Path]) -> dict[str, int]:
    """Number of skipped files in the folders among `paths` by kind (suffix, broken link), most frequent first."""
    total: Counter[str] = Counter()
    for path in map(Path, paths):
        if path.is_dir():
            files, skipped = _walk(path)
            total += _other_suffixes(files) + skipped
    return dict(total.most_common())


def has_text(path: Path) -> bool:
    """Whether a path is a file, or a folder that holds text files."""
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
    for mark, (name, remedy) in FORMATS.items():
        if beginning.startswith(mark.lower()):
            if mark == _ZIP:
                name, remedy = ZIP_FORMATS.get(path.suffix.lower(), (name, remedy))
            raise ValueError(f"{option}'{path}' is {name}, not text: {remedy}, or leave it out.")
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if controls > max(MOST_CONTROLS * len(sample), FEW):
        raise ValueError(
            f"{option}'{path}' is a binary file, not text ({controls / len(sample):.0%} of its first bytes are "
            "control characters): decompress it, extract its text, or leave it out; if it is UTF-16, convert it with "
            "iconv -f UTF-16 -t UTF-8."
        )
    decoded = sample.decode("utf-8", "replace")
    undecodable = decoded.count("\ufffd") - sample.count("\ufffd".encode())
    if undecodable > max(MOST_UNDECODABLE * len(decoded), FEW):
        raise ValueError(
            f"{option}'{path}' is not UTF-8 ({undecodable / len(decoded):.0%} of its first characters are not): "
            "convert it from what it is, for example with iconv -f WINDOWS-1251 -t UTF-8, or leave it out."
        )


def _other_suffixes(files: Sequence[Path]) -> Counter[str]:
    """Suffixes of the files that are skipped because of them."""
    suffixes = (file.suffix.lower() or "without suffix" for file in files)
    return Counter(suffix for suffix in suffixes if suffix not in TEXT_SUFFIXES)


def _walk(folder: Path, option: str = "paths: ") -> tuple[list[Path], Counter[str]]:
    """All regular files below a folder; and how many other entries there are, by kind."""
    files: list[Path] = []
    skipped: Counter[str] = Counter()
    seen = {os.path.realpath(folder)}

    def refuse(error: OSError) -> None:
        raise ValueError(
            f"{option}the folder '{error.filename}' cannot be read ({error.strerror}): change its permissions, or "
            "name the other folders."
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
    """Add the options that name the text, files or a dataset; returns the group of those of which one is needed.

    With `takes_names`, the text may be of several sources, `NAME=PATH`, and `--corpus` is another name of `--input`,
    as it is called where there are sources elsewhere.
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


def check_text_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options of --dataset together with --input."""
    for name in ("config", "split", "streaming"):
        if arguments.input and getattr(arguments, name):
            raise ValueError(f"--{name} is for --dataset, not for --input: leave it out.")


def check_text(arguments: argparse.Namespace, takes_names: bool = False) -> None:
    """Refuse files, folders and options of the text that are wrong."""
    check_text_arguments(arguments)
    if arguments.dataset:
        check_name_or_path(arguments.dataset, f"--dataset {arguments.dataset!r}")
    sources = named_paths(arguments.input or (), "--input") if takes_names else {"": arguments.input or ()}
    for paths in sources.values():
        check_text_files(paths, "--input")


def load_split(arguments: argparse.Namespace) -> "datasets.Dataset | datasets.IterableDataset":
    """The split of --dataset."""
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
