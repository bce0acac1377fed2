"""`hf-encoders evaluate`: score sentences with a masked language model, without any training.

--text computes the pseudo-perplexity of the sentences in text files: exp of the mean negative log-probability of a
token given all others (Salazar et al. 2020). It compares only models with the same tokenizer.
--pairs computes the accuracy on minimal pairs in BLiMP's format: a pair is right if the acceptable sentence has the
higher pseudo-log-likelihood, so chance is 50 %.
Both cost one forward pass per token.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from hf_encoders.corpus.text_files import text_files
from hf_encoders.inputs import check_exists, check_model
from hf_encoders.source_literals import constant
from hf_encoders.writing import check_file


CLASSES = constant("loading", "CLASSES")
MAX_TOKENS = constant("evaluation.masked_lm", "MAX_TOKENS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--model", required=True, metavar="DIR_OR_NAME", help="encoder with an MLM head")
    add("--classes", choices=CLASSES, default=CLASSES[0], help="model classes (default: %(default)s)")
    add("--text", nargs="+", metavar="PATH", help="text files, .jsonl files (field text) or folders of them")
    splitting = parser.add_mutually_exclusive_group().add_argument
    splitting("--language", default="en", metavar="CODE", help="of --text, to split sentences (default: %(default)s)")
    splitting("--one-sentence-per-line", action="store_true", help="lines of --text are sentences")
    add("--skip-long", action="store_true", help="skip sentences of --text that are too long (default: refuse them)")
    text = ".jsonl files, or folders of them, with sentence_good, sentence_bad and optionally UID, the paradigm"
    add("--pairs", nargs="+", metavar="PATH", help=f"{text} (default: the file's name)")
    add("--limit", type=int, metavar="N", help="first N pairs of each file, and sentences of --text (default: all)")
    add("--mask-rest-of-word", action="store_true", help="also mask the later tokens of the predicted token's word")
    add("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help="per batch (default: %(default)s)")
    add("--device", choices=["cpu", "cuda"], help="default: cuda if available, else cpu")
    add("--json", metavar="FILE", help="also write the results to this file")


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong, and numbers out of range."""
    if not arguments.text and not arguments.pairs:
        raise ValueError("neither --text nor --pairs is given: name what to evaluate on.")
    for name, value in (("limit", arguments.limit), ("max-tokens", arguments.max_tokens)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}: must be at least 1.")
    text_files(arguments.text or (), "--text")
    for path in arguments.pairs or ():
        check_exists(path, "--pairs")
    check_model(arguments.model, f"--model {arguments.model!r}")
    if arguments.json:
        check_file(arguments.json, "--json")


def run(arguments: argparse.Namespace) -> int:
    """Compute and print what was asked for."""
    import transformers

    from hf_encoders.evaluation import scores
    from hf_encoders.loading import hide_bars_of_weights
    from hf_encoders.publishing.hardware import describe_hardware, describe_software

    transformers.logging.set_verbosity_error()
    hide_bars_of_weights()
    # Input first: a wrong file is refused before anything is loaded.
    pairs = scores.read_minimal_pairs(arguments.pairs, arguments.limit) if arguments.pairs else None
    sentences = scores.read_sentences(arguments) if arguments.text else None
    tokenizer, model = scores.load_encoder(arguments)
    results: dict[str, Any] = {"model": arguments.model, "mask_rest_of_word": arguments.mask_rest_of_word}
    if sentences:
        results["text"] = scores.evaluate_text(model, tokenizer, sentences, arguments)
    if pairs:
        results["pairs"] = scores.evaluate_pairs(model, tokenizer, pairs, arguments)
    if arguments.json:
        results["machine"] = {"hardware": describe_hardware(), **describe_software()}
        Path(arguments.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0
