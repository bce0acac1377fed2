"""What a corpus in a folder was made of: it is gone on with, or taken for finished, only if that is the same.

A tokenizer is the same by what it does, and a file by its name, size and time of change, wherever they are.
"""

import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

import hf_encoders
from hf_encoders.data.corpus.arrow_file import ARROW_FILE
from hf_encoders.data.corpus.function_description import describe_function
from hf_encoders.data.corpus.report import REPORT_FILE, CorpusReport
from hf_encoders.data.corpus.settings_differences import differences
from hf_encoders.data.corpus.sources import TextReading
from hf_encoders.writing import check_folder, holds_files


SETTINGS_FILE = "settings.json"
# What is written into the folder of a corpus; the last two by `datasets` and `SentenceStore`.
_OWN_FILES = (REPORT_FILE, ARROW_FILE, "state.json", "dataset_info.json", "cache-*.arrow", "corpus-*.arrow")
_SHARDS = "shards-*"


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of all that decides which ids a tokenizer gives, 32 hexadecimal digits."""
    digest = hashlib.blake2b(type(tokenizer).__name__.encode() if not tokenizer.is_fast else b"", digest_size=16)
    if tokenizer.is_fast:
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        # State of the last call, which does not apply here.
        del description["truncation"], description["padding"]
        digest.update(json.dumps(description, sort_keys=True).encode())
    else:
        with tempfile.TemporaryDirectory() as directory:
            tokenizer.save_pretrained(directory)
            for file in sorted(Path(directory).rglob("*")):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def library_versions() -> dict[str, str]:
    """Versions of what takes part."""
    names = ("datasets", "numpy", "pyarrow", "sentencex", "tokenizers", "transformers")
    return {"hf_encoders": hf_encoders.__version__, "python": platform.python_version()} | {
        name: version(name) for name in names
    }


def deciding_versions() -> dict[str, str]:
    """Versions of the libraries whose rules decide what is in a corpus."""
    return {name: library_versions()[name] for name in ("hf_encoders", "sentencex", "tokenizers")}


def corpus_settings(
    source: Any,
    reading: TextReading,
    tokenizer: PreTrainedTokenizerBase,
    word_segmenter: Callable[[str], list[str]] | None,
    max_sentence_tokens: int | None,
    keep_duplicates: bool,
) -> dict[str, Any]:
    """All that decides what is in a corpus; `source` tells that the input is the same, the rest as `prepare_corpus`.

    Returns:
        `dict`: For JSON.
    """
    return {
        "source": source,
        "text_column": reading.text_column,
        "sentences_column": reading.sentences_column,
        "sentence_splitter": describe_function(reading.sentence_splitter),
        "word_segmenter": describe_function(word_segmenter),
        "max_sentence_tokens": max_sentence_tokens,
        "keep_duplicates": keep_duplicates,
        "tokenizer": {
            "fingerprint": tokenizer_fingerprint(tokenizer),
            "class": type(tokenizer).__name__,
            "name": str(tokenizer.name_or_path),
            "entries": len(tokenizer),
        },
        "libraries": deciding_versions(),
    }


def shards_folder(output: Path, settings: dict[str, Any]) -> Path:
    """Folder of the finished shards of a corpus with these settings."""
    text = json.dumps(_deciding(settings), sort_keys=True)
    return output / _SHARDS.replace("*", hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


def check_output(output: Path) -> None:
    """Refuse a folder that cannot be written to, or that holds anything but a corpus or a begun one."""
    check_folder(output, "--output")
    if holds_files(output) and not _holds_corpus(output):
        raise ValueError(f"output='{output}' holds files that are no corpus: name a new or empty folder.")


def report_time(output: Path) -> int | None:
    """When the report of a finished corpus was written, in nanoseconds; `None` if there is none."""
    try:
        return (output / REPORT_FILE).stat().st_mtime_ns
    except OSError:
        return None


def finished_report(output: Path, settings: dict[str, Any], is_new: bool = False) -> CorpusReport | None:
    """Look at what is in the folder of a corpus: the report of a finished one, or `None` if there is work to do.

    Args:
        output (`Path`): The folder.
        settings (`dict`): From `corpus_settings`.
        is_new (`bool`): Whether what is there was made while this process waited for it.

    Raises:
        ValueError: If the folder holds something else: a corpus, or a begun one, with other settings, or other files.
    """
    if (output / REPORT_FILE).exists():
        report = CorpusReport.load(output)
        check_same_settings(output, "a corpus", report.settings, settings)
        if _num_documents(output) != report.statistics.documents:
            raise ValueError(
                f"output='{output}' holds a damaged corpus: corpus.json tells of {report.statistics.documents:,} "
                f"documents, and {ARROW_FILE} does not hold them: begin anew with overwrite=True (--overwrite)."
            )
        if settings["source"].get("dataset") == "streaming" and not is_new:
            raise ValueError(
                f"output='{output}' holds a finished corpus, and a streaming data set does not tell whether it is the "
                "one it was made of: name another folder, or replace the corpus with overwrite=True (--overwrite)."
            )
        return report
    check_output(output)
    for folder in output.glob(_SHARDS):
        if folder != shards_folder(output, settings) and (folder / SETTINGS_FILE).exists():
            found = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
            check_same_settings(output, "an unfinished corpus", found, settings)
    return None


def start_shards(output: Path, settings: dict[str, Any]) -> Path:
    """Make the folder of the shards, or take the one of an earlier run."""
    shards = shards_folder(output, settings)
    shards.mkdir(parents=True, exist_ok=True)
    (shards / SETTINGS_FILE).write_text(json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8")
    return shards


def remove_corpus(output: Path) -> None:
    """Remove a corpus or a begun one, and no other file."""
    if not _holds_corpus(output):
        return
    for pattern in _OWN_FILES:
        for file in output.glob(pattern):
            file.unlink()
    for folder in output.glob(_SHARDS):
        shutil.rmtree(folder)


def _num_documents(output: Path) -> int | None:
    """Rows of the Arrow file, of which nothing but the headers is read; `None` if it is not there or not whole."""
    try:
        with pa.memory_map(str(output / ARROW_FILE)) as file:
            return sum(batch.num_rows for batch in pa.ipc.open_stream(file))
    except (OSError, pa.ArrowInvalid):
        return None


def _holds_corpus(output: Path) -> bool:
    return (output / REPORT_FILE).exists() or any(output.glob(_SHARDS))


def check_same_settings(output: Path, what: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a corpus that was made with other settings, a line for each difference.

    Raises:
        ValueError: With the differences, and the remedy.
    """
    ours, theirs = _deciding(wanted), _deciding(found)
    other = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if other:
        lines = [f"\n- {line}" for name in other for line in differences(name, found.get(name), wanted.get(name))]
        raise ValueError(
            f"output='{output}' holds {what} made with other settings:{''.join(lines)}\nGive the same settings, name "
            "another folder, or begin anew with overwrite=True (--overwrite)."
        )


def _deciding(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings less what may differ: folder and class of the same tokenizer, folders of the same files."""
    source = settings["source"]
    if "files" in source:
        source = source | {"files": [[Path(path).name, *rest] for path, *rest in source["files"]]}
    return settings | {"source": source, "tokenizer": settings["tokenizer"]["fingerprint"]}
