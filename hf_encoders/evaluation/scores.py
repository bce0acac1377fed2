"""The scores of `hf-encoders evaluate`: pseudo-perplexity of sentences, and accuracy on minimal pairs.

A minimal pair is two sentences that differ in one aspect, one of them acceptable. A model is right if it gives that
one the higher score (BLiMP, Warstadt et al. 2020, https://arxiv.org/abs/1912.00582, section 4.1).
"""

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.documents import read_documents, splitter_for
from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.corpus.special_tokens import unknown_ids
from hf_encoders.evaluation.masked_lm import pseudo_log_likelihoods, pseudo_perplexity, token_log_probabilities
from hf_encoders.loading import load_config, load_weights
from hf_encoders.tokenizer_loading import load_tokenizer, longest_input
from hf_encoders.writing import text_table


MUCH_DAMAGED = 0.01  # share of sentences with invalid UTF-8 above which the file has another encoding
MUCH_UNKNOWN = 0.01  # share of unknown tokens above which a warning is printed


def read_minimal_pairs(paths: Sequence[str | Path], most_per_file: int | None = None) -> dict[str, list[str]]:
    """Read pairs from JSON lines files in BLiMP's format: columns `sentence_good`, `sentence_bad` and `UID`.

    The `UID` names the paradigm of a pair; without one it is the file's name without its ending.

    Args:
        paths (`Sequence`): Files, or folders whose `*.jsonl` are read in the order of their names.
        most_per_file (`int`, *optional*): Read only the first pairs of each file.
    """
    pairs: dict[str, list[str]] = {"sentence_good": [], "sentence_bad": [], "UID": []}
    for path in map(Path, paths):
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path}: has no *.jsonl file: name the files.")
        for file in files:
            for number, row in enumerate(itertools.islice(read_file(file, "jsonl"), most_per_file), 1):
                for name in ("sentence_good", "sentence_bad"):
                    if not isinstance(row.get(name), str):
                        raise ValueError(f"{file}, row {number}: {name} is {row.get(name)!r}: it must be a sentence.")
                    pairs[name].append(row[name])
                pairs["UID"].append(str(row.get("UID") or file.stem))
    return pairs


def compare_pairs(good: np.ndarray, bad: np.ndarray, paradigms: Sequence[str]) -> dict[str, Any]:
    """Compute accuracy (in [0, 1]), number and ties of pairs; also under `paradigms` for each, sorted by name.

    A tie counts as wrong: its sentences have the same tokens. `good` and `bad` are the scores, `(pairs,)`, of the
    acceptable and of the other sentences.

    >>> compare_pairs(np.array([-1., -2., -3.]), np.array([-2., -2., -4.]), ["a", "a", "b"])["paradigms"]
    {'a': {'accuracy': 0.5, 'pairs': 2, 'ties': 1}, 'b': {'accuracy': 1.0, 'pairs': 1, 'ties': 0}}
    """

    def result(good: np.ndarray, bad: np.ndarray) -> dict[str, Any]:
        return {"accuracy": float((good > bad).mean()), "pairs": len(good), "ties": int((good == bad).sum())}

    names = np.array(paradigms)
    chosen = {name: names == name for name in sorted(set(paradigms))}
    return {**result(good, bad), "paradigms": {name: result(good[rows], bad[rows]) for name, rows in chosen.items()}}


def read_sentences(arguments: argparse.Namespace) -> list[str]:
    """Read the sentences of --text."""
    splitter = splitter_for(None if arguments.one_sentence_per_line else arguments.language)
    documents = read_documents(arguments.text, sentence_splitter=splitter)
    sentences = list(itertools.islice(itertools.chain.from_iterable(documents), arguments.limit))
    if not sentences:
        raise ValueError(f"--text {' '.join(arguments.text)}: has no sentence: name files with text.")
    damaged = sum("\ufffd" in sentence for sentence in sentences)  # replaces invalid UTF-8
    if damaged > MUCH_DAMAGED * len(sentences):
        raise ValueError(
            f"--text: {damaged} of {len(sentences)} sentences are not UTF-8: convert the files with iconv."
        )
    return sentences


def load_encoder(arguments: argparse.Namespace) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load the tokenizer, and the model on its device; refuse weights without an MLM head, which would be random."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here: use --device cpu.")
    config = load_config(arguments.model, arguments.classes)
    if type(config) not in AutoModelForMaskedLM._model_mapping:
        raise ValueError(
            f"--model {arguments.model!r} is a {config.model_type}, which has no head for masked tokens: give a model "
            "with an MLM head."
        )
    tokenizer = load_tokenizer(arguments.model, "--model", config)
    model, missing, _ = load_weights(arguments.model, AutoModelForMaskedLM, config)
    if missing:
        raise ValueError(
            f"--model {arguments.model!r} has no weights for {missing[0]}: give one saved with its MLM head."
        )
    return tokenizer, model.to(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def evaluate_text(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Compute the pseudo-perplexity of sentences, with counts, and print it."""
    encoded = dict(zip(sentences, tokenizer(sentences, verbose=False)["input_ids"], strict=True))
    longest = longest_input(model.config, tokenizer)
    texts = [sentence for sentence in sentences if len(encoded[sentence]) <= longest]
    num_skipped = len(sentences) - len(texts)
    if num_skipped and not arguments.skip_long:
        raise ValueError(
            f"--text: {num_skipped} of {len(sentences)} sentences are longer than the {longest} tokens that the model "
            "takes: skip them with --skip-long."
        )
    if not texts:
        raise ValueError(f"--skip-long: all {num_skipped} sentences are longer than {longest} tokens: shorten them.")
    start = time.perf_counter()
    scores = token_log_probabilities(
        model, tokenizer, texts, arguments.mask_rest_of_word, arguments.max_tokens, progress=True
    )
    seconds, log_probabilities = time.perf_counter() - start, np.concatenate(scores)
    tokens, perplexity, nats = len(log_probabilities), pseudo_perplexity(scores), float(log_probabilities.mean())
    unknown = unknown_ids(tokenizer)
    unknown_share = sum(token in unknown for text in texts for token in encoded[text]) / tokens
    print(f"pseudo-perplexity {perplexity:,.2f}, log-likelihood {nats:.3f} nats per token")
    print(f"{len(texts):,} sentences, {tokens:,} tokens, {seconds:.1f} s")
    if num_skipped:
        print(f"{num_skipped:,} sentences were too long and skipped")
    if unknown_share > MUCH_UNKNOWN:
        print(f"warning: {unknown_share:.1%} of tokens are unknown, which lowers the perplexity", flush=True)
    return {
        "pseudo_perplexity": perplexity,
        "log_likelihood_per_token": nats,
        "sentences": len(texts),
        "skipped_sentences": num_skipped,
        "tokens": tokens,
        "unknown_share": unknown_share,
        "seconds": seconds,
    }


def evaluate_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: dict[str, list[str]],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Compute the accuracy on minimal pairs, overall and by paradigm, and print a table."""
    start = time.perf_counter()
    scores = pseudo_log_likelihoods(
        model,
        tokenizer,
        [*pairs["sentence_good"], *pairs["sentence_bad"]],
        arguments.mask_rest_of_word,
        arguments.max_tokens,
        progress=True,
    )
    result = {**compare_pairs(*np.split(scores, 2), pairs["UID"]), "seconds": time.perf_counter() - start}
    rows = [["paradigm", "accuracy", "pairs", "ties"]]
    for name, row in {**result["paradigms"], "all": result}.items():
        rows.append([name, f"{row['accuracy']:.1%}", f"{row['pairs']:,}", f"{row['ties']:,}"])
    print(f"{text_table(rows, '<>')}\n{result['seconds']:.1f} s", flush=True)
    return result
