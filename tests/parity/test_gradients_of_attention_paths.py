"""Gradients of the MLM loss are transformers' own, whichever way attention is computed.

Every layout of a batch and every kernel is a path of its own through `encoder_attention.py`. transformers runs `eager`
on the padded batch, the plainest it has; for packed rows sequence by sequence, which needs no mask at all.
"""

import contextlib
from typing import Any

import pytest
import torch
from transformers import AlbertForMaskedLM, BertForMaskedLM, PreTrainedModel, RobertaForMaskedLM

from hf_encoders import HfeAlbertForMaskedLM, HfeBertForMaskedLM, HfeRobertaForMaskedLM
from hf_encoders.models import encoder_attention, encoder_kernels
from hf_encoders.models.encoder_attention import EncoderSelfAttention
from tests.models.tiny import NO_DROPOUT
from tests.parity.parity_with_transformers import (
    ROW_LENGTH,
    compare_gradients,
    make_batch,
    make_config,
    make_labels,
    make_pair,
)


HEADS = (
    (HfeBertForMaskedLM, BertForMaskedLM),
    (HfeRobertaForMaskedLM, RobertaForMaskedLM),
    (HfeAlbertForMaskedLM, AlbertForMaskedLM),
)
each_head = pytest.mark.parametrize("head", HEADS, ids=lambda head: head[1].__name__)
each_kernel = pytest.mark.parametrize("implementation", ["sdpa", "eager"])


def labelled(kind: str, config: Any, rows: int = 3) -> dict[str, torch.Tensor]:
    """A batch of one of `BATCHES`, with the labels of an MLM."""
    batch = make_batch(kind, config, rows=rows)
    return {**batch, **make_labels("ForMaskedLM", config, batch)}


def training_pair(
    head: tuple, implementation: str, seed: int = 4, **fields: Any
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Both models in `train()` without dropout, so that every path is the one that training takes."""
    config = make_config(head[0], seed, {**NO_DROPOUT, **fields})
    ours, stock = make_pair(*head, config, "eager")
    ours.set_attn_implementation(implementation)
    return ours.train(), stock.train()


def compare(ours: PreTrainedModel, stock: PreTrainedModel, losses: list[torch.Tensor], tolerance: float) -> None:
    torch.testing.assert_close(losses[0], losses[1], atol=tolerance, rtol=tolerance)
    compare_gradients(ours, stock, losses, tolerance)


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths that attention took: `per sequence`, `dropped`, or `padded`."""
    taken = set()

    def watch(owner: Any, name: str, path: str) -> None:
        original = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            taken.add(path)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(EncoderSelfAttention, "_attend_per_sequence", "per sequence")
    watch(EncoderSelfAttention, "_attend_padded", "padded")
    watch(encoder_attention, "attend_with_dropout", "dropped")
    return taken


CASES = ("full", "right", "left", "holes", "one row", "one token", "one padded row", "float64")


@each_head
@each_kernel
@pytest.mark.parametrize("case", CASES)
def test_rows(head: tuple, implementation: str, case: str, paths: set[str]) -> None:
    """In float64 rounding cannot hide anything."""
    ours, stock = training_pair(head, implementation)
    kind = {"one row": "full", "one token": "full", "one padded row": "right", "float64": "right"}.get(case, case)
    batch = labelled(kind, ours.config)
    if case.startswith("one"):
        rows, length = slice(-1, None), 1 if case == "one token" else ROW_LENGTH
        batch = {name: value[rows, :length] for name, value in batch.items()}
        batch["labels"][:, 0] = 7
    if case == "float64":
        ours, stock = ours.double(), stock.double()
    losses = [model(**batch).loss for model in (ours, stock)]
    compare(ours, stock, losses, 1e-10 if case == "float64" else 1e-5)
    assert paths == {"per sequence" if implementation == "sdpa" and kind != "full" else "padded"}


@each_head
@each_kernel
def test_padding_that_is_kept(head: tuple, implementation: str, paths: set[str]) -> None:
    """The masked layout, which export and compiled graphs compute, and labels on padding."""
    ours, stock = training_pair(head, implementation)
    batch = labelled("right", ours.config)
    compare(ours, stock, [ours(**batch, keep_padding=True).loss, stock(**batch).loss], 1e-5)
    assert paths == {"padded"}


@each_head
@each_kernel
def test_a_packed_row(head: tuple, implementation: str, paths: set[str]) -> None:
    """Ours computes one row of sequences; transformers each by itself, its losses weighted by predicted tokens."""
    ours, stock = training_pair(head, implementation)
    batch = labelled("right", ours.config)
    is_real = batch["attention_mask"] == 1
    bounds = torch.nn.functional.pad(is_real.sum(dim=1).cumsum(0), (1, 0))
    rows = {name: batch[name][is_real][None] for name in ("input_ids", "labels")}
    num_items = int((batch["labels"] != -100).sum())
    alone = []
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        row = {name: value[:, start:stop] for name, value in rows.items()}
        alone.append(stock(**row).loss * (row["labels"] != -100).sum() / num_items)
    compare(ours, stock, [ours(**rows, cu_seq_lens_q=bounds.int()).loss, sum(alone)], 1e-5)
    assert paths == {"per sequence" if implementation == "sdpa" else "padded"}


@each_head
@pytest.mark.parametrize("kind", ["full", "right"])
def test_the_written_out_kernel_that_drops_weights(
    head: tuple, kind: str, paths: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With masks of ones, attention with dropout is attention without; the other dropouts are off."""

    def ones(bits: torch.Tensor, probability: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(bits.shape, dtype=dtype)

    monkeypatch.setattr(encoder_kernels, "scaled_mask", ones)
    ours, stock = training_pair(head, "sdpa", attention_probs_dropout_prob=0.2)
    batch = labelled(kind, ours.config)
    compare(ours, stock, [ours(**batch).loss, stock.eval()(**batch).loss], 1e-5)
    assert paths == {"per sequence", "dropped"}


@each_head
@pytest.mark.parametrize("kind", ["full", "right"])
def test_flex_attention(head: tuple, kind: str, paths: set[str]) -> None:
    """Outputs alone, as torch computes no gradient of it on a CPU; uncompiled, which needs no C++ compiler."""
    ours, stock = (model.eval() for model in training_pair(head, "flex_attention"))
    batch = make_batch(kind, ours.config)
    is_real = batch.get("attention_mask", torch.ones(3, ROW_LENGTH)) == 1
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        got, expected = (model(**batch).logits[is_real] for model in (ours, stock))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert paths == {"padded"}


@each_head
@each_kernel
@pytest.mark.parametrize("kind", ["full", "right"])
def test_bfloat16_autocast_is_as_close_as_transformers(head: tuple, implementation: str, kind: str) -> None:
    """bfloat16 keeps 8 bits. Both packages under autocast stay near the loss and the gradients of float32, ours at
    most twice as far as transformers plus a hundredth; the losses are within 2 % of each other.
    """
    ours, stock = training_pair(head, implementation)
    batch = labelled(kind, ours.config)
    exact = stock(**batch).loss
    exact.backward()
    right = {name: parameter.grad.clone() for name, parameter in stock.named_parameters()}
    stock.zero_grad()
    losses = []
    for model in (ours, stock):
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(model(**batch).loss)
        losses[-1].backward()
    assert losses[0].dtype == torch.float32
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=0.02)
    assert losses[0].item() == pytest.approx(exact.item(), rel=0.02)
    got, expected = (distance(model, right) for model in (ours, stock))
    assert got <= 2 * expected + 0.01


def distance(model: PreTrainedModel, right: dict[str, torch.Tensor]) -> float:
    """Norm of the difference of all gradients together, as a share of the norm of `right`."""
    differences = [(parameter.grad - right[name]).norm() for name, parameter in model.named_parameters()]
    return float(torch.stack(differences).norm() / torch.stack([value.norm() for value in right.values()]).norm())


@each_head
@pytest.mark.parametrize("kind", ["full", "right"])
@pytest.mark.parametrize("probability", [0.0, 0.2])
def test_backward_may_run_under_autocast(head: tuple, kind: str, probability: float) -> None:
    """torch advises against it, and transformers' models allow it; gradients are those of a backward pass outside."""
    fields = {"attention_probs_dropout_prob": probability, "hidden_dropout_prob": probability}
    model, _ = training_pair(head, "sdpa", **fields)
    batch = labelled(kind, model.config)
    gradients = []
    for context in (contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        model.zero_grad()
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch).loss
        with context:
            loss.backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert distance(model, gradients[0]) < 0.02
