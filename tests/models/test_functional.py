"""`torch.func.grad`, which takes torch's own operations for ours, gives the gradients of `backward()`."""

import pytest
import torch
from torch.func import functional_call, grad
from transformers import PreTrainedModel

from tests.models.tiny import (
    CLASSIFIERS,
    HEAD_DROPOUTS,
    LM_HEADS,
    MASKED_LM,
    NO_DROPOUT,
    PRETRAINING,
    TOKEN_CLASSIFIERS,
    right_padded,
    tiny_model,
)


def labelled(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A padded batch with all labels that the head takes."""
    batch = right_padded(model.config)
    if isinstance(model, CLASSIFIERS):
        return {**batch, "labels": torch.tensor([0, 1, 1])}
    highest = model.config.num_labels if isinstance(model, TOKEN_CLASSIFIERS) else model.config.vocab_size
    labels = batch["input_ids"].remainder(highest).masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, ::2] = -100
    pair = {model.loss_terms["pair"]: torch.tensor([1, 0, -100])} if isinstance(model, PRETRAINING) else {}
    return {**batch, **pair, "labels": labels}


@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING, *LM_HEADS, CLASSIFIERS[0], TOKEN_CLASSIFIERS[0]])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_functional_gradients_are_those_of_backward(model_class: type[PreTrainedModel], implementation: str) -> None:
    model = tiny_model(model_class, **NO_DROPOUT, **dict.fromkeys(HEAD_DROPOUTS, 0.0)).train()
    model.set_attn_implementation(implementation)
    batch, parameters = labelled(model), dict(model.named_parameters())
    found = grad(lambda weights: functional_call(model, weights, (), batch).loss)(parameters)
    model(**batch).loss.backward()
    for name, parameter in parameters.items():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("model_class", MASKED_LM)
def test_functional_gradients_with_dropout_are_repeated_by_the_seed(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class).train()
    batch, parameters = labelled(model), dict(model.named_parameters())
    norms = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found = grad(lambda weights: functional_call(model, weights, (), batch).loss)(parameters)
        norms.append(torch.stack([gradient.norm() for gradient in found.values()]).norm().item())
    assert norms[0] == norms[1] != norms[2]
