"""One example before masking, datasets that sample their examples again every epoch, and names of options."""

import copy
import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.objectives.randomness import Key


# What transformers, other libraries and the papers' code call it -> what to write here.
NAMES_ELSEWHERE = {
    **dict.fromkeys(("mlm_probability", "mask_prob", "mlm_prob", "masked_lm_prob"), "it is mask_probability here"),
    **dict.fromkeys(("whole_word_mask", "do_whole_word_mask"), "write unit='word'"),
    "max_predictions_per_seq": "it is max_predictions here",
    "mlm": "leave it out, tokens are always masked",
    "return_tensors": "leave it out, batches are torch tensors",
    "padding": "leave it out, rows are padded to the longest of the batch, or packed with packed=True",
    "max_length": "leave it out, the dataset has it",
    "max_seq_length": "it is max_length, of the dataset and of the collators of sentence pairs",
    "short_seq_prob": "it is short_sequence_probability, of DocumentChunks",
    "block_size": "it is max_length of the dataset",
    "seed": "leave it out, the dataset has it (rows of a plain one follow torch.manual_seed)",
    "processing_class": "it is tokenizer here",
}
Segment = tuple[np.ndarray, np.ndarray | None]  # token ids of a segment, and their bits of `UnitStart`


@dataclass(slots=True, repr=False)
class Example:
    """One example, as an objective's dataset makes it: segments of text, without special tokens and masks.

    Not a dict, because `Trainer` removes keys of dicts that the model's `forward` does not take.

    Args:
        segments (`list[np.ndarray]`): Token ids of each segment, `(T,)`; a separator comes after each.
        key (`Key`): Seed, epoch and id, which all random choices are functions of.
        word_starts (`list[np.ndarray]`, *optional*): Bits of `UnitStart` of the tokens of each segment, `uint8`.
        token_types (`list[int]`, *optional*): Token type of each segment.
        languages (`list[str]`, *optional*): Name of the language of each segment.
        restarts (`bool`, *optional*, defaults to `False`): Whether each segment is a text of its own,
            `[CLS] x [SEP] [CLS] y [SEP]`, whose positions begin again.
        labels (`dict[str, int]`, *optional*): Labels of the example by the name of the loss term; -100 for none.
        mask_rate (`float`, *optional*): Share of the tokens to predict, instead of the collator's.
        phase (`int`, *optional*, defaults to 0): Phase of the run, from 1, whose masking applies; 0 outside of phases.
    """

    segments: list[np.ndarray]
    key: Key
    word_starts: list[np.ndarray] | None = None
    token_types: list[int] | None = None
    languages: list[str] | None = None
    restarts: bool = False
    labels: dict[str, int] = field(default_factory=dict)
    mask_rate: float | None = None
    phase: int = 0

    @classmethod
    def of(cls, texts: Sequence[Segment], key: Key, **options: Any) -> "Example":
        """Make an example of segments with the bits of their tokens."""
        segments, starts = map(list, zip(*texts, strict=True))
        return cls(segments, key, None if starts[0] is None else starts, **options)

    def __repr__(self) -> str:
        tokens = sum(map(len, self.segments))
        return f"{type(self).__name__}({len(self.segments)} segments, {tokens} tokens, {self.key})"

    @property
    def texts(self) -> list[Segment]:
        """The segments with the bits of their tokens."""
        return list(zip(self.segments, self.word_starts or [None] * len(self.segments), strict=True))

    def as_text(self) -> "Example":
        """Return the example as one text, for masked language modelling alone."""
        return self


def check_draws(epochs_per_draw: int = 1, dupe_factor: int | None = None) -> None:
    """Raise ValueError for options of `EpochDataset` that are not whole numbers of at least 1."""
    for name, value in (("epochs_per_draw", epochs_per_draw), ("dupe_factor", dupe_factor)):
        if value is not None and (not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1):
            raise ValueError(
                f"{name}={value!r} must be a whole number, at least 1; leave it out to sample again every epoch."
            )


class EpochDataset(Dataset):
    """A dataset whose examples are sampled again every epoch.

    The epoch must be set before the first batch: `hf_encoders.training.EpochCallback` does so under `Trainer`, your
    own training loop calls `set_epoch`. For evaluation pass `redraw=False`.

    Args:
        seed (`int`): Seed of all random choices.
        redraw (`bool`): Whether examples and masks are sampled again every epoch (dynamic masking, as in RoBERTa).
            False always gives those of epoch 0, so that evaluations are comparable.
        epochs_per_draw (`int`, *optional*, defaults to 1): Number of consecutive epochs with the same sample.
        dupe_factor (`int`, *optional*): Number of different samples, after which the first one comes again: static
            masking, as BERT's data was written `dupe_factor` times. `None` never repeats a sample.
    """

    def __init__(self, seed: int, redraw: bool, epochs_per_draw: int = 1, dupe_factor: int | None = None):
        check_draws(epochs_per_draw, dupe_factor)
        self.seed, self.redraw = seed, redraw
        self.epochs_per_draw, self.dupe_factor = epochs_per_draw, dupe_factor
        # In shared memory, so that persistent workers see it change; -1 before `set_epoch`.
        self._epoch = torch.full((), -1, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int | slice | Sequence[int]) -> "Example | list[Example]":
        """Return an example, or the list of those of a slice or of several indices."""
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        return self.__getitems__([index])[0] if np.ndim(index) == 0 else self.__getitems__(index)

    def __repr__(self) -> str:
        epoch = int(self._epoch)
        options = {
            "seed": self.seed,
            "redraw": self.redraw,
            "epochs_per_draw": self.epochs_per_draw if self.epochs_per_draw > 1 else None,
            "dupe_factor": self.dupe_factor,
            "epoch": epoch if self.redraw and epoch >= 0 else None,
        }
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        return f"{type(self).__name__}({', '.join([*self.facts(), *given])})"

    def facts(self) -> list[str]:
        """Return contents and options for `repr`."""
        return [f"{len(self):,} examples"]

    @property
    def corpora(self) -> list[FlatCorpus]:
        """The corpora that examples are made of, which checkpoints record."""
        return []

    def left_out(self) -> str:
        """Describe the text that no example is made of: `2 of 8 pairs, too long`; empty if nothing."""
        return ""

    def __getitems__(self, indices: Sequence[int]) -> "list[Example]":
        """Return the examples of a batch; negative indices count from the end."""
        for index in indices:
            if not -len(self) <= index < len(self):
                raise IndexError(f"index {index}, but there are {len(self)} examples.")
        return [self.example(int(index) % len(self)) for index in indices]

    def example(self, index: int) -> "Example":
        """Return example `index`, in [0, length), of the current epoch."""
        raise NotImplementedError

    def key(self, example: int) -> Key:
        """Return what the random choices of an example are functions of."""
        return Key(self.seed, self.draw, example)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0."""
        self._epoch.fill_(int(epoch))

    def at_epoch(self, epoch: int) -> "EpochDataset":
        """Return a copy in another epoch; `set_epoch` of one does not change the other."""
        other = copy.copy(self)
        other._epoch = torch.full((), int(epoch))
        return other

    def with_seed(self, seed: int) -> "EpochDataset":
        """Return a copy with another seed, whose epoch is not set."""
        other = self.at_epoch(-1)
        other.seed = seed
        other._epoch.share_memory_()  # `set_epoch` reaches the workers that have it
        return other

    @property
    def epoch(self) -> int:
        """The current epoch; always 0 with `redraw=False`.

        Raises:
            ValueError: If it was never set. `Trainer` alone does so in some runs only (not after a restart, not in
                several processes), and epoch 0 would silently be repeated.
        """
        if not self.redraw:
            return 0
        epoch = int(self._epoch)
        if epoch < 0:
            raise ValueError(
                "the epoch of the dataset was not set, so every epoch would have the same examples: add "
                "hf_encoders.training.EpochCallback() to the Trainer's callbacks (PreTrainingTrainer has it), call "
                "set_epoch(0) in your own loop, or pass redraw=False to the dataset for evaluation."
            )
        return epoch

    @property
    def draw(self) -> int:
        """Return the index of the sample that the current epoch has."""
        index = self.epoch // self.epochs_per_draw
        return index if self.dupe_factor is None else index % self.dupe_factor


class CorpusDataset(EpochDataset):
    """An `EpochDataset` of a tokenised corpus on disk; `epochs` are the arguments of `EpochDataset`."""

    def __init__(self, documents: datasets.Dataset, *epochs: object):
        super().__init__(*epochs)
        corpus = FlatCorpus.of(documents, keep_empty=True)
        self.num_documents = corpus.num_documents  # empty ones included
        self.corpus = corpus.without_empty()

    @property
    def corpora(self) -> list[FlatCorpus]:
        """The corpus."""
        return [self.corpus]

    def text(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the token ids and the `UnitStart` bits of a range of the corpus's tokens."""
        starts = self.corpus.word_starts
        return self.corpus.tokens[begin:end], None if starts is None else starts[begin:end]


def with_options_of(source: Callable) -> Callable[[Callable], Callable]:
    """Show the options of `source` in the signature of a function that passes `**options` on to it."""

    def decorate(function: Callable) -> Callable:
        shown = inspect.signature(function).parameters
        named = [option for option in shown.values() if option.kind is not option.VAR_KEYWORD]
        more = [option for option in inspect.signature(source).parameters.values() if option.name not in shown]
        more = [option.replace(kind=option.KEYWORD_ONLY) for option in more]
        function.__signature__ = inspect.Signature([*named, *more])
        return function

    return decorate


def refuse_unknown_options(owner: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError for an option that is not among `known`, with its name here; `owner` is who has them."""
    known = list(known)
    for name in options:
        if name not in known:
            alike = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            remedy = f"did you mean {alike[0]!r}?" if alike else f"its options are {', '.join(known) or 'none'}."
            remedy = f"{NAMES_ELSEWHERE[name]}." if name in NAMES_ELSEWHERE else remedy
            raise ValueError(f"{owner} has no option {name!r}: {remedy}")
