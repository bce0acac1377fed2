"""What new entries of a vocabulary do: on the text they were chosen for, and on other text."""

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.extension import ExtendedVocabulary
from hf_encoders.corpus.report import reading_rows
from hf_encoders.corpus.segmentation import replace_lone_surrogates
from hf_encoders.corpus.tokenizer_report import REPORT_FILE
from hf_encoders.corpus.word_counts import LINES_PER_BATCH
from hf_encoders.publishing.redaction import published
from hf_encoders.publishing.tables import text_table


ENTRIES_FILE = "new_entries.json"  # id of each new entry -> ids of its pieces
FEW_SAVED = 0.05  # share of the tokens: with less, new entries are hardly worth new rows; this package's choice


@dataclass(frozen=True)
class TextChange:
    """How many tokens a text has with the old and the new vocabulary."""

    words: int  # between white space
    characters: int
    tokens_before: int
    tokens_after: int
    # Words with a token that is neither as before nor a new entry in place of its pieces, share in [0, 1].
    otherwise_cut: float

    @classmethod
    def of(cls, before: PreTrainedTokenizerBase, extended: ExtendedVocabulary, lines: Sequence[str]) -> "TextChange":
        """Cut lines with both, as text for a model, but for special tokens around it.

        Raises:
            ValueError: If there is no word.
        """
        tokens_before = tokens_after = words = otherwise = 0
        for begin in range(0, len(lines), LINES_PER_BATCH):
            batch = [*map(replace_lone_surrogates, lines[begin : begin + LINES_PER_BATCH])]
            cuts = (words_of_tokens(tokenizer, batch) for tokenizer in (before, extended.tokenizer))
            for old, new in zip(*cuts, strict=True):
                tokens_before += sum(map(len, old))
                tokens_after += sum(map(len, new))
                words += len(old)
                same = ([one for token in word for one in extended.pieces.get(token, [token])] for word in new)
                otherwise += sum(one != other for one, other in zip(old, same, strict=True))
        if not words:
            raise ValueError("the text is empty: give lines with words.")
        spaced = sum(len(line.split()) for line in lines)
        return cls(spaced, sum(map(len, lines)), tokens_before, tokens_after, otherwise / words)

    def row(self, name: str) -> tuple[str, ...]:
        """Cells for a table."""
        saved = 1 - self.tokens_after / self.tokens_before
        per_word = (tokens / max(self.words, 1) for tokens in (self.tokens_before, self.tokens_after))
        return (name, *(f"{value:.3f}" for value in per_word), f"{-saved:+.1%}", f"{self.otherwise_cut:.2%}")


@dataclass(frozen=True)
class ExtensionReport:
    """The extension of a tokenizer, `tokenizer_report.json` in its folder; printed, a table."""

    settings: dict[str, Any]
    entries: int  # ids with the new ones
    rows: int  # of the model
    added: list[str]  # in the order in which they were chosen
    text: TextChange
    is_held_out: bool  # whether `text` is held-out text
    kept: TextChange | None  # of other text, if there is any
    run: dict[str, Any]
    versions: dict[str, str]
    reading: dict[str, Any] = field(default_factory=dict)

    def save(self, directory: Path) -> None:
        """Write `tokenizer_report.json`."""
        text = json.dumps(published(asdict(self)), indent=2, ensure_ascii=False)
        (directory / REPORT_FILE).write_text(text + "\n", encoding="utf-8")

    @property
    def warnings(self) -> list[str]:
        """Likely problems, each with the remedy."""
        warnings, asked = [], self.settings["add"]
        if len(self.added) < asked:
            warnings.append(
                f"the text gave {len(self.added):,} new entries of {asked:,}: no other words, or pieces in long ones, "
                "occur often enough. Give more text, or use the tokenizer as it is."
            )
        if self.text.tokens_after > (1 - FEW_SAVED) * self.text.tokens_before:
            warnings.append(
                f"the text has {1 - self.text.tokens_after / self.text.tokens_before:.1%} fewer tokens: the old "
                "vocabulary fits it. Train with the old tokenizer, or add more entries."
            )
        return warnings

    def __str__(self) -> str:
        shown = ", ".join(self.added[:8])
        facts = [
            ("entries", f"{self.entries:,}, {len(self.added):,} of them new; rows of the model: {self.rows:,}"),
            ("first new ones", shown),
            *reading_rows(self.reading),
        ]
        rows = [("tokens per word", "before", "after", "tokens", "words tokenized differently")]
        rows.append(self.text.row("text, held out" if self.is_held_out else "text"))
        if self.kept is not None:
            rows.append(self.kept.row("other text"))
        warnings = (f"warning: {warning}" for warning in self.warnings)
        return "\n".join([text_table(facts), text_table(rows, "<>"), *warnings])


def words_of_tokens(tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> list[list[list[int]]]:
    """Token ids of each line by word, as normalizer, added tokens and pre-tokenizer divide it."""
    encoded = tokenizer(list(lines), add_special_tokens=False, verbose=False).encodings
    return [
        [
            [token for token, _ in word]
            for _, word in groupby(zip(one.ids, one.word_ids, strict=True), operator.itemgetter(1))
        ]
        for one in encoded
    ]


def save_pieces(pieces: Mapping[int, Sequence[int]], directory: Path) -> None:
    """Write `new_entries.json`."""
    (directory / ENTRIES_FILE).write_text(json.dumps(pieces) + "\n", encoding="utf-8")
