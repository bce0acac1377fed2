"""Permutation language modelling (XLNet): examples, which tokens are predicted and in which order, data collator.

Sources: sections 2.2 to 2.6 of the paper (https://arxiv.org/abs/1906.08237); `_create_data`, `_split_a_and_b`,
`_sample_mask`, `_local_perm` and `create_tfrecords` in `data_utils.py` of zihangdai/xlnet. As there:

- `reused A <sep> B <sep> <cls>`, where B follows A or comes from elsewhere, with probability 1/2 each and without a
  label, and token types 0 for the reused text, A and its separator, 1 for B and its, 2 for `<cls>`.
- Spans of 1 to 5 tokens, n with probability proportional to 1/n, each within a context of 6n tokens: a part of the
  context before it, uniform in [0, 6n), then on to the next beginning of a word, then the span. The paper speaks of n
  words; the loop of the code counts tokens, and its authors left it so (pull request 16). Spans do not reach the last
  token. What is missing to a sixth of the tokens is filled with single tokens anywhere.
- One rank for each token that is chosen, and for each separator and `<cls>`: a uniform permutation of them. All other
  tokens come before these. Separators and `<cls>` are in the order, but never predicted.
- An example of two parts has a permutation in each: the second part comes after all of the first.
- Some examples are read in reverse: spans are chosen on the reversed text, so they end at the first token of a word.

Differs in: examples are independent, without memory; chunks are whole sentences of one document (`DocumentChunks`),
and so is the reused text before them; the original reverses the second half of each batch.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import mask_and_padding, sequence_ends
from hf_encoders.corpus.word_starts import UnitStart, WordStarts
from hf_encoders.inputs import is_number
from hf_encoders.objectives.batch import IGNORED, Row, batch
from hf_encoders.objectives.dataset import refuse_unknown_options, with_options_of
from hf_encoders.objectives.mlm import MaskedLanguageModelling, plain_row
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.randomness import Key, RandomStream, generator
from hf_encoders.objectives.sentence_pairs import ChunkExample, ChunkRule, DocumentChunks, next_sentence_pair


SEGMENT_OF_CLS = 2


@dataclass(frozen=True)
class Permutation:
    """How tokens are chosen and permuted.

    Args:
        predicted_one_in (`int`, *optional*, defaults to 6): One of so many tokens is predicted, the paper's K: a span
            of n stands in a context of K * n.
        max_span (`int`, *optional*, defaults to 5): Most tokens of a span.
        fill_up (`bool`, *optional*, defaults to `True`): Whether single tokens fill up what the spans leave of
            1/K of a row. Without it 14 % are predicted at K = 6.
        reversed_share (`float`, *optional*, defaults to 0.5): Share of the examples in [0, 1] that are read in reverse
            (`bi_data` of the original code).
        word_starts (`Callable`, *optional*): Makes of the tokenizer a function that finds the first tokens of words;
            see `WordStarts`. Not used for a corpus with a column `word_starts`.
    """

    predicted_one_in: int = 6
    max_span: int = 5
    fill_up: bool = True
    reversed_share: float = 0.5
    word_starts: Callable[[PreTrainedTokenizerBase], Callable[[np.ndarray, np.ndarray], np.ndarray]] = WordStarts

    def __post_init__(self):
        for name, least in (("predicted_one_in", 2), ("max_span", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")
        if not isinstance(self.fill_up, bool):
            raise ValueError(f"fill_up={self.fill_up!r} must be true or false.")
        if not (is_number(self.reversed_share) and 0 <= self.reversed_share <= 1):
            raise ValueError(f"reversed_share={self.reversed_share!r} must be in [0, 1]; XLNet uses 0.5.")


def choose_tokens(
    starts: np.ndarray, goal: int | None, options: Permutation, random: np.random.Generator
) -> np.ndarray:
    """Choose tokens of a part of an example in the direction of reading, as `_sample_mask` does: `bool`, `(T,)`.

    `starts` says where words begin, `bool`, `(T,)`. Without a `goal`, their number is what the spans give.
    """
    shares = 1 / np.arange(1, options.max_span + 1)
    bounds = np.cumsum(shares / shares.sum())[:-1]
    is_chosen, count, at = np.zeros(len(starts), dtype=bool), 0, 0
    starts = starts.tolist()
    while at < len(starts) and (goal is None or count < goal):
        size = 1 + int(bounds.searchsorted(random.random(), "right"))
        if goal is not None:
            size = min(size, goal - count)
        context = options.predicted_one_in * size
        before = int(random.random() * context)
        begin = at + before
        while begin < len(starts) and not starts[begin]:
            begin += 1
        end = begin + size
        if end >= len(starts):
            break
        is_chosen[begin:end] = True
        count += size
        at = end + context - before
    if goal is not None and count < goal:
        left = np.flatnonzero(~is_chosen)
        is_chosen[random.permutation(left)[: goal - count]] = True
    return is_chosen


def permute(
    starts: np.ndarray,
    is_functional: np.ndarray,
    first_length: int,
    options: Permutation,
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Choose tokens of an example to predict, and the order to predict them in.

    Args:
        starts, is_functional (`np.ndarray` of `bool`, shape `(T,)`): Where words begin; separators and `<cls>`.
        first_length (`int`): Tokens of the first of two parts; 0, or T, if the example has one part only.
        options (`Permutation`): How.
        random (`np.random.Generator`): Random numbers.

    Returns:
        Whether a token is predicted, `bool` `(T,)`; its rank in the order, 0 for what all see, `int64` `(T,)`: a token
        sees those with at most its rank; and whether the example is read in reverse.
    """
    length = len(starts)
    first_length %= length
    is_reversed = bool(random.random() < options.reversed_share)
    direction = -1 if is_reversed else 1
    # 1/K of the example, divided by the lengths of its parts: 85 of 512 is 43 and 42, as in the original code.
    goal = max(length // options.predicted_one_in, 1)
    second_goal = goal * (length - first_length) // length
    parts = [(0, first_length, goal - second_goal), (first_length, length, second_goal)]
    is_chosen, order, rank = np.zeros(length, dtype=bool), np.zeros(length, dtype=np.int64), 0
    for begin, end, goal in parts if first_length else parts[1:]:
        part, goal = slice(begin, end), goal if options.fill_up else None
        is_chosen[part] = choose_tokens(starts[part][::direction], goal, options, random)[::direction]
        # What all of the part see comes after all of the part before it.
        order[part] = rank
        ranked = begin + np.flatnonzero((is_chosen | is_functional)[part])
        order[random.permutation(ranked)] = rank + 1 + np.arange(len(ranked))
        rank += 1 + len(ranked)
    return is_chosen & ~is_functional, order, is_reversed


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
    >>> example.reused[0].tolist(), [segment.tolist() for segment in example.segments]
    ([10, 11, 12], [[13, 14, 15]])
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
        draws = redraw, epochs_per_draw, dupe_factor
        try:
            super().__init__(documents, max_length - self.num_reused, seed, *draws, **rule)
        except ValueError as error:
            hint = " Or leave out reuse, which takes half of max_length." if reuse else ""
            raise ValueError(f"{error}{hint}") from error

    def example(self, index: int) -> ChunkExample:
        """Return chunk `index` of the current epoch and the text before it."""
        chunk, starts = super().example(index), self.corpus.document_starts
        document = int(starts[np.searchsorted(starts, chunk.begin, "right") - 1])
        chunk.reused = self.text(max(chunk.begin - self.num_reused, document), chunk.begin)
        return chunk


def with_matrices(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Make a padded batch one of transformers' `XLNetLMHeadModel`, which has the same loss.

    Rows that are read in reverse are written in reverse, which negates their distances, so `bi_data` of the
    configuration must be false, as it is by default. A predicted token that sees nothing, because it is all of the
    row's text or all of the reused text, has another loss: transformers' attention is the mean of the whole row.

    Args:
        batch (`dict`): As from `DataCollatorForPermutationLM`, right-padded.

    Returns:
        `dict`: with `perm_mask`, `(B, T, T)`, 1 where a token does not see another, and `target_mapping`, `(B, P, T)`,
        1 at each row's predicted tokens, of which a row has P at most, instead of `order` and `is_reversed`; `labels`,
        `(B, P)`, are those of the predicted tokens.
    """
    batch = dict(batch)
    lengths, is_reversed = batch["attention_mask"].sum(dim=1, keepdim=True), batch.pop("is_reversed")[:, None]
    positions = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])
    mirrored = torch.where(is_reversed & (positions < lengths), lengths - 1 - positions, positions)
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
    """Choose tokens to predict and the order to predict them in, and pad the batch, or pack it into one row.

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

    Example, with ids 1 = <cls> and 2 = <sep>: 12 is predicted from tokens of order 0, <cls> and the last <sep>, then
    11 from these and 12:

    >>> documents = datasets.Dataset.from_dict({"input_ids": [[[10, 11, 12, 13], [14, 15, 16]], [[20], [21]]]})
    >>> chunks = ReusedChunks(documents, max_length=12, redraw=False, seed=25)
    >>> batch = DataCollatorForPermutationLM(doctest_tokenizer(), predicted_one_in=3)([chunks[0]])
    >>> for name, value in batch.items():
    ...     print(name, value.tolist())
    input_ids [[10, 11, 12, 13, 2, 14, 15, 16, 2, 1]]
    token_type_ids [[0, 0, 0, 0, 0, 1, 1, 1, 1, 2]]
    labels [[-100, 11, 12, -100, -100, -100, -100, -100, -100, -100]]
    order [[0, 4, 3, 0, 5, 0, 0, 0, 2, 1]]
    attention_mask [[1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]
    is_reversed [False]
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
        refuse_unknown_options(
            type(self).__name__, permutation, inspect.signature(DataCollatorForPermutationLM).parameters
        )
        self.cls, self.sep = sequence_ends(tokenizer)
        self.padding = {
            "input_ids": mask_and_padding(tokenizer)[1],
            "labels": IGNORED,
            "token_type_ids": SEGMENT_OF_CLS + 1,
        }
        self.options = Permutation(**permutation)
        self.num_ids = max(tokenizer.get_vocab().values()) + 1
        self.word_starts = self.options.word_starts(tokenizer)
        if packed and (pad_to_multiple_of is not None or for_transformers):
            raise ValueError("pad_to_multiple_of and for_transformers are for padded batches: leave out packed.")
        self.packed, self.pad_to_multiple_of, self.for_transformers = packed, pad_to_multiple_of, for_transformers

    def __repr__(self) -> str:
        options = {"packed": self.packed, "for_transformers": self.for_transformers, **vars(self.options)}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in options.items())})"

    def __call__(
        self, features: Sequence[ChunkExample | Mapping[str, Any]], return_tensors: str = "pt"
    ) -> dict[str, torch.Tensor | int]:
        """Make a batch of all examples in `features`; `return_tensors` is there for callers of other collators."""
        if return_tensors != "pt":
            raise ValueError(f"return_tensors={return_tensors!r}: batches are torch tensors ('pt'); leave it out.")
        if all(isinstance(feature, Mapping) for feature in features):
            keys = [Key(0, 0, number) for number in torch.randint(2**56, (len(features),)).tolist()]
            inputs = [(self._plain(i, feature), 0) for i, feature in enumerate(features)]
        else:
            inputs = [self.tokens(chunk) for chunk in features]
            keys = [chunk.key for chunk in features]
        rows = [self.arguments(*row, key) for row, key in zip(inputs, keys, strict=True)]
        is_reversed = torch.tensor([row.pop("is_reversed") for row in rows])
        arguments = {**batch(rows, self.padding, self.packed, self.pad_to_multiple_of), "is_reversed": is_reversed}
        return with_matrices(arguments) if self.for_transformers else arguments

    def tokens(self, chunk: ChunkExample) -> tuple[Row, int]:
        """Return `reused A <sep> B <sep> <cls>`, without `B <sep>` where B is empty, and the tokens of reused text."""
        if not isinstance(chunk, ChunkExample):
            raise ValueError(
                f"features hold a {type(chunk).__name__}: train on ReusedChunks(documents, max_length), or on rows of "
                "a tokenized dataset, not on both."
            )
        if chunk.mask_rate is not None:
            raise ValueError("mask_rate: the order of a row depends on what is predicted of it: leave it out of plm.")
        pair = next_sentence_pair(chunk)
        ids, starts = chunk.reused or ([], [])
        pieces, types, starts, num_reused = [ids], [0] * len(ids), [starts], len(ids)
        for i, segment in enumerate(pair.segments):
            pieces += [segment, [self.sep]]
            types += [i] * (len(segment) + 1)
            starts += [pair.word_starts and pair.word_starts[i], [UnitStart.WORD]]
        row = {
            "input_ids": np.concatenate([*pieces, [self.cls]]).astype(np.int64),
            "token_type_ids": np.array([*types, SEGMENT_OF_CLS]),
        }
        if pair.word_starts is not None:
            row["word_starts"] = np.concatenate([*starts, [UnitStart.WORD]]).astype(np.uint8)
        return row, num_reused

    def arguments(self, row: Row, num_reused: int, key: Key) -> Row:
        """Return the arguments of the model for one example: its tokens, with their order and the predicted ones."""
        ids = row["input_ids"]
        if not 0 <= ids.min() <= ids.max() < self.num_ids:
            raise ValueError(
                f"input_ids: ids from {ids.min()} to {ids.max()}, but those of the tokenizer go from 0 to "
                f"{self.num_ids - 1}: give the collator the tokenizer that the corpus was made with."
            )
        bits = row.pop("word_starts", None)
        starts = self.word_starts(ids, np.arange(len(ids)) == 0) if bits is None else bits & UnitStart.WORD != 0
        is_functional = (ids == self.cls) | (ids == self.sep)
        random = generator(key, RandomStream.FACTORISATION_ORDER)
        is_predicted, order, is_reversed = permute(starts, is_functional, num_reused, self.options, random)
        labels = np.where(is_predicted, ids, IGNORED)
        return {**row, "labels": labels, "order": order, "is_reversed": is_reversed}

    def _plain(self, number: int, feature: Mapping[str, Any]) -> Row:
        row = plain_row(number, feature)
        if row["input_ids"][-1] != self.cls:
            raise ValueError(
                f"input_ids of row {number} of the batch end with {row['input_ids'][-1]}, and XLNet's with <cls> "
                f"({self.cls}): tokenize with XLNet's tokenizer and its special tokens."
            )
        return row


PREDICTED_TOKENS = LossTerm("plm", "predicted tokens", task="text-generation")


class PermutationLanguageModelling(MaskedLanguageModelling):
    """Predict tokens one after the other in a random order, each from those before it and all that are not predicted.

    Its options under `masking` are those of `Permutation`.
    """

    name = "plm"
    terms = (PREDICTED_TOKENS,)
    token_term = PREDICTED_TOKENS
    auto_class = "AutoModelForPreTraining"
    dataset_class = ReusedChunks
    collator_class = DataCollatorForPermutationLM
    parallel_class = None
    example_options = ChunkRule
    masking_options = Permutation
    fills_masks = False
    is_in_transformers = False  # its collator is another procedure
    held_out_options = ("reuse",)  # the text before a chunk
    least_documents = 2  # random second segments are from another document of the same part

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Describe which tokens were predicted, and in which order."""
        options = collator.options
        share = f"{logged['mask_rate']:.1%} of the tokens" if "mask_rate" in logged else "tokens"
        fill = ", filled up with single tokens" if options.fill_up else ""
        words = (
            f"{share} in a random order, in spans of up to {options.max_span}{fill}; pairs of segments, half random"
        )
        reused = "; each after the text before it, in an order of its own" if examples.get("reuse") else ""
        return {"permutation language modelling": f"{words}{reused}; {options.reversed_share:.0%} read in reverse"}
