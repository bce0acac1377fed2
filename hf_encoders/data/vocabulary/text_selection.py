"""Which part of a text a tokenizer is trained on, and which part is kept apart to measure it.

Passages are documents, or `LINES_PER_PASSAGE` lines of longer ones, evenly spread over the text, which may be sorted by
anything.
"""

from collections.abc import Iterable, Iterator

from hf_encoders.data.corpus.segmentation import replace_lone_surrogates
from hf_encoders.data.corpus.shards import Reading


LINES_PER_PASSAGE = 100
FIRST_HELD_OUT = 10  # passages: fewer are all trained on, and measured too
HELD_OUT_BYTES = 10_000_000  # kept apart at most: they are held in memory
SAMPLE_BYTES = 1_000_000


class SelectedText:
    """Passes on the lines to train on, and keeps those apart that are not.

    Args:
        documents (`Iterable[list[str]]`): the text.
        held_out_share (`float`): share of the passages kept apart, in [0, 0.5].
        limit_bytes (`int`, *optional*): UTF-8 text to train on at most; `None` takes all.
        total_bytes (`int`, *optional*): size of the whole text, over which the limit is spread; `None`, unknown, takes
            the beginning of the text.

    Raises:
        ValueError: for a share or a limit out of range.

    Attributes:
        held_out (`list[str]`): lines kept apart; empty where there were fewer than `FIRST_HELD_OUT` passages.
        sample (`list[str]`): the first lines passed on, to be measured where nothing was kept apart.
        trained_bytes, held_out_bytes (`int`): UTF-8 text passed on and kept apart.
        reading (`Reading`): lines read, and those with U+FFFD or NUL.
    """

    def __init__(
        self,
        documents: Iterable[list[str]],
        held_out_share: float,
        limit_bytes: int | None = None,
        total_bytes: int | None = None,
    ):
        if not 0 <= held_out_share <= 0.5:
            raise ValueError(f"held_out_share={held_out_share} must be in [0, 0.5]; 0.01 keeps 1 % apart.")
        if limit_bytes is not None and limit_bytes <= 0:
            raise ValueError(f"limit_bytes={limit_bytes} must be above 0: leave it out to train on all text.")
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
        # Behind the first ten, so that a short text is not torn apart, but not so late that it has none.
        return number % self.period == min(self.period, FIRST_HELD_OUT) - 1 and number >= FIRST_HELD_OUT - 1

    def _passages(self) -> Iterator[list[str]]:
        for document in self.documents:
            self.reading = self.reading.with_document(document)
            for begin in range(0, len(document), LINES_PER_PASSAGE):
                yield [replace_lone_surrogates(line) for line in document[begin : begin + LINES_PER_PASSAGE]]
