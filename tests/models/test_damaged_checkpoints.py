"""Checkpoints that are not whole, or not this model's: one error with the file, what is wrong and the remedy.

Each is loaded by our class here, and through an Auto class in a process without this package. Encoder weights never
become random numbers without a word.
"""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from huggingface_hub import HfApi
from safetensors.torch import load, save_file
from transformers import PreTrainedModel

from hf_encoders import (
    HfeAlbertModel,
    HfeBertForMaskedLM,
    HfeBertForSequenceClassification,
    HfeBertModel,
    HfeRobertaForMaskedLM,
    HfeRobertaModel,
)
from tests.hub.loopback_hub import LoopbackHub
from tests.hub.remote_process import run_without_package
from tests.models.tiny import right_padded, tiny_model


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def edit_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def keep_weights(folder: Path, is_kept: Callable[[str], bool]) -> None:
    # Read whole, because the file that is written is the one that would be mapped.
    tensors = load((folder / WEIGHTS).read_bytes())
    save_file({name: tensors[name] for name in tensors if is_kept(name)}, folder / WEIGHTS, {"format": "pt"})


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def contents(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / WEIGHTS).write_bytes(content)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def pickled_as(name: str) -> Callable[[Path], None]:
    """The weights as `torch.save` writes them, which transformers' own classes read."""

    def damage(folder: Path) -> None:
        tensors = load((folder / WEIGHTS).read_bytes())
        (folder / WEIGHTS).unlink()
        torch.save(tensors, folder / name)

    return damage


def merge_two_shards_in_the_index(folder: Path) -> None:
    first, _, third = (path.name for path in shards(folder)[:3])

    def change(index: dict[str, Any]) -> None:
        places = index["weight_map"]
        index["weight_map"] = {name: first if place == third else place for name, place in places.items()}

    edit_index(folder, change)


def drop_a_shard_from_the_index(folder: Path) -> None:
    third = shards(folder)[2].name

    def change(index: dict[str, Any]) -> None:
        index["weight_map"] = {name: place for name, place in index["weight_map"].items() if place != third}

    edit_index(folder, change)


def with_names_of_roberta(folder: Path) -> None:
    tensors = load((folder / WEIGHTS).read_bytes())
    save_file({name.replace("bert.", "roberta."): x for name, x in tensors.items()}, folder / WEIGHTS)


class Damage(NamedTuple):
    """What is done to a checkpoint, by which arguments it is loaded, and what the error says."""

    do: Callable[[Path], object]
    error: type[Exception]
    message: str
    arguments: dict[str, Any] = {}
    sharded: bool = False


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"
# A header that says it is one byte long, and is; and one that says it is longer than the file.
NO_JSON, LONG = struct.pack("<Q", 1) + b"?", struct.pack("<Q", 2**20) + b"{}"
nothing: Callable[[Path], None] = lambda folder: None  # noqa: E731
DAMAGES = {
    "lfs pointer": Damage(contents(LFS), OSError, rf"{WEIGHTS} is a Git LFS pointer.*git lfs pull"),
    "web page": Damage(contents(b"\n<!DOCTYPE html><html>"), OSError, rf"{WEIGHTS} is a web page.*hf download"),
    "pickle inside": Damage(pickled_as(WEIGHTS), OSError, rf"{WEIGHTS} is a pickle .*not read: convert it once"),
    "empty": Damage(contents(b""), OSError, rf"{WEIGHTS} is empty: download or copy it again"),
    "no header": Damage(contents(NO_JSON), OSError, rf"{WEIGHTS} \(9 bytes\) is damaged or cut short .*again"),
    "short header": Damage(contents(LONG), OSError, rf"{WEIGHTS} \(10 bytes\) is damaged or cut short .*again"),
    "truncated": Damage(
        lambda folder: cut(folder / WEIGHTS, 20_000), OSError, rf"{WEIGHTS} \(20000 bytes\) is damaged or cut short"
    ),
    "no weights": Damage(
        lambda folder: (folder / WEIGHTS).unlink(), OSError, rf"has no weights: neither {WEIGHTS} nor {INDEX}"
    ),
    "pickle": Damage(pickled_as("pytorch_model.bin"), OSError, "in pytorch_model.bin only, .* not read: convert"),
    "tensorflow": Damage(
        lambda folder: (folder / WEIGHTS).rename(folder / "tf_model.h5"),
        OSError,
        "in tf_model.h5 only, which is not read: convert",
    ),
    "variant": Damage(nothing, OSError, "no weights: neither model.fp16.safetensors", {"variant": "fp16"}),
    "pickle asked for": Damage(
        nothing, ValueError, "use_safetensors=False asks for a pickle.*: leave it out", {"use_safetensors": False}
    ),
    "missing shard": Damage(
        lambda folder: shards(folder)[2].unlink(),
        OSError,
        rf"model-00003-of-0000\d.safetensors is missing, which .*{INDEX} names: download",
        sharded=True,
    ),
    "truncated shard": Damage(
        lambda folder: cut(shards(folder)[1], 400),
        OSError,
        r"model-00002-of-0000\d.safetensors \(400 bytes\) is damaged or cut short",
        sharded=True,
    ),
    "index cut short": Damage(
        lambda folder: cut(folder / INDEX, 99),
        OSError,
        rf"{INDEX} is not an index of shards \(JSONDecodeError",
        sharded=True,
    ),
    "index without places": Damage(
        lambda folder: edit_index(folder, lambda index: index.pop("weight_map")),
        OSError,
        rf"{INDEX} is not an index of shards \(KeyError: 'weight_map'\)",
        sharded=True,
    ),
    "index that lies": Damage(
        merge_two_shards_in_the_index,
        OSError,
        rf"model-00001-of-.* does not hold bert.encoder.* and \d+ more, which .*{INDEX} lists there",
        sharded=True,
    ),
    "index that leaves out": Damage(
        drop_a_shard_from_the_index, ValueError, r"\d+ of 53 encoder weights are not in .*: bert\.", sharded=True
    ),
    "no configuration file": Damage(
        lambda folder: (folder / "config.json").write_text('{"model_type"'),
        OSError,
        "config.json' is not a valid JSON",
    ),
    "another number of labels": Damage(
        nothing,
        ValueError,
        r"classifier.bias is \(3,\) in the file and \(5,\) here; classifier.weight is \(3, 18\) .*and \(5, 18\) here. "
        r"The head has another size: .*num_labels=5.*ignore_mismatched_sizes=True",
        {"num_labels": 5},
    ),
    "another width": Damage(
        nothing,
        ValueError,
        r"bert.embeddings.LayerNorm.bias is \(18,\) in the file and \(36,\) here.* and 50 more. The configuration "
        r"\(vocab_size=41, hidden_size=36",
        {"hidden_size": 36},
    ),
    "another vocabulary": Damage(
        nothing,
        ValueError,
        r"word_embeddings.weight is \(41, 18\) in the file and \(50, 18\) here.*\(vocab_size=50.*resize_token_embedd",
        {"vocab_size": 50},
    ),
    "more layers": Damage(
        nothing,
        ValueError,
        r"32 of 85 encoder weights are not in .*: bert.encoder.layer.3.* and 29 more.*num_hidden_layers=5",
        {"num_hidden_layers": 5},
    ),
    "names of another family": Damage(
        with_names_of_roberta,
        ValueError,
        "no encoder weight of HfeBertForSequenceClassification is in .*: expected bert.*found roberta.*Load it with",
    ),
    "a head alone": Damage(
        lambda folder: keep_weights(folder, lambda name: name.startswith("classifier")),
        ValueError,
        "no encoder weight of .*found only the head.*complete the file",
    ),
    "one weight missing": Damage(
        lambda folder: keep_weights(folder, lambda name: not name.endswith("0.intermediate.dense.bias")),
        ValueError,
        r"1 of 53 encoder weights are not in .*: bert.encoder.layer.0.intermediate.dense.bias. Complete the "
        "checkpoint.*output_loading_info=True",
    ),
}

LOAD = """
import transformers

result = {}
for name, (folder, arguments) in argument.items():
    try:
        transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True, **arguments)
        result[name] = None
    except Exception as error:
        result[name] = [[base.__name__ for base in type(error).__mro__], str(error)]
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A checkpoint, by whether it is in shards."""
    model = tiny_model(HfeBertForSequenceClassification, num_labels=3)
    folders = {sharded: tmp_path_factory.mktemp("whole") for sharded in (False, True)}
    model.save_pretrained(folders[False])
    model.save_pretrained(folders[True], max_shard_size="5KB")
    assert 3 < len(shards(folders[True])) < 10
    return folders


@pytest.fixture(scope="module")
def damaged(whole: dict[bool, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each damage."""
    folders = {}
    for name, damage in DAMAGES.items():
        folders[name] = tmp_path_factory.mktemp("damaged") / "checkpoint"
        shutil.copytree(whole[damage.sharded], folders[name])
        damage.do(folders[name])
    return folders


@pytest.fixture(scope="module")
def elsewhere(
    damaged: dict[str, Path], whole: dict[bool, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[list[str], str] | None]:
    """The error of each through an Auto class, where this package is not installed: its classes and its text."""
    loads = {name: (str(folder), DAMAGES[name].arguments) for name, folder in damaged.items()}
    loads |= {f"whole, sharded: {sharded}": (str(folder), {}) for sharded, folder in whole.items()}
    return run_without_package(LOAD, tmp_path_factory.mktemp("elsewhere"), loads)


@pytest.mark.processes
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_one_error(
    name: str, damaged: dict[str, Path], elsewhere: dict[str, tuple[list[str], str]]
) -> None:
    damage = DAMAGES[name]
    with pytest.raises(damage.error, match=damage.message) as caught:
        HfeBertForSequenceClassification.from_pretrained(damaged[name], **damage.arguments)
    assert str(damaged[name]) in str(caught.value) or "asks for" in str(caught.value) or "shard" in name
    assert elsewhere[name] is not None
    bases, message = elsewhere[name]
    assert damage.error.__name__ in bases
    assert message == str(caught.value)


@pytest.mark.processes
def test_what_was_damaged_was_whole(
    whole: dict[bool, Path], elsewhere: dict[str, tuple[list[str], str] | None]
) -> None:
    for sharded, folder in whole.items():
        HfeBertForSequenceClassification.from_pretrained(folder)
        assert elsewhere[f"whole, sharded: {sharded}"] is None


def test_a_shape_that_does_not_fit_is_the_error_of_transformers_too(whole: dict[bool, Path]) -> None:
    with pytest.raises(RuntimeError, match="num_labels=5"):
        HfeBertForSequenceClassification.from_pretrained(whole[False], num_labels=5)


@pytest.mark.parametrize("arguments", [{"num_labels": 5}, {"vocab_size": 50}])
def test_other_sizes_are_new_if_asked_for(whole: dict[bool, Path], arguments: dict[str, int]) -> None:
    """As in transformers: same report, and everything else is from the file."""
    arguments["ignore_mismatched_sizes"] = True
    ours, report = HfeBertForSequenceClassification.from_pretrained(
        whole[False], output_loading_info=True, **arguments
    )
    stock, expected = transformers.BertForSequenceClassification.from_pretrained(
        whole[False], output_loading_info=True, **arguments
    )
    assert report == expected and report["mismatched_keys"]
    new = {name for name, *_ in report["mismatched_keys"]}
    for name, value in stock.state_dict().items():
        assert name in new or torch.equal(ours.state_dict()[name], value)
    HfeBertForSequenceClassification.from_pretrained(whole[False], **arguments)


def test_who_takes_the_report_is_told_there_what_is_missing(whole: dict[bool, Path]) -> None:
    model, report = HfeBertForSequenceClassification.from_pretrained(
        whole[False], num_hidden_layers=4, output_loading_info=True
    )
    assert len(report["missing_keys"]) == 16
    assert all(name.startswith("bert.encoder.layer.3.") for name in report["missing_keys"])
    model(**right_padded(model.config))


def test_fewer_layers_need_no_flag(whole: dict[bool, Path]) -> None:
    model = HfeBertForSequenceClassification.from_pretrained(whole[False], num_hidden_layers=2)
    assert len(model.bert.encoder.layer) == 2


def test_weights_of_the_caller_may_be_a_part() -> None:
    config = tiny_model(HfeBertModel).config
    part = {"embeddings.word_embeddings.weight": torch.ones(41, 18)}
    model = HfeBertModel.from_pretrained(None, config=config, state_dict=part)
    assert (model.embeddings.word_embeddings.weight == 1).all()


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (HfeRobertaModel, HfeBertModel),  # the names of these two are equal, their positions are not
        (HfeRobertaForMaskedLM, HfeBertForMaskedLM),
        (HfeBertModel, HfeRobertaModel),
        (HfeBertModel, HfeAlbertModel),
    ],
)
def test_another_family_is_refused_by_its_configuration(
    saved: type[PreTrainedModel], loaded: type[PreTrainedModel], tmp_path: Path
) -> None:
    tiny_model(saved).save_pretrained(tmp_path)
    found, expected = (cls.config_class.model_type for cls in (saved, loaded))
    message = rf"model_type='{found}', and {loaded.__name__} computes '{expected}'|do not fit|no encoder weight"
    with pytest.raises(ValueError, match=message):
        loaded.from_pretrained(tmp_path)


def test_an_architecture_of_another_name_is_loaded_when_that_is_said(tmp_path: Path) -> None:
    """XLM-RoBERTa is RoBERTa with another vocabulary."""
    fields = tiny_model(HfeRobertaModel).config.to_dict()
    fields = {name: value for name, value in fields.items() if name not in ("model_type", "auto_map", "architectures")}
    stock = transformers.XLMRobertaForMaskedLM(transformers.XLMRobertaConfig(**fields)).eval()
    stock.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="model_type='xlm-roberta'.*pass model_type='roberta'"):
        HfeRobertaForMaskedLM.from_pretrained(tmp_path)
    model = HfeRobertaForMaskedLM.from_pretrained(tmp_path, model_type="roberta")
    assert model.config.model_type == "roberta"
    ids = right_padded(model.config, (7, 7))["input_ids"]
    torch.testing.assert_close(model(ids).logits, stock(ids).logits, atol=1e-5, rtol=1e-5)


def test_a_checkpoint_without_configuration_file(whole: dict[bool, Path], tmp_path: Path) -> None:
    shutil.copy(whole[False] / WEIGHTS, tmp_path)
    with pytest.raises(OSError, match="has no config.json, and its weights are not of the default sizes"):
        HfeBertForSequenceClassification.from_pretrained(tmp_path)
    config = tiny_model(HfeBertModel, num_labels=3).config
    HfeBertForSequenceClassification.from_pretrained(tmp_path, config=config)


def test_a_subfolder_and_a_variant_are_looked_into(whole: dict[bool, Path], tmp_path: Path) -> None:
    model = HfeBertForSequenceClassification.from_pretrained(whole[False])
    model.save_pretrained(tmp_path / "inner", variant="fp16")
    place = {"subfolder": "inner", "variant": "fp16"}
    HfeBertForSequenceClassification.from_pretrained(tmp_path, **place)
    (tmp_path / "inner/model.fp16.safetensors").write_bytes(LFS)
    with pytest.raises(OSError, match=r"inner/model\.fp16\.safetensors is a Git LFS pointer"):
        HfeBertForSequenceClassification.from_pretrained(tmp_path, **place)


def test_no_such_folder_is_the_error_of_transformers(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Repo id must be|is not a local folder"):
        HfeBertModel.from_pretrained(tmp_path / "absent")


def test_mistakes_in_the_call_keep_their_error(whole: dict[bool, Path]) -> None:
    with pytest.raises(TypeError, match="no_such_argument"):
        HfeBertForSequenceClassification.from_pretrained(whole[False], no_such_argument=1)


@pytest.mark.processes
def test_repositories_are_told_apart_as_folders_are(damaged: dict[str, Path], tmp_path: Path) -> None:
    names = ("truncated", "pickle", "no weights", "missing shard")
    with LoopbackHub() as hub:
        api = HfApi(endpoint=hub.endpoint, token="unused")
        for number, name in enumerate(names):
            api.create_repo(f"user/m{number}")
            api.upload_folder(repo_id=f"user/m{number}", folder_path=damaged[name])
        loads = {name: (f"user/m{number}", {}) for number, name in enumerate(names)} | {"absent": ("user/absent", {})}
        found = run_without_package(LOAD, tmp_path, loads, environment=hub.environment(tmp_path))
    assert all("OSError" in bases for bases, _ in found.values())
    messages = {name: message for name, (_, message) in found.items()}
    assert "is damaged or cut short" in messages["truncated"]
    assert messages["pickle"].startswith("user/m1 has its weights in pytorch_model.bin only")
    assert messages["no weights"].startswith("user/m2 has no weights")
    assert "model-00003-of-" in messages["missing shard"]
    assert "user/absent is not a local folder and is not a valid model identifier" in messages["absent"]
