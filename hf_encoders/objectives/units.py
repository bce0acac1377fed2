"""The units of a text that are chosen as a whole: tokens, words, phrases and entities. Copy one for a new unit."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.word_starts import UnitStart


if TYPE_CHECKING:
    from hf_encoders.objectives.masking import Masking

# Options of `hf-encoders corpus` that mark units longer than words.
PREPARED_BY = {"phrase": "--phrases", "entity": "--lexicon FILE"}
MOST_WORDS = 32  # of a phrase or an entity, a Chinese character perhaps each; a text of more has a unit that begins


class Text(NamedTuple):
    """The C tokens of an example that may be predicted: all but special ones, unless these are predicted too."""

    ids: np.ndarray  # (C,)
    positions: np.ndarray  # in the example, (C,)
    begins: np.ndarray  # where a unit never continues what is before it, such as a separator; bool, (C,)
    special: np.ndarray  # which are special tokens, each a unit of its own; bool, (C,)
    column: np.ndarray | None  # bits of `UnitStart` of a corpus that has them, (C,)


class TokenUnits:
    """Say where units begin: with every token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, masking: "Masking"):
        pass

    def __call__(self, text: Text) -> np.ndarray:
        """Return where units of the text begin, `bool` of shape `(C,)`."""
        return np.ones(len(text.ids), dtype=bool)


class WordUnits:
    """Say where words begin: as the corpus's column does, or else the tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, masking: "Masking"):
        self.word_starts = masking.word_starts(tokenizer)

    def __call__(self, text: Text) -> np.ndarray:
        """Return where units of the text begin, `bool` of shape `(C,)`."""
        if text.column is None:
            return self.word_starts(text.ids, text.begins)
        return (text.column & UnitStart.WORD != 0) | text.begins | text.special


class PreparedUnits:
    """Say where units begin that `hf-encoders corpus` has marked, every other word being one too."""

    def __init__(self, unit: str, tokenizer: PreTrainedTokenizerBase, masking: "Masking"):
        self.unit = unit

    def __call__(self, text: Text) -> np.ndarray:
        """Return where units of the text begin, `bool` of shape `(C,)`.

        Raises:
            ValueError: if the corpus does not say it.
        """
        bits = np.zeros(len(text.ids), dtype=np.uint8) if text.column is None else text.column
        starts = bits & UnitStart[self.unit.upper()] != 0
        # An example cut out of a long sentence may lie inside of one unit, of several words.
        if not starts.any() and (text.column is None or np.count_nonzero(bits & UnitStart.WORD) > MOST_WORDS):
            raise ValueError(
                f"unit={self.unit!r}: the corpus does not say where one begins: prepare it with "
                f"`hf-encoders corpus {PREPARED_BY[self.unit]}`, or choose words."
            )
        return starts | text.begins | text.special
