"""Finished shards of a corpus that is being made: workers write them, one merge reads them.

A shard has its name only when it is complete, so that a run that was killed at any moment can go on with what is
there.
"""

import gc
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hf_encoders.data.corpus.arrow_file import SentenceBatch, block_of, corpus_schema, record_batch
from hf_encoders.data.corpus.report import hashes_of_block
from hf_encoders.data.corpus.sentence_encoding import Encoded, tokenized_blocks


HASHES = "document_hash"
_TEXT_DIGEST = b"text_digest"


class ShardWriter:
    """Reads, tokenises and writes one shard after the other.

    Args:
        directory (`Path`): Folder of the shards.
        read (`Callable`): The reader of a source.
        make_encoder (`Callable[[], Callable[[list[str]], Encoded]]`): Called once in each process.
        max_sentence_tokens (`int`, *optional*): As for `tokenize_documents`.
        has_word_starts (`bool`): Whether the encoder gives them.
    """

    def __init__(
        self,
        directory: Path,
        read: Callable[[Any], Iterator[list[str]]],
        make_encoder: Callable[[], Callable[[list[str]], Encoded]],
        max_sentence_tokens: int | None,
        has_word_starts: bool,
    ):
        self.directory = directory
        self.read = read
        self.make_encoder = make_encoder
        self.max_sentence_tokens = max_sentence_tokens
        self.has_word_starts = has_word_starts
        self._encode: Callable[[list[str]], Encoded] | None = None

    def make(self, number: int, part: Any, text_digest: str) -> int:
        """Make shard `number` of a part of the source; the bytes of its sentences in UTF-8."""
        if self._encode is None:
            self._encode = self.make_encoder()
        path = shard_path(self.directory, number)
        unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
        documents = _CountedDocuments(self.read(part))
        schema = corpus_schema(self.has_word_starts)
        schema = schema.append(pa.field(HASHES, pa.uint64())).with_metadata({_TEXT_DIGEST: text_digest})
        with pa.OSFile(str(unfinished), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for block in tokenized_blocks(documents, self._encode, self.max_sentence_tokens):
                columns = [*record_batch(block).columns, pa.array(hashes_of_block(block))]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        path.with_suffix(".json").write_text(json.dumps(documents.reading._asdict()), encoding="utf-8")
        os.replace(unfinished, path)
        return documents.bytes


class Reading(NamedTuple):
    """What was read, counted before anything is left out."""

    sentences: int = 0
    damaged_sentences: int = 0  # with a U+FFFD, which bytes that are not UTF-8 become, or a NUL

    def with_document(self, document: list[str]) -> "Reading":
        """The counts with one more document."""
        text, damaged = "".join(document), 0
        if "\ufffd" in text or "\0" in text:
            damaged = sum("\ufffd" in sentence or "\0" in sentence for sentence in document)
        return Reading(self.sentences + len(document), self.damaged_sentences + damaged)


class _CountedDocuments:
    """Documents on their way, and the bytes of their sentences."""

    def __init__(self, documents: Iterable[list[str]]):
        self.documents = documents
        self.bytes = 0
        self.reading = Reading()

    def __iter__(self) -> Iterator[list[str]]:
        for document in self.documents:
            self.bytes += len("".join(document).encode("utf-8", "surrogatepass"))
            self.reading = self.reading.with_document(document)
            yield document


def shard_path(directory: Path, number: int) -> Path:
    """Where a finished shard is."""
    return directory / f"{number:08d}.arrow"


def is_finished(directory: Path, number: int, text_digest: str) -> bool:
    """Whether a shard is there.

    Raises:
        ValueError: If it was made of other text.
    """
    path = shard_path(directory, number)
    if not path.exists():
        return False
    with pa.memory_map(str(path)) as file:
        found = pa.ipc.open_stream(file).schema.metadata[_TEXT_DIGEST].decode()
    if found != text_digest:
        raise ValueError(
            f"source: the streaming data set gives other text than in the run that '{directory.parent}' was begun "
            "with: give it the same order (no shuffle without a seed), or begin anew with overwrite=True "
            "(--overwrite)."
        )
    return True


def shard_hashes(directory: Path, num_shards: int) -> list[np.ndarray]:
    """The hash of every document, `uint64`, an array a shard."""
    hashes = []
    for number in range(num_shards):
        with pa.memory_map(str(shard_path(directory, number))) as file:
            of_batches = [batch.column(HASHES).to_numpy().copy() for batch in pa.ipc.open_stream(file)]
        hashes.append(np.concatenate([np.empty(0, dtype=np.uint64), *of_batches]))
    return hashes


def shard_readings(directory: Path, numbers: range) -> Reading:
    """What was read for some shards."""
    files = (shard_path(directory, number).with_suffix(".json") for number in numbers)
    readings = [Reading(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return Reading(*map(sum, zip(*readings, strict=True))) if readings else Reading()


def shard_blocks(directory: Path, number: int) -> Iterator[SentenceBatch]:
    """The blocks of one shard."""
    with pa.memory_map(str(shard_path(directory, number))) as file:
        for batch in pa.ipc.open_stream(file):
            yield block_of(batch)


_maker: ShardWriter | None = None  # of a worker process


def start_worker(maker: ShardWriter) -> None:
    """Make this process a worker."""
    global _maker
    _maker = maker
    # An interrupt from the keyboard goes to all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The garbage collector would look through all that was inherited, and so copy its memory.
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def write_shard(number: int, part: Any, text_digest: str) -> int:
    """`ShardWriter.make` in a worker."""
    return _maker.make(number, part, text_digest)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent_process().join()
    os._exit(1)
