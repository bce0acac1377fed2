"""Complete checkpoints: how they are finished, which of them are intact, and what they store about their run.

`FaultTolerantTrainer` writes a list of files with checksums into each checkpoint, and every byte is compared with that
list. A checkpoint without one (of the stock `Trainer`) is trusted if it has `trainer_state.json`, which `Trainer`
writes last.
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import numpy as np
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.training.callbacks import with_inner_datasets


FILE_LIST = "checkpoint_files.json"
# Subfolder of the output folder where checkpoints are written. Its name does not begin with "checkpoint-", so nothing
# mistakes its content for checkpoints, and begins with "_", so `Trainer` does not push it to the Hub.
UNFINISHED = "_unfinished"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")  # the name that `Trainer` gives, with the step
READ_BYTES = 1 << 24
SAMPLES = 64  # positions of a corpus that are compared
TOKENS_PER_SAMPLE = 1024


class DamagedCheckpointError(ValueError):
    """A checkpoint that training cannot resume from; the message has the file, the problem and the remedy."""


def newest_good_checkpoint(output_dir: str | os.PathLike, log: Callable[[str], Any] = print) -> Path | None:
    """Return the intact checkpoint with the highest step, or None.

    The step in the name counts, not the modification time, which copies and wrong clocks change.

    Args:
        output_dir (`str` or `os.PathLike`): `output_dir` of the run's `TrainingArguments`; need not exist.
        log (`Callable`, *optional*, defaults to `print`):
            Called with one line per skipped checkpoint, with the reason, and one for the checkpoint used instead.
    """
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


def facts_of_checkpoint(checkpoint: str | os.PathLike) -> dict[str, Any]:
    """Return what `FILE_LIST` holds; empty for a checkpoint of the stock `Trainer`."""
    path = Path(checkpoint) / FILE_LIST
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def problem_of_checkpoint(checkpoint: str | os.PathLike) -> str | None:
    """Return what is wrong with a checkpoint, in a sentence that names the file; None if it is intact."""
    checkpoint = Path(checkpoint)
    if not checkpoint.is_dir():
        return f"{checkpoint} is not a folder."
    path = checkpoint / FILE_LIST
    if not path.is_file():
        state = checkpoint / TRAINER_STATE_NAME
        return None if state.is_file() else f"{state} is missing: the process ended while saving the checkpoint."
    try:
        for name, saved in facts_of_checkpoint(checkpoint)["files"].items():
            path = checkpoint / name
            if (actual := checksum(path)) != saved["crc32"]:
                return f"{path} is not what was saved (checksum {actual} instead of {saved['crc32']})."
    except FileNotFoundError:
        return f"{path} is missing."
    except (OSError, ValueError, KeyError) as error:
        return f"{path} cannot be read ({error})."
    return None


def finish_checkpoint(unfinished: Path, target: Path, facts: dict[str, Any]) -> None:
    """List the files of a fully written checkpoint, sync it and rename it.

    A checkpoint that is already at `target`, such as one after which the run was resumed, is moved away only when the
    new one is complete.

    Args:
        unfinished (`Path`): The folder that was written.
        target (`Path`): Its final path, on the same file system.
        facts (`dict[str, Any]`): Stored with the list of files.
    """
    paths = sorted(unfinished.rglob("*"))
    for path in paths:
        sync(path)
    files = {path.relative_to(unfinished).as_posix(): {"crc32": checksum(path)} for path in paths if path.is_file()}
    listed = unfinished / FILE_LIST
    listed.write_text(json.dumps({**facts, "files": files}, indent=1) + "\n", encoding="utf-8")
    sync(listed)
    sync(unfinished)
    if target.exists():
        os.rename(target, unfinished.parent / f"replaced-{target.name}")
    os.rename(unfinished, target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Sync a file or the entries of a folder to disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if path.is_file():  # FUSE and some network file systems cannot sync folders
            raise


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
        "corpora": [
            description_of_corpus(corpus)
            for dataset in with_inner_datasets(trainer.train_dataset)
            for corpus in getattr(dataset, "corpora", ())
        ],
    }


def description_of_corpus(corpus: FlatCorpus) -> str:
    """Return the numbers of documents and tokens, and a checksum of tokens at 64 evenly spaced positions.

    Not of all tokens, which would read hundreds of gigabytes before every start: changes between the positions go
    unnoticed if the number of tokens stays the same. The path of the corpus does not matter.

    >>> import datasets
    >>> description_of_corpus(FlatCorpus.of(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]})))
    '2 documents with 4 tokens (checksum b6ae1255)'
    """
    tokens, crc = corpus.tokens, 0
    last = max(len(tokens) - TOKENS_PER_SAMPLE, 0)
    for start in np.unique(np.linspace(0, last, SAMPLES).astype(np.int64)):
        crc = zlib.crc32(np.ascontiguousarray(tokens[start : start + TOKENS_PER_SAMPLE], dtype="<i4"), crc)
    return f"{corpus.num_documents:,} documents with {len(tokens):,} tokens (checksum {crc:08x})"


def check_same_corpus(saved: dict[str, Any], now: dict[str, Any], checkpoint: Path) -> None:
    """Refuse to resume on another corpus: steps and epochs of the checkpoint count through its own.

    `saved` and `now` are `facts_of_run` of the run that wrote the checkpoint (empty for the stock `Trainer`) and of
    this one.

    Raises:
        ValueError: If both runs have stored corpora and they differ.
    """
    before, after = saved.get("corpora"), now["corpora"]
    if before and after and before != after:
        raise ValueError(
            f"train_dataset is not the corpus that {checkpoint} was trained on: {' and '.join(before)} then, "
            f"{' and '.join(after)} now. Resume with that corpus, or start a new run on this one from the "
            f'checkpoint\'s weights: from_pretrained("{checkpoint}") instead of resume_from_checkpoint.'
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
