"""Soft targets: the worked example, the chunks beside the plain formula, gradients."""

import pytest
import torch
from torch import nn

from hf_encoders.models import encoder_losses
from hf_encoders.objectives.distillation import cosine_sums, linear_soft_target_sums, soft_target_sums


# Scores and hidden states of three tokens; the sums were computed with torch's `KLDivLoss`, `CrossEntropyLoss` and
# `CosineEmbeddingLoss` as `distiller.py` of DistilBERT's original code calls them.
STUDENT = [[0, 1, 2, 0.5], [1, 0, 0, -1], [0.3, -0.2, 0.1, 0]]
TEACHER = [[0, 2, 1, 0], [0, 0, 1, 2], [0.3, -0.2, 0.1, 0]]
STATES = [[1, 2, 3], [0, 1, 0], [1, 0, -1]]
TEACHER_STATES = [[1, 2, 2], [1, 0, 0], [2, 0, -2]]


def tensor(rows: list, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_worked_example(dtype: torch.dtype) -> None:
    soft = soft_target_sums(tensor(STUDENT, dtype), tensor(TEACHER, dtype), temperature=2.0)
    cosine = cosine_sums(tensor(STATES, dtype), tensor(TEACHER_STATES, dtype))
    assert float(soft.nll / soft.count) == pytest.approx(0.502318, abs=1e-6)
    assert float(cosine.nll / cosine.count) == pytest.approx(0.340014, abs=1e-6)
    assert soft.correct is cosine.correct is None
    mlm = nn.functional.cross_entropy(tensor(STUDENT, dtype), torch.tensor([1, -100, 0]))
    total = 5 * soft.nll / soft.count + 2 * mlm + cosine.nll / cosine.count
    assert float(total) == pytest.approx(5.550105, abs=3e-6)  # of float32 terms; exactly 5.550103


def projections(classes: int, width: int, dtype: torch.dtype) -> tuple[nn.Linear, nn.Linear]:
    """Of a student and of a teacher of another width."""
    torch.manual_seed(1)
    student, teacher = nn.Linear(width, classes).to(dtype), nn.Linear(width + 3, classes).to(dtype)
    return student, teacher.requires_grad_(False)


@pytest.mark.parametrize("items", [0, 1, 7, 23])
@pytest.mark.parametrize("chunk", [1, 40, 130, 10**6])
def test_chunks_are_the_plain_formula(items: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradients, whatever the number of items in a chunk of `chunk` scores."""
    monkeypatch.setattr(encoder_losses, "CHUNK_SCORES", chunk)
    student, teacher = projections(19, 6, torch.float64)
    hidden = torch.randn(items, 6, dtype=torch.float64)
    of_teacher = torch.randn(items, 9, dtype=torch.float64)
    found = []
    for is_chunked in (True, False):
        student.zero_grad(set_to_none=True)
        states = hidden.clone().requires_grad_()
        if is_chunked:
            sums = linear_soft_target_sums(states, student, of_teacher, teacher, temperature=1.7)
        else:
            sums = soft_target_sums(student(states), teacher(of_teacher), temperature=1.7)
        (0.3 * sums.nll).backward()
        found.append((sums.nll.detach(), sums.count, states.grad, student.weight.grad, student.bias.grad))
    assert int(found[0][1]) == items
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-10)


def test_gradients_by_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_losses, "CHUNK_SCORES", 40)
    student, teacher = projections(11, 5, torch.float64)
    of_teacher = torch.randn(9, 8, dtype=torch.float64)

    def loss(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        linear = nn.Linear(5, 11, dtype=torch.float64)
        del linear.weight, linear.bias
        linear.weight, linear.bias = weight, bias  # plain tensors, which the chunks take too
        return linear_soft_target_sums(states, linear, of_teacher, teacher, temperature=2.0).nll

    states = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (states, student.weight.detach().requires_grad_(), student.bias))


def test_never_more_than_a_chunk_of_each_models_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_losses, "CHUNK_SCORES", 100)
    student, teacher = projections(20, 2, torch.float32)  # transposed weights have 2 and 5 rows
    sizes = []

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            output = function(*args, **(kwargs or {}))
            if torch.is_tensor(output) and output.shape[-1:] == (20,) and output.dim() == 2:
                sizes.append(output.shape[0])
            return output

    with Seen():
        states = torch.randn(33, 2, requires_grad=True)
        linear_soft_target_sums(states, student, torch.randn(33, 5), teacher, 2.0).nll.backward()
    assert max(sizes) == 5  # 100 scores of 20 classes


def test_equal_scores_have_no_loss_and_no_gradient() -> None:
    student, _ = projections(13, 6, torch.float64)
    states = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    sums = linear_soft_target_sums(states, student, states.detach(), student, temperature=3.0)
    sums.nll.backward()
    assert abs(sums.nll.item()) < 1e-12 and float(states.grad.abs().max()) < 1e-12


def test_scores_far_apart_stay_finite() -> None:
    student, teacher = projections(13, 6, torch.float32)
    states, of_teacher = 1e4 * torch.randn(5, 6), 1e4 * torch.randn(5, 9)
    states.requires_grad_()
    sums = linear_soft_target_sums(states, student, of_teacher, teacher, temperature=2.0)
    sums.nll.backward()
    plain = soft_target_sums(student(states), teacher(of_teacher), temperature=2.0)
    assert torch.isfinite(states.grad).all()
    torch.testing.assert_close(sums.nll, plain.nll, rtol=1e-5, atol=0)


def test_under_autocast_products_are_16_bits_and_the_loss_is_not() -> None:
    student, teacher = projections(64, 32, torch.float32)
    states, of_teacher = torch.randn(50, 32, requires_grad=True), torch.randn(50, 35)
    with torch.autocast("cpu", torch.bfloat16):
        sums = linear_soft_target_sums(states, student, of_teacher, teacher, temperature=2.0)
    assert sums.nll.dtype == torch.float32
    sums.nll.backward()
    exact = soft_target_sums(student(states), teacher(of_teacher), temperature=2.0)
    assert float(sums.nll) == pytest.approx(float(exact.nll), rel=0.02)
    assert states.grad.dtype == torch.float32


def test_a_wrapped_projection_is_called_as_it_is() -> None:
    student, teacher = projections(13, 6, torch.float64)
    doubled = nn.Sequential(student, nn.Threshold(-100.0, 0.0))
    states, of_teacher = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 9, dtype=torch.float64)
    wrapped = linear_soft_target_sums(states, doubled, of_teacher, teacher, 2.0).nll
    torch.testing.assert_close(wrapped, linear_soft_target_sums(states, student, of_teacher, teacher, 2.0).nll)
