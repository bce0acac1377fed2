"""The examples and the data collator of permutation language modelling (XLNet).

Source: `_create_data`, `_split_a_and_b` and `create_tfrecords` in `data_utils.py` of zihangdai/xlnet
(https://arxiv.org/abs/1906.08237, section 2.6): `reused A <sep> B <sep> <cls>`, where B follows A or comes from
elsewhere, with probability 1/2 each and without a label, and token types 0 for the reused text, A and its separator, 1
for B and its, 2 for `<cls>`. Differs in: rows are independent, without memory; chunks are whole sentences of one
document (`DocumentChunks`), and so is the reused text before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.ragged import offsets_of, ranges
from hf_encoders.corpus.special_tokens import mask_and_padding, sequence_ends
from hf_encoders.objectives.batches import (
    IGNORED,
    PackedLayout,
    PaddedLayout,
    TokenRows,
    join_rows,
    rows_of_mappings,
)
from hf_encoders.objectives.chunk_arrays import DocumentChunks
from hf_encoders.objectives.chunk_examples import SPECIAL_TOKENS_OF_A_PAIR, ChunkExamples, ChunkRule, join_chunks
from hf_encoders.objectives.collator_options import refuse_unknown_options, with_options_of
from hf_encoders.objectives.pair_arrays import Pairs, next_sentence_pairs, truncate_pairs
from hf_encoders.objectives.permutation import Permutation, TokenPermuter


SEGMENT_OF_CLS = 2


@dataclass(frozen=True, kw_only=True, repr=False)
class ReusedChunkExamples(ChunkExamples):
    """Chunks and the text before them."""

    reused_begin: np.ndarray  # where that text begins in the corpus; it ends where the chunk begins; int64, (B,)

    ARRAYS = (*ChunkExamples.ARRAYS, "reused_begin")


class ReusedChunks(DocumentChunks):
    """`DocumentChunks` for XLNet: chunks, and with `reuse` the text before each.

    Args:
        documents, seed, redraw, epochs_per_draw, dupe_factor, rule: As in `DocumentChunks`.
        max_length (`int`): Longest example in tokens, special tokens included.
        reuse (`bool`, *optional*, defaults to `False`): Whether the second half of an example is a chunk, and the
            first half the text of its document before it, as much as there is. So all text is read twice. The original
            has 512 = 256 + 256.

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11], [12], [13, 14, 15], [16]], [[20, 21], [22]]]})
    >>> chunks = ReusedChunks(documents, max_length=12, reuse=True, redraw=False)
    >>> example = chunks[1]
    >>> example.sentences(0)[0].tolist(), example.corpus.tokens[example.reused_begin[0] : example.begin[0]].tolist()
    ([13, 14, 15], [10, 11, 12])
    """

    @with_options_of(ChunkRule)
    def __init__(
        self,
        documents: datasets.Dataset,
        max_length: int,
        reuse: bool = False,
        seed: int = 0,
        redraw: bool = True,
        epochs_per_draw: int = 1,
        dupe_factor: int | None = None,
        **rule: Any,
    ):
        if not isinstance(reuse, bool):
            raise ValueError(f"reuse={reuse!r} must be true or false.")
        self.num_reused = max_length // 2 if reuse else 0
        self.if_no_room = "leave out reuse, which takes half of it" if reuse else "give text of shorter sentences"
        super().__init__(documents, max_length, seed, redraw, epochs_per_draw, dupe_factor, **rule)

    def examples(self, indices: np.ndarray) -> ReusedChunkExamples:
        """References to chunks and the text before them; no text is read."""
        chunks = super().examples(indices)
        starts = self.corpus.document_starts
        document = starts[np.searchsorted(starts, chunks.begin, "right") - 1]
        begin = np.maximum(chunks.begin - self.num_reused, document)
        return ReusedChunkExamples(**vars(chunks), reused_begin=begin)


def rows_of_pairs_before_cls(
    corpus: FlatCorpus,
    pairs: Pairs,
    reused_begin: np.ndarray,
    reused_end: np.ndarray,
    keys: np.ndarray,
    cls: int,
    sep: int,
) -> tuple[TokenRows, np.ndarray]:
    """`reused A <sep> B <sep> <cls>`, without `B <sep>` where B is empty; and the tokens of each reused text, `(B,)`.

    >>> corpus = FlatCorpus.from_lengths(np.arange(10, 20), np.array([10]), np.array([1]))
    >>> pairs = Pairs(np.array([[3, 5], [0, 0]]), np.array([[5, 6], [2, 0]]), np.array([0, -100]))
    >>> rows, reused = rows_of_pairs_before_cls(
    ...     corpus, pairs, np.array([1, 0]), np.array([3, 0]), np.zeros(2, np.uint64), cls=1, sep=2
    ... )
    >>> rows.ids.tolist(), rows.token_type_ids.tolist(), rows.lengths.tolist(), reused.tolist()
    ([11, 12, 13, 14, 2, 15, 2, 1, 10, 11, 2, 1], [0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 2], [8, 4], [2, 0])
    """
    begin = np.column_stack([reused_begin, pairs.begin])
    end = np.column_stack([reused_end, pairs.end])
    has_separator = np.array([False, True, True]) & (begin < end)
    has_separator[:, 1] = True
    sizes = end - begin + has_separator
    sizes = np.column_stack([sizes, np.ones_like(sizes[:, 0])])  # <cls>
    bounds = offsets_of(sizes.ravel())
    separators = bounds[1:].reshape(sizes.shape)[:, :3][has_separator] - 1
    is_text = np.ones(bounds[-1], dtype=bool)
    is_text[separators] = is_text[bounds[4::4] - 1] = False
    places = ranges(begin.ravel(), end.ravel())
    ids = np.empty(bounds[-1], dtype=corpus.tokens.dtype)
    ids[separators], ids[bounds[4::4] - 1], ids[is_text] = sep, cls, corpus.tokens[places]
    starts = None
    if corpus.word_starts is not None:
        starts = np.ones(bounds[-1], dtype=np.uint8)
        starts[is_text] = corpus.word_starts[places]
    types = np.repeat(np.tile(np.array([0, 0, 1, SEGMENT_OF_CLS], dtype=np.int8), len(sizes)), sizes.ravel())
    return TokenRows(ids, sizes.sum(axis=1), keys, types, starts), sizes[:, 0]


def with_matrices(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Make a padded batch one of transformers' `XLNetLMHeadModel`, which has the same loss.

    Rows that are read in reverse are written in reverse, which negates their distances, so `bi_data` of the
    configuration must be false, as it is by default. A row of one token of text alone has another loss: where that
    token is the first of the order and sees nothing, transformers' attention is the mean of the whole row.

    Args:
        batch (`dict`): As from `DataCollatorForPermutationLM`, right-padded.

    Returns:
        `dict`: with `perm_mask`, `(B, T, T)`, 1 where a token does not see another, and `target_mapping`, `(B, P, T)`,
        1 at each row's predicted tokens, of which a row has P at most, instead of `order` and `is_reversed`; `labels`,
        `(B, P)`, are those of the predicted tokens.
    """
    batch = dict(batch)
    lengths, is_reversed = batch["attention_mask"].sum(dim=1, keepdim=True), batch.pop("is_reversed")[:, None]
    places = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])
    mirrored = torch.where(is_reversed & (places < lengths), lengths - 1 - places, places)
    batch = {name: value.gather(1, mirrored) for name, value in batch.items()}
    order, is_target = batch.pop("order"), batch["labels"] != IGNORED
    # A prediction does not see its own token; content does, whatever the diagonal says.
    is_hidden = (order[:, None, :] > order[:, :, None]) | torch.diag_embed(is_target)
    rows, targets = is_target.nonzero(as_tuple=True)
    numbers = is_target.cumsum(dim=1)[is_target] - 1
    most = int(is_target.sum(dim=1).max())
    mapping = torch.zeros(len(order), most, order.shape[1])
    mapping[rows, numbers, targets] = 1.0
    labels = torch.full((len(order), most), IGNORED)
    labels[rows, numbers] = batch["labels"][is_target]
    return {**batch, "labels": labels, "perm_mask": is_hidden.float(), "target_mapping": mapping}


class DataCollatorForPermutationLM:
    """Chooses tokens to predict and the order to predict them in, and pads the batch, or packs it into one row.

    transformers' collator of a similar name is not XLNet's procedure: it writes mask tokens over what is predicted, so
    that no prediction depends on another, and if one undoes that, separators carry predicted tokens to all others.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and words.
        packed (`bool`, *optional*, defaults to `False`): Whether all examples come back to back in one row, without
            padding.
        pad_to_multiple_of (`int`, *optional*): Pad rows to a multiple of this length; not for packed batches.
        for_transformers (`bool`, *optional*, defaults to `False`): Whether the batch is for transformers'
            `XLNetLMHeadModel`, which takes no `order` and trains another objective on such a batch without an error;
            see `with_matrices`. Not for packed batches.
        permutation: Arguments of `Permutation`: `predicted_one_in` (6), `max_span` (5), and so on.

    Input: examples of `ReusedChunks` or `DocumentChunks`; or rows whose `input_ids` end with `<sep> <cls>` already
        (and perhaps have `token_type_ids`), as XLNet's tokenizer returns them.

    Output: `input_ids` with the true tokens, `attention_mask`, `token_type_ids`, `order` and `labels`, each `(B, T)`
        `int64`; labels are the predicted tokens, -100 elsewhere, and `order` says who sees whom: token i sees token j
        if `order[j] <= order[i]`, and its prediction depends on those with `order[j] < order[i]`. `is_reversed`,
        `(B,)` `bool`: examples that are read in reverse. Packed as in `DataCollatorForMaskedLM`. With
        `for_transformers`, `perm_mask` and `target_mapping` instead of `order` and `is_reversed`.

    Example, with ids 1 = <cls> and 2 = <sep>: 11 is predicted from tokens of order 0 and the first <sep>, then 12 from
    these, 11 and <cls>:

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11, 12, 13], [14, 15, 16]], [[20], [21]]]})
    >>> chunks = ReusedChunks(documents, max_length=12, redraw=False, seed=5)
    >>> batch = DataCollatorForPermutationLM(doctest_tokenizer(), predicted_one_in=3)([chunks[0]])
    >>> for name, value in batch.items():
    ...     print(name, value.tolist())
    input_ids [[10, 11, 12, 13, 2, 14, 15, 16, 2, 1]]
    attention_mask [[1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]
    labels [[-100, 11, 12, -100, -100, -100, -100, -100, -100, -100]]
    order [[0, 2, 4, 0, 1, 0, 0, 0, 5, 3]]
    is_reversed [False]
    token_type_ids [[0, 0, 0, 0, 0, 1, 1, 1, 1, 2]]
    """

    @with_options_of(Permutation)
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        packed: bool = False,
        pad_to_multiple_of: int | None = None,
        for_transformers: bool = False,
        **permutation: Any,
    ):
        refuse_unknown_options(self, permutation, (field.name for field in fields(Permutation)))
        self.cls, self.sep = sequence_ends(tokenizer)
        self.padding_id = mask_and_padding(tokenizer)[1]
        self.permuter = TokenPermuter(tokenizer, **permutation)
        if pad_to_multiple_of is not None and (packed or not isinstance(pad_to_multiple_of, int)):
            raise ValueError(
                f"pad_to_multiple_of={pad_to_multiple_of!r} must be a whole number, of a batch that is not packed: "
                "leave it out."
            )
        if for_transformers and packed:
            raise ValueError("for_transformers=True: transformers' XLNet takes no packed batch; leave out packed.")
        self.packed, self.pad_to_multiple_of, self.for_transformers = packed, pad_to_multiple_of, for_transformers

    def __repr__(self) -> str:
        options = self.permuter.options
        shown = {name: True for name in ("packed", "for_transformers") if getattr(self, name)}
        shown |= {f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) != f.default}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def __call__(
        self, features: Sequence[ChunkExamples | Mapping[str, Any]], return_tensors: str = "pt"
    ) -> dict[str, torch.Tensor | int]:
        """Make a batch of all examples in `features`; `return_tensors` is there for callers of other collators."""
        if return_tensors != "pt":
            raise ValueError(f"return_tensors={return_tensors!r}: batches are torch tensors ('pt'); leave it out.")
        rows, reused = self.make_rows(features)
        permuted = self.permuter(rows.ids, rows.lengths, rows.keys, reused, rows.word_starts)
        layout = PackedLayout(rows.lengths) if self.packed else PaddedLayout(rows.lengths, self.pad_to_multiple_of)
        batch = {
            "input_ids": layout.fill(rows.ids, self.padding_id),
            **layout.structure(),
            "labels": layout.scatter(permuted.rows, permuted.positions, rows.ids[permuted.positions], IGNORED),
            "order": layout.fill(permuted.order, 0),
            "is_reversed": torch.from_numpy(permuted.is_reversed),
        }
        if rows.token_type_ids is not None:
            batch["token_type_ids"] = layout.fill(rows.token_type_ids, SEGMENT_OF_CLS + 1)
        return with_matrices(batch) if self.for_transformers else batch

    def make_rows(self, features: Sequence[ChunkExamples | Mapping[str, Any]]) -> tuple[TokenRows, np.ndarray]:
        """All examples with their special tokens, and how many tokens of each are reused text, `(B,)`."""
        if all(isinstance(feature, Mapping) for feature in features):
            rows = rows_of_mappings(list(features))
            self._check_rows(rows)
            return rows, np.zeros(len(rows.lengths), dtype=np.int64)
        rows, reused = zip(*(self._rows_of_chunks(chunks) for chunks in self._as_chunks(features)), strict=True)
        return join_rows(rows), np.concatenate(reused)

    def example_lengths(self, examples: ChunkExamples) -> np.ndarray:
        """Length of each example in a batch, special tokens included, `int64` of shape `(B,)`."""
        (chunks,) = self._as_chunks([examples])
        pairs, begin, end = self._pairs(chunks)
        lengths = pairs.end - pairs.begin
        return lengths.sum(axis=1) + SPECIAL_TOKENS_OF_A_PAIR - (lengths[:, 1] == 0) + end - begin

    def _as_chunks(self, features: Sequence[Any]) -> list[ChunkExamples]:
        if others := sorted({type(one).__name__ for one in features if not isinstance(one, ChunkExamples)}):
            raise ValueError(
                f"features are {others}: train on ReusedChunks(documents, max_length), or on rows of a tokenized "
                "dataset, not on both."
            )
        if any(one.mask_rate is not None for one in features):
            raise ValueError("mask_rate: the order of a row depends on what is predicted of it: leave it out of plm.")
        return join_chunks(features)

    def _pairs(self, chunks: ChunkExamples) -> tuple[Pairs, np.ndarray, np.ndarray]:
        """Pairs that fit, and begin and end of the reused text."""
        pairs = truncate_pairs(next_sentence_pairs(chunks), chunks.max_length, chunks.keys)
        return pairs, getattr(chunks, "reused_begin", chunks.begin), chunks.begin

    def _rows_of_chunks(self, chunks: ChunkExamples) -> tuple[TokenRows, np.ndarray]:
        return rows_of_pairs_before_cls(chunks.corpus, *self._pairs(chunks), chunks.keys, self.cls, self.sep)

    def _check_rows(self, rows: TokenRows) -> None:
        last = rows.ids[offsets_of(rows.lengths)[1:] - 1]
        if (last != self.cls).any():
            row = int((last != self.cls).argmax())
            raise ValueError(
                f"input_ids of row {row} of the batch end with {last[row]}, and XLNet's with <cls> ({self.cls}): "
                "tokenize with XLNet's tokenizer and its special tokens."
            )
