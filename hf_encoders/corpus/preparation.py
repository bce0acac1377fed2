"""Text files and datasets to one corpus in a folder: `datasets` reads, caches, maps and saves; a report tells of it.

A folder is finished, or resumed, only if it is of the same settings (`report.py`).
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import multiprocess  # of `datasets`, which makes its workers with it
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import Reading, TextSource, split_sentences
from hf_encoders.corpus.flat_corpus import COLUMN, WORD_STARTS, FlatCorpus
from hf_encoders.corpus.report import (
    REPORT_FILE,
    CorpusReport,
    check_same_settings,
    corpus_settings,
    corpus_statistics,
    document_hashes,
    library_versions,
    reading_warnings,
    settings_hash,
    warnings_for,
)
from hf_encoders.corpus.tokenized import NO_TOKENS, DocumentTokenizer
from hf_encoders.corpus.units import (
    LEARNED,
    PHRASES_FILE,
    Lexicon,
    learn_phrases,
    mark_phrases,
    unit_warnings,
    write_phrases,
)
from hf_encoders.inputs import replace_lone_surrogates
from hf_encoders.writing import UNFINISHED, check_folder, holds_files, locked


BYTES_PER_WORKER = 2**22  # of text, for which a further process is worth its start
BYTES_PER_BATCH = 2**20  # of text, tokenized and written at once
DOCUMENTS_PER_WRITE = 100  # of text, which may be books
# Columns of a document besides its tokens, until the corpus is finished.
HASH, TOKENS, COUNTS = "document_hash", "tokens", (*Reading._fields, "bytes")
PARTS = "parts"  # column of the documents of files: what `DocumentReader.sentences` takes
# What is written into the folder of a corpus, also by `datasets`, and by earlier versions of this package.
OWN_FILES = ("data-*.arrow", "state.json", "dataset_info.json", PHRASES_FILE, "similar_words.safetensors")
OWN_FILES += ("cache-*.arrow", "corpus*.arrow", "flat-*", REPORT_FILE)


def prepare_corpus(
    source: Sequence[str | Path] | datasets.Dataset | datasets.IterableDataset,
    output: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    sentence_splitter: Callable[[str], list[str]] = split_sentences,
    text_column: str = "text",
    sentences_column: str | None = None,
    turns_column: str | None = None,
    word_segmenter: Callable[[str], list[str]] | None = None,
    lexicon: Sequence[str] | None = None,
    phrases: Sequence[str] | bool = False,
    max_sentence_tokens: int | None = None,
    keep_duplicates: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
) -> CorpusReport:
    """Prepare a corpus from text files or a dataset: split into sentences, tokenized, in a folder to train from.

    `datasets.load_from_disk(output)` opens it, memory mapped, also where this package is not installed; the report is
    `corpus.json`. The work is that of `datasets`: documents are read into its cache, tokenized with
    `map(num_proc=workers)` and written with `save_to_disk`. The cache is in the folder until the corpus is finished: a
    killed run, called with the same arguments again, resumes from it: from the documents once all are read, and from
    what each worker has tokenized once it is done.

    The rows do not depend on `workers`. A finished corpus with the same arguments is left as it is, and other
    arguments are refused; functions are compared by name where they can be imported, and by their code where not. If
    several processes prepare the same corpus at once, such as the ranks of a launch, one works and the others wait.

    Documents and sentences without a token are left out. Special tokens in the text are treated as by
    `tokenize_documents`.

    Args:
        source (`Sequence[str | Path]`, `datasets.Dataset` or `datasets.IterableDataset`): Text files, JSON lines and
            folders as `read_documents` reads them, or a dataset with one row per document.
        output (`str` or `Path`): Folder, made if needed. Takes 4 bytes per token in the end (5 with word starts);
            twice that and the size of the text while the corpus is made. Memory: what each worker needs for a few
            megabytes of text, or for the longest document; and 24 bytes per document while duplicates are looked for.
        tokenizer (`PreTrainedTokenizerBase`): Any tokenizer.
        sentence_splitter (`Callable[[str], list[str]]`, *optional*, defaults to `split_sentences`): Takes a line of a
            text file or the text of a document. Use `one_sentence_per_line` for text that is already split.
        text_column (`str`, *optional*, defaults to `"text"`): Column, or field of JSON lines, with the text.
        sentences_column (`str`, *optional*): Column or field with a list of sentences, which replaces the text.
        turns_column (`str`, *optional*): Column or field with the turns of a dialogue, as `sentences_of_turns` takes
            them, for the objective `dialogue`. In text files every line is then a turn. No turn is divided.
        word_segmenter, max_sentence_tokens: As in `tokenize_documents`.
        lexicon (`Sequence[str]`, *optional*): Names and terms, such as `read_entries(file)` or `jieba_entries()`, for
            masking whole entities: from left to right, the longest run of whole words of a sentence that is an entry.
            Words are the segmenter's or, without one, the tokenizer's (each Chinese character is one); letters are
            compared as the tokenizer spells them. Needs a fast tokenizer.
        phrases (`Sequence[str]` or `bool`, *optional*, defaults to `False`): Phrases, for masking whole ones, likewise
            among the words outside of entities. `True` learns them from a sample of the corpus, see `learn_phrases`,
            and writes them to `phrases.tsv` in the folder.
        keep_duplicates (`bool`, *optional*, defaults to `False`): Whether to keep documents with the tokens of an
            earlier one. They are found by 64-bit hashes; in 10 million documents, one is wrongly taken for a duplicate
            with a probability of 3 in a million.
        workers (`int`, *optional*, defaults to the available cores): Processes, each with one core; fewer for little
            text.
        overwrite (`bool`, *optional*, defaults to `False`): Whether to start over in a folder that holds an unfinished
            corpus, and to replace a finished one once the new one is complete.

    Returns:
        `CorpusReport`: Counts, speed, and warnings of what predicts a failed pre-training; printed, a table.

    Raises:
        ValueError: If an argument is wrong, the source cannot be read or gives no token, or the folder holds
            something else (documents of another source, finished or not).

    >>> import tempfile
    >>> documents = datasets.Dataset.from_dict({"text": ["w5 w6. w7", "w8", "w5 w6. w7"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = prepare_corpus(documents, folder, doctest_tokenizer(), workers=1)
    ...     rows = datasets.load_from_disk(folder)["input_ids"][:]
    >>> rows, report.statistics.dropped_duplicates
    ([[[5, 3], [7]], [[8]]], 1)
    """
    began = time.perf_counter()
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers}: use 1 or more, or None for one per core.")
    tokenize = DocumentTokenizer(
        tokenizer,
        sentence_splitter=sentence_splitter,
        text_column=text_column,
        sentences_column=sentences_column,
        turns_column=turns_column,
        word_segmenter=word_segmenter,
        lexicon=lexicon,
        phrases=phrases,
        max_sentence_tokens=max_sentence_tokens,
    )
    source = source if isinstance(source, TextSource) else TextSource(source, tokenize.reader)
    if pipes := [file for file in source.files if not file.is_file()]:
        raise ValueError(f"source: '{pipes[0]}' is not a regular file: save it first.")
    settings = corpus_settings(source.identity(), tokenize, keep_duplicates)
    output = Path(output)
    if overwrite:
        check_output(output)
    elif report := finished_report(output, settings):
        return report
    before = report_time(output)
    with locked(output, "output", wait=True):
        # A corpus that another process has finished meanwhile is used, also with `overwrite`.
        is_new = report_time(output) != before
        if (is_new or not overwrite) and (report := finished_report(output, settings, is_new)):
            return report
        restart = overwrite or isinstance(source.dataset, datasets.IterableDataset)
        with working_folder(output, settings, restart) as folder, one_core_per_process():
            num_workers = number_of_workers(source, workers)
            tokenized = _tokenized(source, tokenize, folder, num_workers)
            if source.identity() != settings["source"]:
                raise ValueError("source: files were changed while they were read: run it again with overwrite=True.")
            return finish_corpus(
                tokenized,
                duplicates_of(tokenized),
                folder,
                output,
                tokenize=tokenize,
                settings=settings,
                skipped_files=source.skipped_files,
                began=began,
                workers=num_workers,
            )


def number_of_workers(source: TextSource, workers: int | None) -> int:
    """Return the processes for a text: those asked for, or one per core; fewer for little text."""
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if source.text_bytes is None:
        return workers
    return max(min(workers, source.text_bytes // BYTES_PER_WORKER), 1)


@contextmanager
def one_core_per_process() -> Iterator[None]:
    """Keep tokenizers from using all cores in each process; workers inherit the setting."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _tokenized(source: TextSource, tokenize: DocumentTokenizer, folder: Path, workers: int) -> datasets.Dataset:
    """Return the rows of `document_table`, one for each document that was read, in the cache of `datasets`."""
    documents, column = source.dataset, source.reader.column
    if not isinstance(documents, datasets.Dataset):
        documents, column = _documents_of_files(source, folder, workers), PARTS
    if not len(documents):
        raise ValueError(NO_TOKENS)
    documents = documents.select_columns([column]).with_format(None)
    table = documents.data
    return documents.map(
        _tokenize_rows,
        batched=True,
        with_indices=True,
        # After a selection of rows the table still holds all of them.
        batch_size=min(max(BYTES_PER_BATCH * table.num_rows // max(table.nbytes, 1), 1), 1000),
        num_proc=min(workers, len(documents)) if workers > 1 else None,
        remove_columns=[column],
        fn_kwargs={"tokenize": tokenize, "column": column},
        features=features_of(tokenize),
        cache_file_name=str(folder / "tokens.arrow"),
        new_fingerprint=folder.name,
        desc="Tokenizing",
    )


def _documents_of_files(source: TextSource, folder: Path, workers: int) -> datasets.Dataset:
    """Read files, or a stream, into the cache of `datasets`, so that `map` can divide the documents."""
    files = source.divided_files
    try:
        return datasets.Dataset.from_generator(
            _rows,
            features=datasets.Features({PARTS: datasets.List(datasets.Value("string"))}),
            cache_dir=str(folder / "text"),
            gen_kwargs={"source": source, "files": files or [None]},
            num_proc=min(workers, len(files)) if workers > 1 and len(files) > 1 else None,
            writer_batch_size=DOCUMENTS_PER_WRITE,
        )
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None
    except ValueError as error:
        if "corresponds to no data" not in str(error):
            raise
        raise ValueError(NO_TOKENS) from error


@cache
def _end_with_parent(process: int) -> None:
    """Let a worker end when the main process is killed, where it would wait for work for ever; once in each."""

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    if multiprocess.parent_process():
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()


def _rows(source: TextSource, files: list[Path | None]) -> Iterator[dict[str, list[str]]]:
    _end_with_parent(os.getpid())
    for parts in source.parts(None if files == [None] else files):
        yield {PARTS: [replace_lone_surrogates(part) for part in parts]}


def _tokenize_rows(
    batch: Mapping[str, list[Any]], rows: list[int], tokenize: DocumentTokenizer, column: str
) -> pa.Table:
    _end_with_parent(os.getpid())
    reader, values = tokenize.reader, batch[column]
    if column != PARTS:
        values = [reader.parts_of_row(row, value) for row, value in zip(rows, values, strict=True)]
    return document_table(tokenize, [reader.sentences(parts) for parts in values])


def document_table(tokenize: DocumentTokenizer, documents: Sequence[list[str]]) -> pa.Table:
    """Return a row for each document: its token ids, a hash of them, and counts of tokens and of what was read."""
    corpus = tokenize.tokenize(documents)
    table = corpus.to_table()
    counts = [
        (*Reading().with_document(document), len("".join(document).encode("utf-8", "surrogatepass")))
        for document in documents
    ]
    columns = {HASH: pa.array(document_hashes(corpus)), TOKENS: pa.array(corpus.document_tokens)}
    columns |= {name: pa.array([row[i] for row in counts], pa.int64()) for i, name in enumerate(COUNTS)}
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table


def features_of(tokenize: DocumentTokenizer) -> datasets.Features:
    """Return the columns of `document_table`."""
    return datasets.Features.from_arrow_schema(document_table(tokenize, [[]]).schema)


def duplicates_of(tokenized: datasets.Dataset) -> np.ndarray:
    """Return whether each document has the tokens of an earlier one, by their hashes; `bool`."""
    is_duplicate = np.ones(len(tokenized), dtype=bool)
    is_duplicate[np.unique(tokenized.data.column(HASH).to_numpy(), return_index=True)[1]] = False
    return is_duplicate


def finish_corpus(
    tokenized: datasets.Dataset,
    is_duplicate: np.ndarray,
    folder: Path,
    output: Path,
    *,
    tokenize: DocumentTokenizer,
    settings: dict[str, Any],
    skipped_files: Mapping[str, int],
    began: float,
    workers: int,
) -> CorpusReport:
    """Save the documents that have tokens and are not left out as duplicates, with a report, to `output`.

    Args:
        tokenized (`datasets.Dataset`): Rows of `document_table`.
        is_duplicate (`np.ndarray` of `bool`): Which of them repeat an earlier one.
        folder (`Path`): Where the corpus is made.
        output (`Path`): Where it is moved to; an earlier corpus is removed then.
        tokenize, settings, skipped_files, workers: The preparation, for the report.
        began (`float`): When it began, by `time.perf_counter`.
    """
    units, keep_duplicates = tokenize.units, settings["keep_duplicates"]
    has_tokens = tokenized.data.column(TOKENS).to_numpy() > 0
    rows = np.flatnonzero(has_tokens & (keep_duplicates | ~is_duplicate))
    if not len(rows):
        raise ValueError(NO_TOKENS)
    read = {name: pc.sum(tokenized.data.column(name)).as_py() for name in COUNTS}
    num_bytes = read.pop("bytes")
    corpus = tokenized if len(rows) == len(tokenized) else tokenized.select(rows, keep_in_memory=True)
    made = folder / "corpus"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    if units.are_learned:
        phrases = _learned_phrases(corpus, tokenize.tokenizer, made / PHRASES_FILE)
        columns = features_of(tokenize)
        corpus = corpus.with_format("arrow").map(
            _mark_rows,
            batched=True,
            remove_columns=corpus.column_names,
            features=datasets.Features({name: columns[name] for name in (COLUMN, WORD_STARTS)}),
            fn_kwargs={"phrases": phrases},
            cache_file_name=str(folder / "phrases.arrow"),
            load_from_cache_file=False,
            new_fingerprint=f"{folder.name}p",
            desc="Marking phrases",
        )
    columns = [name for name in (COLUMN, WORD_STARTS) if name in corpus.column_names]
    corpus = corpus.with_format(None).select_columns(columns)
    # Of the text too: the settings of two streams are the same.
    hashes = tokenized.data.column(HASH).to_numpy()[rows]
    corpus._fingerprint = Hasher.hash((settings_hash(settings), hashes.tobytes()))
    corpus.save_to_disk(str(made))
    statistics = replace(
        corpus_statistics(datasets.load_from_disk(str(made)), tokenize.tokenizer),
        dropped_duplicates=0 if keep_duplicates else int(np.count_nonzero(has_tokens & is_duplicate)),
    )
    reading = {**read, **units.reading(), "skipped_files": dict(skipped_files)}
    seconds = time.perf_counter() - began
    report = CorpusReport(
        settings=settings,
        statistics=statistics,
        reading=reading,
        warnings=[
            *warnings_for(statistics),
            *reading_warnings(reading),
            *unit_warnings(statistics.units, reading.get("unspelled", {})),
        ],
        run={
            "seconds": round(seconds, 2),
            "workers": workers,
            "megabytes": round(num_bytes / 1e6, 3),
            "megabytes_per_second": round(num_bytes / 1e6 / seconds, 3),
        },
        versions=library_versions(),
    )
    report.save(made)
    remove_finished(output)
    # The report comes last: where it is, the corpus is finished.
    for path in sorted(made.iterdir(), key=lambda path: path.name == REPORT_FILE):
        os.replace(path, output / path.name)
    return report


def _learned_phrases(corpus: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, path: Path) -> Lexicon:
    """Learn phrases from a sample of the corpus, every n-th document, and write them to a file."""
    step = max(-(-pc.sum(corpus.data.column(TOKENS)).as_py() // LEARNED["most_tokens"]), 1)
    learned = learn_phrases(FlatCorpus.of(corpus.select(range(0, len(corpus), step))), tokenizer)
    write_phrases(learned, path)
    if not learned:
        raise ValueError(
            f"phrases: no words occur together {LEARNED['least_count']} times and more often than by chance: give a "
            "list of phrases, or leave them out."
        )
    return Lexicon([phrase.text for phrase in learned], tokenizer, "phrases")


def _mark_rows(table: pa.Table, phrases: Lexicon) -> pa.Table:
    return mark_phrases(FlatCorpus.of_table(table).part(), phrases).to_table()


@contextmanager
def working_folder(output: Path, settings: dict[str, Any], restart: bool = False) -> Iterator[Path]:
    """Yield the folder in `output` that a corpus with these settings is made in; remove those of other settings.

    It is removed at the end, also if the text is refused; after other errors it is there to resume from.
    """
    unfinished = output / UNFINISHED
    folder = unfinished / settings_hash(settings)
    for path in unfinished.glob("*"):
        if restart or path != folder:
            shutil.rmtree(path)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except ValueError:
        shutil.rmtree(unfinished)
        raise
    shutil.rmtree(unfinished)


def check_output(output: Path) -> None:
    """Refuse a folder that is not writable, or that holds anything but a finished or unfinished corpus."""
    check_folder(output, "--output")
    # Beside unfinished files are those that were moved when a process was killed at the end of its work.
    if holds_files(output) and not (output / REPORT_FILE).exists() and not (output / UNFINISHED).is_dir():
        raise ValueError(f"output='{output}' holds files that are not a corpus: name a new or empty folder.")


def report_time(output: Path) -> int | None:
    """Return the modification time in nanoseconds of the report of a finished corpus; `None` if there is none."""
    report = output / REPORT_FILE
    return report.stat().st_mtime_ns if report.exists() else None


def finished_report(output: Path, settings: dict[str, Any], is_new: bool = False) -> CorpusReport | None:
    """Return the report of a finished corpus, or `None` if there is work to do; refuse other files and settings.

    `is_new` is whether another process finished the corpus while this one waited.
    """
    # What is unfinished with these settings is of a run with `overwrite`, which replaces the corpus in the end.
    if not (output / REPORT_FILE).exists() or (output / UNFINISHED / settings_hash(settings)).exists():
        check_output(output)
        return None
    report = CorpusReport.load(output)
    check_same_settings(output, report.settings, settings)
    try:
        num_documents = len(datasets.load_from_disk(str(output)))
    except (OSError, ValueError, pa.ArrowInvalid):
        num_documents = None
    if num_documents != report.statistics.documents:
        raise ValueError(
            f"output='{output}' holds a damaged corpus: corpus.json lists {report.statistics.documents:,} documents, "
            "and its files do not hold them: replace it with overwrite=True (--overwrite)."
        )
    if settings["source"].get("dataset") == "streaming" and not is_new:
        raise ValueError(
            f"output='{output}' holds a corpus, and whether it is of the same streaming dataset cannot be checked: "
            "name another folder, or replace it with overwrite=True (--overwrite)."
        )
    return report


def remove_finished(output: Path) -> None:
    """Remove a finished corpus, or what was moved of one, the report first; and no other file."""
    for path in [path for pattern in reversed(OWN_FILES) for path in output.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
