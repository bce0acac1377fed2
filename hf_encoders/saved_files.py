"""Which files of a saved directory make up its model: they alone are published, and from inside of it alone."""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from transformers.dynamic_module_utils import get_relative_import_files

from hf_encoders import models
from hf_encoders.records.run_files import RECORD_FILE
from hf_encoders.redaction import home_folder, homes_in, secrets_in


CARD_FILE = "README.md"
CURVE_FILE = "loss_curve.png"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# What tokenizers are saved as, in transformers 5 and before. Anything else in the directory stays on this machine:
# checkpoint-* folders, optimizer states, logs, pickles, and what the user may keep there.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "unigram.json",
)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
OTHER_FILES = (CARD_FILE, RECORD_FILE, CURVE_FILE, "results.json", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE")
# Beside the code of other repositories, whose references have two hyphens: "owner/repository--module.Class".
ELSEWHERE = "--"


def published_files(directory: Path) -> set[str]:
    """Names of the files in a directory that belong to its model, or to its adapter.

    Raises:
        ValueError: for an index or a config.json that names files outside of the directory.
    """
    config = directory / "config.json"
    names = {*TOKENIZER_FILES, *OTHER_FILES}
    if config.is_file():
        weights = weight_files(directory)
        names |= {config.name, *weights, *code_files(directory, json.loads(config.read_text(encoding="utf-8")))}
        if weights != [WEIGHTS_FILE]:
            names.add(INDEX_FILE)
    else:
        names |= set(ADAPTER_FILES)
    return {name for name in names if (directory / name).is_file()}


def weight_files(directory: Path) -> list[str]:
    """Names of the safetensors files that loaders read: one, or those of the index.

    Raises:
        ValueError: if there are none, or an index that cannot be read or names files outside of the directory.
    """
    index = directory / INDEX_FILE
    # As in transformers: the single file is what is read where both are there.
    if (directory / WEIGHTS_FILE).exists():
        return [WEIGHTS_FILE]
    if not index.exists():
        raise ValueError(f"{directory} has no {WEIGHTS_FILE}: save the model with save_pretrained.")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index} is no index of shards ({error!r}): save the model again.") from error
    for name in names:
        if not is_plain(name) or not name.endswith(".safetensors"):
            raise ValueError(
                f"{index} names {name!r}, which is no safetensors file of the directory: save the model again."
            )
    return names


def code_files(directory: Path, written: dict[str, Any]) -> list[str]:
    """Names of the Python files that the classes named in config.json are made of, there or not.

    Args:
        directory: where they lie.
        written (`dict`): config.json.

    Raises:
        ValueError: for a reference that is no `module.Class` of a file in the directory.
    """
    references = {f"auto_map {name}": value for name, value in (written.get("auto_map") or {}).items()}
    for name, entry in (written.get("custom_pipelines") or {}).items():
        references[f"custom_pipelines {name}"] = entry.get("impl") if isinstance(entry, dict) else entry
    names = set()
    for where, value in references.items():
        for reference in value if isinstance(value, list) else [value]:
            if reference is None or (isinstance(reference, str) and ELSEWHERE in reference):
                continue
            module, _, kind = str(reference).partition(".")
            if not module.isidentifier() or not kind.isidentifier():
                raise ValueError(
                    f"config.json: {where} is {reference!r}, which is no module.Class of a file in {directory}: load "
                    "it with hf_encoders and call save_pretrained again."
                )
            # Two classes are those of a tokenizer, which needs none of its own.
            if not isinstance(value, list):
                names.add(f"{module}.py")
    for name in sorted(names):
        if (directory / name).exists() and not leads_out(directory, name):
            try:
                names |= {Path(path).name for path in get_relative_import_files(str(directory / name))}
            except FileNotFoundError as error:
                names.add(Path(error.filename).name)
    return sorted(names)


def foreign_code(directory: Path) -> list[str]:
    """Code that loading with `trust_remote_code=True` would run and that is not this package's own, byte for byte.

    Returns:
        Names of files of the directory, and references to code of other repositories.
    """
    written = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    own = Path(models.__file__).parent
    found = [
        value for value in (written.get("auto_map") or {}).values() if isinstance(value, str) and ELSEWHERE in value
    ]
    for name in code_files(directory, written):
        path = directory / name
        if path.is_file() and not ((own / name).is_file() and path.read_bytes() == (own / name).read_bytes()):
            found.append(name)
    return found


def is_plain(name: Any) -> bool:
    r"""Whether a name is a relative path that stays where it is, on every system.

    >>> [is_plain(name) for name in ("a/b.py", "../b.py", "/b.py", "C:\\b.py", "", 3)]
    [True, False, False, False, False, False]
    """
    if not isinstance(name, str) or not name or "\\" in name or "\0" in name:
        return False
    is_absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive
    return not is_absolute and ".." not in PurePosixPath(name).parts


def leads_out(directory: Path, name: str) -> bool:
    """Whether a file of the directory is a link to elsewhere; those of the Hub's cache, all of them links, are not."""
    directory = Path(directory).absolute()
    target = (directory / name).resolve()
    allowed = [directory.resolve()]
    if directory.parent.name == "snapshots":
        allowed.append((directory.parent.parent / "blobs").resolve())
    return not any(target.is_relative_to(place) for place in allowed)


class Leak(NamedTuple):
    """Something in a file that nobody else should read.

    Attributes:
        is_secret (`bool`): whether it looks like a token; otherwise it is the path of a home folder.
        is_error (`bool`): whether it must not go out, as a token and this user's home folder.
        text (`str`): where and what it is.
    """

    is_secret: bool
    is_error: bool
    text: str


def secrets_of_files(directory: Path, names: set[str], texts: dict[str, str] | None = None) -> Iterator[Leak]:
    """All in some files that nobody else should read.

    Args:
        directory, names: the files; of weights the metadata and the names of the tensors are read.
        texts (`dict`, *optional*): what some of the files will hold, by name.
    """
    own_home = home_folder()
    for name in sorted(names):
        text = texts[name] if texts and name in texts else _text_of(directory / name)
        for line, what in secrets_in(text):
            yield Leak(True, True, f"{name}, line {line}, has what looks like {what}")
        for line, home in homes_in(text):
            whose = "this" if home == own_home else "a"
            yield Leak(False, home == own_home, f"{name}, line {line}, has a path of {whose} machine")


def _text_of(path: Path) -> str:
    """What people can read of a file."""
    if path.suffix != ".safetensors":
        return path.read_bytes().decode("utf-8", errors="replace")
    try:
        with safe_open(path, framework="pt") as file:
            return json.dumps([file.metadata(), list(file.keys())], indent=0)
    except (SafetensorError, OSError):
        return ""  # `check_weights` says what is wrong with it
