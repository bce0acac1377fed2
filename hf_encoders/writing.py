"""Write results: check permissions before the work, lock folders, replace files atomically, format tables."""

import errno
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


LOCK_FILE = "_lock"  # in the locked folder; Trainer does not push names that begin with an underscore
SECONDS_WITHOUT_BAR = 3.0
UNFINISHED = "_unfinished"  # files that are not complete, in the folder that they are for
# Without the first two no tokenizer is loaded, and without the last one no model.
ENTRY_FILES = ("tokenizer_config.json", "tokenizer.json", "config.json")
# Errors of the storage, not of the program. Not every system defines all of them.
STORAGE_ERRORS = {
    getattr(errno, name, None)
    for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENAMETOOLONG", "ENOSPC", "EPERM", "EROFS", "ESTALE")
} - {None}


def check_folder(folder: str | Path, option: str) -> None:
    """Raise ValueError, with the option that named it, for a folder that cannot be made or written. Makes nothing."""
    folder = Path(folder).absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir():
        raise ValueError(f"{option} {str(folder)!r}: {there} is a file: name a folder.")
    if reason := _why_not_writable(there):
        raise ValueError(f"{option} {str(folder)!r}: {there} may not be written to ({reason}): name another folder.")


def check_new_folder(folder: str | Path, option: str) -> None:
    """Raise ValueError as `check_folder`, and for a file or a folder that is not empty."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{option} {str(folder)!r} exists and is not empty: remove it, or name another folder.")
    check_folder(folder, option)


def check_file(path: str | Path, option: str) -> None:
    """Raise ValueError, with the option that named it, for a file that cannot be written. Its folder must exist."""
    path = Path(path)
    folder = path.absolute().parent
    if path.is_dir():
        raise ValueError(f"{option} {path}: is a folder: name a file.")
    if not folder.is_dir():
        raise ValueError(f"{option} {path}: its folder does not exist: make it first.")
    if not os.access(path, os.W_OK) if path.exists() else _why_not_writable(folder):
        raise ValueError(f"{option} {path}: may not be written: name another file.")


def _why_not_writable(folder: Path) -> str | None:
    # Permissions do not tell about full disks and read-only file systems.
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
            file.flush()
    except OSError as error:
        return error.strerror
    return None


@contextmanager
def locked(folder: str | Path, option: str, wait: bool) -> Iterator[None]:
    """Lock a folder for one process on all machines, until it ends; if it is locked, wait or raise ValueError."""
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            remedy = "wait for its end, or name another folder"
            raise ValueError(f"{option} {str(folder)!r}: another process writes there: {remedy}.") from None
        print(f"Waiting for another process that is writing to {folder}", file=sys.stderr, flush=True)
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        is_empty = bool(made) and not holds_files(folder)
        # Not unlinked while others may wait: they have opened this file. In an empty folder, none of them succeeded.
        if is_empty or not wait:
            (folder / LOCK_FILE).unlink(missing_ok=True)
        if is_empty:
            with suppress(OSError):  # another process has written there
                for path in made:
                    path.rmdir()
        lock.release()


def holds_files(folder: Path) -> bool:
    """Return whether a folder exists and holds anything except a lock and unfinished files."""
    return folder.exists() and any(path.name not in (LOCK_FILE, UNFINISHED) for path in folder.iterdir())


def storage_problem(error: BaseException | None) -> str | None:
    """Return the storage error that caused an error in one line, such as a full disk; None for other errors.

    Libraries in Rust give the number of the system's error in their message.

    >>> storage_problem(OSError(errno.ENOSPC, "No space left on device", "model.onnx"))
    "No space left on device: 'model.onnx'"
    >>> storage_problem(RuntimeError("I/O error: No space left on device (os error 28)"))
    'No space left on device'
    >>> storage_problem(FileNotFoundError(errno.ENOENT, "No such file", "a"))
    """
    seen: list[BaseException] = []
    while error is not None and error not in seen:  # a cause that is raised again has the error it caused as context
        quoted = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) and error.errno else int(quoted[1]) if quoted else None
        if number in STORAGE_ERRORS:
            name = getattr(error, "filename", None)
            return os.strerror(number) + (f": {str(name)!r}" if name else "")
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Make a new folder that replaces `folder` if the block ends without an error.

    Both are next to it meanwhile, with an underscore in front, which `Trainer` does not push.
    """
    new, earlier = folder.with_name(f"_{folder.name}"), folder.with_name(f"_replaced_{folder.name}")
    if earlier.exists() and not folder.exists():
        earlier.rename(folder)  # a process was killed between the two renames below
    for left in (new, earlier):
        if left.exists():
            shutil.rmtree(left)
    new.mkdir(parents=True)
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(earlier)
    new.rename(folder)
    shutil.rmtree(earlier, ignore_errors=True)


@contextmanager
def replaced_files(folder: Path, subfolders: Iterable[str] = ()) -> Iterator[Path]:
    """Make a new folder whose files become those of `folder`, which is locked, if the block ends without an error.

    JSON and weights of earlier files that are not among them are removed then, and so are `subfolders`; other files
    stay. The folder itself stays too: it may be the root of a file system, which has no other name. A process that is
    killed meanwhile leaves a folder without config.json, which is refused when it is loaded.
    """
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        for name in reversed(ENTRY_FILES):
            (folder / name).unlink(missing_ok=True)
        new = {path.name for path in unfinished.iterdir()}
        for name in (*subfolders, *(path.name for path in unfinished.iterdir() if path.is_dir())):
            shutil.rmtree(folder / name, ignore_errors=True)
        for path in list(folder.iterdir()):
            if path.suffix in (".json", ".safetensors") and path.name not in new:
                path.unlink()
        for name in sorted(new, key=(*new - {*ENTRY_FILES}, *ENTRY_FILES).index):
            (unfinished / name).replace(folder / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write or replace a text file atomically, without following links: in the Hub's cache, files are links."""
    unfinished = path.with_name(f"_{path.name}")
    unfinished.unlink(missing_ok=True)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def with_bar(items: Iterable[Any], label: str, total: int | None = None) -> Iterable[Any]:
    """Show a progress bar of `datasets`, on stderr, over items that take longer than `SECONDS_WITHOUT_BAR`."""
    from datasets.utils import tqdm

    return tqdm(items, label, total, delay=SECONDS_WITHOUT_BAR, mininterval=1.0, leave=False)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object, or raise ValueError with file, problem and remedy."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
        raise ValueError(f"it holds a {type(content).__name__}, not an object")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): {remedy}") from error


def text_table(rows: Sequence[Sequence[str]], align: str = "<") -> str:
    """Return rows with aligned columns, two spaces between them.

    Args:
        rows (`Sequence`): Cells, the same number in each row; the first row may be a heading.
        align (`str`, *optional*, defaults to `"<"`): `<` (left) or `>` (right) for each column; the last one also
            applies to all further columns.

    >>> print(text_table([["", "loss", "steps"], ["a", "2.25", "1,000"], ["long", "12.25", "5"]], "<>"))
           loss  steps
    a      2.25  1,000
    long  12.25      5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = align.ljust(len(widths), align[-1])
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False)).rstrip()
        for row in rows
    )


def markdown_table(rows: Sequence[Sequence[str]], align: str = "<") -> str:
    """Return rows as a Markdown table, the first as its heading; arguments as those of `text_table`.

    >>> print(markdown_table([["", "loss"], ["a", "2.25"]], "<>"))
    | | loss |
    |---|---:|
    | a | 2.25 |
    """
    sides = align.ljust(len(rows[0]), align[-1])[: len(rows[0])]
    rule = "|" + "".join("---:|" if side == ">" else "---|" for side in sides)
    heading, *body = ("|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows)
    return "\n".join([heading, rule, *body])


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean, and the sample standard deviation (divisor n - 1) if there are several values.

    >>> mean_and_deviation([0.5, 0.7]), mean_and_deviation([0.5])
    ('0.600 ± 0.141', '0.500')
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def duration(seconds: float) -> str:
    """Return seconds in a readable unit.

    >>> duration(42), duration(600), duration(36_000), duration(864_000)
    ('42 s', '10.0 min', '10.0 h', '10.0 days')
    >>> duration(101_834.6 * 86_400)
    '101,835 days'
    """
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            number = seconds / size
            return f"{number:,.0f} {unit}" if number >= 1000 else f"{number:.1f} {unit}"
    return f"{seconds:.0f} s"
