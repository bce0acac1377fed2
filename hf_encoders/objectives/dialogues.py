"""Dialogue language modelling: three turns with their roles, and whether one of them is from another dialogue.

Source: ERNIE 1.0, section 3.3 (https://arxiv.org/abs/1904.09223): `[CLS] t1 [SEP] t2 [SEP] t3 [SEP]` of turns QRQ, QRR
or QQR, role embeddings in the place of segment embeddings, masked tokens, and a label that tells fake from real. No
code or data of it was ever published, and the paper gives no share of fakes. Here half of the examples are fakes, with
one turn replaced by another of the same role and of about the same length, so that lengths do not predict the label.
A turn that reads the same, word for word, replaces nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.ragged import are_equal, offsets_of
from hf_encoders.corpus.randomness import RandomStream, example_keys, integers_below, uniforms
from hf_encoders.objectives.batches import IGNORED, Segments, TokenRows, join_rows, rows_of_segments
from hf_encoders.objectives.collator_options import with_options_of
from hf_encoders.objectives.collators import DataCollatorForMaskedLM
from hf_encoders.objectives.examples import CorpusDataset, TextExamples


TURNS = 3  # of an example
SPECIAL_TOKENS = 1 + TURNS  # [CLS], and a [SEP] behind each turn
# A turn is replaced by one of its own length; where those are few, lengths are joined until there are about so many.
TURNS_TO_CHOOSE_FROM = 64
ROUNDS = 16  # of drawing a replacement until it is another text, from another dialogue


@dataclass(frozen=True)
class DialogueRule:
    """How examples are made of dialogues.

    Args:
        fake_probability (`float`, *optional*, defaults to 0.5): Share of the examples in (0, 1) in which one turn is
            from another dialogue.
    """

    fake_probability: float = 0.5

    def __post_init__(self):
        if not (isinstance(self.fake_probability, float) and 0 < self.fake_probability < 1):
            raise ValueError(
                f"fake_probability={self.fake_probability!r} must be above 0 and below 1, for example 0.5; without "
                "fakes there is nothing to tell apart: use mlm."
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class DialogueExamples(TextExamples):
    """Examples of `TURNS` segments each, with their roles and labels."""

    roles: np.ndarray  # of each segment: 0 = query, 1 = response; int64, (P,)
    labels: np.ndarray  # of each example: 0 = real, 1 = a turn is from another dialogue, -100 = none; int64, (B,)


class Dialogues(CorpusDataset):
    """Three consecutive turns of a dialogue, the first a query and at least one a response: QRQ, QRR and QQR.

    All of these are examples, so a turn may be in up to three of them, and the last response in none. Epochs differ in
    which turn is replaced, by which, and in masks. An example too long for `max_length` loses the ends of its longest
    turns.

    Replacements are drawn from the turns of all examples that have the same role and about the same length, until one
    is from another dialogue and makes another text of the example, as it is cut to `max_length`. An example for whose
    turn none is found has no label (-100), replaced or not.

    Args:
        documents (`datasets.Dataset`): Corpus of dialogues: queries at even places and responses at odd ones, with
            empty sentences where needed, as `prepare_corpus(..., turns_column=...)` makes it.
        max_length (`int`): Longest example in tokens, special tokens included; at least 7.
        fake_probability (`float`, *optional*, defaults to 0.5): As in `DialogueRule`.
        seed (`int`, *optional*, defaults to 0): Seed of all random choices.
        redraw, epochs_per_draw, dupe_factor: As in `EpochDataset`.

    Attributes:
        num_left_out (`int`): Dialogues without an example, such as those of fewer than three turns.

    Raises:
        ValueError: for a length without room for three turns, and if fewer than two dialogues have an example.

    Example: the second dialogue is [20] and [21, 22] of one side and [23] of the other, the third is too short; in
    the first example, [23] has replaced [12]:

    >>> turns = [[[10, 11], [12], [13], [14]], [[20], [], [21, 22], [23]], [[30]]]
    >>> documents = datasets.Dataset.from_dict({"input_ids": turns})
    >>> dialogues = Dialogues(documents, max_length=12, seed=2, redraw=False)
    >>> [[turn.tolist() for turn in dialogues[i].token_ids(0)] for i in range(len(dialogues))]
    [[[10, 11], [23], [13]], [[20], [21, 22], [23]]]
    >>> dialogues[[0, 1]].labels.tolist(), dialogues[[0, 1]].roles.tolist(), dialogues.num_left_out
    ([1, 0], [0, 1, 0, 0, 0, 1], 1)
    """

    def __init__(
        self,
        documents: datasets.Dataset,
        max_length: int,
        fake_probability: float = 0.5,
        seed: int = 0,
        redraw: bool = True,
        epochs_per_draw: int = 1,
        dupe_factor: int | None = None,
    ):
        self.rule = DialogueRule(fake_probability)
        if not isinstance(max_length, (int, np.integer)) or max_length < SPECIAL_TOKENS + TURNS:
            raise ValueError(
                f"max_length={max_length!r} leaves no room for three turns: use at least {SPECIAL_TOKENS + TURNS}."
            )
        self.max_length = max_length
        super().__init__(documents, seed, redraw, epochs_per_draw, dupe_factor)
        # Places tell roles, so empty sentences are dropped only here.
        lengths, counts = self.store.sentence_lengths, np.diff(self.store.document_offsets)
        places = np.arange(len(lengths)) - np.repeat(self.store.document_offsets[:-1], counts)
        is_turn = lengths > 0
        self.bounds = offsets_of(lengths[is_turn])  # first token of every turn, and N
        self.roles = (places % 2)[is_turn]
        self.dialogues = np.repeat(np.arange(len(counts)), counts)[is_turn]
        self.first_turns = _first_turns(self.roles, self.dialogues)
        with_examples = len(np.unique(self.dialogues[self.first_turns]))
        self.num_left_out = self.store.num_documents - with_examples
        if with_examples < 2:
            raise ValueError(
                f"documents holds {with_examples} dialogue(s) with three consecutive turns that begin with a query "
                "and hold a response, and fakes take a turn of another: make a corpus of dialogues with "
                "prepare_corpus(..., turns_column=...) (--turns-column)."
            )
        # The turns of all examples, by role and length, and by ranges of them that replace each other.
        turns = (self.first_turns[:, None] + np.arange(TURNS)).ravel()
        order = np.argsort(self._kinds(turns), kind="stable")
        self.pool, self.pool_kinds = turns[order], self._kinds(turns)[order]

    def __len__(self) -> int:
        return len(self.first_turns)

    def left_out(self) -> str:
        """Dialogues without an example, in words."""
        words = f"{self.num_left_out:,} of {self.store.num_documents:,} dialogues, without three such turns"
        return words * bool(self.num_left_out)

    def facts(self) -> list[str]:
        """Contents and options for `repr`."""
        left_out = f"{self.num_left_out:,} dialogues left out"
        return [f"{len(self):,} examples of {self.store!r}", left_out, f"max_length={self.max_length}"]

    def examples(self, indices: np.ndarray) -> DialogueExamples:
        """References to turns; no more text is read than tells a replacement from the turn it replaces."""
        keys = example_keys(self.seed, self.draw, indices)
        real = self.first_turns[indices][:, None] + np.arange(TURNS)
        replaced = integers_below(keys, RandomStream.REPLACED_TURN, 0, TURNS)
        fakes, is_found = self._fakes(real, replaced, keys)
        is_fake = is_found & (uniforms(keys, RandomStream.FAKE_DIALOGUE, 0) < self.rule.fake_probability)
        turns = np.where(is_fake[:, None], fakes, real)
        begin, end = self._shown(turns)
        counts = np.full(len(indices), TURNS)
        segments = Segments(self.corpus.tokens, self.corpus.word_starts, begin.ravel(), end.ravel(), counts)
        labels = np.where(is_found, is_fake, IGNORED)
        return DialogueExamples(segments, keys, roles=self.roles[turns].ravel(), labels=labels)

    def _shown(self, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end in the corpus of what an example shows of its turns, `(B, 3)` each."""
        begin = self.bounds[turns]
        return begin, begin + truncated_turns(self.bounds[turns + 1] - begin, self.max_length)

    def _kinds(self, turns: np.ndarray) -> np.ndarray:
        """One number for the role and the length of each turn."""
        lengths = self.bounds[turns + 1] - self.bounds[turns]
        return (self.roles[turns] << 32) + lengths

    def _fakes(self, real: np.ndarray, replaced: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The turns `(B, 3)` of each example with another one at `replaced`, and whether they make a fake of it."""
        rows, fakes = np.arange(len(real)), real.copy()
        turns = real[rows, replaced]
        first, end = self._alike(self._kinds(turns))
        left = rows
        for number in range(ROUNDS):
            drawn = integers_below(keys[left], RandomStream.TURN_REPLACEMENT, number, (end - first)[left])
            fakes[left, replaced[left]] = others = self.pool[first[left] + drawn]
            is_fake = self.dialogues[others] != self.dialogues[turns[left]]
            is_fake &= ~self._read_alike(fakes[left], real[left])
            left = left[~is_fake]
            if not len(left):
                break
        return fakes, ~np.isin(rows, left)

    def _read_alike(self, turns: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Whether examples of these turns show the same text as those of `others`, `(B,)`."""
        shown, shown_of_others = ([bound.ravel() for bound in self._shown(one)] for one in (turns, others))
        return are_equal(self.corpus.tokens, shown, shown_of_others).reshape(-1, TURNS).all(axis=1)

    def _alike(self, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The range of `pool` that turns of each kind are replaced from: of one length, or of several rare ones.

        Lengths are joined whose first turns have ranks in the same interval of `TURNS_TO_CHOOSE_FROM`, so that turns
        of a range replace each other, and no length is more frequent among replacements than among the replaced.
        """
        role_begin = np.searchsorted(self.pool_kinds, kinds >> 32 << 32)
        role_end = np.searchsorted(self.pool_kinds, (kinds >> 32) + 1 << 32)
        rank = np.searchsorted(self.pool_kinds, kinds) - role_begin
        found = []
        for edge in (rank // TURNS_TO_CHOOSE_FROM, rank // TURNS_TO_CHOOSE_FROM + 1):
            place = np.minimum(role_begin + edge * TURNS_TO_CHOOSE_FROM, role_end)
            # The first length that begins at the edge or behind it.
            is_inside = (place > role_begin) & (place < role_end)
            before = self.pool_kinds[np.where(is_inside, place - 1, 0)]
            found.append(np.where(is_inside, np.searchsorted(self.pool_kinds, before, "right"), place))
        return found[0], found[1]


def _first_turns(roles: np.ndarray, dialogues: np.ndarray) -> np.ndarray:
    """Turns that begin QRQ, QRR or QQR inside a dialogue."""
    last = max(len(roles) - TURNS + 1, 0)
    begins, ends = slice(0, last), slice(TURNS - 1, None)
    has_response = roles[1 : last + 1] + roles[2 : last + 2] > 0
    return np.flatnonzero((dialogues[begins] == dialogues[ends]) & (roles[begins] == 0) & has_response)


def truncated_turns(lengths: np.ndarray, max_length: int) -> np.ndarray:
    """Lengths of the turns of each example, `(B, 3)`, after the longest have lost what does not fit.

    Each gets a third of the room, or what the shorter ones leave.

    >>> truncated_turns(np.array([[9, 2, 6], [5, 5, 5], [1, 9, 1]]), max_length=14).tolist()
    [[4, 2, 4], [3, 3, 4], [1, 8, 1]]
    """
    order = np.argsort(lengths, axis=1, kind="stable")
    kept, room = np.empty_like(lengths), np.full(len(lengths), max_length - SPECIAL_TOKENS)
    rows = np.arange(len(lengths))
    for place in range(TURNS):
        turn = order[:, place]
        kept[rows, turn] = np.minimum(lengths[rows, turn], room // (TURNS - place))
        room -= kept[rows, turn]
    return kept


class DataCollatorForDialogueLM(DataCollatorForMaskedLM):
    """MLM, roles of turns, and whether a turn is from another dialogue (ERNIE 1.0, section 3.3).

    `token_type_ids` are 0 in queries and 1 in responses; a `[SEP]` has the role of the turn before it, and `[CLS]` 0.
    `next_sentence_label` is 0 for real dialogues and 1 for fakes; -100 where no turn could replace the chosen one.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        label_name (`str`, *optional*, defaults to `"next_sentence_label"`): Name of the label in the batch, an
            argument of the model's `forward`.
        options: `packed`, `mask_probability` and the other arguments of `DataCollatorForMaskedLM`.

    Input: examples of `Dialogues`.

    Output: as `DataCollatorForMaskedLM`, with `token_type_ids` and `next_sentence_label` `(B,)`.

    Example, with ids 1 = [CLS], 2 = [SEP], and nothing masked; [23] has replaced [12]:

    >>> turns = [[[10, 11], [12], [13], [14]], [[20], [], [21, 22], [23]]]
    >>> documents = datasets.Dataset.from_dict({"input_ids": turns})
    >>> dialogues = Dialogues(documents, max_length=12, seed=2, redraw=False)
    >>> collator = DataCollatorForDialogueLM(
    ...     doctest_tokenizer(), mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> batch = collator([dialogues[[0, 1]]])
    >>> for name in ("input_ids", "token_type_ids", "next_sentence_label"):
    ...     print(name, batch[name].tolist())
    input_ids [[1, 10, 11, 2, 23, 2, 13, 2], [1, 20, 2, 21, 22, 2, 23, 2]]
    token_type_ids [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1]]
    next_sentence_label [1, 0]
    """

    LABEL_NAME = "next_sentence_label"

    @with_options_of(DataCollatorForMaskedLM)
    def __init__(self, tokenizer: PreTrainedTokenizerBase, label_name: str | None = None, **options: Any):
        super().__init__(tokenizer, **options)
        self.label_name = label_name or self.LABEL_NAME

    def make_rows(self, features: Sequence[DialogueExamples]) -> tuple[TokenRows, dict[str, torch.Tensor]]:
        """All dialogues with their special tokens and roles, and their labels."""
        kinds = sorted({type(feature).__name__ for feature in features} - {DialogueExamples.__name__})
        if kinds:
            raise ValueError(f"features are {kinds}, not examples of Dialogues(documents, max_length): train on it.")
        rows = []
        for one in features:
            lengths = one.segments.end - one.segments.begin + 1  # with the separator
            lengths[::TURNS] += 1  # [CLS]
            types = np.repeat(one.roles.astype(np.int8), lengths)
            rows.append(rows_of_segments(one.segments, one.keys, self.ends)._replace(token_type_ids=types))
        labels = np.concatenate([one.labels for one in features])
        return join_rows(rows), {self.label_name: torch.from_numpy(labels)}
