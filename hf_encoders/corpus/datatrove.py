"""Corpus preparation on many machines: two steps for pipelines of datatrove, which runs tasks there.

datatrove reads, filters and distributes (one machine, Slurm, Ray). The first step tokenizes the documents of a task
into an Arrow file, as a worker of `prepare_corpus` does; the second joins files. Needs a folder that all machines
share.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets
from datasets.arrow_writer import ArrowWriter
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.preparation import (
    document_table,
    duplicates_of,
    features_of,
    finish_corpus,
    finished_report,
    one_core_per_process,
)
from hf_encoders.corpus.report import REPORT_FILE, CorpusReport, corpus_settings, settings_hash
from hf_encoders.corpus.tokenized import DocumentTokenizer, document_batches
from hf_encoders.writing import UNFINISHED, locked


class CorpusTasks:
    """A corpus made by tasks of datatrove: `tokenize()` ends one pipeline, `merge()` is the next one.

    ```python
    corpus = CorpusTasks("corpus", tokenizer, source="news, filtered 2026-11", tasks=2000, parts=64)
    steps = [JsonlReader("news/"), corpus.tokenize()]
    making = SlurmPipelineExecutor(steps, tasks=2000, logging_dir="logs/tokenize", ...)
    SlurmPipelineExecutor([corpus.merge()], tasks=64, logging_dir="logs/merge", depends=making, ...).run()
    ```

    With `parts=1`, the rows are those of `prepare_corpus` on the same documents in the order of the tasks; datatrove's
    readers give task `i` the files `i`, `i + tasks`, ... of the sorted ones. With more parts, `part-00000` and so on
    in `output` are such corpora, each joined by its own task; duplicates are left out over all.

    The executor runs killed tasks again; it finds the finished ones in its `logging_dir`. To start over, remove
    `output` and both logging folders.

    Args:
        output (`str` or `Path`): Folder on a disk that all tasks share. Takes 4 bytes per token in the end, twice
            that while the corpus is made.
        tokenizer (`PreTrainedTokenizerBase`): Any tokenizer.
        source (`str`): Name of the documents, for the report. Change it whenever the output of the pipeline changes:
            nothing else shows that an unfinished corpus is of other documents.
        tasks (`int`): Tasks of the first pipeline. A kill loses one task, so that about 100 MB of text each is a good
            size.
        parts (`int`, *optional*, defaults to 1): Corpora to make, and tasks of the second pipeline. Each of these
            needs 24 bytes of memory per document of all parts.
        keep_duplicates (`bool`, *optional*, defaults to `False`): As in `prepare_corpus`.
        options: `sentence_splitter`, `word_segmenter`, `lexicon`, `phrases`, `max_sentence_tokens` of
            `prepare_corpus`. Phrases are given, not learned: parts are merged by themselves.
    """

    def __init__(
        self,
        output: str | Path,
        tokenizer: PreTrainedTokenizerBase,
        source: str,
        tasks: int,
        parts: int = 1,
        keep_duplicates: bool = False,
        **options: Any,
    ):
        if not 1 <= parts <= tasks:
            raise ValueError(f"parts={parts} of tasks={tasks}: use 1 or more, and at least one task per part.")
        if "://" in str(output):
            raise ValueError(f"output={str(output)!r}: files are memory mapped: name a folder on a shared disk.")
        if isinstance(options.get("phrases"), bool):
            raise ValueError(
                f"phrases={options['phrases']}: give a list, such as the phrases that prepare_corpus learns."
            )
        self.output, self.tasks, self.parts = Path(output), tasks, parts
        self.document_tokenizer = DocumentTokenizer(tokenizer, **options)
        identity = {"pipeline": source, "tasks": tasks, "parts": parts}
        self.settings = corpus_settings(identity, self.document_tokenizer, keep_duplicates)
        self.task_folder = self.output / UNFINISHED / settings_hash(self.settings)
        self.folders = [self.output] if parts == 1 else [self.output / f"part-{part:05d}" for part in range(parts)]
        finished = [finished_report(folder, self.settings) for folder in self.folders if _is_finished(folder)]
        if len(finished) < parts:
            finished_report(self.output, self.settings)

    def reports(self) -> list[CorpusReport]:
        """Return the reports of the finished corpora; `run` adds up the seconds of all tasks."""
        return [CorpusReport.load(folder) for folder in self.folders]

    def tokenize(self) -> Callable[..., None]:
        """Return the last step of the pipeline that reads documents."""
        return self._tokenize

    def merge(self) -> Callable[..., None]:
        """Return the only step of the second pipeline."""
        return self._merge

    def _task_file(self, task: int) -> Path:
        return self.task_folder / f"{task:08d}.arrow"

    def _tokenize(self, data: Iterable[Any], rank: int = 0, world_size: int = 1) -> None:
        """Write the file of a task; `data` are documents of datatrove."""
        began, tokenize, file = time.perf_counter(), self.document_tokenizer, self._task_file(rank)
        _check_tasks(world_size, self.tasks, "tasks")
        self.task_folder.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        features = features_of(tokenize)
        with one_core_per_process(), ArrowWriter(path=str(unfinished), features=features) as writer:
            writer.write_table(features.arrow_schema.empty_table())  # a task may have no document
            for documents in document_batches(tokenize.reader.sentences([document.text]) for document in data):
                writer.write_table(document_table(tokenize, documents))
            writer.finalize()
        seconds = {"seconds": time.perf_counter() - began}
        file.with_suffix(".json").write_text(json.dumps(seconds), encoding="utf-8")
        os.replace(unfinished, file)

    def _merge(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        """Make a part."""
        _check_tasks(world_size, self.parts, "parts")
        # An executor may restart a task whose first process is still running.
        with locked(self.folders[rank], "output", wait=True):
            if not _is_finished(self.folders[rank]) or not finished_report(self.folders[rank], self.settings):
                self._join(rank)
            if all(map(_is_finished, self.folders)):
                # The task of another part may do the same at the same time.
                shutil.rmtree(self.output / UNFINISHED, ignore_errors=True)

    def _join(self, part: int) -> None:
        began, files = time.perf_counter(), [self._task_file(task) for task in range(self.tasks)]
        missing = [task for task, file in enumerate(files) if not file.exists()]
        if missing:
            raise ValueError(
                f"{len(missing)} of {self.tasks} tasks are missing: {str(missing[:10])[1:-1]}"
                f"{' ...' if len(missing) > 10 else ''}: run the pipeline with tokenize() again before this one."
            )
        tables = [datasets.Dataset.from_file(str(file)) for file in files]
        tokenized = datasets.concatenate_datasets(tables)
        first, last = (number * self.tasks // self.parts for number in (part, part + 1))
        begin, end = (sum(map(len, tables[:task])) for task in (first, last))
        seconds = [json.loads(file.with_suffix(".json").read_text())["seconds"] for file in files[first:last]]
        made = self.task_folder / f"part-{part:05d}"
        made.mkdir(exist_ok=True)
        finish_corpus(
            tokenized.select(range(begin, end)),
            duplicates_of(tokenized)[begin:end],
            made,
            self.folders[part],
            tokenize=self.document_tokenizer,
            settings=self.settings,
            skipped_files={},
            began=began - sum(seconds),  # as if one worker had done everything
            workers=1,
        )


def _is_finished(folder: Path) -> bool:
    return (folder / REPORT_FILE).exists()


def _check_tasks(world_size: int, expected: int, name: str) -> None:
    if world_size != expected:
        raise ValueError(f"{name}={expected}, but the executor has tasks={world_size}: give both the same number.")
