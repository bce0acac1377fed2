"""Next tokens: what is predicted, that nothing after a token is seen, transformers' decoders with the same weights."""

import numpy as np
import pytest
import torch
import transformers

from hf_encoders import DataCollatorForMaskedLM, DataCollatorForReplacedTokenDetection, get_objective
from hf_encoders.objectives.dataset import Example
from hf_encoders.objectives.randomness import Key
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.registration import config_class_of
from tests.commands.adapt_runs import adapt, checkpoint, write_texts
from tests.families import model_class, model_classes
from tests.models.tiny import NO_DROPOUT, tiny_model
from tests.training.tiny import make_tokenizer


MLM_CLASSES = {each.config_class.model_type: each for each in model_classes("AutoModelForMaskedLM")}


def test_each_token_predicts_the_next_one_of_its_text():
    """Ids 2 and 3 are [CLS] and [SEP] of the tokenizer: the last token predicts [SEP], and [SEP] nothing."""
    tokenizer = make_tokenizer()
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    collator = DataCollatorForMaskedLM(tokenizer, next_token=True)
    first, second = [np.array([10, 11, 12])], [np.array([13]), np.array([14])]
    examples = [Example(first, Key(0, 0, 0)), Example(second, Key(0, 0, 1))]
    batch = collator(examples)
    assert batch["is_causal"] is True
    assert batch["input_ids"].tolist() == [[cls, 10, 11, 12, sep], [cls, 13, sep, 14, sep]]
    assert batch["labels"].tolist() == [[10, 11, 12, sep, -100], [13, sep, -100, sep, -100]]
    assert "is_causal" not in DataCollatorForMaskedLM(tokenizer)(examples)
    assert get_objective("clm").make_collator(tokenizer, None)(examples)["is_causal"] is True


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("family", MLM_CLASSES)
def test_a_change_of_a_token_changes_nothing_before_it(family, kernel):
    """Exactly; padded on either side, and packed, where another text sees nothing of it at all."""
    model = tiny_model(MLM_CLASSES[family]).eval()
    model.set_attn_implementation(kernel)
    ids = torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    left = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9])
    for inputs in (
        {"input_ids": ids},
        {"input_ids": ids, "attention_mask": left},
        {"input_ids": ids, "attention_mask": left.flip(1)},
        {"input_ids": ids.view(1, -1), "cu_seq_lens_q": torch.tensor([0, 9, 18])},
    ):
        real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        before = model(**inputs, is_causal=True).logits
        assert before.isfinite().all()
        for token in (3, 8):
            changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
            changed["input_ids"][0, token] = 41 - changed["input_ids"][0, token]
            after = model(**changed, is_causal=True).logits
            assert torch.equal(before[0, :token][real[0, :token]], after[0, :token][real[0, :token]])
            if real[0, token]:
                assert not torch.equal(before[0, token], after[0, token])
            assert torch.equal(before[0, 9:], after[0, 9:]) and torch.equal(before[1:], after[1:])
        assert not torch.equal(before, model(**inputs).logits)


def test_a_compiled_model_sees_nothing_later_either():
    model = tiny_model(MLM_CLASSES["bert"]).eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10]]), "cu_seq_lens_q": torch.tensor([0, 6])}
    expected = model(**inputs, is_causal=True).logits
    compiled = torch.compile(model)
    torch.testing.assert_close(compiled(**inputs, is_causal=True).logits, expected)


def test_gradients_of_padded_rows_are_those_of_each_row():
    model = tiny_model(MLM_CLASSES["bert"], **NO_DROPOUT).train()
    ids = torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 9, [1] * 4 + [0] * 5])
    labels = torch.where(mask.bool(), ids, -100)
    together = model(ids, attention_mask=mask, labels=labels, is_causal=True, num_items_in_batch=13).loss
    gradients = torch.autograd.grad(together, list(model.parameters()), allow_unused=True)
    alone = sum(
        model(ids[i : i + 1, :n], labels=labels[i : i + 1, :n], is_causal=True, num_items_in_batch=13).loss
        for i, n in ((0, 9), (1, 4))
    )
    expected = torch.autograd.grad(alone, list(model.parameters()), allow_unused=True)
    for found, wanted in zip(gradients, expected, strict=True):
        assert found is None or (found.isfinite().all() and torch.allclose(found, wanted, atol=1e-6))


def test_bert_is_transformers_decoder():
    ours = tiny_model(MLM_CLASSES["bert"]).eval()
    config = transformers.BertConfig(**{**ours.config.to_dict(), "is_decoder": True})
    theirs = transformers.BertLMHeadModel(config).eval()
    missing = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not missing.unexpected_keys and not missing.missing_keys
    ids = torch.randint(5, 40, (2, 11), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(ids, is_causal=True).logits, theirs(ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [6, 40])
def test_modernbert_is_transformers_decoder(length):
    """Its window has one key less: a token and `sliding_window - 1` before it."""
    ours = tiny_model(MLM_CLASSES["modernbert"], local_attention=8, max_position_embeddings=64).eval()
    fields = {name: value for name, value in ours.config.to_dict().items() if value is not None}
    fields |= {"local_attention": 10, "bos_token_id": 1, "eos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1}
    del fields["model_type"]
    config = transformers.ModernBertDecoderConfig(**fields)
    theirs = transformers.ModernBertDecoderForCausalLM(config).eval()
    weights = {}
    for name, value in ours.state_dict().items():
        if "Wqkv" in name:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                weights[name.replace("Wqkv", f"{part}_proj")] = rows
        else:
            weights[name.replace("head.", "lm_head.", 1) if name.startswith("head.") else name] = value
    missing = theirs.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and not missing.missing_keys, missing
    ids = torch.randint(5, 40, (2, length), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(ids, is_causal=True).logits, theirs(ids).logits, atol=1e-5, rtol=0)


def test_what_next_tokens_refuse():
    with pytest.raises(ValueError, match="next_token=True: DataCollatorForReplacedTokenDetection .* leave it out"):
        DataCollatorForReplacedTokenDetection(make_tokenizer(), next_token=True)
    collator = DataCollatorForMaskedLM(make_tokenizer(), phase_masking=[{"next_token": True}, {}])
    examples = [Example([np.array([10, 11])], Key(0, 0, i), phase=i) for i in (1, 2)]
    with pytest.raises(ValueError, match="with and without next_token are in one batch"):
        collator(examples)
    model = tiny_model(MLM_CLASSES["bert"])
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="is_causal=True and attn_implementation='flex_attention'.*'sdpa' or 'eager'"):
        model(torch.tensor([[5, 6]]), is_causal=True)
    xlnet = tiny_model(model_class(config_class_of("xlnet"), "AutoModelForPreTraining"))
    with pytest.raises(ValueError, match="is_causal=True: XLNet's order .*: pass order="):
        xlnet(torch.tensor([[5, 6]]), is_causal=True)
    with pytest.raises(ValueError, match=r"attention_mask .*with is_causal it must be of shape \(B, T\)"):
        tiny_model(MLM_CLASSES["bert"])(torch.tensor([[5, 6]]), torch.ones(1, 1, 2, 2), is_causal=True)


def test_the_card_of_a_run_on_next_tokens(tmp_path):
    write_texts(tmp_path)
    assert adapt(tmp_path, checkpoint(tmp_path, "bert"), "run", "--set", "objective=clm") == 0
    record = TrainingRecord.load(tmp_path / "run" / "model")
    assert record.objectives == {
        "causal language modelling": "the next token of each, from those before it (`is_causal=True`)"
    }
    assert {entry["task"] for entry in record.evaluation} == {"text-generation"}
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "It fills no [MASK]" in card and "words that were replaced" not in card
