"""Compute and print the scores of `hf-encoders evaluate`: of sentences and of minimal pairs."""

import argparse
import itertools
import time
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.documents import read_documents
from hf_encoders.corpus.segmentation import splitter_for
from hf_encoders.corpus.special_tokens import unknown_ids
from hf_encoders.evaluation.minimal_pairs import MinimalPair, compare_pairs
from hf_encoders.evaluation.pseudo_likelihood import (
    pseudo_log_likelihoods,
    pseudo_perplexity,
    token_log_probabilities,
)
from hf_encoders.loading import load_config, load_tokenizer, load_weights, longest_input
from hf_encoders.writing import text_table


MUCH_DAMAGED = 0.01  # share of sentences with invalid UTF-8 above which the file has another encoding
MUCH_UNKNOWN = 0.01  # share of unknown tokens above which a warning is printed


def check_device(arguments: argparse.Namespace) -> None:
    """Refuse CUDA where there is none."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here: use --device cpu.")


def read_sentences(arguments: argparse.Namespace) -> list[str]:
    """The sentences of --text."""
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
    """The tokenizer, and the model on its device; refuses weights without an MLM head, which would be random."""
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
    """Pseudo-perplexity of sentences, with counts."""
    num_sentences = len(sentences)
    encoded = tokenizer(sentences, verbose=False)["input_ids"]
    longest = longest_input(model.config, tokenizer)
    kept = [i for i, ids in enumerate(encoded) if len(ids) <= longest]
    texts = [sentences[i] for i in kept]
    if len(kept) < num_sentences and not arguments.skip_long:
        raise ValueError(
            f"--text: {num_sentences - len(kept)} of {num_sentences} sentences are longer than the {longest} tokens "
            "that the model takes: skip them with --skip-long."
        )
    if not kept:
        raise ValueError(f"--skip-long: all {num_sentences} sentences are longer than {longest} tokens: shorten them.")
    began = time.perf_counter()
    scores = token_log_probabilities(
        model, tokenizer, texts, arguments.mask_rest_of_word, arguments.max_tokens, progress=True
    )
    seconds = time.perf_counter() - began
    tokens = sum(map(len, scores))
    unknown = unknown_ids(tokenizer)
    return {
        "pseudo_perplexity": pseudo_perplexity(scores),
        "log_likelihood_per_token": float(sum(text.sum() for text in scores) / tokens),
        "sentences": len(kept),
        "skipped_sentences": num_sentences - len(kept),
        "tokens": tokens,
        "unknown_share": sum(one in unknown for i in kept for one in encoded[i]) / tokens,
        "seconds": seconds,
    }


def evaluate_pairs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: list[MinimalPair], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Accuracy on minimal pairs, overall and by paradigm."""
    sentences = [pair.sentence_good for pair in pairs] + [pair.sentence_bad for pair in pairs]
    began = time.perf_counter()
    scores = pseudo_log_likelihoods(
        model, tokenizer, sentences, arguments.mask_rest_of_word, arguments.max_tokens, progress=True
    )
    seconds = time.perf_counter() - began
    overall, by_paradigm = compare_pairs(*np.split(scores, 2), [pair.paradigm for pair in pairs])
    paradigms = {name: result._asdict() for name, result in by_paradigm.items()}
    return {**overall._asdict(), "paradigms": paradigms, "seconds": seconds}


def format_text(result: dict[str, Any]) -> str:
    """The result of --text as lines to print."""
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
    """The result of --pairs as a table to print."""
    rows = [["paradigm", "accuracy", "pairs", "ties"]]
    for name, one in {**result["paradigms"], "all": result}.items():
        rows.append([name, f"{one['accuracy']:.1%}", f"{one['pairs']:,}", f"{one['ties']:,}"])
    return f"{text_table(rows, '<>')}\n{result['seconds']:.1f} s"
