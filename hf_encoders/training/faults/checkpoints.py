"""Which checkpoints of a run are whole, and why the others are not.

`FaultTolerantTrainer` writes a list of files with sizes and checksums into each of its checkpoints. Against that list
every byte is compared. Checkpoints of the stock `Trainer` have no such list: of those it is checked that all files are
there, that JSON parses and that binary files are complete to their ends; a flipped bit is not found in them.
"""

import json
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers.trainer import OPTIMIZER_NAME, OPTIMIZER_NAME_BIN, SCALER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from hf_encoders.models.encoder_checkpoints import problem_of_file, problem_of_shards


FILE_LIST = "checkpoint_files.json"
# Where a checkpoint is until it is whole, inside of the output folder. It does not begin with "checkpoint-", so that
# nobody takes what is in it for checkpoints, and begins with "_", so that `Trainer` does not push it to the Hub.
UNFINISHED = "_unfinished"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")  # the name that `Trainer` gives, with the step
BYTES_A_READ = 1 << 24


class DamagedCheckpointError(ValueError):
    """A checkpoint that training cannot go on from; the message has file, problem and remedy."""


def newest_good_checkpoint(output_dir: str | os.PathLike, say: Callable[[str], Any] = print) -> Path | None:
    """The whole checkpoint of the highest step in a run's folder.

    By the step in the name, not by time, which a copy or a wrong clock changes. A checkpoint that was complete but had
    not got its place yet when the process ended gets it now.

    Args:
        output_dir: the run's folder, `output_dir` of its `TrainingArguments`.
        say: gets one line for each checkpoint that was passed over, with the reason, and one for the one taken
            instead.

    Returns:
        Its path; None if there is none, or no such folder.
    """
    for unfinished in steps_first(Path(output_dir) / UNFINISHED):
        place = Path(output_dir) / unfinished.name
        if (problem := problem_of_unfinished(unfinished)) is not None:
            say(f"passed over: {problem}")
        elif not place.exists():
            with suppress(FileNotFoundError):  # another process of the run asked too, and was quicker
                os.rename(unfinished, place)
    passed_over = False
    for checkpoint in steps_first(Path(output_dir)):
        problem = problem_of_checkpoint(checkpoint)
        if problem is None:
            if passed_over:
                say(f"taken instead: {checkpoint}")
            return checkpoint
        passed_over = True
        say(f"passed over: {problem}")
    return None


def check_checkpoint(checkpoint: str | os.PathLike) -> None:
    """Refuse a checkpoint that is damaged.

    Raises:
        DamagedCheckpointError: naming the file, what is wrong with it, and the newest good checkpoint beside it.
    """
    checkpoint = Path(checkpoint)
    problem = problem_of_checkpoint(checkpoint)
    if problem is None:
        return
    good = newest_good_checkpoint(checkpoint.parent, say=lambda line: None)
    remedy = "There is no good one beside it: begin anew" if good is None else f"The newest good one is {good}"
    raise DamagedCheckpointError(f"resume_from_checkpoint: {problem} {remedy}.")


def steps_first(folder: Path) -> list[Path]:
    """The folders in `folder` that are named as checkpoints, the highest step first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(CHECKPOINT.fullmatch(path.name)[1]), reverse=True)


def problem_of_unfinished(checkpoint: Path) -> str | None:
    """What a checkpoint lacks that was being written when its process ended."""
    if not (checkpoint / FILE_LIST).is_file():
        return f"{checkpoint} is half written: the process ended while it was saved."
    return problem_of_checkpoint(checkpoint)


def problem_of_checkpoint(checkpoint: str | os.PathLike) -> str | None:
    """What is wrong with a checkpoint, in a sentence that names the file; None if training can go on from it."""
    checkpoint = Path(checkpoint)
    if not checkpoint.is_dir():
        return f"{checkpoint} is no folder."
    if (checkpoint / FILE_LIST).is_file():
        return problem_by_list(checkpoint)
    return problem_by_structure(checkpoint)


# --- checkpoints with a list of their files ---


def checksum(path: str | os.PathLike) -> str:
    """CRC-32 of a file, 8 hexadecimal digits: against damage, not against forgery."""
    found = 0
    with open(path, "rb") as file:
        while block := file.read(BYTES_A_READ):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def list_of_files(checkpoint: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """What `FILE_LIST` holds: `facts` of the run, and sizes in bytes and checksums of all files."""
    paths = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    files = {
        path.relative_to(checkpoint).as_posix(): {"bytes": path.stat().st_size, "crc32": checksum(path)}
        for path in paths
    }
    return {**facts, "files": files}


def facts_of_checkpoint(checkpoint: str | os.PathLike) -> dict[str, Any]:
    """What was noted of the run with a checkpoint; nothing of one of the stock `Trainer`."""
    path = Path(checkpoint) / FILE_LIST
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def problem_by_list(checkpoint: Path) -> str | None:
    """Compare every file with the list; sizes of all first, which costs nothing."""
    try:
        files = facts_of_checkpoint(checkpoint)["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"{checkpoint / FILE_LIST} is damaged ({type(error).__name__}: {error})."
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{path} is missing."
        if (size := path.stat().st_size) != expected["bytes"]:
            return f"{path} has {size} bytes of {expected['bytes']}: it was cut short or changed."
    for name, expected in files.items():
        path = checkpoint / name
        try:
            found = checksum(path)
        except OSError as error:
            return f"{path} cannot be read ({error})."
        if found != expected["crc32"]:
            return f"{path} is not what was saved (checksum {found} instead of {expected['crc32']})."
    return None


# --- checkpoints of the stock Trainer ---


def problem_by_structure(checkpoint: Path) -> str | None:
    """Check what `Trainer` needs to go on: weights, its state, and optimizer, schedule and generators together."""
    return problem_of_state(checkpoint) or problem_of_weights(checkpoint) or problem_of_torch_files(checkpoint)


def problem_of_state(checkpoint: Path) -> str | None:
    """Check `trainer_state.json`, which `Trainer` writes last."""
    path = checkpoint / TRAINER_STATE_NAME
    if not path.is_file():
        return f"{path} is missing: the process ended while the checkpoint was saved, or it was not copied."
    try:
        json.loads(path.read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} is damaged ({type(error).__name__}: {error})."
    return None


def problem_of_weights(checkpoint: Path) -> str | None:
    """Check safetensors files by their headers.

    Weights of other kinds (adapters, shards of FSDP and DeepSpeed) are left to `Trainer`.
    """
    weights, index = checkpoint / SAFE_WEIGHTS_NAME, checkpoint / SAFE_WEIGHTS_INDEX_NAME
    if weights.is_file():
        return problem_of_file(str(weights))
    if index.is_file():
        return problem_of_shards(str(index), lambda name: existing(checkpoint / name))
    if (checkpoint / CONFIG_NAME).is_file() and not any(path.is_dir() for path in checkpoint.iterdir()):
        return f"{weights} is missing."
    return None


def existing(path: Path) -> str | None:
    """The path if there is such a file."""
    return str(path) if path.is_file() else None


def problem_of_torch_files(checkpoint: Path) -> str | None:
    """Check that what `torch.save` wrote is there and complete; nothing is unpickled.

    Without any of them the checkpoint is one of `save_only_model=True`.
    """
    names = {path.name for path in checkpoint.iterdir()}
    generators = sorted(name for name in names if re.fullmatch(r"rng_state(_\d+)?\.pth", name))
    # FSDP with whole state calls its optimizer otherwise.
    optimizer = OPTIMIZER_NAME_BIN if OPTIMIZER_NAME_BIN in names else OPTIMIZER_NAME
    found = [name for name in (optimizer, SCHEDULER_NAME, SCALER_NAME) if name in names] + generators
    for name in found:
        # The table at the end of a zip file is its last part: a file that was cut short has none.
        if not zipfile.is_zipfile(checkpoint / name):
            return f"{checkpoint / name} is damaged or cut short."
    has_folders = any(
        path.is_dir() for path in checkpoint.iterdir()
    )  # FSDP with sharded state and DeepSpeed keep optimizers in them
    if not found or has_folders:
        return None
    needed = [optimizer, SCHEDULER_NAME, *missing_generators(generators)]
    missing = [name for name in needed if name not in names]
    return f"{checkpoint / missing[0]} is missing." if missing else None


def missing_generators(generators: Iterable[str]) -> list[str]:
    """Files of random generators that the numbers of the others tell of.

    >>> missing_generators(["rng_state_0.pth", "rng_state_2.pth"]), missing_generators([])
    (['rng_state_1.pth'], ['rng_state.pth'])
    """
    numbers = {int(name[len("rng_state_") : -len(".pth")]) for name in generators if name != "rng_state.pth"}
    if not numbers:
        return [name for name in ["rng_state.pth"] if name not in generators]
    return [f"rng_state_{number}.pth" for number in range(max(numbers)) if number not in numbers]
