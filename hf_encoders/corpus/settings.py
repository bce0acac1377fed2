"""Settings of a prepared corpus: a run resumes, or is skipped, only if they match.

Two tokenizers match if they give the same ids, two files if they have the same name, size and modification time.
"""

import hashlib
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, reduce
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

import hf_encoders
from hf_encoders.corpus.arrow_file import ARROW_FILE
from hf_encoders.corpus.documents import DocumentReader
from hf_encoders.corpus.report import REPORT_FILE, CorpusReport
from hf_encoders.corpus.shards import shard_blocks
from hf_encoders.writing import check_folder, holds_files


SETTINGS_FILE = "settings.json"
# What is written into the folder of a corpus; the last two patterns by `datasets` and `SentenceStore`.
_OWN_FILES = (REPORT_FILE, ARROW_FILE, "state.json", "dataset_info.json", "phrases.tsv", "similar_words.safetensors")
_OWN_FILES += ("cache-*.arrow", "corpus-*.arrow")
SHARDS = "shards-*"
_NAMES_SHOWN = 3


class OtherSettingsError(ValueError):
    """A folder holds a corpus that was made with other settings."""


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of everything that decides which ids a tokenizer gives, 32 hexadecimal digits."""
    digest = hashlib.blake2b(type(tokenizer).__name__.encode() if not tokenizer.is_fast else b"", digest_size=16)
    if tokenizer.is_fast:
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        del description["truncation"], description["padding"]  # state of the last call
        digest.update(json.dumps(description, sort_keys=True).encode())
    else:
        with tempfile.TemporaryDirectory() as directory:
            tokenizer.save_pretrained(directory)
            for file in sorted(Path(directory).rglob("*")):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def describe_function(function: Callable | None) -> str | None:
    """Name of an importable function; of any other (a lambda, a function of a script) also a hash of its code.

    An edit of an importable function is not noticed. Of a `partial`, arguments equal to the defaults are left out.

    >>> from hf_encoders.corpus.segmentation import split_sentences
    >>> describe_function(partial(split_sentences, language="de"))
    "hf_encoders.corpus.segmentation.split_sentences(language='de')"
    """
    if function is None:
        return None
    if isinstance(function, partial):
        defaults = {}
        with suppress(ValueError):  # some functions written in C have no signature
            defaults = {name: one.default for name, one in signature(function.func).parameters.items()}
        arguments = [_describe_value(value) for value in function.args]
        for name, value in sorted(function.keywords.items()):
            if name not in defaults or defaults[name] != value:
                arguments.append(f"{name}={_describe_value(value)}")
        return describe_function(function.func) + (f"({', '.join(arguments)})" if arguments else "")
    named = function if hasattr(function, "__qualname__") else type(function)
    module, name = getattr(named, "__module__", None) or "builtins", named.__qualname__
    # The second is for a bound method at module level, such as `jieba.lcut`.
    found = [_attribute(module, name), _attribute(module, named.__name__)]
    is_importable = module != "__main__" and function in found
    return f"{module}.{name}" + ("" if is_importable else f"#{Hasher.hash(function)}")


def _attribute(module: str, name: str) -> Any:
    return reduce(lambda owner, part: getattr(owner, part, None), name.split("."), sys.modules.get(module))


def _describe_value(value: Any) -> str:
    if callable(value):
        return describe_function(value)
    return repr(value) if isinstance(value, str | int | float | None) else Hasher.hash(value)


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries used, for the report."""
    names = ("datasets", "numpy", "pyarrow", "sentencex", "tokenizers", "transformers")
    return {"hf_encoders": hf_encoders.__version__, "python": platform.python_version()} | {
        name: version(name) for name in names
    }


def corpus_settings(
    source: Any,
    documents: DocumentReader,
    tokenizer: PreTrainedTokenizerBase,
    word_segmenter: Callable[[str], list[str]] | None,
    max_sentence_tokens: int | None,
    keep_duplicates: bool,
    units: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that decides what is in a corpus, for JSON; `source` identifies the input, `units` is of `Units`."""
    versions = library_versions()
    return {
        "source": source,
        "text_column": documents.text_column,
        "sentences_column": documents.sentences_column,
        "turns_column": documents.turns_column,
        "sentence_splitter": describe_function(documents.sentence_splitter),
        "word_segmenter": describe_function(word_segmenter),
        "max_sentence_tokens": max_sentence_tokens,
        "keep_duplicates": keep_duplicates,
        **units,
        "tokenizer": {
            "fingerprint": tokenizer_fingerprint(tokenizer),
            "class": type(tokenizer).__name__,
            "name": str(tokenizer.name_or_path),
            "entries": len(tokenizer),
        },
        "libraries": {name: versions[name] for name in ("hf_encoders", "sentencex", "tokenizers")},
    }


def shards_folder(output: Path, settings: dict[str, Any]) -> Path:
    """Folder of the finished shards of a corpus with these settings."""
    text = json.dumps(_deciding(settings), sort_keys=True)
    return output / SHARDS.replace("*", hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


def check_output(output: Path) -> None:
    """Refuse a folder that is not writable, or that holds anything but a finished or unfinished corpus."""
    check_folder(output, "--output")
    if holds_files(output) and not _holds_corpus(output):
        raise ValueError(f"output='{output}' holds files that are not a corpus: name a new or empty folder.")


def report_time(output: Path) -> int | None:
    """Modification time in nanoseconds of the report of a finished corpus; `None` if there is none."""
    report = output / REPORT_FILE
    return report.stat().st_mtime_ns if report.exists() else None


def finished_report(output: Path, settings: dict[str, Any], is_new: bool = False) -> CorpusReport | None:
    """The report of a finished corpus, or `None` if there is work to do; refuses other files and other settings.

    `is_new` is whether another process finished the corpus while this one waited.
    """
    # Shards of these settings are of a run with `overwrite`, which replaces the corpus when it is finished.
    if (output / REPORT_FILE).exists() and not shards_folder(output, settings).exists():
        report = CorpusReport.load(output)
        _check_same_settings(output, "a corpus", report.settings, settings)
        if _num_documents(output) != report.statistics.documents:
            raise ValueError(
                f"output='{output}' holds a damaged corpus: corpus.json lists {report.statistics.documents:,} "
                f"documents, and {ARROW_FILE} does not hold them: start over with overwrite=True (--overwrite)."
            )
        if settings["source"].get("dataset") == "streaming" and not is_new:
            raise ValueError(
                f"output='{output}' holds a finished corpus, and whether it was made from the same streaming dataset "
                "cannot be checked: name another folder, or replace it with overwrite=True (--overwrite)."
            )
        return report
    check_output(output)
    for folder in output.glob(SHARDS):
        if folder != shards_folder(output, settings) and (folder / SETTINGS_FILE).exists() and _holds_text(folder):
            found = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
            _check_same_settings(output, "an unfinished corpus", found, settings)
    return None


def start_shards(output: Path, settings: dict[str, Any]) -> Path:
    """Make the folder of the shards, or take the one of an earlier run; others without text are removed."""
    shards = shards_folder(output, settings)
    for folder in output.glob(SHARDS):
        if folder != shards and not _holds_text(folder):
            shutil.rmtree(folder, ignore_errors=True)
    shards.mkdir(parents=True, exist_ok=True)
    (shards / SETTINGS_FILE).write_text(json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8")
    return shards


@contextmanager
def shards_until_finished(output: Path, settings: dict[str, Any]) -> Iterator[Path]:
    """The folder of `start_shards`, removed at the end of the block.

    If the block refuses the text, a folder that is new is removed too: its shards would only have other text refused.
    Other errors leave it, to go on from there.
    """
    is_new = not shards_folder(output, settings).exists()
    shards = start_shards(output, settings)
    try:
        yield shards
    except ValueError:
        if is_new:
            shutil.rmtree(shards)
        raise
    shutil.rmtree(shards)


def remove_shards(output: Path) -> None:
    """Remove an unfinished corpus, and no other file."""
    for folder in output.glob(SHARDS):
        shutil.rmtree(folder)


def remove_finished(output: Path) -> None:
    """Remove a finished corpus, and no other file."""
    if (output / REPORT_FILE).exists():
        for pattern in _OWN_FILES:
            for file in output.glob(pattern):
                file.unlink()


def _check_same_settings(output: Path, what: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a corpus that was made with other settings; the error has a line for each difference."""
    ours, theirs = _deciding(wanted), _deciding(found)
    lines = []
    for name in {**theirs, **ours}:
        if theirs.get(name) != ours.get(name):
            there, now = _described(name, found.get(name)), _described(name, wanted.get(name))
            lines.append(
                f"\n- {name}: " + (f"another one, also {now}" if there == now else f"{there} there, {now} now")
            )
    if lines:
        raise OtherSettingsError(
            f"output='{output}' holds {what} made with other settings:{''.join(lines)}\nGive the same settings, name "
            "another folder, or start over with overwrite=True (--overwrite)."
        )


def _described(name: str, value: Any) -> str:
    """A setting in an error message."""
    if name == "tokenizer":
        return f"{value['name']!r} ({value['class']}, {value['entries']:,} entries)"
    if name in ("sentence_splitter", "word_segmenter"):
        # What follows the hash sign is a hash of the code.
        return str(value).split("#")[0].removeprefix("hf_encoders.corpus.segmentation.")
    if name in ("lexicon", "phrases") and value:
        return f"{value['entries']:,} entries" if "entries" in value else "learned"
    if name != "source":
        return repr(value)
    if "files" in value:
        names = [Path(path).name for path, *_ in value["files"]]
        more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
        return f"text files ({', '.join(names[:_NAMES_SHOWN])}{more})"
    if "pipeline" in value:
        return f"pipeline ({value['pipeline']!r}, {value['tasks']} tasks, {value['parts']} parts)"
    return "streaming dataset" if value.get("dataset") == "streaming" else f"dataset of {value['rows']:,} rows"


def _deciding(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without what may differ: folder and class of the same tokenizer, folders of the same files."""
    source = settings["source"]
    if "files" in source:
        source = source | {"files": [[Path(path).name, *rest] for path, *rest in source["files"]]}
    return settings | {"source": source, "tokenizer": settings["tokenizer"]["fingerprint"]}


def _num_documents(output: Path) -> int | None:
    """Rows of the Arrow file, of which only the headers are read; `None` if it is missing or truncated."""
    try:
        with pa.memory_map(str(output / ARROW_FILE)) as file:
            return sum(batch.num_rows for batch in pa.ipc.open_stream(file))
    except (OSError, pa.ArrowInvalid):
        return None


def _holds_text(shards: Path) -> bool:
    """Whether a finished shard has a document; none has one if the text was empty or could not be read."""
    numbers = (int(path.stem) for path in shards.glob("[0-9]*.arrow"))
    return any(next(shard_blocks(shards, number), None) for number in numbers)


def _holds_corpus(output: Path) -> bool:
    return (output / REPORT_FILE).exists() or any(output.glob(SHARDS))
