"""Padding and packing: `(B, T, ...)` at the borders of a model, flat `(N, ...)` tokens inside.

`FlatTokens` knows where each flat token came from and which tokens form a sequence. No other file handles padding.

Shape legend, used in all `encoder_*` files: B batch rows, T tokens in a row, N real tokens in the batch, S sequences
(S = B unless rows are packed), L longest sequence, A attention heads, H width of a head, D model width, E embedding
width, P predicted tokens, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import nn


@dataclass
class FlatTokens:
    """The layout of the flat tokens of one forward pass, one of four.

      * full: no padding; flat tokens are the rows one after the other;
      * ragged: `kept` lists the real tokens, padding is left out;
      * packed: one row (B = 1) that holds S sequences back to back, separated by `cu_seq_lens`;
      * masked: padding is kept as tokens and `attention_mask` hides it. Only for graphs with fixed shapes (export,
        `torch.compile`), for masks of more than one flag per token, and for losses that read padding positions.

    Args:
        batch_size (`int`): B, rows at the border.
        row_length (`int`): T, tokens in a row at the border.
        kept (`torch.LongTensor` of shape `(N,)`, *optional*): index of each flat token in the `B * T` border grid;
            None when all are kept.
        cu_seq_lens (`torch.LongTensor` of shape `(S + 1,)`, *optional*): start of each sequence among the flat tokens,
            and N at the end; None in the full and masked layouts, where every row is one sequence of T tokens.
        sequence_lengths (`list[int]`, *optional*): the S lengths as Python integers, beside `cu_seq_lens`.
        attention_mask (`torch.Tensor`, *optional*): masked layout only, `(B, T)` with True for real tokens, or
            an additive `(B, 1 or A, 1 or T, T)` mask.
        is_causal (`bool`): whether a token sees itself and the tokens before it only.
    """

    attend: ClassVar[Callable[..., torch.Tensor] | None] = None  # a kernel, of `hf_encoders.compilation`

    batch_size: int
    row_length: int
    kept: torch.Tensor | None = None
    cu_seq_lens: torch.Tensor | None = None
    sequence_lengths: list[int] | None = None
    attention_mask: torch.Tensor | None = None
    is_causal: bool = False
    # Masks that kernels derive from this layout, made once per forward pass instead of once per layer.
    derived: dict[str, Any] = field(default_factory=dict)

    @property
    def is_packed(self) -> bool:
        """Return whether several sequences share one row."""
        return self.kept is None and self.cu_seq_lens is not None

    @property
    def is_full(self) -> bool:
        """Return whether every row is one sequence of T tokens, none of them padding."""
        return self.cu_seq_lens is None and self.attention_mask is None

    def lengths(self) -> list[int]:
        """Return the length of each sequence, in any layout without padding among the flat tokens: S integers."""
        return [self.row_length] * self.batch_size if self.is_full else self.sequence_lengths

    @property
    def num_tokens(self) -> int:
        """N."""
        return self.batch_size * self.row_length if self.kept is None else self.kept.shape[0]

    @property
    def num_sequences(self) -> int:
        """S."""
        return self.batch_size if self.sequence_lengths is None else len(self.sequence_lengths)

    @property
    def longest(self) -> int:
        """L, the length that `to_sequences` pads to: T, so that attention maps have the shape of the border."""
        return max(self.sequence_lengths, default=0) if self.is_packed else self.row_length

    def to(self, device: torch.device | int | str, non_blocking: bool = False) -> "FlatTokens":
        """Return the same layout on another device; accelerate calls this where a model is spread over several."""
        device = torch.device(device)
        tensors = {name: getattr(self, name) for name in ("kept", "cu_seq_lens", "attention_mask")}
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        if all(tensor.device == device for tensor in present.values()):
            return self
        copies = self.derived.setdefault("copies", {})
        if device not in copies:
            moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in present.items()}
            copies[device] = replace(self, **moved, derived={})
        return copies[device]

    def flatten(self, padded: torch.Tensor) -> torch.Tensor:
        """Take the real tokens out of the border grid: `(B, T, *)` -> `(N, *)`."""
        flat = padded.reshape(self.batch_size * self.row_length, *padded.shape[2:])
        return flat if self.kept is None else flat.index_select(0, self.kept)

    def flatten_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Take the ids of the real tokens, those of one row for all: `(B or 1, T)` or `(T,)` -> `(N,)`."""
        return self.flatten(ids.expand(self.batch_size, self.row_length))

    def pad(self, flat: torch.Tensor, value: float = 0.0) -> torch.Tensor:
        """Put flat tokens back into the border grid, `value` at the padding: `(N, *)` -> `(B, T, *)`."""
        return self._scatter(flat, self.kept, self.batch_size, self.row_length, value)

    def to_sequences(self, flat: torch.Tensor) -> torch.Tensor:
        """Make one row per sequence, zeros at the end, for dense attention kernels: `(N, *)` -> `(S, L, *)`."""
        return self._scatter(flat, self._places_in_sequences(), self.num_sequences, self.longest, 0.0)

    def from_sequences(self, padded: torch.Tensor) -> torch.Tensor:
        """Invert `to_sequences`: `(S, L, *)` -> `(N, *)`."""
        places = self._places_in_sequences()
        flat = padded.reshape(self.num_sequences * self.longest, *padded.shape[2:])
        return flat if places is None else flat.index_select(0, places)

    def sequence_mask(self) -> torch.Tensor | None:
        """`(S, L)`, True for real tokens; None when every sequence is full. A given 4D mask is returned unchanged."""
        if self.attention_mask is not None:
            return self.attention_mask
        places = self._places_in_sequences()
        if places is None:
            return None
        real = torch.zeros(self.num_sequences * self.longest, dtype=torch.bool, device=places.device)
        real.index_fill_(0, places, True)  # by an index, `True` would be copied to the device, and waited for
        return real.view(self.num_sequences, self.longest)

    def first_of_each_sequence(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the first real token of every sequence, zeros for an empty one: `(N, D)` -> `(S, D)`."""
        if self.cu_seq_lens is None:
            rows = flat.view(self.batch_size, self.row_length, -1)
            if self.attention_mask is None or self.attention_mask.dim() != 2:
                return rows[:, 0]
            # Padding is among the tokens here, and may be on the left.
            first = self.attention_mask.int().argmax(dim=1)[:, None, None].expand(-1, 1, rows.shape[-1])
            return rows.gather(1, first).squeeze(1) * self.attention_mask.any(dim=1, keepdim=True)
        starts = self.cu_seq_lens[:-1]
        if min(self.sequence_lengths, default=1) > 0:
            return flat.index_select(0, starts)
        first = nn.functional.pad(flat, (0, 0, 0, 1)).index_select(0, starts)  # the last start may be N
        return first * (self.cu_seq_lens.diff() > 0)[:, None]

    def of_tokens(self, of_sequences: torch.Tensor) -> torch.Tensor:
        """Repeat for each token what its sequence has: `(S, *)` -> `(N, *)`."""
        if self.cu_seq_lens is None:
            return of_sequences.repeat_interleave(self.row_length, dim=0)
        return of_sequences.repeat_interleave(self.cu_seq_lens.diff(), dim=0, output_size=self.num_tokens)  # no wait

    def columns(self, device: torch.device) -> torch.Tensor:
        """Return the column of each flat token in its row (in its sequence, when packed), from 0: `(N,)`."""
        if self.is_packed:
            return torch.arange(self.row_length, device=device) - self.of_tokens(self.cu_seq_lens[:-1])
        columns = torch.arange(self.row_length, device=device).repeat(self.batch_size)
        return columns if self.kept is None else columns.index_select(0, self.kept)

    def _places_in_sequences(self) -> torch.Tensor | None:
        """Return the index of each flat token in the `S * L` grid; None when the flat tokens are that grid."""
        if not self.is_packed:
            return self.kept
        if "places" not in self.derived:
            rows = torch.arange(self.num_sequences, device=self.cu_seq_lens.device)
            self.derived["places"] = self.of_tokens(rows) * self.longest + self.columns(rows.device)
        return self.derived["places"]

    @staticmethod
    def _scatter(flat: torch.Tensor, places: torch.Tensor | None, rows: int, width: int, value: float) -> torch.Tensor:
        if places is None:
            return flat.reshape(rows, width, *flat.shape[1:])
        grid = flat.new_full((rows * width, *flat.shape[1:]), value)
        return grid.index_copy(0, places, flat).view(rows, width, *flat.shape[1:])


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the CPU, where reading its values waits for no device: the trainer's copy, or a new one."""
    owner, version, copy = (None,) * 3 if torch.compiler.is_compiling() else getattr(tensor, "host_copy", (None,) * 3)
    return copy if owner == id(tensor) and version == tensor._version else tensor.cpu()


def first_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the first rows of a tensor; a slice of all would cost two kernels in the backward pass."""
    return tensor if tensor.shape[0] == rows else tensor[:rows]


def places_of(flags: torch.Tensor, same_on_host: torch.Tensor) -> torch.Tensor:
    """Return the indices of true flags, `(N,)`, as many as in flags on the CPU: no accelerator is waited for."""
    if flags.device.type == "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return flags.nonzero().squeeze(1)
    return (~flags).byte().argsort(stable=True)[: int(same_on_host.sum())]


def flat_tokens(
    batch_size: int,
    row_length: int,
    device: torch.device,
    attention_mask: torch.Tensor | None = None,
    cu_seq_lens: torch.Tensor | None = None,
    keep_padding: bool = False,
) -> FlatTokens:
    """Choose the layout of one batch of B x T token ids on `device`.

    Args:
        attention_mask (`torch.Tensor`, *optional*): `(B, T)`, non-zero for real tokens, anywhere in the row; or
            `(B, 1 or A, 1 or T, T)`, boolean (True = may attend) or additive.
        cu_seq_lens (`torch.Tensor` of shape `(S + 1,)`, *optional*): boundaries of packed sequences, from 0 to T.
        keep_padding (`bool`, *optional*, defaults to `False`): treat padding as tokens that are not attended to.

    Raises:
        ValueError: if the mask's shape does not match the batch, or `cu_seq_lens` does not cover exactly one row.
    """
    if cu_seq_lens is not None:
        return _packed_tokens(batch_size, row_length, device, attention_mask, cu_seq_lens)
    if attention_mask is None:
        return FlatTokens(batch_size, row_length)
    if attention_mask.dim() != 2:
        mask = _additive_mask(attention_mask, batch_size, row_length)
        return FlatTokens(batch_size, row_length, attention_mask=mask)
    if attention_mask.shape != (batch_size, row_length):
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, but the batch has {batch_size} rows of "
            f"{row_length} tokens: pass a mask of shape ({batch_size}, {row_length})."
        )
    has_values = not (attention_mask.is_meta or torch.compiler.is_compiling() or torch.jit.is_tracing())
    if keep_padding or not has_values:
        return FlatTokens(batch_size, row_length, attention_mask=attention_mask.to(device=device, dtype=torch.bool))
    is_real = on_host(attention_mask).bool()
    lengths = is_real.sum(dim=1)
    sequence_lengths = lengths.tolist()
    if min(sequence_lengths, default=row_length) == row_length:
        return FlatTokens(batch_size, row_length)
    kept, bounds = is_real.flatten().nonzero().squeeze(1), nn.functional.pad(lengths.cumsum(0), (1, 0))
    # Not safe on MPS.
    kept, bounds = (tensor.to(device, non_blocking=device.type == "cuda") for tensor in (kept, bounds))
    return FlatTokens(batch_size, row_length, kept, bounds, sequence_lengths)


def _packed_tokens(
    batch_size: int,
    row_length: int,
    device: torch.device,
    attention_mask: torch.Tensor | None,
    cu_seq_lens: torch.Tensor,
) -> FlatTokens:
    if attention_mask is not None:
        raise ValueError("attention_mask and cu_seq_lens_q were both given: leave attention_mask out.")
    bounds = on_host(cu_seq_lens).long()
    lengths = bounds.diff().tolist() if bounds.dim() == 1 else []
    if batch_size != 1 or len(lengths) == 0 or min(lengths) < 1 or sum(lengths) != row_length:
        raise ValueError(
            f"cu_seq_lens_q must rise from 0 to the row's {row_length} tokens and needs a batch of one row, got "
            f"{cu_seq_lens.tolist()} for {batch_size} row(s): concatenate the sequences into one row of shape (1, N)."
        )
    if bounds[0] != 0:
        raise ValueError(f"cu_seq_lens_q starts at {int(bounds[0])}: its first entry must be 0.")
    return FlatTokens(batch_size, row_length, cu_seq_lens=cu_seq_lens.to(device, torch.long), sequence_lengths=lengths)


def _additive_mask(mask: torch.Tensor, batch_size: int, row_length: int) -> torch.Tensor:
    if mask.dim() == 3:
        mask = mask[:, None]
    fits = mask.dim() == 4 and mask.shape[0] in (1, batch_size) and mask.shape[2] in (1, row_length)
    if not fits or mask.shape[3] != row_length:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}: pass ({batch_size}, {row_length}) flags, or a mask of "
            f"shape ({batch_size}, 1, {row_length}, {row_length})."
        )
    if mask.dtype == torch.bool:
        lowest = torch.finfo(torch.float32).min
        return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, lowest)
    return mask


class HiddenStateRecorder(nn.Module):
    """Pads a layer's flat output when hidden states are asked for; transformers' recording hook is on this module.

    The next layer reads the padded tensor, so that the recorded states are part of the graph and carry gradients.
    """

    def forward(self, before: torch.Tensor, after: torch.Tensor, tokens: FlatTokens) -> torch.Tensor:
        """Take the layer's input `(B, T, D)`, for the hook, and pad its output: `(N, D)` -> `(B, T, D)`."""
        return tokens.to(after.device).pad(after)
