"""XLNet's two streams: what reaches a prediction, layouts, and wrong inputs. Equality with transformers: parity."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import DataCollatorForPermutationLanguageModeling

import hf_encoders
from hf_encoders import HfeXLNetLMHeadModel, HfeXLNetModel
from hf_encoders.models.encoder_losses import IGNORED
from hf_encoders.objectives.batch import batch
from hf_encoders.objectives.plm import DataCollatorForPermutationLM
from hf_encoders.objectives.randomness import Key
from tests.hub.tiny_checkpoints import FAMILIES, make_tokenizer
from tests.models.test_errors import assert_refused
from tests.models.tiny import NO_DROPOUT, packed, right_padded, tiny_model, token_ids


XLNET = next(family for family in FAMILIES if family.name == "xlnet")


def permuted(lengths: tuple[int, ...], first: tuple[int, ...] | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    """Padded rows of a tiny model's ids, `<sep>` and `<cls>` at their ends, permuted as in pre-training."""
    tokenizer, random, rows = make_tokenizer(XLNET), np.random.default_rng(seed), []
    collator = DataCollatorForPermutationLM(tokenizer, predicted_one_in=3)
    for number, length in enumerate(lengths):
        ids = random.integers(9, len(tokenizer), length)
        ids[-2:] = tokenizer.sep_token_id, tokenizer.cls_token_id
        row = {"input_ids": ids, "token_type_ids": np.arange(length) >= length // 2}
        rows.append(collator.arguments(row, first[number] if first else 0, Key(seed, 0, number)))
    is_reversed = torch.tensor([row.pop("is_reversed") for row in rows])
    return {**batch(rows, {"input_ids": 1, "labels": IGNORED}), "is_reversed": is_reversed}


def tiny_lm(**fields: Any) -> HfeXLNetLMHeadModel:
    return tiny_model(HfeXLNetLMHeadModel, vocab_size=len(make_tokenizer(XLNET)), **fields)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_no_prediction_reaches_its_own_token_or_a_later_one(implementation: str) -> None:
    """By gradients with respect to the embeddings of the input, through 3 layers, for every target of 100 rows.

    And each is reached by every token before it, unless there is none.
    """
    model = tiny_lm(**NO_DROPOUT).double()
    model.set_attn_implementation(implementation)
    batch = permuted((11,) * 100, tuple(np.arange(100) % 2 * 5))
    is_target = batch["labels"] != IGNORED
    embeddings = model.get_input_embeddings()(batch.pop("input_ids")).detach().requires_grad_()
    logits = model(inputs_embeds=embeddings, **batch, return_logits=True).logits.sum(dim=-1)
    order, number = batch["order"], 0
    for slot in range(int(is_target.sum(dim=1).max())):
        # One target of each row at a time: rows do not see each other.
        rows = (is_target.sum(dim=1) > slot).nonzero().squeeze(1)
        places = torch.stack([is_target[row].nonzero().squeeze(1)[slot] for row in rows])
        (found,) = torch.autograd.grad(logits[rows, places].sum(), embeddings, retain_graph=True)
        reached = found[rows].abs().sum(dim=-1) > 0
        assert torch.equal(reached, order[rows] < order[rows, places][:, None])
        number += len(rows)
    assert number > 250


def test_the_data_collator_of_transformers_leaks_where_it_does_not_hide() -> None:
    """Its order with true tokens in the input, as XLNet is trained: separators carry targets to themselves."""
    tokenizer = make_tokenizer(XLNET)
    collator = DataCollatorForPermutationLanguageModeling(tokenizer, plm_probability=1 / 3)
    torch.manual_seed(0)
    rows = torch.randint(9, len(tokenizer), (40, 12))
    rows[:, 5] = rows[:, -2] = tokenizer.sep_token_id
    rows[:, -1] = tokenizer.cls_token_id
    batch = collator([{"input_ids": row} for row in rows])
    assert (batch["input_ids"] == tokenizer.mask_token_id).any()  # what it does: no target sees another one
    config = tiny_lm(**NO_DROPOUT).config
    stock = transformers.XLNetModel(transformers.XLNetConfig.from_dict(config.to_dict())).eval()
    embeddings = stock.get_input_embeddings()(rows).detach().requires_grad_()
    inputs = {"perm_mask": batch["perm_mask"], "target_mapping": batch["target_mapping"]}
    states = stock(inputs_embeds=embeddings, **inputs).last_hidden_state.sum(dim=-1)
    leaks = []
    for row, place in (batch["labels"] != IGNORED).nonzero()[:60].tolist():
        (found,) = torch.autograd.grad(states[row, place], embeddings, retain_graph=True)
        leaks.append(bool(found[row, place].any()))
    assert np.mean(leaks) > 0.1  # with more separators and layers more: 1,214 of 1,360 at length 512 and 12


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padded_packed_and_alone_are_one(implementation: str) -> None:
    model = tiny_lm(**NO_DROPOUT).train()
    model.set_attn_implementation(implementation)
    batch = permuted((11, 6, 9), (5, 0, 4))
    flags = batch.pop("is_reversed")
    assert flags.any() and not flags.all()
    count = int((batch["labels"] != IGNORED).sum())
    flipped = {name: value.flip(1) for name, value in batch.items()}
    inputs = [
        [{**batch, "is_reversed": flags}],
        [{**batch, "is_reversed": flags, "keep_padding": True}],
        [{**packed(batch), "is_reversed": flags}],
        [{**{n: v[row : row + 1] for n, v in batch.items()}, "is_reversed": flags[row : row + 1]} for row in range(3)],
        # From right to left is the other direction, and pads on the left.
        [{**flipped, "is_reversed": ~flags}],
    ]
    results = []
    for parts in inputs:
        model.zero_grad()
        losses = [model(**part, num_items_in_batch=count).loss for part in parts]
        sum(losses).backward()
        results.append([sum(losses), *(parameter.grad.clone() for parameter in model.parameters())])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=2e-5, rtol=1e-4)


def test_gradient_checkpointing_and_16_bits() -> None:
    batch = permuted((11, 6, 9), (5, 0, 4))
    model = tiny_lm(**NO_DROPOUT).train()
    model(**batch).loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**batch).loss.backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(**batch)
    assert rounded.loss.dtype == torch.float32
    assert rounded.loss.item() == pytest.approx(model(**batch).loss.item(), abs=0.1)


def test_the_first_of_an_order_has_an_empty_context_instead_of_all() -> None:
    """A row whose every token is ranked: its first prediction depends on nothing."""
    model = tiny_lm(**NO_DROPOUT)
    ids = token_ids(model.config, 1, 4)
    inputs = {"order": torch.tensor([[2, 1, 3, 4]]), "labels": torch.tensor([[IGNORED, 5, IGNORED, IGNORED]])}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        logits = [model(some, **inputs).logits[0, 1] for some in (ids, (ids + 3) % 20)]
        assert logits[0].isfinite().all() and torch.equal(*logits)


def test_every_parameter_has_a_gradient_without_targets_and_without_token_types() -> None:
    """Several processes wait for each; one segment is none."""
    batch = permuted((7, 6))
    model = tiny_lm().train()
    loss = model(**batch | {"labels": torch.full_like(batch["labels"], IGNORED)}).loss
    loss.backward()
    assert loss.item() == 0 and not any(parameter.grad.any() for parameter in model.parameters())
    segments = batch.pop("token_type_ids")
    model = tiny_lm(**NO_DROPOUT).train()
    loss = model(**batch).loss
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(loss, model.eval()(**batch).loss)
    torch.testing.assert_close(loss, model(**batch, token_type_ids=torch.ones_like(segments)).loss)


def test_one_order_is_that_of_all_rows() -> None:
    model, ids = tiny_lm(), token_ids(tiny_lm().config, 3, 4)
    order, labels = torch.tensor([[2, 0, 1, 0]]), torch.tensor([[5, IGNORED, 6, IGNORED]]).expand(3, -1)
    one, each = (model(ids, order=given, labels=labels) for given in (order, order.expand(3, -1)))
    torch.testing.assert_close(one.loss, each.loss)


def test_rows_without_a_token_have_a_summary_of_zeros() -> None:
    model = tiny_model(hf_encoders.HfeXLNetForSequenceClassification)
    ids = token_ids(model.config, 2, 4)
    empty = model(ids, attention_mask=torch.zeros_like(ids)).logits
    half = model(ids, attention_mask=torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])).logits
    torch.testing.assert_close(half[1], empty[1])


def test_the_last_token_is_summarised_on_whichever_side_padding_is() -> None:
    model = tiny_model(hf_encoders.HfeXLNetForSequenceClassification)
    right = right_padded(model.config)
    left = {
        name: torch.stack([row.roll(7 - n) for row, n in zip(value, (7, 4, 2), strict=False)])
        for name, value in right.items()
    }
    expected = model(**right).logits
    for inputs in (left, packed(right), {**right, "keep_padding": True}):
        torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"perm_mask": torch.zeros(2, 5, 5)}, "perm_mask was given.*pass order, one integer per token"),
        ({"target_mapping": torch.zeros(2, 1, 5)}, "target_mapping was given.*pass order, and labels"),
        ({"mems": [torch.zeros(1)]}, "mems was given.*memory, which is not built"),
        ({"input_mask": torch.zeros(2, 5)}, "input_mask was given.*pass attention_mask"),
        ({"position_ids": torch.zeros(2, 5)}, "position_ids was given.*counts distances"),
        ({"order": torch.zeros(2, 4, dtype=torch.long)}, "order has shape .*pass one per token"),
        ({"order": torch.zeros(2, 5)}, "order has dtype torch.float32: pass integers"),
        ({"is_reversed": torch.ones(3, dtype=torch.bool)}, "is_reversed has shape .*pass one flag per sequence, 2"),
        ({"attention_mask": torch.ones(2, 1, 5, 5)}, "attention_mask has shape .*one flag per token; pass order"),
    ],
)
def test_wrong_inputs_are_named(inputs: dict[str, torch.Tensor], message: str) -> None:
    for model_class in (HfeXLNetModel, HfeXLNetLMHeadModel):
        model = tiny_model(model_class)
        assert_refused(model, message, input_ids=token_ids(model.config, 2, 5), **inputs)


def test_predictions_before_which_there_is_nothing_are_refused() -> None:
    model = tiny_lm()
    ids = token_ids(model.config, 1, 4)
    inputs = {"input_ids": ids, "order": torch.tensor([[0, 1, 0, 2]]), "labels": ids}
    assert_refused(model, "labels ask for the prediction of tokens of order 0", **inputs)
    base = tiny_model(HfeXLNetModel)
    message = "queries is for the LM head: give order and labels to HfeXLNetLMHeadModel"
    assert_refused(base, message, input_ids=ids, order=inputs["order"], queries=ids > 0)
    base.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="attn_implementation='flex_attention' cannot add distances"):
        base(ids)
