"""Report on a corpus, `corpus.json`: settings, counts, and warnings of what predicts a failed pre-training."""

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

import hf_encoders
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.special_tokens import tokenizer_fingerprint
from hf_encoders.corpus.tokenized import DocumentTokenizer
from hf_encoders.corpus.units import UnitCounter, unit_rows
from hf_encoders.writing import read_json, text_table


REPORT_FILE = "corpus.json"
KINDS_SHOWN = 5


@dataclass(frozen=True)
class CorpusStatistics:
    """Counts of a corpus."""

    documents: int
    sentences: int
    tokens: int
    one_sentence_documents: int  # which give no sentence pair
    longest_sentence_tokens: int
    duplicate_documents: int  # with the tokens of an earlier one (64-bit hashes are compared)
    unknown_share: float | None = None  # of the tokens, in [0, 1]; `None` without a tokenizer
    dropped_duplicates: int = 0  # with the tokens of an earlier one, left out; not in `documents`
    # "entities" and "phrases", where the corpus has them, to `number`, `distinct`, `token_share` in [0, 1],
    # `by_tokens` (length to number) and `most_frequent` (text and number)
    units: dict[str, Any] = field(default_factory=dict)


def corpus_statistics(dataset: datasets.Dataset, tokenizer: PreTrainedTokenizerBase | None = None) -> CorpusStatistics:
    """Count a corpus; the tokenizer that it was made with defines the unknown token."""
    counts: Counter[str] = Counter()
    units, hashes, longest = UnitCounter(), [np.empty(0, np.uint64)], 0
    unknown_id = None if tokenizer is None else tokenizer.unk_token_id
    for block in FlatCorpus.steps(dataset):
        lengths = block.sentence_lengths
        counts.update(
            documents=block.num_documents,
            sentences=int(np.count_nonzero(lengths)),  # others hold the places of turns
            tokens=len(block.tokens),
            one_sentence_documents=int(np.count_nonzero(block.document_lengths == 1)),
            unknown=0 if unknown_id is None else int(np.count_nonzero(block.tokens == unknown_id)),
        )
        units.add(block)
        longest = max(longest, int(lengths.max(initial=0)))
        hashes.append(document_hashes(block))
    unknown = counts.pop("unknown", 0)
    fields = dict.fromkeys(("documents", "sentences", "tokens", "one_sentence_documents"), 0)
    return CorpusStatistics(
        **fields | counts,
        longest_sentence_tokens=longest,
        duplicate_documents=counts["documents"] - len(np.unique(np.concatenate(hashes))),
        unknown_share=None if tokenizer is None else unknown / max(counts["tokens"], 1),
        units=units.statistics(tokenizer),
    )


def document_hashes(block: FlatCorpus) -> np.ndarray:
    """Return a 64-bit hash of the tokens of each document, whatever its sentences; `(D,)`."""
    data = memoryview(np.ascontiguousarray(block.tokens, dtype=np.int32))
    bounds = pairwise(block.sentence_offsets[block.document_offsets].tolist())
    digests = (hashlib.blake2b(data[begin:end], digest_size=8).digest() for begin, end in bounds)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def warnings_for(statistics: CorpusStatistics) -> list[str]:
    """Return warnings of what predicts a failed pre-training, each with the remedy; limits are our choice."""
    number, single = statistics.documents, statistics.one_sentence_documents
    duplicates, unknown = statistics.duplicate_documents, statistics.unknown_share or 0
    documents = max(number, 1)
    tokens_each = statistics.tokens / documents
    boundaries = "Put a blank line between documents, or one document per line into a .jsonl file."
    checks = [
        (
            number <= 1,
            f"The corpus has {number} document(s): none can be held out for evaluation, and next-sentence prediction "
            f"has no other one to sample from. {boundaries}",
        ),
        (
            1 < number < 100 and tokens_each >= 50_000,
            f"The corpus has only {number} documents, of {tokens_each:,.0f} tokens on average: boundaries between "
            f"documents are probably missing, and few documents make next-sentence prediction easy. {boundaries}",
        ),
        (
            single > 0.5 * documents,
            f"{single:,} of {number:,} documents have a single sentence, which gives no sentence pair. Remove blank "
            "lines within documents; if paragraphs were not split, use split_sentences with the language of the text; "
            "otherwise train without a pair objective (mlm).",
        ),
        (
            duplicates > 0.1 * documents,
            f"{duplicates:,} of {number:,} documents repeat an earlier one: a model memorizes them, and validation "
            "measures what was trained on. Remove duplicates before tokenizing; prepare_corpus and `hf-encoders "
            "corpus` do so by default.",
        ),
        (
            unknown > 0.05,
            f"{unknown:.1%} of the tokens are unknown to the tokenizer: its vocabulary does not fit the text. Train a "
            "tokenizer on the text, or use a byte-level one.",
        ),
    ]
    return [warning for applies, warning in checks if applies]


def reading_warnings(reading: Mapping[str, Any]) -> list[str]:
    """Return a warning if more than 1 % of the sentences are damaged (this package's choice); of `CorpusReport`."""
    damaged, sentences = reading["damaged_sentences"], reading["sentences"]
    if damaged <= 0.01 * sentences:
        return []
    return [
        f"{damaged:,} of {sentences:,} sentences read have a character U+FFFD or NUL: the text is probably not UTF-8, "
        "or was damaged before. Convert it from its encoding, for example with iconv -f WINDOWS-1252 -t UTF-8."
    ]


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries used, for the report."""
    names = ("datasets", "numpy", "pyarrow", "sentencex", "tokenizers", "transformers")
    return {"hf_encoders": hf_encoders.__version__, "python": platform.python_version()} | {
        name: version(name) for name in names
    }


class OtherSettingsError(ValueError):
    """A folder holds a corpus that was made with other settings."""


def describe_function(function: Callable | None) -> str | None:
    """Return the name of an importable function; of any other (a lambda, one of a script) also a hash of its code.

    >>> from hf_encoders.corpus.documents import split_sentences
    >>> describe_function(partial(split_sentences, language="de"))
    "hf_encoders.corpus.documents.split_sentences(language='de')"
    """
    if function is None:
        return None
    if isinstance(function, partial):
        arguments = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        return f"{describe_function(function.func)}({', '.join(arguments)})"
    named = function if hasattr(function, "__qualname__") else type(function)
    module, name = getattr(named, "__module__", None) or "builtins", named.__qualname__
    is_importable = named is function and module != "__main__" and "<" not in name
    return f"{module}.{name}" + ("" if is_importable else f"#{Hasher.hash(function)}")


def corpus_settings(source: dict[str, Any], tokenize: DocumentTokenizer, keep_duplicates: bool) -> dict[str, Any]:
    """Return everything that decides what is in a corpus, for JSON; `source` identifies the text."""
    versions, reader, tokenizer = library_versions(), tokenize.reader, tokenize.tokenizer
    return {
        "source": source,
        "text_column": reader.text_column,
        "sentences_column": reader.sentences_column,
        "turns_column": reader.turns_column,
        "sentence_splitter": describe_function(reader.sentence_splitter),
        "word_segmenter": describe_function(tokenize.word_segmenter),
        "max_sentence_tokens": tokenize.max_sentence_tokens,
        "keep_duplicates": keep_duplicates,
        **tokenize.units.settings(),
        "tokenizer": {
            "fingerprint": tokenizer_fingerprint(tokenizer),
            "class": type(tokenizer).__name__,
            "name": str(tokenizer.name_or_path),
            "entries": len(tokenizer),
        },
        "libraries": {name: versions[name] for name in ("hf_encoders", "sentencex", "tokenizers")},
    }


def check_same_settings(output: Path, made_with: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a corpus that was made with other settings; the error has a line for each difference."""
    before, now = _deciding(made_with), _deciding(wanted)
    lines = [
        f"\n- {name}: {made_with.get(name)!r:.300} there, {wanted.get(name)!r:.300} now"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if lines:
        raise OtherSettingsError(
            f"output='{output}' holds a corpus made with other settings:{''.join(lines)}\nGive the same settings, "
            "name another folder, or start over with overwrite=True (--overwrite)."
        )


def _deciding(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without what may differ: folder and class of a tokenizer, folders of files."""
    source = settings["source"]
    if "files" in source:
        source = source | {"files": [[Path(path).name, *rest] for path, *rest in source["files"]]}
    return settings | {"source": source, "tokenizer": settings["tokenizer"]["fingerprint"]}


def settings_hash(settings: dict[str, Any]) -> str:
    """Return a hash of what decides about the contents of a corpus, 16 hexadecimal digits."""
    text = json.dumps(_deciding(settings), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class CorpusReport:
    """Contents and making of a prepared corpus, `corpus.json` in its folder; printed, a table."""

    settings: dict[str, Any]  # everything that decides what is in the corpus: input, tokenizer, options, libraries
    statistics: CorpusStatistics
    warnings: list[str]  # from `warnings_for`, `reading_warnings` and `unit_warnings`
    # `seconds`, `workers`, `megabytes` (10**6 bytes of sentences in UTF-8), `megabytes_per_second`
    run: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)  # Python and libraries
    # `sentences`; `damaged_sentences`, those with U+FFFD (bytes that are not UTF-8 become it) or NUL; `skipped_files`,
    # number of files in folders that were not read, by kind; `unspelled`, entries of `Units` without a spelling
    reading: dict[str, Any] = field(default_factory=dict)

    def save(self, directory: Path) -> None:
        """Write `corpus.json`."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (directory / REPORT_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> "CorpusReport":
        """Read the `corpus.json` of a folder; a damaged one is a `ValueError`."""
        file, remedy = Path(directory) / REPORT_FILE, "restore it, or prepare the corpus again with --overwrite."
        fields = read_json(file, remedy)
        try:
            report = cls(**fields | {"statistics": CorpusStatistics(**fields["statistics"])})
            report.settings["tokenizer"]["fingerprint"], {**report.settings["source"]}
            str(report)  # reads the rest
        except KeyError as error:
            raise ValueError(f"{file} is damaged ({error.args[0]} is missing): {remedy}") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{file} is damaged ({error}): {remedy}") from error
        return report

    def __repr__(self) -> str:
        counts = self.statistics
        return (
            f"CorpusReport({counts.documents:,} documents, {counts.sentences:,} sentences, {counts.tokens:,} tokens, "
            f"{len(self.warnings)} warnings)"
        )

    def __str__(self) -> str:
        counts, run, speed = self.statistics, self.run, self.run["megabytes_per_second"]
        read = counts.documents + counts.dropped_duplicates
        rows = [
            ("documents", f"{counts.documents:,}"),
            ("sentences", f"{counts.sentences:,}"),
            ("tokens", f"{counts.tokens:,}"),
            ("one-sentence documents", _with_share(counts.one_sentence_documents, counts.documents)),
            ("duplicates dropped", _with_share(counts.dropped_duplicates, read, "of the documents read")),
            ("longest sentence", f"{counts.longest_sentence_tokens:,} tokens"),
            ("unknown tokens", f"{counts.unknown_share:.2%}"),
            ("text tokenized", f"{run['megabytes']:,.1f} MB in {run['seconds']:,.1f} s"),
            ("speed", f"{speed:,.2f} MB/s with {run['workers']} worker(s), {speed / run['workers']:,.2f} MB/s each"),
        ]
        if counts.duplicate_documents:
            rows.insert(5, ("duplicates kept", _with_share(counts.duplicate_documents, counts.documents)))
        rows += unit_rows(counts.units) + reading_rows(self.reading)
        return "\n".join([text_table(rows), *(f"warning: {warning}" for warning in self.warnings)])


def reading_rows(reading: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return table rows for damaged sentences and skipped files; `reading` as in `CorpusReport`."""
    rows = []
    if damaged := reading.get("damaged_sentences"):
        rows.append(("with U+FFFD or NUL", _with_share(damaged, reading["sentences"], "of the sentences read")))
    if skipped := reading.get("skipped_files"):
        kinds = [f"{number:,} {kind}" for kind, number in skipped.items()]
        more = [f"{len(kinds) - KINDS_SHOWN} other kinds"] if len(kinds) > KINDS_SHOWN else []
        rows.append(("skipped", ", ".join(kinds[:KINDS_SHOWN] + more)))
    return rows


def _with_share(count: int, total: int, of: str = "") -> str:
    return f"{count:,} ({count / max(total, 1):.1%}{' ' + of if of else ''})"


def cross_entropy(counts: np.ndarray, held_out: datasets.Dataset) -> float:
    """Return the nats per held-out token under counts of tokens, `(vocab_size,)`, each plus one.

    A model that has learned token frequencies and nothing else reaches this loss: the plateau that a healthy run
    leaves.
    """
    counts = counts + 1.0
    nats, total, num_tokens = -np.log(counts / counts.sum()), 0.0, 0
    for block in FlatCorpus.steps(held_out):
        total += float(nats[block.tokens].sum())
        num_tokens += len(block.tokens)
    return total / num_tokens


def token_counts(corpus: datasets.Dataset, vocab_size: int) -> np.ndarray:
    """Count each id of a tokenizer in a corpus, `int64` of shape `(vocab_size,)`.

    >>> token_counts(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [5]], [[2]]]}), 7).tolist()
    [0, 0, 1, 0, 0, 2, 1]
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for block in FlatCorpus.steps(corpus):
        counts += np.bincount(block.tokens, minlength=vocab_size)
    return counts
