"""`hf-encoders benchmark`: compare speed and memory with those of transformers' own classes on this machine.

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
from typing import NamedTuple

from hf_encoders.data.corpus.text_files import check_text_files
from hf_encoders.inputs import check_model, check_name_or_path
from hf_encoders.options.names import COMPARABLE_OBJECTIVES
from hf_encoders.registration import family_names
from hf_encoders.writing import check_file


class Size(NamedTuple):
    """Fields of the configuration, and the rows per batch: of up to `LONG` tokens, and longer ones; then on CUDA."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    batch_size: int
    long_batch_size: int
    cuda_batch_size: int
    long_cuda_batch_size: int


# Base and large are the BERT paper's. On CUDA, as many rows as transformers' classes should fit into 24 GB.
SIZES = {
    "small": Size(4, 256, 4, 32, 8, 512, 128),
    "mini": Size(6, 384, 6, 32, 8, 256, 64),
    "base": Size(12, 768, 12, 16, 6, 128, 32),
    "large": Size(24, 1024, 16, 8, 2, 64, 16),
}
LONG = 128  # tokens; longer rows get `long_batch_size`
VOCAB_SIZE = 30522  # bert-base-uncased's
DROPOUT = 0.1  # the BERT and RoBERTa papers'
EXAMPLES = ("paragraphs", "sentences", "documents", "full")
PAIRS = "pairs"  # kind of the rows of a pair objective
TASKS = ("pretraining", "inference")
DTYPES = ("float32", "bfloat16")
# Implementations besides transformers' sdpa and this package's.
BASELINES = {
    "eager": "transformers eager",
    "flash": "transformers flash",
    "grouped": "transformers sdpa, by length",
    "modernbert": "transformers ModernBERT, by length",
    "compiled": "hf_encoders compiled",
}
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    model = parser.add_argument_group("model")
    model.add_argument("--family", nargs="+", choices=family_names(), help="default: bert")
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
    work.add_argument("--objective", choices=COMPARABLE_OBJECTIVES, default="mlm", help="default: mlm")
    work.add_argument(
        "--dtype",
        nargs="+",
        choices=DTYPES,
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


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong, and numbers out of range."""
    check_numbers(arguments)
    check_text_files(arguments.text or (), "--text")
    if arguments.model is not None:
        check_model(arguments.model, f"--model {arguments.model!r}")
    if arguments.tokenizer is not None:
        check_name_or_path(arguments.tokenizer, f"--tokenizer {arguments.tokenizer!r}")
    if arguments.json:
        check_file(arguments.json, "--json")


def check_numbers(arguments: argparse.Namespace) -> None:
    """Refuse numbers out of range, and options that exclude each other."""
    minimum = {"rounds": 1, "steps": 1, "batch_size": 1, "threads": 1, "vocab_size": 50, "seed": 0}
    for name, lowest in minimum.items():
        value = getattr(arguments, name)
        if value is not None and value < lowest:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {lowest}.")
    if arguments.length is not None and min(arguments.length) < MIN_LENGTH:
        raise ValueError(f"--length {min(arguments.length)}: must be at least {MIN_LENGTH}.")
    if arguments.dropout is not None and not 0 <= arguments.dropout < 1:
        raise ValueError(f"--dropout {arguments.dropout}: must be a probability in [0, 1).")
    if arguments.model and (arguments.family or arguments.size):
        raise ValueError("--model replaces family and size: leave out --family and --size.")
