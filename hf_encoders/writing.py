"""Results on the disk: whether they can be written, asked before the work; by one process; whole or not at all."""

import errno
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


LOCK_FILE = "_lock"  # in the folder that is locked; Trainer does not push what begins with an underscore


# What stands in the way of writing that is the machine's and not a fault of a program.
OF_STORAGE = {
    getattr(errno, name)
    for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENAMETOOLONG", "ENOSPC", "EPERM", "EROFS", "ESTALE")
    if hasattr(errno, name)
}


def check_folder(folder: str | Path, option: str) -> None:
    """Refuse a folder that cannot be made, or that cannot be written to. Nothing that stays is made.

    Args:
        folder: it, or its parents, need not be there yet.
        option (`str`): what named it, for the error.

    Raises:
        ValueError: names the option, the folder and what is in the way.
    """
    folder = Path(folder).absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir():
        raise ValueError(f"{option} {str(folder)!r}: {there} is a file: name a folder.")
    if reason := _why_not_writable(there):
        raise ValueError(f"{option} {str(folder)!r}: {there} may not be written to ({reason}): name another folder.")


def check_file(path: str | Path, option: str) -> None:
    """Refuse a file that cannot be written: in a folder that is not there or closed, or itself a folder or closed.

    Args:
        path: a file that is there would be replaced.
        option (`str`): what named it, for the error.

    Raises:
        ValueError: names the option, the file and what is in the way.
    """
    path = Path(path)
    folder = path.absolute().parent
    if path.is_dir():
        raise ValueError(f"{option} {path}: is a folder: name a file.")
    if not folder.is_dir():
        raise ValueError(f"{option} {path}: its folder does not exist: make it first.")
    if not os.access(path, os.W_OK) if path.exists() else _why_not_writable(folder):
        raise ValueError(f"{option} {path}: may not be written: name another file.")


@contextmanager
def locked(folder: str | Path, option: str, wait: bool) -> Iterator[None]:
    """Keep other processes, on all machines that see the folder, from making something in it at the same time.

    The operating system lets go of the lock when a process ends, however it ends.

    Args:
        folder: made if it is not there.
        option (`str`): what named it, for the error.
        wait (`bool`): whether to wait for another process that has it locked, and say so; otherwise that is an error.

    Raises:
        ValueError: if another process has it locked, and `wait` is False.
    """
    folder = Path(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            raise ValueError(
                f"{option} {str(folder)!r}: another process writes there: wait for its end, or name another folder."
            ) from None
        print(f"Waiting for another process that is writing to {folder}", file=sys.stderr, flush=True)
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        # Where others may wait it stays: unlinked, it would be another lock to who opened it before.
        if not wait:
            (folder / LOCK_FILE).unlink(missing_ok=True)
            if is_new and not holds_files(folder):
                folder.rmdir()  # what was to be written in it has failed
        lock.release()


def holds_files(folder: Path) -> bool:
    """Whether a folder is there and holds anything but a lock."""
    return folder.exists() and any(path.name != LOCK_FILE for path in folder.iterdir())


def _why_not_writable(folder: Path) -> str | None:
    """Why no file can be written in a folder, found by writing one: permissions do not tell of all."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
            file.flush()
    except OSError as error:
        return error.strerror
    return None


def storage_problem(error: BaseException) -> str | None:
    """What a failure to write was, in one line: a full, closed or broken disk; None for any other error.

    Libraries in Rust put the number of the system's error into their text.

    >>> storage_problem(OSError(errno.ENOSPC, "No space left on device", "model.onnx"))
    "No space left on device: 'model.onnx'"
    >>> storage_problem(RuntimeError("I/O error: No space left on device (os error 28)"))
    'No space left on device'
    >>> storage_problem(FileNotFoundError(errno.ENOENT, "No such file", "a"))
    """
    seen: BaseException | None = error
    while seen is not None:
        told = re.search(r"\(os error (\d+)\)", str(seen))
        number = seen.errno if isinstance(seen, OSError) and seen.errno else int(told[1]) if told else None
        if number in OF_STORAGE:
            name = getattr(seen, "filename", None)
            return os.strerror(number) + (f": {str(name)!r}" if name else "")
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which gets the name of `folder` when the block has ended without an error.

    What `folder` held before stays as it is until then, and is removed after that. Both lie beside it meanwhile, with
    an underscore in front, which `Trainer` does not push to the Hub.

    Args:
        folder (`Path`): need not be there yet, nor its parents.
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


def write_whole(path: Path, text: str) -> None:
    """Write a text file, or leave the one that is there as it is."""
    unfinished = path.with_name(f"_{path.name}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON file that this package wrote.

    Args:
        path (`Path`): the file.
        remedy (`str`): what the user can do where it is damaged.

    Raises:
        ValueError: if it holds no JSON object; names the file, the problem and the remedy.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not an object")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): {remedy}") from error
    return found
