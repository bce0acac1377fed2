"""Packed batches: the examples of padded ones, and what models make of them."""

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM, RobertaForMaskedLM

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    HfeAlbertForPreTraining,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeRobertaForMaskedLM,
    SentenceBlocks,
)
from tests.corpus.corpora import make_dataset, random_documents
from tests.models.tiny import NO_DROPOUT, tiny_model
from tests.training.three_steps import PAIR_LABELS


LENGTH = 24
OBJECTIVES = {
    "mlm": (HfeRobertaForMaskedLM, DataCollatorForMaskedLM, SentenceBlocks),
    "nsp": (HfeBertForPreTraining, DataCollatorForNextSentencePrediction, DocumentChunks),
    "sop": (HfeAlbertForPreTraining, DataCollatorForSentenceOrderPrediction, DocumentChunks),
}


def both_batches(tokenizer, objective, first_position=None, **options):
    """The same eleven examples padded and packed."""
    _, collator_class, dataset_class = OBJECTIVES[objective]
    dataset = dataset_class(make_dataset(random_documents(30)), LENGTH, redraw=False)
    examples = dataset.__getitems__(range(11))
    padded = collator_class(tokenizer, **options)(examples)
    return padded, collator_class(tokenizer, packed=True, first_position=first_position, **options)(examples)


def make_model(objective, implementation="sdpa", dtype=torch.float32):
    sizes = {"vocab_size": 60, "pad_token_id": 0, "max_position_embeddings": LENGTH + 3, **NO_DROPOUT}
    model = tiny_model(OBJECTIVES[objective][0], **sizes).to(dtype)
    model.set_attn_implementation(implementation)
    return model


@pytest.mark.parametrize(("objective", "unit"), [("mlm", "ngram"), ("nsp", "token"), ("sop", "ngram")])
def test_examples_are_those_of_the_padded_batch(make_tokenizer, objective, unit):
    options = {"unit": unit}
    if unit == "ngram":
        options["word_starts"] = lambda tokenizer: lambda ids, begins_text: (ids % 3 != 0) | begins_text
    padded, packed = both_batches(make_tokenizer(60), objective, **options)
    is_real = padded["attention_mask"].bool()
    lengths = is_real.sum(dim=1)
    assert len(set(lengths.tolist())) > 1
    for name in {"input_ids", "labels", "token_type_ids"} & padded.keys():
        assert torch.equal(packed[name], padded[name][is_real][None])
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert packed[name].dtype == torch.int32 and torch.equal(packed[name], bounds)
    assert type(packed["max_length_q"]) is int
    assert packed["max_length_q"] == packed["max_length_k"] == int(lengths.max())
    expected = {*padded, "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"} - {"attention_mask"}
    assert packed.keys() == expected and ("token_type_ids" in packed) == (objective != "mlm")
    if PAIR_LABELS[objective]:
        assert torch.equal(packed[PAIR_LABELS[objective]], padded[PAIR_LABELS[objective]])


def test_a_lone_sentence_has_one_separator_and_no_second_segment(tokenizer):
    collator = DataCollatorForSentenceOrderPrediction(tokenizer, max_length=16, packed=True)
    batch = collator([{"input_ids": [[10, 11]]}, {"input_ids": [[10], [11]]}])
    assert batch["cu_seq_lens_q"].tolist() == [0, 4, 9]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 0, 0, 1, 1]]
    assert batch["sentence_order_label"].tolist()[0] == -100


def test_plain_rows_are_packed(tokenizer):
    rows = [
        {"input_ids": [1, 7, 2, 8, 2], "token_type_ids": [0, 0, 0, 1, 1]},
        {"input_ids": [1, 7, 2, 0], "token_type_ids": [0] * 4, "attention_mask": [1, 1, 1, 0]},
    ]
    rows[0]["attention_mask"] = [1] * 5
    batch = DataCollatorForMaskedLM(tokenizer, packed=True, mask_probability=1e-9)(rows)
    found = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
    assert found.tolist() == [[1, 7, 2, 8, 2, 1, 7, 2]] and batch["cu_seq_lens_q"].tolist() == [0, 5, 8]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 0, 0, 0]]


def test_a_packed_row_is_masked_at_the_rate_of_its_examples(tokenizer):
    examples = SentenceBlocks(make_dataset(random_documents(60)), 64, redraw=False).__getitems__(range(9))
    high = DataCollatorForMaskedLM(tokenizer, packed=True, mask_probability=0.4)
    low = DataCollatorForMaskedLM(tokenizer, packed=True, mask_probability=0.1)(examples)
    for example in examples:
        example.mask_rate = 0.1
    found = high(examples)
    assert found.keys() == low.keys()
    assert all(torch.equal(found[name], low[name]) for name in ("input_ids", "labels"))


def test_settings_that_contradict_each_other_are_refused(tokenizer):
    for collator_class in (DataCollatorForMaskedLM, DataCollatorForNextSentencePrediction):
        with pytest.raises(ValueError, match="pad_to_multiple_of=8: a packed batch has no padding"):
            collator_class(tokenizer, packed=True, pad_to_multiple_of=8)
        with pytest.raises(ValueError, match="first_position=-1"):
            collator_class(tokenizer, packed=True, first_position=-1)


def outputs_and_gradients(model, batch):
    """Loss, states and scores of each real token, scores of each pair, gradient of each parameter."""
    model.zero_grad()
    outputs = model(**batch, output_hidden_states=True)
    outputs.loss.backward()
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    scores = outputs.logits if "logits" in outputs else outputs.prediction_logits
    found = {"loss": outputs.loss, "scores": scores[mask]}
    found |= {f"states {i}": states[mask] for i, states in enumerate(outputs.hidden_states)}
    for name in {"seq_relationship_logits", "sop_logits"} & outputs.keys():
        found["pairs"] = outputs[name]
        inputs = {name: value for name, value in batch.items() if "label" not in name}
        found["pooled"] = model.base_model(**inputs).pooler_output
    found |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.detach().clone() for name, value in found.items()}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("implementation", "dtype", "tolerance"),
    [("sdpa", torch.float32, 1e-5), ("sdpa", torch.float64, 1e-10), ("eager", torch.float64, 1e-10)],
)
def test_packed_equals_padded(tokenizer, objective, implementation, dtype, tolerance):
    """Also with positions written by the collator, which begin at `pad_token_id + 1` for RoBERTa."""
    model = make_model(objective, implementation, dtype)
    first_position = model.base_model.embeddings.first_position
    assert first_position == (1 if objective == "mlm" else 0)
    padded, packed = both_batches(tokenizer, objective)
    _, with_positions = both_batches(tokenizer, objective, first_position)
    expected = outputs_and_gradients(model, padded)
    assert "pooled" in expected or objective == "mlm"
    for batch in (packed, with_positions):
        found = outputs_and_gradients(model, batch)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_other_sequences_of_the_row_have_no_influence(tokenizer, objective, implementation):
    model = make_model(objective, implementation)
    _, packed = both_batches(tokenizer, objective)
    inputs = {name: value for name, value in packed.items() if "label" not in name}
    begin, end = packed["cu_seq_lens_q"][3:5].tolist()
    changed = inputs["input_ids"].clone()
    changed[0, begin:end] = torch.randint(5, 60, (end - begin,))
    with torch.no_grad():
        before, after = (model.base_model(**{**inputs, "input_ids": ids}) for ids in (inputs["input_ids"], changed))
    difference = (before.last_hidden_state - after.last_hidden_state)[0].abs().amax(dim=1)
    others = torch.cat([difference[:begin], difference[end:]])
    assert float(others.max()) < 1e-6 and float(difference[begin:end].min()) > 1e-5
    if before.pooler_output is not None:
        pooled = (before.pooler_output - after.pooler_output).abs().amax(dim=1)
        assert float(pooled[3]) > 1e-5 and float(np.delete(pooled.numpy(), 3).max()) < 1e-6


@pytest.mark.parametrize(
    ("ours", "theirs"), [(HfeBertForMaskedLM, BertForMaskedLM), (HfeRobertaForMaskedLM, RobertaForMaskedLM)]
)
def test_transformers_models_leak_where_these_do_not(tokenizer, ours, theirs):
    """Same parameters, same packed row, positions given: sdpa of transformers attends over the whole row."""
    model = tiny_model(ours, vocab_size=60, pad_token_id=0, max_position_embeddings=LENGTH + 3, **NO_DROPOUT)
    stock = theirs(theirs.config_class.from_dict(model.config.to_dict())).eval()
    stock.load_state_dict(model.state_dict(), strict=True)
    padded, _ = both_batches(tokenizer, "mlm")
    _, packed = both_batches(tokenizer, "mlm", model.base_model.embeddings.first_position)
    inputs = [{name: value for name, value in batch.items() if name != "labels"} for batch in (padded, packed)]
    with torch.no_grad():
        reference = stock(**inputs[0]).logits[padded["attention_mask"].bool()]
        leaked, isolated = stock(**inputs[1]).logits[0], model(**inputs[1]).logits[0]
    assert float((isolated - reference).abs().max()) < 1e-5
    assert float((leaked - reference).abs().max()) > 1e-3
