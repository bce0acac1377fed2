"""Report on a trained tokenizer: how it encodes text and what its vocabulary costs, as a table and a JSON file."""

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.report import reading_rows, reading_warnings
from hf_encoders.corpus.tokenizer_training import padded_vocab_size
from hf_encoders.corpus.word_counts import LINES_PER_BATCH
from hf_encoders.corpus.word_starts import UNSPACED_NAMES
from hf_encoders.publishing.secrets import published
from hf_encoders.writing import markdown_table, text_table


REPORT_FILE = "tokenizer_report.json"
# Widths of the embedding: ALBERT's factorised one (section 3.1), a small model's, that of the base models.
WIDTHS = (128, 256, 768)
# Occurrences of a frequent piece, and the share of unknown tokens that is warned of (as in `hf-encoders corpus`): this
# package's choice.
OFTEN, MUCH_UNKNOWN = 100, 0.05
# With a larger share of letters of scripts without spaces, words between spaces are not counted.
MUCH_UNSPACED = 0.25


@dataclass(frozen=True)
class TokenizerStatistics:
    """Statistics of a tokenizer; shares are in [0, 1]."""

    entries: int  # ids, special tokens included
    rows: int  # `entries` rounded up to a multiple of 64, the `vocab_size` of a model
    words: int | None  # between white space in the text measured; `None` if much of it has no spaces
    tokens: int  # of the text measured, without special ones
    unknown_share: float
    tokens_per_word: float | None  # also known as fertility; `None` without words
    characters_per_token: float  # spaces included
    bytes_per_token: float  # of UTF-8
    used_share: float  # of the entries without special tokens that occur in the tokenized training text
    often_used_share: float  # that occur 100 times or more
    embedding_parameters: dict[str, int]  # width to rows × width, the word embeddings; the MLM decoder shares them

    def length_cells(self) -> tuple[str, str]:
        """Return tokens per word and characters per token for tables."""
        per_word = "-" if self.tokens_per_word is None else f"{self.tokens_per_word:.3f}"
        return per_word, f"{self.characters_per_token:.3f}"


@dataclass(frozen=True, kw_only=True)
class SourceStatistics(TokenizerStatistics):
    """Statistics of a tokenizer on one of several sources."""

    megabytes: float  # 10**6 bytes of UTF-8 trained on
    share: float  # of the training text that the source counted as
    is_held_out: bool  # whether the rest was measured on held-out text


def tokenizer_statistics(
    tokenizer: PreTrainedTokenizerBase, lines: Sequence[str], words: Mapping[str, int]
) -> TokenizerStatistics:
    """Measure a fast tokenizer on held-out `lines`, given its training `words` from `count_words`."""
    tokens = unknown = 0
    for begin in range(0, len(lines), LINES_PER_BATCH):
        batch = list(lines[begin : begin + LINES_PER_BATCH])
        for encoding in tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            tokens += len(encoding.ids)
            unknown += encoding.ids.count(tokenizer.unk_token_id)
    if tokens == 0:
        raise ValueError("lines give no token: measure on text.")
    num_words = None if _is_unspaced(lines) else sum(len(line.split()) for line in lines)
    rows = padded_vocab_size(tokenizer)
    counts: Counter[int] = Counter()
    for word, count in words.items():
        for piece in tokenizer.backend_tokenizer.model.tokenize(word):
            counts[piece.id] += count
    ordinary = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
    return TokenizerStatistics(
        entries=len(tokenizer),
        rows=rows,
        words=num_words,
        tokens=tokens,
        unknown_share=unknown / tokens,
        tokens_per_word=None if num_words is None else tokens / max(num_words, 1),
        characters_per_token=sum(map(len, lines)) / tokens,
        bytes_per_token=sum(len(line.encode()) for line in lines) / tokens,
        used_share=sum(counts[i] > 0 for i in ordinary) / max(len(ordinary), 1),
        often_used_share=sum(counts[i] >= OFTEN for i in ordinary) / max(len(ordinary), 1),
        embedding_parameters={str(width): rows * width for width in WIDTHS},
    )


def _is_unspaced(lines: Sequence[str]) -> bool:
    """Return whether much of a text is in scripts without spaces."""
    counts = Counter(character for line in lines for character in line)
    letters = {character: count for character, count in counts.items() if character.isalpha()}
    unspaced = (count for letter, count in letters.items() if unicodedata.name(letter, "").startswith(UNSPACED_NAMES))
    return sum(unspaced) > MUCH_UNSPACED * sum(letters.values())


@dataclass(frozen=True)
class TokenizerReport:
    """Training and statistics of a tokenizer, `tokenizer_report.json` in its folder; printed, a table."""

    settings: dict[str, Any]  # kind, size asked for, options, input
    statistics: TokenizerStatistics
    is_held_out: bool  # whether it was measured on held-out text; if not, the text was too short
    # `megabytes` (10**6 bytes of UTF-8 trained on), `held_out_megabytes`, `distinct_words`, `counting_seconds` (with
    # reading), `learning_seconds`
    run: dict[str, Any]
    versions: dict[str, str]
    reading: dict[str, Any] = field(default_factory=dict)  # as in `CorpusReport`
    sources: dict[str, SourceStatistics] = field(default_factory=dict)  # by name; empty for text without names

    @property
    def warnings(self) -> list[str]:
        """Likely problems, each with the remedy."""
        warnings = reading_warnings(self.reading) if self.reading else []
        if not self.is_held_out:
            warnings.append(
                "the text is too short to hold out a part of it: the statistics are of the training text, and better "
                "than on other text. Put a blank line between documents, or give more text."
            )
        if self.statistics.unknown_share > MUCH_UNKNOWN:
            warnings.append(
                f"{self.statistics.unknown_share:.1%} of the tokens are unknown: train on more text, raise "
                "--character-coverage, or use --kind bpe, which knows every byte."
            )
        if self.statistics.entries < self.settings["vocab_size"]:
            warnings.append(
                f"the text gave {self.statistics.entries:,} entries, fewer than the {self.settings['vocab_size']:,} "
                "requested: it has no more repeated pieces."
            )
        return warnings

    def __str__(self) -> str:
        counts, run = self.statistics, self.run
        where = "held out" if self.is_held_out else "trained on"
        per_word, per_token = counts.length_cells()
        length = ("tokens per word", f"{per_word} ({where}, {counts.words or 0:,} words)")
        if counts.words is None:
            per_character = f"{1 / counts.characters_per_token:.3f}"
            length = ("tokens per character", f"{per_character} ({where}; a script without spaces)")
        parameters = (f"{n / 1e6:,.2f} M at width {width}" for width, n in counts.embedding_parameters.items())
        rows = [
            ("entries", f"{counts.entries:,}; a model's vocab_size: {counts.rows:,}"),
            ("unknown tokens", f"{counts.unknown_share:.3%} ({where})"),
            length,
            ("characters per token", f"{per_token} ({where})"),
            ("entries used", f"{counts.used_share:.1%}; {OFTEN} times or more: {counts.often_used_share:.1%}"),
            ("embedding parameters", ", ".join(parameters)),
            ("trained on", f"{run['megabytes']:,.1f} MB, {run['distinct_words']:,} distinct words"),
            ("time", f"{run['counting_seconds']:,.1f} s to count, {run['learning_seconds']:,.1f} s to learn"),
            *reading_rows(self.reading),
        ]
        tables = [text_table(rows)] + ([_sources_table(self.sources)] if self.sources else [])
        return "\n".join([*tables, *(f"warning: {warning}" for warning in self.warnings)])


def save_report(report: Any, directory: Path) -> None:
    """Write a report, a dataclass, into `tokenizer_report.json`; the folder may be pushed, so paths are redacted."""
    text = json.dumps(published(asdict(report)), indent=2, ensure_ascii=False)
    (directory / REPORT_FILE).write_text(text + "\n", encoding="utf-8")


def _sources_table(sources: Mapping[str, SourceStatistics]) -> str:
    """Return a table with a row per source."""
    rows = [("source", "MB", "share", "unknown", "tokens per word", "characters per token", "bytes per token", "used")]
    for name, counts in sources.items():
        shares = f"{counts.megabytes:,.1f}", f"{counts.share:.1%}", f"{counts.unknown_share:.3%}"
        lengths = *counts.length_cells(), f"{counts.bytes_per_token:.3f}"
        rows.append((name, *shares, *lengths, f"{counts.used_share:.1%}"))
    return text_table(rows, "<>")


def sizes_table(reports: Sequence[TokenizerReport]) -> str:
    """Return a Markdown table with one row per vocabulary."""
    names = ["entries", "vocab_size", "unknown", "tokens per word", "characters per token", "used", f"{OFTEN} times +"]
    rows = [[*names, *(f"M parameters, width {width}" for width in WIDTHS), "s"]]
    for report in reports:
        counts = report.statistics
        sizes = f"{counts.entries:,}", f"{counts.rows:,}", f"{counts.unknown_share:.3%}"
        used = f"{counts.used_share:.1%}", f"{counts.often_used_share:.1%}"
        parameters = (f"{counts.embedding_parameters[str(width)] / 1e6:.2f}" for width in WIDTHS)
        rows.append([*sizes, *counts.length_cells(), *used, *parameters, f"{report.run['learning_seconds']:.1f}"])
    return markdown_table(rows, ">")
