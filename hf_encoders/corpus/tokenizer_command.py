"""Run `hf-encoders tokenizer`: check, read the text, train, extend or convert, and report."""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import DocumentReader
from hf_encoders.corpus.named_sources import UNNAMED, languages_of, named_paths
from hf_encoders.corpus.sampling import Sampling
from hf_encoders.corpus.segmentation import splitter_for
from hf_encoders.corpus.sentencepiece_model import tokenizer_of_sentencepiece
from hf_encoders.corpus.settings import library_versions
from hf_encoders.corpus.shards import Reading
from hf_encoders.corpus.sources import TextSource, make_source
from hf_encoders.corpus.text_options import load_split
from hf_encoders.corpus.tokenizer_report import (
    REPORT_FILE,
    TokenizerReport,
    source_statistics,
    tokenizer_statistics,
)
from hf_encoders.corpus.tokenizer_training import padded_vocab_size
from hf_encoders.corpus.word_counts import HELD_OUT_BYTES, CountedText, SelectedText, check_coverage
from hf_encoders.loading import lost_capitals
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.files import save_tokenizer
from hf_encoders.writing import UNFINISHED, check_folder, holds_files, locked, replaced_files


SIZES_FILE = "tokenizer_sizes.md"
# Options without effect on a tokenizer whose entries are there already, with their defaults.
OF_LEARNING = {"vocab_size": None, "compare_sizes": None, "cased": False, "character_coverage": 1.0}
OF_TEXT = {"limit": None, "held_out": 0.01, "sampling_alpha": None, "language": []}


def convert(arguments: argparse.Namespace, config_class: type[EncoderConfig]) -> int:
    """Write the tokenizer of a SentencePiece file."""
    for name, default in {**OF_LEARNING, **OF_TEXT}.items():
        if getattr(arguments, name) != default:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} has no effect with --from-sentencepiece, which reads no text: leave it out.")
    output, file = Path(arguments.output), Path(arguments.from_sentencepiece)
    check_output(output, arguments.overwrite)
    arguments.until_end.enter_context(locked(output, "--output", wait=False))
    options = {name: getattr(arguments, name) for name in ("max_length", "lowercase", "strip_accents")}
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


def some_lines(arguments: argparse.Namespace) -> list[str]:
    """Lines of --keep to measure, 10 MB at most, evenly from all of it.

    Raises:
        ValueError: If there is none.
    """
    source = make_source(arguments.keep, reader_for(None, arguments))
    text = SelectedText(documents_of(source), 0.0, HELD_OUT_BYTES)
    lines = list(text)
    if not lines:
        raise ValueError(f"--keep {' '.join(arguments.keep)}: there is no text: give other files, or leave it out.")
    return lines


def sources_of(arguments: argparse.Namespace) -> dict[str, TextSource]:
    """The text by source; under `""` where it has no names."""
    paths = {UNNAMED: None} if arguments.input is None else named_paths(arguments.input, "--input")
    if arguments.sampling_alpha is not None and UNNAMED in paths:
        raise ValueError("--sampling-alpha is for sources with names: give --input NAME=PATH for each.")
    sources = {}
    for name, code in languages_of(arguments.language, paths, None).items():
        text = load_split(arguments) if paths[name] is None else paths[name]
        sources[name] = make_source(text, reader_for(code, arguments))
    return sources


def reader_for(language: str | None, arguments: argparse.Namespace) -> DocumentReader:
    """Return the reader of documents in a language, from the columns that the options name."""
    columns = arguments.text_column, arguments.sentences_column, arguments.turns_column
    return DocumentReader(splitter_for(language), *columns)


def report_of(
    learned: PreTrainedTokenizerBase,
    settings: dict[str, Any],
    sources: dict[str, TextSource],
    counted: CountedText,
    seconds: tuple[float, float],
) -> TokenizerReport:
    """The report on a tokenizer; `seconds` to count and to learn."""
    texts = counted.sources
    of_sources = {
        name: source_statistics(
            learned,
            one.measured,
            one.words,
            megabytes=round(one.text.trained_bytes / 1e6, 3),
            share=counted.shares[name],
            is_held_out=bool(one.text.held_out),
        )
        for name, one in texts.items()
        if name
    }
    return TokenizerReport(
        settings=settings,
        statistics=tokenizer_statistics(
            learned, [line for one in texts.values() for line in one.measured], counted.words
        ),
        is_held_out=all(one.text.held_out for one in texts.values()),
        run={
            "megabytes": round(sum(one.text.trained_bytes for one in texts.values()) / 1e6, 3),
            "held_out_megabytes": round(sum(one.text.held_out_bytes for one in texts.values()) / 1e6, 3),
            "distinct_words": len(counted.words),
            "counting_seconds": round(seconds[0], 2),
            "learning_seconds": round(seconds[1], 2),
        },
        versions=library_versions(),
        reading=reading_of(sources, counted),
        sources=of_sources,
    )


def reading_of(sources: dict[str, TextSource], counted: CountedText) -> dict[str, Any]:
    """Sentences that were read, damaged ones among them, and skipped files, for a report."""
    skipped = sum((Counter(source.skipped_files) for source in sources.values()), Counter())
    counts = sum((Counter(one.text.reading._asdict()) for one in counted.sources.values()), Counter())
    return {**Reading()._asdict(), **counts, "skipped_files": dict(skipped.most_common())}


def settings_of(arguments: argparse.Namespace, vocab_size: int, options: dict[str, bool]) -> dict[str, Any]:
    """The settings for the report; files without their folders."""
    source = arguments.dataset or named_paths(arguments.input, "--input")
    if not arguments.dataset:
        source = {name: [Path(path).name for path in paths] for name, paths in source.items()}
        source = source.get(UNNAMED, source)
    names = ("kind", "language", "limit", "held_out", "character_coverage", "max_length", "sampling_alpha")
    return {"source": source, "vocab_size": vocab_size, **options} | {name: getattr(arguments, name) for name in names}


def check_limit(arguments: argparse.Namespace) -> None:
    """Refuse a limit of the text that is out of range."""
    if arguments.limit is not None and not 0 < arguments.limit < math.inf:
        raise ValueError(
            f"--limit {arguments.limit} must be a number of megabytes above 0: leave it out to train on all text."
        )


def check_arguments(arguments: argparse.Namespace, sizes: list[int], options: dict[str, bool]) -> None:
    """Refuse options without effect or out of range, before anything is read."""
    check_limit(arguments)
    Sampling(arguments.sampling_alpha)
    for name, understood in (("lowercase", "do_lower_case" in options), ("strip_accents", len(options) > 1)):
        if getattr(arguments, name) and not understood:
            raise ValueError(
                f"--{name.replace('_', '-')} has no effect with --{'family' if arguments.family else 'kind'} "
                f"{arguments.family or arguments.kind}, whose tokenizer cannot do it: leave it out."
            )
    check_coverage(arguments.character_coverage)
    if arguments.max_length < 1:
        raise ValueError(f"--max-length {arguments.max_length} must be at least 1.")
    for size in sizes:
        if size < 1:
            raise ValueError(f"--vocab-size {size} must be at least 1.")
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"--compare-sizes {' '.join(map(str, sizes))} names a size twice: name each once.")


def check_output(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that is not writable, or holds anything but, with --overwrite, a tokenizer of this command."""
    check_folder(folder, "--output")
    if holds_files(folder):
        # The process of an earlier run may have been killed.
        if not (folder / REPORT_FILE).exists() and not (folder / UNFINISHED).exists():
            raise ValueError(f"--output '{folder}' holds files that this command did not write: name a new folder.")
        if not overwrite:
            raise ValueError(f"--output '{folder}' holds a tokenizer: name another folder, or add --overwrite.")


def save_with_report(tokenizer: PreTrainedTokenizerBase, report: TokenizerReport, folder: Path) -> None:
    """Write tokenizer and report into a folder; those of an earlier run are replaced once these are complete."""
    with replaced_files(folder) as unfinished:
        save_tokenizer(tokenizer, unfinished)
        report.save(unfinished)


def documents_of(source: TextSource) -> Iterator[list[str]]:
    """The documents of a source, with a progress bar."""
    read = source.reader()
    unit_scale = source.progress_unit == "B"
    with tqdm(total=source.total, desc="Counting words", unit=source.progress_unit, unit_scale=unit_scale) as progress:
        for unit in source.units():
            yield from read(unit.part)
            progress.update(unit.size)
