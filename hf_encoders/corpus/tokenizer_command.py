"""Run `hf-encoders tokenizer`: check, read the text, train, extend or convert, and report."""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from tqdm.auto import tqdm

from hf_encoders.corpus.documents import DocumentReader, TextSource, splitter_for
from hf_encoders.corpus.extension import Checkpoint, extend_checkpoint
from hf_encoders.corpus.report import library_versions
from hf_encoders.corpus.text_files import UNNAMED, Sampling, languages_of, load_split, named_paths
from hf_encoders.corpus.tokenizer_report import (
    REPORT_FILE,
    SourceStatistics,
    TokenizerReport,
    save_report,
    sizes_table,
    tokenizer_statistics,
)
from hf_encoders.corpus.tokenizer_training import (
    padded_vocab_size,
    pipeline_options,
    tokenizer_of_sentencepiece,
    tokenizer_of_words,
    untrained_tokenizer,
)
from hf_encoders.corpus.word_counts import HELD_OUT_BYTES, CountedText, SelectedText, check_coverage, count_texts
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.files import save_tokenizer
from hf_encoders.registration import config_class_of, vocabulary_kinds
from hf_encoders.tokenizer_loading import lost_capitals
from hf_encoders.writing import UNFINISHED, check_folder, holds_files, locked, replaced_files


SIZES_FILE = "tokenizer_sizes.md"
ADDED = 1000  # default number of entries that --extend adds
# Options with their defaults: of entries that are learned, of the text, of the steps before the vocabulary.
OF_LEARNING = {"vocab_size": None, "compare_sizes": None, "cased": False, "character_coverage": 1.0}
OF_TEXT = {"limit": None, "held_out": 0.01, "sampling_alpha": None, "language": []}
OF_PIPELINE = {"lowercase": False, "strip_accents": False, "max_length": 512}
OF_EXTENSION = {"add": None, "keep": None}


def run(arguments: argparse.Namespace) -> int:
    """Extend, convert or train a tokenizer."""
    if arguments.extend is not None:
        return extend(arguments)
    _refuse(arguments, OF_EXTENSION, "is for --extend DIR_OR_NAME")
    config_class = config_class_of(vocabulary_kinds()[arguments.kind][0] if arguments.kind else arguments.family)
    return (train if arguments.from_sentencepiece is None else convert)(arguments, config_class)


def train(arguments: argparse.Namespace, config_class: type[EncoderConfig]) -> int:
    """Train, measure and save a tokenizer, or one of each size."""
    arguments.kind = config_class.VOCABULARY_KIND
    default_size = config_class.vocab_size if arguments.vocab_size is None else arguments.vocab_size
    sizes, output = arguments.compare_sizes or [default_size], Path(arguments.output)
    folders = [output / str(size) for size in sizes] if arguments.compare_sizes else [output]
    options = pipeline_options(config_class, not arguments.cased, arguments.strip_accents)
    _check_training(arguments, sizes, options)
    for folder in folders:
        _check_output(folder, arguments.overwrite)
    _begin(arguments)
    began = time.perf_counter()
    sources = _sources_of(arguments)
    counted = _count(arguments, sources, untrained_tokenizer(config_class, options))
    counting_seconds = round(time.perf_counter() - began, 2)
    tokenizers, reports = [], []
    for size in sizes:
        print(f"learning {size:,} entries from {len(counted.words):,} distinct words", file=sys.stderr)
        began = time.perf_counter()
        coverage = arguments.character_coverage
        learned = tokenizer_of_words(counted.words, config_class, size, arguments.max_length, options, coverage)
        texts = counted.texts.values()
        times = {
            "megabytes": round(sum(text.trained_bytes for text in texts) / 1e6, 3),
            "held_out_megabytes": round(sum(text.held_out_bytes for text in texts) / 1e6, 3),
            "distinct_words": len(counted.words),
            "counting_seconds": counting_seconds,
            "learning_seconds": round(time.perf_counter() - began, 2),
        }
        tokenizers.append(learned)
        reports.append(
            TokenizerReport(
                settings=_settings_of(arguments) | {"vocab_size": size, **options},
                statistics=tokenizer_statistics(learned, counted.measured, counted.words),
                is_held_out=counted.is_held_out,
                run=times,
                versions=library_versions(),
                reading=_reading_of(sources, counted),
                sources={name: _measured_source(learned, counted, name) for name in counted.texts if name},
            )
        )
    for learned, report, folder in zip(tokenizers, reports, folders, strict=True):  # none, if one size is refused
        with replaced_files(folder) as unfinished:
            save_tokenizer(learned, unfinished)
            save_report(report, unfinished)
    if arguments.compare_sizes:
        table = sizes_table(reports)
        (output / SIZES_FILE).write_text(table + "\n", encoding="utf-8")
        warnings = dict.fromkeys(f"warning: {warning}" for report in reports for warning in report.warnings)
        print("\n".join([table, *warnings]))
    else:
        print(reports[0])
        print(f"AutoTokenizer.from_pretrained({str(output)!r}) loads it")
    return 0


def extend(arguments: argparse.Namespace) -> int:
    """Add entries to the tokenizer of a checkpoint, and their rows to its model."""
    if arguments.from_sentencepiece is not None:
        raise ValueError("--extend adds entries for text, and --from-sentencepiece reads none: give --input instead.")
    number = ADDED if arguments.add is None else arguments.add
    if number < 1:
        raise ValueError(f"--add {number} must be at least 1.")
    _refuse(arguments, OF_LEARNING | OF_PIPELINE, "is for a new tokenizer, and --extend keeps the checkpoint's")
    _check_limit(arguments)
    output, source = Path(arguments.output), arguments.extend
    _check_output(output, arguments.overwrite)
    checkpoint = Checkpoint.of(source, "--extend")
    if checkpoint.model is not None and (unused := sorted(checkpoint.model.unused_head_weights)):
        print(
            f"Weights of the checkpoint that {checkpoint.auto_class} does not have are left out: "
            f"{', '.join(unused[:3])}{', ...' if len(unused) > 3 else ''}. To keep them, write in its config.json "
            "(architectures) the class that has them, such as BertForPreTraining.",
            flush=True,
        )
    _begin(arguments)
    sources = _sources_of(arguments)
    kept = None if arguments.keep is None else _lines_to_keep(arguments)
    text = _count(arguments, sources, checkpoint.tokenizer)
    print(f"choosing {number:,} entries from {len(text.words):,} distinct words", file=sys.stderr)
    name = Path(source).name if Path(source).is_dir() else source  # the folder may be pushed: no paths
    settings = {"extend": name, "add": number, **_settings_of(arguments)}
    report = extend_checkpoint(checkpoint, text, number, output, kept, settings, _reading_of(sources, text))
    print(report)
    print(f"{checkpoint.auto_class}.from_pretrained({str(output)!r}) loads it")
    return 0


def convert(arguments: argparse.Namespace, config_class: type[EncoderConfig]) -> int:
    """Write the tokenizer of a SentencePiece file."""
    _refuse(arguments, OF_LEARNING | OF_TEXT, "has no effect with --from-sentencepiece, which reads no text")
    output, file = Path(arguments.output), Path(arguments.from_sentencepiece)
    _check_output(output, arguments.overwrite)
    _begin(arguments)
    options = {name: getattr(arguments, name) for name in OF_PIPELINE}
    tokenizer = tokenizer_of_sentencepiece(file, config_class, **options)
    settings = {"from_sentencepiece": file.name, "family": config_class.model_type, **options}
    report = {"settings": settings, "entries": len(tokenizer), "versions": library_versions()}
    with replaced_files(output) as unfinished:
        save_tokenizer(tokenizer, unfinished)
        (unfinished / REPORT_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if warning := lost_capitals(tokenizer):
        print(f"warning: {warning}")
    print(f"{len(tokenizer):,} entries; a model's vocab_size: {padded_vocab_size(tokenizer):,}")
    print(f"AutoTokenizer.from_pretrained({str(output)!r}) loads it")
    return 0


def _begin(arguments: argparse.Namespace) -> None:
    arguments.until_end.enter_context(locked(Path(arguments.output), "--output", wait=False))
    transformers.logging.set_verbosity_error()


def _sources_of(arguments: argparse.Namespace) -> dict[str, TextSource]:
    """Open the text by source; under `""` where it has no names."""
    paths = {UNNAMED: None} if arguments.input is None else named_paths(arguments.input, "--input")
    if arguments.sampling_alpha is not None and UNNAMED in paths:
        raise ValueError("--sampling-alpha is for sources with names: give --input NAME=PATH for each.")
    languages = languages_of(arguments.language, paths, None)
    texts = {name: load_split(arguments) if paths[name] is None else paths[name] for name in languages}
    return {name: TextSource(texts[name], _reader_for(code, arguments)) for name, code in languages.items()}


def _reader_for(language: str | None, arguments: argparse.Namespace) -> DocumentReader:
    """Return the reader of documents in a language, from the columns that the options name."""
    columns = arguments.text_column, arguments.sentences_column, arguments.turns_column
    return DocumentReader(splitter_for(language), *columns)


def _count(
    arguments: argparse.Namespace, sources: Mapping[str, TextSource], tokenizer: transformers.PreTrainedTokenizerBase
) -> CountedText:
    """Count the words of the sources; a limit is divided by their shares."""
    sampling, shares = Sampling(arguments.sampling_alpha), None
    limits = dict.fromkeys(sources)
    if arguments.limit is not None:
        sizes = {name: source.text_bytes for name, source in sources.items()}
        shares = sampling.shares(sizes) if len(sources) > 1 else dict.fromkeys(sources, 1.0)
        limits = {name: max(int(arguments.limit * 1e6 * share), 1) for name, share in shares.items()}
    texts = {
        name: SelectedText(_documents_of(source), arguments.held_out, limits[name], source.text_bytes)
        for name, source in sources.items()
    }
    return count_texts(texts, tokenizer, sampling, shares)


def _documents_of(source: TextSource) -> Iterator[list[str]]:
    """Yield the documents of a source, with a progress bar."""
    yield from tqdm(source.documents(), desc="Counting words", unit=" documents")


def _lines_to_keep(arguments: argparse.Namespace) -> list[str]:
    """Return lines of --keep to measure, 10 MB at most, evenly from all of it."""
    source = TextSource(arguments.keep, _reader_for(None, arguments))
    lines = list(SelectedText(_documents_of(source), 0.0, HELD_OUT_BYTES))
    if not lines:
        raise ValueError(f"--keep {' '.join(arguments.keep)}: there is no text: give other files, or leave it out.")
    return lines


def _measured_source(
    learned: transformers.PreTrainedTokenizerBase, counted: CountedText, name: str
) -> SourceStatistics:
    text = counted.texts[name]
    return SourceStatistics(
        **asdict(tokenizer_statistics(learned, text.measured, counted.words_of[name])),
        megabytes=round(text.trained_bytes / 1e6, 3),
        share=counted.shares[name],
        is_held_out=bool(text.held_out),
    )


def _reading_of(sources: Mapping[str, TextSource], counted: CountedText) -> dict[str, Any]:
    """Return counts of sentences that were read, damaged ones among them, and skipped files, for a report."""
    reading = {"sentences": 0, "damaged_sentences": 0}
    for text in counted.texts.values():
        reading = {name: reading[name] + text.reading[name] for name in reading}
    skipped = sum((Counter(source.skipped_files) for source in sources.values()), Counter())
    return {**reading, "skipped_files": dict(skipped.most_common())}


def _settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings for the report; files without their folders."""
    source = arguments.dataset or named_paths(arguments.input, "--input")
    if not arguments.dataset:
        source = {name: [Path(path).name for path in paths] for name, paths in source.items()}
        source = source.get(UNNAMED, source)
    names = ("kind", "language", "limit", "held_out", "character_coverage", "max_length", "sampling_alpha")
    return {"source": source} | {name: getattr(arguments, name) for name in names}


def _refuse(arguments: argparse.Namespace, defaults: Mapping[str, Any], why: str) -> None:
    """Refuse options that have another value than their default."""
    for name, default in defaults.items():
        if getattr(arguments, name) != default:
            raise ValueError(f"--{name.replace('_', '-')} {why}: leave it out.")


def _check_limit(arguments: argparse.Namespace) -> None:
    if arguments.limit is not None and not 0 < arguments.limit < math.inf:
        raise ValueError(
            f"--limit {arguments.limit} must be a number of megabytes above 0: leave it out to train on all text."
        )


def _check_training(arguments: argparse.Namespace, sizes: list[int], options: Mapping[str, bool]) -> None:
    """Refuse options without effect or out of range, before anything is read."""
    _check_limit(arguments)
    Sampling(arguments.sampling_alpha)
    for name, is_understood in (("lowercase", "do_lower_case" in options), ("strip_accents", len(options) > 1)):
        if not is_understood:
            kind = f"--family {arguments.family}" if arguments.family else f"--kind {arguments.kind}"
            _refuse(arguments, {name: False}, f"has no effect with {kind}, whose tokenizer cannot do it")
    check_coverage(arguments.character_coverage)
    for option, values in (("--max-length", [arguments.max_length]), ("--vocab-size", sizes)):
        if min(values) < 1:
            raise ValueError(f"{option} {min(values)} must be at least 1.")
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"--compare-sizes {' '.join(map(str, sizes))} names a size twice: name each once.")


def _check_output(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that is not writable, or holds anything but, with --overwrite, a tokenizer of this command."""
    check_folder(folder, "--output")
    if holds_files(folder):
        # The process of an earlier run may have been killed.
        if not (folder / REPORT_FILE).exists() and not (folder / UNFINISHED).exists():
            raise ValueError(f"--output '{folder}' holds files that this command did not write: name a new folder.")
        if not overwrite:
            raise ValueError(f"--output '{folder}' holds a tokenizer: name another folder, or add --overwrite.")
