"""Attention by content and distance (DeBERTa, He et al. 2020, https://arxiv.org/abs/2006.03654, section 3.1).

The score of tokens i and j is `q_i k_j + q_i K_{i-j} + k_j Q_{i-j}`, where K and Q are projections of a table with a
row for each bucket of distances. All products of rows with distances are computed, and those of row i with `i - j` lie
on diagonals, which are a view: nothing is gathered.
"""

from typing import Any

import torch
from torch import nn

from .configuration_deberta_v2 import HfeDebertaV2Config
from .encoder_attention import EncoderSelfAttention, without_cudnn
from .encoder_kernels import (
    EncoderDropout,
    Heads,
    gradient_of_scores,
    is_eager,
    matmul_dtype,
    project,
    random_bits,
    sample_seed,
    scaled_mask,
    views_of_sequences,
)
from .encoder_tokens import FlatTokens


SHORT = 64  # tokens; sequences up to here are attended to by one call
BLOCK = 64  # rows whose products with distances are computed at once: with fewer, fewer of them are of no use


def table_rows(config: HfeDebertaV2Config, longest: int) -> torch.Tensor:
    """Return the row of the table for each distance from -(L - 1) to L - 1, `(2 * L - 1,)`, on the CPU.

    `make_log_bucket_position` in `DeBERTa/deberta/da_utils.py` of microsoft/DeBERTa, in float32 as there.
    """
    distances = torch.arange(1 - longest, longest, device="cpu")
    if config.position_buckets > 0:
        middle = config.position_buckets // 2
        sizes = distances.abs().clamp(min=middle)  # smaller ones are not read
        widths = torch.log(torch.tensor((config.max_relative_positions - 1) / middle))
        far = torch.ceil(torch.log(sizes / middle) / widths * (middle - 1)) + middle
        distances = torch.where(sizes <= middle, distances, (far * distances.sign()).long())
    return (distances + config.distance_span).clamp(0, 2 * config.distance_span - 1)


def along_diagonals(products: torch.Tensor, width: int) -> torch.Tensor:
    """Return the element (i, rows - 1 - i + j) as element (i, j): `(..., rows, width + rows - 1)` -> a view.

    Columns that are distances, in falling order, become those of the tokens that are so far: `(..., rows, width)`.

    >>> along_diagonals(torch.tensor([[0, 1, 2], [3, 4, 5]]), 2).tolist()  # i - j is 1, 0 and -1 in the columns
    [[1, 2], [3, 4]]
    """
    rows, columns = products.shape[-2:]
    if rows < 2:
        return products
    shifted = products.flatten(-2)[..., rows - 1 : rows - 1 + rows * (columns - 1)]
    return shifted.unflatten(-1, (rows, columns - 1))[..., :width]


class DisentangledSelfAttention(EncoderSelfAttention):
    """Self-attention whose scores are of content and content, content and distance, distance and content [3.1].

    The score of tokens i and j is `q_i k_j + q_i K_{i-j} + k_j Q_{i-j}` over the square root of three times the head's
    width, where K and Q are projections of the table of distances; fewer terms have a smaller root.
    """

    projections = ("query_proj", "key_proj", "value_proj")

    def __init__(self, config: HfeDebertaV2Config):
        super().__init__(config)
        self.terms = config.distance_terms
        self.scaling = (self.attention_head_size * (1 + len(self.terms))) ** -0.5
        self.pos_dropout = EncoderDropout(config.hidden_dropout_prob)
        for term, name in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")):
            if config.relative_attention and not config.share_att_key and term in self.terms:
                setattr(self, name, nn.Linear(config.hidden_size, config.hidden_size))

    def forward(
        self,
        hidden_states: torch.Tensor,
        tokens: FlatTokens,
        output_attentions: bool = False,
        table: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(N, D)` and the table of distances `(rows, D)` -> `(N, D)`, and the weights `(S, A, L, L)` if asked for."""
        self._project_distances(table, tokens)
        return super().forward(hidden_states, tokens, output_attentions)

    def _project_distances(self, table: torch.Tensor | None, tokens: FlatTokens) -> None:
        """Keep K and Q of each distance for `distance_scores`, `(A, 2 * L - 1, H)` each or None.

        K are in the order of falling distances, from L - 1 to -(L - 1), Q in that of rising ones.
        """
        if table is None:
            return
        rows = tokens.derived.get("table_rows")
        if rows is None:
            rows = tokens.derived["table_rows"] = table_rows(self.config, tokens.longest)
        if not torch.compiler.is_compiling():  # a graph has no bounds that depend on values
            first, last = int(rows.min()), int(rows.max())
            table, rows = table[first : last + 1], rows - first
        table = self.pos_dropout(table)
        table, rows = table.to(matmul_dtype(table)), rows.to(table.device, non_blocking=True)

        def projected(name: str) -> torch.Tensor:
            heads = project(getattr(self, name), table).view(len(table), self.num_attention_heads, -1)
            return heads.transpose(0, 1).index_select(1, rows)

        names = ("key_proj", "query_proj") if self.config.share_att_key else ("pos_key_proj", "pos_query_proj")
        keys, queries = (
            projected(name) if term in self.terms else None for term, name in zip(("c2p", "p2c"), names, strict=True)
        )
        tokens.derived["distances"] = None if keys is None else keys.flip(1), queries

    def _attend(
        self, heads: Heads, tokens: FlatTokens, output_attentions: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        implementation = "eager" if output_attentions else self.config._attn_implementation
        can_split = implementation == "sdpa" and heads[0].device.type == "cpu" and is_eager()
        can_split = can_split and tokens.attention_mask is None and not tokens.is_causal
        if can_split and tokens.longest > SHORT and self.adds_to_scores(tokens) and not has_gaps(tokens):
            inputs = *heads, *tokens.derived["distances"]
            return attend_to_each(*inputs, tokens.lengths(), self.scaling, self._dropout), None
        if implementation == "sdpa" and heads[0].device.type == "cpu":
            # torch's kernel takes no mask with a gradient, and what it falls back on rounds otherwise.
            implementation = "eager"
        return self._attend_padded(heads, tokens, implementation)

    def adds_to_scores(self, tokens: FlatTokens) -> bool:
        """Return whether scores depend on distances."""
        return self.config.relative_attention and bool(self.terms)

    def distance_scores(
        self, query: torch.Tensor, key: torch.Tensor, columns: torch.Tensor, tokens: FlatTokens
    ) -> torch.Tensor:
        """Return what distances add to the scaled scores, `(S, A, L, L)`; arguments as in the base class."""
        return distance_scores(query, key, *tokens.derived["distances"]) * self.scaling

    def _scores_at(
        self, query: torch.Tensor, key: torch.Tensor, distances: torch.Tensor, tokens: FlatTokens
    ) -> torch.Tensor:
        """Return `distance_scores` for any distances, `(S or 1, Q, L)`, of queries `(S, A, Q, H)`."""
        rows = distances[:, None].expand(*query.shape[:2], -1, -1)
        (keys, queries), last, scores = tokens.derived["distances"], tokens.longest - 1, 0.0
        if keys is not None:
            scores = scores + (query @ keys.transpose(-1, -2)).gather(-1, last - rows)
        if queries is not None:
            products = (key @ queries.transpose(-1, -2)).gather(-1, last + rows.transpose(-1, -2))
            scores = scores + products.transpose(-1, -2)
        return scores * self.scaling

    def attend_from(
        self,
        states: torch.Tensor,
        places: torch.Tensor | None,
        hidden_states: torch.Tensor,
        tokens: FlatTokens,
        table: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention of other rows to the tokens, as from some of their places.

        Args:
            states (`torch.Tensor` of shape `(P, D)`): Rows that queries are made of.
            places (`torch.LongTensor` of shape `(P,)`, *optional*): Index of the token in whose place each row stands,
                rising; None: there is one for each token.
            hidden_states (`torch.Tensor` of shape `(N, D)`): Of the tokens.

        Returns:
            `torch.Tensor` of shape `(P, D)`.

        Raises:
            ValueError: for masks of more than one flag per token.
        """
        if tokens.is_causal or (tokens.attention_mask is not None and tokens.attention_mask.dim() != 2):
            name = (
                "is_causal=True" if tokens.is_causal else f"attention_mask of {tokens.attention_mask.dim()} dimensions"
            )
            raise ValueError(
                f"{name}: the decoder of masked tokens (enhanced_mask_decoder=True) sees all tokens of a sequence: "
                "leave it out, or pass attention_mask of shape (B, T)."
            )
        self._project_distances(table, tokens)
        hidden_states, device = hidden_states.to(matmul_dtype(hidden_states)), states.device
        shape = (-1, self.num_attention_heads, self.attention_head_size)
        query = project(self.query_proj, states.to(hidden_states.dtype)).view(shape)
        key, value = (
            tokens.to_sequences(project(linear, hidden_states).view(shape)).transpose(1, 2)
            for linear in (self.key_proj, self.value_proj)
        )
        columns = tokens.columns(device)
        if places is None:
            query, columns = tokens.to_sequences(query), tokens.to_sequences(columns)
        else:
            sequences = tokens.of_tokens(torch.arange(tokens.num_sequences, device=device)).index_select(0, places)
            counts = sequences.bincount(minlength=tokens.num_sequences)
            most = int(counts.max())
            slots = torch.arange(len(places), device=device) - (counts.cumsum(0) - counts).index_select(0, sequences)
            slots = slots + sequences * most

            def of_sequences(rows: torch.Tensor) -> torch.Tensor:  # (P, *) -> (S, most, *)
                grid = rows.new_zeros(len(counts) * most, *rows.shape[1:]).index_copy(0, slots, rows)
                return grid.view(len(counts), most, *rows.shape[1:])

            query, columns = of_sequences(query), of_sequences(columns.index_select(0, places))
        query = query.transpose(1, 2)
        distances = columns[:, :, None] - torch.arange(tokens.longest, device=device)
        bias = self._scores_at(query, key, distances, tokens) if self.adds_to_scores(tokens) else None
        if (is_real := tokens.sequence_mask()) is not None:
            bias = query.new_zeros(()) if bias is None else bias
            bias = bias.masked_fill(~is_real[:, None, None], torch.finfo(query.dtype).min)
        with without_cudnn(query):
            context = nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, dropout_p=self._dropout, scale=self.scaling
            )
        context = context.transpose(1, 2)
        if places is None:
            return tokens.from_sequences(context).flatten(1)
        return context.flatten(0, 1).index_select(0, slots).flatten(1)


def distance_scores(
    query: torch.Tensor, key: torch.Tensor, keys: torch.Tensor | None, queries: torch.Tensor | None
) -> torch.Tensor:
    """Return `q_i K_{i-j} + k_j Q_{i-j}`, `(..., L, L)`.

    Args:
        query, key (`torch.Tensor` of shape `(..., L, H)`): Of the tokens.
        keys, queries (`torch.Tensor` of shape `(..., 2 * L - 1, H)`, *optional*): K in the order of falling distances,
            Q in that of rising ones; one of them may be None.
    """
    length, scores = query.shape[-2], 0.0
    if keys is not None:
        scores = scores + along_diagonals(query @ keys.transpose(-1, -2), length)
    if queries is not None:
        scores = scores + along_diagonals(key @ queries.transpose(-1, -2), length).transpose(-1, -2)
    return scores


def has_gaps(tokens: FlatTokens) -> bool:
    """Return whether padding lies between tokens of a sequence; once per forward pass, of tokens on a CPU."""
    if tokens.kept is None or not tokens.sequence_lengths:
        return False
    if "has gaps" not in tokens.derived:
        places = tokens.kept.split(tokens.sequence_lengths)
        tokens.derived["has gaps"] = any(len(x) > 0 and int(x[-1] - x[0]) != len(x) - 1 for x in places)
    return tokens.derived["has gaps"]


# --- sequence by sequence on a CPU ---


def attend_to_each(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor | None,
    queries: torch.Tensor | None,
    lengths: list[int],
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """Compute attention within sequences: `(N, A, H)` each and K and Q, `(A, 2 * L - 1, H)` -> `(N, A, H)`.

    At least in float32: in bfloat16 every new length is compiled.
    """
    exact = torch.promote_types(query.dtype, torch.float32)
    terms, contexts = [None if x is None else x.to(exact) for x in (keys, queries)], []
    longest = (next(x.shape[1] for x in terms if x is not None) + 1) // 2  # that padding was added to
    heads = views_of_sequences(lengths, *(x.to(exact) for x in (query, key, value)))
    with torch.autocast("cpu", enabled=False):
        for length, *its_heads in zip(lengths, *heads, strict=True):
            spare = longest - length
            its_terms = [None if x is None else x[:, spare : spare + 2 * length - 1] for x in terms]
            seed = sample_seed(length) if dropout > 0 else 0
            contexts.append(_DisentangledAttention.apply(*its_heads, *its_terms, seed, scaling, dropout))
    return torch.cat(contexts, dim=1).transpose(0, 1).to(query.dtype)


class _DisentangledAttention(torch.autograd.Function):
    """Attention within one sequence, `(A, L, H)`; besides its inputs the weights are saved, without dropout."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        *tensors, seed, scaling, dropout = inputs
        query, key, value, keys, queries = tensors
        query, queries = query * scaling, None if queries is None else queries * scaling
        scores = torch.bmm(query, key.transpose(1, 2))
        for rows, band in _blocks(query.shape[1]):
            if keys is not None:
                products = torch.bmm(query[:, rows], keys[:, band].transpose(1, 2))
                scores[:, rows] += along_diagonals(products, query.shape[1])
            if queries is not None:
                products = torch.bmm(key[:, rows], queries[:, band].transpose(1, 2))
                scores[:, :, rows] += along_diagonals(products, query.shape[1]).transpose(1, 2)
        weights = scores.softmax(dim=-1)
        ctx.save_for_backward(*tensors, weights)
        ctx.numbers = seed, scaling, dropout
        mask = _mask(weights, seed, dropout)
        return torch.bmm(weights if mask is None else mask.mul_(weights), value)

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *tensors, weights = ctx.saved_tensors
        seed, scaling, dropout = ctx.numbers
        if torch.is_grad_enabled():  # to be differentiated again
            return *_gradients_in_graph(tensors, gradient, *ctx.numbers), None, None, None
        query, key, value, keys, queries = tensors
        query, scaled_queries = query * scaling, None if queries is None else queries * scaling
        of_weights, mask = torch.bmm(gradient, value.transpose(1, 2)), _mask(weights, seed, dropout)
        if mask is not None:
            of_weights.mul_(mask)
        of_value = torch.bmm((weights if mask is None else mask.mul_(weights)).transpose(1, 2), gradient)
        of_scores = gradient_of_scores(of_weights, weights)
        of_query, of_key = torch.bmm(of_scores, key), torch.bmm(of_scores.transpose(1, 2), query)
        of_keys, of_queries = (None if x is None else torch.zeros_like(x) for x in (keys, queries))
        for rows, band in _blocks(query.shape[1]):
            num_rows = rows.stop - rows.start
            products = query.new_zeros(len(query), num_rows, band.stop - band.start)
            diagonals = along_diagonals(products, query.shape[1])  # what is not on them stays zero
            if keys is not None:
                diagonals.copy_(of_scores[:, rows])
                of_query[:, rows].baddbmm_(products, keys[:, band])
                of_keys[:, band].baddbmm_(products.transpose(1, 2), query[:, rows])
            if queries is not None:
                diagonals.copy_(of_scores[:, :, rows].transpose(1, 2))
                of_key[:, rows].baddbmm_(products, scaled_queries[:, band])
                of_queries[:, band].baddbmm_(products.transpose(1, 2), key[:, rows], alpha=scaling)
        return of_query.mul_(scaling), of_key, of_value, of_keys, of_queries, None, None, None


def _blocks(length: int) -> list[tuple[slice, slice]]:
    """Return blocks of rows, and for each the places of the distances from its rows to all tokens."""
    starts = range(0, length, BLOCK)
    rows = [slice(start, min(start + BLOCK, length)) for start in starts]
    return [(block, slice(length - block.stop, 2 * length - 1 - block.start)) for block in rows]


def _mask(weights: torch.Tensor, seed: int, dropout: float) -> torch.Tensor | None:
    """Return the scaled mask of dropout of a seed; None without dropout."""
    return None if dropout == 0 else scaled_mask(random_bits(weights.shape, seed), dropout, weights.dtype)


def _gradients_in_graph(
    tensors: list[torch.Tensor | None], gradient: torch.Tensor, seed: int, scaling: float, dropout: float
) -> list[torch.Tensor | None]:
    """Return the gradients of `_DisentangledAttention`, as a graph."""
    with torch.enable_grad():
        query, key, value, *terms = tensors
        scores = query @ key.transpose(1, 2) + distance_scores(query, key, *terms)
        weights = (scores * scaling).softmax(dim=-1)
        mask = _mask(weights, seed, dropout)
        context = (weights if mask is None else weights * mask) @ value
        inputs = [x for x in tensors if x is not None]
        gradients = iter(torch.autograd.grad(context, inputs, gradient, create_graph=True))
    return [None if x is None else next(gradients) for x in tensors]
