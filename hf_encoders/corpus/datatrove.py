"""Corpus preparation on many machines: two steps for pipelines of datatrove, which runs tasks there.

datatrove reads, filters and distributes (one machine, Slurm, Ray). The first step tokenizes the documents of a task
into an Arrow file, as a worker of `prepare_corpus` does; the second joins files. Needs the extra `datatrove`, and a
folder that all machines share.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
from datasets.arrow_writer import ArrowWriter
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import split_sentences
from hf_encoders.corpus.preparation import (
    Finishing,
    corpus_settings,
    document_table,
    duplicates_of,
    features_of,
    finish_corpus,
    finished_report,
    one_core_per_process,
    settings_hash,
)
from hf_encoders.corpus.report import REPORT_FILE, CorpusReport
from hf_encoders.corpus.tokenized import DocumentTokenizer, document_batches
from hf_encoders.writing import UNFINISHED, locked


try:
    from datatrove.data import Document
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise ImportError("CorpusTasks needs datatrove: pip install 'hf_encoders[datatrove]'.") from error


@dataclass(frozen=True)
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
        parts (`int`, *optional*, defaults to 1): Corpora to make, and tasks of the second pipeline.
        sentence_splitter, word_segmenter, lexicon, phrases, max_sentence_tokens, keep_duplicates: As in
            `prepare_corpus`. Each task of the merge needs 24 bytes of memory per document of all parts. Phrases are
            given, not learned: parts are merged by themselves.
    """

    output: str | Path
    tokenizer: PreTrainedTokenizerBase
    source: str
    tasks: int
    parts: int = 1
    sentence_splitter: Callable[[str], list[str]] = split_sentences
    word_segmenter: Callable[[str], list[str]] | None = None
    lexicon: Sequence[str] | None = None
    phrases: Sequence[str] | None = None
    max_sentence_tokens: int | None = None
    keep_duplicates: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= self.tasks:
            raise ValueError(
                f"parts={self.parts} of tasks={self.tasks}: use 1 or more, and at least one task per part."
            )
        if "://" in str(self.output):
            raise ValueError(f"output={str(self.output)!r}: files are memory mapped: name a folder on a shared disk.")
        if isinstance(self.phrases, bool):
            raise ValueError(f"phrases={self.phrases}: give a list, such as the phrases that prepare_corpus learns.")
        settings = self.settings()
        finished = [finished_report(folder, settings) for folder in self.folders() if (folder / REPORT_FILE).exists()]
        if len(finished) < self.parts:
            finished_report(Path(self.output), settings)

    @cached_property
    def tokenizing(self) -> DocumentTokenizer:
        """The function that tokenizes documents."""
        return DocumentTokenizer(
            self.tokenizer,
            sentence_splitter=self.sentence_splitter,
            word_segmenter=self.word_segmenter,
            lexicon=self.lexicon,
            phrases=False if self.phrases is None else self.phrases,
            max_sentence_tokens=self.max_sentence_tokens,
        )

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is in the corpus."""
        source = {"pipeline": self.source, "tasks": self.tasks, "parts": self.parts}
        return corpus_settings(source, self.tokenizer, self.tokenizing, self.keep_duplicates)

    def task_folder(self) -> Path:
        """Folder of the files of the tasks."""
        return Path(self.output) / UNFINISHED / settings_hash(self.settings())

    def folders(self) -> list[Path]:
        """Folders of the finished corpora."""
        output = Path(self.output)
        return [output] if self.parts == 1 else [output / f"part-{number:05d}" for number in range(self.parts)]

    def reports(self) -> list[CorpusReport]:
        """The reports of the finished corpora; `run` adds up the seconds of all tasks."""
        return [CorpusReport.load(folder) for folder in self.folders()]

    def tokenize(self) -> PipelineStep:
        """The last step of the pipeline that reads documents."""
        return _TokenizeDocuments(self)

    def merge(self) -> PipelineStep:
        """The only step of the second pipeline."""
        return _JoinTasks(self)


class _CorpusStep(PipelineStep):
    type = "🔢 - TOKENIZER"

    def __init__(self, corpus: CorpusTasks):
        super().__init__()
        self.corpus = corpus

    def _check_tasks(self, world_size: int, expected: int, name: str) -> None:
        if world_size != expected:
            raise ValueError(f"{name}={expected}, but the executor has tasks={world_size}: give both the same number.")


class _TokenizeDocuments(_CorpusStep):
    name = "hf_encoders: documents to token ids"

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> None:
        """Write the file of task `rank`."""
        began, corpus = time.perf_counter(), self.corpus
        self._check_tasks(world_size, corpus.tasks, "tasks")
        folder, tokenize = corpus.task_folder(), corpus.tokenizing
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = _task_file(folder, rank).with_suffix(f".{os.getpid()}")
        features = features_of(tokenize)
        with one_core_per_process(), ArrowWriter(path=str(unfinished), features=features) as writer:
            writer.write_table(features.arrow_schema.empty_table())  # a task may have no document
            for documents in document_batches(self._sentences(data)):
                writer.write_table(document_table(tokenize, documents))
            writer.finalize()
        seconds = {"seconds": time.perf_counter() - began}
        _task_file(folder, rank).with_suffix(".json").write_text(json.dumps(seconds), encoding="utf-8")
        os.replace(unfinished, _task_file(folder, rank))

    def _sentences(self, data: Iterable[Document]) -> Iterator[list[str]]:
        for document in data:
            self.stat_update("documents")
            yield self.corpus.tokenizing.reader.sentences([document.text])


class _JoinTasks(_CorpusStep):
    name = "hf_encoders: token ids to a corpus"

    def run(self, data: Iterable[Document] | None = None, rank: int = 0, world_size: int = 1) -> None:
        """Make part `rank`."""
        corpus = self.corpus
        self._check_tasks(world_size, corpus.parts, "parts")
        settings, folder = corpus.settings(), corpus.folders()[rank]
        # An executor may restart a task whose first process is still running.
        with locked(folder, "output", wait=True):
            if not (folder / REPORT_FILE).exists() or not finished_report(folder, settings):
                self._join(settings, folder, rank)
            if all((other / REPORT_FILE).exists() for other in corpus.folders()):
                # The task of another part may do the same at the same time.
                shutil.rmtree(Path(corpus.output) / UNFINISHED, ignore_errors=True)

    def _join(self, settings: dict[str, Any], output: Path, rank: int) -> None:
        began, corpus, folder = time.perf_counter(), self.corpus, self.corpus.task_folder()
        files = [_task_file(folder, task) for task in range(corpus.tasks)]
        missing = [task for task, file in enumerate(files) if not file.exists()]
        if missing:
            raise ValueError(
                f"{len(missing)} of {corpus.tasks} tasks are missing: {str(missing[:10])[1:-1]}"
                f"{' ...' if len(missing) > 10 else ''}: run the pipeline with tokenize() again before this one."
            )
        tokenized = datasets.concatenate_datasets([datasets.Dataset.from_file(str(file)) for file in files])
        is_duplicate = duplicates_of(tokenized)
        first, last = (part * corpus.tasks // corpus.parts for part in (rank, rank + 1))
        sizes = [len(datasets.Dataset.from_file(str(file))) for file in files]
        rows = range(sum(sizes[:first]), sum(sizes[:last]))
        seconds = [json.loads(file.with_suffix(".json").read_text())["seconds"] for file in files[first:last]]
        made = folder / f"part-{rank:05d}"
        made.mkdir(exist_ok=True)
        finish_corpus(
            # The seconds are as if one worker had done everything.
            Finishing(
                settings, corpus.tokenizer, corpus.tokenizing, corpus.keep_duplicates, {}, began - sum(seconds), 1
            ),
            tokenized.select(rows),
            is_duplicate[rows.start : rows.stop],
            made,
            output,
        )


def _task_file(folder: Path, task: int) -> Path:
    return folder / f"{task:08d}.arrow"
