"""What a pre-training leaves: a folder of model, tokenizer and code, with record, curve and card of the run."""

import math
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from hf_encoders.data.corpus.report import corpus_statistics
from hf_encoders.data.masking import Masking
from hf_encoders.publishing.model_card import make_model_card
from hf_encoders.recipes.recipe import Recipe
from hf_encoders.records.hardware import describe_hardware, describe_software
from hf_encoders.records.plots import draw_loss_curve
from hf_encoders.records.training_record import TrainingRecord
from hf_encoders.redaction import published_path
from hf_encoders.saved_files import CARD_FILE, CURVE_FILE
from hf_encoders.training.mask_rate import LinearMaskRate
from hf_encoders.training.optimizers import optimization_facts
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.writing import replaced_folder


PAIR_OBJECTIVES = {"nsp": "next-sentence prediction", "sop": "sentence-order prediction"}
# Shares that differ by no more are the same ones: what is left is rounding, and the drawing of few examples.
SAME_RATE, SAME_HALF = 0.005, 0.02


def save_pretrained_folder(
    directory: Path,
    trainer: PreTrainingTrainer,
    recipe: Recipe,
    corpus_name: str,
    documents: datasets.Dataset,
    after: dict[str, float],
    language: str,
    command: str,
) -> None:
    """Save a trained model with all that is told about it. Every process of a launch calls it.

    Args:
        directory (`Path`): made if it is not there; a model that it holds is removed only when the new one is whole.
        trainer, recipe, corpus_name, documents, after, language, command: as in `pretraining_record`.
    """
    if trainer.args.process_index != 0:
        trainer.save_model(str(directory), _internal_call=True)  # gathers shards; the first process writes
        return
    with replaced_folder(directory) as folder:
        # Internal for `Trainer` means: without pushing its own card for the one that is made here.
        trainer.save_model(str(folder), _internal_call=True)
        record = pretraining_record(trainer, recipe, corpus_name, documents, after, language, command)
        record.save(folder)
        draw_loss_curve(
            trainer.state.log_history,
            folder / CURVE_FILE,
            recipe.name,
            baselines={
                "mlm_loss": ("unigram cross-entropy", trainer.health.unigram_cross_entropy),
                "pair_loss": ("chance", math.log(2)),
            },
            phases=[(phase.steps, f"{phase.length} tokens") for phase in recipe.phases],
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        name = trainer.hub_model_id if trainer.args.push_to_hub else published_path(str(directory))
        card = make_model_card(model, record, name=name, has_curve=True)
        card.save(folder / CARD_FILE)


def pretraining_record(
    trainer: PreTrainingTrainer,
    recipe: Recipe,
    corpus_name: str,
    documents: datasets.Dataset,
    after: dict[str, float],
    language: str,
    command: str,
) -> TrainingRecord:
    """The facts of a run that has ended, restarts included.

    Args:
        trainer (`PreTrainingTrainer`): that trained, with its `health`, which counted tokens and seconds.
        recipe (`Recipe`): that it followed.
        corpus_name (`str`): what was trained on, in words.
        documents (`datasets.Dataset`): of it, tokenised.
        after (`dict`): what the last evaluation returned.
        language (`str`): of the text, a code.
        command (`str`): what started the run (`command_of`).
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
    log = trainer.state.log_history
    masking = trainer.data_collator.masker.masking
    objectives = {
        "masked language modelling": describe_masking(masking, recipe.mask_rate, logged_mean(log, "mask_rate"))
    }
    if recipe.objective in PAIR_OBJECTIVES:
        objectives[PAIR_OBJECTIVES[recipe.objective]] = describe_pairs(
            recipe.objective,
            bool(recipe.examples.get("original_code")),
            logged_mean(log, "pair_label_1_share"),
        )
    statistics = corpus_statistics(documents)
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
            "phases": ", ".join(map(str, recipe.phases)),
            # Rows and batches are those of the phases: to `Trainer`, an example is a whole micro-batch.
            **{name: fact for name, fact in optimization_facts(trainer).items() if not name.startswith("rows")},
            "seed": arguments.seed,
        },
        losses=losses,
        hardware=describe_hardware(),
        software=describe_software(),
        seconds=trainer.health.training_seconds,
        tokens_per_second=trainer.health.tokens_seen / trainer.health.training_seconds,
        evaluation=evaluation,
        command=command,
        language=[language],
    )


def logged_mean(log_history: list[dict[str, Any]], figure: str) -> float | None:
    """Mean over a run of a figure that is logged of the steps since the last log; None where it was not logged.

    Weighted by the real tokens of those steps. A log that a resumed run made again counts once.

    >>> log = [{"step": 1, "tokens_seen": 30, "mask_rate": 0.2}, {"step": 2, "tokens_seen": 40, "mask_rate": 0.4}]
    >>> logged_mean(log, "mask_rate")
    0.25
    """
    entries = {entry["step"]: entry for entry in log_history if "tokens_seen" in entry and figure in entry}
    logs = [entries[step] for step in sorted(entries)]
    tokens = np.diff([0, *(entry["tokens_seen"] for entry in logs)])
    return float(np.average([entry[figure] for entry in logs], weights=tokens)) if logs else None


def describe_masking(masking: Masking, schedule: LinearMaskRate | None, measured: float | None) -> str:
    """How tokens were masked, in words.

    Args:
        masking (`Masking`): what was asked for.
        schedule (`LinearMaskRate`, *optional*): of the rate.
        measured (`float`, *optional*): share of the tokens that were predicted, as logged. A limit, and examples
            whose special tokens count, make it another one than was asked for.

    >>> describe_masking(Masking(max_predictions=20, unit="ngram"), None, 0.043)  # doctest: +NORMALIZE_WHITESPACE
    '4.3 % of the tokens (15 %, but at most 20 an example), chosen by ngram, of those 80 % [MASK], 10 % random,
    10 % kept'
    """
    replaced, random = 100 * masking.mask_replace_probability, 100 * masking.random_replace_probability
    kept = 100 - replaced - random
    rates = [masking.mask_probability] if schedule is None else [schedule(0.0), schedule(1.0)]
    rate = f"{' to '.join(f'{100 * one:.0f}' for one in rates)} %"
    limit = "" if masking.max_predictions is None else f"at most {masking.max_predictions} an example"
    special = ", special ones included" if masking.mask_special_tokens else ""
    if measured is None or min(rates) - SAME_RATE <= measured <= max(rates) + SAME_RATE:
        share = f"{rate} of the tokens{special}{limit and f', {limit}'}"
    else:
        meant = f"{rate}, but {limit}" if limit else f"{rate} asked for"
        share = f"{100 * measured:.1f} % of the tokens{special} ({meant})"
    units = "" if masking.unit == "token" else f", chosen by {masking.unit}"
    return f"{share}{units}, of those {replaced:.0f} % [MASK], {random:.0f} % random, {kept:.0f} % kept"


def describe_pairs(objective: str, lone_sentences_have_label_1: bool, measured: float | None) -> str:
    """Which sentence pairs had label 1, in words.

    Args:
        objective (`str`): `nsp` or `sop`.
        lone_sentences_have_label_1 (`bool`): whether chunks of one sentence got a random second segment and label 1.
        measured (`float`, *optional*): share of label 1, as logged.

    >>> describe_pairs("nsp", False, 0.507)
    'half of the second segments from another document'
    >>> describe_pairs("sop", True, 0.553)
    '55 % of the pairs swapped, or a single sentence with one from elsewhere'
    """
    share = "half" if measured is None or abs(measured - 0.5) <= SAME_HALF else f"{100 * measured:.0f} %"
    if objective == "nsp":
        lone = ", those behind a chunk of one sentence all" if lone_sentences_have_label_1 else ""
        return f"{share} of the second segments from another document{lone}"
    lone = ", or a single sentence with one from elsewhere" if lone_sentences_have_label_1 else ""
    return f"{share} of the pairs swapped{lone}"
