"""Text files and data sets to one corpus in a folder, with several processes, and resumable.

The source is divided into units (`sources.py`), workers make a shard of each (`shards.py`), and one merge (`merge.py`)
leaves out duplicates and copies the rest into one Arrow file. The corpus does not depend on the number of workers, on
which of them was faster, or on how often the run was killed.
"""

import multiprocessing
import os
import shutil
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

from hf_encoders.data.corpus.merge import (
    finish_corpus,
    first_of_each,
    make_report,
    merge_shards,
    write_dataset_files,
)
from hf_encoders.data.corpus.report import CorpusReport
from hf_encoders.data.corpus.segmentation import split_sentences
from hf_encoders.data.corpus.sentence_encoding import check_max_sentence_tokens, make_encoder
from hf_encoders.data.corpus.settings import (
    check_output,
    corpus_settings,
    finished_report,
    remove_corpus,
    report_time,
    start_shards,
)
from hf_encoders.data.corpus.shards import (
    ShardWriter,
    is_finished,
    write_shard,
    shard_hashes,
    shard_readings,
    start_worker,
)
from hf_encoders.data.corpus.sources import (
    FileSource,
    RowSource,
    StreamSource,
    TextReading,
    Unit,
    make_source,
)
from hf_encoders.writing import locked


UNITS_A_WORKER = 2  # units that are given out at once: no worker waits, and the text of a stream does not pile up
PARALLELISM = "TOKENIZERS_PARALLELISM"


def prepare_corpus(
    source: Sequence[str | Path] | datasets.Dataset | datasets.IterableDataset,
    output: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    sentence_splitter: Callable[[str], list[str]] = split_sentences,
    text_column: str = "text",
    sentences_column: str | None = None,
    word_segmenter: Callable[[str], list[str]] | None = None,
    max_sentence_tokens: int | None = None,
    keep_duplicates: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
) -> CorpusReport:
    """Make a corpus of text files or a data set: split into sentences, tokenised, in a folder to train from.

    `datasets.load_from_disk(output)` opens it, memory mapped, also where this package is not installed; all of it is
    one record batch (above 2**31 tokens of large lists), so that `SentenceStore` copies nothing. `output` holds
    `corpus.arrow`, `state.json` and `dataset_info.json` of `datasets`, and the report, `corpus.json`.

    A run that was killed goes on where it was when it is called with the same arguments again, and gives the same
    bytes; `workers` may be another number. A streaming data set is read again from the start then, without being
    tokenised again. A finished corpus with the same arguments is left as it is. Other arguments are refused, and so is
    a function whose code was changed (see `describe_function`); the same tokenizer or the same files in another folder
    are no difference. Of several processes that make the same corpus at once, such as the ranks of a launch, one works
    and the others wait for it (a lock in the folder, `_lock`, which ends with the process).

    Documents and sentences that give no token are left out, and so are documents with the same tokens as an earlier
    one. Special tokens and their names are treated as by `tokenize_documents`.

    Several processes: on Linux they are forks of this one; elsewhere they are new ones, to which the functions given
    are pickled, and the calling script needs its `if __name__ == "__main__":`.

    Args:
        source (`Sequence[str | Path]`, `datasets.Dataset` or `datasets.IterableDataset`): Text files, JSON lines and
            folders as `read_documents` reads them, or a data set with one row a document.
        output (`str` or `Path`): Folder, made if needed. Takes 4 bytes a token in the end (5 with word starts), three
            times that on the way. Memory: what each worker needs for a few megabytes of text, or for the longest
            document; and 24 bytes a document while duplicates are looked for.
        tokenizer (`PreTrainedTokenizerBase`): Any tokenizer.
        sentence_splitter (`Callable[[str], list[str]]`, *optional*, defaults to `split_sentences`): Gets a line of a
            text file or the text of a document. `one_sentence_per_line` for text that is split already,
            `functools.partial(split_sentences, language="de")` for another language.
        text_column (`str`, *optional*, defaults to `"text"`): Column, or field of JSON lines, with the text.
        sentences_column (`str`, *optional*): The one with a list of sentences, taken as they are instead.
        word_segmenter (`Callable[[str], list[str]]`, *optional*): As for `tokenize_documents`.
        max_sentence_tokens (`int`, *optional*): As for `tokenize_documents`; `None` cuts nothing.
        keep_duplicates (`bool`, *optional*, defaults to `False`): Keep documents with the tokens of an earlier one.
            They are found by 64-bit hashes; in 10 million documents, one is taken for a duplicate wrongly with a
            probability of 3 in a million.
        workers (`int`, *optional*): Processes, each with one core; 1 works in this process. `None` takes as many as
            this process may use cores.
        overwrite (`bool`, *optional*, defaults to `False`): Remove a corpus, or a begun one, from the folder first.

    Returns:
        `CorpusReport`: Counts, speed, and warnings of what predicts a failed pre-training; printed, a table.

    Raises:
        ValueError: If an argument is wrong, the source cannot be read or gives no token, or the folder holds
            something else.

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
    reading = TextReading(sentence_splitter, text_column, sentences_column)
    source = make_source(source, reading)
    encoder = partial(make_encoder, tokenizer, word_segmenter)
    encoder()  # refuses what cannot be encoded before any work
    settings = corpus_settings(
        source.identity(), reading, tokenizer, word_segmenter, max_sentence_tokens, keep_duplicates
    )
    if overwrite:
        check_output(output)
    elif report := finished_report(output, settings):
        return report
    before = report_time(output)
    with locked(output, "output", wait=True):
        # What another process has finished in the meantime is used, as it would be made here, also to replace.
        is_new = report_time(output) != before
        if overwrite and not is_new:
            remove_corpus(output)
        if report := finished_report(output, settings, is_new):
            return report
        shards = start_shards(output, settings)
        maker = ShardWriter(shards, source.reader(), encoder, max_sentence_tokens, word_segmenter is not None)
        with one_core_a_process():
            run = _write_shards(source, maker, workers)
        if source.identity() != settings["source"]:
            raise ValueError("source: files were changed while they were read: run it again with overwrite=True.")
        is_first = first_of_each(shard_hashes(shards, run.shards))
        statistics, fingerprint = merge_shards(
            shards,
            range(run.shards),
            is_first,
            keep_duplicates,
            tokenizer,
            shards,
            has_word_starts=maker.has_word_starts,
        )
        write_dataset_files(shards, fingerprint)
        read = shard_readings(shards, range(run.shards))._asdict() | {"skipped_files": source.skipped_files}
        report = make_report(settings, statistics, read, run.as_report(time.perf_counter() - began))
        finish_corpus(report, shards, output)
        shutil.rmtree(shards)
        return report


@dataclass
class _Run:
    """How the shards were made."""

    workers: int
    shards: int = 0
    kept_shards: int = 0
    bytes: int = 0

    def as_report(self, seconds: float) -> dict[str, Any]:
        megabytes = self.bytes / 1e6
        return {
            "seconds": round(seconds, 2),
            "workers": self.workers,
            "megabytes": round(megabytes, 3),
            "megabytes_per_second": round(megabytes / seconds, 3),
            "shards": self.shards,
            "kept_shards": self.kept_shards,
        }


def _number_of_workers(workers: int | None) -> int:
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise ValueError(f"workers={workers}: use 1 or more, or None for one a core.")
    return workers


@contextmanager
def one_core_a_process() -> Iterator[None]:
    """Keep tokenizers from using all cores in each process; the setting is inherited."""
    before = os.environ.get(PARALLELISM)
    os.environ[PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLELISM]
        else:
            os.environ[PARALLELISM] = before


def _write_shards(source: FileSource | RowSource | StreamSource, maker: ShardWriter, workers: int) -> _Run:
    """Make all shards that are not there yet."""
    units = source.units()
    # No more processes than there is work for.
    first = list(islice(units, workers))
    run = _Run(max(min(workers, len(first)), 1))
    unit_scale = source.progress_unit == "B"
    with (
        tqdm(total=source.total, desc="Tokenising", unit=source.progress_unit, unit_scale=unit_scale) as progress,
        _submitting(maker, run.workers) as submit,
    ):
        running: dict[Future[int], Unit] = {}
        for number, unit in enumerate(chain(first, units)):
            run.shards += 1
            if is_finished(maker.directory, number, unit.digest):
                run.kept_shards += 1
                progress.update(unit.size)
                continue
            if len(running) >= UNITS_A_WORKER * run.workers:
                _collect(running, run, progress)
            running[submit(number, unit.part, unit.digest)] = unit
        while running:
            _collect(running, run, progress)
    return run


def _collect(running: dict[Future[int], Unit], run: _Run, progress: tqdm) -> None:
    """Wait for a unit to be done, and count what is."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        try:
            run.bytes += future.result()
        except ValueError as error:
            # Raised here again, so that it comes from this package whether a worker met it or this process.
            raise ValueError(*error.args) from error
        except BrokenProcessPool as error:
            raise RuntimeError(
                "A worker was killed, most likely for want of memory. What is finished is kept: run it again, with "
                "fewer workers."
            ) from error
        progress.update(running.pop(future).size)


@contextmanager
def _submitting(maker: ShardWriter, workers: int) -> Iterator[Callable[..., Future[int]]]:
    """What has a shard made, in a worker or here."""
    if workers == 1:
        yield partial(_make_here, maker)
        return
    # A fork shares what is loaded, and needs no second import; other systems do not have it, or not safely.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker, initargs=(maker,))
    try:
        yield partial(executor.submit, write_shard)
    finally:
        executor.shutdown(cancel_futures=True)


def _make_here(maker: ShardWriter, number: int, part: Any, text_digest: str) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(maker.make(number, part, text_digest))
    return future
