"""A corpus made by tasks of datatrove is that of `prepare_corpus`."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor

from hf_encoders import prepare_corpus
from hf_encoders.corpus.datatrove import CorpusTasks
from tests.corpus.prepared import Killed, columns, rows, texts


FILES = 6


class ReadLines:
    """A reader of JSON lines, a file in turn a task, as datatrove's own; can be stopped at a task.

    datatrove's needs a package of its own for JSON.
    """

    def __init__(self, folder: Path, stop_at: int | None = None):
        self.folder = folder
        self.stop_at = stop_at

    def __call__(self, data, rank, world_size):
        for file in sorted(self.folder.iterdir())[rank::world_size]:
            for i, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
                if rank == self.stop_at and i == 3:
                    raise Killed
                yield Document(text=json.loads(line)["text"], id=f"{file.name}/{i}")


@pytest.fixture
def source(tmp_path):
    """Six files of 9 documents; 3 of each are in the file before too, and one has a character that is no text."""
    folder = tmp_path / "source"
    folder.mkdir()
    documents = [texts(12, seed)[3:] for seed in range(FILES)]
    for number, own in enumerate(documents):
        own = [*own[:6], *documents[number - 1][:3]] if number else own
        lines = [json.dumps({"text": text + (" \ufffd" if i == 5 else "")}) for i, text in enumerate(own)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def run(corpus: CorpusTasks, source: Path, logs: Path, stop_at: int | None = None, workers: int = 1) -> None:
    reader = ReadLines(source, stop_at)
    LocalPipelineExecutor([reader, corpus.tokenize()], corpus.tasks, workers, str(logs / "tokenize")).run()
    LocalPipelineExecutor([corpus.merge()], corpus.parts, workers, str(logs / "merge")).run()


@pytest.mark.parametrize(
    ("tasks", "workers"), [(FILES, 1), (4, 1), pytest.param(FILES, 2, marks=pytest.mark.processes)]
)
def test_it_is_the_corpus_of_prepare_corpus(tokenizer, tmp_path, source, tasks, workers):
    corpus = CorpusTasks(tmp_path / "out", tokenizer, "w", tasks, max_sentence_tokens=5)
    run(corpus, source, tmp_path / "logs", workers=workers)
    files = sorted(source.iterdir())
    in_order = [file for task in range(tasks) for file in files[task::tasks]]
    expected = prepare_corpus(in_order, tmp_path / "alone", tokenizer, max_sentence_tokens=5, workers=1)
    assert columns(tmp_path / "out") == columns(tmp_path / "alone")
    names = sorted(file.name for file in (tmp_path / "alone").iterdir())
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == names
    (report,) = corpus.reports()
    found, wanted = asdict(report), asdict(expected)
    for name in ("statistics", "warnings", "versions", "reading"):
        assert found[name] == wanted[name]
    assert report.statistics.dropped_duplicates == 3 * (FILES - 1)
    assert report.reading["damaged_sentences"] == FILES
    assert {name for name in wanted["settings"] if found["settings"][name] != wanted["settings"][name]} == {"source"}
    assert report.run["megabytes"] == expected.run["megabytes"]


def test_entities_and_phrases(tokenizer, tmp_path, source):
    lists = {"lexicon": ["w5 w6", "w7", "w8 zz", "w10 w11"], "phrases": ["w12 w13", "w20 w21"]}
    corpus = CorpusTasks(tmp_path / "out", tokenizer, "w", FILES, **lists)
    run(corpus, source, tmp_path / "logs")
    expected = prepare_corpus(sorted(source.iterdir()), tmp_path / "alone", tokenizer, workers=1, **lists)
    assert columns(tmp_path / "out") == columns(tmp_path / "alone")
    (report,) = corpus.reports()
    assert report.statistics == expected.statistics
    assert report.statistics.units["entities"]["number"] > 0
    assert report.reading["unspelled"] == {"lexicon": {"entries": 1, "first": ["w8 zz"]}}
    with pytest.raises(ValueError, match="phrases=True: give a list, such as the phrases that prepare_corpus learns"):
        CorpusTasks(tmp_path / "learned", tokenizer, "w", FILES, phrases=True)


def test_parts_are_the_corpus_in_order_without_duplicates_across_them(tokenizer, tmp_path, source):
    whole = CorpusTasks(tmp_path / "whole", tokenizer, "w", FILES)
    run(whole, source, tmp_path / "logs of one")
    corpus = CorpusTasks(tmp_path / "out", tokenizer, "w", FILES, parts=4)
    run(corpus, source, tmp_path / "logs of four")
    parts = [rows(folder) for folder in corpus.folders]
    assert [document for part in parts for document in part] == rows(tmp_path / "whole")
    assert min(map(len, parts)) > 0
    assert [report.statistics.dropped_duplicates for report in corpus.reports()] == [0, 6, 3, 6]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [f"part-0000{i}" for i in range(4)]
    # Finished: nothing is done again, and nothing is in the way.
    again = CorpusTasks(tmp_path / "out", tokenizer, "w", FILES, parts=4)
    LocalPipelineExecutor([again.merge()], 4, 1, str(tmp_path / "new logs")).run()


def test_a_killed_run_resumes(tokenizer, tmp_path, source):
    run(CorpusTasks(tmp_path / "whole", tokenizer, "w", FILES), source, tmp_path / "logs of whole")
    corpus, logs = CorpusTasks(tmp_path / "out", tokenizer, "w", FILES), tmp_path / "logs"
    with pytest.raises(Killed):
        run(corpus, source, logs, stop_at=3)
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("_unfinished/*/*.arrow")}
    assert [file.name for file in sorted(times)] == [f"0000000{i}.arrow" for i in range(3)]
    with pytest.raises(ValueError, match="3 of 6 tasks are missing: 3, 4, 5: run"):
        LocalPipelineExecutor([corpus.merge()], 1, 1, str(tmp_path / "too soon")).run()
    # As after a kill, in another process.
    corpus = CorpusTasks(tmp_path / "out", tokenizer, "w", FILES)
    LocalPipelineExecutor([ReadLines(source), corpus.tokenize()], FILES, 1, str(logs / "tokenize")).run()
    assert all(file.stat().st_mtime_ns == time for file, time in times.items())
    LocalPipelineExecutor([corpus.merge()], 1, 1, str(logs / "merge")).run()
    assert columns(tmp_path / "out") == columns(tmp_path / "whole")
    assert not (tmp_path / "out" / "_unfinished").exists()


def test_what_is_wrong_is_refused_before_any_task(tokenizer, make_tokenizer, tmp_path, source):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"parts=3 of tasks=2"):
        CorpusTasks(out, tokenizer, "w", 2, parts=3)
    with pytest.raises(ValueError, match=r"s3://bucket.*shared disk"):
        CorpusTasks("s3://bucket/corpus", tokenizer, "w", 2)
    corpus = CorpusTasks(out, tokenizer, "w", FILES)
    for step, name in ((corpus.tokenize(), "tasks=6"), (corpus.merge(), "parts=1")):
        with pytest.raises(ValueError, match=rf"{name}, but the executor has tasks=2"):
            step([], 0, 2)
    run(corpus, source, tmp_path / "logs")
    for other in ({"source": "w, cleaned"}, {"tasks": 5}, {"tokenizer": make_tokenizer(40)}):
        with pytest.raises(ValueError, match="holds a corpus made with other settings"):
            CorpusTasks(**{"output": out, "tokenizer": tokenizer, "source": "w", "tasks": FILES, **other})
