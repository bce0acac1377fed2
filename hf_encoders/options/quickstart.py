"""`hf-encoders quickstart`: train, save, load and fine-tune a small encoder in minutes, without a download.

The text is the documentation inside the Python installation, or the user's own (`--input`). Pre-training follows a
shipped recipe, such as `bert-minutes`, with fewer steps.

Stopped with Ctrl-C or killed, the same command resumes; with a larger --max-steps, also when it is finished.
"""

import argparse

from hf_encoders.data.corpus.text_files import check_text_files
from hf_encoders.options.names import COMPARABLE_OBJECTIVES, QUICKSTART_FAMILIES
from hf_encoders.writing import check_folder


STEPS = 1500  # of pre-training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    text = "text (documents separated by blank lines), .jsonl or folders of them (default: Python's documentation)"
    add("--input", nargs="+", metavar="PATH", help=text)
    # In so few steps, sentence pairs are hardly learned, and the encoder is better without them.
    add("--objective", choices=COMPARABLE_OBJECTIVES, default="mlm", help="(default: %(default)s)")
    add("--family", choices=QUICKSTART_FAMILIES, default="bert")
    add("--output", default="runs/quickstart", metavar="DIR", help="folder of the results (default: %(default)s)")
    add("--max-steps", type=int, metavar="N", help=f"steps of pre-training (default: {STEPS:,})")
    add("--vocab-size", type=int, metavar="N", help="entries of the vocabulary (default: the recipe's, 8,000)")
    add("--max-length", type=int, metavar="TOKENS", help="longest example in tokens (default: the recipe's, 64)")
    add("--cased", action="store_true", help="keep upper case (byte-level BPE always does)")
    add("--language", default="en", metavar="CODE", help="language of --input, for sentence splitting (default: en)")
    add("--overwrite", action="store_true", help="start from scratch if --output holds a quickstart")
    add("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")


def check(arguments: argparse.Namespace) -> None:
    """Refuse numbers that are too small, and paths that are wrong."""
    for name, least in (("max_steps", 1), ("max_length", 8), ("vocab_size", 50)):
        if getattr(arguments, name) is not None and getattr(arguments, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least {least}.")
    check_text_files(arguments.input or (), "--input")
    check_folder(arguments.output, "--output")
