"""`hf-encoders benchmark`: this package beside transformers' own classes, here, on your text and settings.

All contenders start from the same weights and work through the same rows with the same tokens masked, a turn each,
round by round. One table a combination of settings goes to standard output; figures are medians over the rounds, least
and greatest in brackets:

  forward + backward  real tokens a second over those of "transformers sdpa" in the same round; padding never counts
  whole step          the same with making the batch (each with its own collator) and the update (fused AdamW) in it
  MFU                 operations that the real tokens need, over what a large matrix product of this type reaches here:
                      2 W tokens + 4 layers D sum(L^2) + 2 (D E + E V) predicted tokens in a forward pass, three times
                      that with backward (W: weights of a token's matrix products; L: length of each sequence; E: width
                      of the head, D but in ALBERT); the same for all contenders, so waste lowers it
  activations         bytes that a pass holds at its peak on top of weights and gradients, of the largest batch among
                      those of a turn: sizes of all tensors made and freed, in order; on CUDA the allocator's peak
  padding             share of the computed tokens that is padding (this package computes none outside of attention)

"by length" gives transformers its best batches: rows sorted by length over 50 batches. ModernBERT has the same
depth, width, vocabulary and weights in a layer, drops nothing out, and predicts the masked tokens only; its flash
attention is not used. --dropout 0 compares with it at equal dropout. A turn before the first round warms up; in
bfloat16 on a CPU, kernels for shapes that come up later are compiled in the round they come up in.
"""

import argparse
import gc
import itertools
import json
import warnings
from functools import cache
from pathlib import Path

import datasets
import torch
import transformers
from transformers import PreTrainedTokenizerBase

from hf_encoders.benchmark.contenders import OPPONENTS, make_contenders
from hf_encoders.benchmark.measuring import measure
from hf_encoders.benchmark.report import Table, format_table, make_json, make_table
from hf_encoders.benchmark.rows import make_pool
from hf_encoders.benchmark.settings import (
    DROPOUT,
    DTYPES,
    EXAMPLES,
    PAIRS,
    SIZES,
    TASKS,
    VOCAB_SIZE,
    Setting,
    default_batch_size,
    family_of,
    make_config,
    pair_label_name,
)
from hf_encoders.data.corpus import read_documents, splitter_for, tokenize_documents
from hf_encoders.data.corpus.python_docs import read_python_documents
from hf_encoders.data.vocabulary.tokenizer_training import train_tokenizer
from hf_encoders.loading import load_tokenizer
from hf_encoders.objectives import OBJECTIVES, get_objective
from hf_encoders.records.flops import measure_gemm_rate
from hf_encoders.registration import config_class_of, configurations
from hf_encoders.writing import check_file


CHARACTERS_A_LIBRARY = 100_000  # of the Python documentation; enough for the vocabulary and for 50 batches
STEPS = {"cpu": 4, "cuda": 20}  # a turn of a small model takes about a second or less
SHORTEST = 8  # tokens of a row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    model = parser.add_argument_group("model")
    families = [config.model_type for config in configurations()]
    model.add_argument("--family", nargs="+", choices=families, help="default: bert")
    sizes = ", ".join(f"{name} {size.num_hidden_layers} x {size.hidden_size}" for name, size in SIZES.items())
    model.add_argument("--size", nargs="+", choices=list(SIZES), help=f"layers x width: {sizes}; default: small")
    model.add_argument(
        "--model", metavar="PATH", help="a config.json of your own, or a folder with one, instead of both"
    )
    model.add_argument(
        "--dropout",
        type=float,
        metavar="P",
        help=f"on hidden states and attention weights (default: {DROPOUT}; with --model what it says)",
    )
    rows = parser.add_argument_group("rows")
    rows.add_argument(
        "--text",
        nargs="+",
        metavar="PATH",
        help="text files, .jsonl files or folders of them (blank line between documents); default: the documentation "
        "inside this Python installation",
    )
    rows.add_argument("--language", default="en", metavar="CODE", help="of --text, for sentence splitting")
    rows.add_argument("--tokenizer", metavar="DIR_OR_NAME", help="default: one of the family's kind, trained here")
    rows.add_argument(
        "--vocab-size",
        type=int,
        default=VOCAB_SIZE,
        metavar="N",
        help="entries of the trained tokenizer, and at least so many in the model (default: %(default)s)",
    )
    rows.add_argument(
        "--examples",
        nargs="+",
        choices=EXAMPLES,
        help="what a row is: four sentences, one, a document (all cut at --length), or full to the last token of one "
        "stream; default: paragraphs",
    )
    rows.add_argument(
        "--length", nargs="+", type=int, default=[128], metavar="TOKENS", help="longest row (default: 128)"
    )
    batch_sizes = ", ".join(f"{name} {size.batch_size} ({size.long_batch_size})" for name, size in SIZES.items())
    rows.add_argument(
        "--batch-size", type=int, metavar="ROWS", help=f"default: {batch_sizes}; in brackets for rows above 128"
    )
    work = parser.add_argument_group("work")
    work.add_argument("--task", nargs="+", choices=TASKS, default=["pretraining"], help="default: pretraining")
    work.add_argument("--objective", choices=list(OBJECTIVES), default="mlm", help="default: mlm")
    work.add_argument(
        "--dtype",
        nargs="+",
        choices=list(DTYPES),
        default=["float32"],
        help="bfloat16 is autocast over float32 weights in pre-training, bfloat16 weights in inference; all "
        "contenders have the same (default: float32)",
    )
    work.add_argument(
        "--against",
        nargs="*",
        choices=list(OPPONENTS),
        help="opponents beside transformers sdpa (default: all; modernbert has no pair objective)",
    )
    work.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is one, else cpu")
    work.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads of torch (default: 1)")
    work.add_argument("--rounds", type=int, default=7, metavar="N", help="turns of each (default: %(default)s)")
    work.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=f"batches in a turn (default: {STEPS['cpu']}, on cuda {STEPS['cuda']})",
    )
    work.add_argument("--seed", type=int, default=0, metavar="N", help="of weights, rows and masks (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="write all figures of all rounds there")


def run(arguments: argparse.Namespace) -> int:
    """Measure every combination of the settings and print its table."""
    check_numbers(arguments)
    settings = make_settings(arguments)
    against = opponents(arguments)
    transformers.logging.set_verbosity_error()
    threads = torch.get_num_threads()
    torch.set_num_threads(arguments.threads)
    try:
        tables = []
        text = Text(arguments)
        for setting in settings:
            tables.append(run_setting(setting, text, arguments.vocab_size, against))
            print(f"\n{format_table(tables[-1])}", flush=True)
            if arguments.json:
                Path(arguments.json).write_text(
                    json.dumps(make_json(tables, arguments.threads), indent=2) + "\n", encoding="utf-8"
                )
    finally:
        torch.set_num_threads(threads)
    return 0


class Text:
    """The documents, and what each family's tokenizer makes of them; nothing is made twice.

    Args:
        arguments: of the command.
    """

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.tokenized = cache(self._tokenized)
        self._documents = cache(self._read)

    def _read(self) -> list[list[str]]:
        splitter = splitter_for(self.arguments.language)
        if self.arguments.text:
            return list(read_documents(self.arguments.text, sentence_splitter=splitter))
        return [document.sentences for document in read_python_documents(splitter, CHARACTERS_A_LIBRARY)]

    def _tokenized(self, family: str) -> tuple[datasets.Dataset, PreTrainedTokenizerBase]:
        """The corpus and the tokenizer of a family."""
        documents = self._documents()
        if self.arguments.tokenizer:
            tokenizer = load_tokenizer(self.arguments.tokenizer, "--tokenizer")
        else:
            sentences = (sentence for document in documents for sentence in document)
            tokenizer = train_tokenizer(
                sentences, config_class_of(family), self.arguments.vocab_size, max(self.arguments.length)
            )
        return tokenize_documents(documents, tokenizer), tokenizer


def run_setting(setting: Setting, text: Text, vocab_size: int, against: list[str]) -> Table:
    """Measure all contenders at one setting."""
    corpus, tokenizer = text.tokenized(setting.family)
    config = make_config(setting, tokenizer, vocab_size)
    pool = make_pool(corpus, tokenizer, setting, pair_label_name(setting))
    contenders = make_contenders(config, setting, pool, tokenizer, against)
    device = torch.device(setting.device)
    gemm_before = measure_gemm_rate(setting.torch_dtype, device)
    with warnings.catch_warnings():
        # torch's profiler warns of what does not concern the memory of one pass.
        warnings.filterwarnings("ignore", module="torch.profiler")
        found = measure(contenders, config, setting)
    gemm_flops_per_second = max(gemm_before, measure_gemm_rate(setting.torch_dtype, device))
    table = make_table(setting, contenders, found, gemm_flops_per_second)
    del contenders
    gc.collect()  # models refer to themselves, and the next setting needs their memory
    return table


def make_settings(arguments: argparse.Namespace) -> list[Setting]:
    """Every combination of what several values were given for.

    Raises:
        ValueError: for arguments that exclude each other.
    """
    if arguments.model and (arguments.family or arguments.size):
        raise ValueError("--model says family and size itself: leave out --family and --size.")
    objective = get_objective(arguments.objective)
    if objective.has_example_labels and arguments.examples:
        raise ValueError(f"--examples: rows of --objective {arguments.objective} are sentence pairs: leave it out.")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here: use --device cpu.")
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.model:
        models = [(family_of(Path(arguments.model)), arguments.model)]
    else:
        models = list(itertools.product(arguments.family or ["bert"], arguments.size or ["small"]))
    for family, _ in models:
        objective.model_class(config_class_of(family))  # refuses a family without its heads
    dropout = DROPOUT if arguments.dropout is None and not arguments.model else arguments.dropout
    examples = [PAIRS] if objective.has_example_labels else arguments.examples or [EXAMPLES[0]]
    return [
        Setting(
            family=family,
            size=size,
            examples=kind,
            length=length,
            batch_size=arguments.batch_size or default_batch_size(size, length),
            task=task,
            dtype=dtype,
            objective=arguments.objective,
            dropout=dropout,
            rounds=arguments.rounds,
            steps=arguments.steps or STEPS[device],
            device=device,
            seed=arguments.seed,
        )
        for (family, size), task, length, kind, dtype in itertools.product(
            models, arguments.task, arguments.length, examples, arguments.dtype
        )
    ]


def opponents(arguments: argparse.Namespace) -> list[str]:
    """Opponents beside the baseline.

    Raises:
        ValueError: for ModernBERT in a pair objective.
    """
    if not get_objective(arguments.objective).has_example_labels:
        return list(OPPONENTS) if arguments.against is None else arguments.against
    if arguments.against and "modernbert" in arguments.against:
        raise ValueError(
            f"--against modernbert: it has no head for --objective {arguments.objective}: leave it out, or use "
            "--objective mlm."
        )
    return [name for name in OPPONENTS if name != "modernbert"] if arguments.against is None else arguments.against


def check_numbers(arguments: argparse.Namespace) -> None:
    """Refuse numbers that nothing can be measured with."""
    least = {"rounds": 1, "steps": 1, "batch_size": 1, "threads": 1, "vocab_size": 50, "seed": 0}
    for name, lowest in least.items():
        value = getattr(arguments, name)
        if value is not None and value < lowest:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {lowest}.")
    if min(arguments.length) < SHORTEST:
        raise ValueError(f"--length {min(arguments.length)}: must be at least {SHORTEST}.")
    if arguments.dropout is not None and not 0 <= arguments.dropout < 1:
        raise ValueError(f"--dropout {arguments.dropout}: must be a probability in [0, 1).")
    if arguments.json:
        check_file(arguments.json, "--json")
