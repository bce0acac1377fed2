"""Position embeddings that begin as sine and cosine (Vaswani et al. 2017, section 3.5)."""

import torch
from torch import nn


class SinusoidalEmbedding(nn.Embedding):
    """Such an embedding; a class for `_init_weights` to know it by."""


def sinusoidal_positions(rows: int, width: int) -> torch.Tensor:
    """Sine in even and cosine in odd columns, `(rows, width)`."""
    columns = torch.arange(width)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] / 10000 ** (2 * (columns // 2) / width).double()
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())
