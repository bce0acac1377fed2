"""Run `hf-encoders sample`; its options are in `hf_encoders/options/sample.py`."""

import argparse
from pathlib import Path

import datasets

from hf_encoders.recipes.quickstart_text import HELD_OUT_SHARE, hold_out, labelled_passages, load_documents
from hf_encoders.writing import locked, replaced_files


def run(arguments: argparse.Namespace) -> int:
    """Read, split, write."""
    output = Path(arguments.output)
    datasets.disable_progress_bars()
    documents = load_documents(argparse.Namespace(input=None, language="en"))
    text, held_out = hold_out(documents, HELD_OUT_SHARE, arguments.seed)
    data = labelled_passages(held_out, arguments.seed)
    libraries = sorted({document.label for document in text})
    arguments.until_end.enter_context(locked(output, "--output", wait=False))
    with replaced_files(output) as unfinished:
        (unfinished / "text").mkdir()
        for library in libraries:
            parts = ("\n".join(map(" ".join, document.passages)) for document in text if document.label == library)
            (unfinished / "text" / f"{library}.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        for split, rows in data.items():
            rows.to_csv(unfinished / f"{split}.csv", index=False)
    print(f"{output / 'text'}: {len(text):,} documents of {len(libraries):,} libraries")
    for split, rows in data.items():
        print(f"{output / f'{split}.csv'}: {len(rows):,} passages of {len(set(rows['label'])):,} libraries")
    return 0
