"""XLNet of this package against transformers' own: both streams, fine-tuning heads, on every real token."""

from typing import Any

import pytest
import torch

import hf_encoders
from hf_encoders.models.encoder_losses import IGNORED
from hf_encoders.objectives.plm import DataCollatorForPermutationLM, with_matrices
from tests.objectives.test_plm import TOKENIZER, make_chunks
from tests.parity import parity_with_transformers
from tests.parity.family_parity import NO_DROPOUT, FamilyParity, heads_of
from tests.parity.parity_with_transformers import (
    as_choices,
    check_head,
    compare_gradients,
    compare_outputs,
    head_name,
    make_batch,
    make_config,
    make_pair,
)


class XLNetParity(FamilyParity):
    padded = "left"
    looks_up_columns = True
    heads = heads_of(hf_encoders.HfeXLNetConfig)
    # transformers' XLNet takes masks of one flag per token only.
    test_four_dimensional_masks_are_read_as_in_transformers = None
    # It projects the encodings of distances once for each row of the batch, and drops other elements in each.
    test_dropout_falls_where_it_does_in_transformers = None
    # It shows its embedding columns, `(T, B)`, and NEFTune takes B for the length of a row.
    test_noise_of_neftune_is_equal = None

    def test_feed_forward_in_chunks_is_equal(self) -> None:
        """transformers' XLNet divides the rows of the batch, three here, instead of its tokens."""
        check_head(*self.heads[0], "left", seed=7, fields={**self.fields, "chunk_size_feed_forward": 3})

    @pytest.fixture(autouse=True)
    def last_column_is_pooled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parity_with_transformers, "POOLED_COLUMN", -1)

    @pytest.mark.slow
    def test_dropout_changes_what_it_does_in_transformers(self, head: tuple) -> None:
        """The same outputs on average, and the same spread; 400 draws each of a small model."""
        config = make_config(head[0], 13, {**self.fields, "num_hidden_layers": 1})
        batch = make_batch("full", config, rows=6)
        batch = as_choices(batch) if head_name(head[1]) == "ForMultipleChoice" else batch
        found = []
        with torch.no_grad():
            for model in make_pair(*head, config):
                torch.manual_seed(17)
                outputs = torch.stack([model.train()(**batch)[0] for _ in range(400)])
                found.append((outputs.mean(dim=0), outputs.std(dim=0)))
        (mean, spread), (stock_mean, stock_spread) = found
        # Standard errors of a difference of means of 400 and of standard deviations: 0.07 and 0.05 of the deviation.
        assert ((mean - stock_mean).abs() / stock_spread).mean() < 0.1
        assert (spread / stock_spread).mean() == pytest.approx(1, abs=0.05)


class TestXLNet(XLNetParity):
    fields = {"num_attention_heads": 3, "hidden_size": 18, "use_mems_eval": False}


class TestXLNetWithOtherFields(XLNetParity):
    """A table of clamped distances, a summary without its projection and activation."""

    heads = XLNetParity.heads[:3]
    has_blocks = False
    fields = {
        **TestXLNet.fields,
        "num_attention_heads": 5,
        "hidden_size": 20,
        "clamp_len": 3,
        "summary_use_proj": False,
        "summary_activation": "",
    }


def random_orders(config: Any, batch: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """An order in which half of the tokens have ranks, and labels for most of those; something of order 0 in each row.

    Of two halves, as in pre-training: the tokens of the second see all of the first, which sees none of them.
    """
    torch.manual_seed(seed)
    ids = batch["input_ids"]
    is_real = batch.get("attention_mask", torch.ones_like(ids)) == 1
    ranks = torch.rand(ids.shape).argsort(dim=1) + 1
    order = ranks.masked_fill(torch.rand(ids.shape) < 0.5, 0)
    middle = ids.shape[1] // 2
    order[:, middle] = order[:, -1] = 0
    order[:, middle:] += ids.shape[1] + 1
    is_ranked = (order > 0) & (order != ids.shape[1] + 1)
    labels = ids.masked_fill(~(is_ranked & is_real & (torch.rand(ids.shape) < 0.8)), IGNORED)
    # A target sees something: a token of the first half, of order 0.
    order[:, is_real.all(dim=0).nonzero()[0]] = 0
    labels[order == 0] = IGNORED
    return {"order": order, "labels": labels}


def batch_of_transformers(batch: dict[str, torch.Tensor], orders: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch with `perm_mask` and `target_mapping`, no row reversed."""
    rows = len(batch["input_ids"])
    mask = {"attention_mask": torch.ones_like(batch["input_ids"]), "is_reversed": torch.zeros(rows, dtype=torch.bool)}
    return with_matrices({**mask, **batch, **orders})


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["full", "left", "right", "types"])
@pytest.mark.parametrize("seed", range(3))
def test_both_streams_are_those_of_transformers(kind: str, implementation: str, seed: int) -> None:
    """Logits of the predicted tokens, loss and all gradients."""
    ours_class, stock_class = XLNetParity.heads[2]
    config = make_config(ours_class, seed, {**TestXLNet.fields, **NO_DROPOUT})
    batch = make_batch(kind, config, seed)
    orders = random_orders(config, batch, seed)
    ours, stock = (model.train() for model in make_pair(ours_class, stock_class, config, implementation))
    got = ours(**batch, **orders, return_logits=True)
    of_stock = batch_of_transformers(batch, orders)
    expected = stock(**of_stock)
    is_target, is_given = orders["labels"] != IGNORED, of_stock["labels"] != IGNORED
    assert is_target.sum() >= 4
    torch.testing.assert_close(got.logits[is_target], expected.logits[is_given], atol=1e-5, rtol=1e-5)
    assert not got.logits[~is_target].any()
    torch.testing.assert_close(got.loss, expected.loss, atol=1e-5, rtol=1e-5)
    # Without logits, by the chunked projection.
    compare_gradients(ours, stock, [ours(**batch, **orders).loss, expected.loss], 1e-5)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_content_stream_alone_follows_the_order(implementation: str) -> None:
    """States and weights of the base model with `order`: transformers' with `perm_mask` alone."""
    config = make_config(XLNetParity.heads[0][0], 3, TestXLNet.fields)
    batch = make_batch("left", config, 3)
    orders = random_orders(config, batch, 3)
    ours, stock = make_pair(*XLNetParity.heads[0], config, implementation)
    flags = {"output_hidden_states": True, "output_attentions": True}
    perm_mask = (orders["order"][:, None, :] > orders["order"][:, :, None]).float()
    compare_outputs(
        ours(**batch, order=orders["order"], **flags), stock(**batch, perm_mask=perm_mask, **flags), batch, 1e-5
    )


def test_reversed_sequences_are_the_second_half_of_bi_data() -> None:
    """transformers negates the distances of the last half of a batch where its configuration says `bi_data`."""
    config = make_config(XLNetParity.heads[2][0], 4, TestXLNet.fields)
    batch = make_batch("full", config, 4, rows=4)
    orders = random_orders(config, batch, 4)
    ours, stock = make_pair(*XLNetParity.heads[2], config)
    stock.transformer.bi_data = True
    of_stock = batch_of_transformers(batch, orders)
    expected = stock(**of_stock).logits[of_stock["labels"] != IGNORED]
    is_reversed = torch.tensor([False, False, True, True])
    got = ours(**batch, **orders, is_reversed=is_reversed).logits[orders["labels"] != IGNORED]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(got, ours(**batch, **orders).logits[orders["labels"] != IGNORED], atol=1e-3)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_batch_for_transformers_has_the_same_loss(reuse: bool, implementation: str) -> None:
    """Rows read in reverse among them; without it transformers takes the batch too, and trains something else."""
    # A token that sees nothing has another loss in transformers: one that is all of the reused text.
    examples = [chunk for chunk in make_chunks(reuse) if len(chunk.reused[0]) != 1][:12]
    batch = DataCollatorForPermutationLM(TOKENIZER)(examples)
    assert batch["is_reversed"].any() and not batch["is_reversed"].all() and (batch["attention_mask"] == 0).any()
    config = make_config(XLNetParity.heads[2][0], 5, {**TestXLNet.fields, **NO_DROPOUT, "vocab_size": len(TOKENIZER)})
    ours, stock = (model.train() for model in make_pair(*XLNetParity.heads[2], config, implementation))
    of_stock = DataCollatorForPermutationLM(TOKENIZER, for_transformers=True)(examples)
    assert not {"order", "is_reversed"} & set(of_stock)
    losses = [ours(**batch).loss, stock(**of_stock).loss]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    assert abs(losses[0] - stock(**batch).loss) > 1e-4
    compare_gradients(ours, stock, losses, 1e-5)
