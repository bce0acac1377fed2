"""ALBERT with attention or feed-forward shared between groups: exactly a model whose groups hold equal copies."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel

from hf_encoders import HfeAlbertConfig, HfeAlbertForMaskedLM, HfeAlbertForPreTraining, HfeAlbertModel
from tests.models.tiny import NO_DROPOUT, right_padded, tiny_config, tiny_model, token_ids


# Names in a layer of what is shared; the LayerNorm behind the feed-forward part goes with it.
PART_NAMES = {"attention": ("attention.",), "feed_forward": ("ffn.", "ffn_output.", "full_layer_layer_norm.")}
each_part = pytest.mark.parametrize("part", PART_NAMES)


def shared_model(model_class: type, part: str, **fields: Any):
    """3 depths over 2 groups of 2 layers."""
    return tiny_model(model_class, shared_between_groups=part, classifier_dropout_prob=0, **NO_DROPOUT, **fields)


def name_when_shared(name: str, part: str) -> str:
    """The name of a stock parameter in the model that shares `part`.

    `...albert_layer_groups.1.albert_layers.0.ffn.bias` -> `...shared_parts.0.ffn.bias`
    """
    before, separator, rest = name.partition("albert_layer_groups.")
    if not separator:
        return name
    _, _, layer, inner = rest.split(".", 3)
    return f"{before}shared_parts.{layer}.{inner}" if inner.startswith(PART_NAMES[part]) else name


def with_copies(model: HfeAlbertForPreTraining, part: str) -> HfeAlbertForPreTraining:
    """The same function in transformers' form: each group has its own copy of the part."""
    fields = model.config.to_dict() | {"shared_between_groups": None, "model_type": "albert"}
    stock = HfeAlbertForPreTraining(HfeAlbertConfig(**fields)).to(next(model.parameters()).dtype)
    weights = model.state_dict()
    stock.load_state_dict({name: weights[name_when_shared(name, part)] for name in stock.state_dict()})
    return stock.train(model.training)


def labels_of(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    is_real = batch["attention_mask"] == 1
    return {"labels": batch["input_ids"].where(is_real, -100), "sentence_order_label": torch.tensor([1, 0, 1])}


def gradients(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**batch, **labels_of(batch)).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@each_part
def test_outputs_are_those_of_copies_and_gradients_their_sum(part: str) -> None:
    model = shared_model(HfeAlbertForPreTraining, part).double()
    stock, batch = with_copies(model, part), right_padded(model.config)
    found, expected = (m(**batch, output_hidden_states=True, output_attentions=True) for m in (model, stock))
    for name in ("prediction_logits", "sop_logits", "hidden_states", "attentions"):
        torch.testing.assert_close(found[name], expected[name], atol=1e-10, rtol=1e-10)
    assert len(found.attentions) == 6
    sums: dict[str, torch.Tensor] = {}
    for name, gradient in gradients(stock, batch).items():
        name = name_when_shared(name, part)
        sums[name] = sums.get(name, 0) + gradient
    torch.testing.assert_close(gradients(model, batch), sums, atol=1e-9, rtol=1e-9)


@each_part
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(part: str, use_reentrant: bool) -> None:
    model = shared_model(HfeAlbertForPreTraining, part).double().train()
    batch = right_padded(model.config)
    expected = gradients(model, batch)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    torch.testing.assert_close(gradients(model, batch), expected, atol=1e-12, rtol=1e-12)


@each_part
def test_every_parameter_has_one_name_and_is_saved_once(part: str, tmp_path: Path) -> None:
    model = shared_model(HfeAlbertForMaskedLM, part)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert sum(value.numel() for value in saved.values()) == sum(p.numel() for p in model.parameters())
    for name, its_part in (("attention.query.weight", "attention"), ("ffn.weight", "feed_forward")):
        assert sum(key.endswith(name) for key in saved) == (2 if part == its_part else 4)
    again, info = HfeAlbertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert again.config.shared_between_groups == part
    again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/config.json").read_text() == (tmp_path / "config.json").read_text()
    ids = token_ids(model.config, 2, 7)
    assert torch.equal(again(ids).logits, model(ids).logits)
    HfeAlbertModel.from_pretrained(tmp_path)  # complete but for the pooler, which is no error


@each_part
def test_plain_transformers_refuses_what_it_cannot_compute(part: str, tmp_path: Path) -> None:
    shared_model(HfeAlbertForMaskedLM, part).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("hfe_albert", ["HfeAlbertForMaskedLM"])
    for auto_class in (AutoConfig, AutoModel):
        with pytest.raises(ValueError, match="hfe_albert|trust_remote_code"):
            auto_class.from_pretrained(tmp_path, trust_remote_code=False)


@each_part
def test_parts_of_a_stock_checkpoint_are_not_taken_for_shared_ones(part: str, tmp_path: Path) -> None:
    tiny_model(HfeAlbertForMaskedLM).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="encoder weights are not in .*shared_parts"):
        HfeAlbertForMaskedLM.from_pretrained(tmp_path, shared_between_groups=part)


# ALBERT's tables 3 and 4, in millions. Not-shared with E = 768 is BERT itself there, without a projection to D.
@pytest.mark.parametrize(
    ("embedding_size", "fields", "millions"),
    [
        (128, {}, 12),
        (128, {"num_hidden_groups": 12, "shared_between_groups": "attention"}, 64),
        (128, {"num_hidden_groups": 12, "shared_between_groups": "feed_forward"}, 38),
        (128, {"num_hidden_groups": 12}, 89),
        (768, {}, 31),
        (768, {"num_hidden_groups": 12, "shared_between_groups": "attention"}, 83),
        (768, {"num_hidden_groups": 12, "shared_between_groups": "feed_forward"}, 57),
        (64, {}, 10),
        (64, {"num_hidden_groups": 12}, 87),
        (256, {}, 16),
        (256, {"num_hidden_groups": 12}, 93),
    ],
)
def test_parameters_are_as_many_as_in_the_papers_table(embedding_size: int, fields: dict, millions: int) -> None:
    with torch.device("meta"):
        model = HfeAlbertModel(HfeAlbertConfig.base(embedding_size=embedding_size, **fields))
    assert abs(model.num_parameters() / 1e6 - millions) < 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"shared_between_groups": "all"},
            "shared_between_groups='all' must be one of attention, feed_forward",
        ),
        (
            {"shared_between_groups": "attention", "num_hidden_groups": 1},
            "shared_between_groups='attention' with num_hidden_groups=1.*set num_hidden_groups=3.*or leave it out",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(HfeAlbertConfig, **fields)
