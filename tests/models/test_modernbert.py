"""ModernBERT: windows beside transformers' class, packed rows, published fields, sizes, initialisation."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from hf_encoders import (
    HfeModernBertConfig,
    HfeModernBertForMaskedLM,
    HfeModernBertForSequenceClassification,
    student_config,
    student_from,
)
from hf_encoders.runs.initial import extend_positions
from tests.models.tiny import packed


SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "max_position_embeddings": 1200,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def twins(auto_class: str, **fields: Any) -> tuple[nn.Module, nn.Module]:
    """The same random weights in transformers' class and in ours, in float64."""
    torch.manual_seed(3)
    ours = {"MaskedLM": HfeModernBertForMaskedLM, "SequenceClassification": HfeModernBertForSequenceClassification}
    theirs = getattr(transformers, f"ModernBertFor{auto_class}")
    stock = theirs(transformers.ModernBertConfig(**SIZES, **fields, attn_implementation="sdpa")).double()
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.3)
    model = ours[auto_class](HfeModernBertConfig(**SIZES, **fields)).double()
    model.load_state_dict(stock.state_dict())
    return stock, model


def batch_of(length: int, padding: str, rows: int = 2) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    if padding != "none":
        mask[0, length // 3 :] = 0
    if padding == "left":
        mask = mask.flip(1)
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("length", [5, 64, 65, 66, 129, 192, 200, 1100])
def test_windows_are_those_of_transformers(length: int, padding: str) -> None:
    """Logits and all gradients of a loss; a window of 128, which rows of up to 65 tokens do not feel.

    The loss is computed here: transformers computes it in float32. Rotations are of float32 in both, and so gradients.
    """
    batch, results = batch_of(length, padding), []
    for model in twins("MaskedLM"):
        logits = model(**batch).logits[batch["attention_mask"] == 1]
        loss = nn.functional.cross_entropy(logits, batch["input_ids"][batch["attention_mask"] == 1])
        loss.backward()
        results.append({"loss": loss.detach(), "logits": logits.detach()} | gradients(model))
    assert results[1]["logits"].sub(results[0]["logits"]).abs().max() < 1e-10
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-8)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("length", [5, 9, 10, 20, 21])
@pytest.mark.parametrize("window", [2, 4, 10])
def test_blocks_of_any_window(window: int, length: int) -> None:
    stock, model = twins("MaskedLM", local_attention=window)
    batch = batch_of(length, "right", rows=3)
    real = batch["attention_mask"] == 1
    torch.testing.assert_close(model(**batch).logits[real], stock(**batch).logits[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_left_padding_changes_no_class(pooling: str) -> None:
    """transformers reads row 0 for `cls`, padding or not: its scores of rows padded on the right are the right ones.

    To what float32 keeps of angles, which the rotations have.
    """
    stock, model = twins("SequenceClassification", classifier_pooling=pooling, num_labels=3)
    batch = batch_of(200, "right")
    expected = stock(**batch).logits
    torch.testing.assert_close(model(**batch).logits, expected, rtol=0, atol=1e-12)
    padding = (batch["attention_mask"] == 0).sum(dim=1).tolist()
    left = {
        name: torch.stack([row.roll(shift) for row, shift in zip(rows, padding, strict=True)])
        for name, rows in batch.items()
    }
    assert left["attention_mask"][0, 0] == 0
    torch.testing.assert_close(model(**left).logits, expected, rtol=0, atol=1e-7)


def test_packed_sequences_do_not_see_each_other() -> None:
    """Each is as if it were alone, and changing one changes nothing in the others."""
    _, model = twins("MaskedLM", local_attention=8)
    batch = batch_of(60, "right", rows=3)
    row = packed(batch)
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    found = model.eval()(**row).logits[0].split(lengths)
    for ids, length, logits in zip(batch["input_ids"], lengths, found, strict=True):
        torch.testing.assert_close(model(input_ids=ids[None, :length]).logits[0], logits, rtol=0, atol=1e-12)
    changed = row["input_ids"].clone()
    changed[0, : lengths[0]] = 7
    again = model(**{**row, "input_ids": changed}).logits[0].split(lengths)
    assert torch.equal(again[1], found[1]) and torch.equal(again[2], found[2])


def test_fields_of_published_folders_are_read() -> None:
    """Those of before transformers 5: thetas and layers by other names, and three that say nothing."""
    config = HfeModernBertConfig.from_dict(
        {
            "global_attn_every_n_layers": 2,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
            "reference_compile": True,
            "layer_norm_eps": 1e-5,
            "position_embedding_type": "absolute",
            "num_hidden_layers": 4,
            "classifier_pooling": "mean",
        }
    )
    assert config.layer_types == [FULL, SLIDING] * 2 and config.classifier_pooling == "mean"
    assert [config.rope_parameters[name]["rope_theta"] for name in (FULL, SLIDING)] == [160000.0, 10000.0]
    assert HfeModernBertConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


@pytest.mark.parametrize("same", [None, -1])
def test_a_local_theta_that_is_not_set_is_the_global_one(same: int | None) -> None:
    """In FlexBERT's first phase; taken for a number it gives NaN."""
    config = HfeModernBertConfig(**SIZES, local_rope_theta=same, global_rope_theta=10000.0)
    assert config.rope_parameters[SLIDING]["rope_theta"] == 10000.0
    assert HfeModernBertForMaskedLM(config)(torch.tensor([[5, 6, 7]])).logits.isfinite().all()


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("base", 149_014_272),
        ("large", 394_781_696),
        ("ettin_17m", 16_797_440),
        ("ettin_32m", 31_883_136),
        ("ettin_68m", 68_144_640),
        ("ettin_1b", 1_028_050_688),
        ("mmbert_small", 140_493_696),
        ("mmbert_base", 306_939_648),
    ],
)
def test_sizes_have_the_published_numbers_of_parameters(size: str, parameters: int) -> None:
    with torch.device("meta"):
        model = HfeModernBertForMaskedLM(getattr(HfeModernBertConfig, size)())
    assert model.model.num_parameters() == parameters


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": [FULL]}, "layer_types=.* one for each of 4 layers"),
        ({"local_attention": 1}, "local_attention=1 must be at least 2"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max' must be 'cls' or 'mean'"),
        ({"attention_output_dropout": 1.0}, "attention_output_dropout=1.0 must be a probability"),
        ({"num_attention_heads": 16}, "num_attention_heads=16 .* even width"),
        ({"type_vocab_size": 2}, "type_vocab_size=2: there are no token types: leave it out"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers=0 must be at least 1"),
        (
            {"rope_parameters": {"rope_theta": 500}},
            "rope_parameters={.* must be those of types of layers",
        ),
        (
            {"rope_parameters": {SLIDING: {"rope_theta": 0}}},
            "sliding_attention: rope_theta=0 must be",
        ),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HfeModernBertConfig(**{**SIZES, **fields})


def test_an_unknown_kind_of_rotations_is_refused() -> None:
    config = HfeModernBertConfig(**SIZES, rope_parameters={FULL: {"rope_type": "lineer"}})
    with pytest.raises(ValueError, match="full_attention: rope_type='lineer' must be one of default, "):
        HfeModernBertForMaskedLM(config)


def test_token_types_are_refused_with_the_remedy() -> None:
    model = HfeModernBertForMaskedLM(HfeModernBertConfig(**SIZES))
    with pytest.raises(ValueError, match="token_type_ids.*leave them out"):
        model(torch.tensor([[5, 6]]), token_type_ids=torch.tensor([[0, 1]]))


def test_initial_weights_are_narrower_on_the_way_out() -> None:
    """FlexBERT's: 0.02, and 0.02 / sqrt(2 layers) for what is added to the residual stream, cut at two deviations."""
    torch.manual_seed(0)
    model = HfeModernBertForMaskedLM(HfeModernBertConfig(**{**SIZES, "hidden_size": 128, "intermediate_size": 256}))
    cut = 0.8796  # standard deviation of a normal distribution cut at two
    layer = model.model.layers[1]
    for module, std in ((layer.attn.Wqkv, 0.02), (layer.mlp.Wi, 0.02), (layer.attn.Wo, 0.02 / 8**0.5)):
        assert module.weight.std().item() == pytest.approx(cut * std, rel=0.05)
        assert module.weight.abs().max().item() <= 2 * std
    assert layer.attn_norm.weight.eq(1).all() and model.decoder.bias.eq(0).all()
    assert model.model.embeddings.tok_embeddings.weight.std().item() == pytest.approx(cut * 0.02, rel=0.05)
    assert model.head.dense.weight.std().item() == pytest.approx(cut * 0.02 / 8**0.5, rel=0.05)


def test_longer_texts_than_it_was_trained_on_are_read_and_may_be_trained_on() -> None:
    _, model = twins("MaskedLM", local_attention=8)
    model.config.max_position_embeddings = 20
    batch = batch_of(60, "right")
    expected = model(**batch).logits
    extend_positions(model, 60)
    assert model.config.max_position_embeddings == 60
    assert torch.equal(model(**batch).logits, expected)


def test_hidden_states_are_those_of_transformers_the_last_after_its_norm() -> None:
    stock, model = twins("MaskedLM", local_attention=8)
    batch = batch_of(30, "none")
    found, expected = (one(**batch, output_hidden_states=True).hidden_states for one in (model, stock))
    assert len(found) == 5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_rows_of_padding_alone_are_zeros() -> None:
    _, model = twins("MaskedLM", local_attention=4)
    batch = batch_of(30, "none")
    states = model.model(**{**batch, "attention_mask": torch.zeros_like(batch["attention_mask"])}).last_hidden_state
    assert states.shape == (2, 30, 16) and not states.any()


def test_windows_are_computed_in_blocks_whatever_the_kernel_of_other_layers() -> None:
    _, model = twins("MaskedLM", local_attention=8, layer_types=[SLIDING] * 4)
    batch = batch_of(60, "right")
    expected = model(**batch).logits
    model.set_attn_implementation("flex_attention")
    assert torch.equal(model(**batch).logits, expected)


def test_a_student_has_the_windows_of_its_layers() -> None:
    _, teacher = twins("MaskedLM", local_attention=8)
    student = student_from(teacher, layers=[0, 3])
    assert teacher.config.layer_types == [FULL, SLIDING, SLIDING, FULL] and student.config.layer_types == [FULL, FULL]
    copied, original = student.model.layers[1].attn.Wo.weight, teacher.model.layers[3].attn.Wo.weight
    assert torch.equal(copied.float(), original.float())
    assert student_config(teacher.config, 2).layer_types == [FULL, SLIDING]
    for layers in ([1, 2], [0, 0]):
        with pytest.raises(ValueError, match="layers: . . must begin with 0 and not repeat it"):
            student_from(teacher, layers=layers)
    with pytest.raises(ValueError, match="layer_types=.*the teacher's layers have"):
        student_from(teacher, layers=[0, 3], layer_types=[FULL, SLIDING])


def test_a_dropout_that_only_training_has_leaves_the_folder_to_plain_transformers(tmp_path) -> None:
    model = HfeModernBertForMaskedLM(HfeModernBertConfig(**SIZES, attention_output_dropout=0.1)).eval()
    model.save_pretrained(tmp_path)
    stock = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(stock).__name__ == "ModernBertForMaskedLM"
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(stock(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
    assert HfeModernBertForMaskedLM.from_pretrained(tmp_path).config.attention_output_dropout == 0.1
