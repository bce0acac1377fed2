"""Settings of a prepared corpus: a folder is finished, or gone on with, only if they match.

Two tokenizers match if they give the same ids, two files if they have the same name, size and modification time.
"""

import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

import hf_encoders
from hf_encoders.corpus.report import REPORT_FILE, CorpusReport
from hf_encoders.corpus.special_tokens import tokenizer_fingerprint
from hf_encoders.corpus.tokenized import DocumentTokenizer
from hf_encoders.corpus.units import PHRASES_FILE
from hf_encoders.writing import LOCK_FILE, UNFINISHED, check_folder, holds_files


# What is written into the folder of a corpus, also by `datasets`, `FlatCorpus` and version 0.1 of this package.
OWN_FILES = ("data-*.arrow", "state.json", "dataset_info.json", PHRASES_FILE, "similar_words.safetensors")
OWN_FILES += ("cache-*.arrow", "corpus*.arrow", "flat-*", REPORT_FILE)
NAMES_SHOWN = 3


class OtherSettingsError(ValueError):
    """A folder holds a corpus that was made with other settings."""


def describe_function(function: Callable | None) -> str | None:
    """Name of an importable function; of any other (a lambda, a function of a script) also a hash of its code.

    An edit of an importable function is not noticed.

    >>> from hf_encoders.corpus.segmentation import split_sentences
    >>> describe_function(partial(split_sentences, language="de"))
    "hf_encoders.corpus.segmentation.split_sentences(language='de')"
    """
    if function is None:
        return None
    if isinstance(function, partial):
        arguments = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        return f"{describe_function(function.func)}({', '.join(arguments)})"
    named = function if hasattr(function, "__qualname__") else type(function)
    module, name = getattr(named, "__module__", None) or "builtins", named.__qualname__
    is_importable = named is function and module != "__main__" and "<" not in name
    return f"{module}.{name}" + ("" if is_importable else f"#{Hasher.hash(function)}")


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries used, for the report."""
    names = ("datasets", "numpy", "pyarrow", "sentencex", "tokenizers", "transformers")
    return {"hf_encoders": hf_encoders.__version__, "python": platform.python_version()} | {
        name: version(name) for name in names
    }


def corpus_settings(
    source: dict[str, Any], tokenizer: PreTrainedTokenizerBase, tokenize: DocumentTokenizer, keep_duplicates: bool
) -> dict[str, Any]:
    """Everything that decides what is in a corpus, for JSON; `source` identifies the text."""
    versions, reader = library_versions(), tokenize.reader
    return {
        "source": source,
        "text_column": reader.text_column,
        "sentences_column": reader.sentences_column,
        "turns_column": reader.turns_column,
        "sentence_splitter": describe_function(reader.sentence_splitter),
        "word_segmenter": describe_function(tokenize.encoder.word_segmenter),
        "max_sentence_tokens": tokenize.max_sentence_tokens,
        "keep_duplicates": keep_duplicates,
        **tokenize.units.settings(),
        "tokenizer": {
            "fingerprint": tokenizer_fingerprint(tokenizer),
            "class": type(tokenizer).__name__,
            "name": str(tokenizer.name_or_path),
            "entries": len(tokenizer),
        },
        "libraries": {name: versions[name] for name in ("hf_encoders", "sentencex", "tokenizers")},
    }


@contextmanager
def working_folder(output: Path, settings: dict[str, Any], restart: bool = False) -> Iterator[Path]:
    """Yield the folder in `output` that a corpus with these settings is made in; remove those of other settings.

    It is removed at the end, also if the text is refused; other errors leave it, to go on from there.
    """
    unfinished = output / UNFINISHED
    folder = unfinished / settings_hash(settings)
    for path in unfinished.glob("*"):
        if restart or path != folder:
            shutil.rmtree(path)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except ValueError:
        shutil.rmtree(unfinished)
        raise
    shutil.rmtree(unfinished)


def check_output(output: Path) -> None:
    """Refuse a folder that is not writable, or that holds anything but a finished or unfinished corpus."""
    check_folder(output, "--output")
    if not (output / REPORT_FILE).exists() and holds_files(output) and not _was_being_moved(output):
        raise ValueError(f"output='{output}' holds files that are not a corpus: name a new or empty folder.")


def _was_being_moved(output: Path) -> bool:
    """Whether a folder holds nothing but files of a corpus whose process was killed while it moved them there."""
    names = [path.name for path in output.iterdir() if path.name not in (LOCK_FILE, UNFINISHED)]
    return (output / UNFINISHED).is_dir() and all(any(fnmatch(n, own) for own in OWN_FILES) for n in names)


def report_time(output: Path) -> int | None:
    """Modification time in nanoseconds of the report of a finished corpus; `None` if there is none."""
    report = output / REPORT_FILE
    return report.stat().st_mtime_ns if report.exists() else None


def finished_report(output: Path, settings: dict[str, Any], is_new: bool = False) -> CorpusReport | None:
    """The report of a finished corpus, or `None` if there is work to do; refuses other files and other settings.

    `is_new` is whether another process finished the corpus while this one waited.
    """
    # What is unfinished with these settings is of a run with `overwrite`, which replaces the corpus in the end.
    if not (output / REPORT_FILE).exists() or (output / UNFINISHED / settings_hash(settings)).exists():
        check_output(output)
        return None
    report = CorpusReport.load(output)
    _check_same_settings(output, report.settings, settings)
    try:
        num_documents = len(datasets.load_from_disk(str(output)))
    except (OSError, ValueError, pa.ArrowInvalid):
        num_documents = None
    if num_documents != report.statistics.documents:
        raise ValueError(
            f"output='{output}' holds a damaged corpus: corpus.json lists {report.statistics.documents:,} documents, "
            "and its files do not hold them: start over with overwrite=True (--overwrite)."
        )
    if settings["source"].get("dataset") == "streaming" and not is_new:
        raise ValueError(
            f"output='{output}' holds a finished corpus, and whether it was made from the same streaming dataset "
            "cannot be checked: name another folder, or replace it with overwrite=True (--overwrite)."
        )
    return report


def remove_finished(output: Path) -> None:
    """Remove a finished corpus, or what was moved of one, the report first; and no other file."""
    if (output / REPORT_FILE).exists() or _was_being_moved(output):
        for path in [path for pattern in reversed(OWN_FILES) for path in output.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _check_same_settings(output: Path, made_with: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a corpus that was made with other settings; the error has a line for each difference."""
    before, now = _deciding(made_with), _deciding(wanted)
    lines = []
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            there, here = _described(name, made_with.get(name)), _described(name, wanted.get(name))
            lines.append(
                f"\n- {name}: " + (f"another one, also {here}" if there == here else f"{there} there, {here} now")
            )
    if lines:
        raise OtherSettingsError(
            f"output='{output}' holds a corpus made with other settings:{''.join(lines)}\nGive the same settings, "
            "name another folder, or start over with overwrite=True (--overwrite)."
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
        more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
        return f"text files ({', '.join(names[:NAMES_SHOWN])}{more})"
    if "pipeline" in value:
        return f"pipeline ({value['pipeline']!r}, {value['tasks']} tasks, {value['parts']} parts)"
    return "streaming dataset" if value.get("dataset") == "streaming" else f"dataset of {value['rows']:,} rows"


def _deciding(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without what may differ: folder and class of the same tokenizer, folders of the same files."""
    source = settings["source"]
    if "files" in source:
        source = source | {"files": [[Path(path).name, *rest] for path, *rest in source["files"]]}
    return settings | {"source": source, "tokenizer": settings["tokenizer"]["fingerprint"]}


def settings_hash(settings: dict[str, Any]) -> str:
    """A hash of what decides about the contents of a corpus, 16 hexadecimal digits."""
    text = json.dumps(_deciding(settings), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
