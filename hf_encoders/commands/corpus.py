"""`hf-encoders corpus`: text files or a dataset to a tokenized corpus in a folder, with a report.

Splits documents into sentences, tokenizes them with several processes, drops exact duplicates, and warns of what
predicts a failed pre-training. Killed and started again with the same arguments, it resumes.
`datasets.load_from_disk(DIR)` opens the corpus.
"""

import argparse
from pathlib import Path

import transformers

from hf_encoders.data.corpus.parallel import prepare_parallel_corpus
from hf_encoders.data.corpus.preparation import prepare_corpus
from hf_encoders.data.corpus.report import CorpusReport
from hf_encoders.data.corpus.segmentation import splitter_for
from hf_encoders.data.corpus.text_options import add_text_arguments, check_text_arguments, load_split
from hf_encoders.data.corpus.word_segmentation import jieba_segmenter
from hf_encoders.loading import load_tokenizer


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
        "--language", default="en", metavar="CODE", help="language, for sentence splitting (default: %(default)s)"
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
        "--overwrite", action="store_true", help="first remove a finished or unfinished corpus from --output"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prepare the corpus and print its report."""
    check_parallel_arguments(arguments)
    check_text_arguments(arguments)
    transformers.logging.set_verbosity_error()
    if arguments.parallel:
        report = prepare_parallel_corpus(
            arguments.parallel,
            arguments.output,
            load_tokenizer(arguments.tokenizer, "--tokenizer"),
            languages=arguments.languages,
            columns=arguments.columns,
            word_segmenter=jieba_segmenter() if arguments.word_segmenter else None,
            keep_duplicates=arguments.keep_duplicates,
            workers=arguments.workers,
            overwrite=arguments.overwrite,
        )
        return print_report(report, arguments.output)
    report = prepare_corpus(
        arguments.input or load_split(arguments),
        arguments.output,
        load_tokenizer(arguments.tokenizer, "--tokenizer"),
        sentence_splitter=splitter_for(None if arguments.one_sentence_per_line else arguments.language),
        text_column=arguments.text_column,
        sentences_column=arguments.sentences_column,
        turns_column=arguments.turns_column,
        word_segmenter=jieba_segmenter() if arguments.word_segmenter else None,
        max_sentence_tokens=arguments.max_sentence_tokens,
        keep_duplicates=arguments.keep_duplicates,
        workers=arguments.workers,
        overwrite=arguments.overwrite,
    )
    return print_report(report, arguments.output)


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
    ):
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} does not go with --parallel: leave it out.")


def print_report(report: CorpusReport, output: str) -> int:
    """Print the report of a finished corpus, and how to open it."""
    print(report)
    print(f"datasets.load_from_disk({str(Path(output))!r}) opens it")
    return 0
