"""The layouts of `FlatTokens`, number by number."""

import pytest
import torch

from hf_encoders.models.encoder_tokens import FlatTokens, flat_tokens


CPU = torch.device("cpu")
GRID = torch.tensor([[10, 11, 12], [20, 21, 22]])
# A hole in the first row, padding on the left of the second.
MASK = torch.tensor([[1, 0, 1], [0, 1, 1]])


def ragged() -> FlatTokens:
    return flat_tokens(2, 3, CPU, MASK)


def packed() -> FlatTokens:
    return flat_tokens(1, 6, CPU, cu_seq_lens=torch.tensor([0, 3, 4, 6], dtype=torch.int32))


@pytest.mark.parametrize("mask", [None, torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)])
def test_full_layout_keeps_the_rows(mask: torch.Tensor | None) -> None:
    tokens = flat_tokens(2, 3, CPU, mask)
    assert tokens == FlatTokens(2, 3)
    assert tokens.flatten(GRID).tolist() == [10, 11, 12, 20, 21, 22]
    assert tokens.pad(tokens.flatten(GRID)).tolist() == GRID.tolist()
    assert tokens.to_sequences(tokens.flatten(GRID)).tolist() == GRID.tolist()
    assert tokens.columns(CPU).tolist() == [0, 1, 2, 0, 1, 2]
    assert (tokens.num_sequences, tokens.longest, tokens.is_packed) == (2, 3, False)
    assert tokens.sequence_mask() is None
    assert tokens.first_of_each_sequence(tokens.flatten(GRID)[:, None]).tolist() == [[10], [20]]


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_ragged_layout_leaves_padding_out_wherever_it_stands(dtype: torch.dtype) -> None:
    tokens = flat_tokens(2, 3, CPU, MASK.to(dtype))
    assert tokens.kept.tolist() == [0, 2, 4, 5]
    assert tokens.cu_seq_lens.tolist() == [0, 2, 4]
    assert tokens.sequence_lengths == [2, 2]
    assert tokens.flatten(GRID).tolist() == [10, 12, 21, 22]
    assert tokens.columns(CPU).tolist() == [0, 2, 1, 2]
    assert (tokens.num_sequences, tokens.longest, tokens.is_packed) == (2, 3, False)


def test_ragged_layout_goes_back_to_the_border() -> None:
    tokens = ragged()
    flat = tokens.flatten(GRID)
    assert tokens.pad(flat).tolist() == [[10, 0, 12], [0, 21, 22]]
    assert tokens.pad(flat, -1).tolist() == [[10, -1, 12], [-1, 21, 22]]
    assert tokens.pad(flat[:, None]).shape == (2, 3, 1)
    assert tokens.to_sequences(flat).tolist() == [[10, 0, 12], [0, 21, 22]]
    assert tokens.from_sequences(tokens.to_sequences(flat)).tolist() == flat.tolist()
    assert tokens.sequence_mask().tolist() == MASK.bool().tolist()
    assert tokens.first_of_each_sequence(flat[:, None]).tolist() == [[10], [21]]


def test_an_empty_row_has_a_zero_first_token() -> None:
    tokens = flat_tokens(3, 2, CPU, torch.tensor([[0, 0], [1, 1], [0, 0]]))
    assert tokens.sequence_lengths == [0, 2, 0]
    flat = torch.tensor([[5.0], [6.0]])
    assert tokens.first_of_each_sequence(flat).tolist() == [[0.0], [5.0], [0.0]]
    assert tokens.pad(flat)[:, :, 0].tolist() == [[0, 0], [5, 6], [0, 0]]


def test_packed_layout_tells_the_sequences_of_a_row_apart() -> None:
    tokens = packed()
    row = torch.tensor([[1, 2, 3, 4, 5, 6]])
    flat = tokens.flatten(row)
    assert flat.tolist() == [1, 2, 3, 4, 5, 6]
    assert tokens.sequence_lengths == [3, 1, 2]
    assert (tokens.num_sequences, tokens.longest, tokens.is_packed) == (3, 3, True)
    assert tokens.columns(CPU).tolist() == [0, 1, 2, 0, 0, 1]
    assert tokens.pad(flat).tolist() == row.tolist()
    assert tokens.to_sequences(flat).tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    assert tokens.from_sequences(tokens.to_sequences(flat)).tolist() == flat.tolist()
    assert tokens.sequence_mask().int().tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert tokens.first_of_each_sequence(flat[:, None]).tolist() == [[1], [4], [5]]


def test_masked_layout_keeps_padding_as_tokens() -> None:
    tokens = flat_tokens(2, 3, CPU, MASK, keep_padding=True)
    assert tokens.flatten(GRID).tolist() == GRID.flatten().tolist()
    assert tokens.sequence_mask().tolist() == MASK.bool().tolist()
    assert tokens.kept is None and tokens.sequence_lengths is None
    # Pooled from the first real token, as in the ragged layout; zero where there is none.
    flat = tokens.flatten(GRID.float())[:, None]
    assert tokens.first_of_each_sequence(flat).tolist() == [[10], [21]]
    empty = flat_tokens(2, 3, CPU, torch.tensor([[0, 0, 0], [1, 1, 0]]), keep_padding=True)
    assert empty.first_of_each_sequence(flat).tolist() == [[0], [20]]


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 1, 3, 3), (1, 1, 3, 3), (2, 5, 1, 3)])
def test_masks_of_pairs_of_tokens_become_additive(shape: tuple[int, ...]) -> None:
    may_attend = torch.rand(shape) < 0.5
    tokens = flat_tokens(2, 3, CPU, may_attend)
    expected = may_attend[:, None] if len(shape) == 3 else may_attend
    assert tokens.attention_mask.dim() == 4
    assert ((tokens.attention_mask == 0) == expected).all()
    assert (tokens.attention_mask[~expected] == torch.finfo(torch.float32).min).all()
    assert flat_tokens(2, 3, CPU, tokens.attention_mask).attention_mask is tokens.attention_mask


def test_gradients_go_through_the_border() -> None:
    tokens = ragged()
    grid = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tokens.pad(tokens.flatten(x)), grid)
    flat = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: packed().to_sequences(x), flat)
