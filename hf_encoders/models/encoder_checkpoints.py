"""Checked loading: complete safetensors files with weights that fit the encoder.

transformers initialises missing encoder weights randomly with a warning, reads pickles where there is no safetensors
file, and passes on the error that a damaged file happens to raise. Here each is one error with the remedy. A missing
head (the pooler counts as one) is new, as in transformers, which logs it.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import file_exists
from torch import nn
from transformers.modeling_utils import load_state_dict
from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
)


# Arguments of `from_pretrained` that locate a file.
PLACE = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token")
OTHER_FORMATS = (WEIGHTS_NAME, WEIGHTS_INDEX_NAME, "tf_model.h5", "flax_model.msgpack")
CONVERT = (
    "convert it once, with the Hub's conversion Space (safetensors/convert) or with transformers' own class, the one "
    "in `architectures` of its config.json, such as "
    "`transformers.BertForMaskedLM.from_pretrained(SOURCE).save_pretrained(TARGET)`, and `AutoTokenizer` alike"
)
# First bytes of files in other formats.
FOREIGN_STARTS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the weights: run `git lfs pull`, or download the file"),
    (b"<", "is a web page, not the weights: download the file itself, for example with `hf download`"),
    (b"PK\x03\x04", f"is a pickle (torch.save), which is not read: {CONVERT}"),
    (b"\x80\x02", f"is a pickle (torch.save), which is not read: {CONVERT}"),
)


class WeightsDoNotFitError(ValueError, RuntimeError):
    """Weights of other shapes than the model's; a RuntimeError too, as in transformers."""


def load_checked(
    load: Callable[..., Any],
    source: str | os.PathLike | None,
    *args: Any,
    ignore_mismatched_sizes: bool = False,
    output_loading_info: bool = False,
    use_safetensors: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Load a checkpoint with `load`, transformers' `from_pretrained` of a class; arguments as there.

    `source` is None if the caller passes the weights, which may then be incomplete. With `output_loading_info=True`
    missing weights are listed in the report, and initialised randomly.

    Raises:
        OSError: for a file that is missing, damaged or of another format.
        ValueError: for weights of another architecture or of other shapes, and for missing encoder weights.
    """
    if use_safetensors is False:
        raise ValueError(f"use_safetensors=False asks for a pickle, which is not read: leave it out, and {CONVERT}.")
    refuse_shards_elsewhere(source, **kwargs)
    try:
        model, report = load(
            source, *args, ignore_mismatched_sizes=True, output_loading_info=True, use_safetensors=True, **kwargs
        )
    except Exception as error:
        try:
            problem = problem_of_files(source, **kwargs)
        except Exception:
            problem = None  # the Hub cannot be reached: the first error says why
        if problem is None:
            raise
        raise OSError(problem) from error
    report["unexpected_keys"] |= model.unused_head_weights
    missing = set() if source is None else encoder_weights(model) & set(report["missing_keys"])
    mismatched = [] if ignore_mismatched_sizes else sorted(report["mismatched_keys"])
    if (missing or mismatched) and (problem := problem_of_files(source, **kwargs)) is not None:
        raise OSError(problem)
    expected, actual = type(model).config_class.model_type, model.config.model_type
    if actual != expected:  # the weights may have the same names
        raise ValueError(
            f"{source} is a checkpoint of model_type={actual!r}, and {type(model).__name__} computes {expected!r}: "
            f"load it with the class of {actual!r}, or, if the two differ only in name, pass model_type={expected!r}."
        )
    if mismatched:
        raise WeightsDoNotFitError(_misfit(model, source, mismatched))
    if missing and not output_loading_info:
        raise ValueError(_incompleteness(model, source, missing, report["unexpected_keys"]))
    return (model, report) if output_loading_info else model


# --- files ---


def refuse_shards_elsewhere(
    source: str | os.PathLike | None, variant: str | None = None, subfolder: str | None = None, **_: Any
) -> None:
    """Raise OSError for a folder whose index names shards outside of it, which `from_pretrained` would read."""
    names = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    weights, index = (Path(str(source), subfolder or "", _with_variant(name, variant)) for name in names)
    if weights.exists() or not index.is_file():
        return
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # `problem_of_shards` says so
    if outside := sorted(name for name in map(str, shards) if os.path.isabs(name) or ".." in Path(name).parts):
        raise OSError(f"{index} names {outside[0]!r}, outside of its folder: put the weights beside the index.")


def problem_of_files(source: str | os.PathLike | None, variant: str | None = None, **kwargs: Any) -> str | None:
    """Return what is wrong with the files of a checkpoint, or of an adapter's base model, and the remedy, or None.

    Raises an exception if the Hub cannot be reached.
    """
    if source is None or kwargs.get("gguf_file"):
        return None
    source, location = str(source), {name: kwargs[name] for name in PLACE if name in kwargs}
    names = [_with_variant(name, variant) for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)]
    if (file := _find(source, names[0], location)) is not None:
        problem = problem_of_file(file)
    elif (index := _find(source, names[1], location)) is not None:
        problem = problem_of_shards(index, lambda shard: _find(source, shard, location))
    elif other_files := [name for name in OTHER_FORMATS if _exists(source, name, location)]:
        problem = f"{source} has its weights in {', '.join(other_files)} only, which is not read: {CONVERT}."
    elif (adapter := _find(source, ADAPTER_CONFIG_NAME, location)) is not None:
        return problem_of_files(json.loads(Path(adapter).read_text(encoding="utf-8"))["base_model_name_or_path"])
    else:
        problem = f"{source} has no weights: neither {names[0]} nor {names[1]} with shards. Complete the checkpoint."
    if problem is None and kwargs.get("config") is None and _find(source, CONFIG_NAME, location) is None:
        problem = f"{source} has no {CONFIG_NAME}, and its weights are not of the default sizes: add the file."
    return problem


def _find(source: str, name: str, location: dict[str, Any]) -> str | None:
    """Return the path of a checkpoint's file, in a folder or in the Hub's cache, or None."""
    try:
        return cached_file(source, name, **location)
    except OSError:
        return None


def _exists(source: str, name: str, location: dict[str, Any]) -> bool:
    """Return whether a checkpoint has a file, without a download. Raises an exception if the Hub cannot be reached."""
    path = str(PurePosixPath(location.get("subfolder") or "", name))
    if os.path.isdir(source):
        return os.path.isfile(os.path.join(source, path))
    return file_exists(source, path, revision=location.get("revision"), token=location.get("token"))


def _with_variant(name: str, variant: str | None) -> str:
    return name if variant is None else f".{variant}.".join(name.rsplit(".", 1))


def problem_of_file(path: str) -> str | None:
    """Return what is wrong with one safetensors file; only its header is read."""
    try:
        load_state_dict(path, map_location="meta")
        return None
    except Exception as error:  # of safetensors, which files of this folder cannot import
        reason = error
    with open(path, "rb") as file:
        start = file.read(64).lstrip()
    if not start:
        return f"{path} is empty: download or copy it again."
    for beginning, problem in FOREIGN_STARTS:
        if start.startswith(beginning):
            return f"{path} {problem}."
    size = os.path.getsize(path)
    return f"{path} ({size} bytes) is damaged or cut short ({reason}): download or copy it again."


def problem_of_shards(index: str, find: Callable[[str], str | None]) -> str | None:
    """Return what is wrong with the index of a sharded checkpoint, or with its shards; `find` gives a shard's path."""
    try:
        content = json.loads(Path(index).read_text(encoding="utf-8", errors="replace"))
        places, _ = content["weight_map"], content["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        return (
            f"{index} is not an index of shards ({type(error).__name__}: {error}), with `metadata` and `weight_map`: "
            "download or copy it again."
        )
    for shard in sorted(set(places.values())):
        if (path := find(shard)) is None:
            return f"{shard} is missing, which {index} names: download or copy it too."
        if (problem := problem_of_file(path)) is not None:
            return problem
        listed = {name for name, file in places.items() if file == shard}
        if absent := listed - load_state_dict(path, map_location="meta").keys():
            return (
                f"{shard} does not hold {_some(absent)}, which {index} lists there: the index and the shards are of "
                "different checkpoints. Download or copy all of them again."
            )
    return None


# --- weights ---


def encoder_weights(model: nn.Module) -> set[str]:
    """Return the names of the encoder's weights, without the pooler's, which models with an MLM head lack."""
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    return {name for name in model.state_dict() if name.startswith(prefix) and not name.startswith(f"{prefix}pooler.")}


def _incompleteness(model: nn.Module, source: Any, missing: set[str], unexpected: Iterable[str]) -> str:
    """Return the message for `missing` encoder weights; `unexpected` are names that only the file has."""
    encoder = encoder_weights(model)
    if missing == encoder:
        return (
            f"no encoder weight of {type(model).__name__} is in {source}: expected {_some(encoder)}, found "
            f"{_some(unexpected) or 'only the head'}. Load it with the class of those names, or complete the file."
        )
    return (
        f"{len(missing)} of {len(encoder)} encoder weights are not in {source}: {_some(missing)}. Complete the "
        f"checkpoint, or use its own configuration (here num_hidden_layers={model.config.num_hidden_layers}). To "
        "initialise them randomly on purpose, pass output_loading_info=True, which returns the model and a report."
    )


def _misfit(model: nn.Module, source: Any, mismatched: list[tuple[str, Any, Any]]) -> str:
    """Return the message for `mismatched` weights: names, shapes in the file, shapes in the model."""
    shapes = [f"{name} is {tuple(actual)} in the file and {tuple(shape)} here" for name, actual, shape in mismatched]
    if encoder_weights(model) & {name for name, *_ in mismatched}:
        names = ("vocab_size", "hidden_size", "max_position_embeddings", "type_vocab_size", "intermediate_size")
        fields = ", ".join(f"{name}={getattr(model.config, name)}" for name in names)
        remedy = (
            f"The configuration ({fields}) does not match: use the config.json they were saved with; for another "
            "vocabulary, load first and then call `resize_token_embeddings`"
        )
    else:
        remedy = (
            f"The head has another size: leave out what changes it (num_labels={model.config.num_labels}), or pass "
            "ignore_mismatched_sizes=True for a new head"
        )
    return f"the weights of {source} do not fit {type(model).__name__}: {_some(shapes, '; ')}. {remedy}."


def _some(names: Iterable[str], separator: str = ", ") -> str:
    """Return the first three names, and how many more there are."""
    names = sorted(names)
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return separator.join(names[:3]) + rest
