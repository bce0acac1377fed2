"""Several processes that make one corpus at once: one works, the others wait, and nobody for ever."""

import multiprocessing
import os
import signal
import threading
import time

import datasets
import pytest

from hf_encoders.corpus import preparation, sources
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.shards import ShardWriter
from hf_encoders.writing import locked
from tests.corpus.prepared import arrow_bytes, rows, texts, write_text


FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    monkeypatch.setattr(sources, "BYTES_PER_UNIT", 300)


# Processes that are still to come: no shard is written before.
AWAITED = FORK.Value("i", 0)


@pytest.fixture
def slow(monkeypatch):
    """Shards take a while, so that processes meet; counts them, in all processes."""
    make, made = ShardWriter.write, FORK.Value("i", 0)

    def slowly(maker, *part):
        while AWAITED.value:
            time.sleep(0.01)
        time.sleep(0.02)
        with made.get_lock():
            made.value += 1
        return make(maker, *part)

    monkeypatch.setattr(ShardWriter, "write", slowly)
    return made


def prepare_later(delay, results, *arguments, **options):
    time.sleep(delay)
    with AWAITED.get_lock():
        AWAITED.value -= 1
    try:
        report = prepare_corpus(*arguments, workers=1, **options)
        results.put((report.statistics.tokens, len(rows(arguments[1]))))
    except BaseException as error:
        results.put(repr(error))
        raise


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 0.05, 0.2])
@pytest.mark.parametrize("kind", ["files", "stream", "overwrite"])
def test_one_makes_the_corpus_and_the_others_use_it(tokenizer, tmp_path, slow, delay, kind):
    source = [write_text(tmp_path / "a.txt", texts(60))]
    if kind == "stream":
        source = datasets.Dataset.from_dict({"text": texts(60)}).to_iterable_dataset()
    options = {"overwrite": True} if kind == "overwrite" else {}
    report = prepare_corpus(source, tmp_path / "alone", tokenizer, workers=1)
    expected, num_shards = (report.statistics.tokens, len(rows(tmp_path / "alone"))), slow.value
    if kind == "overwrite":
        prepare_corpus(source, tmp_path / "out", tokenizer, workers=1)
    slow.value, results = 0, FORK.Queue()
    processes = [
        FORK.Process(
            target=prepare_later, args=(delay * i, results, source, tmp_path / "out", tokenizer), kwargs=options
        )
        for i in range(3)
    ]
    # Whoever came when the corpus of a stream is finished would be refused: what a stream gives is not known again.
    AWAITED.value = len(processes)
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert found == [expected] * 3
    # One that is to overwrite, and comes when another has finished, makes it again.
    assert slow.value == num_shards or (kind == "overwrite" and slow.value % num_shards == 0), "made once"
    assert arrow_bytes(tmp_path / "out") == arrow_bytes(tmp_path / "alone")
    assert not list((tmp_path / "out").glob("shards-*"))


@pytest.mark.slow
def test_a_killed_process_does_not_keep_the_lock(tokenizer, tmp_path, slow, capsys):
    source, results = [write_text(tmp_path / "a.txt", texts(60))], FORK.Queue()
    AWAITED.value = 1
    first = FORK.Process(target=prepare_later, args=(0, results, source, tmp_path / "out", tokenizer))
    first.start()
    while slow.value < 5:
        time.sleep(0.01)
    waiting = threading.Timer(0.2, os.kill, (first.pid, signal.SIGKILL))
    waiting.start()
    report = prepare_corpus(source, tmp_path / "out", tokenizer, workers=1)
    first.join()
    assert first.exitcode == -signal.SIGKILL
    assert report.run["kept_shards"] >= 4, "what it had finished is used"
    assert "Waiting for another process that is writing to" in capsys.readouterr().err
    prepare_corpus(source, tmp_path / "alone", tokenizer, workers=1)
    assert arrow_bytes(tmp_path / "out") == arrow_bytes(tmp_path / "alone")


def test_a_killed_process_and_its_workers_do_not_keep_the_lock(tokenizer, tmp_path, slow):
    source = [write_text(tmp_path / "a.txt", texts(60))]
    first = FORK.Process(target=prepare_corpus, args=(source, tmp_path / "out", tokenizer), kwargs={"workers": 2})
    first.start()
    while slow.value < 5:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    began = time.monotonic()
    assert prepare_corpus(source, tmp_path / "out", tokenizer, workers=1).statistics.documents == 60
    assert time.monotonic() - began < 60


def test_other_settings_are_refused_after_the_wait(tokenizer, tmp_path, slow):
    source, results = [write_text(tmp_path / "a.txt", texts(60))], FORK.Queue()
    AWAITED.value = 1
    first = FORK.Process(target=prepare_later, args=(0, results, source, tmp_path / "out", tokenizer))
    first.start()
    while slow.value < 2:
        time.sleep(0.01)
    with pytest.raises(ValueError, match="unfinished corpus made with other settings:\n- keep_duplicates"):
        prepare_corpus(source, tmp_path / "out", tokenizer, keep_duplicates=True)
    assert isinstance(results.get(timeout=60), tuple)
    first.join()


def test_a_finished_corpus_is_read_without_the_lock(tokenizer, tmp_path, monkeypatch):
    source = [write_text(tmp_path / "a.txt", texts(3))]
    report = prepare_corpus(source, tmp_path / "out", tokenizer, workers=1)
    monkeypatch.setattr(preparation, "locked", None)  # on a disk that is read-only there is none
    assert prepare_corpus(source, tmp_path / "out", tokenizer) == report


def test_who_does_not_wait_is_reported(tmp_path):
    with (
        locked(tmp_path / "out", "--output", wait=False),
        pytest.raises(ValueError, match="--output '.*out': another process writes there"),
        locked(tmp_path / "out", "--output", wait=False),
    ):
        pass
    with locked(tmp_path / "out", "--output", wait=False):
        pass
