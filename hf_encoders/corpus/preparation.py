"""Text files and datasets to one corpus in a folder, with several processes, resumable.

The source is divided into units (`sources.py`), workers write a shard from each (`shards.py`), and one merge
(`merge.py`) leaves out duplicates and copies the rest into one Arrow file. The corpus does not depend on the number of
workers, on their speed, or on how often the run was killed. docs/corpus.md compares it with `datasets.map`.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
from datasets.utils import tqdm
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import DocumentReader
from hf_encoders.corpus.merge import finish_corpus, merge_shards, run_facts
from hf_encoders.corpus.report import CorpusReport
from hf_encoders.corpus.segmentation import split_sentences
from hf_encoders.corpus.sentence_encoding import check_max_sentence_tokens, make_encoder
from hf_encoders.corpus.settings import (
    check_output,
    corpus_settings,
    finished_report,
    remove_finished,
    remove_shards,
    report_time,
    shards_until_finished,
)
from hf_encoders.corpus.shards import ShardWriter, is_finished, start_worker, write_shard
from hf_encoders.corpus.sources import TextSource, Unit, make_source
from hf_encoders.corpus.units import Units
from hf_encoders.writing import locked


UNITS_PER_WORKER = 2  # units submitted at once: no worker waits, and the text of a stream does not pile up
PARALLELISM = "TOKENIZERS_PARALLELISM"


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
    `corpus.json`.

    A killed run resumes when it is called with the same arguments again, and gives the same bytes; `workers` may
    differ. A finished corpus with the same arguments is left as it is. Other arguments are refused; functions are
    compared by name where they can be imported, and by their code where not (see `describe_function`). If several
    processes prepare the same corpus at once, such as the ranks of a launch, one works and the others wait.

    Documents and sentences without a token are left out. Special tokens in the text are treated as by
    `tokenize_documents`. Workers are forks of this process on Linux; elsewhere the functions given are pickled, and
    the calling script needs its `if __name__ == "__main__":`.

    Args:
        source (`Sequence[str | Path]`, `datasets.Dataset` or `datasets.IterableDataset`): Text files, JSON lines and
            folders as `read_documents` reads them, or a dataset with one row per document.
        output (`str` or `Path`): Folder, made if needed. Takes 4 bytes per token in the end (5 with word starts), 3
            times that while the corpus is made. Memory: what each worker needs for a few megabytes of text, or for the
            longest document; and 24 bytes per document while duplicates are looked for.
        tokenizer (`PreTrainedTokenizerBase`): Any tokenizer.
        sentence_splitter (`Callable[[str], list[str]]`, *optional*, defaults to `split_sentences`): Takes a line of a
            text file or the text of a document. Use `one_sentence_per_line` for text that is already split.
        text_column (`str`, *optional*, defaults to `"text"`): Column, or field of JSON lines, with the text.
        sentences_column (`str`, *optional*): Column or field with a list of sentences, which replaces the text.
        turns_column (`str`, *optional*): Column or field with the turns of a dialogue, as `sentences_of_turns` takes
            them, for the objective `dialogue`. In text files every line is then a turn. No turn is divided.
        word_segmenter, max_sentence_tokens: As in `tokenize_documents`.
        lexicon (`Sequence[str]`, *optional*): Names and terms, such as `read_entries(file)` or `jieba_entries()`, for
            masking whole entities: from left to right, the longest run of whole words that is an entry begins with the
            bit `ENTITY` in the column `word_starts`, and so does every word outside of entries. Words are the
            segmenter's or, without one, the tokenizer's (each Chinese character is one). Letters are compared as the
            tokenizer spells them. A sentence has no entity across its end. Needs a fast tokenizer.
        phrases (`Sequence[str]` or `bool`, *optional*, defaults to `False`): Phrases, for masking whole ones, marked
            likewise among the words outside of entities, by the bit `PHRASE`. `True` learns them from a sample of the
            corpus, see `Collocations`, and writes them to `phrases.tsv` in the folder.
        keep_duplicates (`bool`, *optional*, defaults to `False`): Whether to keep documents with the tokens of an
            earlier one. They are found by 64-bit hashes; in 10 million documents, a document is wrongly taken for a
            duplicate with a probability of 3 in a million.
        workers (`int`, *optional*, defaults to the available cores): Processes, each with one core; 1 works in this
            process.
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
    check_max_sentence_tokens(max_sentence_tokens)
    workers = _number_of_workers(workers)
    output = Path(output)
    documents = DocumentReader(sentence_splitter, text_column, sentences_column, turns_column)
    if turns_column and max_sentence_tokens is not None:
        raise ValueError(
            f"max_sentence_tokens={max_sentence_tokens} would divide turns (turns_column={turns_column!r}): leave it "
            "out; turns that do not fit an example are cut there."
        )
    source = make_source(source, documents)
    units = Units(tokenizer, word_segmenter is not None, lexicon, phrases)
    encoder = partial(make_encoder, tokenizer, word_segmenter, units.marker)
    encoder()  # refuses a tokenizer that cannot be used before any work
    settings = corpus_settings(
        source.identity(), documents, tokenizer, word_segmenter, max_sentence_tokens, keep_duplicates, units.settings()
    )
    if overwrite:
        check_output(output)
    elif report := finished_report(output, settings):
        return report
    before = report_time(output)
    with locked(output, "output", wait=True):
        # A corpus that another process has finished meanwhile is used, also with `overwrite`.
        is_new = report_time(output) != before
        if overwrite and not is_new:
            remove_shards(output)
        elif report := finished_report(output, settings, is_new):
            return report
        with shards_until_finished(output, settings) as shards:
            writer = ShardWriter(
                shards, source.reader(), encoder, max_sentence_tokens, units.are_marked, bool(turns_column)
            )
            with one_core_per_process():
                progress = _write_shards(source, writer, workers)
            if source.identity() != settings["source"]:
                raise ValueError("source: files were changed while they were read: run it again with overwrite=True.")
            numbers = range(progress.shards)
            statistics, read = merge_shards(
                shards, numbers, len(numbers), keep_duplicates, tokenizer, shards, units=units
            )
            read["skipped_files"] = source.skipped_files
            run = run_facts(
                time.perf_counter() - began, progress.workers, progress.bytes, progress.shards, progress.kept_shards
            )
            remove_finished(output)
            return finish_corpus(settings, statistics, read, run, shards, output)


@dataclass
class _Progress:
    """How far the shards are."""

    workers: int
    shards: int = 0
    kept_shards: int = 0  # of an earlier run
    bytes: int = 0  # tokenized in this run


def _number_of_workers(workers: int | None) -> int:
    if workers is None:
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if workers < 1:
        raise ValueError(f"workers={workers}: use 1 or more, or None for one per core.")
    return workers


@contextmanager
def one_core_per_process() -> Iterator[None]:
    """Keep tokenizers from using all cores in each process; workers inherit the setting."""
    before = os.environ.get(PARALLELISM)
    os.environ[PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLELISM]
        else:
            os.environ[PARALLELISM] = before


def _write_shards(source: TextSource, writer: ShardWriter, workers: int) -> _Progress:
    """Write all shards that are not finished yet."""
    units = source.units()
    first = list(islice(units, workers))  # no more processes than units
    progress = _Progress(max(min(workers, len(first)), 1))
    unit_scale = source.progress_unit == "B"
    with (
        tqdm(total=source.total, desc="Tokenizing", unit=source.progress_unit, unit_scale=unit_scale) as bar,
        _submitting(writer, progress.workers) as submit,
    ):
        running: dict[Future[int], Unit] = {}
        for number, unit in enumerate(chain(first, units)):
            progress.shards += 1
            if is_finished(writer.directory, number, unit.digest):
                progress.kept_shards += 1
                bar.update(unit.size)
                continue
            if len(running) >= UNITS_PER_WORKER * progress.workers:
                _collect(running, progress, bar)
            running[submit(number, unit.part, unit.digest)] = unit
        while running:
            _collect(running, progress, bar)
    return progress


def _collect(running: dict[Future[int], Unit], progress: _Progress, bar: tqdm) -> None:
    """Wait until at least one unit is done."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        try:
            progress.bytes += future.result()
        except ValueError as error:
            # Raised again here, so that the traceback ends in this package whether or not a worker met it.
            raise ValueError(*error.args) from error
        except BrokenProcessPool as error:
            raise RuntimeError(
                "A worker was killed, most likely because memory ran out. Finished shards are kept: run it again, "
                "with fewer workers."
            ) from error
        bar.update(running.pop(future).size)


@contextmanager
def _submitting(writer: ShardWriter, workers: int) -> Iterator[Callable[..., Future[int]]]:
    """A function that has a shard written, by a worker or in this process."""
    if workers == 1:
        yield partial(_write_here, writer)
        return
    # A fork shares what is loaded and imports nothing again; other systems do not support it, or not safely.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker, initargs=(writer,))
    try:
        yield partial(executor.submit, write_shard)
    finally:
        executor.shutdown(cancel_futures=True)


def _write_here(writer: ShardWriter, number: int, part: Any, text_digest: str) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(writer.write(number, part, text_digest))
    return future
