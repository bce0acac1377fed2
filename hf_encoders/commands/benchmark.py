"""`hf-encoders benchmark`: compare speed and memory with those of transformers' own classes on this machine.

All implementations have the same weights, rows and masks, and take turns, round by round. Each combination of the
settings gives one table; metrics are medians over the rounds, with minimum and maximum in brackets:

  forward + backward  real tokens per second relative to "transformers sdpa" in the same round, without padding
  whole step          the same including collating (each with its own collator) and the update (fused AdamW)
  MFU                 operations needed for the real tokens (hf_encoders/publishing/hardware.py has the formula)
                      relative to a large matrix product of this data type here
  activations         peak bytes of a pass above weights and gradients, of the largest batch of a turn
  padding             share of the computed positions that is padding (this package has none outside of attention)

"by length" are transformers' best batches: rows sorted by length over 50 batches. ModernBERT has the same depth,
width, vocabulary and weights per layer, no dropout, predicts masked tokens only, and runs with flash attention on CUDA
where flash-attn is installed; use --dropout 0 for equal dropout. OMP_NUM_THREADS sets torch's threads.

On CUDA the defaults measure a GPU in one command: base and large, rows of up to 128 and 512 tokens, bfloat16, all
implementations except eager attention.
"""

import argparse
import itertools
import json
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_encoders.corpus.text_files import text_files
from hf_encoders.registration import family_names
from hf_encoders.writing import check_file, text_table


if TYPE_CHECKING:
    from hf_encoders.benchmark import Setting

# Layers, width, heads; rows of up to 128 tokens and longer ones, on a CPU and on CUDA, where as many as transformers'
# classes should fit into 24 GB. Base and large are the BERT paper's.
SIZES = {
    "small": (4, 256, 4, {"cpu": (32, 8), "cuda": (512, 128)}),
    "mini": (6, 384, 6, {"cpu": (32, 8), "cuda": (256, 64)}),
    "base": (12, 768, 12, {"cpu": (16, 6), "cuda": (128, 32)}),
    "large": (24, 1024, 16, {"cpu": (8, 2), "cuda": (64, 16)}),
}
EXAMPLES = ("paragraphs", "sentences", "documents", "full")
BASELINES = ("eager", "flash", "grouped", "modernbert", "compiled")
DEFAULTS: dict[str, dict[str, Any]] = {  # on a CPU, ModernBERT doubles the time, and compiling takes minutes
    "cpu": {"size": ["small"], "length": [128], "dtype": ["float32"], "against": ["grouped"], "steps": 2},
    "cuda": {"size": ["base", "large"], "length": [128, 512], "dtype": ["bfloat16"], "steps": 10}
    | {"against": ["flash", "grouped", "modernbert", "compiled"]},
}
LEAST = {"rounds": 1, "steps": 1, "batch_size": 1, "vocab_size": 100, "seed": 0, "length": 8}
NEEDS_FLASH = "flash attention needs --device cuda, --dtype bfloat16 and the package flash-attn"
CHARACTERS_PER_LIBRARY = 100_000  # of the Python documentation; enough for the vocabulary and for 50 batches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--family", nargs="+", choices=family_names(), default=["bert"], help="default: bert")
    sizes = ", ".join(f"{name} {layers} x {width}" for name, (layers, width, *_) in SIZES.items())
    add("--size", nargs="+", choices=list(SIZES), help=f"layers x width: {sizes}; default: {_defaults('size')}")
    add("--dropout", type=float, default=0.1, metavar="P", help="default: 0.1")
    add("--text", nargs="+", metavar="PATH", help="text files (default: the documentation of this Python)")
    add("--vocab-size", type=int, default=30522, metavar="N", help="of tokenizer and model (default: %(default)s)")
    kinds = "four sentences, one, a document, each truncated to --length, or --length tokens of all text"
    add("--examples", nargs="+", choices=EXAMPLES, help=f"{kinds} (default: paragraphs; above 128 on cuda documents)")
    add("--length", nargs="+", type=int, metavar="TOKENS", help=f"longest row (default: {_defaults('length')})")
    add("--batch-size", type=int, metavar="ROWS", help="default: by size, length and device")
    add(
        "--task", nargs="+", choices=["pretraining", "inference"], default=["pretraining"], help="default: pretraining"
    )
    add("--dtype", nargs="+", choices=["float32", "bfloat16"], help=f"default: {_defaults('dtype')}")
    add("--against", nargs="*", choices=BASELINES, help=f"besides transformers sdpa (default: {_defaults('against')})")
    add("--device", choices=["cpu", "cuda"], help="default: cuda if available, else cpu")
    add("--rounds", type=int, default=3, metavar="N", help="turns of each (default: %(default)s)")
    add("--steps", type=int, metavar="N", help=f"batches per turn (default: {_defaults('steps')})")
    add("--seed", type=int, default=0, metavar="N", help="for weights, rows and masks (default: 0)")
    add("--json", metavar="FILE", help="write all metrics of all rounds to this file")


def _defaults(name: str) -> str:
    values = [DEFAULTS[device][name] for device in ("cpu", "cuda")]
    return "; on cuda ".join(" ".join(map(str, value)) if isinstance(value, list) else str(value) for value in values)


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong, and numbers out of range."""
    for name, least in LEAST.items():
        value = getattr(arguments, name)
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number < least:
                raise ValueError(f"--{name.replace('_', '-')} {number}: must be at least {least}.")
    if not 0 <= arguments.dropout < 1:
        raise ValueError(f"--dropout {arguments.dropout}: must be a probability in [0, 1).")
    text_files(arguments.text or (), "--text")
    if arguments.json:
        check_file(arguments.json, "--json")


def run(arguments: argparse.Namespace) -> int:
    """Measure every combination of the settings and print its table."""
    import transformers

    from hf_encoders.corpus.documents import read_documents, split_sentences
    from hf_encoders.corpus.python_docs import read_python_documents

    settings = make_settings(arguments)
    transformers.logging.set_verbosity_error()
    if arguments.text:
        documents = list(read_documents(arguments.text))
    else:
        documents = [item.sentences for item in read_python_documents(split_sentences, CHARACTERS_PER_LIBRARY)]
    about, tables = describe_machine(), []
    print("{hardware}, torch {torch}, transformers {transformers}".format(**about["machine"]))
    for setting in settings:
        tables.append(measure_setting(arguments, setting, documents))
        print(f"\n{format_table(setting, tables[-1])}", flush=True)
        if arguments.json:
            content = json.dumps({**about, "tables": tables}, indent=2)
            Path(arguments.json).write_text(content + "\n", encoding="utf-8")
    return 0


def make_settings(arguments: argparse.Namespace) -> list["Setting"]:
    """Set what was not given, by device, and return every combination of the settings, if they are possible here."""
    import torch

    from hf_encoders.benchmark import Setting, can_use_flash
    from hf_encoders.registration import config_class_of

    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here: use --device cpu.")
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    is_default = arguments.against is None
    for name, value in DEFAULTS[arguments.device].items():
        setattr(arguments, name, value if getattr(arguments, name) is None else getattr(arguments, name))
    if "flash" in arguments.against and not can_use_flash(arguments.device, arguments.dtype):
        if not is_default:
            raise ValueError(f"--against flash: {NEEDS_FLASH}: leave it out.")
        arguments.against = [name for name in arguments.against if name != "flash"]
        print(f"transformers flash is left out: {NEEDS_FLASH}", file=sys.stderr)
    for family in arguments.family:
        if "pretraining" in arguments.task and "AutoModelForMaskedLM" not in config_class_of(family).AUTO_MAP:
            raise ValueError(f"--family {family}: has no masked-LM head to compare: use --task inference.")
    options = (arguments.family, arguments.size, arguments.task, arguments.length, arguments.dtype)
    settings = []
    for family, size, task, length, dtype in itertools.product(*options):
        is_long = length > 128
        default = "documents" if is_long and arguments.device == "cuda" else "paragraphs"
        batch_size = arguments.batch_size or SIZES[size][3][arguments.device][is_long]
        effort = (dtype, arguments.dropout, arguments.rounds, arguments.steps, arguments.device, arguments.seed)
        for examples in arguments.examples or [default]:
            settings.append(Setting(family, size, examples, length, batch_size, task, *effort))
    return settings


def measure_setting(arguments: argparse.Namespace, setting: "Setting", documents: list[list[str]]) -> dict[str, Any]:
    """Train a tokenizer, make rows and models of a setting, and measure them; return the table."""
    from hf_encoders.benchmark import Rows, make_implementations, measure
    from hf_encoders.corpus.tokenizer_training import padded_vocab_size, train_tokenizer
    from hf_encoders.registration import config_class_of
    from hf_encoders.runs.recipe import tokenizer_fields

    config_class = config_class_of(setting.family)
    sentences = (sentence for document in documents for sentence in document)
    tokenizer = train_tokenizer(sentences, config_class, arguments.vocab_size, setting.length)
    layers, width, heads, _ = SIZES[setting.size]
    config = config_class(
        vocab_size=max(arguments.vocab_size, padded_vocab_size(tokenizer, 1)),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_dropout_prob=setting.dropout,
        attention_probs_dropout_prob=setting.dropout,
        **tokenizer_fields(config_class, tokenizer, setting.length),
    )
    rows = Rows(documents, tokenizer, setting)
    implementations = make_implementations(config, setting, rows, tokenizer, arguments.against)
    return measure(implementations, rows, config, setting)


def format_table(setting: "Setting", table: dict[str, Any]) -> str:
    """Return a table as text with a heading; values without brackets are medians."""
    first = "forward" + " + backward" * setting.trains
    rows = [["", first, "tokens/s", "MFU", *["whole step"][: setting.trains], "activations MB", "padding"]]
    for line in table["lines"]:
        row = [line["name"], _with_range(line["pass_ratio"]), f"{line['tokens_per_second']['median']:,.0f}"]
        row += [f"{line['mfu']['median']:.1%}", *[_with_range(line["step_ratio"])][: setting.trains]]
        rows.append([*row, f"{line['activation_megabytes']:,.1f}", f"{line['padding']:.1%}"])
    effort = f"{setting.rounds} rounds of {setting.steps} batches"
    about = f"{table['parameters'] / 1e6:.1f} million parameters, {effort}"
    rate = f"GEMM {table['gemm_flops_per_second'] / 1e9:,.0f} GFLOP/s"
    return f"{setting}\n{about}, {rate}\n\n{text_table(rows, '<>')}"


def _with_range(values: dict[str, float]) -> str:
    return f"{values['median']:.2f} [{values['least']:.2f}-{values['greatest']:.2f}]"


def describe_machine() -> dict[str, Any]:
    """Return the command, redacted, and the machine: hardware, threads and versions."""
    import torch

    from hf_encoders.publishing.hardware import cpu_model, describe_hardware, describe_software
    from hf_encoders.publishing.secrets import published_command

    machine = {"hardware": describe_hardware(), "cpu": cpu_model(), "threads": torch.get_num_threads()}
    machine |= {"platform": platform.platform(), **describe_software(), "cuda": torch.version.cuda}
    return {"command": published_command(["hf-encoders", *sys.argv[1:]]), "machine": machine}
