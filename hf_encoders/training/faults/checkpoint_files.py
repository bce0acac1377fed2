"""How a checkpoint's files get to the disk and to their place, so that a power cut or a kill leaves all or nothing."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

from transformers.utils import logging

from hf_encoders.training.faults.checkpoints import FILE_LIST, list_of_files


logger = logging.get_logger(__name__)

# What file systems answer that cannot bring a folder to the disk on demand (FUSE, some network ones).
NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


def bring_to_disk(folder: Path) -> None:
    """Wait until all files in a folder, and their names, are on the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            bring_names_to_disk(path)
    bring_names_to_disk(folder)


def bring_names_to_disk(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can be asked to."""
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


def finish_checkpoint(unfinished: Path, place: Path, facts: dict[str, Any]) -> None:
    """Make a fully written checkpoint a valid one at its place.

    One that is there already, of a run that came this far before, is taken away only when the new one is complete.

    Args:
        unfinished: the folder that was written.
        place: where it belongs, on the same file system.
        facts: what is noted of the run.
    """
    bring_to_disk(unfinished)
    listed = json.dumps(list_of_files(unfinished, facts), indent=1)
    with open(unfinished / FILE_LIST, "w", encoding="utf-8") as file:
        file.write(listed + "\n")
        file.flush()
        os.fsync(file.fileno())
    bring_names_to_disk(unfinished)
    if place.exists():
        # A kill between the two renames is made good by `newest_good_checkpoint`.
        os.rename(place, unfinished.parent / f"replaced-{place.name}")
    os.rename(unfinished, place)
    bring_names_to_disk(place.parent)


def remove_checkpoint(checkpoint: Path, aside: Path) -> None:
    """Remove a checkpoint, moved to the folder `aside` first: a kill leaves no checkpoint with some of its files.

    What cannot be removed is told, and does not end a training.
    """
    target = aside / f"removed-{checkpoint.name}"
    try:
        aside.mkdir(exist_ok=True)
        os.rename(checkpoint, target)
    except OSError as error:
        logger.warning(f"{checkpoint} is one more than save_total_limit and stays ({error}): remove it by hand.")
        return
    remove_folder(target)


def remove_folder(folder: Path) -> None:
    """Remove a folder if it is there; what cannot be removed is told, and does not end a training."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning(f"{folder} could not be removed ({error}): remove it by hand.")
