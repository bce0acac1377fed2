"""`hf-encoders sample`: write text and labelled passages to try the other commands on, without a download.

    OUTPUT/text/LIBRARY.txt     a docstring per line, a blank line between modules
    OUTPUT/train.csv, test.csv  docstrings of modules that are not in text/, in columns text and label (the library)

They are the docstrings of Python's standard library and of the packages installed beside it, so they differ between
environments. Reading takes about a minute.
"""

import argparse
from pathlib import Path

import datasets

from hf_encoders.recipes.quickstart_text import HELD_OUT_SHARE, hold_out, labelled_passages, load_documents
from hf_encoders.writing import check_folder, holds_files


FEWEST_WORDS = 8  # of a labelled passage: shorter ones say little about their library


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--output", default="sample", help="folder to write (default: sample)")
    parser.add_argument("--seed", type=int, default=0, help="which documents are held out of the text (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Read, split, write."""
    output = Path(arguments.output)
    check_folder(output, "--output")
    if holds_files(output):
        raise ValueError(f"--output {output} holds files already: name another folder, or remove it first.")
    datasets.disable_progress_bars()
    documents = load_documents(argparse.Namespace(input=None, language="en"))
    text, held_out = hold_out(documents, HELD_OUT_SHARE, arguments.seed)
    data = labelled_passages(held_out, arguments.seed, FEWEST_WORDS)
    (output / "text").mkdir(parents=True)
    libraries = sorted({document.label for document in text})
    for library in libraries:
        parts = ("\n".join(map(" ".join, document.passages)) for document in text if document.label == library)
        (output / "text" / f"{library}.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"{output / 'text'}: {len(text):,} documents of {len(libraries):,} libraries")
    for split, rows in data.items():
        rows.to_csv(output / f"{split}.csv", index=False)
        print(f"{output / f'{split}.csv'}: {len(rows):,} passages of {len(set(rows['label'])):,} libraries")
    return 0
