"""Cross-entropy of a student's scores with those of its teacher, in chunks of the vocabulary's projections.

Hinton et al. 2015 (https://arxiv.org/abs/1503.02531); as `KLDivLoss` in `distiller.py` of DistilBERT's original code:
the Kullback-Leibler divergence at a temperature T, times T^2, so that the size of its gradients does not depend on T.
"""

from functools import partial

import torch
from torch import nn

from hf_encoders.models.encoder_cpu_kernels import is_eager, matmul_dtype, rows_at_once, with_padding_rows
from hf_encoders.models.encoder_linear_loss import linear_loss
from hf_encoders.models.encoder_losses import ObjectiveSums
from hf_encoders.models.encoder_recompute import is_bare_linear


def soft_target_sums(
    scores: torch.Tensor, teacher_scores: torch.Tensor, temperature: float, is_item: torch.Tensor | None = None
) -> ObjectiveSums:
    """T^2 times the divergence of the softmax of `scores / T` from that of `teacher_scores / T`, summed over items.

    Args:
        scores, teacher_scores (`torch.Tensor` of shape `(P, V)`): Without gradient for the teacher.
        temperature (`float`): T, above 0.
        is_item (`torch.BoolTensor` of shape `(P,)`, *optional*): Rows that count; None means all.

    >>> student, teacher = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.0, 2.0, 1.0]])
    >>> round(float(soft_target_sums(student, teacher, temperature=2.0).nll), 4)
    0.3986
    """
    exact = torch.promote_types(scores.dtype, torch.float32)
    own, teachers = ((one.to(exact) / temperature).log_softmax(dim=-1) for one in (scores, teacher_scores))
    divergences = (teachers.exp() * (teachers - own)).sum(dim=-1) * temperature**2
    if is_item is not None:
        divergences = divergences * is_item
    count = torch.tensor(len(divergences), device=scores.device) if is_item is None else is_item.sum()
    return ObjectiveSums(divergences.sum(), None, count)


def linear_soft_target_sums(
    hidden_states: torch.Tensor,
    linear: nn.Module,
    teacher_states: torch.Tensor,
    teacher_linear: nn.Module,
    temperature: float,
) -> ObjectiveSums:
    """`soft_target_sums(linear(hidden_states), teacher_linear(teacher_states))`, a chunk of both at a time.

    `hidden_states` are `(P, D)`, `teacher_states` `(P, teacher's D)`. Anything but bare `nn.Linear`s with a bias (an
    adapter, quantised or offloaded weights) is called on all items at once.
    """
    if not is_eager() or any(not is_bare_linear(one) or one.bias is None for one in (linear, teacher_linear)):
        return soft_target_sums(linear(hidden_states), teacher_linear(teacher_states), temperature)
    dtype = matmul_dtype(hidden_states)
    teacher = teacher_linear.weight.detach().to(dtype), teacher_linear.bias.detach()
    become_gradients_ = partial(_become_gradients_, teacher, temperature)
    divergence, _ = linear_loss(hidden_states, linear, teacher_states.detach().to(dtype), become_gradients_)
    return ObjectiveSums(divergence, None, torch.tensor(len(hidden_states), device=hidden_states.device))


def _become_gradients_(
    teacher: tuple[torch.Tensor, torch.Tensor],
    temperature: float,
    scores: torch.Tensor,
    bias: torch.Tensor,
    teacher_states: torch.Tensor,
    bias_gradient: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn scores without bias, `(items and padding rows, V)`, into the gradients of their loss, in place.

    Adds to `bias_gradient`, `(V,)`. Returns the summed loss, and zero correct items.
    """
    weight, teacher_bias = teacher
    teacher_scores = with_padding_rows(teacher_states) @ weight.t()
    scores, teacher_scores = (one[: len(teacher_states)] for one in (scores, teacher_scores))
    total = bias_gradient.new_zeros(())
    block_size = rows_at_once(scores)
    for block, teacher_block in zip(scores.split(block_size), teacher_scores.split(block_size), strict=True):
        own = block.to(bias_gradient.dtype).add_(bias).div_(temperature)
        teachers = teacher_block.to(bias_gradient.dtype).add_(teacher_bias).div_(temperature)
        differences = teachers - own
        normaliser = _to_softmax_(own) - _to_softmax_(teachers)
        total += (teachers * differences).sum() + normaliser.sum()
        own.sub_(teachers).mul_(temperature)
        bias_gradient += own.sum(dim=0)
        block.copy_(own)
    return total * temperature**2, torch.zeros((), dtype=torch.long, device=total.device)


def _to_softmax_(scores: torch.Tensor) -> torch.Tensor:
    """Turn scores, `(items, V)`, into their softmax, in place; returns `log(sum(exp(scores)))`, `(items,)`."""
    highest = scores.amax(dim=1)
    torch._softmax(scores, -1, False, out=scores)
    # By way of the largest share, which is never zero.
    return highest - scores.amax(dim=1).log()
