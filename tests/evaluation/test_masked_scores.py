"""Scores of wanted tokens leave the model as it was, and threads can share it."""

import threading

import accelerate
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hf_encoders import fill_masks, pseudo_log_likelihoods
from hf_encoders.evaluation.pseudo_likelihood import evaluating, masked_token_scores
from tests.evaluation.models import SENTENCES, make_pair
from tests.hub.tiny_checkpoints import ALBERT, BERT


each_model = pytest.mark.parametrize(
    ("family", "is_stock"), [(family, stock) for family in (BERT, ALBERT) for stock in (True, False)]
)


def batch_of(model: PreTrainedModel, seed: int) -> dict[str, torch.Tensor]:
    """Two rows of six tokens, two of them wanted in each."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, model.config.vocab_size, (2, 6), generator=generator)
    is_wanted = torch.zeros_like(ids, dtype=torch.bool)
    is_wanted[:, torch.randperm(6, generator=generator)[:2]] = True
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "is_wanted": is_wanted}


@each_model
def test_a_model_in_training_is_evaluated_without_dropout_and_keeps_its_modes(family, is_stock):
    model, tokenizer = make_pair(family, is_stock)
    model.config.hidden_dropout_prob = 0.5
    expected = pseudo_log_likelihoods(model, tokenizer, SENTENCES)
    filled = fill_masks(model, tokenizer, f"The {tokenizer.mask_token} sat.")
    model.train()
    model.get_submodule("embeddings" if model.base_model is model else f"{model.base_model_prefix}.embeddings").eval()
    modes = [module.training for module in model.modules()]
    hooks = [dict(module._forward_pre_hooks) for module in model.modules()]
    np.testing.assert_allclose(pseudo_log_likelihoods(model, tokenizer, SENTENCES), expected, rtol=0, atol=1e-5)
    assert fill_masks(model, tokenizer, f"The {tokenizer.mask_token} sat.") == filled
    assert [module.training for module in model.modules()] == modes
    assert [dict(module._forward_pre_hooks) for module in model.modules()] == hooks


@each_model
def test_many_threads_get_what_one_gets(family, is_stock):
    model, tokenizer = make_pair(family, is_stock)
    expected = pseudo_log_likelihoods(model, tokenizer, SENTENCES)
    model.train()
    found = {}

    def score(number):
        text = number % len(SENTENCES)
        found[number] = pseudo_log_likelihoods(model, tokenizer, [SENTENCES[text]])[0] - expected[text]

    threads = [threading.Thread(target=score, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 24 and model.training
    np.testing.assert_allclose(list(found.values()), 0.0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("wrap", ["compiled forward", "compiled model", "compiled part", "accelerate"])
def test_what_others_put_around_a_model_is_evaluated_too(wrap):
    model, _ = make_pair(BERT, is_stock=True)
    batch = batch_of(model, 3)
    expected = masked_token_scores(model, **batch)
    model.train()
    wrapped = model
    if wrap == "compiled forward":
        model.forward = torch.compile(model.forward, backend="eager")
    elif wrap == "compiled model":
        wrapped = torch.compile(model, backend="eager")
    elif wrap == "compiled part":
        model.bert = torch.compile(model.bert, backend="eager")
    else:
        accelerate.cpu_offload(model, execution_device="cpu")
    with evaluating(wrapped):
        found = masked_token_scores(wrapped, **batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert model.training and all(parameter.is_meta for parameter in model.parameters()) == (wrap == "accelerate")
