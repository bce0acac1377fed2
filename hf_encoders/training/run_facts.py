"""What a checkpoint stores about its run, and what is reported where the resumed run differs."""

import zlib
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
from transformers import Trainer

from hf_encoders.corpus.flat_corpus import FlatCorpus


SAMPLES = 64  # positions of a corpus that are compared
TOKENS_PER_SAMPLE = 1024


def facts_of_run(trainer: Trainer) -> dict[str, Any]:
    """Return step, number of processes, rows per optimizer step and corpora of a run, as JSON.

    A row is what the dataset calls an example (a group, where it groups). `rows` is None for a stream.
    """
    args = trainer.args
    rows_per_device = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return {
        "step": trainer.state.global_step,
        "processes": args.world_size,
        "rows_per_step": rows_per_device * max(args.n_gpu, 1) * args.world_size,
        "rows": len(trainer.train_dataset) if isinstance(trainer.train_dataset, Sized) else None,
        "corpora": [description_of_corpus(store) for store in sentence_stores(trainer.train_dataset)],
    }


def sentence_stores(dataset: Any) -> Iterator[FlatCorpus]:
    """Yield the stored corpora of a dataset (its `store` or `stores`), also of its `dataset` or `datasets`."""
    if isinstance(store := getattr(dataset, "store", None), FlatCorpus):
        yield store
    yield from getattr(dataset, "stores", ())
    for inner in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if inner is not None:
            yield from sentence_stores(inner)


def description_of_corpus(store: FlatCorpus) -> dict[str, Any]:
    """Return the numbers of documents, sentences and tokens, and a checksum of tokens at 64 evenly spaced positions.

    Not of all tokens, which would read hundreds of gigabytes before every start: changes between the positions go
    unnoticed if the number of tokens stays the same. The path of the corpus does not matter.

    >>> import datasets
    >>> description_of_corpus(FlatCorpus.of(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]})))
    {'documents': 2, 'sentences': 3, 'tokens': 4, 'crc32': 'b6ae1255'}
    """
    tokens, found = store.tokens, 0
    last = max(len(tokens) - TOKENS_PER_SAMPLE, 0)
    for start in np.unique(np.linspace(0, last, SAMPLES).astype(np.int64)):
        found = zlib.crc32(np.ascontiguousarray(tokens[start : start + TOKENS_PER_SAMPLE], dtype="<i4"), found)
    return {
        "documents": store.num_documents,
        "sentences": store.num_sentences,
        "tokens": len(tokens),
        "crc32": f"{found:08x}",
    }


def check_same_corpus(saved: dict[str, Any], now: dict[str, Any], checkpoint: str) -> None:
    """Refuse to resume on another corpus: steps and epochs of the checkpoint count through its own.

    Args:
        saved (`dict[str, Any]`): `facts_of_run` of the run that wrote the checkpoint; empty for the stock `Trainer`.
        now (`dict[str, Any]`): `facts_of_run` of this run.
        checkpoint (`str`): The checkpoint's folder.

    Raises:
        ValueError: If both runs have stored corpora and they differ.
    """
    before, after = saved.get("corpora"), now["corpora"]
    if before and after and before != after:
        raise ValueError(
            f"train_dataset is not the corpus that {checkpoint} was trained on: {shown(before)} then, {shown(after)} "
            "now. Resume with that corpus, or start a new run on this one from the checkpoint's weights: "
            f'from_pretrained("{checkpoint}") instead of resume_from_checkpoint.'
        )


def shown(corpora: list[dict[str, Any]]) -> str:
    """Describe corpora.

    >>> shown([{"documents": 2, "sentences": 3, "tokens": 4000, "crc32": "e0f1a5ad"}])
    '2 documents with 4,000 tokens (checksum e0f1a5ad)'
    """
    return " and ".join(
        f"{corpus['documents']:,} documents with {corpus['tokens']:,} tokens (checksum {corpus['crc32']})"
        for corpus in corpora
    )


def what_differs(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return sentences on why the resumed run will differ from an uninterrupted one; empty if it will not."""
    differences = []
    if "rows_per_step" in saved and not has_same_position(saved, now):
        differences.append(
            f"an optimizer step had {saved['rows_per_step']} rows of the dataset and now has {now['rows_per_step']}: "
            "the data resumes at another position: some examples of this epoch are skipped or repeated. Keep "
            "per_device_train_batch_size x gradient_accumulation_steps x processes"
        )
    if "processes" in saved and saved["processes"] != now["processes"]:
        differences.append(
            f"it was written by {saved['processes']} process(es) and is resumed by {now['processes']}: examples and "
            "masks are those of the uninterrupted run, the random numbers of dropout are not"
        )
    return differences


def has_same_position(saved: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a step stands for the same position in the data.

    Also where a dataset holds a whole run and was split into other micro-batches: its rows then change by the same
    factor as those of a step.

    >>> has_same_position({"rows_per_step": 4, "rows": 4000}, {"rows_per_step": 8, "rows": 8000})
    True
    >>> has_same_position({"rows_per_step": 4, "rows": 4000}, {"rows_per_step": 8, "rows": 4000})
    False
    """
    if saved["rows_per_step"] == now["rows_per_step"]:
        return True
    if saved["rows"] is None or now["rows"] is None:
        return False
    return saved["rows"] * now["rows_per_step"] == now["rows"] * saved["rows_per_step"]
