"""Arithmetic that does not depend on the machine, and the checkpoints that several files look at."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from huggingface_hub import HfApi
from transformers import PreTrainedModel

from tests.hub.auto_class_loads import FINE_TUNE, LOAD, TOKENIZERS, Job, SavedFamily, ask_other_process
from tests.hub.loopback_hub import LoopbackHub, online
from tests.hub.tiny_checkpoints import (
    BERT,
    FAMILIES,
    RELATIVE,
    Family,
    has_built_in_class,
    head_of,
    labels_for,
    make_batch,
    make_model,
    outputs_of,
    save_checkpoint,
    saved_heads,
    trusted_auto_classes,
)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Compute here as the other processes do: bitwise equality is asked for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    """An empty hub for clients in this process; safetensors go through LFS as on the real one."""
    with LoopbackHub() as server, online():
        server.lfs_suffixes = (".safetensors",)
        yield server


@pytest.fixture
def api(hub: LoopbackHub) -> HfApi:
    """A client of the hub that may write."""
    return HfApi(endpoint=hub.endpoint, token="hf_loopback")


@pytest.fixture(scope="session")
def all_saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedFamily]:
    """Save every head once, load everything elsewhere, train and save there, load everything once more."""
    folder = tmp_path_factory.mktemp("all")
    saves = [_save(family, folder / family.name) for family in FAMILIES]
    first = ask_other_process([LOAD, TOKENIZERS, FINE_TUNE], folder / "first", [_first_job(save) for save in saves])
    second = ask_other_process([LOAD, TOKENIZERS], folder / "second", [_second_job(save) for save in saves])
    return {
        save.family.name: SavedFamily(save.family, save.folders, save.outputs, one, save.tuned_folders, other)
        for save, one, other in zip(saves, first, second, strict=True)
    }


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def saved(request: pytest.FixtureRequest, all_saved: dict[str, SavedFamily]) -> SavedFamily:
    """One family of `all_saved`."""
    return all_saved[request.param.name]


class _Save(NamedTuple):
    family: Family
    folders: dict[str, Path]
    tuned_folders: dict[str, Path]
    outputs: dict[str, dict[str, torch.Tensor]]


def _save(family: Family, folder: Path) -> _Save:
    folders, outputs = {}, {}
    for key, model in _models(family).items():
        folders[key] = save_checkpoint(model, family, folder / "saved" / key)
        # Loaded as the other process does: kernels may round otherwise where weights lie otherwise in memory.
        loaded = type(model).from_pretrained(folders[key])
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
        outputs[key] = outputs_of(loaded, head_of(key), make_batch(family))
    return _Save(family, folders, {key: folder / "tuned" / key for key in folders}, outputs)


def _first_job(save: _Save) -> Job:
    family, batch = save.family, make_batch(save.family)
    fine_tunes = [
        (head_of(key), str(path), str(save.tuned_folders[key]), labels_for(family, head_of(key), batch))
        for key, path in save.folders.items()
    ]
    loads = _trusted_loads(family, save.folders, trusted_auto_classes)
    loads += _plain_loads(save.folders, lambda key: trusted_auto_classes(family, key), family)
    return Job(family, {"loads": loads, "fine_tunes": fine_tunes})


def _second_job(save: _Save) -> Job:
    loads = _trusted_loads(save.family, save.tuned_folders, lambda family, key: [head_of(key)])
    return Job(save.family, {"loads": loads + _plain_loads(save.tuned_folders, lambda key: [key], save.family)})


def _models(family: Family) -> dict[str, PreTrainedModel]:
    """All heads and kinds of relative positions of BERT; of others those whose saved files differ."""
    some = ("AutoModel", "AutoModelForPreTraining", "AutoModelForQuestionAnswering", family.token_head)
    heads = [head for head in saved_heads(family) if family is BERT or head in some]
    models = {head: make_model(family, head, seed) for seed, head in enumerate(heads)}
    for kind in family.relative[: 2 if family is BERT else 1]:
        models[kind] = make_model(family, "AutoModelForMaskedLM", seed=20, position_embedding_type=kind)
    return models


def _trusted_loads(
    family: Family, folders: dict[str, Path], through: Callable[[Family, str], list[str]]
) -> list[tuple]:
    return [
        (f"trusted/{key}", str(path), auto_class, {"trust_remote_code": True})
        for key, path in folders.items()
        for auto_class in through(family, key)
    ]


def _plain_loads(folders: dict[str, Path], through: Callable[[str], list[str]], family: Family) -> list[tuple]:
    """Loads with no flag."""
    return [
        (f"plain/{key}", str(path), auto_class, {})
        for key, path in folders.items()
        if key not in RELATIVE
        for auto_class in through(key)
        if has_built_in_class(family, auto_class)
    ]
