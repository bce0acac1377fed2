"""Which checkpoints of a run are intact, and what is wrong with the others.

`FaultTolerantTrainer` writes a list of files with sizes and checksums into each checkpoint, and every byte is compared
with that list. A checkpoint without one (of the stock `Trainer`) is trusted if it has `trainer_state.json`, which
`Trainer` writes last.
"""

import json
import os
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME


FILE_LIST = "checkpoint_files.json"
# Subfolder of the output folder where checkpoints are written. Its name does not begin with "checkpoint-", so nothing
# mistakes its content for checkpoints, and begins with "_", so `Trainer` does not push it to the Hub.
UNFINISHED = "_unfinished"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")  # the name that `Trainer` gives, with the step
READ_BYTES = 1 << 24


class DamagedCheckpointError(ValueError):
    """A checkpoint that training cannot resume from; the message has the file, the problem and the remedy."""


def newest_good_checkpoint(output_dir: str | os.PathLike, log: Callable[[str], Any] = print) -> Path | None:
    """Return the intact checkpoint with the highest step, or None.

    The step in the name counts, not the modification time, which copies and wrong clocks change. A checkpoint that was
    complete but not yet renamed when the process ended is renamed now.

    Args:
        output_dir (`str` or `os.PathLike`): `output_dir` of the run's `TrainingArguments`; need not exist.
        log (`Callable`, *optional*, defaults to `print`):
            Called with one line per skipped checkpoint, with the reason, and one for the checkpoint used instead.
    """
    for unfinished in checkpoints_by_step(Path(output_dir) / UNFINISHED):
        target = Path(output_dir) / unfinished.name
        if (problem := problem_of_unfinished(unfinished)) is not None:
            log(f"skipped: {problem}")
        elif not target.exists():
            with suppress(FileNotFoundError):  # another process of the run was faster
                os.rename(unfinished, target)
    has_skipped = False
    for checkpoint in checkpoints_by_step(Path(output_dir)):
        problem = problem_of_checkpoint(checkpoint)
        if problem is None:
            if has_skipped:
                log(f"used instead: {checkpoint}")
            return checkpoint
        has_skipped = True
        log(f"skipped: {problem}")
    return None


def check_checkpoint(checkpoint: str | os.PathLike) -> None:
    """Refuse a damaged checkpoint.

    Raises:
        DamagedCheckpointError: With the file, what is wrong with it, and the newest intact checkpoint of the folder.
    """
    problem = problem_of_checkpoint(checkpoint)
    if problem is not None:
        good = newest_good_checkpoint(Path(checkpoint).parent, log=lambda line: None)
        remedy = "No other checkpoint is intact: start from scratch" if good is None else f"Newest intact one: {good}"
        raise DamagedCheckpointError(f"resume_from_checkpoint: {problem} {remedy}.")


def checkpoints_by_step(folder: Path) -> list[Path]:
    """Return the subfolders with a checkpoint's name, highest step first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(CHECKPOINT.fullmatch(checkpoint.name)[1])


def checksum(path: str | os.PathLike) -> str:
    """Return the CRC-32 of a file as 8 hexadecimal digits: against damage, not against forgery."""
    found = 0
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def list_of_files(checkpoint: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `FILE_LIST`: `facts` about the run, and size in bytes and checksum of every file."""
    paths = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    files = {
        path.relative_to(checkpoint).as_posix(): {"bytes": path.stat().st_size, "crc32": checksum(path)}
        for path in paths
    }
    return {**facts, "files": files}


def facts_of_checkpoint(checkpoint: str | os.PathLike) -> dict[str, Any]:
    """Return what `FILE_LIST` holds; empty for a checkpoint of the stock `Trainer`."""
    path = Path(checkpoint) / FILE_LIST
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def problem_of_unfinished(checkpoint: Path) -> str | None:
    """Return why a checkpoint in `UNFINISHED` cannot be used; None if only its renaming is missing."""
    if not (checkpoint / FILE_LIST).is_file():
        return f"{checkpoint} is incomplete: the process ended while saving it."
    return problem_of_checkpoint(checkpoint)


def problem_of_checkpoint(checkpoint: str | os.PathLike) -> str | None:
    """Return what is wrong with a checkpoint, in a sentence that names the file; None if it is intact.

    Sizes of all files are compared before the first checksum is computed.
    """
    checkpoint = Path(checkpoint)
    if not checkpoint.is_dir():
        return f"{checkpoint} is not a folder."
    if not (checkpoint / FILE_LIST).is_file():
        state = checkpoint / TRAINER_STATE_NAME
        return None if state.is_file() else f"{state} is missing: the process ended while saving the checkpoint."
    try:
        files = facts_of_checkpoint(checkpoint)["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"{checkpoint / FILE_LIST} is damaged ({type(error).__name__}: {error})."
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{path} is missing."
        if (size := path.stat().st_size) != expected["bytes"]:
            return f"{path} has {size} bytes instead of {expected['bytes']}: it was truncated or changed."
    for name, expected in files.items():
        path = checkpoint / name
        try:
            found = checksum(path)
        except OSError as error:
            return f"{path} cannot be read ({error})."
        if found != expected["crc32"]:
            return f"{path} is not what was saved (checksum {found} instead of {expected['crc32']})."
    return None
