"""What a pre-training leaves: a folder of model, tokenizer and code, with record, curve and card of the run."""

import math
import shlex
import sys
from pathlib import Path

import datasets

from hf_encoders.data.corpus.report import corpus_statistics
from hf_encoders.data.masking import Masking
from hf_encoders.publishing.checks import CARD_FILE
from hf_encoders.publishing.loss_curve import draw_loss_curve
from hf_encoders.publishing.model_card import CURVE_FILE, make_model_card
from hf_encoders.publishing.training_record import TrainingRecord, describe_hardware, describe_software
from hf_encoders.training.recipe import Recipe
from hf_encoders.training.trainer import PreTrainingTrainer


PAIR_OBJECTIVES = {
    "nsp": ("next-sentence prediction", "half of the second segments from another document"),
    "sop": ("sentence-order prediction", "half of the pairs swapped"),
}


def save_pretrained_folder(
    directory: Path,
    trainer: PreTrainingTrainer,
    recipe: Recipe,
    corpus_name: str,
    documents: datasets.Dataset,
    after: dict[str, float],
    language: str,
) -> None:
    """Save a trained model with all that is told about it. Every process of a launch calls it.

    Args:
        directory (`Path`): made if it is not there.
        trainer, recipe, corpus_name, documents, after, language: as in `pretraining_record`.
    """
    # Internal for `Trainer` means: without pushing its own card for the one that is made here.
    trainer.save_model(str(directory), _internal_call=True)
    if trainer.args.process_index != 0:
        return
    record = pretraining_record(trainer, recipe, corpus_name, documents, after, language)
    record.save(directory)
    draw_loss_curve(trainer.state.log_history, directory / CURVE_FILE, recipe.name)
    model = trainer.accelerator.unwrap_model(trainer.model)
    card = make_model_card(model, record, name=str(directory), has_curve=True, language=language)
    card.save(directory / CARD_FILE)


def pretraining_record(
    trainer: PreTrainingTrainer,
    recipe: Recipe,
    corpus_name: str,
    documents: datasets.Dataset,
    after: dict[str, float],
    language: str,
) -> TrainingRecord:
    """The facts of a run that has ended, restarts included.

    Args:
        trainer (`PreTrainingTrainer`): that trained, with its `health`, which counted tokens and seconds.
        recipe (`Recipe`): that it followed.
        corpus_name (`str`): what was trained on, in words.
        documents (`datasets.Dataset`): of it, tokenised.
        after (`dict`): what the last evaluation returned.
        language (`str`): of the text, a code.
    """
    arguments = trainer.args
    held_out = {"task": "fill-mask", "dataset": "held-out documents of the corpus"}
    perplexity = {"metric": "perplexity", "value": round(after["eval_perplexity"], 2)}
    unigram = math.exp(trainer.health.unigram_cross_entropy)
    evaluation = [
        {**held_out, **perplexity, "baseline": f"unigram {unigram:.1f}"},
        {**held_out, "metric": "accuracy", "value": round(after["eval_mlm_accuracy"], 4)},
    ]
    if "eval_pair_accuracy" in after:
        accuracy = {"metric": "accuracy", "value": round(after["eval_pair_accuracy"], 4), "baseline": "chance 0.5"}
        evaluation.append({**held_out, "task": "text-classification", **accuracy})
    losses = {
        f"{item}, held-out": round(after[f"eval_{name}_loss"], 4)
        for name, item in (("mlm", "masked tokens"), ("pair", "sentence pairs"))
        if f"eval_{name}_loss" in after
    }
    objectives = {"masked language modelling": describe_masking(trainer.data_collator.masker.masking, trainer)}
    if recipe.objective in PAIR_OBJECTIVES:
        name, rule = PAIR_OBJECTIVES[recipe.objective]
        objectives[name] = rule
    statistics = corpus_statistics(documents)
    phases = (f"{p.steps:,} steps of {p.examples:,} x {p.length} tokens" for p in recipe.phases)
    return TrainingRecord(
        objectives=objectives,
        corpus={
            "name": corpus_name,
            "documents": statistics.documents,
            "sentences": statistics.sentences,
            "tokens": statistics.tokens,
        },
        schedule={
            "optimizer steps": trainer.state.global_step,
            "recipe": recipe.name,
            "phases": ", ".join(phases),
            "optimizer": "AdamW" if trainer.optimizer_cls_and_kwargs is None else "LAMB",
            "peak learning rate": arguments.learning_rate,
            "warm-up steps": arguments.get_warmup_steps(trainer.state.max_steps),
            "schedule after warm-up": "linear to 0"
            if arguments.lr_scheduler_type == "linear"
            else str(getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type)),
            "seed": arguments.seed,
        },
        losses=losses,
        hardware=describe_hardware(),
        software=describe_software(),
        seconds=trainer.health.training_seconds,
        tokens_per_second=trainer.health.tokens_seen / trainer.health.training_seconds,
        evaluation=evaluation,
        command=shlex.join(["hf-encoders", *sys.argv[1:]]),
        language=[language],
    )


def describe_masking(masking: Masking, trainer: PreTrainingTrainer) -> str:
    """How tokens were masked, in words."""
    replaced, random = 100 * masking.mask_replace_probability, 100 * masking.random_replace_probability
    rate = f"{100 * masking.mask_probability:.0f} %"
    if trainer.mask_rate is not None:
        rate = f"{100 * trainer.mask_rate.start:.0f} to {100 * trainer.mask_rate.end:.0f} %"
    units = "" if masking.unit == "token" else f", chosen by {masking.unit}"
    return (
        f"{rate} of the tokens{units}, of those {replaced:.0f} % [MASK], {random:.0f} % random, "
        f"{100 - replaced - random:.0f} % kept"
    )
