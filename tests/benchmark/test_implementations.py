import pytest
import torch

from hf_encoders.benchmark.implementations import BASELINES, OURS, REFERENCE, make_implementations, modernbert_config
from hf_encoders.benchmark.measuring import inference_pass, training_pass
from hf_encoders.benchmark.rows import make_pool
from tests.benchmark.tiny import tiny_config, tiny_corpus, tiny_setting


def implementations_of(setting, tokenizer, dropout: float = 0.0):
    pool = make_pool(tiny_corpus(), tokenizer, setting)
    against = [name for name in ON_CPU if setting.objective == "mlm" or name != "modernbert"]
    config = tiny_config(setting.family, dropout)
    return make_implementations(config, setting, pool, tokenizer, against)


ON_CPU = ("eager", "grouped", "modernbert")
OBJECTIVES = [("bert", "mlm"), ("roberta", "mlm"), ("albert", "mlm"), ("bert", "nsp"), ("albert", "sop")]


@pytest.mark.parametrize(("family", "objective"), OBJECTIVES)
def test_all_compute_the_same_loss_and_gradients_of_the_same_rows(tokenizer, family, objective):
    # Room for pairs: without one in the batch, the loss of transformers' class is not a number.
    setting = tiny_setting(family, objective=objective, length=13 if objective == "mlm" else 40)
    implementations = implementations_of(setting, tokenizer)
    batches = implementations[0].batches
    losses, gradients = {}, {}
    for implementation in implementations:
        if implementation.name == BASELINES["modernbert"]:
            continue
        implementation.select_attention()
        implementation.optimizer.zero_grad()
        losses[implementation.name] = training_pass(implementation, batches[0].tensors, setting).item()
        gradients[implementation.name] = implementation.model.get_input_embeddings().weight.grad.clone()
    for name, loss in losses.items():
        assert loss == pytest.approx(losses[REFERENCE], abs=1e-5), name
        torch.testing.assert_close(gradients[name], gradients[REFERENCE], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_all_encode_the_same_rows_alike(tokenizer, family):
    implementations = implementations_of(tiny_setting(family, task="inference"), tokenizer, dropout=0.1)
    tensors = implementations[0].batches[0].tensors
    is_real = tensors["attention_mask"].bool()
    baseline = inference_pass(implementations[0], tensors)[is_real]
    assert "labels" not in tensors
    for implementation in implementations:
        if implementation.name != BASELINES["modernbert"]:
            implementation.select_attention()
            torch.testing.assert_close(inference_pass(implementation, tensors)[is_real], baseline, atol=1e-5, rtol=0)


def test_select_attention_changes_the_kernel_of_a_shared_model(tokenizer):
    sdpa, eager, *_ = implementations_of(tiny_setting(), tokenizer)
    assert sdpa.model is eager.model
    eager.select_attention()
    assert sdpa.model.config._attn_implementation == "eager"
    sdpa.select_attention()
    assert sdpa.model.config._attn_implementation == "sdpa"


def test_who_pads_and_how(tokenizer):
    implementations = implementations_of(tiny_setting(), tokenizer)
    assert [implementation.name for implementation in implementations] == [
        REFERENCE,
        *(BASELINES[name] for name in ON_CPU),
        OURS,
    ]
    assert [implementation.pads for implementation in implementations] == [True, True, True, True, False]
    tokens = {sum(batch.tokens for batch in implementation.batches) for implementation in implementations}
    predicted = {sum(batch.predicted for batch in implementation.batches) for implementation in implementations}
    assert len(tokens) == len(predicted) == 1


@pytest.mark.parametrize(("family", "objective"), OBJECTIVES)
def test_collators_make_the_same_rows_with_masks_of_their_own(tokenizer, family, objective):
    setting = tiny_setting(family, objective=objective)
    for implementation in implementations_of(setting, tokenizer):
        batch = implementation.batches[0]
        made = implementation.collate(batch.features)
        assert set(made) == set(batch.tensors)
        for name in ("attention_mask", "token_type_ids", setting.pair_label_name):
            if name in made:
                assert torch.equal(made[name], batch.tensors[name])
        unmasked = torch.where(made["labels"] == -100, made["input_ids"], made["labels"])
        padded = batch.tensors["labels"]
        assert torch.equal(unmasked, torch.where(padded == -100, batch.tensors["input_ids"], padded))


@pytest.mark.parametrize(("width", "layers", "heads"), [(256, 4, 4), (768, 12, 12)])
def test_modernbert_has_as_many_weights_in_a_layer(width, layers, heads):
    from transformers import AutoModel

    from hf_encoders import HfeBertConfig

    config = HfeBertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width
    )
    with torch.device("meta"):
        modern = AutoModel.from_config(modernbert_config(config, length=128))
    matrices = sum(p.numel() for name, p in modern.named_parameters() if p.dim() == 2 and "layers" in name)
    assert matrices == pytest.approx(layers * 12 * width**2, rel=0.01)
    assert modern.config.vocab_size == config.vocab_size and modern.config.num_hidden_layers == layers
