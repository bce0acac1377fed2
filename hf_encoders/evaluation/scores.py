"""The scores of `hf-encoders evaluate`: pseudo-perplexity of sentences, and accuracy on minimal pairs.

A minimal pair is two sentences that differ in one aspect, one of them acceptable. A model is right if it gives that
one the higher score (BLiMP, Warstadt et al. 2020, https://arxiv.org/abs/1912.00582, section 4.1).
"""

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.documents import read_documents, splitter_for
from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.corpus.special_tokens import unknown_ids
from hf_encoders.evaluation.pseudo_likelihood import (
    pseudo_log_likelihoods,
    pseudo_perplexity,
    token_log_probabilities,
)
from hf_encoders.loading import load_config, load_weights
from hf_encoders.tokenizer_loading import load_tokenizer, longest_input
from hf_encoders.writing import text_table


MUCH_DAMAGED = 0.01  # share of sentences with invalid UTF-8 above which the file has another encoding
MUCH_UNKNOWN = 0.01  # share of unknown tokens above which a warning is printed


class MinimalPair(NamedTuple):
    """Two sentences, and the linguistic paradigm of their difference."""

    sentence_good: str
    sentence_bad: str
    paradigm: str


class PairResult(NamedTuple):
    """Result over pairs."""

    accuracy: float  # share of pairs whose acceptable sentence has the higher score, in [0, 1]
    pairs: int
    ties: int  # pairs with equal scores, which count as wrong: their sentences have the same tokens


def read_minimal_pairs(paths: Sequence[str | Path], most_per_file: int | None = None) -> list[MinimalPair]:
    """Read pairs from JSON lines files in BLiMP's format: `sentence_good`, `sentence_bad` and optionally `UID`.

    The paradigm of a pair is the `UID`, or the file's name without its ending.

    Args:
        paths (`Sequence`): Files, or folders whose `*.jsonl` are read in the order of their names.
        most_per_file (`int`, *optional*): Read only the first pairs of each file.
    """
    pairs = []
    for path in map(Path, paths):
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise ValueError(f"{path}: {'has no *.jsonl file' if path.is_dir() else 'is not a file'}: name the files.")
        for file in files:
            for number, row in enumerate(itertools.islice(read_file(file, "jsonl"), most_per_file), 1):
                for name in ("sentence_good", "sentence_bad"):
                    if not isinstance(row.get(name), str):
                        raise ValueError(f"{file}, row {number}: {name} is {row.get(name)!r}: it must be a sentence.")
                paradigm = str(row.get("UID") or file.stem)
                pairs.append(MinimalPair(row["sentence_good"], row["sentence_bad"], paradigm))
    return pairs


def compare_pairs(
    good: np.ndarray, bad: np.ndarray, paradigms: Sequence[str]
) -> tuple[PairResult, dict[str, PairResult]]:
    """Return the result of all pairs, and those by paradigm, sorted by name.

    Args:
        good, bad (`np.ndarray` of shape `(pairs,)`): Scores of the acceptable and of the other sentences.
        paradigms (`Sequence` of `str`): Of each pair.

    >>> overall, by_paradigm = compare_pairs(np.array([-1., -2., -3.]), np.array([-2., -2., -4.]), ["a", "a", "b"])
    >>> overall
    PairResult(accuracy=0.6666666666666666, pairs=3, ties=1)
    >>> by_paradigm["a"].accuracy, by_paradigm["b"].accuracy
    (0.5, 1.0)
    """

    def result(chosen: np.ndarray) -> PairResult:
        is_right, is_tie = good[chosen] > bad[chosen], good[chosen] == bad[chosen]
        return PairResult(float(is_right.mean()), len(is_right), int(is_tie.sum()))

    names = np.array(paradigms)
    by_paradigm = {str(name): result(names == name) for name in sorted(set(paradigms))}
    return result(np.ones(len(names), dtype=bool)), by_paradigm


def check_device(arguments: argparse.Namespace) -> None:
    """Refuse CUDA where there is none."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here: use --device cpu.")


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
    """Compute the pseudo-perplexity of sentences, with counts."""
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
    seconds = time.perf_counter() - start
    tokens = sum(map(len, scores))
    unknown = unknown_ids(tokenizer)
    return {
        "pseudo_perplexity": pseudo_perplexity(scores),
        "log_likelihood_per_token": float(sum(text.sum() for text in scores) / tokens),
        "sentences": len(texts),
        "skipped_sentences": num_skipped,
        "tokens": tokens,
        "unknown_share": sum(token in unknown for text in texts for token in encoded[text]) / tokens,
        "seconds": seconds,
    }


def evaluate_pairs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: list[MinimalPair], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Compute the accuracy on minimal pairs, overall and by paradigm."""
    sentences = [pair.sentence_good for pair in pairs] + [pair.sentence_bad for pair in pairs]
    start = time.perf_counter()
    scores = pseudo_log_likelihoods(
        model, tokenizer, sentences, arguments.mask_rest_of_word, arguments.max_tokens, progress=True
    )
    seconds = time.perf_counter() - start
    overall, by_paradigm = compare_pairs(*np.split(scores, 2), [pair.paradigm for pair in pairs])
    paradigms = {name: result._asdict() for name, result in by_paradigm.items()}
    return {**overall._asdict(), "paradigms": paradigms, "seconds": seconds}


def format_text(result: dict[str, Any]) -> str:
    """Format the result of --text as lines to print."""
    nats = result["log_likelihood_per_token"]
    lines = [
        f"pseudo-perplexity {result['pseudo_perplexity']:,.2f}, log-likelihood {nats:.3f} nats per token",
        f"{result['sentences']:,} sentences, {result['tokens']:,} tokens, {result['seconds']:.1f} s",
    ]
    if result["skipped_sentences"]:
        lines.append(f"{result['skipped_sentences']:,} sentences were too long and skipped")
    if result["unknown_share"] > MUCH_UNKNOWN:
        lines.append(f"warning: {result['unknown_share']:.1%} of tokens are unknown, which lowers the perplexity")
    return "\n".join(lines)


def format_pairs(result: dict[str, Any]) -> str:
    """Format the result of --pairs as a table to print."""
    rows = [["paradigm", "accuracy", "pairs", "ties"]]
    for name, pairs in {**result["paradigms"], "all": result}.items():
        rows.append([name, f"{pairs['accuracy']:.1%}", f"{pairs['pairs']:,}", f"{pairs['ties']:,}"])
    return f"{text_table(rows, '<>')}\n{result['seconds']:.1f} s"
