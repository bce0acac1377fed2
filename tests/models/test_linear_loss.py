"""Cross-entropy in chunks is cross-entropy: sums, gradients, ties, extremes, and what it never holds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_encoders.models import encoder_kernels, encoder_losses
from hf_encoders.models.encoder_losses import ObjectiveSums, classification_sums, linear_classification_sums
from tests.models.tiny import MASKED_LM, PRETRAINING, right_padded, tiny_model


CLASSES, WIDTH = 37, 5
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def cut_into(chunk: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set how many items of `CLASSES` scores are a chunk and a block."""
    monkeypatch.setattr(encoder_losses, "CHUNK_SCORES", chunk * CLASSES)
    monkeypatch.setattr(encoder_kernels, "CACHED_NUMBERS", block * CLASSES)


# All at once; two full chunks and a short one; an item a block; three a block.
@pytest.fixture(params=[(100, 100), (7, 100), (7, 1), (6, 3), (1, 1), (17, 4)], ids=str)
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(*request.param, monkeypatch)


each_cut = pytest.mark.usefixtures("cut")


def problem(items: int = 17, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    """Hidden states, projection and labels; some labels have the highest score."""
    hidden = torch.randn(items, WIDTH, dtype=dtype, requires_grad=True)
    linear = nn.Linear(WIDTH, CLASSES).to(dtype)
    labels = torch.randint(0, CLASSES, (items,))
    with torch.no_grad():
        nn.init.normal_(linear.weight), nn.init.normal_(linear.bias)
        labels[::3] = linear(hidden)[::3].argmax(dim=1)
    return hidden, linear, labels


def by_all_scores(hidden: torch.Tensor, linear: nn.Module, labels: torch.Tensor) -> ObjectiveSums:
    return classification_sums(linear(hidden), labels)


def gradients(sums: ObjectiveSums, *inputs: torch.Tensor, upstream: float = 1.0) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(sums.nll * upstream, inputs)


def assert_same(
    hidden: torch.Tensor, linear: nn.Linear, labels: torch.Tensor, tolerance: float, upstream: float = 1.0
) -> None:
    got, expected = (function(hidden, linear, labels) for function in (linear_classification_sums, by_all_scores))
    assert got.nll.dtype == expected.nll.dtype and got.nll.shape == ()
    torch.testing.assert_close(got.nll, expected.nll, atol=tolerance, rtol=tolerance)
    assert torch.equal(got.correct, expected.correct) and torch.equal(got.count, expected.count)
    inputs = (hidden, linear.weight, linear.bias)
    pairs = (gradients(sums, *inputs, upstream=upstream) for sums in (got, expected))
    for one, other in zip(*pairs, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, atol=tolerance * abs(upstream), rtol=tolerance)


@each_cut
@each_dtype
def test_sums_and_gradients_are_those_of_all_scores(dtype: torch.dtype) -> None:
    hidden, linear, labels = problem(dtype=dtype)
    assert 5 < by_all_scores(hidden, linear, labels).correct < 17
    for upstream in (1.0, -0.3, 0.0, 1000.0):
        assert_same(hidden, linear, labels, TOLERANCE[dtype], upstream)


class Sums(nn.Module):
    """The summed loss as a module, whose parameters `functional_call` can replace."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return linear_classification_sums(hidden, self.linear, labels).nll


@each_cut
def test_gradients_are_those_of_finite_differences() -> None:
    hidden, linear, labels = problem(4, torch.float64)

    def nll(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(
            Sums(linear), {"linear.weight": weight, "linear.bias": bias}, (hidden, labels)
        )

    assert torch.autograd.gradcheck(nll, (hidden, linear.weight, linear.bias))


@each_cut
@pytest.mark.parametrize("items", [0, 1])
@each_dtype
def test_no_item_and_one_item(items: int, dtype: torch.dtype) -> None:
    hidden, linear, labels = problem(items, dtype)
    assert_same(hidden, linear, labels, TOLERANCE[dtype])
    sums = linear_classification_sums(hidden, linear, labels)
    assert sums.count == items
    if items == 0:
        assert sums.nll == 0.0 and sums.correct == 0
        assert not any(gradient.any() for gradient in gradients(sums, hidden, linear.weight, linear.bias))


def test_two_classes_on_paper() -> None:
    """Scores (0, 0) and (0, ln 3), both labelled 1: -ln 1/2 - ln 3/4 = ln 8/3. Of two equals the first counts."""
    linear = nn.Linear(1, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.0], [1.0]]))
        linear.bias.zero_()
    hidden = torch.tensor([[0.0], [torch.log(torch.tensor(3.0))]], requires_grad=True)
    sums = linear_classification_sums(hidden, linear, torch.tensor([1, 1]))
    assert sums.nll.item() == pytest.approx(torch.log(torch.tensor(8 / 3)).item())
    assert (sums.correct, sums.count) == (1, 2)
    # Shares (1/2, 1/2) and (1/4, 3/4), less 1 at the label; the hidden states meet weights 0 and 1.
    (of_hidden, of_bias) = gradients(sums, hidden, linear.bias)
    torch.testing.assert_close(of_hidden, torch.tensor([[-0.5], [-0.25]]))
    torch.testing.assert_close(of_bias, torch.tensor([0.75, -0.75]))


@each_cut
def test_of_equal_scores_the_first_counts() -> None:
    """As `argmax`: items whose label shares the highest score are right only if no class before it does."""
    hidden, linear, _ = problem()
    with torch.no_grad():
        linear.weight.copy_(torch.randint(-1, 2, (CLASSES, WIDTH)))
        linear.bias.zero_()
        hidden.copy_(torch.randint(-1, 2, hidden.shape))
        hidden[4] = 0.0  # all classes are equal
        scores = linear(hidden)
        is_highest = scores == scores.amax(dim=1, keepdim=True)
        last = CLASSES - 1 - is_highest.flip(1).int().argmax(dim=1)
    first = is_highest.int().argmax(dim=1)
    assert (first < last).sum() > 5
    assert linear_classification_sums(hidden, linear, first).correct == 17
    assert linear_classification_sums(hidden, linear, last).correct == (first == last).sum()


@each_cut
def test_backward_twice_gives_the_same_twice() -> None:
    hidden, linear, labels = problem()
    inputs = (hidden, linear.weight, linear.bias)
    sums = linear_classification_sums(hidden, linear, labels)
    first = torch.autograd.grad(sums.nll, inputs, retain_graph=True)
    first = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(sums.nll * 2.0, inputs)
    torch.testing.assert_close([2.0 * gradient for gradient in first], list(second), atol=0, rtol=1e-6)


@each_cut
def test_second_derivatives_are_refused() -> None:
    """What is kept gives first derivatives only; taken for constants, they would make a Hessian silently wrong."""
    hidden, linear, labels = problem()
    sums = linear_classification_sums(hidden.square(), linear, labels)
    with pytest.raises(RuntimeError, match="twice|second"):
        (gradient,) = torch.autograd.grad(sums.nll, hidden, create_graph=True)
        gradient.sum().backward()


@each_cut
def test_without_gradients() -> None:
    hidden, linear, labels = problem()
    expected = by_all_scores(hidden, linear, labels)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            sums = linear_classification_sums(hidden, linear, labels)
        assert not sums.nll.requires_grad
        torch.testing.assert_close(sums.nll, expected.nll.detach(), atol=1e-5, rtol=1e-5)
        assert sums.correct == expected.correct


@each_cut
@pytest.mark.parametrize("trained", ["hidden", "weight", "bias", "hidden weight", "weight bias", "hidden bias"])
def test_frozen_inputs_get_no_gradient(trained: str) -> None:
    hidden, linear, labels = problem()
    inputs = {"hidden": hidden, "weight": linear.weight, "bias": linear.bias}
    for name, tensor in inputs.items():
        tensor.requires_grad_(name in trained.split())
    results = []
    for function in (linear_classification_sums, by_all_scores):
        function(hidden, linear, labels).nll.backward()
        results.append({name: tensor.grad for name, tensor in inputs.items()})
        for tensor in inputs.values():
            tensor.grad = None
    assert {name for name, gradient in results[0].items() if gradient is not None} == set(trained.split())
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@each_cut
def test_extreme_scores_stay_finite() -> None:
    """A difference of 20,000 costs 20,000 nats; its share is zero without becoming a logarithm of zero."""
    hidden, linear, labels = problem()
    with torch.no_grad():
        linear.bias[0], linear.bias[1] = 1e4, -1e4
        labels[:6] = torch.tensor([0, 1] * 3)
    assert_same(hidden, linear, labels, 1e-5)
    sums = linear_classification_sums(hidden, linear, labels)
    assert 3 * 19_900 < sums.nll < 3 * 20_100 + 14 * 10_100
    assert all(gradient.isfinite().all() for gradient in gradients(sums, hidden, linear.weight, linear.bias))


@each_cut
@pytest.mark.parametrize("items", [17, 75])
def test_bfloat16_autocast(items: int) -> None:
    """bfloat16 keeps 8 bits: a score is off by 2^-9 of itself, with 17 or 75 items (the latter with a spare row).

    torch adds the bias before it rounds, and its gradients of scores are rounded as ours are.
    """
    hidden, linear, labels = problem(items)
    labels[:] = torch.randint(0, CLASSES, (items,))
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = (function(hidden, linear, labels) for function in (linear_classification_sums, by_all_scores))
    exact = by_all_scores(hidden, linear, labels)
    assert got.nll.dtype == torch.float32 and got.count == items
    assert got.nll.item() == pytest.approx(expected.nll.item(), rel=5e-3)
    assert got.nll.item() == pytest.approx(exact.nll.item(), rel=5e-3)
    inputs = (hidden, linear.weight, linear.bias)
    for one, stock, right in zip(*(gradients(sums, *inputs) for sums in (got, expected, exact)), strict=True):
        assert one.dtype == stock.dtype == torch.float32
        assert (one - right).norm() <= 0.01 * right.norm()
        assert (one - right).norm() <= 1.5 * (stock - right).norm()


class WithAdapter(nn.Linear):
    """A low-rank addition, as adapters make it."""

    def __init__(self) -> None:
        super().__init__(WIDTH, CLASSES)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, CLASSES, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) + self.up(self.down(hidden))


def doubled_by_hook() -> nn.Linear:
    linear = nn.Linear(WIDTH, CLASSES)
    linear.register_forward_hook(lambda module, inputs, output: 2 * output)
    return linear


def fed_by_hook() -> nn.Linear:
    linear = nn.Linear(WIDTH, CLASSES)
    linear.register_forward_pre_hook(lambda module, inputs: (3 * inputs[0],))
    return linear


def with_forward_of_its_own() -> nn.Linear:
    linear = nn.Linear(WIDTH, CLASSES)
    linear.forward = lambda hidden: nn.functional.linear(hidden, -linear.weight, linear.bias)
    return linear


def without_bias() -> nn.Linear:
    return nn.Linear(WIDTH, CLASSES, bias=False)


@pytest.mark.parametrize(
    "make",
    [WithAdapter, doubled_by_hook, fed_by_hook, with_forward_of_its_own, without_bias],
    ids=lambda f: f.__name__,
)
def test_anything_but_a_bare_projection_is_called(make: Callable[[], nn.Linear]) -> None:
    linear, (hidden, _, labels) = make(), problem()
    inputs = (hidden, *linear.parameters())
    got, expected = (function(hidden, linear, labels) for function in (linear_classification_sums, by_all_scores))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients(got, *inputs), gradients(expected, *inputs))


# --- what is held ---


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returned, views left out."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor) and not tensor._is_view():
                self.elements = max(self.elements, tensor.numel())
        return outputs


@pytest.mark.parametrize("chunk", [1, 4, 10, 29])
def test_no_tensor_is_larger_than_a_chunk_or_the_weights(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(chunk, 3, monkeypatch)
    hidden, linear, labels = problem(500)
    sizes = {}
    for function in (linear_classification_sums, by_all_scores):
        with LargestTensor() as largest:
            function(hidden, linear, labels).nll.backward()
        sizes[function] = largest.elements
    assert sizes[linear_classification_sums] <= max(chunk * CLASSES, CLASSES * WIDTH, 500 * WIDTH)
    assert sizes[by_all_scores] == 500 * CLASSES


def test_one_chunk_of_scores_is_kept_for_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 chunks; beside the weights and the gradients of weights and hidden states."""
    cut_into(10, 3, monkeypatch)
    hidden, linear, labels = problem(500)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda none: none):
        linear_classification_sums(hidden, linear, labels)
    assert sum(kept) <= 10 * CLASSES + 2 * CLASSES * WIDTH + CLASSES + (500 + 10) * WIDTH


# --- in the heads ---


@pytest.mark.parametrize("model_class", [*MASKED_LM, *PRETRAINING])
def test_models_never_hold_the_scores_of_all_predicted_tokens(
    model_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """97 classes, 40 predicted tokens, 4 a chunk: all scores would be the largest tensor by far."""
    monkeypatch.setattr(encoder_losses, "CHUNK_SCORES", 4 * 97)
    model = tiny_model(model_class, vocab_size=97).train()
    batch = right_padded(model.config, (11, 9, 11, 9))
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    with LargestTensor() as largest:
        model(**batch, labels=labels).loss.backward()
    assert largest.elements < 40 * 97


@pytest.mark.parametrize("model_class", MASKED_LM)
def test_chunks_and_logits_give_one_loss(model_class: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `return_logits=True` every score is computed; without, chunk by chunk."""
    monkeypatch.setattr(encoder_losses, "CHUNK_SCORES", 4 * 41)
    model = tiny_model(model_class, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).double().train()
    batch = right_padded(model.config, (11, 9, 11, 9))
    labels = batch["input_ids"].masked_fill(torch.rand(4, 11) < 0.4, -100)
    labels = labels.masked_fill(batch["attention_mask"] == 0, -100)
    results = []
    for return_logits in (None, True):
        model.zero_grad()
        outputs = model(**batch, labels=labels, return_logits=return_logits)
        assert (outputs.logits is None) == (return_logits is None)
        outputs.loss.backward()
        results.append([outputs.loss, outputs.mlm, [parameter.grad.clone() for parameter in model.parameters()]])
    torch.testing.assert_close(*results, atol=1e-10, rtol=1e-10)
