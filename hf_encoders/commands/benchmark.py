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
import json
from pathlib import Path

from hf_encoders.benchmark.choices import (
    BASELINES,
    DEFAULTS,
    DROPOUT,
    DTYPES,
    EXAMPLES,
    LONG,
    MIN_LENGTH,
    SIZES,
    STEPS,
    TASKS,
    VOCAB_SIZE,
)
from hf_encoders.corpus.text_files import check_text_files
from hf_encoders.inputs import check_model, check_name_or_path
from hf_encoders.registration import family_names
from hf_encoders.runs.options import text_objectives
from hf_encoders.writing import check_file


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
    work.add_argument("--objective", choices=text_objectives(in_transformers=True), default="mlm", help="default: mlm")
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


def run(arguments: argparse.Namespace) -> int:
    """Measure every combination of the settings and print its table."""
    import torch
    import transformers

    from hf_encoders.benchmark.command import check_arguments, make_settings, read_text, run_setting, set_defaults
    from hf_encoders.benchmark.report import format_summary, report_as_json

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
