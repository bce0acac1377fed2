"""Tables as aligned text and as Markdown, and what is written in their cells."""

import statistics
from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], align: str = "<") -> str:
    """Rows with aligned columns, two spaces between them.

    Args:
        rows (`Sequence`): Cells, the same number in each row; the first row may be a heading.
        align (`str`, *optional*, defaults to `"<"`): `<` (left) or `>` (right) for each column; the last one also
            applies to all further columns.

    >>> print(text_table([["", "loss", "steps"], ["a", "2.25", "1,000"], ["long", "12.25", "5"]], "<>"))
           loss  steps
    a      2.25  1,000
    long  12.25      5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = align.ljust(len(widths), align[-1])
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False)).rstrip()
        for row in rows
    )


def markdown_table(rows: Sequence[Sequence[str]], align: str = "<") -> str:
    """Rows as a Markdown table, the first as its heading; arguments as those of `text_table`.

    >>> print(markdown_table([["", "loss"], ["a", "2.25"]], "<>"))
    | | loss |
    |---|---:|
    | a | 2.25 |
    """
    sides = align.ljust(len(rows[0]), align[-1])[: len(rows[0])]
    rule = "|" + "".join("---:|" if side == ">" else "---|" for side in sides)
    heading, *body = ("|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows)
    return "\n".join([heading, rule, *body])


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """The mean, and the sample standard deviation (divisor n - 1) if there are several values.

    >>> mean_and_deviation([0.5, 0.7]), mean_and_deviation([0.5])
    ('0.600 ± 0.141', '0.500')
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> duration(42), duration(600), duration(36_000), duration(864_000)
    ('42 s', '10.0 min', '10.0 h', '10.0 days')
    >>> duration(101_834.6 * 86_400)
    '101,835 days'
    """
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            number = seconds / size
            return f"{number:,.0f} {unit}" if number >= 1000 else f"{number:.1f} {unit}"
    return f"{seconds:.0f} s"
