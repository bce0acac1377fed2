"""`hf-encoders adapt CHECKPOINT --corpus TEXT --output DIR`: continue the pre-training of an encoder on your text.

CHECKPOINT is a folder or a name on the Hub, of this package or of transformers: family, tokenizer, sizes and objective
are read from it. Heads that it does not have are new, and learn alone in the first steps. Held-out text is evaluated
before and after; with --keep also general text, which shows what is forgotten, and --replay mixes it in against that.

For words of the domain, first give the tokenizer entries for them: `hf-encoders tokenizer --extend CHECKPOINT`.

Without --recipe, the batch is chosen for the device, the number of steps for the size of the text, and the learning
rate for the width of the encoder; --max-steps and --learning-rate set others. Recipe, fields of
transformers.TrainingArguments, --plan, resuming and extending are as for `hf-encoders pretrain` (see its --help).
"""

import argparse

from hf_encoders.inputs import check_model
from hf_encoders.options.names import HEAD_STEPS, POSITIONS, TEXT_OBJECTIVES
from hf_encoders.recipes.run_options import (
    add_run_arguments,
    check_run,
    check_text_or_corpus,
    recipe_names,
    recipes_for_help,
)


RECIPE, RECIPE_ON_CPU = "adapt", "adapt-minutes"
# Without --recipe. Text that is read again is worth nearly as much as new text up to 4 times, and little from 16 on
# (Muennighoff et al. 2023); on the text of a task, 100 times, with new masks, still helped (Gururangan et al. 2020).
EPOCHS = 10
LEAST_STEPS = 500  # as in fine-tuning: fewer hardly move a head; at most those of the recipe
FEW_EXAMPLES = 32  # a step, for text that is too small for so many steps of more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder, or name on the Hub, of an encoder")
    names = [name for name in recipe_names() if name.startswith("adapt")]
    parser.epilog = recipes_for_help(names)
    parser.add_argument(
        "--recipe",
        metavar="RECIPE",
        help=f"one of those below, or a YAML file (default: {RECIPE}, on a CPU {RECIPE_ON_CPU}, with as many steps as "
        f"read the text {EPOCHS} times, from {LEAST_STEPS} to the recipe's, and a learning rate for the width)",
    )
    parser.add_argument(
        "--objective",
        choices=TEXT_OBJECTIVES,
        help="(default: that of the model class in the checkpoint's config.json, `architectures`: BertForPreTraining "
        "trains sentence pairs too, BertForMaskedLM does not)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="longest examples, special tokens included; more than the checkpoint has positions for extends their "
        "table (default: the recipe's, or the checkpoint's if it is shorter)",
    )
    parser.add_argument(
        "--positions",
        choices=POSITIONS,
        help="how a longer table of positions begins: as copies of the old ones, or stretched (default: "
        f"{POSITIONS[0]})",
    )
    parser.add_argument(
        "--keep",
        action="extend",
        nargs="+",
        metavar="PATH",
        help="general text, evaluated too; a prepared corpus or files",
    )
    parser.add_argument(
        "--replay",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the examples that are of --keep, in [0, 1): against forgetting (default: %(default)s)",
    )
    parser.add_argument(
        "--head-steps",
        type=float,
        metavar="X",
        help="steps in which new heads learn alone, before the learning rate is warmed up once more; below 1 a share "
        f"of all steps (default: {HEAD_STEPS})",
    )
    parser.add_argument(
        "--layer-decay",
        type=float,
        metavar="X",
        help="each layer's learning rate as a share of that of the layer above, in (0, 1] (default: the recipe's, or "
        "1: one rate for all)",
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR_OR_NAME", help="the checkpoint's, if it is elsewhere (default: in CHECKPOINT)"
    )
    add_run_arguments(parser)


def check(arguments: argparse.Namespace) -> None:
    """Refuse a recipe and paths that are wrong, and a share out of range."""
    if not 0 <= arguments.replay < 1:
        raise ValueError(f"--replay {arguments.replay}: it is a share in [0, 1).")
    check_model(arguments.checkpoint, f"CHECKPOINT {arguments.checkpoint!r}")
    check_text_or_corpus(arguments.keep or (), "--keep")
    check_run(arguments)
