"""`hf-encoders tokenizer`: train a tokenizer of a family's kind on text files or a dataset, with a report.

`--from-sentencepiece FILE.model --family FAMILY` converts a SentencePiece file instead.

`--extend CHECKPOINT --add N` adds entries for the words of the text to the tokenizer and the model of CHECKPOINT.

The same text and settings give the same tokenizer. `AutoTokenizer.from_pretrained(DIR)` loads it, also where this
package is not installed; `hf-encoders corpus` takes it as `--tokenizer DIR`.
"""

import argparse
import sys
import time
from pathlib import Path

from hf_encoders.corpus.text_files import check_text_files
from hf_encoders.corpus.text_options import add_text_arguments, check_text
from hf_encoders.inputs import check_name_or_path, check_packages
from hf_encoders.registration import config_class_of, family_names, vocabulary_kinds
from hf_encoders.source_literals import constant
from hf_encoders.writing import check_folder, locked


SIZES_FILE = constant("corpus.tokenizer_command", "SIZES_FILE")
HELD_OUT_BYTES = constant("corpus.word_counts", "HELD_OUT_BYTES")
ADDED = 1000  # default number of entries that --extend adds
# Options without effect on a tokenizer that is extended, besides those of learning, with their defaults.
OF_PIPELINE = {"lowercase": False, "strip_accents": False, "max_length": 512}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    _add_text_arguments(parser)
    kinds = vocabulary_kinds()
    # The configurations' defaults. BERT: vocab.txt of the release (the paper, section 3, rounds to 30,000). RoBERTa:
    # dict.txt of fairseq and the mask ("50K", section 4.4). ALBERT: section 4.1.
    sizes = ", ".join(f"{kind} {size:,}" for kind, (_, size) in kinds.items())
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--kind",
        choices=list(kinds),
        help="vocabulary and special tokens of "
        f"{', '.join(f'{family} ({kind})' for kind, (family, _) in kinds.items())}",
    )
    which.add_argument(
        "--family",
        choices=family_names(),
        help="vocabulary and special tokens of this family",
    )
    which.add_argument(
        "--extend",
        metavar="DIR_OR_NAME",
        help="add entries to the tokenizer of this checkpoint, and rows to its model; or to a tokenizer alone",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder of the tokenizer and its report; with --extend, of the checkpoint",
    )
    parser.add_argument(
        "--add",
        type=int,
        metavar="N",
        help="with --extend: entries to add at most, those that save most tokens of the text (default: 1000)",
    )
    parser.add_argument(
        "--keep",
        action="extend",
        nargs="+",
        metavar="PATH",
        help="with --extend: other text, of which the report says how much is cut differently (default: none)",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help=f"largest number of entries, special tokens included (default: {sizes})",
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
    case.add_argument(
        "--lowercase",
        action="store_true",
        help="lower-case the text (default, except for bpe and xlm-roberta, which never do)",
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
        help="share of the characters of the text in the vocabulary, in (0, 1]; no effect on bpe (default: "
        "%(default)s; SentencePiece's is 0.9995)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=512,
        metavar="TOKENS",
        help="longest sequence, recorded as model_max_length (default: %(default)s)",
    )
    parser.add_argument("--overwrite", action="store_true", help="first remove the tokenizer in --output")


def _add_text_arguments(parser: argparse.ArgumentParser) -> None:
    source = add_text_arguments(parser, takes_names=True)
    source.add_argument(
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
    check_text_files(arguments.keep or (), "--keep")
    if arguments.extend is not None:
        check_name_or_path(arguments.extend, f"--extend {arguments.extend!r}")
    if (file := arguments.from_sentencepiece) is not None:
        if not Path(file).is_file():
            raise ValueError(f"--from-sentencepiece {file!r} is no file: give the .model file.")
        check_packages(("sentencepiece",), "--from-sentencepiece", "sentencepiece")
    check_folder(arguments.output, "--output")


def run(arguments: argparse.Namespace) -> int:
    """Train, measure and save."""
    import transformers

    from hf_encoders.corpus.tokenizer_command import (
        check_arguments,
        check_output,
        convert,
        documents_of,
        report_of,
        save_with_report,
        settings_of,
        sources_of,
    )
    from hf_encoders.corpus.tokenizer_report import sizes_table
    from hf_encoders.corpus.tokenizer_training import (
        pipeline_options,
        tokenizer_of_words,
        untrained_tokenizer,
    )
    from hf_encoders.corpus.word_counts import count_selected_text
    from hf_encoders.objectives.mixture import Sampling

    if arguments.extend is not None:
        return extend(arguments)
    for name in ("add", "keep"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} is for --extend DIR_OR_NAME: leave it out.")
    config_class = config_class_of(vocabulary_kinds()[arguments.kind][0] if arguments.kind else arguments.family)
    if arguments.from_sentencepiece is not None:
        return convert(arguments, config_class)
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
    sources = sources_of(arguments)
    limit = None if arguments.limit is None else max(int(arguments.limit * 1e6), 1)
    untrained, sampling = untrained_tokenizer(config_class, options), Sampling(arguments.sampling_alpha)
    counted = count_selected_text(sources, documents_of, untrained, arguments.held_out, limit, sampling)
    counting_seconds = time.perf_counter() - began
    tokenizers, reports = [], []
    for size in sizes:
        print(f"learning {size:,} entries from {len(counted.words):,} distinct words", file=sys.stderr)
        began = time.perf_counter()
        coverage = arguments.character_coverage
        learned = tokenizer_of_words(counted.words, config_class, size, arguments.max_length, options, coverage)
        seconds = counting_seconds, time.perf_counter() - began
        tokenizers.append(learned)
        reports.append(report_of(learned, settings_of(arguments, size, options), sources, counted, seconds))
    for learned, report, folder in zip(tokenizers, reports, folders, strict=True):  # none, if one size is refused
        save_with_report(learned, report, folder)
    if arguments.compare_sizes:
        table = sizes_table(reports)
        (output / SIZES_FILE).write_text(table + "\n", encoding="utf-8")
        print(table)
        print("\n".join(f"warning: {warning}" for warning in dict.fromkeys(w for r in reports for w in r.warnings)))
    else:
        print(reports[0])
        print(f"AutoTokenizer.from_pretrained({str(output)!r}) loads it")
    return 0


def extend(arguments: argparse.Namespace) -> int:
    """Add entries to the tokenizer of a checkpoint, and their rows to its model."""
    import transformers

    from hf_encoders.corpus.extension import Checkpoint, extend_checkpoint
    from hf_encoders.corpus.tokenizer_command import (
        OF_LEARNING,
        check_limit,
        check_output,
        documents_of,
        reading_of,
        settings_of,
        some_lines,
        sources_of,
    )
    from hf_encoders.corpus.word_counts import count_selected_text
    from hf_encoders.objectives.mixture import Sampling
    from hf_encoders.runs.train import some_of

    if arguments.from_sentencepiece is not None:
        raise ValueError("--extend adds entries for text, and --from-sentencepiece reads none: give --input instead.")
    number = ADDED if arguments.add is None else arguments.add
    if number < 1:
        raise ValueError(f"--add {number} must be at least 1.")
    for name, default in {**OF_LEARNING, **OF_PIPELINE}.items():
        if getattr(arguments, name) != default:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is for a new tokenizer, and --extend keeps the checkpoint's: leave it out.")
    check_limit(arguments)
    output, source = Path(arguments.output), arguments.extend
    check_output(output, arguments.overwrite)
    checkpoint = Checkpoint.of(source, "--extend")
    if not checkpoint.tokenizer.is_fast:
        raise ValueError(
            f"--extend {source!r}: {type(checkpoint.tokenizer).__name__} is written in Python, and only "
            "tokenizers with a tokenizer.json can be extended: use hf-encoders adapt with its own entries."
        )
    if checkpoint.model is not None and (unused := checkpoint.model.unused_head_weights):
        print(
            f"Weights of the checkpoint that {checkpoint.auto_class} does not have are left out: {some_of(unused)}. "
            "To keep them, write in its config.json (architectures) the class that has them, such as "
            "BertForPreTraining.",
            flush=True,
        )
    arguments.until_end.enter_context(locked(output, "--output", wait=False))
    transformers.logging.set_verbosity_error()

    sources = sources_of(arguments)
    limit = None if arguments.limit is None else max(int(arguments.limit * 1e6), 1)
    sampling = Sampling(arguments.sampling_alpha)
    kept = None if arguments.keep is None else some_lines(arguments)
    text = count_selected_text(sources, documents_of, checkpoint.tokenizer, arguments.held_out, limit, sampling)
    print(f"choosing {number:,} entries from {len(text.words):,} distinct words", file=sys.stderr)
    name = Path(source).name if Path(source).is_dir() else source  # the folder may be pushed: no paths
    settings = {"extend": name, "add": number, **settings_of(arguments, 0, {})}
    report = extend_checkpoint(checkpoint, text, number, output, kept, settings, reading_of(sources, text))
    print(report)
    print(f"{checkpoint.auto_class}.from_pretrained({str(output)!r}) loads it")
    return 0
