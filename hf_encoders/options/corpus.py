"""`hf-encoders corpus`: tokenize text files or a dataset into a corpus in a folder, with a report.

Splits documents into sentences, tokenizes them with several processes, drops exact duplicates, and warns of what
predicts a failed pre-training. Killed and started again with the same arguments, it resumes.
`datasets.load_from_disk(DIR)` opens the corpus.
"""

import argparse

from hf_encoders.data.corpus.text_options import add_text_arguments, check_text
from hf_encoders.inputs import check_exists, check_name_or_path, check_packages
from hf_encoders.writing import check_folder


LEARN = ""  # --phrases without a file
ENGLISH = "en"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    source = add_text_arguments(parser)
    source.add_argument(
        "--parallel",
        nargs="+",
        metavar="FILE",
        help="text and its translation, for translation language modelling: two files aligned line by line, or a TSV",
    )
    parser.add_argument(
        "--languages", nargs=2, metavar="NAME", help="of --parallel: the languages of its two sides, such as en zh"
    )
    parser.add_argument(
        "--columns", nargs=2, type=int, metavar="N", help="of --parallel: columns of the two sides in a TSV, from 1"
    )
    parser.add_argument(
        "--tokenizer", required=True, metavar="DIR_OR_NAME", help="folder of a tokenizer, or its name on the Hub"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the corpus; 4 bytes per token")
    splitting = parser.add_mutually_exclusive_group()
    splitting.add_argument(
        "--language", default=ENGLISH, metavar="CODE", help="language, for sentence splitting (default: %(default)s)"
    )
    splitting.add_argument(
        "--one-sentence-per-line", action="store_true", help="the text is already split: every line is a sentence"
    )
    parser.add_argument(
        "--word-segmenter",
        choices=["jieba"],
        help="also store where words begin, for whole-word masking in Chinese (needs the package jieba)",
    )
    parser.add_argument(
        "--lexicon",
        nargs="+",
        metavar="FILE|jieba",
        help="also store where entities begin: names and terms, one a line; jieba takes the names of its dictionary",
    )
    parser.add_argument(
        "--phrases",
        nargs="?",
        const=LEARN,
        metavar="FILE",
        help="also store where phrases begin, one a line; without FILE they are learned from the text",
    )
    parser.add_argument(
        "--similar-words",
        metavar="FILE|build",
        help="also store which words may replace each other, for MacBERT: lines of a word, a tab and similar words; "
        "build learns them from the corpus, also from one that is there",
    )
    parser.add_argument(
        "--max-sentence-tokens",
        type=int,
        metavar="TOKENS",
        help="divide longer sentences into parts of this many tokens (default: divide none)",
    )
    parser.add_argument(
        "--keep-duplicates", action="store_true", help="keep documents with the same tokens as an earlier one"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes, one core each (default: as many as there are cores)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="start over, and replace the corpus in --output by the new one"
    )


def check_parallel_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options of parallel text without it, and options of other text with it."""
    if not arguments.parallel:
        for name in ("languages", "columns"):
            if getattr(arguments, name):
                raise ValueError(f"--{name} is for --parallel: leave it out.")
        return
    if not arguments.languages:
        raise ValueError("--languages is missing: name the languages of both sides of --parallel, such as en zh.")
    for name in (
        "config",
        "split",
        "streaming",
        "sentences_column",
        "turns_column",
        "one_sentence_per_line",
        "max_sentence_tokens",
        "lexicon",
        "phrases",
    ):
        if getattr(arguments, name) not in (None, False):
            raise ValueError(f"--{name.replace('_', '-')} does not go with --parallel: leave it out.")
    if arguments.text_column != "text":
        raise ValueError("--text-column does not go with --parallel: leave it out, or give --columns.")
    if arguments.language != ENGLISH:
        raise ValueError(f"--language {arguments.language} splits text, and --parallel is split: give --languages.")


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong, and options that exclude each other."""
    check_parallel_arguments(arguments)
    check_text(arguments)
    for path in arguments.parallel or ():
        check_exists(path, "--parallel")
    if arguments.word_segmenter:
        check_packages(["jieba"], "--word-segmenter jieba", "chinese")
    check_name_or_path(arguments.tokenizer, f"--tokenizer {arguments.tokenizer!r}")
    check_folder(arguments.output, "--output")
