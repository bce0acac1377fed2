"""The record of a pre-training, from its trainer."""

import math
import shlex
import sys
from typing import Any

from hf_encoders.data.corpus.report import CorpusStatistics
from hf_encoders.data.masking import Masking
from hf_encoders.publishing.training_record import TrainingRecord, describe_hardware, describe_software
from hf_encoders.training.trainer import PreTrainingTrainer


PAIR_OBJECTIVES = {
    "nsp": ("next-sentence prediction", "half of the second segments from another document"),
    "sop": ("sentence-order prediction", "half of the pairs swapped"),
}


def pretraining_record(
    trainer: PreTrainingTrainer,
    objective: str,
    corpus_name: str,
    statistics: CorpusStatistics,
    schedule: dict[str, Any],
    after: dict[str, float],
    unigram: float,
    language: list[str],
) -> TrainingRecord:
    """The facts of a run that has ended, restarts included.

    Args:
        trainer (`PreTrainingTrainer`): that trained, with its `health`, which counted tokens and seconds.
        objective (`str`): `mlm`, `nsp` or `sop`.
        corpus_name (`str`): what was trained on, in words.
        statistics (`CorpusStatistics`): of it.
        schedule (`dict`): facts that the trainer does not know: examples a step, their length.
        after (`dict`): what the last evaluation returned.
        unigram (`float`): nats a held-out token under token frequencies.
        language (`list` of `str`): codes.
    """
    arguments = trainer.args
    held_out = {"task": "fill-mask", "dataset": "held-out documents of the corpus"}
    perplexity = {"metric": "perplexity", "value": round(after["eval_perplexity"], 2)}
    evaluation = [
        {**held_out, **perplexity, "baseline": f"unigram {math.exp(unigram):.1f}"},
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
    if objective in PAIR_OBJECTIVES:
        name, rule = PAIR_OBJECTIVES[objective]
        objectives[name] = rule
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
            **schedule,
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
        language=language,
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
