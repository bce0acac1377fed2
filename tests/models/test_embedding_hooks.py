"""Hooks on embeddings and modules around them; that they see what transformers' see is in `tests/parity/`."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainingArguments

from tests.models.tiny import BASE_MODELS, CLASSIFIERS, packed, right_padded, tiny_model


class Wrapper(nn.Module):
    """An embedding inside of another module, as adapters are."""

    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        self.embedding, self.shapes = embedding, []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.shapes.append(ids.shape)
        return self.embedding(ids)


@pytest.mark.parametrize("model_class", BASE_MODELS)
def test_a_module_around_the_embedding_sees_rows(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    batch = right_padded(model.config)
    expected = model(**batch).last_hidden_state
    wrapper = Wrapper(model.get_input_embeddings())
    model.set_input_embeddings(wrapper)
    torch.testing.assert_close(model(**batch).last_hidden_state, expected)
    assert wrapper.shapes == [batch["input_ids"].shape]


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("model_class", BASE_MODELS)
def test_a_hook_before_the_embedding_replaces_ids(model_class: type[PreTrainedModel], layout: str) -> None:
    model = tiny_model(model_class)
    batch = right_padded(model.config)
    batch = packed(batch) if layout == "packed" else batch
    replaced = batch["input_ids"].flip(0).roll(1, 1)

    def replace(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        assert inputs[0].shape == replaced.shape
        return (replaced,)

    embeds = model.get_input_embeddings()(replaced)
    model.get_input_embeddings().register_forward_pre_hook(replace)
    # RoBERTa's positions count the ids that are given, so they stand for themselves here.
    shape = batch["input_ids"].shape
    positions = {} if model.config.model_type == "xlnet" else {"position_ids": torch.arange(shape[1]).expand(shape)}
    if layout == "packed":
        positions = {name: value.clamp(max=7) for name, value in positions.items()}
    expected = model(**{**batch, "input_ids": None}, inputs_embeds=embeds, **positions).last_hidden_state
    torch.testing.assert_close(model(**batch, **positions).last_hidden_state, expected)


@pytest.mark.parametrize("model_class", CLASSIFIERS)
def test_trainer_adds_noise_to_embeddings(model_class: type[PreTrainedModel], tmp_path: Any) -> None:
    model = tiny_model(model_class)
    batch = right_padded(model.config, (7, 4))
    rows = [{name: value[row] for name, value in batch.items()} | {"labels": row} for row in range(2)]
    arguments = {"max_steps": 1, "use_cpu": True, "report_to": "none", "save_strategy": "no", "neftune_noise_alpha": 5}
    trainer = Trainer(model, TrainingArguments(str(tmp_path), **arguments), train_dataset=rows)
    assert torch.tensor(trainer.train().training_loss).isfinite()
