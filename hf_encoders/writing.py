"""Results on the disk: whether they can be written, asked before the work; whole or not at all; and read again."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
