"""Write the tables of measurements in docs/ from the results in benchmarks/results/.

    python benchmarks/tables.py            # after new results
    python benchmarks/tables.py --check    # says which pages are not what this writes

A table stands after `<!-- table FILE.NAME -->`; its columns and rows are in FILE.json.
"""

import argparse
import json
import re
from pathlib import Path

from hf_encoders.writing import markdown_table


RESULTS = Path(__file__).parent / "results"
PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
TABLE = re.compile(r"(<!-- table (\w+)\.(\w+) -->\n)(?:\n(?:\|.*\n)+)?")


def with_tables(page: str) -> str:
    def filled(marker: re.Match) -> str:
        comment, file, name = marker.groups()
        table = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))[name]
        return f"{comment}\n{markdown_table([table['columns'], *table['rows']])}\n"

    return TABLE.sub(filled, page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the page differs")
    arguments = parser.parse_args()
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    changed = {page: tables for page, text in texts.items() if (tables := with_tables(text)) != text}
    for page, tables in changed.items():
        print(f"{page.name}: {'not as benchmarks/results/ says' if arguments.check else 'written'}")
        if not arguments.check:
            page.write_text(tables, encoding="utf-8")
    return int(arguments.check and bool(changed))


if __name__ == "__main__":
    raise SystemExit(main())
