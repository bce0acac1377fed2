"""Longer tables of absolute positions for a trained model."""

import torch
from torch import nn
from transformers import PreTrainedModel


HOW = ("copy", "interpolate")


@torch.no_grad()
def extend_positions(model: PreTrainedModel, rows: int, how: str = "copy") -> None:
    """Give a model a table of positions with more rows, in place.

    `copy` repeats the rows of the old positions for those behind them, as Longformer (Beltagy et al. 2020, section 5,
    https://arxiv.org/abs/2004.05150): neighbours keep the distances that the model knows. `interpolate` stretches the
    table (Chen et al. 2023, https://arxiv.org/abs/2306.15595): the order of far positions is kept, and the distance of
    neighbours is new. Rows before the first position, RoBERTa's, stay.

    Args:
        model (`PreTrainedModel`): A model with absolute positions.
        rows (`int`): `max_position_embeddings` of the longer table.
        how (`str`, *optional*, defaults to `"copy"`): `copy` or `interpolate`.

    Raises:
        ValueError: For fewer rows than there are, another `how`, and a model without a table of absolute positions.
    """
    if how not in HOW:
        raise ValueError(f"positions={how!r}: it must be {' or '.join(HOW)}.")
    before = model.config.max_position_embeddings
    if rows == before:
        return
    if rows < before:
        raise ValueError(
            f"max_position_embeddings={rows} is less than the model's {before}: positions are not cut off."
        )
    found = [(name, one) for name, one in model.named_modules() if name.rpartition(".")[2] == "position_embeddings"]
    if len(found) != 1 or found[0][1].num_embeddings != before:
        raise ValueError(
            f"max_position_embeddings={rows}: {type(model).__name__} has no table of {before} absolute positions that "
            "could become longer."
        )
    (name, table) = found[0]
    first = before - model.base_model.longest_row()  # rows that no position uses
    longer = type(table)(rows, table.embedding_dim, padding_idx=table.padding_idx).to(table.weight)
    longer.weight[:first] = table.weight[:first]
    longer.weight[first:] = _stretched(table.weight[first:], rows - first, how)
    longer.weight.requires_grad_(table.weight.requires_grad)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, longer)
    model.config.max_position_embeddings = rows


def _stretched(table: torch.Tensor, rows: int, how: str) -> torch.Tensor:
    """`(before, D)` -> `(rows, D)`.

    >>> _stretched(torch.tensor([[0.0], [1.0]]), 4, "copy").flatten().tolist()
    [0.0, 1.0, 0.0, 1.0]
    >>> _stretched(torch.tensor([[0.0], [3.0]]), 4, "interpolate").flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    if how == "copy":
        return table[torch.arange(rows, device=table.device) % len(table)]
    longer = nn.functional.interpolate(table.float().t()[None], size=rows, mode="linear", align_corners=True)
    return longer[0].t().to(table.dtype)
