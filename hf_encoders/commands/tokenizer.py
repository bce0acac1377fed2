"""`hf-encoders tokenizer`: text files or a data set to a family's own kind of tokenizer in a folder, with a report.

WordPiece is BERT's, byte-level BPE RoBERTa's, Unigram ALBERT's. The same text and settings give the same tokenizer.
`AutoTokenizer.from_pretrained(DIR)` loads it, also where this package is not installed; `hf-encoders corpus` takes
it as `--tokenizer DIR`.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

import hf_encoders
from hf_encoders.commands.corpus import add_text_arguments, check_text_arguments, load_split
from hf_encoders.data.corpus.segmentation import one_sentence_per_line, split_sentences
from hf_encoders.data.corpus.sources import FileSource, RowSource, StreamSource, TextReading, make_source
from hf_encoders.data.vocabulary.report import REPORT_FILE, TokenizerReport, sizes_table, tokenizer_statistics
from hf_encoders.data.vocabulary.text_selection import HELD_OUT_BYTES, SelectedText
from hf_encoders.data.vocabulary.tokenizer_training import pipeline_options, tokenizer_of_words, untrained_tokenizer
from hf_encoders.data.vocabulary.word_counts import check_coverage, count_words
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import config_class_of, configurations
from hf_encoders.writing import check_folder, holds_files, locked


SIZES_FILE = "tokenizer_sizes.md"


def families_of_kinds() -> dict[str, type[EncoderConfig]]:
    """The family that `--kind` stands for: the first one registered with that kind of vocabulary."""
    kinds = {}
    for config_class in configurations():
        kinds.setdefault(config_class.VOCABULARY_KIND, config_class)
    return kinds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    _add_text_arguments(parser)
    kinds = families_of_kinds()
    # The configurations' defaults. BERT: vocab.txt of the release (the paper, section 3, rounds to 30,000). RoBERTa:
    # dict.txt of fairseq and the mask ("50K", section 4.4). ALBERT: section 4.1.
    sizes = ", ".join(f"{kind} {config_class.vocab_size:,}" for kind, config_class in kinds.items())
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--kind",
        choices=list(kinds),
        help=f"vocabulary and special tokens of {', '.join(f'{c.model_type} ({k})' for k, c in kinds.items())}",
    )
    which.add_argument(
        "--family",
        choices=[config_class.model_type for config_class in configurations()],
        help="vocabulary and special tokens of this family",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the tokenizer and its report")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--vocab-size", type=int, metavar="N", help=f"most entries, special tokens included (default: {sizes})"
    )
    size.add_argument(
        "--compare-sizes",
        type=int,
        nargs="+",
        metavar="N",
        help=f"train one of each size into DIR/N, from one count of the words, and print a table ({SIZES_FILE})",
    )
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--lowercase", action="store_true", help="lower-case the text (default, but for bpe, which never does)"
    )
    case.add_argument("--cased", action="store_true", help="keep upper case")
    parser.add_argument(
        "--strip-accents",
        action="store_true",
        help="remove combining marks, as the published uncased models do; not in bpe (default: keep them)",
    )
    parser.add_argument(
        "--character-coverage",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of the running characters that get into the vocabulary, in (0, 1]; without effect on bpe "
        "(default: %(default)s; SentencePiece's is 0.9995)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=512,
        metavar="TOKENS",
        help="longest sequence, recorded as model_max_length (default: %(default)s)",
    )
    parser.add_argument("--overwrite", action="store_true", help="remove the tokenizer that is in --output first")


def _add_text_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser)
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="split the lines into sentences by the rules of this language, as `corpus` does; only bpe tells the "
        "first word of a sentence from others (default: take lines as they are)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="MEGABYTES",
        help="text to train on at most, 10**6 bytes of UTF-8, evenly spread over the input; the first ones of a "
        "--streaming data set (default: all)",
    )
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="share of the documents that is measured and not trained on, in [0, 0.5]; at most "
        f"{HELD_OUT_BYTES // 10**6} MB (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, measure and save."""
    config_class = families_of_kinds()[arguments.kind] if arguments.kind else config_class_of(arguments.family)
    arguments.kind = config_class.VOCABULARY_KIND
    one_size = config_class.vocab_size if arguments.vocab_size is None else arguments.vocab_size
    sizes = arguments.compare_sizes or [one_size]
    output = Path(arguments.output)
    folders = [output / str(size) for size in sizes] if arguments.compare_sizes else [output]
    options = pipeline_options(config_class, not arguments.cased, arguments.strip_accents)
    check_arguments(arguments, sizes, options)
    for folder in folders:
        check_output(folder, arguments.overwrite)
    arguments.until_end.enter_context(locked(output, "--output", wait=False))
    transformers.logging.set_verbosity_error()

    began = time.perf_counter()
    source = text_source(arguments)
    text = selected_text(arguments, source)
    words = count_words(text, untrained_tokenizer(config_class, options))
    counting_seconds = time.perf_counter() - began
    reports = []
    for size, folder in zip(sizes, folders, strict=True):
        print(f"learning {size:,} entries from {len(words):,} distinct words", file=sys.stderr)
        began = time.perf_counter()
        learned = tokenizer_of_words(
            words,
            config_class,
            size,
            arguments.max_length,
            options,
            arguments.character_coverage,
        )
        seconds = {"counting_seconds": counting_seconds, "learning_seconds": time.perf_counter() - began}
        reading = text.reading._asdict() | {"skipped_files": dict(source.skipped_files)}
        reports.append(make_report(learned, text, words, settings_of(arguments, size, options), seconds, reading))
        save_tokenizer(learned, reports[-1], folder)
    show(reports, output, is_comparison=bool(arguments.compare_sizes))
    return 0


def make_report(
    tokenizer: PreTrainedTokenizerBase,
    text: SelectedText,
    words: dict[str, int],
    settings: dict[str, Any],
    seconds: dict[str, float],
    reading: dict[str, Any],
) -> TokenizerReport:
    """Measure a tokenizer on what was kept apart, or on what it was trained on where nothing was."""
    return TokenizerReport(
        settings=settings,
        statistics=tokenizer_statistics(tokenizer, text.held_out or text.sample, words),
        is_held_out=bool(text.held_out),
        run={
            "megabytes": round(text.trained_bytes / 1e6, 3),
            "held_out_megabytes": round(text.held_out_bytes / 1e6, 3),
            "distinct_words": len(words),
        }
        | {name: round(value, 2) for name, value in seconds.items()},
        versions={"hf_encoders": hf_encoders.__version__}
        | {name: version(name) for name in ("tokenizers", "transformers")},
        reading=reading,
    )


def show(reports: list[TokenizerReport], output: Path, is_comparison: bool) -> None:
    """Print the report, or one table of all."""
    if is_comparison:
        table = sizes_table(reports)
        (output / SIZES_FILE).write_text(table + "\n", encoding="utf-8")
        print(table)
        print("\n".join(f"warning: {warning}" for warning in dict.fromkeys(w for r in reports for w in r.warnings)))
    else:
        print(reports[0])
        print(f"AutoTokenizer.from_pretrained({str(output)!r}) loads it")


def settings_of(arguments: argparse.Namespace, vocab_size: int, options: dict[str, bool]) -> dict[str, Any]:
    """What decided, for the report; files without their folders."""
    source = arguments.dataset or [Path(path).name for path in arguments.input]
    names = ("kind", "language", "limit", "held_out", "character_coverage", "max_length")
    return {"source": source, "vocab_size": vocab_size, **options} | {name: getattr(arguments, name) for name in names}


def check_arguments(arguments: argparse.Namespace, sizes: list[int], options: dict[str, bool]) -> None:
    """Refuse what would have no effect or cannot be, before anything is read."""
    check_text_arguments(arguments)
    for name, understood in (("lowercase", "do_lower_case" in options), ("strip_accents", len(options) > 1)):
        if getattr(arguments, name) and not understood:
            raise ValueError(
                f"--{name.replace('_', '-')} has no effect with --kind {arguments.kind}, which keeps every byte as it "
                "is: leave it out."
            )
    check_coverage(arguments.character_coverage)
    if arguments.max_length < 1:
        raise ValueError(f"--max-length {arguments.max_length} must be at least 1.")
    if arguments.limit is not None and not arguments.limit > 0:
        raise ValueError(f"--limit {arguments.limit} must be above 0 megabytes: leave it out to train on all text.")
    for size in sizes:
        if size < 1:
            raise ValueError(f"--vocab-size {size} must be at least 1.")
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"--compare-sizes {' '.join(map(str, sizes))} names a size twice: name each once.")


def check_output(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that is closed, or holds anything but, with --overwrite, a tokenizer of this command."""
    check_folder(folder, "--output")
    if holds_files(folder):
        if not (folder / REPORT_FILE).exists():
            raise ValueError(f"--output '{folder}' holds files that this command did not write: name a new folder.")
        if not overwrite:
            raise ValueError(f"--output '{folder}' holds a tokenizer: name another folder, or add --overwrite.")


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, report: TokenizerReport, folder: Path) -> None:
    """Put tokenizer and report into a folder, over those of an earlier run, when they are whole; others stay."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="_", dir=folder) as unfinished:
        tokenizer.save_pretrained(unfinished)
        report.save(Path(unfinished))
        for file in Path(unfinished).iterdir():
            file.replace(folder / file.name)


def text_source(arguments: argparse.Namespace) -> FileSource | RowSource | StreamSource:
    """The input."""
    splitter = one_sentence_per_line
    if arguments.language:
        split_sentences("", arguments.language)  # refuses what is no language code
        splitter = partial(split_sentences, language=arguments.language)
    reading = TextReading(splitter, arguments.text_column, arguments.sentences_column)
    return make_source(arguments.input or load_split(arguments), reading)


def selected_text(arguments: argparse.Namespace, source: FileSource | RowSource | StreamSource) -> SelectedText:
    """The input, with what is kept apart, and the limit."""
    limit = None if arguments.limit is None else max(int(arguments.limit * 1e6), 1)
    return SelectedText(documents_of(source), arguments.held_out, limit, source.text_bytes)


def documents_of(source: FileSource | RowSource | StreamSource) -> Iterator[list[str]]:
    """The documents of a source, with a progress bar."""
    read = source.reader()
    unit_scale = source.progress_unit == "B"
    with tqdm(total=source.total, desc="Counting words", unit=source.progress_unit, unit_scale=unit_scale) as progress:
        for unit in source.units():
            yield from read(unit.part)
            progress.update(unit.size)
