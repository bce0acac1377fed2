"""`hf-encoders sample`: write text and labelled passages to try the other commands on, without a download.

    DIR/text/LIBRARY.txt     a docstring per line, a blank line between modules
    DIR/train.csv, test.csv  docstrings of modules that are not in text/, in columns text and label (the library)

They are the docstrings of Python's standard library and of the packages that this one requires, so they differ between
versions of these. Reading takes about a minute.
"""

import argparse
from pathlib import Path

from hf_encoders.writing import check_folder, holds_files, locked, replaced_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--output", default="sample", metavar="DIR", help="folder to write (default: sample)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="which documents are held out of the text (default: 0)"
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse a folder that cannot be written or holds files."""
    output = Path(arguments.output)
    check_folder(output, "--output")
    if holds_files(output):
        raise ValueError(f"--output {output} holds files already: name another folder, or remove it first.")


def run(arguments: argparse.Namespace) -> int:
    """Read, split, write."""
    import datasets

    from hf_encoders.runs.quickstart import HELD_OUT_SHARE, as_text, hold_out, labelled_passages, load_documents

    output = Path(arguments.output)
    datasets.disable_progress_bars()
    documents = load_documents([], "en")
    text, held_out = hold_out(documents, HELD_OUT_SHARE, arguments.seed)
    data = labelled_passages(held_out, arguments.seed)
    libraries = sorted({document.label for document in text})
    arguments.until_end.enter_context(locked(output, "--output", wait=False))
    with replaced_files(output) as unfinished:
        (unfinished / "text").mkdir()
        for library in libraries:
            of_library = [document for document in text if document.label == library]
            (unfinished / "text" / f"{library}.txt").write_text(as_text(of_library), encoding="utf-8")
        for split, rows in data.items():
            rows.to_csv(unfinished / f"{split}.csv", index=False)
    print(f"{output / 'text'}: {len(text):,} documents of {len(libraries):,} libraries")
    for split, rows in data.items():
        print(f"{output / f'{split}.csv'}: {len(rows):,} passages of {len(set(rows['label'])):,} libraries")
    return 0
