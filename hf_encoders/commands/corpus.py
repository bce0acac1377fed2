"""`hf-encoders corpus`: tokenize text files or a dataset into a corpus in a folder, with a report.

Splits documents into sentences, tokenizes them with several processes, drops exact duplicates, and warns of what
predicts a failed pre-training. Killed and started again with the same arguments, it resumes.
`datasets.load_from_disk(DIR)` opens the corpus.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hf_encoders.corpus.text_files import add_text_arguments, check_text, load_split
from hf_encoders.inputs import check_exists, check_name_or_path, check_packages
from hf_encoders.source_literals import constant
from hf_encoders.writing import check_folder


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hf_encoders.corpus.report import CorpusReport


LEARN = ""  # --phrases without a file
ENGLISH = "en"
# Options that do not go with --parallel.
OF_OTHER_TEXT = ("config", "split", "streaming", "sentences_column", "turns_column", "one_sentence_per_line")
OF_OTHER_TEXT += ("max_sentence_tokens", "lexicon", "phrases")
JIEBA, BUILD = constant("corpus.units", "JIEBA"), constant("corpus.similar_words", "BUILD")


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
        metavar=f"FILE|{JIEBA}",
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
        metavar=f"FILE|{BUILD}",
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
    for name in OF_OTHER_TEXT:
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


def run(arguments: argparse.Namespace) -> int:
    """Prepare the corpus and print its report."""
    import datasets
    import transformers

    from hf_encoders.corpus.similar_words import build_similar_words, describe_similar_words, read_similar_words
    from hf_encoders.tokenizer_loading import load_tokenizer

    transformers.logging.set_verbosity_error()
    tokenizer = load_tokenizer(arguments.tokenizer, "--tokenizer")
    table = None
    if arguments.similar_words not in (None, BUILD):
        table = read_similar_words(arguments.similar_words, tokenizer, "--similar-words ")
    report = prepare(arguments, tokenizer)
    print(report)
    if arguments.similar_words:
        documents = datasets.load_from_disk(arguments.output)
        table = table or build_similar_words(documents, tokenizer)
        print(f"{table.save(arguments.output)}: {describe_similar_words(table, documents, tokenizer)}")
    print(f"datasets.load_from_disk({str(Path(arguments.output))!r}) opens it")
    return 0


def prepare(arguments: argparse.Namespace, tokenizer: "PreTrainedTokenizerBase") -> "CorpusReport":
    """Prepare the corpus."""
    from hf_encoders.corpus.documents import splitter_for
    from hf_encoders.corpus.parallel import prepare_parallel_corpus
    from hf_encoders.corpus.preparation import prepare_corpus
    from hf_encoders.corpus.units import read_entries
    from hf_encoders.corpus.word_starts import jieba_segmenter

    if arguments.parallel:
        return prepare_parallel_corpus(
            arguments.parallel,
            arguments.output,
            tokenizer,
            languages=arguments.languages,
            columns=arguments.columns,
            word_segmenter=jieba_segmenter() if arguments.word_segmenter else None,
            keep_duplicates=arguments.keep_duplicates,
            workers=arguments.workers,
            overwrite=arguments.overwrite,
        )
    lexicon, own_entries = lexicon_of(arguments)
    phrases: list[str] | bool = arguments.phrases == LEARN
    if arguments.phrases:
        phrases = read_entries(arguments.phrases, "--phrases ")
    return prepare_corpus(
        arguments.input or load_split(arguments),
        arguments.output,
        tokenizer,
        sentence_splitter=splitter_for(None if arguments.one_sentence_per_line else arguments.language),
        text_column=arguments.text_column,
        sentences_column=arguments.sentences_column,
        turns_column=arguments.turns_column,
        word_segmenter=jieba_segmenter(own_entries) if arguments.word_segmenter else None,
        lexicon=lexicon,
        phrases=phrases,
        max_sentence_tokens=arguments.max_sentence_tokens,
        keep_duplicates=arguments.keep_duplicates,
        workers=arguments.workers,
        overwrite=arguments.overwrite,
    )


def lexicon_of(arguments: argparse.Namespace) -> tuple[list[str] | None, list[str]]:
    """Return all entries of --lexicon; and those of files, which the word segmenter does not have."""
    from hf_encoders.corpus.units import jieba_entries, read_entries

    if not arguments.lexicon:
        return None, []
    own = [entry for name in arguments.lexicon if name != JIEBA for entry in read_entries(name, "--lexicon ")]
    if JIEBA not in arguments.lexicon:
        return own, own
    if not arguments.word_segmenter:
        raise ValueError(
            "--lexicon jieba: its names are words of its segmenter, and would be found within other words without it: "
            "add --word-segmenter jieba."
        )
    return [*own, *jieba_entries()], own
