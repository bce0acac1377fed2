"""LoRA adapters of PEFT: trained, saved, loaded and merged; no shortcut of ours computes past one.

The models call a linear's kernel directly where that saves time or memory. With an adapter in its place they must not.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from hf_encoders import HfeAlbertForPreTraining
from tests.models.tiny import BASE_MODELS, CLASSIFIERS, MASKED_LM, NO_DROPOUT, PRETRAINING, right_padded, tiny_model


PRETRAINED = (*MASKED_LM, *PRETRAINING)
# Attention of linears; that of XLNet, here and in transformers, has plain parameters, which adapters pass by.
ADAPTED = tuple(one for one in CLASSIFIERS if one.config_class.model_type != "xlnet")
# Of classifiers, in families that give it a default of its own.
HEAD_WITHOUT_DROPOUT = {
    "albert": {"classifier_dropout_prob": 0.0},
    "xlm": {"summary_first_dropout": 0.0},
    "distilbert": {"seq_classif_dropout": 0.0},
}


def linear_names(model: nn.Module) -> list[str]:
    """Every linear of a model; ALBERT's layers once, as it has them."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def projections_of(model: nn.Module) -> tuple[str, ...]:
    """What the family calls the linears of queries, keys and values; ModernBERT's are one."""
    names = next(module.projections for module in model.modules() if hasattr(module, "projections"))
    return names or ("Wqkv",)


def decoder_of(model: PreTrainedModel) -> list[str]:
    """Name of the linear to the vocabulary, where there is one."""
    return [name for name, module in model.named_modules() if module is model.get_output_embeddings()]


def head_of(model: PreTrainedModel) -> str:
    """Name of what is new in a classifier."""
    return "classifier" if hasattr(model, "classifier") else "sequence_summary"


def batch_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Three rows with padding and labels for everything the model is trained with."""
    batch = right_padded(model.config)
    if type(model) in CLASSIFIERS:
        return {**batch, "labels": torch.tensor([1, 0, 1])}
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    if type(model) in PRETRAINING:
        name = "sentence_order_label" if isinstance(model, HfeAlbertForPreTraining) else "next_sentence_label"
        batch[name] = torch.tensor([0, 1, 1])
    return batch


def with_adapters(model: PreTrainedModel, targets: list[str] | str, **fields: Any) -> PeftModel:
    """Adapters of rank 2 that already change the outputs."""
    torch.manual_seed(2)
    return get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False, **fields))


def assert_none_is_bypassed(model_class: type[PreTrainedModel], kind: str, dtype: torch.dtype) -> None:
    """The loss is that of the merged model, which has plain linears; each adapter has a gradient."""
    fields = NO_DROPOUT | HEAD_WITHOUT_DROPOUT.get(model_class.config_class.model_type, {})
    model = tiny_model(model_class, tie_word_embeddings=False, **fields).to(dtype)
    batch, names = batch_of(model), linear_names(model)
    targets = [name for name in names if kind in ("every", name.rpartition(".")[2])]
    adapted = with_adapters(model, targets).train()
    loss = adapted(**batch).loss
    loss.backward()
    trained = {name: p.grad for name, p in adapted.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * len(targets)
    assert all(gradient is not None and gradient.any() for gradient in trained.values())

    merged = adapted.merge_and_unload().train()
    assert linear_names(merged) == names
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(merged(**batch).loss, loss, atol=tolerance, rtol=tolerance)
    merged.config._attn_implementation = "eager"
    torch.testing.assert_close(merged.eval()(**batch).loss, loss, atol=tolerance, rtol=tolerance)


IN_16_BITS = [(model_class, torch.bfloat16) for model_class in PRETRAINING]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_class", "dtype"), [*((kind, torch.float32) for kind in (*PRETRAINED, *ADAPTED)), *IN_16_BITS]
)
def test_no_adapter_is_bypassed(model_class: type[PreTrainedModel], dtype: torch.dtype) -> None:
    """With one on every linear, and with one on all linears of one name: those beside them are still ours alone."""
    model = tiny_model(model_class)
    names = linear_names(model)
    kinds = {name.rpartition(".")[2] for name in names}
    assert kinds > set(projections_of(model))
    assert model_class in CLASSIFIERS or set(decoder_of(model)) <= set(names)
    for kind in ["every", *sorted(kinds)]:
        assert_none_is_bypassed(model_class, kind, dtype)


@pytest.mark.parametrize("model_class", [*MASKED_LM, *ADAPTED])
def test_a_few_steps_train_the_adapters_alone(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    model = tiny_model(model_class, **NO_DROPOUT)
    batch = batch_of(model)
    model.save_pretrained(tmp_path / "base")
    frozen = {name: value.clone() for name, value in model.named_parameters()}
    is_classifier = model_class in CLASSIFIERS
    head = head_of(model)
    task = {"task_type": "SEQ_CLS", "modules_to_save": [head]} if is_classifier else {}
    targets = [name for name in linear_names(model) if name not in decoder_of(model) and head not in name]
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets, **task)).train()
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in trained.items()}
    optimiser = torch.optim.AdamW(trained.values(), lr=0.01)
    losses = []
    for _ in range(4):
        loss = adapted(**batch).loss
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < losses[0]
    assert all(not torch.equal(value, trained[name]) for name, value in before.items())
    for name, value in adapted.get_base_model().named_parameters():
        if "lora_" not in name and not (is_classifier and head in name):
            assert torch.equal(value, frozen[name.replace(".base_layer", "")]), name

    adapted.eval().save_pretrained(tmp_path / "adapter")
    assert_loaded_and_merged(model_class, adapted, batch, tmp_path)


def assert_loaded_and_merged(
    model_class: type[PreTrainedModel], adapted: PeftModel, batch: dict[str, torch.Tensor], folder: Path
) -> None:
    """The saved adapter gives the same on a fresh base, by our own `from_pretrained`, and merged into the weights."""
    saved = load_file(folder / "adapter/adapter_model.safetensors")
    assert all("lora_" in name or head_of(adapted.get_base_model()) in name for name in saved)
    expected = adapted(**batch).logits
    again = PeftModel.from_pretrained(model_class.from_pretrained(folder / "base"), folder / "adapter").eval()
    assert torch.equal(again(**batch).logits, expected)
    assert not torch.allclose(again.get_base_model().eval()(**batch).logits, 0 * expected)

    merged = again.merge_and_unload()
    merged.save_pretrained(folder / "merged")
    loaded, report = model_class.from_pretrained(folder / "merged", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    torch.testing.assert_close(loaded(**batch).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_an_adapter_folder_is_loaded_by_name(tmp_path: Path) -> None:
    """transformers finds the base model that the adapter names; what either of the two lacks is an error."""
    for model_class in MASKED_LM:
        folder = tmp_path / model_class.__name__
        tiny_model(model_class).save_pretrained(folder / "base")
        base = model_class.from_pretrained(folder / "base")
        adapted = with_adapters(base, [*projections_of(base)[::2]]).eval()
        adapted.save_pretrained(folder / "adapter")
        batch = right_padded(adapted.config)
        loaded = model_class.from_pretrained(folder / "adapter").eval()
        assert isinstance(loaded, model_class)
        assert torch.equal(loaded(**batch).logits, adapted(**batch).logits)
        plain = model_class.from_pretrained(folder / "base")
        assert not torch.allclose(loaded(**batch).logits, plain(**batch).logits, atol=1e-3)

        weights = folder / "adapter/adapter_model.safetensors"
        tensors = {name: value.clone() for name, value in load_file(weights).items()}
        save_file(dict(list(tensors.items())[1:]), weights, metadata={"format": "pt"})
        with pytest.raises(ValueError, match="1 of .* weights are not in .*lora_"):
            model_class.from_pretrained(folder / "adapter")
        (folder / "base/model.safetensors").write_bytes(b"")
        with pytest.raises(OSError, match="base/model.safetensors is empty"):
            model_class.from_pretrained(folder / "adapter")


@pytest.mark.parametrize("adapted", ["rank", "tokens", "copy"])
@pytest.mark.parametrize("model_class", BASE_MODELS)
def test_an_adapter_of_the_word_embedding(model_class: type[PreTrainedModel], adapted: str) -> None:
    model = tiny_model(model_class)
    batch = right_padded(model.config)
    expected = model(**batch).last_hidden_state
    (name,) = (name for name, module in model.named_modules() if module is model.get_input_embeddings())
    layers = linear_names(model)[-1:]
    options = {
        "rank": {"target_modules": [name], "init_lora_weights": False},
        "tokens": {"target_modules": layers, "trainable_token_indices": {name: [3, 4]}},
        "copy": {"target_modules": layers, "modules_to_save": [name]},
    }
    model = get_peft_model(model, LoraConfig(r=2, **options[adapted]))
    outputs = model(**batch).last_hidden_state
    assert outputs.shape == expected.shape and torch.equal(outputs, expected) == (adapted != "rank")
    outputs.sum().backward()
    with pytest.raises(ValueError, match="input_ids holds .*vocab_size"):
        model(batch["input_ids"] + model.config.vocab_size)
    with pytest.raises(ValueError, match="inputs_embeds has shape"):
        model(inputs_embeds=torch.zeros(1, 2, 3))
