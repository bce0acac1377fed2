"""Two streams of rows in one tensor: what is read, and what is predicted without being seen (XLNet, section 2.3).

Content rows are the flat tokens, `(N, D)`. Behind them stand the query rows of the P predicted tokens, so that
everything that is done row by row is done once for both, `(N + P, D)`; keys and values are those of the content rows.
Who sees whom is one integer per token, its `order`, instead of a matrix for each sequence: token i sees token j if
`order[j] <= order[i]`, and its query row if `order[j] < order[i]`.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from .encoder_tokens import FlatTokens, first_rows


@dataclass
class Streams:
    """The rows of one forward pass and who sees whom: what attention reads in every layer.

    Sequences are padded to L keys and n = L + Q rows, the L content rows and up to Q query rows.

    Args:
        tokens (`FlatTokens`): Layout of the N content rows.
        query_places (`torch.LongTensor` of shape `(P,)`, *optional*): Of each query row in the `S * Q` grid.
        most_queries (`int`): Q.
        distances (`torch.LongTensor` of shape `(S, n, L)`): Row of the table of distances, for each row and key.
        visible (`torch.BoolTensor` of shape `(S, 1, n, L)`, *optional*): Whether a row sees a key; None: all do. A row
            that sees nothing is marked as seeing the first key: no kernel knows what the mean of nothing is.
        sees_nothing (`torch.BoolTensor` of shape `(S, n, 1, 1)`, *optional*): The rows of which that is true.
        same_segment (`torch.BoolTensor` of shape `(S, 1, n, L)`, *optional*): Whether they have one token type.
    """

    tokens: FlatTokens
    query_places: torch.Tensor | None
    most_queries: int
    distances: torch.Tensor
    visible: torch.Tensor | None
    sees_nothing: torch.Tensor | None
    same_segment: torch.Tensor | None

    @property
    def num_rows(self) -> int:
        """N + P."""
        return self.tokens.num_tokens + (0 if self.query_places is None else len(self.query_places))

    def to(self, device: torch.device | int | str, non_blocking: bool = False) -> "Streams":
        """The same on another device; accelerate calls this where a model is spread over several."""
        found = {name: value for name, value in vars(self).items() if hasattr(value, "to")}
        return replace(self, **{name: value.to(device, non_blocking=non_blocking) for name, value in found.items()})

    def of_sequences(self, rows: torch.Tensor) -> torch.Tensor:
        """`(N + P, ...)` -> `(S, n, ...)`."""
        content = self.tokens.to_sequences(first_rows(rows, self.tokens.num_tokens))
        if self.query_places is None:
            return content
        queries = rows[self.tokens.num_tokens : self.num_rows]
        grid = queries.new_zeros(len(content) * self.most_queries, *queries.shape[1:])
        grid = grid.index_copy(0, self.query_places, queries)
        return torch.cat([content, grid.view(len(content), self.most_queries, *queries.shape[1:])], dim=1)

    def from_sequences(self, padded: torch.Tensor) -> torch.Tensor:
        """Inverse of `of_sequences`: `(S, n, ...)` -> `(N + P, ...)`."""
        content = self.tokens.from_sequences(padded[:, : self.tokens.longest])
        if self.query_places is None:
            return content
        queries = padded[:, self.tokens.longest :].flatten(0, 1)
        return torch.cat([content, queries.index_select(0, self.query_places)])


def make_streams(
    tokens: FlatTokens,
    device: torch.device,
    token_type_ids: torch.Tensor | None,
    order: torch.Tensor | None,
    is_reversed: torch.Tensor | None,
    queries: torch.Tensor | None,
    query_counts: torch.Tensor | None,
) -> Streams:
    """The streams of a batch; arguments as in `HfeXLNetModel.forward`, `token_type_ids` and `order` flat, `(N,)`.

    `queries` are the content rows that have a query row, `(P,)`, in their order; `query_counts` how many they are in
    each sequence, `(S,)` on the CPU, so that no accelerator is waited for.
    """
    longest = tokens.longest
    columns = tokens.columns(device)
    places, most = None, 0
    if queries is not None and len(queries):
        sequences = _sequence_of_tokens(tokens, device).index_select(0, queries)
        most = int(query_counts.max())
        first = (query_counts.cumsum(0) - query_counts).to(device, non_blocking=device.type == "cuda")
        places = sequences * most + torch.arange(len(queries), device=device) - first.index_select(0, sequences)
    streams = Streams(tokens, places, most, columns, None, None, None)

    def both(values: torch.Tensor, of_queries: torch.Tensor | None = None) -> torch.Tensor:
        if places is None:
            return streams.of_sequences(values)
        of_queries = values.index_select(0, queries) if of_queries is None else of_queries
        return streams.of_sequences(torch.cat([values, of_queries]))

    key_columns = tokens.to_sequences(columns)[:, None]
    distances = both(columns)[:, :, None] - key_columns
    if is_reversed is not None:
        distances = torch.where(is_reversed.to(device, torch.bool)[:, None, None], -distances, distances)
    visible = _visible_keys(tokens, longest + most, device)
    if order is not None:
        seen = None if places is None else order.index_select(0, queries) - 1
        may_see = tokens.to_sequences(order)[:, None] <= both(order, seen)[:, :, None]
        visible = may_see if visible is None else visible & may_see
    same = None
    if token_type_ids is not None:
        same = (both(token_type_ids)[:, :, None] == tokens.to_sequences(token_type_ids)[:, None])[:, None]
    sees_nothing = None
    if visible is not None:
        is_blind = ~visible.any(dim=-1, keepdim=True)
        is_first = torch.arange(longest, device=device) == 0
        visible, sees_nothing = (visible | (is_blind & is_first))[:, None], is_blind[..., None]
    masks = {"visible": visible, "sees_nothing": sees_nothing, "same_segment": same}
    return replace(streams, distances=distances + longest - 1, **masks)


def count_queries(tokens: FlatTokens, queries: torch.Tensor) -> torch.Tensor:
    """Number of queries in each sequence, of flags at the border on the CPU: `(B, T)` -> `(S,)`."""
    if not tokens.is_packed:
        return queries.sum(dim=1)
    before = nn.functional.pad(queries.flatten().cumsum(0), (1, 0))
    return before[nn.functional.pad(torch.tensor(tokens.sequence_lengths).cumsum(0), (1, 0))].diff()


def _sequence_of_tokens(tokens: FlatTokens, device: torch.device) -> torch.Tensor:
    """Index of the sequence that each flat token is in, `(N,)`."""
    if tokens.is_packed:
        return tokens.of_tokens(torch.arange(tokens.num_sequences, device=device))
    rows = torch.arange(tokens.batch_size, device=device)[:, None]
    return tokens.flatten(rows.expand(tokens.batch_size, tokens.row_length))


def _visible_keys(tokens: FlatTokens, rows: int, device: torch.device) -> torch.Tensor | None:
    """Keys that are tokens, `(S, 1 or n, L)`; None for all."""
    is_real = tokens.sequence_mask()
    if is_real is None:
        return None
    if is_real.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(is_real.shape)}: XLNet takes one flag per token; pass order to say who "
            "sees whom."
        )
    if tokens.attention_mask is None:
        return is_real[:, None]
    # Padding among the tokens sees itself too, as in transformers.
    return is_real[:, None] | torch.eye(rows, is_real.shape[1], dtype=torch.bool, device=device)
