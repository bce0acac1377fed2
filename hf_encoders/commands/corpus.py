"""Run `hf-encoders corpus`; its options are in `hf_encoders/options/corpus.py`."""

import argparse
from pathlib import Path

import datasets
import transformers
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.corpus.lexicon import JIEBA, jieba_entries, read_entries
from hf_encoders.data.corpus.parallel import prepare_parallel_corpus
from hf_encoders.data.corpus.preparation import prepare_corpus
from hf_encoders.data.corpus.report import CorpusReport
from hf_encoders.data.corpus.segmentation import splitter_for
from hf_encoders.data.corpus.similar_words import (
    BUILD,
    build_similar_words,
    describe_similar_words,
    read_similar_words,
)
from hf_encoders.data.corpus.text_options import load_split
from hf_encoders.data.corpus.word_segmentation import jieba_segmenter
from hf_encoders.loading import load_tokenizer
from hf_encoders.options.corpus import LEARN


def run(arguments: argparse.Namespace) -> int:
    """Prepare the corpus and print its report."""
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


def prepare(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> CorpusReport:
    """Prepare the corpus."""
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
    """All entries of --lexicon; and those of files, which the word segmenter does not have."""
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
