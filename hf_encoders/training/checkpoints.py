"""Atomic checkpoints, which of them are intact, and what they store about their run.

`FaultTolerantTrainer` writes a list of files with sizes and checksums into each checkpoint, and every byte is compared
with that list. A checkpoint without one (of the stock `Trainer`) is trusted if it has `trainer_state.json`, which
`Trainer` writes last.
"""

import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from hf_encoders.corpus.flat_corpus import FlatCorpus


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
    folders = [path for path in folder.iterdir() if CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(CHECKPOINT.fullmatch(checkpoint.name)[1])


def checksum(path: str | os.PathLike) -> str:
    """Return the CRC-32 of a file as 8 hexadecimal digits: against damage, not against forgery."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            crc = zlib.crc32(block, crc)
    return f"{crc:08x}"


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
            actual = checksum(path)
        except OSError as error:
            return f"{path} cannot be read ({error})."
        if actual != expected["crc32"]:
            return f"{path} is not what was saved (checksum {actual} instead of {expected['crc32']})."
    return None


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


SAMPLES = 64  # positions of a corpus that are compared
TOKENS_PER_SAMPLE = 1024


def facts_of_run(trainer: Trainer) -> dict[str, Any]:
    """Return step, number of processes, rows per optimizer step and corpora of a run, as JSON.

    A row is what the dataset calls an example (a group, where it groups). `rows` is None for a stream.
    """
    args = trainer.args
    rows_per_device = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return {
        "step": trainer.state.global_step,
        "processes": args.world_size,
        "rows_per_step": rows_per_device * max(args.n_gpu, 1) * args.world_size,
        "rows": len(trainer.train_dataset) if isinstance(trainer.train_dataset, Sized) else None,
        "corpora": [description_of_corpus(corpus) for corpus in corpora_of(trainer.train_dataset)],
    }


def corpora_of(dataset: Any) -> Iterator[FlatCorpus]:
    """Yield the corpora of a dataset of this package, also within torch's `Subset` and `ConcatDataset`."""
    yield from getattr(dataset, "corpora", ())
    for inner in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if inner is not None:
            yield from corpora_of(inner)


def description_of_corpus(corpus: FlatCorpus) -> dict[str, Any]:
    """Return the numbers of documents, sentences and tokens, and a checksum of tokens at 64 evenly spaced positions.

    Not of all tokens, which would read hundreds of gigabytes before every start: changes between the positions go
    unnoticed if the number of tokens stays the same. The path of the corpus does not matter.

    >>> import datasets
    >>> description_of_corpus(FlatCorpus.of(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]})))
    {'documents': 2, 'sentences': 3, 'tokens': 4, 'crc32': 'b6ae1255'}
    """
    tokens, crc = corpus.tokens, 0
    last = max(len(tokens) - TOKENS_PER_SAMPLE, 0)
    for start in np.unique(np.linspace(0, last, SAMPLES).astype(np.int64)):
        crc = zlib.crc32(np.ascontiguousarray(tokens[start : start + TOKENS_PER_SAMPLE], dtype="<i4"), crc)
    return {
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        "tokens": len(tokens),
        "crc32": f"{crc:08x}",
    }


def check_same_corpus(saved: dict[str, Any], now: dict[str, Any], checkpoint: str) -> None:
    """Refuse to resume on another corpus: steps and epochs of the checkpoint count through its own.

    Args:
        saved (`dict[str, Any]`): `facts_of_run` of the run that wrote the checkpoint; empty for the stock `Trainer`.
        now (`dict[str, Any]`): `facts_of_run` of this run.
        checkpoint (`str`): The checkpoint's folder.

    Raises:
        ValueError: If both runs have stored corpora and they differ.
    """
    before, after = saved.get("corpora"), now["corpora"]
    if before and after and before != after:
        raise ValueError(
            f"train_dataset is not the corpus that {checkpoint} was trained on: {shown(before)} then, {shown(after)} "
            "now. Resume with that corpus, or start a new run on this one from the checkpoint's weights: "
            f'from_pretrained("{checkpoint}") instead of resume_from_checkpoint.'
        )


def shown(corpora: list[dict[str, Any]]) -> str:
    """Describe corpora.

    >>> shown([{"documents": 2, "sentences": 3, "tokens": 4000, "crc32": "e0f1a5ad"}])
    '2 documents with 4,000 tokens (checksum e0f1a5ad)'
    """
    return " and ".join(
        f"{corpus['documents']:,} documents with {corpus['tokens']:,} tokens (checksum {corpus['crc32']})"
        for corpus in corpora
    )


def what_differs(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return sentences on why the resumed run will differ from an uninterrupted one; empty if it will not."""
    differences = []
    if "rows_per_step" in saved and not has_same_position(saved, now):
        differences.append(
            f"an optimizer step had {saved['rows_per_step']} rows of the dataset and now has {now['rows_per_step']}: "
            "the data resumes at another position: some examples of this epoch are skipped or repeated. Keep "
            "per_device_train_batch_size x gradient_accumulation_steps x processes"
        )
    if "processes" in saved and saved["processes"] != now["processes"]:
        differences.append(
            f"it was written by {saved['processes']} process(es) and is resumed by {now['processes']}: examples and "
            "masks are those of the uninterrupted run, the random numbers of dropout are not"
        )
    return differences


def has_same_position(saved: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether step k reads the same examples.

    Also where a dataset holds a whole run and was split into other micro-batches: its rows then change by the same
    factor as those of a step.

    >>> has_same_position({"rows_per_step": 4, "rows": 4000}, {"rows_per_step": 8, "rows": 8000})
    True
    >>> has_same_position({"rows_per_step": 4, "rows": 4000}, {"rows_per_step": 8, "rows": 4000})
    False
    """
    if saved["rows_per_step"] == now["rows_per_step"]:
        return True
    if saved["rows"] is None or now["rows"] is None:
        return False
    return saved["rows"] * now["rows_per_step"] == now["rows"] * saved["rows_per_step"]
