"""Atomic checkpoints: synced to disk and then renamed, so that a power cut or a kill leaves all files or none."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

from transformers.utils import logging

from hf_encoders.training.checkpoints import FILE_LIST, list_of_files


logger = logging.get_logger(__name__)

# Errors of file systems that cannot sync a folder (FUSE, some network file systems).
NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


def sync_files(folder: Path) -> None:
    """Sync all files in a folder, and its subfolders, to disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync the directory entries of a folder, where the file system supports it."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC_OF_FOLDERS:
            raise
    finally:
        os.close(descriptor)


def finish_checkpoint(unfinished: Path, target: Path, facts: dict[str, Any]) -> None:
    """List the files of a fully written checkpoint, sync it and rename it.

    A checkpoint that is already at `target`, such as one after which the run was resumed, is moved away only when the
    new one is complete; `newest_good_checkpoint` recovers from a kill between the two renames.

    Args:
        unfinished (`Path`): The folder that was written.
        target (`Path`): Its final path, on the same file system.
        facts (`dict[str, Any]`): Stored with the list of files.
    """
    sync_files(unfinished)
    listed = json.dumps(list_of_files(unfinished, facts), indent=1)
    with open(unfinished / FILE_LIST, "w", encoding="utf-8") as file:
        file.write(listed + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(unfinished)
    if target.exists():
        os.rename(target, unfinished.parent / f"replaced-{target.name}")
    os.rename(unfinished, target)
    sync_folder(target.parent)


def remove_checkpoint(checkpoint: Path, aside: Path) -> None:
    """Remove a checkpoint; errors are logged.

    It is moved to the folder `aside` first: a kill leaves no checkpoint with some of its files.
    """
    target = aside / f"removed-{checkpoint.name}"
    try:
        aside.mkdir(exist_ok=True)
        os.rename(checkpoint, target)
    except OSError as error:
        logger.warning(f"{checkpoint} exceeds save_total_limit and could not be removed ({error}): remove it by hand.")
        return
    remove_folder(target)


def remove_folder(folder: Path) -> None:
    """Remove a folder if it exists; errors are logged."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning(f"{folder} could not be removed ({error}): remove it by hand.")
