"""Run `hf-encoders tokenizer`: read the text, train, extend or convert, and report how text is cut.

A report is a dictionary, `tokenizer_report.json` next to the tokenizer; shares in it are in [0, 1].
"""

import argparse
import json
import math
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import DocumentReader, TextSource, splitter_for
from hf_encoders.corpus.extension import (
    Checkpoint,
    add_entries,
    compare_tokens,
    extend_vocabulary,
    extension_tables,
    extension_warnings,
)
from hf_encoders.corpus.report import library_versions, reading_rows, reading_warnings
from hf_encoders.corpus.text_files import UNNAMED, Sampling, languages_of, load_split, named_paths
from hf_encoders.corpus.tokenizer_training import (
    padded_vocab_size,
    pipeline_options,
    tokenizer_of_sentencepiece,
    tokenizer_of_words,
    untrained_tokenizer,
)
from hf_encoders.corpus.word_counts import (
    HELD_OUT_BYTES,
    LINES_PER_BATCH,
    CountedText,
    SelectedText,
    check_coverage,
    count_texts,
)
from hf_encoders.corpus.word_starts import UNSPACED_NAMES
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.files import save_tokenizer, submodels
from hf_encoders.publishing.secrets import published
from hf_encoders.registration import config_class_of, vocabulary_kinds
from hf_encoders.tokenizer_loading import lost_capitals
from hf_encoders.writing import (
    UNFINISHED,
    check_folder,
    holds_files,
    locked,
    markdown_table,
    replaced_files,
    text_table,
)


REPORT_FILE = "tokenizer_report.json"
SIZES_FILE = "tokenizer_sizes.md"
ENTRIES_FILE = "new_entries.json"  # id of each new entry -> ids of its pieces
ADDED = 1000  # default number of entries that --extend adds
# Options with their defaults: of entries that are learned, of the text, of the steps before the vocabulary.
OF_LEARNING = {"vocab_size": None, "compare_sizes": None, "cased": False, "character_coverage": 1.0}
OF_TEXT = {"limit": None, "held_out": 0.01, "sampling_alpha": None, "language": []}
OF_PIPELINE = {"lowercase": False, "strip_accents": False, "max_length": 512}
OF_EXTENSION = {"add": None, "keep": None}
# Widths of the embedding: ALBERT's factorised one (section 3.1), a small model's, that of the base models.
WIDTHS = (128, 256, 768)
# This package's choices: occurrences of a frequent piece; the share of unknown tokens that is warned of (as in
# `hf-encoders corpus`); the share of letters of scripts without spaces above which words are not counted.
OFTEN, MUCH_UNKNOWN, MUCH_UNSPACED = 100, 0.05, 0.25
# Cells of tables, by their heading, of `tokenizer_statistics`.
CELLS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "entries": lambda counts: f"{counts['entries']:,}",
    "vocab_size": lambda counts: f"{counts['rows']:,}",
    "MB": lambda counts: f"{counts['megabytes']:,.1f}",
    "share": lambda counts: f"{counts['share']:.1%}",
    "unknown": lambda counts: f"{counts['unknown_share']:.3%}",
    "tokens per word": lambda counts: "-" if counts["words"] is None else f"{counts['tokens_per_word']:.3f}",
    "characters per token": lambda counts: f"{counts['characters_per_token']:.3f}",
    "bytes per token": lambda counts: f"{counts['bytes_per_token']:.3f}",
    "used": lambda counts: f"{counts['used_share']:.1%}",
    f"{OFTEN} times +": lambda counts: f"{counts['often_used_share']:.1%}",
}
OF_SIZES = ("entries", "vocab_size", "unknown", "tokens per word", "characters per token", "used", f"{OFTEN} times +")
OF_TEXTS = ("MB", "share")
OF_SOURCES = (*OF_TEXTS, "unknown", "tokens per word", "characters per token", "bytes per token", "used")


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
    text = _count(arguments, sources, untrained_tokenizer(config_class, options))
    facts = {
        "megabytes": round(sum(source.trained_bytes for source in text.texts.values()) / 1e6, 3),
        "held_out_megabytes": round(sum(source.held_out_bytes for source in text.texts.values()) / 1e6, 3),
        "distinct_words": len(text.words),
        "counting_seconds": round(time.perf_counter() - began, 2),  # with reading
    }
    tokenizers, reports = [], []
    for size in sizes:
        print(f"learning {size:,} entries from {len(text.words):,} distinct words", file=sys.stderr)
        began = time.perf_counter()
        coverage = arguments.character_coverage
        learned = tokenizer_of_words(text.words, config_class, size, arguments.max_length, options, coverage)
        tokenizers.append(learned)
        run = facts | {"learning_seconds": round(time.perf_counter() - began, 2)}
        report = _report(arguments, {"vocab_size": size, **options}, sources, text, run)
        report["statistics"] = tokenizer_statistics(learned, text.measured, text.words)
        report["sources"] = {name: _source_statistics(learned, text, name) for name in text.texts if name}
        reports.append(report)
    for learned, report, folder in zip(tokenizers, reports, folders, strict=True):  # none, if one size is refused
        with replaced_files(folder) as unfinished:
            save_tokenizer(learned, unfinished)
            save_report(report, unfinished)
    if arguments.compare_sizes:
        table = sizes_table(reports)
        (output / SIZES_FILE).write_text(table + "\n", encoding="utf-8")
        print("\n".join([table, *dict.fromkeys(line for report in reports for line in training_warnings(report))]))
    else:
        print("\n".join([training_tables(reports[0]), *training_warnings(reports[0])]))
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
    if unused := checkpoint.unused_weights:
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
    began = time.perf_counter()
    extended = extend_vocabulary(checkpoint.tokenizer, text.words, number)
    tokenizer = extended.tokenizer
    for model in checkpoint.models.values():
        add_entries(model, tokenizer, extended.pieces)
    run = {"distinct_words": len(text.words), "seconds": round(time.perf_counter() - began, 2)}
    name = Path(source).name if Path(source).is_dir() else source  # the folder may be pushed: no paths
    settings = {"extend": name, "add": number, "vocab_size": len(tokenizer)}
    report = _report(arguments, settings, sources, text, run) | {
        "entries": len(tokenizer),
        "rows": max(
            (model.get_input_embeddings().num_embeddings for model in checkpoint.models.values()),
            default=padded_vocab_size(tokenizer),
        ),
        "added": tokenizer.convert_ids_to_tokens(list(extended.pieces)),  # in the order in which they were chosen
        "text": compare_tokens(checkpoint.tokenizer, extended, text.measured),
        "kept": compare_tokens(checkpoint.tokenizer, extended, kept) if kept else None,
    }
    with replaced_files(output, submodels(output)) as folder:
        checkpoint.save(tokenizer, folder)
        save_report(report, folder)
        (folder / ENTRIES_FILE).write_text(json.dumps(extended.pieces) + "\n", encoding="utf-8")
    print("\n".join([extension_tables(report), *extension_warnings(report)]))
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
    with replaced_files(output) as unfinished:
        save_tokenizer(tokenizer, unfinished)
        report = {"settings": settings, "entries": len(tokenizer), "versions": library_versions()}
        save_report(report, unfinished)
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
    arguments: argparse.Namespace, sources: Mapping[str, TextSource], tokenizer: PreTrainedTokenizerBase
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


def _refuse(arguments: argparse.Namespace, defaults: Mapping[str, Any], why: str) -> None:
    """Refuse options that have another value than their default."""
    for name, default in defaults.items():
        if getattr(arguments, name) != default:
            raise ValueError(f"--{name.replace('_', '-')} {why}: leave it out.")


def _check_limit(arguments: argparse.Namespace) -> None:
    if arguments.limit is not None and not 0 < arguments.limit < math.inf:
        raise ValueError(f"--limit {arguments.limit} must be a number of megabytes above 0, or left out: all text.")


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


def _report(
    arguments: argparse.Namespace,
    settings: Mapping[str, Any],
    sources: Mapping[str, TextSource],
    text: CountedText,
    run: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what reports of training and of an extension both have: settings, files without their folders."""
    source = arguments.dataset or named_paths(arguments.input, "--input")
    if not arguments.dataset:
        source = {name: [Path(path).name for path in paths] for name, paths in source.items()}
        source = source.get(UNNAMED, source)
    names = ("kind", "language", "limit", "held_out", "character_coverage", "max_length", "sampling_alpha")
    skipped = sum((Counter(source.skipped_files) for source in sources.values()), Counter())
    return {
        "settings": {"source": source} | {name: getattr(arguments, name) for name in names} | settings,
        "is_held_out": text.is_held_out,  # whether it is measured on held-out text; if not, the text was too short
        "run": run,
        "versions": library_versions(),
        "reading": {
            "sentences": sum(selected.reading.sentences for selected in text.texts.values()),
            "damaged_sentences": sum(selected.reading.damaged_sentences for selected in text.texts.values()),
            "skipped_files": dict(skipped.most_common()),
        },
    }


def save_report(report: Mapping[str, Any], directory: Path) -> None:
    """Write `tokenizer_report.json`; the folder may be pushed, so paths are redacted."""
    text = json.dumps(published(dict(report)), indent=2, ensure_ascii=False)
    (directory / REPORT_FILE).write_text(text + "\n", encoding="utf-8")


def tokenizer_statistics(
    tokenizer: PreTrainedTokenizerBase, lines: Sequence[str], words: Mapping[str, int]
) -> dict[str, Any]:
    """Measure a fast tokenizer on held-out `lines`, given its training `words` from `count_words`.

    Raises:
        ValueError: If the lines give no token.
    """
    tokens = unknown = 0
    for begin in range(0, len(lines), LINES_PER_BATCH):
        batch = list(lines[begin : begin + LINES_PER_BATCH])
        for encoding in tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            tokens += len(encoding.ids)
            unknown += encoding.ids.count(tokenizer.unk_token_id)
    if tokens == 0:
        raise ValueError("lines give no token: measure on text.")
    num_words = None if _is_unspaced(lines) else sum(len(line.split()) for line in lines)
    rows = padded_vocab_size(tokenizer)
    counts: Counter[int] = Counter()
    for word, count in words.items():
        for piece in tokenizer.backend_tokenizer.model.tokenize(word):
            counts[piece.id] += count
    ordinary = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
    return {
        "entries": len(tokenizer),  # special tokens included
        "rows": rows,  # rounded up to a multiple of 64, the `vocab_size` of a model
        "words": num_words,  # between white space; None if much of the text has no spaces
        "tokens": tokens,  # without special ones
        "unknown_share": unknown / tokens,
        "tokens_per_word": None if num_words is None else tokens / max(num_words, 1),
        "characters_per_token": sum(map(len, lines)) / tokens,  # spaces included
        "bytes_per_token": sum(len(line.encode()) for line in lines) / tokens,  # of UTF-8
        # Of the entries without special tokens, those that occur in the tokenized training text, and often.
        "used_share": sum(counts[i] > 0 for i in ordinary) / max(len(ordinary), 1),
        "often_used_share": sum(counts[i] >= OFTEN for i in ordinary) / max(len(ordinary), 1),
        "embedding_parameters": {str(width): rows * width for width in WIDTHS},  # the MLM decoder shares them
    }


def _source_statistics(learned: PreTrainedTokenizerBase, counted: CountedText, name: str) -> dict[str, Any]:
    """Return `tokenizer_statistics` of one of several sources; its megabytes and its share of the training text."""
    text = counted.texts[name]
    return {
        **tokenizer_statistics(learned, text.measured, counted.words_of[name]),
        "megabytes": round(text.trained_bytes / 1e6, 3),
        "share": counted.shares[name],
        "is_held_out": bool(text.held_out),
    }


def _is_unspaced(lines: Sequence[str]) -> bool:
    """Return whether much of a text is in scripts without spaces."""
    counts = Counter(character for line in lines for character in line)
    letters = {character: count for character, count in counts.items() if character.isalpha()}
    unspaced = (count for letter, count in letters.items() if unicodedata.name(letter, "").startswith(UNSPACED_NAMES))
    return sum(unspaced) > MUCH_UNSPACED * sum(letters.values())


def training_tables(report: Mapping[str, Any]) -> str:
    """Return the report of a trained tokenizer as a table, and one of its sources if there are several."""
    counts, run = report["statistics"], report["run"]
    parameters = (f"{n / 1e6:,.2f} M at width {width}" for width, n in counts["embedding_parameters"].items())
    rows = [
        *((name, cell(counts)) for name, cell in CELLS.items() if name not in OF_TEXTS),
        ("measured on", f"{counts['tokens']:,} tokens {'held out' if report['is_held_out'] else 'trained on'}"),
        ("embedding parameters", ", ".join(parameters)),
        ("trained on", f"{run['megabytes']:,.1f} MB, {run['distinct_words']:,} distinct words"),
        ("time", f"{run['counting_seconds']:,.1f} s to count, {run['learning_seconds']:,.1f} s to learn"),
        *reading_rows(report["reading"]),
    ]
    sources = [(name, *(CELLS[cell](source) for cell in OF_SOURCES)) for name, source in report["sources"].items()]
    return "\n".join([text_table(rows)] + ([text_table([("source", *OF_SOURCES), *sources], "<>")] if sources else []))


def sizes_table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with one row per vocabulary."""
    rows = [[*OF_SIZES, *(f"M parameters, width {width}" for width in WIDTHS), "s"]]
    for report in reports:
        counts = report["statistics"]
        parameters = (f"{counts['embedding_parameters'][str(width)] / 1e6:.2f}" for width in WIDTHS)
        cells = (CELLS[name](counts) for name in OF_SIZES)
        rows.append([*cells, *parameters, f"{report['run']['learning_seconds']:.1f}"])
    return markdown_table(rows, ">")


def training_warnings(report: Mapping[str, Any]) -> list[str]:
    """Return lines about likely problems, each with the remedy."""
    counts, warnings = report["statistics"], reading_warnings(report["reading"])
    if not report["is_held_out"]:
        warnings.append(
            "the text is too short to hold out a part of it: the statistics are of the training text, and better than "
            "on other text. Put a blank line between documents, or give more text."
        )
    if counts["unknown_share"] > MUCH_UNKNOWN:
        warnings.append(
            f"{counts['unknown_share']:.1%} of the tokens are unknown: train on more text, raise "
            "--character-coverage, or use --kind bpe, which knows every byte."
        )
    if counts["entries"] < report["settings"]["vocab_size"]:
        warnings.append(
            f"the text gave {counts['entries']:,} entries, fewer than the {report['settings']['vocab_size']:,} "
            "requested: it has no more repeated pieces."
        )
    return [f"warning: {warning}" for warning in warnings]
