"""Language embeddings: what a model that has them reads, and what it refuses."""

import inspect
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hf_encoders import (
    HfeXLMForMultipleChoice,
    HfeXLMForQuestionAnsweringSimple,
    HfeXLMForSequenceClassification,
    HfeXLMForTokenClassification,
    HfeXLMModel,
    HfeXLMWithLMHeadModel,
)
from tests.models.tiny import LANGUAGES, packed, right_padded
from tests.models.tiny import tiny_model as tiny_model_of_any


HEADS = (
    HfeXLMModel,
    HfeXLMWithLMHeadModel,
    HfeXLMForSequenceClassification,
    HfeXLMForTokenClassification,
    HfeXLMForQuestionAnsweringSimple,
    HfeXLMForMultipleChoice,
)


def tiny_model(model_class: type[PreTrainedModel], **fields: Any) -> PreTrainedModel:
    return tiny_model_of_any(model_class, **LANGUAGES | fields)


each_head = pytest.mark.parametrize("model_class", HEADS)


def batch_of(model_class: type[PreTrainedModel], config: Any) -> dict[str, torch.Tensor]:
    """Padded rows, for the choice head as choices of one example; tokens of all three languages."""
    batch = right_padded(config)
    batch["langs"] = torch.arange(batch["input_ids"].numel()).view_as(batch["input_ids"]) % 3
    return {name: value[None] for name, value in batch.items()} if model_class is HfeXLMForMultipleChoice else batch


@each_head
def test_inputs_without_a_language_are_refused_where_there_is_no_default(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class, default_lang=None)
    batch = batch_of(model_class, model.config)
    model(**batch)
    del batch["langs"]
    with pytest.raises(
        ValueError, match=r"langs is None, .* 3 languages: pass .*config\.lang2id.*config\.default_lang"
    ):
        model(**batch)


@each_head
def test_the_default_is_that_language_for_every_token(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class, default_lang="de")  # 2
    batch = batch_of(model_class, model.config)
    told = model(**{**batch, "langs": torch.full_like(batch["langs"], 2)})[0]
    other = model(**{**batch, "langs": torch.full_like(batch["langs"], 1)})[0]
    del batch["langs"]
    torch.testing.assert_close(model(**batch)[0], told)
    assert not torch.allclose(told, other)


@each_head
@pytest.mark.parametrize("wrong", [3, -1])
def test_languages_out_of_range_are_refused(model_class: type[PreTrainedModel], wrong: int) -> None:
    model = tiny_model(model_class)
    batch = batch_of(model_class, model.config)
    batch["langs"].view(-1)[1] = wrong
    with pytest.raises(ValueError, match=rf"langs holds {wrong}, outside of \[0, 2\] \(n_langs=3\): take .*lang2id"):
        model(**batch)


def test_a_language_is_needed_for_each_token() -> None:
    model = tiny_model(HfeXLMModel)
    batch = batch_of(HfeXLMModel, model.config)
    with pytest.raises(ValueError, match=r"langs has shape \(3, 5\): pass one per token, of shape \(3, 7\)"):
        model(**{**batch, "langs": batch["langs"][:, :5]})


def test_packed_rows_have_the_languages_of_their_tokens() -> None:
    model = tiny_model(HfeXLMWithLMHeadModel)
    batch = batch_of(HfeXLMWithLMHeadModel, model.config)
    padded = model(**batch).logits[batch["attention_mask"] == 1]
    torch.testing.assert_close(model(**packed(batch)).logits[0], padded, atol=1e-5, rtol=1e-5)


def test_relative_positions_take_languages_too() -> None:
    model = tiny_model(HfeXLMModel, position_embedding_type="relative_key")
    batch = batch_of(HfeXLMModel, model.config)
    padded = model(**batch).last_hidden_state[batch["attention_mask"] == 1]
    torch.testing.assert_close(model(**packed(batch)).last_hidden_state[0], padded, atol=1e-5, rtol=1e-5)


@each_head
def test_languages_are_the_third_argument_as_in_transformers(model_class: type[PreTrainedModel]) -> None:
    names = list(inspect.signature(model_class.forward).parameters)
    assert names[1:6] == ["input_ids", "attention_mask", "langs", "token_type_ids", "position_ids"]
    model = tiny_model(model_class)
    batch = batch_of(model_class, model.config)
    torch.testing.assert_close(model(*batch.values())[0], model(**batch)[0])


def test_trainer_keeps_the_column(tmp_path: Any) -> None:
    trainer = Trainer(tiny_model(HfeXLMWithLMHeadModel), TrainingArguments(str(tmp_path), report_to="none"))
    trainer._set_signature_columns_if_needed()
    assert "langs" in trainer._signature_columns and "labels" in trainer._signature_columns


@pytest.mark.parametrize("name", ["lengths", "cache"])
def test_arguments_of_a_decoder_are_refused(name: str) -> None:
    model = tiny_model(HfeXLMModel)
    with pytest.raises(ValueError, match=f"takes no {name!r}"):
        model(**batch_of(HfeXLMModel, model.config), **{name: torch.tensor([7, 4, 2])})


def test_new_embeddings_have_the_deviation_of_the_original_code() -> None:
    """emb_dim ** -0.5, of 20,000 x 16 numbers within 1 % (8 standard errors)."""
    config = HfeXLMModel.config_class(vocab_size=20_000, emb_dim=16, n_layers=1, n_heads=2, n_langs=2)
    model = HfeXLMModel(config)
    assert config.embed_init_std == 0.25
    assert model.embeddings.weight.std().item() == pytest.approx(0.25, rel=0.01)
    assert not model.embeddings.weight[config.pad_token_id].any()
    assert model.lang_embeddings.weight.std().item() == pytest.approx(0.25, rel=0.5)


def test_sinusoidal_positions_are_those_of_transformers() -> None:
    import transformers

    sizes = {"emb_dim": 14, "n_heads": 2, "n_layers": 1, "vocab_size": 20, "max_position_embeddings": 33}
    ours = HfeXLMModel(HfeXLMModel.config_class(sinusoidal_embeddings=True, **sizes))
    stock = transformers.XLMModel(transformers.XLMConfig(sinusoidal_embeddings=True, **sizes))
    torch.testing.assert_close(ours.position_embeddings.weight, stock.position_embeddings.weight)
    assert ours.position_embeddings.weight.requires_grad
