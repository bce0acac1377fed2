"""What adapting is worth: stock checkpoints of three families, trained on general text, go on with that of a domain.

    OMP_NUM_THREADS=1 python -m benchmarks.adapting --general NOVELS --domain SCHOOLBOOKS --output runs/adapting

For each family, transformers' own classes, `Trainer` and collator train a small encoder on nine tenths of the general
text's documents, one paragraph an example, truncated at 32 tokens in the first steps and at 64 later, and
`save_pretrained` writes it. The last tenth is the text of `--keep`, which is evaluated and replayed. From there
`hf-encoders adapt --recipe adapt-minutes` goes on

- with the domain's text alone,
- with a fifth of general text replayed,
- with the domain's text and a tokenizer extended by 1,000 entries of it.

The table has the losses of held-out text of both before and after, as the runs' records have them; only the choice of
new entries has seen that text. What is in `--output` already is not made again, so a killed run of the
script goes on where it was: take another folder for other settings. About 20 minutes a family on one core.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import datasets
import transformers
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from hf_encoders.writing import markdown_table, replaced_folder, write_whole


SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.05}
FAMILIES = {  # transformers' configuration, and what is the family's own
    "bert": (transformers.BertConfig, {}),
    "roberta": (transformers.RobertaConfig, {"type_vocab_size": 1, "max_position_embeddings": 514}),
    "albert": (transformers.AlbertConfig, {"embedding_size": 128}),
}
VARIANTS = {  # whether the tokenizer is extended, and options of `adapt`
    "domain alone": (False, []),
    "a fifth replayed": (False, ["--replay", "0.2"]),
    "1,000 more entries": (True, []),
}
VOCAB_SIZE, EXAMPLES, MASK_RATE = 8000, 64, 0.3
FIRST_LENGTH, LENGTH, FIRST_SHARE = 32, 64, 0.75
KEPT_SHARE, HELD_OUT_SHARE = 0.1, 0.05  # documents of the general text for --keep; of each text for evaluation
LEAST_CHARACTERS = 100  # headings and short remarks are left out of the stock training
TRAINING = {
    "learning_rate": 3e-3, "warmup_steps": 0.06, "lr_scheduler_type": "linear", "weight_decay": 0.01,
    "adam_beta2": 0.98, "per_device_train_batch_size": EXAMPLES, "save_strategy": "no", "logging_steps": 200,
    "train_sampling_strategy": "sequential", "report_to": "none", "use_cpu": True, "disable_tqdm": True,
}  # fmt: skip


def main() -> None:
    """Make what is missing, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--general", type=Path, required=True, metavar="FILE", help="text of the stock checkpoints")
    parser.add_argument("--domain", type=Path, required=True, metavar="FILE", help="text to adapt to")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="default: all")
    parser.add_argument("--steps", type=int, default=1100, metavar="N", help="of the stock training (default: 1100)")
    parser.add_argument("--adapt-steps", type=int, default=1200, metavar="N", help="of each run (default: 1200)")
    arguments = parser.parse_args()
    divide(arguments)
    for family in arguments.families:
        make_family(family, arguments)
    print(table(arguments))


def divide(arguments: argparse.Namespace) -> None:
    """`seen.txt`, which the stock models are trained on, and `kept.txt`, of the general text."""
    arguments.seen, arguments.kept = arguments.output / "seen.txt", arguments.output / "kept.txt"
    if not arguments.kept.exists():
        documents = arguments.general.read_text(encoding="utf-8").split("\n\n")
        first = round(len(documents) * (1 - KEPT_SHARE))
        arguments.output.mkdir(parents=True, exist_ok=True)
        write_whole(arguments.seen, "\n\n".join(documents[:first]))
        write_whole(arguments.kept, "\n\n".join(documents[first:]))


def make_family(family: str, arguments: argparse.Namespace) -> None:
    """A stock checkpoint, an extended one, and three runs from them."""
    folder, seen, kept, domain = arguments.output / family, arguments.seen, arguments.kept, arguments.domain
    tokenizer, start, extended = folder / "tokenizer", folder / "start", folder / "extended"
    if not (tokenizer / "tokenizer_report.json").exists():
        run("tokenizer", "--family", family, "--input", seen, "--vocab-size", VOCAB_SIZE, "--output", tokenizer)
    if not start.exists():
        with replaced_folder(start) as unfinished:
            train_stock(family, tokenizer, seen, arguments.steps, unfinished)
    if not extended.exists():
        run("tokenizer", "--extend", start, "--add", 1000, "--corpus", domain, "--keep", kept, "--output", extended)
    for name, (is_extended, options) in VARIANTS.items():
        checkpoint, output = extended if is_extended else start, folder / name.replace(" ", "_")
        if not (output / "model").exists():
            texts = ["--corpus", domain, "--keep", kept, "--validation-share", HELD_OUT_SHARE]
            settings = ["--recipe", "adapt-minutes", "--max-steps", arguments.adapt_steps, "--use-cpu", "True"]
            run("adapt", checkpoint, *texts, *settings, *options, "--output", output, "--disable-tqdm", "True")


def run(*words: object) -> None:
    """A command of this package, in a process of its own."""
    print("hf-encoders", *words, flush=True)
    command = [sys.executable, "-c", "from hf_encoders.cli import main; raise SystemExit(main())", *map(str, words)]
    subprocess.run(command, check=True)


def train_stock(family: str, tokenizer_folder: Path, text: Path, steps: int, output: Path) -> None:
    """Transformers' own classes from beginning to end."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    lines = [line for line in text.read_text(encoding="utf-8").splitlines() if len(line) >= LEAST_CHARACTERS]
    if len(lines) < steps * EXAMPLES:
        raise SystemExit(f"--steps {steps}: the text has paragraphs for {len(lines) // EXAMPLES} steps.")
    rows = datasets.Dataset.from_dict({"text": lines}).shuffle(seed=0).select(range(steps * EXAMPLES))
    first = round(len(rows) * FIRST_SHARE)

    def tokenized(batch: dict[str, list[str]], positions: list[int]) -> dict[str, list[list[int]]]:
        lengths = [FIRST_LENGTH if position < first else LENGTH for position in positions]
        pairs = zip(batch["text"], lengths, strict=True)
        return {"input_ids": [tokenizer(text, truncation=True, max_length=most).input_ids for text, most in pairs]}

    rows = rows.map(tokenized, batched=True, with_indices=True, remove_columns="text")
    config_class, family_fields = FAMILIES[family]
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    transformers.set_seed(0)
    config = config_class(vocab_size=len(tokenizer), **SIZES, **NO_DROPOUT, **family_fields, **special)
    model = transformers.AutoModelForMaskedLM.from_config(config)
    arguments = TrainingArguments(str(output), max_steps=steps, **TRAINING)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASK_RATE)
    Trainer(model, arguments, train_dataset=rows, data_collator=collator, processing_class=tokenizer).train()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def table(arguments: argparse.Namespace) -> str:
    """Held-out losses of every finished run: nats per token before and after, then nats per byte."""
    rows = []
    for family in FAMILIES:
        for name in VARIANTS:
            record = arguments.output / family / name.replace(" ", "_") / "model" / "training_record.json"
            if record.exists():
                rows.append([family, name, *figures(json.loads(record.read_text())["losses"])])
    measured = [f"{text}, {unit}" for unit in ("nats per token", "nats per byte") for text in ("domain", "general")]
    return markdown_table([["family", "adapted with", *measured], *rows], "<<>")


def figures(losses: dict[str, float]) -> list[str]:
    """`before -> after` in each column's order."""
    shown = []
    for kind in ("held-out", "held-out, per byte"):
        for source in ("domain", "general"):
            before, after = (losses[f"masked tokens, {kind}, {source}{when}"] for when in (", before", ""))
            shown.append(f"{before:.3f} -> {after:.3f}")
    return shown


if __name__ == "__main__":
    main()
