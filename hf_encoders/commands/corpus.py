"""`hf-encoders corpus`: text files or a dataset to a tokenized corpus in a folder, with a report.

Splits documents into sentences, tokenizes them with several processes, drops exact duplicates, and warns of what
predicts a failed pre-training. Killed and started again with the same arguments, it resumes.
`datasets.load_from_disk(DIR)` opens the corpus.
"""

import argparse
from pathlib import Path

import datasets
import transformers

from hf_encoders.data.corpus.preparation import prepare_corpus
from hf_encoders.data.corpus.segmentation import splitter_for
from hf_encoders.data.corpus.word_segmentation import jieba_segmenter
from hf_encoders.errors import first_line
from hf_encoders.loading import NOT_HERE, load_tokenizer, why_unreachable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_text_arguments(parser)
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


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the text: files or a dataset."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        nargs="+",
        metavar="PATH",
        help="text files (a blank line between documents), .jsonl files (one document per line) or folders of them",
    )
    source.add_argument(
        "--dataset", metavar="NAME", help="dataset on the Hub, or a folder that datasets.load_dataset reads"
    )
    parser.add_argument("--config", metavar="NAME", help="configuration of --dataset (default: its only one)")
    parser.add_argument("--split", metavar="NAME", help="split of --dataset (default: train)")
    parser.add_argument(
        "--streaming",
        action="store_true",
        help="read --dataset while it is downloaded, without keeping it; a restart reads it again from the start",
    )
    parser.add_argument(
        "--text-column",
        default="text",
        metavar="NAME",
        help="column of --dataset, or field of .jsonl files, with the text of a document (default: %(default)s)",
    )
    parser.add_argument(
        "--sentences-column", metavar="NAME", help="column or field with a list of sentences, which replaces the text"
    )


def check_text_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options of --dataset together with --input."""
    for name in ("config", "split", "streaming"):
        if arguments.input and getattr(arguments, name):
            raise ValueError(f"--{name} is for --dataset, not for --input: leave it out.")


def run(arguments: argparse.Namespace) -> int:
    """Prepare the corpus and print its report."""
    check_text_arguments(arguments)
    transformers.logging.set_verbosity_error()
    report = prepare_corpus(
        arguments.input or load_split(arguments),
        arguments.output,
        load_tokenizer(arguments.tokenizer, "--tokenizer"),
        sentence_splitter=splitter_for(None if arguments.one_sentence_per_line else arguments.language),
        text_column=arguments.text_column,
        sentences_column=arguments.sentences_column,
        word_segmenter=jieba_segmenter() if arguments.word_segmenter else None,
        max_sentence_tokens=arguments.max_sentence_tokens,
        keep_duplicates=arguments.keep_duplicates,
        workers=arguments.workers,
        overwrite=arguments.overwrite,
    )
    print(report)
    print(f"datasets.load_from_disk({str(Path(arguments.output))!r}) opens it")
    return 0


def load_split(arguments: argparse.Namespace) -> datasets.Dataset | datasets.IterableDataset:
    """The split of --dataset."""
    name = arguments.dataset
    if not Path(name).exists():
        # datasets would retry several times before it looks into its cache.
        reason = why_unreachable(name, f"--dataset {name!r}", "dataset")
        if reason and not Path(datasets.config.HF_DATASETS_CACHE, name.replace("/", "___")).exists():
            raise ValueError(f"--dataset {name!r} {NOT_HERE} ({reason}): check the spelling and the connection.")
    try:
        return datasets.load_dataset(
            name, arguments.config, split=arguments.split or "train", streaming=arguments.streaming
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--dataset {name!r} cannot be loaded ({first_line(error)}): check --dataset, --config and --split, and "
            "the connection."
        ) from error
