"""Byte ranges of text files that begin and end between documents, so that each can be read on its own.

The ranges of a file, read one after the other, give the lines and documents of the whole file.
"""

import io
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO


# A carriage return counts only if the next byte is known: a range must not begin with the second half of \r\n.
_LINE_END = rb"(?:\r\n|\r(?=[^\n])|\n)"
# Where ranges may end: in JSON lines after any line end, in text after a blank line. Readers take more lines for blank
# than this pattern (other white space, byte order marks); no range ends there.
_CUTS = {True: re.compile(_LINE_END), False: re.compile(rb"(?:\r\n|\r(?!\n)|\n)[ \t\x0b\x0c\x1c-\x1f]*" + _LINE_END)}
_SMALLEST_LOOK, _LARGEST_LOOK = 2**13, 2**20  # bytes read at once in search of a cut
_OVERLAP = 64  # bytes searched again with the next ones; a longer blank line may be missed


class ByteRange(NamedTuple):
    """Bytes `begin` to `end` (exclusive) of a file; `None` is the end of the file."""

    path: Path
    begin: int = 0
    end: int | None = None

    @property
    def is_json_lines(self) -> bool:
        """Whether each line is a document, by the suffix of the file."""
        return self.path.suffix.lower() == ".jsonl"


def byte_ranges(path: Path, least_bytes: int) -> Iterator[ByteRange]:
    """Divide a text file or JSON lines between documents; a range ends at the first cut after `least_bytes`."""
    size = path.stat().st_size
    cut = _CUTS[ByteRange(path).is_json_lines]
    begin = 0
    with open(path, "rb") as file:
        while begin < size:
            end = _first_cut(file, cut, begin + least_bytes)
            end = size if end is None else end
            yield ByteRange(path, begin, end)
            begin = end


def open_range(part: ByteRange) -> TextIO:
    """Open a range as UTF-8 text, without byte order mark; bytes that are not UTF-8 become U+FFFD."""
    encoding = "utf-8-sig" if part.begin == 0 else "utf-8"
    if part.end is None:
        return open(part.path, encoding=encoding, errors="replace")
    with open(part.path, "rb") as file:
        file.seek(part.begin)
        data = file.read(part.end - part.begin)
    return io.TextIOWrapper(io.BytesIO(data), encoding=encoding, errors="replace")


def lines_before(part: ByteRange) -> int:
    """Number of lines of the file before the range."""
    if part.begin == 0:
        return 0
    with open(part.path, "rb") as file, mmap.mmap(file.fileno(), part.begin, access=mmap.ACCESS_READ) as data:
        return sum(1 for _ in re.finditer(rb"\r\n|\r|\n", data))


def _first_cut(file: io.BufferedReader, cut: re.Pattern[bytes], begin: int) -> int | None:
    """First place from `begin` on where a range may end; `None` if there is none before the end of the file."""
    file.seek(begin)
    seen, look = b"", _SMALLEST_LOOK
    while more := file.read(look):
        data = seen + more
        if match := cut.search(data):
            return begin + match.end()
        begin += len(data) - len(data[-_OVERLAP:])
        seen, look = data[-_OVERLAP:], min(2 * look, _LARGEST_LOOK)
    return None
