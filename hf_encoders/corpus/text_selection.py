"""The part of a text that a tokenizer is trained on, and the part held out to measure it.

Passages (documents, or `LINES_PER_PASSAGE` lines of longer ones) are taken evenly from the text, which may be sorted.
"""

from collections.abc import Iterable, Iterator

from hf_encoders.corpus.segmentation import replace_lone_surrogates
from hf_encoders.corpus.shards import Reading


LINES_PER_PASSAGE = 100
FIRST_HELD_OUT = 10  # passages; fewer are all trained on, and measured too
HELD_OUT_BYTES = 10_000_000  # at most: they are kept in memory
SAMPLE_BYTES = 1_000_000


class SelectedText:
    """Iterates over the lines to train on, and collects those held out.

    Args:
        documents (`Iterable[list[str]]`): The text.
        held_out_share (`float`): Share of the passages held out, in [0, 0.5].
        limit_bytes (`int`, *optional*): UTF-8 text to train on at most; `None` takes all.
        total_bytes (`int`, *optional*): Size of the whole text, over which the limit is spread; `None`, unknown, takes
            the beginning of the text.

    Attributes:
        held_out (`list[str]`): Lines held out; empty if there were fewer than `FIRST_HELD_OUT` passages.
        sample (`list[str]`): The first lines to train on, to be measured if none were held out.
        trained_bytes, held_out_bytes (`int`): UTF-8 text to train on and held out.
        reading (`Reading`): Lines read, and those with U+FFFD or NUL.
    """

    def __init__(
        self,
        documents: Iterable[list[str]],
        held_out_share: float,
        limit_bytes: int | None = None,
        total_bytes: int | None = None,
    ):
        if not 0 <= held_out_share <= 0.5:
            raise ValueError(f"held_out_share={held_out_share} must be in [0, 0.5]; 0.01 holds out 1 %.")
        self.documents = documents
        self.limit_bytes = limit_bytes
        self.is_spread = bool(limit_bytes and total_bytes)
        self.kept_share = min(limit_bytes / total_bytes, 1.0) if self.is_spread else 1.0
        if total_bytes:
            held_out_share = min(held_out_share, HELD_OUT_BYTES / total_bytes)
        self.period = max(round(1 / held_out_share), 2) if held_out_share else 0
        self.held_out: list[str] = []
        self.sample: list[str] = []
        self.trained_bytes = self.held_out_bytes = 0
        self.reading = Reading()

    def __iter__(self) -> Iterator[str]:
        seen = 0
        for number, passage in enumerate(self._passages()):
            size = sum(len(line.encode()) for line in passage)
            if self._is_held_out(number) and self.held_out_bytes + size <= HELD_OUT_BYTES:
                self.held_out += passage
                self.held_out_bytes += size
                continue
            seen += size
            if self.trained_bytes + size <= self.kept_share * seen:
                if self.limit_bytes and self.trained_bytes and self.trained_bytes + size > self.limit_bytes:
                    return
                if self.trained_bytes < SAMPLE_BYTES:
                    self.sample += passage
                self.trained_bytes += size
                yield from passage

    def _is_held_out(self, number: int) -> bool:
        if not self.period:
            return False
        # Not among the first nine, so that a short text stays whole, but early enough for a text of few passages.
        return number % self.period == min(self.period, FIRST_HELD_OUT) - 1 and number >= FIRST_HELD_OUT - 1

    def _passages(self) -> Iterator[list[str]]:
        for document in self.documents:
            self.reading = self.reading.with_document(document)
            for begin in range(0, len(document), LINES_PER_PASSAGE):
                yield [replace_lone_surrogates(line) for line in document[begin : begin + LINES_PER_PASSAGE]]
