"""`hf-encoders benchmark`: speed and memory of this package and of transformers' own classes on this machine.

All implementations have the same weights, rows and masks, and take turns, round by round. Each combination of the
settings gives one table; metrics are medians over the rounds, with minimum and maximum in brackets:

  forward + backward  real tokens per second relative to "transformers sdpa" in the same round, without padding
  whole step          the same including collating (each with its own collator) and the update (fused AdamW)
  MFU                 operations needed for the real tokens relative to a large matrix product of this data type here:
                      2 W tokens + 4 layers D sum(L^2) + 2 (D E + E V) predicted tokens per forward pass, three times
                      that with backward (W: weights of a token's matrix products; L: length of each sequence; E: width
                      of the head, D unless embeddings are factorised)
  activations         peak bytes of a pass above weights and gradients, of the largest batch of a turn: sizes of all
                      tensors in order; on CUDA the allocator's peak
  padding             share of the computed positions that is padding (this package has none outside of attention)

"by length" are transformers' best batches: rows sorted by length over 50 batches. ModernBERT has the same depth,
width, vocabulary and weights per layer, no dropout, predicts masked tokens only, and runs with flash attention on CUDA
where flash-attn is installed; use --dropout 0 for equal dropout. In bfloat16 on a CPU, kernels for new shapes are
compiled during the rounds.

On CUDA the defaults measure a GPU in one command: base and large, rows of up to 128 and 512 tokens, bfloat16, all
implementations except eager attention. Several tables are repeated as one in Markdown.
"""

import argparse
import gc
import itertools
import json
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from transformers import PreTrainedTokenizerBase

from hf_encoders.benchmark.implementations import BASELINES, can_use_flash, make_implementations
from hf_encoders.benchmark.measuring import measure
from hf_encoders.benchmark.report import format_summary, format_table, report_as_json, table_of
from hf_encoders.benchmark.rows import make_pool
from hf_encoders.benchmark.settings import (
    DROPOUT,
    DTYPES,
    EXAMPLES,
    LONG,
    PAIRS,
    SIZES,
    TASKS,
    VOCAB_SIZE,
    Setting,
    default_batch_size,
    make_config,
)
from hf_encoders.data import read_documents, tokenize_documents
from hf_encoders.data.corpus.python_docs import read_python_documents
from hf_encoders.data.corpus.segmentation import splitter_for
from hf_encoders.data.vocabulary.tokenizer_training import train_tokenizer
from hf_encoders.loading import load_tokenizer, read_config
from hf_encoders.objectives import comparable_objectives, get_objective
from hf_encoders.records.flops import measure_gemm_rate
from hf_encoders.registration import config_class_of, configurations
from hf_encoders.writing import check_file


CHARACTERS_PER_LIBRARY = 100_000  # of the Python documentation; enough for the vocabulary and for 50 batches
STEPS = {"cpu": 2, "cuda": 10}  # batches per turn
# On a CPU, eager attention and ModernBERT double the time, and compiling takes minutes.
DEFAULTS = {
    "cpu": {"size": ["small"], "length": [128], "dtype": ["float32"], "against": ["grouped"]},
    "cuda": {
        "size": ["base", "large"],
        "length": [128, 512],
        "dtype": ["bfloat16"],
        "against": ["flash", "grouped", "modernbert", "compiled"],
    },
}
MIN_LENGTH = 8  # tokens of a row
NEEDS_FLASH = "flash attention needs --device cuda, --dtype bfloat16 and the package flash-attn"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    model = parser.add_argument_group("model")
    families = [config.model_type for config in configurations()]
    model.add_argument("--family", nargs="+", choices=families, help="default: bert")
    sizes = ", ".join(f"{name} {size.num_hidden_layers} x {size.hidden_size}" for name, size in SIZES.items())
    model.add_argument(
        "--size", nargs="+", choices=list(SIZES), help=f"layers x width: {sizes}; default: {_defaults('size')}"
    )
    model.add_argument("--model", metavar="DIR_OR_NAME", help="a configuration instead of both")
    model.add_argument(
        "--dropout",
        type=float,
        metavar="P",
        help=f"on hidden states and attention weights (default: {DROPOUT}, or that of --model)",
    )
    rows = parser.add_argument_group("rows")
    rows.add_argument(
        "--text",
        nargs="+",
        metavar="PATH",
        help="text files, .jsonl files or folders of them (blank line between documents); default: the documentation "
        "in this Python installation",
    )
    rows.add_argument("--language", default="en", metavar="CODE", help="of --text, for sentence splitting")
    rows.add_argument("--tokenizer", metavar="DIR_OR_NAME", help="default: one of the family's kind, trained here")
    rows.add_argument(
        "--vocab-size",
        type=int,
        default=VOCAB_SIZE,
        metavar="N",
        help="of the trained tokenizer, and the minimum of the model (default: %(default)s)",
    )
    rows.add_argument(
        "--examples",
        nargs="+",
        choices=EXAMPLES,
        help="kind of row: four sentences, one sentence, a document (all truncated to --length), or --length tokens "
        f"of one stream; default: paragraphs, on cuda documents for rows above {LONG}",
    )
    rows.add_argument(
        "--length", nargs="+", type=int, metavar="TOKENS", help=f"longest row (default: {_defaults('length')})"
    )
    batch_sizes = ", ".join(f"{name} {size.batch_size} ({size.long_batch_size})" for name, size in SIZES.items())
    rows.add_argument(
        "--batch-size",
        type=int,
        metavar="ROWS",
        help=f"default: {batch_sizes}; in brackets for rows above {LONG}; on cuda 8 times as many for base and large, "
        "and more for the others",
    )
    work = parser.add_argument_group("work")
    work.add_argument("--task", nargs="+", choices=TASKS, default=["pretraining"], help="default: pretraining")
    work.add_argument("--objective", choices=comparable_objectives(), default="mlm", help="default: mlm")
    work.add_argument(
        "--dtype",
        nargs="+",
        choices=list(DTYPES),
        help="bfloat16 means autocast with float32 weights in pre-training, and bfloat16 weights in inference "
        f"(default: {_defaults('dtype')})",
    )
    work.add_argument(
        "--against",
        nargs="*",
        choices=list(BASELINES),
        help="implementations besides transformers sdpa and this package; modernbert with mlm only, flash on cuda in "
        f"bfloat16 (default: {_defaults('against')}, where possible)",
    )
    work.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if available, else cpu")
    work.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads of torch (default: 1)")
    work.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each (default: %(default)s)")
    work.add_argument(
        "--steps", type=int, metavar="N", help=f"batches per turn (default: {STEPS['cpu']}, on cuda {STEPS['cuda']})"
    )
    work.add_argument("--seed", type=int, default=0, metavar="N", help="for weights, rows and masks (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="write all metrics of all rounds to this file")


def _defaults(name: str) -> str:
    return f"{' '.join(map(str, DEFAULTS['cpu'][name]))}; on cuda {' '.join(map(str, DEFAULTS['cuda'][name]))}"


def run(arguments: argparse.Namespace) -> int:
    """Measure every combination of the settings and print its table."""
    set_defaults(arguments)
    check_arguments(arguments)
    settings = make_settings(arguments)
    transformers.logging.set_verbosity_error()
    threads = torch.get_num_threads()
    torch.set_num_threads(arguments.threads)
    try:
        tables = []
        tokenized = read_text(arguments)
        for setting in settings:
            tables.append(run_setting(setting, *tokenized(setting.family), arguments.vocab_size, arguments.against))
            if arguments.json:
                content = json.dumps(report_as_json(tables, arguments.threads), indent=2)
                Path(arguments.json).write_text(content + "\n", encoding="utf-8")
        if len(tables) > 1:
            print(f"\n{format_summary(tables)}", flush=True)
    finally:
        torch.set_num_threads(threads)
    return 0


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
            found = measure(implementations, config, setting)
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"--batch-size {setting.batch_size}: {setting} does not fit into the device's memory: lower it, or "
                "measure fewer with --against and --size."
            ) from error
    rate = max(gemm_before, measure_gemm_rate(setting.torch_dtype, device))
    measured = {one.name: measurements for one, measurements in zip(implementations, found, strict=True)}
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
    """Refuse values out of range and options that exclude each other.

    Raises:
        ValueError: With option, value and remedy.
    """
    minimum = {"rounds": 1, "steps": 1, "batch_size": 1, "threads": 1, "vocab_size": 50, "seed": 0}
    for name, lowest in minimum.items():
        value = getattr(arguments, name)
        if value is not None and value < lowest:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {lowest}.")
    if min(arguments.length) < MIN_LENGTH:
        raise ValueError(f"--length {min(arguments.length)}: must be at least {MIN_LENGTH}.")
    if arguments.dropout is not None and not 0 <= arguments.dropout < 1:
        raise ValueError(f"--dropout {arguments.dropout}: must be a probability in [0, 1).")
    if "flash" in arguments.against and not can_use_flash(arguments.device, arguments.dtype):
        raise ValueError(f"--against flash: {NEEDS_FLASH}: leave it out.")
    if arguments.json:
        check_file(arguments.json, "--json")
    if arguments.model and (arguments.family or arguments.size):
        raise ValueError("--model replaces family and size: leave out --family and --size.")
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
