"""What a checkpoint must be before its weights become a model: whole safetensors files that fit the encoder.

transformers warns of encoder weights that a checkpoint lacks and draws them at random, reads pickles where there is no
safetensors file, and lets a damaged file's own error through. Here each of these is one error with the remedy. A head
that a checkpoint does not have is new, as in transformers, which says so; the pooler counts as a head.
"""

import json
import os
from collections.abc import Callable, Iterable
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


# Of the arguments of `from_pretrained`, those that say where a file lies.
PLACE = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token")
OTHER_FORMATS = (WEIGHTS_NAME, WEIGHTS_INDEX_NAME, "tf_model.h5", "flax_model.msgpack")
CONVERT = (
    "convert it once, with the Hub's conversion Space (safetensors/convert) or with transformers' own class: "
    "`transformers.AutoModelForPreTraining.from_pretrained(SOURCE).save_pretrained(TARGET)` (or the Auto class of "
    "another head)"
)
# How a file begins that is no safetensors file, and what it is then.
FOREIGN_STARTS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the weights: run `git lfs pull`, or download the file"),
    (b"<", "is a web page, not the weights: download the file itself, for example with `hf download`"),
    (b"PK\x03\x04", f"is a pickle (torch.save), which is not read: {CONVERT}"),
    (b"\x80\x02", f"is a pickle (torch.save), which is not read: {CONVERT}"),
)


class WeightsDoNotFitError(ValueError, RuntimeError):
    """Weights of other shapes than the model's: a ValueError as everywhere here, a RuntimeError as in transformers."""


def load_checked(
    load: Callable[..., Any],
    source: str | os.PathLike | None,
    *args: Any,
    ignore_mismatched_sizes: bool = False,
    output_loading_info: bool = False,
    use_safetensors: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Load a checkpoint by transformers' `from_pretrained`, and refuse what would leave encoder weights random.

    Args:
        load: transformers' `from_pretrained`, bound to a class.
        source (`str` or `os.PathLike`, *optional*): folder or name on the Hub; None if the caller passes the weights,
            which are then not checked for being complete.
        args, ignore_mismatched_sizes, kwargs: as in transformers.
        output_loading_info (`bool`): whether to return the report too. Who asks for it is told there which weights are
            missing, and gets them drawn at random; that is also the way to begin with a part of an encoder on purpose.
        use_safetensors (`bool`, *optional*): None and True mean the same; False, which asks for a pickle, is refused.

    Returns:
        The model, and the loading report if it is asked for.

    Raises:
        OSError: for a file that is missing, damaged or of another format.
        ValueError: for weights of another architecture or of other shapes, and for encoder weights that are not there.
    """
    if use_safetensors is False:
        raise ValueError(f"use_safetensors=False asks for a pickle, which is not read: leave it out, and {CONVERT}.")
    try:
        # Sizes are compared below, where the names and the shapes are known.
        model, report = load(
            source, *args, ignore_mismatched_sizes=True, output_loading_info=True, use_safetensors=True, **kwargs
        )
    except Exception as error:
        try:
            problem = problem_of_files(source, **kwargs)
        except Exception:
            problem = None  # a place that cannot be asked: the first error tells why
        if problem is None:
            raise
        raise OSError(problem) from error
    report["unexpected_keys"] |= model.left_heads
    missing = missing_encoder_weights(model, report) if source is not None else set()
    mismatched = [] if ignore_mismatched_sizes else sorted(report["mismatched_keys"])
    if (missing or mismatched) and (problem := problem_of_files(source, **kwargs)) is not None:
        raise OSError(problem)
    check_architecture(model, source)
    check_shapes(model, source, mismatched)
    if not output_loading_info:
        check_complete(model, source, missing, report["unexpected_keys"])
    return (model, report) if output_loading_info else model


# --- files ---


def problem_of_files(source: str | os.PathLike | None, variant: str | None = None, **kwargs: Any) -> str | None:
    """What is wrong with the files of a checkpoint, and the remedy; None if they can be read.

    Of a folder with nothing but an adapter, what is wrong with the model that it belongs to.

    Args:
        source, variant: as in `from_pretrained`.
        kwargs: other arguments of `from_pretrained`.

    Raises:
        Exception: if the Hub cannot be asked.
    """
    if source is None or kwargs.get("gguf_file"):
        return None
    source, place = str(source), {name: kwargs[name] for name in PLACE if name in kwargs}
    names = [with_variant(name, variant) for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)]
    if (file := find(source, names[0], place)) is not None:
        problem = problem_of_file(file)
    elif (index := find(source, names[1], place)) is not None:
        problem = problem_of_shards(index, lambda shard: find(source, shard, place))
    elif others := [name for name in OTHER_FORMATS if exists(source, name, place)]:
        problem = f"{source} has its weights in {', '.join(others)} only, which is not read: {CONVERT}."
    elif (adapter := find(source, ADAPTER_CONFIG_NAME, place)) is not None:
        with open(adapter, encoding="utf-8") as file:
            return problem_of_files(json.load(file)["base_model_name_or_path"])
    else:
        problem = f"{source} has no weights: neither {names[0]} nor {names[1]} with shards. Complete the checkpoint."
    if problem is None and kwargs.get("config") is None and find(source, CONFIG_NAME, place) is None:
        problem = f"{source} has no {CONFIG_NAME}, and its weights are not of the default sizes: add the file."
    return problem


def find(source: str, name: str, place: dict[str, Any]) -> str | None:
    """Where a file of a checkpoint lies, in a folder or in the Hub's cache; None if it does not."""
    try:
        return cached_file(source, name, **place)
    except OSError:
        return None


def exists(source: str, name: str, place: dict[str, Any]) -> bool:
    """Whether a checkpoint has a file, which is not downloaded.

    Raises:
        Exception: if the Hub cannot be asked.
    """
    subfolder = place.get("subfolder") or ""
    if os.path.isdir(source):
        return os.path.isfile(os.path.join(source, subfolder, name))
    name = f"{subfolder}/{name}" if subfolder else name
    return file_exists(source, name, revision=place.get("revision"), token=place.get("token"))


def with_variant(name: str, variant: str | None) -> str:
    """A weight file's name with its variant, as transformers writes it.

    >>> with_variant("model.safetensors.index.json", "fp16")
    'model.safetensors.index.fp16.json'
    """
    stem, dot, suffix = name.rpartition(".")
    return name if variant is None else f"{stem}.{variant}{dot}{suffix}"


def problem_of_file(path: str) -> str | None:
    """What is wrong with one safetensors file; only its header is read."""
    try:
        load_state_dict(path, map_location="meta")
        return None
    except Exception as error:  # that of safetensors, which files of this folder cannot name
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
    """What is wrong with the index of a sharded checkpoint, its shards, or what the one says of the others."""
    with open(index, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        places = json.loads(text)["weight_map"]
        json.loads(text)["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        return (
            f"{index} is no index of shards ({type(error).__name__}: {error}), which has `metadata` and `weight_map`: "
            "download or copy it again."
        )
    for shard in sorted(set(places.values())):
        if (path := find(shard)) is None:
            return f"{shard} is missing, which {index} names: download or copy it too."
        if (problem := problem_of_file(path)) is not None:
            return problem
        listed = {name for name, place in places.items() if place == shard}
        absent = listed - load_state_dict(path, map_location="meta").keys()
        if absent:
            return (
                f"{shard} does not hold {some(absent)}, which {index} says it does: the index and the shards are not "
                "of the same checkpoint. Download or copy all of them again."
            )
    return None


# --- weights ---


def missing_encoder_weights(model: nn.Module, report: dict[str, Any]) -> set[str]:
    """Names of encoder weights that no file held; of an adapter's weights if one was loaded, which `report` is on."""
    return encoder_weights(model) & set(report["missing_keys"])


def encoder_weights(model: nn.Module) -> set[str]:
    """Names of the encoder's weights without the pooler's, which models with an MLM head do not have."""
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    return {name for name in model.state_dict() if name.startswith(prefix) and not name.startswith(f"{prefix}pooler.")}


def check_architecture(model: nn.Module, source: str | os.PathLike | None) -> None:
    """Raise ValueError if the checkpoint names another architecture: names of weights can be equal by chance."""
    expected, found = type(model).config_class.model_type, model.config.model_type
    if found != expected:
        raise ValueError(
            f"{source} is a checkpoint of model_type={found!r}, and {type(model).__name__} computes {expected!r}: "
            f"load it with the class of {found!r}, or, if the two differ in nothing but the name, pass "
            f"model_type={expected!r}."
        )


def check_complete(
    model: nn.Module, source: str | os.PathLike | None, missing: set[str], unexpected: Iterable[str]
) -> None:
    """Raise ValueError for encoder weights that are `missing`; `unexpected` are names that only the file has."""
    if not missing:
        return
    encoder = encoder_weights(model)
    if missing == encoder:
        raise ValueError(
            f"no encoder weight of {type(model).__name__} is in {source}: expected {some(encoder)}, found "
            f"{some(unexpected) or 'none but of the head'}. Load it with the class that its names belong to, or "
            "complete the file."
        )
    raise ValueError(
        f"{len(missing)} of {len(encoder)} encoder weights are not in {source}: {some(missing)}. Complete the "
        f"checkpoint, or load it with the configuration it was saved with (here num_hidden_layers="
        f"{model.config.num_hidden_layers}). To have them drawn at random on purpose, pass output_loading_info=True, "
        "which returns the model and a report."
    )


def check_shapes(model: nn.Module, source: str | os.PathLike | None, mismatched: list[tuple[str, Any, Any]]) -> None:
    """Raise WeightsDoNotFitError for weights of another shape; `mismatched` has names, shapes in file and model."""
    if not mismatched:
        return
    shapes = [f"{name} is {tuple(found)} in the file and {tuple(own)} here" for name, found, own in mismatched]
    if encoder_weights(model) & {name for name, *_ in mismatched}:
        config = model.config
        remedy = (
            f"The configuration (vocab_size={config.vocab_size}, hidden_size={config.hidden_size}, "
            f"max_position_embeddings={config.max_position_embeddings}, type_vocab_size={config.type_vocab_size}, "
            f"intermediate_size={config.intermediate_size}) is not that of the weights: use the config.json they were "
            "saved with; for another vocabulary, load first and then call `resize_token_embeddings`"
        )
    else:
        remedy = (
            f"The head has another size: leave out what changes it (num_labels={model.config.num_labels}), or pass "
            "ignore_mismatched_sizes=True for a new head"
        )
    raise WeightsDoNotFitError(
        f"the weights of {source} do not fit {type(model).__name__}: {some(shapes, '; ')}. {remedy}."
    )


def some(names: Iterable[str], separator: str = ", ", limit: int = 3) -> str:
    """The first few of some names, and how many more there are.

    >>> some(["d", "b", "a", "c"])
    'a, b, c and 1 more'
    """
    names = sorted(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return separator.join(names[:limit]) + rest
