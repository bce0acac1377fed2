"""Finished shards to one corpus in a folder: duplicates are left out, the rest goes into one Arrow file."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.utils import tqdm
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.arrow_file import ARROW_FILE, SentenceBatch, chosen_documents, write_arrow_file
from hf_encoders.corpus.report import (
    REPORT_FILE,
    CorpusReport,
    CorpusStatistics,
    StatisticsCounter,
    reading_warnings,
    warnings_for,
)
from hf_encoders.corpus.settings import library_versions
from hf_encoders.corpus.shards import shard_blocks, shard_hashes, shard_readings
from hf_encoders.corpus.tokenized import NO_TOKENS
from hf_encoders.corpus.units import (
    PHRASES_FILE,
    Collocations,
    Lexicon,
    Units,
    mark_phrases,
    unit_warnings,
    write_phrases,
)


def first_of_each(hashes: list[np.ndarray]) -> list[np.ndarray]:
    """Which documents have the tokens of no earlier one, from the document hashes of each shard.

    Raises:
        ValueError: If there is no document.

    >>> [mask.tolist() for mask in first_of_each([np.array([7, 8, 7]), np.array([8, 9])])]
    [[True, True, False], [False, True]]
    """
    joined = np.concatenate([np.empty(0, np.uint64), *hashes])
    if len(joined) == 0:
        raise ValueError(NO_TOKENS)
    is_first = np.zeros(len(joined), dtype=bool)
    is_first[np.unique(joined, return_index=True)[1]] = True
    return np.split(is_first, np.cumsum([len(shard) for shard in hashes])[:-1])


def merge_shards(
    shards: Path,
    numbers: range,
    num_shards: int,
    keep_duplicates: bool,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    *,
    units: Units,
) -> tuple[CorpusStatistics, dict[str, Any]]:
    """Write `corpus.arrow` from some shards, and the files that `datasets.load_from_disk` needs, into `directory`.

    Duplicates are looked for in all `num_shards`. Returns the counts of the corpus, and of what was read for it.
    """
    is_first = first_of_each(shard_hashes(shards, num_shards))
    counter = StatisticsCounter(tokenizer)
    duplicates = sum(int(np.count_nonzero(~is_first[number])) for number in numbers)

    def kept_blocks(number: int) -> Iterator[SentenceBatch]:
        is_kept, place = is_first[number] | keep_duplicates, 0
        for block in shard_blocks(shards, number):
            is_kept_here = is_kept[place : place + len(block.document_lengths)]
            place += len(is_kept_here)
            yield block if is_kept_here.all() else chosen_documents(block, np.flatnonzero(is_kept_here))

    phrases = _phrases(units, kept_blocks, numbers, tokenizer, directory)

    def marked_blocks() -> Iterator[SentenceBatch]:
        for number in tqdm(numbers, desc="Merging", unit=" shards"):
            for block in kept_blocks(number):
                block = block if phrases is None else mark_phrases(block, phrases)
                counter.add(block)
                yield block

    fingerprint = write_arrow_file(marked_blocks(), directory / ARROW_FILE, has_word_starts=units.are_marked)
    write_dataset_files(directory, fingerprint)
    kept, dropped = (duplicates, 0) if keep_duplicates else (0, duplicates)
    statistics = counter.statistics(duplicate_documents=kept, dropped_duplicates=dropped)
    return statistics, shard_readings(shards, numbers)._asdict() | units.reading()


def _phrases(
    units: Units,
    blocks_of: Callable[[int], Iterator[SentenceBatch]],
    numbers: range,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
) -> Lexicon | None:
    """The phrases to mark, given or learned; and their file, in `directory`."""
    if not isinstance(units.phrases, Collocations):
        return units.phrases
    learned = units.phrases.learn(units.phrases.sample(blocks_of, numbers), tokenizer)
    write_phrases(learned, directory / PHRASES_FILE)
    if not learned:
        raise ValueError(
            f"phrases: no words occur together {units.phrases.least_count} times and more often than by chance: give "
            "a list of phrases, or leave them out."
        )
    return Lexicon([phrase.text for phrase in learned], tokenizer, "phrases")


def write_dataset_files(directory: Path, fingerprint: str) -> None:
    """Write what `datasets.load_from_disk` needs beside the Arrow file.

    `Dataset.save_to_disk` would write the corpus again, in many record batches.
    """
    with pa.memory_map(str(directory / ARROW_FILE)) as file:
        features = datasets.Features.from_arrow_schema(pa.ipc.open_stream(file).schema)
    datasets.DatasetInfo(features=features).write_to_directory(str(directory))
    state = {
        "_data_files": [{"filename": ARROW_FILE}],
        "_fingerprint": fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (directory / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")


def finish_corpus(
    settings: dict[str, Any],
    statistics: CorpusStatistics,
    reading: dict[str, Any],
    run: dict[str, Any],
    made: Path,
    output: Path,
) -> CorpusReport:
    """Write the report of a corpus, fields as in `CorpusReport`, and move all from folder `made` to `output`."""
    report = CorpusReport(
        settings=settings,
        statistics=statistics,
        reading=reading,
        warnings=[
            *warnings_for(statistics),
            *reading_warnings(reading),
            *unit_warnings(statistics.units, reading.get("unspelled", {})),
        ],
        run=run,
        versions=library_versions(),
    )
    report.save(made)
    # The report comes last: where it is, the corpus is finished.
    for name in (ARROW_FILE, "dataset_info.json", "state.json", PHRASES_FILE, REPORT_FILE):
        if name != PHRASES_FILE or (made / name).exists():
            os.replace(made / name, output / name)
    return report


def run_facts(seconds: float, workers: int, num_bytes: int, shards: int, kept_shards: int = 0) -> dict[str, Any]:
    """`CorpusReport.run`."""
    return {
        "seconds": round(seconds, 2),
        "workers": workers,
        "megabytes": round(num_bytes / 1e6, 3),
        "megabytes_per_second": round(num_bytes / 1e6 / seconds, 3),
        "shards": shards,
        "kept_shards": kept_shards,
    }
