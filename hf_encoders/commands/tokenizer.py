"""`hf-encoders tokenizer`: train a tokenizer of a family's kind on text files or a dataset, with a report.

`--from-sentencepiece FILE.model --family FAMILY` converts a SentencePiece file instead.

`--extend CHECKPOINT --add N` adds entries for the words of the text to the tokenizer and the model of CHECKPOINT.

The same text and settings give the same tokenizer. `AutoTokenizer.from_pretrained(DIR)` loads it, also where this
package is not installed; `hf-encoders corpus` takes it as `--tokenizer DIR`.
"""

import argparse
from pathlib import Path

from hf_encoders.corpus.text_files import add_text_arguments, check_text, text_files
from hf_encoders.inputs import check_name_or_path, check_packages
from hf_encoders.registration import family_names, vocabulary_kinds
from hf_encoders.source_literals import constant
from hf_encoders.writing import check_folder


SIZES_FILE = constant("corpus.tokenizer_command", "SIZES_FILE")
ADDED = constant("corpus.tokenizer_command", "ADDED")
HELD_OUT_BYTES = constant("corpus.word_counts", "HELD_OUT_BYTES")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    _add_text_arguments(parser)
    kinds = vocabulary_kinds()
    # The configurations' defaults. BERT: vocab.txt of the release (the paper, section 3, rounds to 30,000). RoBERTa:
    # dict.txt of fairseq and the mask ("50K", section 4.4). ALBERT: section 4.1.
    sizes = ", ".join(f"{kind} {size:,}" for kind, (_, size) in kinds.items())
    families = ", ".join(f"{family} ({kind})" for kind, (family, _) in kinds.items())
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--kind", choices=list(kinds), help=f"vocabulary and special tokens of {families}")
    which.add_argument("--family", choices=family_names(), help="vocabulary and special tokens of this family")
    which.add_argument(
        "--extend",
        metavar="DIR_OR_NAME",
        help="add entries to the tokenizer of this checkpoint, and rows to its model; or to a tokenizer alone",
    )
    add, size = parser.add_argument, parser.add_mutually_exclusive_group()
    whose = "folder of the tokenizer and its report; with --extend, of the checkpoint"
    add("--output", required=True, metavar="DIR", help=whose)
    most = f"with --extend: most entries to add, those that save most tokens of the text (default: {ADDED})"
    add("--add", type=int, metavar="N", help=most)
    add(
        "--keep",
        action="extend",
        nargs="+",
        metavar="PATH",
        help="with --extend: other text, of which the report says how much is cut differently (default: none)",
    )
    size.add_argument(
        "--vocab-size", type=int, metavar="N", help=f"most entries, special tokens included (default: {sizes})"
    )
    size.add_argument(
        "--compare-sizes",
        type=int,
        action="extend",
        nargs="+",
        metavar="N",
        help=f"train one of each size into DIR/N, counting words once, and print a table ({SIZES_FILE})",
    )
    case = parser.add_mutually_exclusive_group()
    lowercase = "lower-case the text (default, except for bpe and xlm-roberta, which never do)"
    case.add_argument("--lowercase", action="store_true", help=lowercase)
    case.add_argument("--cased", action="store_true", help="keep upper case")
    accents = "remove combining marks, as the published uncased models do; not in bpe (default: keep them)"
    add("--strip-accents", action="store_true", help=accents)
    add(
        "--character-coverage",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of the characters of the text in the vocabulary, in (0, 1]; no effect on bpe (default: "
        "%(default)s; SentencePiece's is 0.9995)",
    )
    longest = "longest sequence, recorded as model_max_length (default: %(default)s)"
    add("--max-length", type=int, default=512, metavar="TOKENS", help=longest)
    add("--overwrite", action="store_true", help="first remove the tokenizer in --output")


def _add_text_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser, takes_names=True).add_argument(
        "--from-sentencepiece",
        metavar="FILE",
        help="make the tokenizer of --family from this SentencePiece model, such as spiece.model, with its pieces",
    )
    parser.add_argument(
        "--language",
        action="extend",
        nargs="+",
        default=[],
        metavar="[NAME=]CODE",
        help="split the lines into sentences by the rules of this language, as `corpus` does; only bpe treats the "
        "first word of a sentence differently (default: the name of a source, if it is a code of two letters; "
        "otherwise take lines as they are)",
    )
    parser.add_argument(
        "--sampling-alpha",
        type=float,
        metavar="X",
        help="of sources named by --input NAME=PATH: each counts as much as its share of the bytes to the power X, in "
        "(0, 1]; lower values give small sources more entries (default: 1)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="MEGABYTES",
        help="text to train on at most, 10**6 bytes of UTF-8, evenly spread over the input; the beginning of a "
        "--streaming dataset (default: all)",
    )
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="share of the documents to measure instead of train on, in [0, 0.5]; at most "
        f"{HELD_OUT_BYTES // 10**6} MB (default: %(default)s)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong."""
    check_text(arguments, takes_names=True)
    text_files(arguments.keep or (), "--keep")
    if arguments.extend is not None:
        check_name_or_path(arguments.extend, f"--extend {arguments.extend!r}")
    if (file := arguments.from_sentencepiece) is not None:
        if not Path(file).is_file():
            raise ValueError(f"--from-sentencepiece {file!r} is no file: give the .model file.")
        check_packages(("sentencepiece",), "--from-sentencepiece", "sentencepiece")
    check_folder(arguments.output, "--output")


def run(arguments: argparse.Namespace) -> int:
    """Train, extend or convert, and save."""
    from hf_encoders.corpus.tokenizer_command import run

    return run(arguments)
