"""Whether results can be written where they are to go, asked before the work that would be lost."""

import errno
import os
import re
import tempfile
from pathlib import Path


# What stands in the way of writing that is the machine's and not a fault of a program.
OF_STORAGE = {
    getattr(errno, name)
    for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENAMETOOLONG", "ENOSPC", "EPERM", "EROFS", "ESTALE")
    if hasattr(errno, name)
}


def check_folder(folder: str | Path, option: str) -> None:
    """Refuse a folder that cannot be made, or that may not be written to. Nothing is made.

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
    if not _takes_files(there):
        raise ValueError(f"{option} {str(folder)!r}: {there} may not be written to: name another folder.")


def check_file(path: str | Path, option: str) -> None:
    """Refuse a file that cannot be written: in a folder that is not there or closed, or itself a folder or closed.

    Args:
        path: a file that is there would be replaced.
        option (`str`): what named it, for the error.

    Raises:
        ValueError: names the option, the file and what is in the way.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{option} {path}: is a folder: name a file.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option} {path}: its folder does not exist: make it first.")
    if not (os.access(path, os.W_OK) if path.exists() else _takes_files(path.absolute().parent)):
        raise ValueError(f"{option} {path}: may not be written: name another file.")


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made in a folder: tried, for rights alone do not say so of /proc or of a full disk."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


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
