"""Shards of a corpus in preparation: workers write them, `merge.py` reads them.

A shard gets its name only when it is complete, so that a run killed at any moment resumes from what is there.
"""

import gc
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hf_encoders.corpus.arrow_file import SentenceBatch, block_of, corpus_schema, record_batch
from hf_encoders.corpus.report import document_hashes
from hf_encoders.corpus.sentence_encoding import Encoded, tokenized_blocks


HASHES = "document_hash"
_TEXT_DIGEST = b"text_digest"


class Reading(NamedTuple):
    """Counts of what was read, before anything is left out."""

    sentences: int = 0
    damaged_sentences: int = 0  # with U+FFFD (bytes that are not UTF-8 become it) or NUL

    def with_document(self, document: list[str]) -> "Reading":
        """The counts with one more document."""
        text, damaged = "".join(document), 0
        if "\ufffd" in text or "\0" in text:
            damaged = sum("\ufffd" in sentence or "\0" in sentence for sentence in document)
        return Reading(self.sentences + len(document), self.damaged_sentences + damaged)


@dataclass
class ShardWriter:
    """Reads, tokenizes and writes one shard after the other; `make_encoder` is called once in each process."""

    directory: Path
    read: Callable[[Any], Iterable[list[str]]]
    make_encoder: Callable[[], Callable[[list[str]], Encoded]]
    max_sentence_tokens: int | None
    has_word_starts: bool
    are_turns: bool = False
    _encode: Callable[[list[str]], Encoded] | None = None

    def write(self, number: int, part: Any, text_digest: str) -> int:
        """Write shard `number` from a part of the source; returns the UTF-8 bytes of its sentences."""
        if self._encode is None:
            self._encode = self.make_encoder()
        path = shard_path(self.directory, number)
        unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
        size, reading = 0, Reading()

        def counted() -> Iterator[list[str]]:
            nonlocal size, reading
            for document in self.read(part):
                size += len("".join(document).encode("utf-8", "surrogatepass"))
                reading = reading.with_document(document)
                yield document

        schema = corpus_schema(self.has_word_starts)
        schema = schema.append(pa.field(HASHES, pa.uint64())).with_metadata({_TEXT_DIGEST: text_digest})
        with pa.OSFile(str(unfinished), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for block in tokenized_blocks(counted(), self._encode, self.max_sentence_tokens, self.are_turns):
                columns = [*record_batch(block).columns, pa.array(document_hashes(block))]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        path.with_suffix(".json").write_text(json.dumps(reading._asdict()), encoding="utf-8")
        os.replace(unfinished, path)
        return size


def shard_path(directory: Path, number: int) -> Path:
    """Where a finished shard is."""
    return directory / f"{number:08d}.arrow"


def is_finished(directory: Path, number: int, text_digest: str) -> bool:
    """Whether a shard is finished; one made from other text is a `ValueError`."""
    path = shard_path(directory, number)
    if not path.exists():
        return False
    with pa.memory_map(str(path)) as file:
        found = pa.ipc.open_stream(file).schema.metadata[_TEXT_DIGEST].decode()
    if found != text_digest:
        raise ValueError(
            f"source: the streaming dataset gives other text than in the run that began '{directory.parent}': give it "
            "the same order (no shuffle without a seed), or start over with overwrite=True (--overwrite)."
        )
    return True


def shard_hashes(directory: Path, num_shards: int) -> list[np.ndarray]:
    """The hash of every document, one `uint64` array per shard."""
    hashes = []
    for number in range(num_shards):
        with pa.memory_map(str(shard_path(directory, number))) as file:
            of_batches = [batch.column(HASHES).to_numpy().copy() for batch in pa.ipc.open_stream(file)]
        hashes.append(np.concatenate([np.empty(0, dtype=np.uint64), *of_batches]))
    return hashes


def shard_readings(directory: Path, numbers: range) -> Reading:
    """What was read for some shards, added up."""
    files = (shard_path(directory, number).with_suffix(".json") for number in numbers)
    readings = [Reading(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return Reading(*map(sum, zip(*readings, strict=True))) if readings else Reading()


def shard_blocks(directory: Path, number: int) -> Iterator[SentenceBatch]:
    """The documents of one shard, block by block."""
    with pa.memory_map(str(shard_path(directory, number))) as file:
        for batch in pa.ipc.open_stream(file):
            yield block_of(batch)


_writer: ShardWriter | None = None  # of a worker process


def start_worker(writer: ShardWriter) -> None:
    """Initialise a worker process."""
    global _writer
    _writer = writer
    # Ctrl-C reaches all processes; the main process ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Garbage collection would touch, and so copy, the memory inherited from the main process.
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def write_shard(number: int, part: Any, text_digest: str) -> int:
    """`ShardWriter.write` in a worker process."""
    return _writer.write(number, part, text_digest)


def _end_with_parent() -> None:
    """Without this, a worker would wait for work for ever after its parent was killed."""
    parent_process().join()
    os._exit(1)
