"""Write text and labelled passages to try the other commands on: the documentation inside this Python installation.

    OUTPUT/text/LIBRARY.txt     a docstring a line, a blank line between modules
    OUTPUT/train.csv, test.csv  docstrings of modules that are not in text/, in columns text and label (the library)

Nothing is downloaded. Reading takes about half a minute.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

from hf_encoders.recipes.quickstart_text import HELD_OUT_SHARE, LabelledDocument, hold_out, load_documents
from hf_encoders.writing import check_folder, holds_files


LABELS = 8  # libraries with the most text that is kept out
FEWEST_WORDS = 8  # of a passage that is to be told from those of other libraries
TEST_SHARE = 0.3  # of the documents that are kept out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--output", default="sample", help="folder to write (default: sample)")
    parser.add_argument("--seed", type=int, default=0, help="which documents are kept out of the text (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Read, divide, write."""
    output = Path(arguments.output)
    check_folder(output, "--output")
    if holds_files(output):
        raise ValueError(f"--output {output} holds files already: name another folder, or remove it first.")
    documents = load_documents(argparse.Namespace(input=None, language="en"))
    text, held_out = hold_out(documents, HELD_OUT_SHARE, arguments.seed)
    labels = {label for label, _ in Counter(document.label for document in held_out).most_common(LABELS)}
    labelled = [document for document in held_out if document.label in labels]
    train, test = hold_out(labelled, TEST_SHARE, arguments.seed)
    (output / "text").mkdir(parents=True)
    for library in sorted({document.label for document in text}):
        parts = ("\n".join(map(" ".join, document.passages)) for document in text if document.label == library)
        (output / "text" / f"{library}.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    rows = {name: write_passages(part, output / name) for name, part in (("train.csv", train), ("test.csv", test))}
    print(f"{output / 'text'}: {len(text):,} documents of {len({document.label for document in text}):,} libraries")
    for name, count in rows.items():
        print(f"{output / name}: {count:,} passages of {len(labels)} libraries")
    return 0


def write_passages(documents: list[LabelledDocument], path: Path) -> int:
    """Write the passages of documents with their labels, each once; their number."""
    rows = {" ".join(passage): document.label for document in documents for passage in document.passages}
    rows = {text: label for text, label in rows.items() if len(text.split()) >= FEWEST_WORDS}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows.items())
    return len(rows)
