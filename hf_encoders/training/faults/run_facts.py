"""What a checkpoint notes of its run, and what is said where another run goes on from it."""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from transformers import Trainer

from hf_encoders.data.corpus.sentence_store import SentenceStore


SAMPLES = 64  # places of a corpus that are compared
TOKENS_A_SAMPLE = 1024


def facts_of_run(trainer: Trainer) -> dict[str, Any]:
    """Step, processes, batches of an optimizer step and corpora of a run, as JSON.

    Rows are what the data set calls an example: groups, where it makes groups. `rows` is None for a stream.
    """
    args = trainer.args
    return {
        "step": trainer.state.global_step,
        "processes": args.world_size,
        "rows_a_step": args.per_device_train_batch_size
        * max(args.n_gpu, 1)
        * args.gradient_accumulation_steps
        * args.world_size,
        "rows": len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else None,
        "corpora": [description_of_corpus(store) for store in sentence_stores(trainer.train_dataset)],
    }


def sentence_stores(data_set: Any) -> Iterator[SentenceStore]:
    """The stored corpora that a data set reads, inside of others that have it as `dataset` or among `datasets` too."""
    if isinstance(store := getattr(data_set, "store", None), SentenceStore):
        yield store
    for inner in (getattr(data_set, "dataset", None), *getattr(data_set, "datasets", ())):
        if inner is not None:
            yield from sentence_stores(inner)


def description_of_corpus(store: SentenceStore) -> dict[str, Any]:
    """Numbers of documents, sentences and tokens, and a checksum of tokens at 64 places evenly apart.

    Not of all of them, which would read hundreds of gigabytes before every start; so other tokens between two places
    are not seen if their number is the same. The same corpus in another folder or file is the same.

    >>> import datasets
    >>> description_of_corpus(SentenceStore(datasets.Dataset.from_dict({"input_ids": [[[5, 6], [7]], [[8]]]})))
    {'documents': 2, 'sentences': 3, 'tokens': 4, 'crc32': 'b6ae1255'}
    """
    tokens, found = store.tokens, 0
    last = max(len(tokens) - TOKENS_A_SAMPLE, 0)
    for place in np.unique(np.linspace(0, last, SAMPLES).astype(np.int64)):
        found = zlib.crc32(np.ascontiguousarray(tokens[place : place + TOKENS_A_SAMPLE], dtype="<i4"), found)
    return {
        "documents": store.num_documents,
        "sentences": store.num_sentences,
        "tokens": len(tokens),
        "crc32": f"{found:08x}",
    }


def check_same_corpus(saved: dict[str, Any], now: dict[str, Any], checkpoint: str) -> None:
    """Refuse to go on with another text: steps and epochs of the checkpoint count through its own.

    Args:
        saved, now: `facts_of_run` of the run that wrote the checkpoint (nothing of a stock one), and of this one.
        checkpoint: the checkpoint's folder.

    Raises:
        ValueError: if both runs have stored corpora that are not the same.
    """
    before, after = saved.get("corpora"), now["corpora"]
    if before and after and before != after:
        raise ValueError(
            f"train_dataset is not the corpus that {checkpoint} was trained on: {shown(before)} then, {shown(after)} "
            "now. Resume with that corpus, or begin a new run on this one from the checkpoint's weights: "
            f'from_pretrained("{checkpoint}") instead of resume_from_checkpoint.'
        )


def shown(corpora: list[dict[str, Any]]) -> str:
    """Corpora in words.

    >>> shown([{"documents": 2, "sentences": 3, "tokens": 4000, "crc32": "e0f1a5ad"}])
    '2 documents with 4,000 tokens (checksum e0f1a5ad)'
    """
    return " and ".join(
        f"{corpus['documents']:,} documents with {corpus['tokens']:,} tokens (checksum {corpus['crc32']})"
        for corpus in corpora
    )


def what_differs(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Sentences on what makes a resumed run another one than the run that was not stopped; empty if it is the same."""
    told = []
    if "rows_a_step" in saved and not has_same_place(saved, now):
        told.append(
            f"an optimizer step had {saved['rows_a_step']} rows of the data set and has {now['rows_a_step']} now, so "
            "the data goes on at another place: some examples of this epoch are left out or come twice. Keep "
            "per_device_train_batch_size x gradient_accumulation_steps x processes"
        )
    if "processes" in saved and saved["processes"] != now["processes"]:
        told.append(
            f"{saved['processes']} process(es) wrote it and {now['processes']} go on: examples and masks are those of "
            "the run that was not stopped, the random numbers of dropout are not"
        )
    return told


def has_same_place(saved: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a step stands for the same place in the data.

    Other rows a step are the same place in a data set that holds a whole run and was divided otherwise, which then has
    as many times the rows.

    >>> has_same_place({"rows_a_step": 4, "rows": 4000}, {"rows_a_step": 8, "rows": 8000})
    True
    >>> has_same_place({"rows_a_step": 4, "rows": 4000}, {"rows_a_step": 8, "rows": 4000})
    False
    """
    if saved["rows_a_step"] == now["rows_a_step"]:
        return True
    if saved["rows"] is None or now["rows"] is None:
        return False
    return saved["rows"] * now["rows_a_step"] == now["rows"] * saved["rows_a_step"]
