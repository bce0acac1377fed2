"""accelerate's loading of models larger than memory, and loading in 16 bits: the outputs of the whole model."""

import gc
from pathlib import Path

import pytest
import torch
from accelerate import (
    cpu_offload,
    disk_offload,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
)
from torch import nn
from transformers import PreTrainedModel

from hf_encoders import HfeDebertaV2ForMaskedLM
from tests.models.tiny import ALL_MODELS, BASE_MODELS, MASKED_LM, PRETRAINING, right_padded, tiny_model


HEADS = (*MASKED_LM, *PRETRAINING)


@pytest.fixture(autouse=True, scope="module")
def _little_garbage_to_look_through() -> None:
    """accelerate collects garbage at each shard: leave out what the files before have made."""
    gc.collect()
    gc.freeze()


def saved(model_class: type[PreTrainedModel], folder: Path) -> PreTrainedModel:
    """A model in shards, and the same as it is loaded whole."""
    tiny_model(model_class).save_pretrained(folder, max_shard_size="15KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return model_class.from_pretrained(folder)


def spread(model: nn.Module) -> dict[str, str]:
    """Every second part on the disk, the others on the CPU; a part is a layer or something of that size.

    The parts with weights that are tied to others stay together on the CPU, as accelerate wants them.
    """
    parts = [name for name, module in model.named_modules() if type(module).__name__ in model._no_split_modules]
    others = {name for name, _ in model.named_parameters() if not name.startswith(tuple(f"{part}." for part in parts))}
    modules = {name: name.rpartition(".")[0] for name in others}
    # A parameter beside parts goes by its own name: its module's would be that of all.
    others = {
        name if any(one.startswith(f"{its}.") for one in parts) else its or name for name, its in modules.items()
    }
    return {**dict.fromkeys(sorted(others), "cpu"), **{part: ("cpu", "disk")[i % 2] for i, part in enumerate(parts)}}


def on_disk(model: nn.Module) -> int:
    """How many of its parameters lie on the disk, and are not in memory."""
    return sum(parameter.is_meta for parameter in model.parameters())


def assert_equal_outputs(model: PreTrainedModel, whole: PreTrainedModel) -> None:
    batch = right_padded(whole.config)
    if "MultipleChoice" in type(whole).__name__:
        batch = {name: value[None] for name, value in batch.items()}
    got, expected = model.eval()(**batch), whole(**batch)
    assert got.keys() == expected.keys()
    for name in expected.keys() - {"tokens"}:
        torch.testing.assert_close(got[name], expected[name], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("model_class", ALL_MODELS)
def test_from_pretrained_with_a_device_map(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    whole = saved(model_class, tmp_path / "model")
    model = model_class.from_pretrained(
        tmp_path / "model", device_map=spread(whole), offload_folder=str(tmp_path / "offload")
    )
    assert on_disk(model) > 8
    assert_equal_outputs(model, whole)


@pytest.mark.parametrize("model_class", PRETRAINING)
def test_load_checkpoint_and_dispatch(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    whole = saved(model_class, tmp_path / "model")
    with init_empty_weights():
        model = model_class(whole.config)
    assert on_disk(model) == len(list(model.parameters()))
    model.tie_weights()
    model = load_checkpoint_and_dispatch(
        model,
        str(tmp_path / "model"),
        device_map=spread(whole),
        no_split_module_classes=whole._no_split_modules,
        offload_folder=str(tmp_path / "offload"),
    )
    assert on_disk(model) > 8
    assert_equal_outputs(model, whole)


# DeBERTa's head reads the weights of the embeddings, as transformers' class does, and they are gone after their call.
@pytest.mark.parametrize("offload", [cpu_offload, disk_offload])
@pytest.mark.parametrize("model_class", [one for one in HEADS if one is not HfeDebertaV2ForMaskedLM])
def test_everything_offloaded(model_class: type[PreTrainedModel], offload: object, tmp_path: Path) -> None:
    """The shortcuts of our heads, which read weights of modules they do not call, are off; the loss is the same."""
    whole, model = tiny_model(model_class), tiny_model(model_class)
    folder = {"offload_dir": str(tmp_path)} if offload is disk_offload else {}
    offload(model, execution_device=torch.device("cpu"), offload_buffers=True, **folder)
    assert on_disk(model) == len(list(model.parameters()))
    assert_equal_outputs(model, whole)
    batch = right_padded(whole.config)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    with torch.no_grad():
        losses = [called(**batch, return_logits=False).loss for called in (model, whole)]
    torch.testing.assert_close(*losses, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("model_class", BASE_MODELS)
def test_a_device_map_splits_no_layer(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    places = infer_auto_device_map(
        model, max_memory={"cpu": size // 2, "disk": size}, no_split_module_classes=model._no_split_modules
    )
    assert set(places.values()) == {"cpu", "disk"}
    layers = [name for name, module in model.named_modules() if type(module).__name__ in model._no_split_modules]
    assert not any(name.startswith(f"{layer}.") for name in places for layer in layers)


@pytest.mark.parametrize("model_class", ALL_MODELS)
def test_loaded_in_16_bits(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    """Half the memory; outputs as far from those in 32 bits as 8 bits of mantissa explain."""
    whole = tiny_model(model_class)
    whole.save_pretrained(tmp_path)
    model = model_class.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.get_memory_footprint() == whole.get_memory_footprint() / 2
    ids = right_padded(whole.config, (7, 7))["input_ids"]
    ids = ids[None] if "MultipleChoice" in model_class.__name__ else ids
    got, expected = model(ids)[0], whole(ids)[0]
    assert got.dtype == torch.bfloat16
    assert (got.float() - expected).norm() < 0.05 * expected.norm()
