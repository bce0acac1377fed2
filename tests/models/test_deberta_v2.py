"""DeBERTa: distances beside transformers' class, the decoder of masked tokens, packed rows, published fields."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from hf_encoders import (
    HfeDebertaV2Config,
    HfeDebertaV2ForMaskedLM,
    HfeDebertaV2ForPreTraining,
    HfeDebertaV2Model,
)
from hf_encoders.models.encoder_disentangled import table_rows
from tests.models.tiny import packed


SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# What transformers' class has other defaults of.
V3 = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "layer_norm_eps": 1e-7,
    "legacy": False,
}
VARIANTS = {
    "published": {},
    "small buckets": {"position_buckets": 6, "max_position_embeddings": 40},
    "no buckets": {"position_buckets": -1, "max_relative_positions": 9},
    "own projections": {"share_att_key": False},
    "content to position": {"share_att_key": False, "pos_att_type": ["c2p"]},
    "position to content": {"pos_att_type": "p2c"},
    "no norm": {"norm_rel_ebd": "none"},
    "positions and types": {"position_biased_input": True, "type_vocab_size": 2, "max_position_embeddings": 700},
    "no distances": {"relative_attention": False, "pos_att_type": None},
    "head of v1": {"legacy": True},
}


def twins(**fields: Any) -> tuple[nn.Module, nn.Module]:
    """The same random weights in transformers' class and in ours, in float64."""
    torch.manual_seed(3)
    stock = transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**{**SIZES, **V3, **fields})).double()
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.3)
    model = HfeDebertaV2ForMaskedLM(HfeDebertaV2Config(**{**SIZES, **V3, **fields})).double()
    model.load_state_dict(stock.state_dict())
    return stock, model


def batch_of(length: int, padding: str, rows: int = 2) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(length)
    ids = torch.randint(1, SIZES["vocab_size"], (rows, length), generator=random)
    mask = torch.ones_like(ids)
    if padding == "inside":
        mask[0] = torch.arange(length) % 3 != 1
    elif padding != "none":
        mask[0, length // 3 :] = 0
    if padding == "left":
        mask = mask.flip(1)
    return {"input_ids": ids * mask, "attention_mask": mask}


def make_decoder_model(**fields: Any) -> HfeDebertaV2ForMaskedLM:
    torch.manual_seed(4)
    sizes = {**SIZES, "position_buckets": 6, "max_position_embeddings": 40, "initializer_range": 0.3}
    return HfeDebertaV2ForMaskedLM(HfeDebertaV2Config(**{**sizes, "enhanced_mask_decoder": True, **fields})).double()


@pytest.mark.parametrize(("buckets", "limit"), [(256, 512), (6, 40), (2, 512), (32, 17), (-1, 30)])
def test_distances_fall_into_the_buckets_of_transformers(buckets: int, limit: int) -> None:
    config = HfeDebertaV2Config(position_buckets=buckets, max_relative_positions=limit)
    states = torch.zeros(1, 1300, 1)
    expected = build_relative_position(states, states, buckets, limit)[0] + config.distance_span
    rows = table_rows(config, 1300)
    i, j = torch.arange(1300)[:, None], torch.arange(1300)
    assert torch.equal(rows[i - j + 1299], expected.clamp(0, 2 * config.distance_span - 1))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", ["none", "right", "left", "inside"])
@pytest.mark.parametrize("length", [1, 2, 65, 128, 129, 257, 600])
def test_scores_are_those_of_transformers(length: int, padding: str, implementation: str) -> None:
    """Around the first logarithmic bucket, 129, and beyond the last one, 511. transformers' scale is of float32."""
    stock, model = twins()
    model.set_attn_implementation(implementation)
    batch = batch_of(length, padding)
    real = batch["attention_mask"].bool()
    found = [one.eval()(**batch).logits[real] for one in (model, stock)]
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_transformers(variant: str, padding: str) -> None:
    stock, model = twins(**VARIANTS[variant])
    batch = batch_of(53, padding)
    batch |= {"token_type_ids": batch["input_ids"] % 2, "labels": batch["input_ids"].clone()}
    batch["labels"][batch["attention_mask"] == 0] = -100
    batch["labels"][:, ::2] = -100
    for one in (stock, model):
        one(**batch).loss.backward()
    gradients = [dict(one.named_parameters()) for one in (model, stock)]
    assert gradients[0].keys() == gradients[1].keys()
    for name, parameter in gradients[0].items():
        expected = gradients[1][name].grad
        expected = torch.zeros_like(parameter) if expected is None else expected
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_columns_that_no_row_reaches_change_nothing(padding: str) -> None:
    """`pad_to_multiple_of`, and padding to the longest input."""
    _, model = twins()
    batch = batch_of(90, padding, rows=3)
    real = batch["attention_mask"].bool()
    pad = (0, 30) if padding == "right" else (30, 0)
    wider = {name: nn.functional.pad(value, pad) for name, value in batch.items()}
    expected, found = (one.detach() for one in (model(**batch).logits[real], model(**wider).logits))
    torch.testing.assert_close(found[wider["attention_mask"].bool()], expected, atol=1e-10, rtol=0)


def test_packed_rows_see_nothing_of_each_other() -> None:
    _, model = twins()
    batch = batch_of(40, "right", rows=3)
    inputs = packed(batch)
    real = batch["attention_mask"].bool()
    together = model(**inputs).logits[0]
    torch.testing.assert_close(together, model(**batch).logits[real], atol=1e-10, rtol=0)
    bound = int(inputs["cu_seq_lens_q"][1])
    inputs["input_ids"][0, :bound] = 7
    assert torch.equal(model(**inputs).logits[0, bound:], together[bound:])


# --- the decoder of masked tokens ---


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("padding", ["none", "right", "left", "inside"])
def test_the_decoder_is_the_last_layer_twice_from_positions(padding: str, layers: int) -> None:
    """Written out with transformers' layers, which take other queries: the rule of `EnhancedMaskDecoder`."""
    model = make_decoder_model(num_hidden_layers=layers).eval()
    fields = {**SIZES, **V3, "num_hidden_layers": layers, "position_buckets": 6, "max_position_embeddings": 40}
    stock = transformers.DebertaV2Model(transformers.DebertaV2Config(**fields)).double().eval()
    weights = {name.removeprefix("deberta."): value for name, value in model.state_dict().items()}
    positions = weights.pop("embeddings.position_embeddings.weight")
    stock.load_state_dict({name: value for name, value in weights.items() if name in stock.state_dict()})

    batch = batch_of(31, padding)
    states = stock(**batch, output_hidden_states=True).hidden_states[-2]
    queries, encoder = states + positions[:31], stock.encoder
    for _ in range(2):
        queries, _ = encoder.layer[-1](
            states,
            encoder.get_attention_mask(batch["attention_mask"]),
            query_states=queries,
            relative_pos=encoder.get_rel_pos(states),
            rel_embeddings=encoder.get_rel_embedding(),
        )
    head, real = model.lm_predictions.lm_head, batch["attention_mask"].bool()
    transformed = nn.functional.layer_norm(
        nn.functional.gelu(nn.functional.linear(queries, head.dense.weight, head.dense.bias)),
        (16,), head.LayerNorm.weight, head.LayerNorm.bias, 1e-7,
    )  # fmt: skip
    expected = transformed @ stock.embeddings.word_embeddings.weight.T + head.bias
    torch.testing.assert_close(model(**batch).logits[real], expected[real], atol=1e-6, rtol=1e-6)

    labels = torch.where(real & (torch.arange(31) % 5 == 2), batch["input_ids"], -100)
    nll = nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten())
    for mode in (True, False):  # training asks at the predicted tokens only
        torch.testing.assert_close(model.train(mode)(**batch, labels=labels).loss, nll, atol=1e-6, rtol=1e-6)


def test_the_decoder_gives_packed_rows_what_it_gives_padded_ones() -> None:
    model, batch = make_decoder_model(), batch_of(30, "right", rows=3)
    batch["labels"] = torch.where(batch["attention_mask"].bool(), batch["input_ids"], -100)
    batch["labels"][:, ::3] = -100
    losses, gradients = [], []
    for inputs in (batch, packed(batch)):
        model.zero_grad()
        losses.append(model.train()(**inputs).loss)
        losses[-1].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(losses[0], losses[1], atol=1e-10, rtol=0)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-9, rtol=0)


def test_the_decoder_reads_the_positions_that_are_given() -> None:
    model, batch = make_decoder_model().eval(), batch_of(12, "none")
    columns = torch.arange(12).expand(2, -1)
    expected = model(**batch).logits
    assert torch.equal(model(**batch, position_ids=columns).logits, expected)
    assert not torch.allclose(model(**batch, position_ids=columns + 5).logits, expected)
    for arguments in ({"attention_mask": torch.ones(2, 1, 12, 12)}, {"is_causal": True}):
        with pytest.raises(
            ValueError, match=r"(attention_mask of 4|is_causal=True).*pass attention_mask of shape \(B, T"
        ):
            model(batch["input_ids"], **arguments)
    with pytest.raises(ValueError, match="max_position_embeddings=40 allows 40"):
        model(**batch_of(41, "none"))


def test_the_decoder_has_gradients_without_predicted_tokens() -> None:
    """Another process may have some, and waits for them."""
    model, batch = make_decoder_model(), batch_of(12, "right")
    model.train()(**batch, labels=torch.full_like(batch["input_ids"], -100)).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_generator_is_no_model_of_plain_transformers(tmp_path) -> None:
    model = make_decoder_model().float().eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="custom code"):
        transformers.AutoConfig.from_pretrained(tmp_path)
    again = HfeDebertaV2ForMaskedLM.from_pretrained(tmp_path)
    batch = batch_of(9, "none")
    assert torch.equal(again(**batch).logits, model(**batch).logits)


# --- the head of discriminators ---


def test_detection_reads_a_token_and_the_first_one() -> None:
    """Written out: `mask_predictions` of the published files."""
    torch.manual_seed(5)
    model = HfeDebertaV2ForPreTraining(HfeDebertaV2Config(**SIZES, initializer_range=0.3)).eval()
    batch = batch_of(20, "left", rows=3)
    states = model.deberta(**batch).last_hidden_state
    head, first = model.mask_predictions, batch["attention_mask"].argmax(dim=1)
    joined = head.LayerNorm(states[torch.arange(3), first][:, None] + states)
    expected = (nn.functional.gelu(joined @ head.dense.weight.T + head.dense.bias) @ head.classifier.weight.T)[..., 0]
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(model(**batch).logits[real], (expected + head.classifier.bias)[real])
    torch.testing.assert_close(model(**packed(batch)).logits[0], model(**batch).logits[real])


# --- configurations and files ---


def test_published_files_are_read_as_they_are_meant() -> None:
    """Fields of microsoft/deberta-v3-base; and of a file of transformers' defaults, which are v1's."""
    published = {
        "model_type": "deberta-v2",
        "position_buckets": 256,
        "relative_attention": True,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "max_relative_positions": -1,
        "position_biased_input": False,
        "type_vocab_size": 0,
        "vocab_size": 128100,
    }
    assert HfeDebertaV2Config.from_dict(published).to_dict() == HfeDebertaV2Config().to_dict()
    plain = transformers.DebertaV2Config(hidden_size=24, num_attention_heads=3)
    ours = HfeDebertaV2Config.from_dict(plain.to_dict())
    assert (ours.relative_attention, ours.position_biased_input, ours.legacy) == (False, True, True)
    assert (ours.position_buckets, ours.norm_rel_ebd, ours.share_att_key) == (-1, "none", False)
    # Before transformers had the field `legacy`, its class saved the head of v1.
    old = {
        **published,
        "architectures": ["DebertaV2ForMaskedLM"],
        "norm_rel_ebd": "Layer_Norm",
        "attention_head_size": 64,
    }
    read = HfeDebertaV2Config.from_dict(old)
    assert read.legacy and read.norm_rel_ebd == "layer_norm"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size=3: the convolution of v2 is not built: use transformers' own"),
        ({"embedding_size": 8}, "embedding_size=8: embeddings of another width"),
        ({"attention_head_size": 16}, "attention_head_size=16: heads of another width"),
        ({"position_buckets": 1}, "position_buckets=1 must be at least 2"),
        ({"pos_att_type": "p2p"}, "pos_att_type=.*must be of c2p, p2c"),
        ({"norm_rel_ebd": "batch"}, "norm_rel_ebd='batch' must be layer_norm or none"),
        ({"pooler_dropout": 1.0}, r"pooler_dropout=1.0 must be a probability in \[0, 1\)"),
        ({"generator_depth": 0}, r"generator_depth=0 must be a share of the layers, in \(0, 1\]"),
        (
            {"enhanced_mask_decoder": True, "position_biased_input": True},
            "enhanced_mask_decoder=True needs position_biased_input=False",
        ),
    ],
)
def test_fields_that_are_not_built_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HfeDebertaV2Config(**{**SIZES, **fields})


def test_more_positions_leave_the_buckets_as_they_were() -> None:
    config = HfeDebertaV2Config(**SIZES)
    before = table_rows(config, 700)
    config.max_position_embeddings = 2048
    assert torch.equal(table_rows(config, 700), before)
    assert not config.LIMITS_LENGTH and HfeDebertaV2Config(position_biased_input=True).LIMITS_LENGTH
    assert HfeDebertaV2Config(enhanced_mask_decoder=True).LIMITS_LENGTH


def test_texts_longer_than_few_positions_are_read() -> None:
    config = HfeDebertaV2Config(**SIZES, max_position_embeddings=32)  # with buckets for 128
    stock = transformers.DebertaV2Model(transformers.DebertaV2Config.from_dict(config.to_dict())).eval()
    model = HfeDebertaV2Model(config).eval()
    model.load_state_dict(stock.state_dict())
    batch = batch_of(90, "none")
    found = [one(**batch).last_hidden_state for one in (model, stock)]
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [50, 70])
def test_the_published_head_gets_the_entries_of_another_vocabulary(size: int) -> None:
    """transformers' class resizes a dense layer instead, and fails in its next forward pass."""
    _, model = twins()
    batch = batch_of(9, "none")
    batch["input_ids"] %= 50
    before = model.eval()(**batch).logits
    model.resize_token_embeddings(size)
    found = model.eval()(**batch, labels=batch["input_ids"])
    assert found.logits.shape[-1] == size and found.loss.isfinite()
    kept = min(size, 61)
    torch.testing.assert_close(found.logits[..., :kept], before[..., :kept])


def test_an_encoder_in_bfloat16_computes_nearly_the_same() -> None:
    torch.manual_seed(6)
    model = HfeDebertaV2Model(HfeDebertaV2Config(**SIZES, position_buckets=6)).eval()
    batch = batch_of(40, "right")
    expected = model(**batch).last_hidden_state
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**batch).last_hidden_state
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.1)
