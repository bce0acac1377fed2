"""The question-answering loss with and without padding in its softmax."""

import pytest
import torch
from transformers import PreTrainedModel

from tests.models.tiny import NO_DROPOUT, QUESTION_ANSWERING, right_padded, tiny_model


POSITIONS = {"start_positions": torch.tensor([4, 1, 0]), "end_positions": torch.tensor([6, 3, 0])}


@pytest.mark.parametrize("model_class", QUESTION_ANSWERING)
def test_loss_without_padding_is_the_mean_of_the_rows_alone(model_class: type[PreTrainedModel]) -> None:
    """Each row cut to its own length: no padding anywhere; and so are all gradients."""
    model = tiny_model(model_class, **NO_DROPOUT)
    batch = right_padded(model.config)
    together = model(**batch, **POSITIONS, span_loss_over_padding=False).loss
    together.backward()
    used = {name: parameter for name, parameter in model.named_parameters() if parameter.grad is not None}
    gradients = {name: parameter.grad.clone() for name, parameter in used.items()}
    model.zero_grad()
    losses = []
    for row, length in enumerate(batch["attention_mask"].sum(dim=1)):
        labels = {name: value[row : row + 1] for name, value in POSITIONS.items()}
        losses.append(model(batch["input_ids"][row : row + 1, :length], **labels).loss)
    alone = torch.stack(losses).mean()
    alone.backward()
    torch.testing.assert_close(together, alone)
    for name, parameter in used.items():
        torch.testing.assert_close(gradients[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("model_class", QUESTION_ANSWERING)
def test_default_goes_over_padding_as_in_transformers(model_class: type[PreTrainedModel]) -> None:
    """A column of padding more, and the loss of the same rows is another."""
    model = tiny_model(model_class, **NO_DROPOUT)
    batch = right_padded(model.config)
    longer = {
        "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 1), value=model.config.pad_token_id),
        "attention_mask": torch.nn.functional.pad(batch["attention_mask"], (0, 1)),
    }
    assert abs(model(**batch, **POSITIONS).loss - model(**longer, **POSITIONS).loss) > 1e-3
    losses = [model(**rows, **POSITIONS, span_loss_over_padding=False).loss for rows in (batch, longer)]
    torch.testing.assert_close(*losses)
