"""Token classification from several layers: what the classifier reads, exactly; and that nothing else changes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForTokenClassification, PreTrainedModel

from hf_encoders import HfeAlbertConfig, HfeBertConfig
from hf_encoders.models.encoder_attention import EncoderSelfAttention
from tests.models.tiny import (
    MASKED_LM,
    NO_DROPOUT,
    TOKEN_CLASSIFIERS,
    packed,
    right_padded,
    tiny_config,
    tiny_model,
)


each_family = pytest.mark.parametrize("model_class", TOKEN_CLASSIFIERS)
each_combination = pytest.mark.parametrize("combination", ["concatenation", "weighted_sum"])
CLASSES = 5
LAYERS = [-1, 0, 2]  # not in order: the classifier reads them in this one


def make(model_class: type[PreTrainedModel], combination: str, layers: list[int] = LAYERS, **fields: Any):
    options = {"combined_layers": layers, "layer_combination": combination, "num_labels": CLASSES}
    return tiny_model(model_class, **options, **NO_DROPOUT, **fields)


def expected_logits(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """By hand, from the hidden states that the base model returns."""
    states = model.base_model(**batch, output_hidden_states=True).hidden_states
    chosen = [states[layer] for layer in model.config.combined_layers]
    if model.config.layer_combination == "concatenation":
        return model.classifier(torch.cat(chosen, dim=-1))
    weights = model.layer_combination.weights.exp() / model.layer_combination.weights.exp().sum()
    return model.classifier(torch.einsum("k,kbtd->btd", weights, torch.stack(chosen)))


@each_family
@each_combination
def test_classifier_reads_the_chosen_layers(model_class: type[PreTrainedModel], combination: str) -> None:
    model = make(model_class, combination)
    batch = right_padded(model.config)
    is_token = batch["attention_mask"] == 1
    with torch.no_grad():
        logits = model(**batch).logits
        expected = expected_logits(model, batch)
    torch.testing.assert_close(logits[is_token], expected[is_token])
    assert not logits[~is_token].any()
    width = model.config.hidden_size * (3 if combination == "concatenation" else 1)
    assert model.classifier.in_features == width


@each_family
def test_alberts_groups_of_several_layers_count_one_by_one(model_class: type[PreTrainedModel]) -> None:
    """-1 is the last layer: that of the default, whatever a layer is called."""
    inner = {"inner_group_num": 3} if model_class.config_class is HfeAlbertConfig else {}
    model = make(model_class, "concatenation", [-1], **inner)
    plain = tiny_model(model_class, num_labels=CLASSES, **NO_DROPOUT, **inner)
    plain.load_state_dict(model.state_dict())
    batch = right_padded(model.config)
    torch.testing.assert_close(model(**batch).logits, plain(**batch).logits)
    assert model.config.combined_layer_indices == [9 if inner else 3]


@each_family
def test_padding_is_not_computed(model_class: type[PreTrainedModel]) -> None:
    model = make(model_class, "concatenation")
    batch = right_padded(model.config)
    widths = []
    for module in model.modules():
        if isinstance(module, EncoderSelfAttention):
            module.register_forward_pre_hook(lambda module, args: widths.append(args[0].shape[0]))
    model(**batch)
    assert set(widths) == {int(batch["attention_mask"].sum())}


@each_family
@each_combination
def test_padded_and_packed_train_alike(model_class: type[PreTrainedModel], combination: str) -> None:
    """Loss and every gradient, those of the weights of the sum too."""
    batch = right_padded(tiny_config(model_class.config_class))
    labels = (batch["input_ids"] % CLASSES).masked_fill(batch["attention_mask"] == 0, -100)
    gradients = []
    for rows in (batch, packed(batch)):
        model = make(model_class, combination).train()
        row_labels = labels if rows is batch else labels[batch["attention_mask"] == 1][None]
        loss = model(**rows, labels=row_labels).loss
        loss.backward()
        gradients.append({"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters()}})
    used = [name for name, value in gradients[0].items() if value is not None]
    assert "classifier.weight" in used
    assert ("layer_combination.weights" in used) == (combination == "weighted_sum")
    for name in used:
        torch.testing.assert_close(
            gradients[0][name], gradients[1][name], msg=lambda text, name=name: f"{name}: {text}"
        )


@each_family
def test_hidden_states_are_returned_only_if_asked_for(model_class: type[PreTrainedModel]) -> None:
    model = make(model_class, "weighted_sum")
    batch = right_padded(model.config)
    assert model(**batch).hidden_states is None
    full = model(**batch, output_hidden_states=True)
    assert len(full.hidden_states) == model.config.num_layers_passed + 1
    torch.testing.assert_close(full.logits, model(**batch).logits)
    some = model(**batch, output_hidden_states=[0])
    torch.testing.assert_close(some.hidden_states[0], full.hidden_states[0])
    model.config.output_hidden_states = True
    assert len(model(**batch).hidden_states) == model.config.num_layers_passed + 1


@each_family
def test_new_weights_of_the_sum_are_equal(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    """From a checkpoint without them, where parameters are built without memory and filled in afterwards."""
    masked = MASKED_LM[TOKEN_CLASSIFIERS.index(model_class)]
    tiny_model(masked).save_pretrained(tmp_path)
    fields = {"combined_layers": [1, 2, -1], "layer_combination": "weighted_sum"}
    model = model_class.from_pretrained(tmp_path, **fields)
    assert model.layer_combination.weights.tolist() == [0.0, 0.0, 0.0]
    assert isinstance(model.classifier, nn.Linear)


@each_family
@each_combination
def test_saved_and_loaded_again(model_class: type[PreTrainedModel], combination: str, tmp_path: Path) -> None:
    model = make(model_class, combination)
    model.save_pretrained(tmp_path)
    again = model_class.from_pretrained(tmp_path)
    batch = right_padded(model.config)
    torch.testing.assert_close(again(**batch).logits, model(**batch).logits, rtol=0, atol=0)
    assert again.config.combined_layers == LAYERS


@each_family
def test_plain_transformers_refuses_it(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    """Its class would read the last layer alone, or find a classifier of another width."""
    make(model_class, "weighted_sum").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == f"hfe_{model_class.config_class.model_type}"
    assert config["architectures"] == [model_class.__name__]
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        AutoModelForTokenClassification.from_pretrained(tmp_path, trust_remote_code=False)


def test_default_is_the_last_layer_as_in_transformers() -> None:
    config = tiny_config(HfeBertConfig)
    assert config.combined_layers is None
    assert config.is_native
    assert not tiny_config(HfeBertConfig, combined_layers=[-1]).is_native


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"combined_layers": []}, r"combined_layers=\[\] must name layers from 0 \(the embeddings\) to 3"),
        ({"combined_layers": [4]}, "must name layers from 0"),
        ({"combined_layers": [-5]}, "or from -1 .the last. to -4"),
        ({"combined_layers": [3, -1]}, "must name each layer once"),
        ({"layer_combination": "sum"}, "layer_combination='sum' must be one of concatenation, weighted_sum"),
    ],
)
def test_layers_that_are_not_there_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(HfeBertConfig, **fields)
