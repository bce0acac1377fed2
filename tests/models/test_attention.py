"""Relative positions, packed rows and the choice of kernels."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

from hf_encoders import HfeBertModel, HfeRobertaModel
from hf_encoders.models.encoder_attention import EncoderSelfAttention
from hf_encoders.models.encoder_tokens import flat_tokens
from tests.models.tiny import (
    ALL_MODELS,
    BASE_MODELS,
    DISCRIMINATORS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    RELATIVE_MASKED_LM,
    WITH_RELATIVE,
    packed,
    right_padded,
    tiny_config,
    tiny_model,
    token_ids,
)


RELATIVE = ("relative_key", "relative_key_query")
each_family = pytest.mark.parametrize("model_class", BASE_MODELS)
BLOCKS = ("bert", "albert", "distilbert", "xlm")  # kinds of block that have relative positions
each_relative_family = pytest.mark.parametrize(
    "model_class", [cls for cls in WITH_RELATIVE if cls.config_class.model_type in BLOCKS]
)
each_relative_type = pytest.mark.parametrize("position_embedding_type", RELATIVE)
each_kernel = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


def attention_pair_by_pair(attention: EncoderSelfAttention, hidden_states: torch.Tensor) -> torch.Tensor:
    """Relative attention of one sequence `(T, D)`, as transformers 4 had it, one einsum a pair of tokens."""
    length, heads, width = hidden_states.shape[0], attention.num_attention_heads, attention.attention_head_size
    query, key, value = (
        getattr(attention, name)(hidden_states).view(length, heads, width) for name in attention.projections
    )
    table = attention.distance_embedding.weight
    rows = []
    for i in range(length):
        scores = []
        for j in range(length):
            embedding = table[i - j + attention.config.max_position_embeddings - 1]
            score = torch.einsum("hd,hd->h", query[i], key[j]) + torch.einsum("hd,d->h", query[i], embedding)
            if attention.config.position_embedding_type == "relative_key_query":
                score = score + torch.einsum("hd,d->h", key[j], embedding)
            scores.append(score / width**0.5)
        rows.append(torch.einsum("jh,jhd->hd", torch.stack(scores).softmax(dim=0), value).flatten())
    return torch.stack(rows)


@each_relative_family
@each_kernel
@each_relative_type
@pytest.mark.parametrize("layout", ["full", "ragged", "packed", "masked"])
def test_relative_positions_are_the_formula(
    model_class: type[PreTrainedModel], implementation: str, position_embedding_type: str, layout: str
) -> None:
    model = tiny_model(model_class, position_embedding_type=position_embedding_type).double()
    model.set_attn_implementation(implementation)
    attention = next(module for module in model.modules() if isinstance(module, EncoderSelfAttention))
    lengths = [6, 6] if layout == "full" else [6, 4]
    mask = torch.arange(6)[None] < torch.tensor(lengths)[:, None]
    tokens = {
        "full": flat_tokens(2, 6, mask.device),
        "ragged": flat_tokens(2, 6, mask.device, mask),
        "masked": flat_tokens(2, 6, mask.device, mask, keep_padding=True),
        "packed": flat_tokens(1, 10, mask.device, cu_seq_lens=torch.tensor([0, 6, 10])),
    }[layout]
    sequences = [torch.randn(length, 18, dtype=torch.float64) for length in lengths]
    flat = torch.cat(sequences)
    if layout == "masked":
        flat = torch.cat([*sequences, torch.randn(2, 18, dtype=torch.float64)])
    got = EncoderSelfAttention.forward(attention, flat, tokens)[0][: sum(lengths)]
    expected = torch.cat([attention_pair_by_pair(attention, sequence) for sequence in sequences])
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)

    parameters = [getattr(attention, name).weight for name in attention.projections]
    parameters.append(attention.distance_embedding.weight)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((output * weights).sum(), parameters) for output in (got, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@each_relative_family
@each_relative_type
def test_relative_positions_replace_the_absolute_ones(
    model_class: type[PreTrainedModel], position_embedding_type: str
) -> None:
    model = tiny_model(model_class, position_embedding_type=position_embedding_type)
    assert not any("position_embeddings" in name for name, _ in model.named_parameters())
    assert any(name.endswith("distance_embedding.weight") for name, _ in model.named_parameters())
    # All rows of the table are for tokens: RoBERTa's padding id takes none.
    longest = token_ids(model.config, 1, 13)
    model(longest)
    with pytest.raises(ValueError, match="max_position_embeddings=13 allows 13"):
        model(token_ids(model.config, 1, 14))
    with pytest.raises(ValueError, match="max_position_embeddings=13 allows 13"):
        model(token_ids(model.config, 1, 14), position_ids=torch.zeros(1, 14, dtype=torch.long))


@pytest.mark.parametrize("position_embedding_type", ["absolute", *RELATIVE])
@each_kernel
@each_family
def test_padded_ragged_and_packed_are_one(
    model_class: type[PreTrainedModel], implementation: str, position_embedding_type: str
) -> None:
    model = tiny_model(model_class, position_embedding_type=position_embedding_type)
    model.set_attn_implementation(implementation)
    batch = right_padded(model.config)
    is_real = batch["attention_mask"] == 1
    weights = torch.randn(int(is_real.sum()), 18)
    results = []
    for inputs in (batch, {**batch, "keep_padding": True}, packed(batch)):
        outputs = model(**inputs)
        states = outputs.last_hidden_state
        states = states[0] if "cu_seq_lens_q" in inputs else states[is_real]
        model.zero_grad()
        pooled = outputs.pooler_output
        if pooled is None:  # XLM has no pooler
            pooled = states.new_zeros(1)
        ((states * weights).sum() + pooled.sum()).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        results.append([states, pooled, *gradients])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(other[:2], results[0][:2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position_embedding_type", ["absolute", "relative_key_query"])
@each_kernel
@pytest.mark.parametrize("model_class", ALL_MODELS)
def test_a_packed_row_is_its_sequences(
    model_class: type[PreTrainedModel], implementation: str, position_embedding_type: str
) -> None:
    model = tiny_model(model_class, position_embedding_type=position_embedding_type)
    model.set_attn_implementation(implementation)
    batch = right_padded(model.config, (5, 7, 1, 3))
    batch["token_type_ids"] = torch.randint(0, 2, batch["input_ids"].shape) % model.config.type_vocab_size
    inputs = packed(batch)
    rows = [
        {name: inputs[name][:, start:stop] for name in ("input_ids", "token_type_ids")}
        for start, stop in ((0, 5), (5, 12), (12, 13), (13, 16))
    ]
    if model_class in MULTIPLE_CHOICE:  # every sequence is a question with one choice
        inputs, *rows = (
            {name: value if name == "cu_seq_lens_q" else value[:, None] for name, value in row.items()}
            for row in (inputs, *rows)
        )
    together = model(**inputs, output_hidden_states=True)
    alone = [model(**row) for row in rows]
    for name in alone[0]:
        one_a_token = alone[0][name].dim() == 3 or model_class in (*QUESTION_ANSWERING, *DISCRIMINATORS)
        expected = torch.cat([output[name] for output in alone], dim=1 if one_a_token else 0)
        torch.testing.assert_close(together[name], expected, atol=1e-5, rtol=1e-5)
        if not one_a_token:
            assert len(together[name]) == 4
    assert together.hidden_states[-1].shape == (1, 16, 18)


def test_padding_ids_inside_a_packed_sequence_shift_only_its_own_positions() -> None:
    """RoBERTa counts tokens that are not padding: an id drawn at random may be the padding id."""
    model = tiny_model(HfeRobertaModel)
    batch = right_padded(model.config, (5, 4))
    batch["input_ids"][:, 2] = model.config.pad_token_id
    separate = torch.cat(
        [model(batch["input_ids"][row : row + 1, :n]).last_hidden_state[0] for row, n in ((0, 5), (1, 4))]
    )
    torch.testing.assert_close(model(**packed(batch)).last_hidden_state[0], separate, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_class", RELATIVE_MASKED_LM)
@each_relative_type
def test_relative_positions_survive_saving(
    model_class: type[PreTrainedModel], position_embedding_type: str, tmp_path: Path
) -> None:
    model = tiny_model(model_class, position_embedding_type=position_embedding_type)
    model.save_pretrained(tmp_path)
    again, info = model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert again.config.position_embedding_type == position_embedding_type
    assert again.config.model_type == model.config.model_type
    batch = right_padded(model.config)
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/config.json").read_text() == (tmp_path / "config.json").read_text()


@each_relative_family
def test_plain_transformers_refuses_relative_positions(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    tiny_model(model_class, position_embedding_type="relative_key").save_pretrained(tmp_path)
    model_type = f"hfe_{model_class.config_class.model_type}"
    for auto_class in (AutoConfig, AutoModel):
        with pytest.raises(ValueError, match=f"{model_type}|trust_remote_code"):
            auto_class.from_pretrained(tmp_path, trust_remote_code=False)


@pytest.mark.parametrize(
    ("fields", "mask", "message"),
    [
        ({"position_embedding_type": "relative_key"}, None, "position_embedding_type='relative_key'.*"),
        ({}, torch.ones(2, 1, 5, 5, dtype=torch.bool), "attention_mask is 4D.*"),
    ],
)
def test_kernels_without_additive_scores_refuse_what_needs_them(fields: dict, mask: Any, message: str) -> None:
    model = tiny_model(HfeBertModel, **fields)
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match=f"{message}attn_implementation='flex_attention'"):
        model(token_ids(model.config, 2, 5), attention_mask=mask)


def test_sdpa_on_a_cpu_runs_one_call_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(HfeBertModel)
    shapes = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def recorded(query: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        shapes.append(tuple(query.shape))
        return kernel(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    batch = right_padded(model.config, (7, 4, 2))
    model(**batch)
    assert shapes == [(1, 3, 7, 6), (1, 3, 4, 6), (1, 3, 2, 6)] * 3
    shapes.clear()
    model(batch["input_ids"])
    assert shapes == [(3, 3, 7, 6)] * 3


@each_family
def test_attention_weights_are_given_whatever_kernel_runs(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    batch = right_padded(model.config)
    by_sdpa = model(**batch, output_attentions=True)
    plain = model(**batch)
    assert len(by_sdpa.attentions) == (6 if model.config.model_type == "albert" else 3)
    for weights in by_sdpa.attentions:
        assert weights.shape == (3, 3, 7, 7)
        assert not weights[1, :, :, 4:].any()
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, 3, 7))
    torch.testing.assert_close(by_sdpa.last_hidden_state, plain.last_hidden_state, atol=1e-5, rtol=1e-5)
    assert plain.attentions is None


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="hidden_size=18 is not a multiple of num_attention_heads=4: change one"):
        HfeBertModel(tiny_config(HfeBertModel.config_class, num_attention_heads=4))
