"""Corpus preparation on many machines: two steps for pipelines of datatrove, which runs tasks there.

datatrove reads, filters and distributes (one machine, Slurm, Ray). The first step tokenizes the documents of a task
into a shard, as a worker of `prepare_corpus` does; the second merges shards. Needs the extra `datatrove`, and a folder
that all machines share.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import DocumentReader
from hf_encoders.corpus.merge import finish_corpus, merge_shards, run_facts
from hf_encoders.corpus.preparation import one_core_per_process
from hf_encoders.corpus.report import REPORT_FILE, CorpusReport
from hf_encoders.corpus.segmentation import split_sentences
from hf_encoders.corpus.sentence_encoding import check_max_sentence_tokens, make_encoder
from hf_encoders.corpus.settings import corpus_settings, finished_report, shards_folder, start_shards
from hf_encoders.corpus.shards import ShardWriter, shard_path
from hf_encoders.corpus.units import Units
from hf_encoders.writing import locked


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

    With `parts=1`, the `corpus.arrow` is byte for byte that of `prepare_corpus` on the same documents in the order of
    the tasks; datatrove's readers give task `i` the files `i`, `i + tasks`, ... of the sorted ones. With more parts,
    `part-00000` and so on in `output` are such corpora, each merged by its own task; duplicates are left out over all.

    The executor runs killed tasks again; it finds the finished ones in its `logging_dir`. To start over, remove
    `output` and both logging folders.

    Args:
        output (`str` or `Path`): Folder on a disk that all tasks share. Takes 4 bytes per token in the end, three
            times that while the corpus is made.
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
        check_max_sentence_tokens(self.max_sentence_tokens)
        if not 1 <= self.parts <= self.tasks:
            raise ValueError(
                f"parts={self.parts} of tasks={self.tasks}: use 1 or more, and at least one task per part."
            )
        if "://" in str(self.output):
            raise ValueError(f"output={str(self.output)!r}: shards are memory mapped: name a folder on a shared disk.")
        if isinstance(self.phrases, bool):
            raise ValueError(f"phrases={self.phrases}: give a list, such as the phrases that prepare_corpus learns.")
        # Refuses a tokenizer that cannot be used before any work.
        make_encoder(self.tokenizer, self.word_segmenter, self.units.marker)
        settings = self.settings()
        finished = [finished_report(folder, settings) for folder in self.folders() if (folder / REPORT_FILE).exists()]
        if len(finished) < self.parts:
            finished_report(Path(self.output), settings)

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is in the corpus."""
        source = {"pipeline": self.source, "tasks": self.tasks, "parts": self.parts}
        documents = DocumentReader(self.sentence_splitter)
        return corpus_settings(
            source,
            documents,
            self.tokenizer,
            self.word_segmenter,
            self.max_sentence_tokens,
            self.keep_duplicates,
            self.units.settings(),
        )

    @cached_property
    def units(self) -> Units:
        """What the column `word_starts` marks."""
        phrases = False if self.phrases is None else self.phrases
        return Units(self.tokenizer, self.word_segmenter is not None, self.lexicon, phrases)

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
    name = "hf_encoders: documents to a shard"

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> None:
        """Write the shard of task `rank`."""
        began, corpus = time.perf_counter(), self.corpus
        self._check_tasks(world_size, corpus.tasks, "tasks")
        documents = DocumentReader(corpus.sentence_splitter).of_values(self._texts(data))
        shards = start_shards(Path(corpus.output), corpus.settings())
        encoder = partial(make_encoder, corpus.tokenizer, corpus.word_segmenter, corpus.units.marker)
        writer = ShardWriter(shards, iter, encoder, corpus.max_sentence_tokens, corpus.units.are_marked)
        with one_core_per_process():
            size = writer.write(rank, documents, "")
        run = {"seconds": time.perf_counter() - began, "bytes": size}
        _run_path(shards, rank).write_text(json.dumps(run), encoding="utf-8")

    def _texts(self, data: Iterable[Document]) -> Iterator[str]:
        for document in data:
            self.stat_update("documents")
            yield document.text


class _MergeShards(_CorpusStep):
    name = "hf_encoders: shards to a corpus"

    def run(self, data: Iterable[Document] | None = None, rank: int = 0, world_size: int = 1) -> None:
        """Make part `rank`."""
        corpus = self.corpus
        self._check_tasks(world_size, corpus.parts, "parts")
        settings, folder = corpus.settings(), corpus.folders()[rank]
        shards = shards_folder(Path(corpus.output), settings)
        # An executor may restart a task whose first process is still running.
        with locked(folder, "output", wait=True):
            if not (folder / REPORT_FILE).exists() or not finished_report(folder, settings):
                self._merge(settings, shards, folder, rank)
            if all((other / REPORT_FILE).exists() for other in corpus.folders()):
                # The task of another part may do the same at the same time.
                shutil.rmtree(shards, ignore_errors=True)

    def _merge(self, settings: dict[str, Any], shards: Path, folder: Path, rank: int) -> None:
        began, corpus = time.perf_counter(), self.corpus
        missing = [task for task in range(corpus.tasks) if not shard_path(shards, task).exists()]
        if missing:
            raise ValueError(
                f"{len(missing)} of {corpus.tasks} shards are missing, of tasks {str(missing[:10])[1:-1]}"
                f"{' ...' if len(missing) > 10 else ''}: run the pipeline with tokenize() again before this one."
            )
        made = shards / f"part-{rank:05d}"
        made.mkdir(exist_ok=True)
        numbers = range(rank * corpus.tasks // corpus.parts, (rank + 1) * corpus.tasks // corpus.parts)
        duplicates, tokenizer = corpus.keep_duplicates, corpus.tokenizer
        statistics, read = merge_shards(shards, numbers, corpus.tasks, duplicates, tokenizer, made, units=corpus.units)
        runs = [json.loads(_run_path(shards, number).read_text(encoding="utf-8")) for number in numbers]
        seconds = sum(run["seconds"] for run in runs) + time.perf_counter() - began
        # As if one worker had done everything.
        run = run_facts(seconds, 1, sum(run["bytes"] for run in runs), len(numbers))
        finish_corpus(settings, statistics, read | {"skipped_files": {}}, run, made, folder)


def _run_path(shards: Path, number: int) -> Path:
    """How long a shard took, and the size of its text."""
    return shard_path(shards, number).with_suffix(".run.json")
