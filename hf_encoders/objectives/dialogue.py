"""Dialogue language modelling: three turns with their roles, and whether one of them is from another dialogue.

Source: ERNIE 1.0, section 3.3 (https://arxiv.org/abs/1904.09223): `[CLS] t1 [SEP] t2 [SEP] t3 [SEP]` of turns QRQ, QRR
or QQR, role embeddings in the place of segment embeddings, masked tokens, and a label that tells fake from real. No
code or data of it was ever published, and the paper gives no share of fakes. Here half of the examples are fakes, with
one turn replaced by another of the same role and of about the same length, so that lengths do not predict the label.
A turn that reads the same, word for word, replaces nothing.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.flat_corpus import FlatCorpus, offsets_of
from hf_encoders.objectives.batch import IGNORED
from hf_encoders.objectives.dataset import CorpusDataset, Example, with_options_of
from hf_encoders.objectives.mlm import MASKED_TOKENS, DataCollatorForMaskedLM
from hf_encoders.objectives.randomness import RandomStream, generator
from hf_encoders.objectives.sentence_pairs import SENTENCE_PAIRS, SentencePairObjective


TURNS = 3  # of an example
SPECIAL_TOKENS = 1 + TURNS  # [CLS], and a [SEP] after each turn
# A turn is replaced by one of its length; where those are few, lengths are joined until there are so many.
TURNS_TO_CHOOSE_FROM = 64
TRIES = 16  # replacements to draw until one is from another dialogue and another text


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


class Dialogues(CorpusDataset):
    """Three consecutive turns of a dialogue, the first a query and at least one a response: QRQ, QRR and QQR.

    All of these are examples, so a turn may be in up to three of them, and the last response in none. Epochs differ in
    which turn is replaced, by which, and in masks. An example too long for `max_length` loses the ends of its longest
    turns.

    Replacements are drawn from the turns of all examples that have the same role and about the same length, until one
    is from another dialogue and makes another text of the example, as it is cut to `max_length`. An example for whose
    turn there is none has no label (-100), replaced or not.

    Args:
        documents (`datasets.Dataset`): Corpus of dialogues: queries at even positions and responses at odd ones, with
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
    >>> dialogues = Dialogues(documents, max_length=12, seed=3, redraw=False)
    >>> for example in dialogues:
    ...     print([turn.tolist() for turn in example.segments], example.token_types, example.labels)
    [[10, 11], [23], [13]] [0, 1, 0] {'pair': 1}
    [[20], [21, 22], [23]] [0, 0, 1] {'pair': 0}
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
        # The parity of positions in a dialogue is the role, so empty sentences are dropped only here.
        whole = FlatCorpus.of(documents, keep_empty=True)
        lengths, counts = whole.sentence_lengths, whole.document_lengths
        positions = np.arange(len(lengths)) - np.repeat(whole.document_offsets[:-1], counts)
        is_turn = lengths > 0
        self.bounds = offsets_of(lengths[is_turn])  # first token of every turn, and N
        self.roles = (positions % 2)[is_turn]  # 0 = query, 1 = response
        self.dialogues = np.repeat(np.arange(len(counts)), counts)[is_turn]
        self.first_turns = first_turns(self.roles, self.dialogues)
        with_examples = len(np.unique(self.dialogues[self.first_turns]))
        self.num_dialogues, self.num_left_out = len(counts), len(counts) - with_examples
        if with_examples < 2:
            raise ValueError(
                f"documents holds {with_examples} dialogue(s) with three consecutive turns that begin with a query "
                "and hold a response, and fakes take a turn of another: make a corpus of dialogues with "
                "prepare_corpus(..., turns_column=...) (--turns-column)."
            )
        # The turns of all examples by role and length, and the range of them that those of a role and length are
        # replaced from. Turns of a range replace each other, so that no length is more frequent in fakes.
        turns = (self.first_turns[:, None] + np.arange(TURNS)).ravel()
        lengths = np.diff(self.bounds)
        self.pool = turns[np.lexsort((lengths[turns], self.roles[turns]))]
        kinds = np.stack([self.roles[self.pool], lengths[self.pool]], axis=1)
        self.ranges = ranges_of(kinds)

    def __len__(self) -> int:
        return len(self.first_turns)

    def left_out(self) -> str:
        """Return the number of dialogues without an example, in words."""
        words = f"{self.num_left_out:,} of {self.num_dialogues:,} dialogues, without three such turns"
        return words * bool(self.num_left_out)

    def facts(self) -> list[str]:
        """Return contents and options for `repr`."""
        left_out = f"{self.num_left_out:,} dialogues left out"
        return [f"{len(self):,} examples of {self.corpus!r}", left_out, f"max_length={self.max_length}"]

    def example(self, index: int) -> Example:
        """Return example `index` of the current epoch."""
        key = self.key(index)
        random = generator(key, RandomStream.FAKE_DIALOGUE)
        turns = list(range(self.first_turns[index], self.first_turns[index] + TURNS))
        is_fake = random.random() < self.rule.fake_probability
        fake = self._fake(turns, random)
        label = IGNORED if fake is None else int(is_fake)
        turns = fake if label == 1 else turns
        texts = [self.text(*bounds) for bounds in self._shown(turns)]
        return Example.of(texts, key, token_types=self.roles[turns].tolist(), labels={"pair": label})

    def _fake(self, turns: list[int], random: np.random.Generator) -> list[int] | None:
        """Replace one of the turns by one from another dialogue that makes another text; None if none is drawn."""
        index = int(random.integers(TURNS))
        replaced = turns[index]
        kind = int(self.roles[replaced]), int(self.bounds[replaced + 1] - self.bounds[replaced])
        for _ in range(TRIES):
            turn = int(self.pool[random.integers(*self.ranges[kind])])
            fake = [*turns[:index], turn, *turns[index + 1 :]]
            if self.dialogues[turn] != self.dialogues[replaced] and self._words(fake) != self._words(turns):
                return fake
        return None

    def _shown(self, turns: list[int]) -> list[tuple[int, int]]:
        """Return begin and end in the corpus of what an example shows of each turn."""
        begins = [int(self.bounds[turn]) for turn in turns]
        lengths = [int(self.bounds[turn + 1]) - begin for turn, begin in zip(turns, begins, strict=True)]
        kept = truncated_turns(lengths, self.max_length)
        return [(begin, begin + length) for begin, length in zip(begins, kept, strict=True)]

    def _words(self, turns: list[int]) -> list[list[int]]:
        return [self.corpus.tokens[begin:end].tolist() for begin, end in self._shown(turns)]


def first_turns(roles: np.ndarray, dialogues: np.ndarray) -> np.ndarray:
    """Return the turns that begin QRQ, QRR or QQR inside a dialogue, from the role and dialogue of each turn."""
    last = max(len(roles) - TURNS + 1, 0)
    begins, ends = slice(0, last), slice(TURNS - 1, None)
    has_response = roles[1 : last + 1] + roles[2 : last + 2] > 0
    return np.flatnonzero((dialogues[begins] == dialogues[ends]) & (roles[begins] == 0) & has_response)


def ranges_of(kinds: np.ndarray) -> dict[tuple[int, int], tuple[int, int]]:
    """Divide turns, sorted by role and length, `(P, 2)`, into ranges of at least `TURNS_TO_CHOOSE_FROM` of a role.

    Turns of one length are in one range; the last range of a role may have fewer. Returns the range of each role and
    length.
    """
    ranges, members, begin, end = {}, [], 0, 0
    distinct, counts = np.unique(kinds, axis=0, return_counts=True)
    for (role, length), count in zip(distinct.tolist(), counts.tolist(), strict=True):
        if members and (members[0][0] != role or end - begin >= TURNS_TO_CHOOSE_FROM):
            members, begin = [], end
        members.append((role, length))
        end += count
        ranges.update(dict.fromkeys(members, (begin, end)))
    return ranges


def truncated_turns(lengths: list[int], max_length: int) -> list[int]:
    """Return the lengths of three turns after the longest have lost what does not fit.

    Each gets a third of the room, or what the shorter ones leave.

    >>> truncated_turns([9, 2, 6], max_length=14), truncated_turns([5, 5, 5], 14), truncated_turns([1, 9, 1], 14)
    ([4, 2, 4], [3, 3, 4], [1, 8, 1])
    """
    kept, room = [0] * TURNS, max_length - SPECIAL_TOKENS
    for number, turn in enumerate(sorted(range(TURNS), key=lambda turn: lengths[turn])):
        kept[turn] = min(lengths[turn], room // (TURNS - number))
        room -= kept[turn]
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
    >>> dialogues = Dialogues(documents, max_length=12, seed=3, redraw=False)
    >>> collator = DataCollatorForDialogueLM(
    ...     doctest_tokenizer(), mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> batch = collator(dialogues[:])
    >>> for name in ("input_ids", "token_type_ids", "next_sentence_label"):
    ...     print(name, batch[name].tolist())
    input_ids [[1, 10, 11, 2, 23, 2, 13, 2], [1, 20, 2, 21, 22, 2, 23, 2]]
    token_type_ids [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1]]
    next_sentence_label [1, 0]
    """

    LABEL_NAME = "next_sentence_label"

    needs_whole_texts = True

    @with_options_of(DataCollatorForMaskedLM)
    def __init__(self, tokenizer: PreTrainedTokenizerBase, label_name: str | None = None, **options: Any):
        super().__init__(tokenizer, **options)
        self.label_name = label_name or self.LABEL_NAME
        self.label_arguments = {"pair": self.label_name}

    def __call__(self, features: Sequence[Example], return_tensors: str = "pt") -> dict[str, torch.Tensor | int]:
        """Make a batch of all examples in `features`; `return_tensors` is there for callers of other collators."""
        wrong = {type(feature).__name__ for feature in features if type(feature) is not Example or not feature.labels}
        if wrong:
            raise ValueError(
                f"features are {sorted(wrong)}, not examples of Dialogues(documents, max_length): train on it."
            )
        return super().__call__(features, return_tensors)


class DialogueLanguageModelling(SentencePairObjective):
    """Predict masked tokens of three turns, and whether one of the turns is from another dialogue (label 1).

    The label is that of the family's pair head.
    """

    name = "dialogue"
    title = "dialogue language modelling"
    label_1 = "of the examples (three turns; token types 0 query, 1 response) with a turn from another dialogue"
    terms = (MASKED_TOKENS, dataclasses.replace(SENTENCE_PAIRS, items="dialogues"))
    dataset_class = Dialogues
    example_options = DialogueRule
    collator_class = DataCollatorForDialogueLM
    turns_column = "turns"
    least_documents = 2  # fakes take a turn of another dialogue of the same part
