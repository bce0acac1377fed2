"""Importing this package adds classes and takes none over; taking over is asked for by name."""

import os
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoTokenizer, PreTrainedModel

from hf_encoders.registration import register
from tests.families import fields_of
from tests.forked_python import python_c
from tests.hub.remote_process import run_with_package
from tests.hub.tiny_checkpoints import (
    FAMILIES,
    SIZES,
    TEXTS,
    Family,
    auto_classes,
    built_in,
    has_built_in_class,
    make_config,
    make_model,
    make_tokenizer,
    save_checkpoint,
)


LOAD_ALL = """
import transformers

transformers.logging.set_verbosity(50)
before = "hf_encoders" in __import__("sys").modules
import hf_encoders

if argument["take_over"]:
    hf_encoders.take_over_auto_classes()
result = {"before": before}
for folder, auto_class in argument["loads"]:
    loaded = getattr(transformers, auto_class).from_pretrained(folder)
    result[f"{folder} {auto_class}"] = [type(loaded).__module__, type(loaded).__name__]
"""


def our_class(family: Family, auto_class: str) -> type[PreTrainedModel]:
    return getattr(family.modeling, family.config_class.AUTO_MAP[auto_class].split(".")[1])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By family: a checkpoint of transformers' own, one of ours, and one of ours that only we can read."""
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family.name)
        model_class = getattr(transformers, built_in(family, family.token_head))
        tokenizer = make_tokenizer(family)
        sizes = {**SIZES, **family.own_sizes, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        fields = fields_of(family.config_class, sizes)
        own_names = {family.config_class.own_name(name): value for name, value in fields.items()}
        theirs = model_class(model_class.config_class(**own_names))
        theirs.save_pretrained(folder / "theirs")
        make_tokenizer(family).save_pretrained(folder / "theirs")
        save_checkpoint(make_model(family, family.token_head), family, folder / "ours")
        found[family.name] = {name: str(folder / name) for name in ("theirs", "ours")}
        if family.relative:
            relative = make_model(family, family.token_head, position_embedding_type="relative_key")
            found[family.name]["relative"] = str(save_checkpoint(relative, family, folder / "relative"))
    return found


def load_all(folders: list[tuple[Family, str]], home: Path, take_over: bool) -> dict[str, Any]:
    """Every Auto class and `AutoConfig` on every folder, with no flag, in a process that imports the package first."""
    loads = [
        (folder, auto_class)
        for family, folder in folders
        for auto_class in ["AutoConfig", *auto_classes(family)]
        if auto_class == "AutoConfig" or take_over or has_built_in_class(family, auto_class)
    ]
    found = run_with_package(LOAD_ALL, home, {"loads": loads, "take_over": take_over})
    assert found.pop("before") is False
    assert len(found) == len(loads)
    return found


@pytest.mark.processes
def test_importing_changes_nothing_for_checkpoints(folders: dict, tmp_path: Path) -> None:
    """Of others, and of ours where nobody asks for our code."""
    readable = [(family, folders[family.name][whose]) for family in FAMILIES for whose in ("theirs", "ours")]
    found = load_all(readable, tmp_path, take_over=False)
    for family, folder in readable:
        module = f"transformers.models.{family.file}.modeling_{family.file}"
        assert found[f"{folder} AutoConfig"][0] == f"transformers.models.{family.file}.configuration_{family.file}"
        for auto_class in (one for one in auto_classes(family) if has_built_in_class(family, one)):
            assert found[f"{folder} {auto_class}"] == [module, built_in(family, auto_class)]


@pytest.mark.processes
def test_taking_over_gives_our_class_for_every_checkpoint(folders: dict, tmp_path: Path) -> None:
    """The installed one, with no flag, whoever saved the checkpoint and whoever else could read it."""
    all_folders = [(family, folder) for family in FAMILIES for folder in folders[family.name].values()]
    found = load_all(all_folders, tmp_path, take_over=True)
    for family, folder in all_folders:
        assert found[f"{folder} AutoConfig"] == [family.config_class.__module__, family.config_class.__name__]
        for auto_class in auto_classes(family):
            expected = our_class(family, auto_class)
            assert found[f"{folder} {auto_class}"] == [expected.__module__, expected.__name__]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_configuration_gives_a_model_of_its_own_package(family: Family, folders: dict) -> None:
    register()  # a second time
    sizes = fields_of(family.config_class, {**SIZES, **family.own_sizes, "vocab_size": 31, "pad_token_id": 1})
    for auto_class in auto_classes(family):
        if not has_built_in_class(family, auto_class):
            continue
        auto, theirs = getattr(transformers, auto_class), getattr(transformers, built_in(family, auto_class))
        assert type(auto.from_config(make_config(family))) is our_class(family, auto_class)
        config = theirs.config_class(**{family.config_class.own_name(name): size for name, size in sizes.items()})
        assert type(auto.from_config(config)) is theirs
    # The way to our class with neither a flag nor taking over.
    for folder in folders[family.name].values():
        config = family.config_class.from_pretrained(folder)
        model = getattr(transformers, family.token_head).from_pretrained(folder, config=config)
        assert type(model) is our_class(family, family.token_head)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_tokenizer_of_a_checkpoint_of_ours(family: Family, folders: dict) -> None:
    expected = make_tokenizer(family)
    found = AutoTokenizer.from_pretrained(folders[family.name]["ours"])
    assert type(found) is family.tokenizer_class
    assert found(list(TEXTS))["input_ids"] == expected(list(TEXTS))["input_ids"]
    assert (found.mask_token_id, found.pad_token_id) == (expected.mask_token_id, expected.pad_token_id)


# XLM's published tokenizers have no fast class, so its own is the general one, whose special tokens are known from
# tokenizer_config.json alone: no class could replace that file.
OWN_TOKENIZERS = [one for one in FAMILIES if one.tokenizer_class is not transformers.PreTrainedTokenizerFast]


@pytest.mark.parametrize("family", OWN_TOKENIZERS, ids=lambda family: family.name)
def test_tokenizer_files_that_name_no_class_are_read_by_the_family_s(family: Family, tmp_path: Path) -> None:
    """As in the repositories of 2018: without a class, transformers would return a tokenizer without mask token."""
    make_tokenizer(family).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    make_config(family).save_pretrained(tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path, config=family.config_class.from_pretrained(tmp_path))
    assert type(found) is family.tokenizer_class
    assert found.mask_token_id == make_tokenizer(family).mask_token_id
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is family.tokenizer_class


@pytest.mark.processes
def test_a_class_imported_from_its_own_module_saves_its_code_too(tmp_path):
    snippet = """
    import sys
    from hf_encoders.models.configuration_bert import HfeBertConfig
    from hf_encoders.models.modeling_bert import HfeBertForMaskedLM
    assert "hf_encoders.registration" not in sys.modules
    config = HfeBertConfig(vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    HfeBertForMaskedLM(config).save_pretrained(argument)
    """
    run_with_package(snippet, tmp_path / "home", str(tmp_path / "saved"))
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {"modeling_bert.py", "configuration_bert.py", "encoder_models.py", "model.safetensors"} <= names


@pytest.mark.processes
def test_taking_over_prints_nothing_where_transformers_imports_its_own_classes(tmp_path: Path) -> None:
    """It says '[ERROR] No checkpoint found' of configurations that name none."""
    families = ", ".join(built_in(family, "AutoModel") for family in FAMILIES)
    code = f"import hf_encoders; hf_encoders.take_over_auto_classes(); from transformers import {families}"
    done = python_c(code, [], dict(os.environ), tmp_path)
    assert "[ERROR]" not in done.stdout + done.stderr
