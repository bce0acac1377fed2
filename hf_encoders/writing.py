"""Whether results can be written where they are to go, asked before the work that would be lost."""

import os
from pathlib import Path


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
    if not os.access(there, os.W_OK | os.X_OK):
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
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ValueError(f"{option} {path}: may not be written: name another file.")
