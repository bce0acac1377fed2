"""Corpus preparation on many machines: two steps for the pipelines of datatrove, which runs tasks there.

datatrove reads, filters and distributes (one machine, Slurm, Ray); the first step here tokenises what a task gets into
a shard, as a worker of `prepare_corpus` does, and the second merges shards, as `prepare_corpus` does. Needs the extra
`datatrove`, and a folder that all machines see.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_encoders.data.corpus.merge import (
    finish_corpus,
    first_of_each,
    make_report,
    merge_shards,
    write_dataset_files,
)
from hf_encoders.data.corpus.preparation import one_core_a_process
from hf_encoders.data.corpus.report import REPORT_FILE, CorpusReport
from hf_encoders.data.corpus.segmentation import split_sentences
from hf_encoders.data.corpus.sentence_encoding import check_max_sentence_tokens, make_encoder
from hf_encoders.data.corpus.settings import corpus_settings, finished_report, shards_folder, start_shards
from hf_encoders.data.corpus.shards import ShardWriter, shard_hashes, shard_path, shard_readings
from hf_encoders.data.corpus.sources import TextReading
from hf_encoders.writing import locked


try:
    from datatrove.data import Document
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise ImportError("datatrove needs datatrove: pip install 'hf_encoders[datatrove]'.") from error


@dataclass(frozen=True)
class CorpusTasks:
    """A corpus that tasks of datatrove make: `tokenize()` is the last step of one pipeline, `merge()` the next pipeline.

    ```python
    corpus = CorpusTasks("corpus", tokenizer, source="news, filtered 2026-11", tasks=2000, parts=64)
    making = SlurmPipelineExecutor([JsonlReader("news/"), corpus.tokenize()], tasks=2000, logging_dir="logs/tokenize", ...)
    SlurmPipelineExecutor([corpus.merge()], tasks=64, logging_dir="logs/merge", depends=making, ...).run()
    ```

    With `parts=1`, the documents in the order of the tasks give the `corpus.arrow` that `prepare_corpus` makes of them
    in that order, byte for byte; datatrove's readers give task `i` the files `i`, `i + tasks`, ... of the sorted ones.
    With more, `part-00000` and so on in `output` are such corpora each: they are merged by as many tasks, and a stream
    wants a file for every process that reads it. Duplicates are left out over all parts; the first stays.

    Killed tasks are run again by the executor, which knows the finished ones by its `logging_dir`; to make a corpus
    anew, remove `output` and both folders of logs.

    Args:
        output (`str` or `Path`): Folder, on a disk that all tasks see. Takes 4 bytes a token in the end, three times
            that on the way.
        tokenizer (`PreTrainedTokenizerBase`): Any tokenizer.
        source (`str`): Which documents these are, for the report; another name for what the pipeline gives after any
            change, because nothing else tells that a begun corpus is not of the same documents.
        tasks (`int`): Tasks of the first pipeline. A task is what is lost by a kill; about 100 MB of text are well.
        parts (`int`, *optional*, defaults to 1): Corpora to make, and tasks of the second pipeline.
        sentence_splitter, word_segmenter, max_sentence_tokens, keep_duplicates: As in `prepare_corpus`. Each task of
            the merge needs 24 bytes of memory a document of all parts.

    Raises:
        ValueError: If an argument is wrong, or `output` holds something else; in a task, if the executor has another
            number of tasks, if shards are missing, or if there is no token.
    """

    output: str | Path
    tokenizer: PreTrainedTokenizerBase
    source: str
    tasks: int
    parts: int = 1
    sentence_splitter: Callable[[str], list[str]] = split_sentences
    word_segmenter: Callable[[str], list[str]] | None = None
    max_sentence_tokens: int | None = None
    keep_duplicates: bool = False

    def __post_init__(self) -> None:
        check_max_sentence_tokens(self.max_sentence_tokens)
        if not 1 <= self.parts <= self.tasks:
            raise ValueError(f"parts={self.parts} of tasks={self.tasks}: use 1 or more, and a task or more a part.")
        if "://" in str(self.output):
            raise ValueError(f"output={str(self.output)!r}: shards are memory mapped: name a folder on a shared disk.")
        make_encoder(self.tokenizer, self.word_segmenter)  # refuses what cannot be encoded before any work
        settings = self.settings()
        finished = [finished_report(folder, settings) for folder in self.folders() if (folder / REPORT_FILE).exists()]
        if len(finished) < self.parts:
            finished_report(Path(self.output), settings)

    def settings(self) -> dict[str, Any]:
        """All that decides what is in the corpus."""
        source = {"pipeline": self.source, "tasks": self.tasks, "parts": self.parts}
        reading = TextReading(self.sentence_splitter)
        return corpus_settings(
            source, reading, self.tokenizer, self.word_segmenter, self.max_sentence_tokens, self.keep_duplicates
        )

    def folders(self) -> list[Path]:
        """Where the finished corpora are."""
        output = Path(self.output)
        return [output] if self.parts == 1 else [output / f"part-{number:05d}" for number in range(self.parts)]

    def reports(self) -> list[CorpusReport]:
        """The reports of the finished corpora, `run` with the seconds of all tasks added up."""
        return [CorpusReport.load(folder) for folder in self.folders()]

    def tokenize(self) -> PipelineStep:
        """The last step of the pipeline that reads documents."""
        return _TokenizeDocuments(self)

    def merge(self) -> PipelineStep:
        """The only step of the pipeline that comes after it."""
        return _MergeShards(self)


class _CorpusStep(PipelineStep):
    type = "🔢 - TOKENIZER"

    def __init__(self, corpus: CorpusTasks):
        super().__init__()
        self.corpus = corpus

    def _check_tasks(self, world_size: int, expected: int, name: str) -> None:
        if world_size != expected:
            raise ValueError(f"{name}={expected}, but the executor has tasks={world_size}: give both the same number.")


class _TokenizeDocuments(_CorpusStep):
    """Tokenises the documents of a task into the shard of its rank."""

    name = "hf_encoders: documents to a shard"

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> None:
        """Make the shard; there is no step after this one."""
        began, corpus = time.perf_counter(), self.corpus
        self._check_tasks(world_size, corpus.tasks, "tasks")
        encoder = partial(make_encoder, corpus.tokenizer, corpus.word_segmenter)
        reading = TextReading(corpus.sentence_splitter)
        documents = reading.documents(self._texts(data), 0)
        shards = start_shards(Path(corpus.output), corpus.settings())
        maker = ShardWriter(shards, _as_it_is, encoder, corpus.max_sentence_tokens, corpus.word_segmenter is not None)
        with one_core_a_process():
            size = maker.make(rank, documents, "")
        run = {"seconds": time.perf_counter() - began, "bytes": size}
        _run_path(shards, rank).write_text(json.dumps(run), encoding="utf-8")

    def _texts(self, data: Iterable[Document]) -> Iterator[str]:
        for document in data:
            self.stat_update("documents")
            yield document.text


class _MergeShards(_CorpusStep):
    """Merges the shards of a part into a corpus."""

    name = "hf_encoders: shards to a corpus"

    def run(self, data: Iterable[Document] | None = None, rank: int = 0, world_size: int = 1) -> None:
        """Make part `rank`."""
        corpus, output = self.corpus, Path(self.corpus.output)
        self._check_tasks(world_size, corpus.parts, "parts")
        settings, folder = corpus.settings(), corpus.folders()[rank]
        # An executor may start a task again whose first process still runs.
        with locked(folder, "output", wait=True):
            if not (folder / REPORT_FILE).exists() or not finished_report(folder, settings):
                self._merge(settings, folder, rank)
            if all((other / REPORT_FILE).exists() for other in corpus.folders()):
                # The task of another part may come to the same conclusion at the same time.
                shutil.rmtree(shards_folder(output, settings), ignore_errors=True)

    def _merge(self, settings: dict[str, Any], folder: Path, rank: int) -> None:
        """Make a part in its folder."""
        corpus = self.corpus
        began, shards = time.perf_counter(), shards_folder(Path(corpus.output), settings)
        missing = [task for task in range(corpus.tasks) if not shard_path(shards, task).exists()]
        if missing:
            raise ValueError(
                f"{len(missing)} of {corpus.tasks} shards are missing, of tasks {str(missing[:10])[1:-1]}"
                f"{' ...' if len(missing) > 10 else ''}: run the pipeline with tokenize() again before this one."
            )
        made = shards / f"part-{rank:05d}"
        made.mkdir(exist_ok=True)
        finish_corpus(self._make(settings, shards, made, rank, began), made, folder)

    def _make(self, settings: dict[str, Any], shards: Path, made: Path, rank: int, began: float) -> CorpusReport:
        """Write a part into folder `made`."""
        corpus, has_word_starts = self.corpus, self.corpus.word_segmenter is not None
        numbers = range(rank * corpus.tasks // corpus.parts, (rank + 1) * corpus.tasks // corpus.parts)
        is_first = first_of_each(shard_hashes(shards, corpus.tasks))
        statistics, fingerprint = merge_shards(
            shards, numbers, is_first, corpus.keep_duplicates, corpus.tokenizer, made, has_word_starts=has_word_starts
        )
        write_dataset_files(made, fingerprint)
        runs = [json.loads(_run_path(shards, number).read_text(encoding="utf-8")) for number in numbers]
        seconds = sum(run["seconds"] for run in runs) + time.perf_counter() - began
        megabytes = sum(run["bytes"] for run in runs) / 1e6
        run = {
            "seconds": round(seconds, 2),
            "workers": 1,  # as if one had done all
            "megabytes": round(megabytes, 3),
            "megabytes_per_second": round(megabytes / seconds, 3),
            "shards": len(numbers),
            "kept_shards": 0,
        }
        reading = shard_readings(shards, numbers)._asdict() | {"skipped_files": {}}
        return make_report(settings, statistics, reading, run)


def _as_it_is(documents: Iterable[list[str]]) -> Iterator[list[str]]:
    """The reader of a shard whose documents come already read."""
    return iter(documents)


def _run_path(shards: Path, number: int) -> Path:
    """How long a shard took, and of how much text it is."""
    return shard_path(shards, number).with_suffix(".run.json")
