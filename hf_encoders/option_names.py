"""Options of transformers' example scripts, and what to use here instead."""

import argparse

from hf_encoders.inputs import close_names


NOTHING = "leave it out"
# Name in the scripts -> what to use: the first entry that begins with an option or a positional argument of the
# command, or with neither.
NAMES = {
    "model_name_or_path": ("--model", "RECIPE, whose model is trained from scratch", "DIR_OR_NAME", "DIR"),
    "config_name": ("--model", "RECIPE, which defines the model"),
    "model_type": ("--model", "RECIPE, which defines the model"),
    "tokenizer_name": ("--tokenizer", f"{NOTHING}: the tokenizer is the model's"),
    "train_file": ("--train", "--corpus", "--input", "--text"),
    "validation_file": ("--validation", "--validation-share", "--text"),
    "test_file": ("--test", "--text"),
    "dataset_name": ("--dataset", "--corpus, with a corpus made by `hf-encoders corpus --dataset NAME`"),
    "max_seq_length": ("--max-length", "RECIPE, phases: length"),
    "max_length": ("--max-length", "RECIPE, phases: length"),
    "block_size": ("--max-length", "RECIPE, phases: length"),
    "doc_stride": ("--window-overlap", "--doc-stride", NOTHING),
    "text_column_name": ("--text-column", "--tokens-column", NOTHING),
    "label_column_name": ("--label-column", "--tags-column", NOTHING),
    "mlm_probability": ("RECIPE, masking: mask_probability", NOTHING),
    "line_by_line": (f"{NOTHING}: lines are sentences, and blank lines separate documents",),
    "validation_split_percentage": ("--validation-share", "--held-out"),
    "preprocessing_num_workers": ("--workers", "RECIPE with a corpus of `hf-encoders corpus --workers N`"),
    "output_dir": ("--output",),
    "overwrite_output_dir": ("--overwrite", NOTHING),
    "warmup_ratio": ("--warmup", "RECIPE or --warmup_steps, below 1 a share"),
    "trainer": ("the field itself, for example --lr_scheduler_type cosine",),
    "layers": (f"{NOTHING}: examples/combine_layers.py trains a head on a mixture of layers",),
    "do_train": (f"{NOTHING}: the command trains",),
    "do_eval": (f"{NOTHING}: the command evaluates on every evaluation set it is given",),
    "do_predict": (f"{NOTHING}: the command evaluates on every evaluation set it is given",),
}


def names_here(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """What to use instead of each option in `words` that the parser does not have and that is known.

    The parser may have a default `other_names` with more names, in the form of `NAMES`.
    """
    options = parser._option_string_actions  # argparse has no public list
    positionals = {action.metavar for action in parser._actions}
    known = NAMES | (parser.get_default("other_names") or {})
    found = []
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in known or f"--{name.replace('_', '-')}" in options:
            continue
        remedy = next((one for one in known[name] if _is_of(one, {*options, *positionals})), None)
        if remedy is not None:
            found.append(f"--{name}: {advice(remedy)}")
    return list(dict.fromkeys(found))


def closest_options(words: list[str], parser: argparse.ArgumentParser) -> str:
    """Return, in brackets, the option that is closest to each one in `words` that the parser does not have."""
    # Without the hyphens that all begin with, which would make any two short names similar.
    names = [option.removeprefix("--") for option in parser._option_string_actions if option.startswith("--")]
    unknown = [word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")]
    closest = {word: close_names(word, names)[:1] for word in unknown if word not in names}
    asked = [f"--{word}: did you mean --{name}?" for word, close in closest.items() for name in close]
    return f" ({' '.join(asked)})" if asked else ""


def advice(remedy: str) -> str:
    """A remedy of `NAMES` as it stands in a message.

    >>> advice("--output"), advice("leave it out: the command trains")
    ('use --output', 'leave it out: the command trains')
    """
    return remedy if remedy.startswith(NOTHING) else f"use {remedy}"


def _is_of(remedy: str, arguments: set[str | None]) -> bool:
    first = remedy.replace(",", " ").split()[0]
    return first in arguments or not (first.startswith("--") or first.isupper())
