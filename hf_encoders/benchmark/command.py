"""Run `hf-encoders benchmark`: make the settings and their text, measure each, and print its table."""

import argparse
import gc
import itertools
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import datasets
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.benchmark.choices import BASELINES, DEFAULTS, DROPOUT, LONG, PAIRS, STEPS
from hf_encoders.benchmark.implementations import can_use_flash, make_implementations
from hf_encoders.benchmark.measuring import measure
from hf_encoders.benchmark.report import format_table, table_of
from hf_encoders.benchmark.rows import make_pool
from hf_encoders.benchmark.settings import Setting, default_batch_size, make_config
from hf_encoders.corpus.documents import read_documents
from hf_encoders.corpus.python_docs import read_python_documents
from hf_encoders.corpus.segmentation import splitter_for
from hf_encoders.corpus.tokenized import tokenize_documents
from hf_encoders.corpus.tokenizer_training import train_tokenizer
from hf_encoders.loading import load_tokenizer, read_config
from hf_encoders.objectives.objective import get_objective
from hf_encoders.publishing.hardware import measure_gemm_rate
from hf_encoders.registration import config_class_of


CHARACTERS_PER_LIBRARY = 100_000  # of the Python documentation; enough for the vocabulary and for 50 batches
NEEDS_FLASH = "flash attention needs --device cuda, --dtype bfloat16 and the package flash-attn"


def read_text(arguments: argparse.Namespace) -> Callable[[str], tuple[datasets.Dataset, PreTrainedTokenizerBase]]:
    """Read the documents. Returns a function from a family to its corpus and tokenizer."""
    splitter = splitter_for(arguments.language)
    if arguments.text:
        documents = list(read_documents(arguments.text, sentence_splitter=splitter))
    else:
        documents = [document.sentences for document in read_python_documents(splitter, CHARACTERS_PER_LIBRARY)]

    @cache
    def tokenized(family: str) -> tuple[datasets.Dataset, PreTrainedTokenizerBase]:
        if arguments.tokenizer:
            tokenizer = load_tokenizer(arguments.tokenizer, "--tokenizer")
        else:
            sentences = (sentence for document in documents for sentence in document)
            length = max(arguments.length)
            tokenizer = train_tokenizer(sentences, config_class_of(family), arguments.vocab_size, length)
        return tokenize_documents(documents, tokenizer), tokenizer

    return tokenized


def run_setting(
    setting: Setting, corpus: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, vocab_size: int, against: list[str]
) -> dict[str, Any]:
    """Measure all implementations at one setting, and print the table. Returns it for JSON."""
    config = make_config(setting, tokenizer, vocab_size)
    pool = make_pool(corpus, tokenizer, setting)
    implementations = make_implementations(config, setting, pool, tokenizer, against)
    device = torch.device(setting.device)
    gemm_before = measure_gemm_rate(setting.torch_dtype, device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch.profiler")
        try:
            rounds = measure(implementations, config, setting)
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"--batch-size {setting.batch_size}: {setting} does not fit into the device's memory: lower it, or "
                "measure fewer with --against and --size."
            ) from error
    rate = max(gemm_before, measure_gemm_rate(setting.torch_dtype, device))
    measured = {one.name: measurements for one, measurements in zip(implementations, rounds, strict=True)}
    table = table_of(setting, measured, implementations[-1].model.num_parameters(), rate)
    print(f"\n{format_table(setting, table)}", flush=True)
    del implementations
    gc.collect()  # models have reference cycles, and the next setting needs their memory
    torch._dynamo.reset()  # graphs of all settings count against its limit, beyond which models run eagerly
    return table


def set_defaults(arguments: argparse.Namespace) -> None:
    """Set what was not given, by device, and of the implementations those that can run.

    Raises:
        ValueError: For CUDA where there is none.
    """
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here: use --device cpu.")
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    defaults = dict(DEFAULTS[arguments.device])
    if arguments.model:  # which may have few positions
        defaults |= {"size": None, "length": defaults["length"][:1]}
    if get_objective(arguments.objective).has_example_labels:
        defaults["against"] = [name for name in defaults["against"] if name != "modernbert"]
    if "flash" in defaults["against"] and not can_use_flash(arguments.device, arguments.dtype or defaults["dtype"]):
        defaults["against"] = [name for name in defaults["against"] if name != "flash"]
        if arguments.against is None:
            print(f"{BASELINES['flash']} is left out: {NEEDS_FLASH}", file=sys.stderr)
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def make_settings(arguments: argparse.Namespace) -> list[Setting]:
    """Every combination of the settings."""
    objective = get_objective(arguments.objective)
    if arguments.model:
        models = [(type(read_config(arguments.model, "--model")).model_type, arguments.model)]
    else:
        models = list(itertools.product(arguments.family or ["bert"], arguments.size))
    for family, _ in models:
        objective.model_class(config_class_of(family))  # refuses a family without its heads
    dropout = DROPOUT if arguments.dropout is None and not arguments.model else arguments.dropout

    def examples_of(length: int) -> list[str]:
        if objective.has_example_labels:
            return [PAIRS]
        is_long = arguments.device == "cuda" and length > LONG
        return arguments.examples or ["documents" if is_long else "paragraphs"]

    return [
        Setting(
            family=family,
            size=size,
            examples=kind,
            length=length,
            batch_size=arguments.batch_size or default_batch_size(size, length, arguments.device),
            task=task,
            dtype=dtype,
            objective=arguments.objective,
            dropout=dropout,
            rounds=arguments.rounds,
            steps=arguments.steps or STEPS[arguments.device],
            device=arguments.device,
            seed=arguments.seed,
        )
        for (family, size), task, length in itertools.product(models, arguments.task, arguments.length)
        for kind, dtype in itertools.product(examples_of(length), arguments.dtype)
    ]


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options that exclude each other.

    Raises:
        ValueError: With option, value and remedy.
    """
    if "flash" in arguments.against and not can_use_flash(arguments.device, arguments.dtype):
        raise ValueError(f"--against flash: {NEEDS_FLASH}: leave it out.")
    if get_objective(arguments.objective).has_example_labels:
        if arguments.examples:
            raise ValueError(
                f"--examples: rows of --objective {arguments.objective} are sentence pairs: leave it out."
            )
        if "modernbert" in arguments.against:
            raise ValueError(
                f"--against modernbert: it has no head for --objective {arguments.objective}: leave it out, or use "
                "--objective mlm."
            )
