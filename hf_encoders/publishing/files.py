"""Tell which files of a saved directory belong to its model, and load it.

Only these files are pushed, and only after a search for secrets.
"""

import inspect
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_relative_import_files

from hf_encoders import models
from hf_encoders.loading import check_loaded, optional_file, read_config, weight_names
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.secrets import home_folder, homes_in, secrets_in
from hf_encoders.registration import configurations, family_classes
from hf_encoders.writing import read_json


RUN_FILE = "run.json"  # settings and progress of a pre-training run
EXAMPLES_FILE = "examples.json"  # of fine-tuning: some rows with their predictions; text of the user, not published
RECORD_FILE = "training_record.json"
HEALTH_STATE = "HealthCallback"  # in the stateful callbacks of trainer_state.json
WARNINGS_FIELD = "health_warnings"  # of a log entry: {name: message}
CARD_FILE = "README.md"
CURVE_FILE = "loss_curve.png"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Tokenizer files of transformers 5 and earlier.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "bpe.codes", "spiece.model", "sentencepiece.bpe.model", "unigram.json",
)  # fmt: skip
# Settings of sentence-transformers next to an encoder: its modules, prompts and length.
MODULES_FILE = "modules.json"
LENGTHS_FILE = "sentence_bert_config.json"
MODULE_FILES = (MODULES_FILE, "config_sentence_transformers.json", LENGTHS_FILE)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
OTHER_FILES = (CARD_FILE, RECORD_FILE, CURVE_FILE, "results.json", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE")
ELSEWHERE = "--"  # in a reference to the code of another repository: "owner/repository--module.Class"
TOKENIZER_CODE = "auto_map AutoTokenizer"  # in config.json or tokenizer_config.json; transformers 4 reads both
RESAVE = "save it again."


class Finding(NamedTuple):
    """State a problem of a saved directory with its remedy: an error, which prevents publication, or a warning."""

    is_error: bool
    text: str

    def __str__(self) -> str:
        return f"{'error' if self.is_error else 'warning'}: {self.text}"


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Save a tokenizer that transformers 4 can read too, and that names no code."""
    tokenizer.save_pretrained(directory)
    complete_tokenizer_config(directory)


def complete_tokenizer_config(directory: Path) -> None:
    """Name the class of a saved tokenizer as transformers 4 knows it too, and no code.

    transformers 5 writes `TokenizersBackend`, its name for `PreTrainedTokenizerFast`, and reads both. `auto_map` names
    code that was not run when the tokenizer was loaded, and is not saved with it.
    """
    file = directory / "tokenizer_config.json"
    written = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    fields = {name: value for name, value in written.items() if name != "auto_map"}
    if fields.get("tokenizer_class") == "TokenizersBackend":
        fields["tokenizer_class"] = "PreTrainedTokenizerFast"
    if fields != written:
        file.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def published_files(directory: Path) -> set[str]:
    """Return the names of the files that belong to the model and its submodels, or to the adapter, in a directory.

    ValueError if an index, config.json or modules.json names files outside of the directory.
    """
    names = {*TOKENIZER_FILES, *OTHER_FILES}
    if (directory / "config.json").is_file():
        weights = weight_files(directory)
        names |= {"config.json", *weights, *code_files(directory, written_config(directory))}
        if weights != [WEIGHTS_FILE]:
            names.add(INDEX_FILE)
    else:
        names |= set(ADAPTER_FILES)
    names = {name for name in names if (directory / name).is_file()} | set(module_files(directory))
    for folder in submodels(directory):
        names |= {f"{folder}/{name}" for name in published_files(directory / folder)}
    return names


def module_files(source: str | Path) -> dict[str, Path]:
    """Return the files of sentence-transformers' modules of a checkpoint, in a folder or on the Hub, by their names.

    ValueError if modules.json is damaged, or names code of others, a pickle or a file outside of the folder.
    """
    if (index := optional_file(source, MODULES_FILE)) is None:
        return {}
    names = list(MODULE_FILES)
    try:
        for module in json.loads(index.read_text(encoding="utf-8")):
            folder, kind = module["path"], module["type"]
            if not kind.startswith("sentence_transformers."):
                raise ValueError(f"it names {kind}, which is not sentence-transformers' own code")
            pickled, weights = (f"{folder}/{name}" for name in ("pytorch_model.bin", WEIGHTS_FILE))
            if folder and optional_file(source, pickled) and not optional_file(source, weights):
                raise ValueError(f"{pickled} is a pickle, which is not read: save it again with sentence-transformers")
            names += [f"{folder}/config.json", weights] if folder else []
        for name in names:
            if not is_plain(name) or (Path(source).is_dir() and leads_out(Path(source), name)):
                raise ValueError(f"{name} is outside of the folder")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{MODULES_FILE} of {source} cannot be used ({error}): remove it, or correct it.") from error
    return {name: file for name in names if (file := optional_file(source, name)) is not None}


def copy_modules(source: str | Path, directory: Path) -> None:
    """Copy sentence-transformers' modules of the checkpoint that a model was made from, or print why not."""
    try:
        files = module_files(source)
    except ValueError as error:
        print(f"Modules of sentence-transformers are left out: {error}", file=sys.stderr)
        return
    for name, file in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, directory / name)
    # Newer versions take the length from the tokenizer, where training on longer examples has raised it.
    saved = directory / "tokenizer_config.json"
    tokenizers = [file for file in (optional_file(source, saved.name), saved) if file is not None]
    lengths = [read_json(file, RESAVE).get("model_max_length") for file in tokenizers]
    if LENGTHS_FILE in files and None not in lengths and lengths[0] < lengths[-1]:
        settings = directory / LENGTHS_FILE
        fields = {"max_seq_length": lengths[0], **read_json(settings, RESAVE)}
        settings.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def submodels(directory: Path) -> list[str]:
    """Return the subfolders with models that a checkpoint was trained with, which are checkpoints too."""
    if not (directory / "config.json").is_file():
        return []
    model_type = written_config(directory).get("model_type")
    folders = (folder for kind in configurations() if model_type in kind.model_types() for folder in kind.SUBMODELS)
    return [folder for folder in folders if (directory / folder / "config.json").is_file()]


def written_config(directory: Path) -> dict[str, Any]:
    """Return the content of config.json; a configuration object would complete `auto_map` when it is made."""
    return json.loads((directory / "config.json").read_text(encoding="utf-8"))


def weight_files(directory: Path) -> list[str]:
    """Return the names of the safetensors files that loaders read: one, or the shards of the index."""
    index = directory / INDEX_FILE
    # As in transformers, the single file is read where both exist.
    if (directory / WEIGHTS_FILE).exists():
        return [WEIGHTS_FILE]
    if not index.exists():
        raise ValueError(f"{directory} has no {WEIGHTS_FILE}: save the model with save_pretrained.")
    weight_map = read_json(index, RESAVE).get("weight_map")
    names = set(weight_map.values()) if weight_map and isinstance(weight_map, dict) else {None}
    for name in names:
        if not is_plain(name) or not name.endswith(".safetensors"):
            raise ValueError(f"{index} names {name!r}, not a safetensors file of the directory: {RESAVE}")
    return sorted(names)


def code_references(written: dict[str, Any]) -> dict[str, Any]:
    """Return the references to code in a config.json or tokenizer_config.json, by their key in it."""
    auto_map = written.get("auto_map") or {}
    if not isinstance(auto_map, dict):  # of a tokenizer, by earlier versions of transformers
        auto_map = {"AutoTokenizer": auto_map}
    references = {f"auto_map {name}": value for name, value in auto_map.items()}
    for name, entry in (written.get("custom_pipelines") or {}).items():
        references[f"custom_pipelines {name}"] = entry.get("impl") if isinstance(entry, dict) else entry
    return references


def code_files(directory: Path, written: dict[str, Any]) -> list[str]:
    """Return the names of the Python files, present or not, that config.json's classes are defined in and import."""
    names = set()
    for where, reference in code_references(written).items():
        if where == TOKENIZER_CODE or (isinstance(reference, str) and ELSEWHERE in reference):
            continue
        module, _, kind = str(reference).partition(".")
        if not module.isidentifier() or not kind.isidentifier():
            raise ValueError(
                f"config.json: {where} is {reference!r}, which is not a module.Class of a file in {directory}: "
                "load it with hf_encoders and call save_pretrained again."
            )
        names.add(f"{module}.py")
    for name in sorted(names):
        if (directory / name).exists() and not leads_out(directory, name):
            try:
                names |= {Path(path).name for path in get_relative_import_files(str(directory / name))}
            except FileNotFoundError as error:
                names.add(Path(error.filename).name)
    return sorted(names)


def foreign_code(directory: Path) -> list[str]:
    """Return the files and references whose code `trust_remote_code=True` would run and that is not this package's."""
    written, package = written_config(directory), Path(models.__file__).parent
    references = code_references(written).values()
    foreign = [reference for reference in references if isinstance(reference, str) and ELSEWHERE in reference]
    for name in code_files(directory, written):
        original, file = package / name, directory / name
        if file.is_file() and not (original.is_file() and file.read_bytes() == original.read_bytes()):
            foreign.append(name)
    return foreign


def tokenizer_code(directory: Path) -> list[str]:
    """Return the code that the configurations in a directory name for its tokenizer, with the file; it needs none."""
    files = [file for name in ("config.json", "tokenizer_config.json") if (file := directory / name).is_file()]
    references = {file.name: code_references(read_json(file, RESAVE)) for file in files}
    return [f"{name} ({code[TOKENIZER_CODE]})" for name, code in references.items() if TOKENIZER_CODE in code]


def is_plain(name: Any) -> bool:
    r"""Return whether a name is a relative path without `..`, on every operating system.

    >>> [is_plain(name) for name in ("a/b.py", "../b.py", "/b.py", "C:\\b.py", "", 3)]
    [True, False, False, False, False, False]
    """
    if not isinstance(name, str) or not name or "\\" in name or "\0" in name:
        return False
    is_absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive
    return not is_absolute and ".." not in PurePosixPath(name).parts


def leads_out(directory: Path, name: str) -> bool:
    """Return whether a file is a link out of the directory; the links within the Hub's cache are not."""
    directory = Path(directory).absolute()
    target = (directory / name).resolve()
    allowed = [directory.resolve()]
    if directory.parent.name == "snapshots":
        allowed.append((directory.parent.parent / "blobs").resolve())
    return not any(target.is_relative_to(folder) for folder in allowed)


def secrets_of_files(directory: Path, names: set[str], texts: dict[str, str] | None = None) -> Iterator[Finding]:
    """Yield tokens and home folders in files, or in their `texts`; tokens and this user's home are errors."""
    for name in sorted(names):
        text = (texts or {}).get(name) or _text_of(directory / name)
        for line, what in secrets_in(text):
            yield Finding(True, f"{name}, line {line}, has what looks like {what}: remove it, and revoke it.")
        for line, home in homes_in(text):
            is_this = home == home_folder()
            machine = "this machine" if is_this else "a machine"
            yield Finding(is_this, f"{name}, line {line}, has a path of {machine}: shorten it.")


def refuse_secrets(directory: Path, names: set[str]) -> None:
    """Raise ValueError, with file, line and remedy, before a push whose files hold a secret."""
    if errors := [finding.text for finding in secrets_of_files(directory, names) if finding.is_error]:
        raise ValueError(f"{directory} was not pushed: {' '.join(errors)}")


def _text_of(path: Path) -> str:
    if path.suffix != ".safetensors":
        return path.read_bytes().decode("utf-8", errors="replace")
    try:
        with safe_open(path, framework="pt") as file:
            return json.dumps([file.metadata(), list(file.keys())], indent=0)
    except (SafetensorError, OSError):
        return ""  # reported by `check_weights`


def saved_head(config: EncoderConfig, head: str | None = None) -> str:
    """Return the Auto class of the saved head, such as `AutoModelForMaskedLM`, or `head`, if the family has it."""
    served = [auto_class for auto_class in config.AUTO_MAP if auto_class != "AutoConfig"]
    if head is not None:
        if head not in served:
            raise ValueError(f"head={head!r}: {config.model_type} has {', '.join(served)}.")
        return head
    if (auto_class := auto_class_of(config, config.architectures or ())) is not None:
        return auto_class
    classes = dict.fromkeys(class_name(config, auto_class).removeprefix("Hfe") for auto_class in served)
    raise ValueError(
        f"config.json has architectures={config.architectures!r}, which names no head of {config.model_type}: "
        f"write there which class its weights are of: {', '.join(classes)}."
    )


def auto_class_of(config: EncoderConfig, architectures: Iterable[str]) -> str | None:
    """Return the Auto class of one of the model classes, with or without `Hfe`; None if the family has none of them.

    If two Auto classes have the same class, it is that of the task, the later one, and not `AutoModelForPreTraining`.
    The order is the family's own: in a saved config.json `auto_map` is sorted.
    """
    names = {name.removeprefix("Hfe") for name in architectures}
    served = [auto_class for auto_class in type(config).AUTO_MAP if auto_class != "AutoConfig"]
    return next((auto for auto in reversed(served) if class_name(config, auto).removeprefix("Hfe") in names), None)


def class_name(config: EncoderConfig, auto_class: str) -> str:
    """Return the name of this package's class for an Auto class."""
    return config.AUTO_MAP[auto_class].rpartition(".")[2]


def native_class(config: EncoderConfig, auto_class: str) -> type[PreTrainedModel]:
    """Return the class of transformers itself for an Auto class; ValueError for a family that it does not have."""
    name = class_name(config, auto_class).removeprefix("Hfe")
    if not hasattr(transformers, name):
        raise ValueError(f"{config.model_type}: transformers has no {name}: use the class of this package.")
    return getattr(transformers, name)


def load_source(source: str | Path, auto_class: str) -> PreTrainedModel:
    """Load a checkpoint with this package's class, in float32 and eval mode; without a pooler if it was not saved."""
    kind, arguments = family_classes()[class_name(read_config(source), auto_class)], {}
    if may_have_pooler(kind) and not any("pooler" in name for name in weight_names(source)):
        arguments = {"add_pooling_layer": False}
    model, keys = kind.from_pretrained(str(source), output_loading_info=True, dtype=torch.float32, **arguments)
    if new := sorted(keys["missing_keys"]):
        raise ValueError(
            f"{source} has no weights for {', '.join(new[:3])}{' ...' if len(new) > 3 else ''} of {kind.__name__}: "
            "they would be randomly initialised. Fine-tune that head first, or choose the one that was saved."
        )
    check_loaded(model, keys["unexpected_keys"], str(source))
    return model.eval()


def is_native_model(model: PreTrainedModel) -> bool:
    """Return whether transformers has a class of the same name, so with the same head, that computes the same."""
    return model.config.is_native and hasattr(transformers, type(model).__name__.removeprefix("Hfe"))


def pooler_arguments(model: PreTrainedModel, auto_class: str) -> dict[str, bool]:
    """Return the arguments of `from_pretrained` that prevent a randomly initialised pooler."""
    may_have = auto_class == "AutoModel" and may_have_pooler(type(model))
    return {"add_pooling_layer": False} if may_have and model.pooler is None else {}


def may_have_pooler(kind: type[PreTrainedModel]) -> bool:
    """Return whether a class is built with or without a pooler: base models of most families."""
    return "add_pooling_layer" in inspect.signature(kind.__init__).parameters
